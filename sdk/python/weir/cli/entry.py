"""Where the command `weir` begins.

Knows: that Ctrl-C may come while modules are still imported, or while the HTTP client takes a lock.
Must never know: any command.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_LOCKS: Final = "httpcore._synchronization"
_AGAIN_S: Final = 0.001


def main() -> None:
    """Run the command."""
    with imports():
        from weir.cli.main import add_plugins, run

        add_plugins()
    run()


@contextmanager
def imports() -> Iterator[None]:
    """While a command is imported: Ctrl-C ends the process as it does any other program, without the trace of
    half an import. After that it raises KeyboardInterrupt.
    """
    # It may also be ignored, as in the background of a script: that stays.
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if is_default and sys.platform == "win32":
        signal.signal(signal.SIGINT, signal.default_int_handler)
    elif is_default:
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGALRM, _interrupt)


if sys.platform != "win32":

    def _interrupt(_number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt; a moment later where the HTTP client takes or gives back a lock. The lock
        would stay taken, and the client would wait for it for ever when it cleans up.
        """
        while frame is not None:
            if frame.f_globals.get("__name__") == _LOCKS:
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
                return
            frame = frame.f_back
        raise KeyboardInterrupt
