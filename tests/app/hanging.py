"""`weir` whose disk never ends a sync once there is an entry for `slow`, and whose engine fails at `poison`.

Knows: where a file is synced, and the bounds on waiting for that, which it shortens.
Must never know: what must follow from that.
"""

import threading

from app import lifespan
from engine.keyspace import Keyspace
from engine.records import Append
from engine.storage.file import FileHandle
from tests.app.poisoned import poison
from weir.cli.main import main

SLOW = "slow"
_ABANDON_S_MAX = 0.3
_CLOSE_S_MAX = 1.0
_sync = FileHandle.sync
_hangs = threading.Event()


def _slow(record: Append, keyspace: Keyspace) -> None:
    if record.stream == SLOW:
        _hangs.set()
    _poisoned(record, keyspace)


def _hanging(handle: FileHandle) -> None:
    if _hangs.is_set():
        threading.Event().wait()
    _sync(handle)


if __name__ == "__main__":
    poison()
    _poisoned = Append.apply
    Append.apply = _slow  # type: ignore[assignment, method-assign]
    FileHandle.sync = _hanging  # type: ignore[assignment, method-assign]
    lifespan.ABANDON_S_MAX = _ABANDON_S_MAX  # type: ignore[misc]
    lifespan.CLOSE_S_MAX = _CLOSE_S_MAX  # type: ignore[misc]
    main()
