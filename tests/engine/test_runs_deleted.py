"""Deleted means gone, in files of cold entries too: where a rewrite is asked for, and by itself in time."""

import asyncio
import errno
from collections.abc import Iterator

import pytest
import zstandard

from engine import Engine, Growth, RewriteFailedError
from engine.storage.memory import MemoryHandle, MemoryStorage
from tests.engine.clocks import let_threads_run
from tests.engine.running import keyspace_of
from tests.engine.test_runs import Stored, after_restart, filled, run_files, seen, storer_of

_FRAME = b"\x28\xb5\x2f\xfd"


def texts_in(content: bytes) -> Iterator[bytes]:
    """All that a file holds, as it is and unpacked."""
    yield content
    at = content.find(_FRAME)
    while at >= 0:
        yield zstandard.ZstdDecompressor().decompressobj().decompress(content[at:])
        at = content.find(_FRAME, at + 1)


def values_in(storage: MemoryStorage, numbers: range) -> set[int]:
    """Those of the entries that `fill` added of which a file has the value."""
    texts = b"\n".join(text for name in storage.names() for text in texts_in(storage.content(name)))
    return {number for number in numbers if b'"value %d"' % number in texts}


async def test_an_asked_rewrite_leaves_no_byte_of_what_was_deleted() -> None:
    """Entries, trimmed ones, whole streams: in files that are full, half-empty, being written, of no use."""
    storage, numbers = MemoryStorage(), range(1, 2_001)
    async with filled(storage, 1_500) as talk:
        await talk.engine.rewrite()
        storer_of(talk.engine)._file = None  # noqa: SLF001 - as if the file were full
        await talk.fill(300, 1_501)
        await talk.fill(200, 1_801, "gone")
        await talk.store()
        assert await talk.call("XDEL", "s", "700-0", "1600-0") == 2
        assert await talk.call("XTRIM", "s", "MINID", "5-0") == 4
        await talk.call("DEL", "gone")
        deleted = {1, 2, 3, 4, 700, 1_600, *range(1_801, 2_001)}
        assert values_in(storage, numbers) == {*numbers}
        before = seen(keyspace_of(talk.engine))
        await talk.engine.rewrite()
        assert values_in(storage, numbers) == {*numbers} - deleted
        assert seen(keyspace_of(talk.engine)) == before
        assert await after_restart(storage.crash()) == before
        files = run_files(storage)
        await talk.engine.rewrite()
        assert run_files(storage) == files, "nothing was deleted since"


async def test_what_a_copy_still_has_is_not_gone() -> None:
    """Once the copy has deleted it, too, it is."""
    storage, numbers = MemoryStorage(), range(1, 101)
    async with filled(storage, 100) as talk:
        await talk.call("COPY", "s", "copy")
        await talk.call("XDEL", "s", "50-0")
        await talk.engine.rewrite()
        assert values_in(storage, numbers) == {*numbers}
        before = seen(keyspace_of(talk.engine))
        assert await after_restart(storage.kill()) == before
        await talk.call("XDEL", "copy", "50-0")
        await talk.engine.rewrite()
        assert values_in(storage, numbers) == {*numbers} - {50}


class Small(Stored):
    """Its log is rewritten by itself as soon as it has doubled."""

    def opened(self) -> Engine:
        engine = super().opened()
        engine._rewriter._growth = Growth(100, 10_000)  # noqa: SLF001 - instead of 64 MiB
        return engine


async def pass_s(talk: Stored, seconds: int) -> None:
    for _ in range(10 * seconds):
        await talk.pass_ms(100)
        await let_threads_run()
    while talk.engine.figures().rewrites.running:
        await let_threads_run()


async def test_half_empty_files_go_by_themselves() -> None:
    """Though there is memory enough: their room on the disk counts as growth of the log."""
    storage, numbers = MemoryStorage(), range(1, 2_001)
    async with Small(storage) as talk:
        await talk.fill(2_000)
        await talk.store()
        await pass_s(talk, 3)
        storer_of(talk.engine)._file = None  # noqa: SLF001 - as if the file were full
        (full,) = run_files(storage)
        gone = [number for number in numbers if number % 10]
        for first in range(0, len(gone), 300):
            await talk.call("XDEL", "s", *(f"{number}-0" for number in gone[first : first + 300]))
        before = seen(keyspace_of(talk.engine))
        await pass_s(talk, 5)
        (name,) = run_files(storage)
        assert name != full
        assert values_in(storage, numbers) == {*numbers} - {*gone}
        assert seen(keyspace_of(talk.engine)) == before
        base = storage.names()
        await pass_s(talk, 5)
        assert storage.names() == base, "it is done once"


async def test_a_file_to_which_nothing_refers_goes_by_itself() -> None:
    """Its room counts, too."""
    storage = MemoryStorage()
    async with Small(storage) as talk:
        await talk.fill(3_000)
        await talk.store()
        await pass_s(talk, 3)
        storer_of(talk.engine)._file = None  # noqa: SLF001 - as if the file were full
        await talk.call("DEL", "s")
        await pass_s(talk, 3)
        assert run_files(storage) == []


async def test_what_cannot_be_read_cannot_be_cleared_of_what_was_deleted() -> None:
    """The rewrite says where; it is begun by itself no more, and done once that part was given up."""
    storage = MemoryStorage()
    async with Small(storage) as talk:
        await talk.fill(1_000)
        await talk.store()
        await talk.call("XDEL", "s", *(f"{number}-0" for number in range(101, 1_000, 3)))
        (name,) = run_files(storage)
        read, log, bad = storage.read, storage.operations, name

        def read_badly(name: str, offset: int, length: int) -> bytes:
            content = read(name, offset, length)
            return content if name != bad or offset else content[:200] + b"x" + content[201:]

        storage.read = read_badly  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(
                RewriteFailedError, match=rf"rewritten, but .* {name} \(offset 0: .* give up the part"
            ):
                await talk.engine.rewrite()
        failure = talk.engine.figures().rewrites.failure
        assert failure is not None
        assert name in failure
        assert await talk.call("XRANGE", "s", "1000-0", "1000-0") == [["1000-0", ["n", "value 1000"]]]
        assert str(await talk.call("XRANGE", "s", "1-0", "1-0")).startswith("-MISCONF")
        made = len(log)
        await pass_s(talk, 70)
        assert len([what for what, of in log[made:] if what == "create" and of.startswith("base")]) <= 1
        assert await talk.call("XTRIM", "s", "MINID", "641-0") == 640 - 180
        await talk.engine.rewrite()
        assert talk.engine.figures().rewrites.failure is None
        assert name not in run_files(storage)
        assert values_in(storage, range(1, 641)) == set()


class NoRoom(MemoryStorage):
    """A disk that takes nothing into files of runs while `is_full`."""

    is_full = False

    def create(self, name: str) -> MemoryHandle:
        handle = super().create(name)
        return NoRoomHandle(self, name, self._file(name)) if name.startswith("run-") else handle


class NoRoomHandle(MemoryHandle):
    """A handle of such a file."""

    def append(self, content: bytes) -> None:
        storage = self._storage
        assert isinstance(storage, NoRoom)
        if storage.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(content)


async def test_the_log_is_rewritten_where_there_is_no_room_to_store_anew() -> None:
    """That is what makes room; that something may not be gone is said."""
    storage, numbers = NoRoom(), range(1, 101)
    async with filled(storage, 100) as talk:
        await talk.call("XDEL", "s", "50-0")
        storage.is_full = True
        with pytest.raises(RewriteFailedError, match=r"rewritten, but .* No space left on device"):
            await talk.engine.rewrite()
        assert any(name.startswith("base-") for name in storage.names())
        assert values_in(storage, numbers) == {*numbers}
        storage.is_full = False
        await talk.engine.rewrite()
        assert values_in(storage, numbers) == {*numbers} - {50}


class Kept(MemoryStorage):
    """A disk that does not give up the first segment."""

    is_healed = False

    def unlink(self, name: str) -> None:
        if name == "segment-1.weir" and not self.is_healed:
            raise OSError(errno.EIO, "Input/output error")
        super().unlink(name)


async def test_a_file_that_cannot_be_removed_is_named() -> None:
    """It may hold what was deleted; the next rewrite removes it."""
    storage = Kept()
    async with Stored(storage) as talk:
        await talk.fill(100)
        with pytest.raises(RewriteFailedError, match=r"rewritten, but segment-1\.weir could not be removed"):
            await talk.engine.rewrite()
        storage.is_healed = True
        await talk.engine.rewrite()
        assert "segment-1.weir" not in storage.names()


async def test_what_is_deleted_while_a_rewrite_is_in_progress_is_gone_after_the_next() -> None:
    """Who asks meanwhile waits for that one, too."""
    storage, numbers = MemoryStorage(), range(1, 501)
    async with filled(storage, 500) as talk:
        first = asyncio.ensure_future(talk.engine.rewrite())
        while not any(name.startswith("base-") for name in storage.names()):
            await let_threads_run()
        await talk.call("XDEL", "s", "250-0")
        await asyncio.gather(first, talk.engine.rewrite())
        assert values_in(storage, numbers) == {*numbers} - {250}


async def test_entries_that_are_deleted_while_others_are_stored_anew_stay_deleted() -> None:
    """And what was deleted before is gone, though its part has changed meanwhile."""
    storage, numbers = MemoryStorage(), range(1, 5_001)
    async with filled(storage, 5_000) as talk:
        deleted = {*range(7, 5_000, 640)}
        await talk.call("XDEL", "s", *(f"{number}-0" for number in deleted))
        rewriting = asyncio.ensure_future(talk.engine.rewrite())
        later = iter(range(11, 4_900, 77))
        while not rewriting.done():
            number = next(later, 0)
            if number:
                assert await talk.call("XDEL", "s", f"{number}-0") == 1
                deleted.add(number)
            await let_threads_run()
        await rewriting
        assert not values_in(storage, numbers) & {*range(7, 5_000, 640)}
        rows = await talk.call("XRANGE", "s", "-", "+")
        assert isinstance(rows, list)
        assert {int(row[0].split("-")[0]) for row in rows} == {*numbers} - deleted
        assert await after_restart(storage.kill()) == seen(keyspace_of(talk.engine))
