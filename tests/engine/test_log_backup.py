"""A backup holds everything that was acknowledged before it began, and half a backup is none."""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.log import LogRefusedError
from engine.log.backup import back_up, restore
from engine.log.inspection import inspect
from engine.log.manifest import decode
from engine.storage import Storage
from engine.storage.file import FileStorage
from engine.storage.memory import MemoryStorage, StoppedError
from tests.engine.log_cases import (
    SEGMENT,
    append,
    begun,
    changed,
    closed,
    files,
    next_segment,
    open_log,
    recovered,
    synced_then_not,
    write_base,
)
from tests.engine.test_log_inspection import rewritten, sealed

REWRITES_S_MAX = 30.0
NOW_MS = 1_800_000_000_000


def backup_of(source: Storage) -> MemoryStorage:
    """The copy as it is after a power cut right behind its end."""
    target = MemoryStorage()
    back_up(source, target)
    return target.crash()


@pytest.mark.parametrize(
    "source", [closed, sealed, synced_then_not, rewritten], ids=lambda make: make.__name__
)
def test_a_backup_is_the_log(source: Callable[[], MemoryStorage]) -> None:
    """All frames in order, as good as the log itself; the source is not touched."""
    storage = source()
    before = files(storage)
    copy = backup_of(storage)
    assert recovered(copy) == recovered(MemoryStorage(before))
    assert (files(storage), storage.operations) == (before, [])
    assert recovered(backup_of(copy)) == recovered(MemoryStorage(before))


def test_a_backup_knows_its_last_byte() -> None:
    """What a log had not synced is safe in its copy, so that a damage there is refused, not cut as torn."""
    copy = backup_of(synced_then_not())
    whole = copy.content(SEGMENT)
    for at in range(len(whole)):
        flipped = whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :]
        assert inspect(changed(copy, SEGMENT, flipped)).refusal is not None, at
        assert inspect(changed(copy, SEGMENT, whole[:at])).refusal is not None, at


def test_all_but_the_last_file_are_sealed() -> None:
    """A segment that the manifest did not name yet, too."""
    copy = backup_of(sealed())
    *others, last = decode(copy.content("manifest")).segments
    assert last.seal is None
    assert all(segment.seal for segment in others)


def test_a_torn_tail_is_left_out() -> None:
    """A write under way is no part of what was acknowledged; the copy ends before it."""
    storage = changed(closed(), SEGMENT, closed().content(SEGMENT) + b"half a fra")
    target = MemoryStorage()
    copied = back_up(storage, target)
    assert copied.left_bytes == 10
    assert recovered(target) == recovered(closed())
    assert "torn" not in " ".join(target.names())


def test_what_a_start_refuses_is_not_backed_up() -> None:
    """A damage is reported with its place, and there is no manifest that would make the copy a log."""
    for storage in (sealed(), closed()):
        for name, content in files(storage).items():
            for at in range(0, len(content), 7):
                flipped = changed(storage, name, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
                target = MemoryStorage()
                with pytest.raises(LogRefusedError):
                    back_up(flipped, target)
                assert "manifest" not in target.names()


def test_a_missing_file_is_named() -> None:
    """As a start names it."""
    content = files(sealed())
    del content["segment-2.weir"]
    with pytest.raises(LogRefusedError, match=r"segment-2\.weir: is missing"):
        back_up(MemoryStorage(content), MemoryStorage())


@pytest.mark.parametrize("storage", [MemoryStorage(), MemoryStorage({"photo.jpeg": b"x"})])
def test_what_is_no_log_is_not_backed_up(storage: MemoryStorage) -> None:
    """An empty backup would be found out on the day it is needed."""
    with pytest.raises(LogRefusedError, match="manifest: is missing"):
        back_up(storage, MemoryStorage())


def steps_of_backup() -> int:
    target = MemoryStorage()
    back_up(sealed(), target)
    return len(target.operations)


def test_half_a_backup_is_none() -> None:
    """Stopped before each step, by a power cut or without: a start refuses it, or it is the whole log."""
    for nth in range(steps_of_backup()):
        target = MemoryStorage()
        target.stop_before(nth)
        with pytest.raises(StoppedError):
            back_up(sealed(), target)
        for left in (target.kill(), target.crash(), target.crash(name_changes=99)):
            found = inspect(left)
            assert found.refusal is not None or recovered(left) == recovered(sealed()), nth


def test_errors_of_either_disk_are_told() -> None:
    """A full disk, a failing sync, a failing read: OSError, and no manifest."""
    for operation, code in (("append", errno.ENOSPC), ("sync", errno.EIO), ("rename", errno.EIO)):
        target = MemoryStorage()
        target.fail(operation, code)
        with pytest.raises(OSError, match=r"No space|Input/output"):
            back_up(sealed(), target)
        assert "manifest" not in target.names()


def test_a_restored_log_goes_on_anew() -> None:
    """It has what the backup had, what shows readers that it is another life, and gives no ID again."""
    target = MemoryStorage()
    restore(backup_of(closed()), target, [b"a new life"], NOW_MS)
    after = target.crash()
    log = open_log(after)
    assert list(log.replay()) == [*recovered(closed()), b"a new life"]
    assert log.recovery.reservation_ms == NOW_MS
    assert not log.recovery.clean_stop
    append(log, b"on and on", synced=True)
    log.close()
    assert recovered(after)[-2:] == [b"a new life", b"on and on"]


def test_a_restored_log_keeps_its_new_life() -> None:
    """What shows readers that it is another log was synced, and says so: damage there is no torn tail."""
    target = MemoryStorage()
    restore(backup_of(closed()), target, [b"another life"], NOW_MS)
    content = target.content(SEGMENT)
    at = content.index(b"another life")
    assert recovered(target)[-1] == b"another life"
    for spoiled in (content[:-1], content[:at] + b"A" + content[at + 1 :]):
        with pytest.raises(LogRefusedError, match="in what was synced"):
            recovered(changed(target, SEGMENT, spoiled))


def test_a_later_reservation_stays() -> None:
    """A clock that was ahead when the backup was made is not forgotten."""
    storage, log = begun()
    log.reserve_ids(NOW_MS + 5)
    append(log, b"a", synced=True)
    log.close()
    target = MemoryStorage()
    restore(storage, target, [], NOW_MS)
    log = open_log(target)
    assert log.recovery.reservation_ms == NOW_MS + 5
    log.close()


def test_a_backup_beside_rewrites_has_what_was_written_before_it(tmp_path: Path) -> None:
    """On a real disk, where files are replaced and removed all the while: what is gone in a backup is in its
    base.
    """
    storage = FileStorage(tmp_path, create=True)
    log = open_log(storage)
    written, ended = [0], threading.Event()

    def write() -> None:
        while not ended.is_set():
            append(log, b"%d" % written[0], synced=False)
            written[0] += 1
            if written[0] % 10 == 0:
                position = log.start_segment(log.prepare_segment())
                append(log, synced=True)
                log.name_segments()
                write_base(log, position, b"below %d" % written[0], reservation_ms=0)

    writer = threading.Thread(target=write)
    writer.start()
    bases: set[bytes] = set()
    deadline_s = time.monotonic() + REWRITES_S_MAX
    try:
        while len(bases) < 8 and time.monotonic() < deadline_s:
            before = written[0]
            found = recovered(backup_of(storage))
            first = 0
            if found and found[0].startswith(b"below "):
                bases.add(found[0])
                first = int(found.pop(0).removeprefix(b"below "))
            assert first + len(found) >= before
            assert found == [b"%d" % (first + number) for number in range(len(found))]
    finally:
        ended.set()
        writer.join()
        log.close()
        storage.close()
    assert len(bases) == 8


def test_a_backup_under_load_has_what_was_written_before_it() -> None:
    """Beside a writer that goes on and begins segments: every frame up to a moment after its begin."""
    storage, log = begun()
    written, ended = [0], threading.Event()

    def write() -> None:
        while not ended.is_set():
            append(log, b"%d" % written[0], synced=written[0] % 3 == 0)
            written[0] += 1
            if written[0] % 50 == 0:
                next_segment(log)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            before = written[0]
            found = recovered(backup_of(storage))
            assert len(found) >= before
            assert found == [b"%d" % number for number in range(len(found))]
    finally:
        ended.set()
        writer.join()
        log.close()
