"""What a start finds beside its log: its own remains go, what only has such a name is set aside."""

import os
from itertools import count
from pathlib import Path

import pytest

from engine.log import Log, LogRefusedError
from engine.log.backup import back_up
from engine.log.inspection import inspect
from engine.log.leftovers import remove_leftovers
from engine.log.manifest import MANIFEST, decode, file_number
from engine.log.repair import IrreparableError, plan
from engine.storage import Storage
from engine.storage.file import FileStorage
from engine.storage.memory import MemoryStorage, StoppedError
from tests.engine.log_cases import append, counting_salt, files, next_segment, open_log, write_base


def started(storage: Storage) -> list[str]:
    """Start and stop again; what was set aside."""
    log = open_log(storage)
    list(log.replay())
    aside = remove_leftovers(storage, log.manifest)
    log.close(clean=False)
    return aside


def rewrite(log: Log, *payloads: bytes) -> None:
    position = log.start_segment(log.prepare_segment())
    append(log, synced=True)
    log.name_segments()
    write_base(log, position, *payloads, reservation_ms=0)


def live(storage: Storage) -> None:
    """Three segments, a rewrite of them, one more segment, and a second rewrite."""
    log = Log.open(storage, reserve_bytes=256, salt=counting_salt())
    append(log, b"one", synced=True)
    next_segment(log)
    append(log, b"two", synced=True)
    rewrite(log, b"one and two")
    append(log, b"three", synced=True)
    next_segment(log)
    append(log, b"four", synced=True)
    rewrite(log, b"one to four" * 20)
    append(log, b"five", synced=True)


def based() -> MemoryStorage:
    storage = MemoryStorage()
    live(storage)
    return storage.kill()


def unnamed(storage: MemoryStorage) -> set[str]:
    """The files that are named like the log's, older than its last one, and not in the manifest."""
    manifest = decode(storage.content(MANIFEST))
    names = {name for name in storage.names() if file_number(name) is not None}
    last = manifest.segments[-1].number
    later = {name for name in names if name.startswith("segment-") and (file_number(name) or 0) > last}
    return names - later - {file.name for file in manifest.files()}


def test_whatever_a_rewrite_leaves_goes_at_the_next_start() -> None:
    """Killed before any operation, or without power there: all of it is known as the log's own."""
    left: set[str] = set()
    for steps in count():
        storage = MemoryStorage()
        storage.stop_before(steps)
        try:
            live(storage)
        except StoppedError:
            pass
        else:
            break
        names = range(storage.unsynced_name_changes() + 1)
        crashes = [storage.crash(name_changes=n) for n in names]
        crashes += [storage.crash(name_changes=n, tail=lambda _, live: live) for n in names]
        for image in (storage.kill(), *crashes):
            before = set(image.names())
            assert started(image) == []
            assert unnamed(image) == set()
            left |= {name.partition("-")[0] for name in before - set(image.names())}
    assert left >= {"base", "segment"}, "there was something to remove, of both kinds"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("segment-0.weir", b"an older generation"),
        ("base-8.weir", b"the picture of a cat" * 9),
        ("base-70.weir", b"x"),
        ("base-0.weir", bytes(53)),
    ],
)
def test_a_file_that_was_not_made_here_is_set_aside(name: str, content: bytes) -> None:
    """Its name alone does not make it ours."""
    storage = MemoryStorage({**files(based()), name: content})
    before = files(storage)
    assert started(storage) == [f"{name}.set-aside"]
    assert storage.content(f"{name}.set-aside") == content
    assert {each: before[each] for each in before if each != name}.items() <= files(storage).items()
    assert started(storage) == [], "it has another name now"


def test_a_file_of_another_log_is_set_aside() -> None:
    """Sound, with frames, but not of this chain."""
    other = MemoryStorage()
    log = Log.open(other, reserve_bytes=256, salt=counting_salt(7))
    append(log, b"something else", b"altogether", synced=True)
    next_segment(log)
    rewrite(log, b"all of that")
    append(log, b"and more", synced=True)
    theirs = files(other)
    base = next(name for name in theirs if name.startswith("base-"))
    segment = next(name for name in theirs if name.startswith("segment-"))
    storage = MemoryStorage(
        {**files(based()), "base-1.weir": theirs[base], "segment-2.weir": theirs[segment]}
    )
    assert sorted(started(storage)) == ["base-1.weir.set-aside", "segment-2.weir.set-aside"]
    assert storage.content("base-1.weir.set-aside") == theirs[base]


def test_copies_of_the_files_in_use_are_set_aside() -> None:
    """A backup in the wrong place; under a second name the user keeps it."""
    whole = files(based())
    base = next(name for name in whole if name.startswith("base-"))
    segment = next(name for name in whole if name.startswith("segment-"))
    storage = MemoryStorage({**whole, "base-99.weir": whole[base], "segment-1.weir": whole[segment]})
    assert sorted(started(storage)) == ["base-99.weir.set-aside", "segment-1.weir.set-aside"]


def test_two_files_of_one_name_are_both_kept() -> None:
    """What was set aside before is not overwritten."""
    storage = MemoryStorage({**files(based()), "base-0.weir": b"one", "base-0.weir.set-aside": b"another"})
    assert started(storage) == ["base-0.weir.set-aside.2"]
    assert storage.content("base-0.weir.set-aside") == b"another"


def test_a_file_with_nothing_in_it_goes() -> None:
    """It was made, and never written: a crash leaves it, and nothing is missing."""
    storage = MemoryStorage({**files(based()), "base-0.weir": b"", "segment-0.weir": bytes(52)})
    assert started(storage) == []
    assert unnamed(storage) == set()


def test_a_pipe_in_the_place_of_a_segment_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    """By a start, by a check and by a backup, in the same words; beside the log it is set aside unopened."""
    storage = FileStorage(tmp_path / "data", create=True)
    live(storage)
    storage.unlock()
    os.mkfifo(tmp_path / "data" / "base-0.weir")
    (tmp_path / "data" / "segment-0.weir").mkdir()
    assert inspect(storage).refusal is None
    assert sorted(started(storage)) == ["base-0.weir.set-aside", "segment-0.weir.set-aside"]
    for name in [file.name for file in decode(storage.read(MANIFEST, 0, 9_999)).files()]:
        (tmp_path / "data" / name).rename(tmp_path / "kept")
        os.mkfifo(tmp_path / "data" / name)
        refusal = f"{name}: is a named pipe, not a regular file"
        with pytest.raises(LogRefusedError, match=refusal):
            open_log(storage)
        found = inspect(storage)
        assert str(found.refusal) == f"{refusal}: put the file back in its place"
        with pytest.raises((LogRefusedError, OSError), match="is a named pipe"):
            back_up(storage, MemoryStorage())
        with pytest.raises((IrreparableError, OSError), match="is a named pipe"):
            plan(storage)
        (tmp_path / "kept").rename(tmp_path / "data" / name)
    assert started(storage) == []
    storage.close()
