"""Runs `weir` where Ctrl-C comes at the worst moment: the HTTP client gives back a lock, for the n-th time.

Knows: the lock of the HTTP client, how `weir` is started. Must never know: what is tested with it.

    python -m tests.cli.interrupted 20 import …
"""

import runpy
import signal
import sys

from httpcore import _synchronization as synchronization

_plain = synchronization.ThreadLock.__exit__


class Interrupted:
    """Counts until Ctrl-C."""

    left = 0


def _exit(lock: synchronization.ThreadLock, *error: object) -> None:
    Interrupted.left -= 1
    if not Interrupted.left:
        signal.raise_signal(signal.SIGINT)
    _plain(lock, *error)  # type: ignore[arg-type]


if __name__ == "__main__":
    Interrupted.left = int(sys.argv[1])
    synchronization.ThreadLock.__exit__ = _exit  # type: ignore[method-assign]
    sys.argv = ["weir", *sys.argv[2:]]
    runpy.run_module("weir", run_name="__main__", alter_sys=True)
