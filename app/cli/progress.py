"""How far a long command is: a line that is written over on a terminal, elsewhere a line now and then.

Knows: terminals, and how often people want to hear. Must never know: what is under way.
"""

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from weir.cli import output

_TERMINAL_S: Final = 0.2
# A log of a command that runs for an hour gets some hundred lines.
_LOG_S: Final = 10.0
_CLEAR: Final = "\r\x1b[K"


class Progress:
    """`show` what is under way as often as it changes; `say` what stays; `clear` at the end."""

    def __init__(self, target: TextIO = sys.stderr, now_s: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._now_s = now_s
        self._is_terminal = target.isatty()
        # A short command says nothing in a log, and at once how far it is on a terminal.
        self._next_s = now_s() + (0.0 if self._is_terminal else _LOG_S)
        self._is_shown = False

    def show(self, line: str) -> None:
        """Write how far it is, if it is time to."""
        now_s = self._now_s()
        if now_s < self._next_s:
            return
        if self._is_terminal:
            self._target.write(f"{_CLEAR}{output.plain(line)}")
            self._is_shown = True
        else:
            self._target.write(f"weir: {output.plain(line)}\n")
        self._target.flush()
        self._next_s = now_s + (_TERMINAL_S if self._is_terminal else _LOG_S)

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._target.write(f"weir: {output.plain(line)}\n")
        self._target.flush()

    def clear(self) -> None:
        """Take away what is shown on a terminal."""
        if self._is_shown:
            self._target.write(_CLEAR)
            self._target.flush()
            self._is_shown = False
