"""Runs `weir` where Ctrl-C comes at the worst moment: the HTTP client gives back a lock, for the n-th time.

Knows: the lock of the HTTP client, how `weir` is started. Must never know: what is tested with it.

    python -m tests.cli.interrupted 20 import …
"""

import runpy
import signal
import sys
import threading

from httpcore import _synchronization as synchronization


class Interrupted:
    """Counts until Ctrl-C."""

    left = 0


class _Lock:
    """A lock, as the HTTP client uses one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        Interrupted.left -= 1
        if not Interrupted.left:
            signal.raise_signal(signal.SIGINT)
        self._lock.release()


def _init(lock: synchronization.ThreadLock) -> None:
    lock._lock = _Lock()  # type: ignore[assignment]  # noqa: SLF001 - the client has no other place for it


if __name__ == "__main__":
    Interrupted.left = int(sys.argv[1])
    synchronization.ThreadLock.__init__ = _init  # type: ignore[method-assign, assignment]
    sys.argv = ["weir", *sys.argv[2:]]
    runpy.run_module("weir", run_name="__main__", alter_sys=True)
