"""`weir` whose disk never ends a sync once there is an entry for `slow`, nor a write once there is one for
`stuck`, whose log cannot be read to its end with one for `unread`, and whose engine fails at `poison`.

Knows: where a file is written and synced, and the bounds on waiting for that, which it shortens.
Must never know: what must follow from that.
"""

import threading

from app import lifespan, server
from engine.keyspace import Keyspace
from engine.records.changes import Append
from engine.storage.file import FileHandle
from tests.app.poisoned import poison
from weir.cli.main import main

SLOW = "slow"
STUCK = "stuck"
UNREAD = "unread"
_ABANDON_S_MAX = 0.3
_CLOSE_S_MAX = 1.0
_STUCK_S = 0.5
_sync = FileHandle.sync
_append = FileHandle.append
_hangs = threading.Event()
_is_stuck = threading.Event()


def _slow(record: Append, keyspace: Keyspace) -> None:
    if record.stream == SLOW:
        _hangs.set()
    if record.stream == STUCK:
        _is_stuck.set()
    if record.stream == UNREAD and threading.current_thread() is not threading.main_thread():
        threading.Event().wait()
    _poisoned(record, keyspace)


def _hanging(handle: FileHandle) -> None:
    if _hangs.is_set():
        threading.Event().wait()
    _sync(handle)


def _stuck(handle: FileHandle, content: bytes) -> None:
    if _is_stuck.is_set():
        threading.Event().wait()
    _append(handle, content)


if __name__ == "__main__":
    poison()
    _poisoned = Append.apply
    Append.apply = _slow  # type: ignore[assignment, method-assign]
    # The kernel ends what it begins.
    FileHandle.descriptor = None  # type: ignore[assignment, method-assign]
    FileHandle.sync = _hanging  # type: ignore[assignment, method-assign]
    FileHandle.append = _stuck  # type: ignore[assignment, method-assign]
    lifespan.ABANDON_S_MAX = _ABANDON_S_MAX  # type: ignore[misc]
    lifespan.CLOSE_S_MAX = _CLOSE_S_MAX  # type: ignore[misc]
    server.CLOSE_S_MAX = _CLOSE_S_MAX  # type: ignore[attr-defined]
    server._STUCK_S = _STUCK_S  # type: ignore[misc]  # noqa: SLF001 - the bound that this program shortens
    main()
