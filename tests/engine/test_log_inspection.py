"""Looking at a log changes nothing, and says what a start would say."""

from collections.abc import Iterator

import pytest

from engine.codec import CHUNK_BYTES, FILE_FRAME_BYTES
from engine.log import LogRefusedError
from engine.log.inspection import inspect, read_run, rehearse
from engine.log.view import LogView
from engine.storage import Storage
from engine.storage.memory import MemoryStorage
from tests.engine.log_cases import (
    SEGMENT,
    append,
    begun,
    changed,
    closed,
    files,
    next_segment,
    open_log,
    payload,
    synced_then_not,
    write_base,
)


def sealed() -> MemoryStorage:
    """Three segments, two of them sealed, closed cleanly."""
    storage, log = begun()
    for number in range(9):
        append(log, payload(number), synced=True)
        if number in (2, 5):
            next_segment(log)
    log.close()
    return storage.kill()


def rewritten() -> MemoryStorage:
    """A base and a segment that the manifest names, and two segments that it does not name yet: a kill."""
    storage, log = begun(payload(0), payload(1))
    next_segment(log)
    write_base(log, log.total_bytes - FILE_FRAME_BYTES, payload(0), payload(1), reservation_ms=77)
    append(log, payload(2), payload(3), synced=True)
    for number in (4, 6):
        log.start_segment(log.prepare_segment())
        append(log, payload(number), payload(number + 1), synced=number == 4)
    log.prepare_segment().handle.close()
    return storage.kill()


def start_says(storage: MemoryStorage) -> object:
    """What opening finds, or why it refuses; on a copy."""
    copy = MemoryStorage(files(storage))
    try:
        log = open_log(copy)
    except LogRefusedError as refused:
        return str(refused)
    log.close(clean=False)
    return log.recovery


def check_says(storage: Storage) -> object:
    found = inspect(storage)
    return found.recovery if found.refusal is None else str(found.refusal)


def damaged() -> Iterator[tuple[str, MemoryStorage]]:
    """Each byte of each file flipped or the end of the file, and each file gone or too long."""
    for storage in (sealed(), synced_then_not(), rewritten()):
        for name, content in files(storage).items():
            for at in range(0, len(content), 5):
                flipped = content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
                yield f"{name} flipped at {at}", changed(storage, name, flipped)
                yield f"{name} cut at {at}", changed(storage, name, content[:at])
            yield f"{name} with zeros", changed(storage, name, content + bytes(512))
            others = {other: content for other, content in files(storage).items() if other != name}
            yield f"{name} gone", MemoryStorage(others)


def test_it_says_what_a_start_would_say() -> None:
    """For every damage the same verdict, word for word, and the directory is as it was."""
    for what, storage in damaged():
        before = files(storage)
        assert check_says(storage) == start_says(storage), what
        assert files(storage) == before, what
        assert not storage.operations, what


def test_each_file_is_told() -> None:
    """In order, with what is in it; one that is missing, and one that belongs to no manifest."""
    storage = sealed()
    found = inspect(storage)
    assert [(run.file.name, run.frames, run.payloads) for run in found.runs] == [
        ("segment-1.weir", 4, 3),
        ("segment-2.weir", 4, 3),
        ("segment-3.weir", 5, 3),
    ]
    assert [run.fault for run in found.runs] == [None] * 3
    assert sum(run.length for run in found.runs) == found.runs[-1].end
    content = files(storage)
    content["base-0.weir"] = content.pop("segment-2.weir")
    found = inspect(MemoryStorage(content))
    assert (found.missing, found.beside) == (["segment-2.weir"], ["base-0.weir"])


def test_faults_have_a_place() -> None:
    """A file that is sound, but not what the manifest says, is named with what is wrong with it."""
    storage = sealed()
    content = storage.content("segment-1.weir")
    found = inspect(changed(storage, "segment-1.weir", content + b"more"))
    assert found.runs[0].fault is not None
    assert (found.runs[0].fault.offset, found.runs[0].length) == (len(content), len(content))
    assert "was sealed with" in str(found.refusal)


def test_without_a_manifest_files_are_still_told() -> None:
    """By their numbers, with the reason why a start refuses them."""
    content = files(sealed())
    del content["manifest"]
    found = inspect(MemoryStorage(content))
    assert not found.has_manifest
    assert [run.frames for run in found.runs] == [4, 4, 5]
    assert "manifest: is missing" in str(found.refusal)


def test_an_empty_directory_is_no_log() -> None:
    """A path that was mistyped is not called sound."""
    assert "holds no log" in str(inspect(MemoryStorage({"photo.jpeg": b"x"})).refusal)


def test_a_view_stays_as_it_was() -> None:
    """Files are appended to, replaced and removed behind it; it gives what was there, and no more."""
    storage = synced_then_not()
    before = files(storage)
    with LogView.of(storage) as view:
        log = open_log(storage)
        append(log, b"later", synced=True)
        next_segment(log)
        storage.unlink(SEGMENT)
        assert {name: view.read(name, 0, 10**6) for name in view.names()} == before
        assert rehearse(view).frames == 11
        log.close()


def test_a_rehearsal_leaves_the_view_alone() -> None:
    """A start cuts a torn tail; in a view only for itself."""
    storage = changed(closed(), SEGMENT, closed().content(SEGMENT) + b"torn")
    with LogView.of(storage) as view:
        assert [rehearse(view).torn_bytes for _ in range(3)] == [4] * 3
        assert view.size(SEGMENT) == storage.size(SEGMENT)


class _Rewriting(MemoryStorage):
    """A directory in which the manifest changes each time that its files were listed."""

    def __init__(self, content: dict[str, bytes], times: int) -> None:
        super().__init__(content)
        self.left = times

    def names(self) -> list[str]:
        names = super().names()
        if self.left:
            self.left -= 1
            self.rename("segment-1.weir", "gone")
            self.rename("manifest", "old")
            self.create("manifest").append(b"another %d" % self.left)
        if self.left == 0 and "old" in super().names():
            self.rename("old", "manifest")
            self.rename("gone", "segment-1.weir")
        return names


def test_files_that_change_while_they_are_opened_are_opened_anew() -> None:
    """A manifest and the files of another do not go together."""
    storage = _Rewriting(files(closed()), 1)
    with LogView.of(storage) as view:
        assert rehearse(view).frames == 8


@pytest.mark.parametrize("length", [0, 1, 5000, CHUNK_BYTES - 200, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_what_is_given_on_is_what_was_verified(length: int) -> None:
    """Every byte once and in order, however frames lie in the parts that are read."""
    storage, log = begun(b"a", b"b" * length, b"c", b"d" * length, b"e")
    log.close()
    whole = storage.content(SEGMENT)
    for content in (whole, whole + b"torn", whole[:-1]):
        parts: list[bytes] = []
        with LogView.of(changed(storage, SEGMENT, content)) as view:
            run = read_run(view, inspect(storage).runs[0].file, sink=parts.append)
        assert b"".join(parts) == content[: run.length]
