"""Backup and restore of real directories, in process: what a copy holds, and that it is another log."""

from functools import partial
from pathlib import Path

import pytest

from engine.backup import back_up, restore
from engine.log import Log
from engine.storage import StorageRefusedError
from engine.storage.file import FileStorage

NOW_MS = 1_800_000_000_000


def a_log(data: Path) -> None:
    """A log of one frame in a new directory."""
    storage = FileStorage(data, create=True)
    log = Log.open(storage)
    log.stage(b"one")
    log.close()
    storage.close()


def payloads_in(data: Path) -> list[bytes]:
    storage = FileStorage(data)
    log = Log.open(storage)
    found = list(log.replay())
    log.close(clean=False)
    storage.close()
    return found


def test_a_restored_copy_has_what_there_was_and_is_another_log(tmp_path: Path) -> None:
    """One frame more: it gives each stream a new generation."""
    a_log(tmp_path / "data")
    assert back_up(tmp_path / "data", tmp_path / "copy").frames == 1
    assert payloads_in(tmp_path / "copy") == [b"one"]
    restore(tmp_path / "copy", tmp_path / "second", now_ms=NOW_MS)
    restored = payloads_in(tmp_path / "second")
    assert restored[0] == b"one"
    assert len(restored) == 2


def test_nothing_is_ever_written_over(tmp_path: Path) -> None:
    """A place where there is something is refused, and what is there stays."""
    a_log(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "copy")
    before = sorted(path.name for path in (tmp_path / "copy").iterdir())
    for work in (back_up, partial(restore, now_ms=NOW_MS)):
        with pytest.raises(StorageRefusedError):
            work(tmp_path / "data", tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == before
