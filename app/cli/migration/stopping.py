"""Ctrl-C and SIGTERM, heard between two commands.

Knows: signals, and how long a server may still take to answer once one has come.
Must never know: what is under way.

What the handler of a signal raises passes through the code that runs at that moment. A library that has just
taken a lock keeps it then, and waits for ever where it takes it again to clean up. So a signal is noted, and
raised where no library is at work.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

# A server that has not answered by then hangs: what waits for it is broken off, wherever it is.
_ANSWER_S_MAX: Final = 5.0
# And again, should it wait for a lock that was kept.
_AGAIN_S: Final = 1.0


class Stopped(KeyboardInterrupt):
    """A signal has come, and no command is under way."""


class Stop:
    """Whether a signal has come. A second one before `check` or `forget` raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self._has_come = False

    def check(self) -> None:
        """Between two commands. Raises Stopped once a signal has come, and forgets it."""
        if self._has_come:
            self.forget()
            raise Stopped

    def forget(self) -> None:
        """What has come is seen to."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._has_come = False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        is_second, self._has_come = self._has_come, True
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S if is_second else _ANSWER_S_MAX, _AGAIN_S)
        if is_second:
            raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Also where a shell in the background had them ignored."""
        handlers = {signal.SIGINT: self._note, signal.SIGTERM: self._note, signal.SIGALRM: _break_off}
        before = [(number, signal.signal(number, handler)) for number, handler in handlers.items()]
        try:
            yield
        finally:
            self.forget()
            for number, handler in before:
                signal.signal(number, handler)


def _break_off(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
