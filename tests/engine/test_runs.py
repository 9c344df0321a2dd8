"""Cold entries in files: whenever it stops, whatever the disk does, each entry is there once, or refused."""

import asyncio
import errno
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from engine import Engine, EngineError, RewriteFailedError, entries, ids
from engine.commands.durable_commands import CreateDurable, ForkPoint
from engine.commands.types import XLen, XRange
from engine.keyspace import Keyspace
from engine.log import LogPoisonedError, LogRefusedError
from engine.log.backup import back_up, restore
from engine.log.inspection import inspect
from engine.log.manifest import decode
from engine.log.repair import plan
from engine.protocol import Call, How, ask
from engine.records.changes import Regenerate
from engine.records.payload import encode
from engine.replies import Added, Entries
from engine.runs import Run, read_run
from engine.runtime.storing import Storer
from engine.storage.memory import MemoryStorage, StoppedError
from tests.engine import test_rewrite
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk
from tests.engine.house import adding
from tests.engine.running import keyspace_of
from tests.engine.shelf import StoringEngine
from tests.engine.test_log_writing import TAILS


class Stored(Conversation):
    """An engine that stores each full node when it is asked to, and caches one run."""

    def opened(self) -> Engine:
        return StoringEngine.open(self.storage, clock=self.clock, fsync=self._fsync)

    async def store(self) -> int:
        """Store what is full, and wait until the log has it on the disk."""
        count = await storer_of(self.engine).store(lambda: True)
        await self.call("DBSIZE", synced=True)
        return count

    async def look_for(self, seconds: int) -> None:
        """Let these pass, and in each what is cold be compressed and stored, as far as that begins."""
        for _ in range(seconds):
            await self.pass_ms(1_000)
            while self.engine._packer._packing or storer_of(self.engine)._running:  # noqa: SLF001 - to wait
                await let_threads_run()

    async def fill(self, count: int, first: int = 1, stream: str = "s") -> None:
        """Entries in nodes of ten."""
        await self.call("CONFIG", "SET", "stream-node-max-entries", "10")
        for number in range(first, first + count):
            await self.call("XADD", stream, f"{number}-0", "n", f"value {number}")


@asynccontextmanager
async def filled(
    storage: MemoryStorage, count: int, first: int = 1, stream: str = "s"
) -> AsyncIterator[Stored]:
    """With these entries, of which those of full nodes are stored."""
    async with Stored(storage) as talk:
        await talk.fill(count, first, stream)
        await talk.store()
        yield talk


def storer_of(engine: Engine) -> Storer:
    return engine._storer  # noqa: SLF001 - to have it store at a moment of the test's own


def seen(keyspace: Keyspace) -> object:
    """What clients may see of all streams, wherever entries are."""
    return {
        name: (
            list(key.stream.find_each(key.stream.live_ids()).items()),
            (key.stream.first_id, key.stream.last_id, key.stream.length, key.stream.node_count),
            (key.stream.max_deleted_id, key.stream.removed_upto, key.stream.entries_added, key.generation),
            [(group.last_delivered_id, len(group.pending)) for group in key.groups.values()],
        )
        for name, key in keyspace.keys.items()
    }


def run_files(storage: MemoryStorage) -> list[str]:
    return [name for name in storage.names() if name.startswith("run-")]


after_restart = partial(test_rewrite.after_restart, look=seen)


async def test_cold_nodes_leave_memory_and_are_read_back() -> None:
    """All of them but the open one; reads, counts and trims find what they found before."""
    storage = MemoryStorage()
    async with Stored(storage) as talk:
        await talk.fill(1_000)
        before, held = seen(keyspace_of(talk.engine)), keyspace_of(talk.engine).keys["s"].stream.held_bytes()
        assert await talk.store() == 2
        assert keyspace_of(talk.engine).keys["s"].stream.held_bytes() < held // 20
        assert seen(keyspace_of(talk.engine)) == before
        rows = await talk.call("XRANGE", "s", "500-0", "502-0")
        assert rows == [[f"{number}-0", ["n", f"value {number}"]] for number in (500, 501, 502)]
        assert await talk.call("XTRIM", "s", "MAXLEN", "~", "305") == 690
        assert await talk.call("XTRIM", "s", "MAXLEN", "305") == 5
        assert (await after_restart(storage.kill())) == seen(keyspace_of(talk.engine))


async def test_a_rewrite_leaves_the_texts_where_they_are() -> None:
    """The new base names the runs; files to which nothing refers go with it."""
    storage = MemoryStorage()
    async with filled(storage, 1_000) as talk:
        await talk.engine.rewrite()
        (name,) = run_files(storage)
        assert decode(storage.content("manifest")).runs == (2,)
        base = decode(storage.content("manifest")).base
        assert base is not None
        assert base.seal.length < len(storage.content(name)) // 3
        before = seen(keyspace_of(talk.engine))
        assert await after_restart(storage.crash()) == before
        await talk.call("XTRIM", "s", "MAXLEN", "0")
    async with Stored(storage) as again:
        assert run_files(storage) == []
        assert decode(storage.content("manifest")).runs == ()
        await again.fill(100, 2_000)
        await again.store()
        await again.call("DEL", "s")
        await again.fill(100, 3_000, "t")
        storer_of(again.engine)._file = None  # noqa: SLF001 - as if the file were full
        await again.store()
        assert len(run_files(storage)) == 2
        await again.engine.rewrite()
        assert len(run_files(storage)) == 1


async def test_a_file_stays_as_long_as_a_run_refers_to_it() -> None:
    """A copy's too; it goes with the rewrite behind the last one."""
    storage = MemoryStorage()
    async with filled(storage, 100) as talk:
        storer_of(talk.engine)._file = None  # noqa: SLF001 - as if the file were full
        await talk.call("COPY", "s", "copy")
        await talk.call("DEL", "s")
        await talk.engine.rewrite()
        assert await talk.call("XRANGE", "copy", "1-0", "1-0") == [["1-0", ["n", "value 1"]]]
        assert len(run_files(storage)) == 1
        assert await after_restart(storage.kill()) == seen(keyspace_of(talk.engine))
        await talk.call("DEL", "copy")
        await talk.engine.rewrite()
        assert run_files(storage) == []


async def test_a_file_that_grows_stays_though_nothing_refers_to_it() -> None:
    """What is stored after the rewrite is in it."""
    storage = MemoryStorage()
    async with filled(storage, 50) as talk:
        await talk.call("DEL", "s")
        await talk.engine._rewriter._begin()  # noqa: SLF001 - as it does by itself
        await talk.fill(50, 100, "t")
        await talk.store()
        assert len(run_files(storage)) == 1
        before = seen(keyspace_of(talk.engine))
        assert await after_restart(storage.crash()) == before


async def test_a_file_that_has_failed_grows_no_more() -> None:
    """What it has now is unknown: what follows goes to another one."""
    storage = MemoryStorage()
    async with filled(storage, 50) as talk:
        (first,) = run_files(storage)
        size = len(storage.content(first))
        await talk.fill(50, 100)
        await talk.call("DBSIZE", synced=True)
        storage.fail("append", errno.EIO, after_bytes=7)
        with pytest.raises(OSError, match="Input/output"):
            await storer_of(talk.engine).store(lambda: True)
        assert await talk.store() == 1
        assert len(storage.content(first)) == size
        assert len(run_files(storage)) == 2


async def test_nodes_that_change_while_they_are_written_stay() -> None:
    """What was deleted meanwhile is in the file, and nothing refers to that; the others go."""
    storage = SlowDisk()
    async with Stored(storage) as talk:
        await talk.fill(100)
        await talk.call("DBSIZE", synced=True)
        storage.hold()
        storing = asyncio.ensure_future(storer_of(talk.engine).store(lambda: True))
        await settle()
        await talk.call("XDEL", "s", "15-0")
        storage.let_go()
        while not storing.done():
            await let_threads_run()
        assert await storing == 0
        assert await talk.call("XRANGE", "s", "14-0", "16-0") == [
            ["14-0", ["n", "value 14"]],
            ["16-0", ["n", "value 16"]],
        ]
        assert await talk.store() == 1
        before = seen(keyspace_of(talk.engine))
        assert await after_restart(storage.crash()) == before


async def test_nodes_are_stored_while_a_rewrite_writes() -> None:
    """Else memory would fill meanwhile. Neither the new file nor an old one is lost by the new base."""
    storage = MemoryStorage()
    async with filled(storage, 300, stream="old") as talk:
        (old,) = run_files(storage)
        storer_of(talk.engine)._file = None  # noqa: SLF001 - as if the file were full
        values = [random.Random(number).randbytes(500).hex() for number in range(5_000)]
        await talk.call("CONFIG", "SET", "stream-node-max-entries", "100")
        for number, value in enumerate(values, 1):
            await talk.call("XADD", "s", f"{number}-0", "n", value)
        rewriting = asyncio.ensure_future(talk.engine.rewrite())
        while not any(name.startswith("base-") for name in storage.names()):
            await let_threads_run()
        storing = asyncio.ensure_future(storer_of(talk.engine).store(lambda: True))
        await asyncio.wait((rewriting, storing), return_when=asyncio.FIRST_COMPLETED)
        assert storing.done(), "the rewrite takes longer"
        assert await storing > 0
        await talk.call("DEL", "old", synced=True)
        await rewriting
        assert len(run_files(storage)) == 2, "the base has the one, the log behind it the other"
        assert await after_restart(storage.crash()) == seen(keyspace_of(talk.engine))
        await talk.engine.rewrite()
        assert old not in run_files(storage)
        assert await after_restart(storage.crash()) == seen(keyspace_of(talk.engine))


async def test_a_fork_that_ends_in_a_run_is_whole_without_the_file() -> None:
    """Its entries of that run are in the log."""
    storage = MemoryStorage()
    async with Stored(storage) as talk:
        bodies = [entries.data_body(b"%d" % number) for number in range(25)]
        await talk.call("CONFIG", "SET", "stream-node-max-entries", "10")
        await reply_to(talk.engine, CreateDurable(stream="d", media="text/plain", bodies=bodies))
        await talk.store()
        given = [row[0] for row in await talk.call("XRANGE", "d", "-", "+")]  # type: ignore[attr-defined]
        fork = ForkPoint("d", ids.parse(given[4]))
        await reply_to(talk.engine, CreateDurable(stream="fork", media="", fork=fork))
        assert await talk.call("XLEN", "fork") == 5
        await talk.call("DEL", "d")
        (name,) = run_files(storage)
        files = {each: storage.content(each) for each in storage.names() if each not in {"lock", name}}
    async with Stored(MemoryStorage(files)) as again:
        found = await again.call("XRANGE", "fork", "-", "+")
        assert [row[0] for row in found] == given[:5]  # type: ignore[attr-defined]


async def test_what_is_left_of_a_sparse_file_is_stored_anew() -> None:
    """Without what was deleted; the file goes with the next rewrite, and no byte of that is anywhere."""
    storage = MemoryStorage()
    async with filled(storage, 200) as talk:
        storer_of(talk.engine)._file = None  # noqa: SLF001 - as if the file were full
        gone = [f"{number}-0" for number in range(1, 150) if number % 10]
        await talk.call("XDEL", "s", *gone)
        before = seen(keyspace_of(talk.engine))
        assert await storer_of(talk.engine).repack() == (1, None)
        assert seen(keyspace_of(talk.engine)) == before
        assert await storer_of(talk.engine).repack() == (0, None)
        await talk.engine.rewrite()
        assert len(run_files(storage)) == 1
        assert await after_restart(storage.crash()) == before
        (name,) = run_files(storage)
        frames = [node.texts() for node in read_run(storage.content(name))]
        assert not any(b'"5-0"' in text for texts in frames for text in texts)


# --- stopped anywhere ---------------------------------------------------------------------------------------

Step = Callable[[Stored], Awaitable[object]]


async def rewrite(talk: Stored) -> None:
    await talk.engine.rewrite()


async def rewrite_while_storing(talk: Stored) -> None:
    await asyncio.gather(talk.engine.rewrite(), storer_of(talk.engine).store(lambda: True))


LIFE: list[Step] = [
    lambda talk: talk.call("CONFIG", "SET", "stream-node-max-entries", "10", synced=True),
    lambda talk: talk.transaction(*[f"XADD s {each}-0 n {each}" for each in range(1, 46)]),
    lambda talk: talk.store(),
    lambda talk: talk.call("XDEL", "s", "5-0", "15-0", "44-0", synced=True),
    rewrite,
    lambda talk: talk.call("XTRIM", "s", "MINID", "23-0", synced=True),
    lambda talk: talk.transaction(*[f"XADD s {each}-0 n {each}" for each in range(100, 130)]),
    lambda talk: talk.store(),
    lambda talk: talk.call("XTRIM", "s", "MINID", "110-0", synced=True),
    lambda talk: talk.transaction(*[f"XADD s {each}-0 n {each}" for each in range(130, 160)]),
    rewrite_while_storing,
    lambda talk: talk.call("XTRIM", "s", "MINID", "135-0", synced=True),
    rewrite,
]


async def live(talk: Stored, states: list[object]) -> None:
    """Go through it all; what was seen after each step."""
    for step in LIFE:
        await step(talk)
        await talk.call("DBSIZE", synced=True)
        states.append(seen(keyspace_of(talk.engine)))


@pytest.mark.no_cover
@pytest.mark.parametrize("tail", ["nothing", "everything", "half", "zeros"])
async def test_a_power_cut_at_any_step_loses_nothing(tail: str) -> None:
    """Between store, delete, rewrite and trim: a start gives the state after a step, or after the next."""
    whole: list[object] = []
    async with Stored(MemoryStorage(), "always") as talk:
        await live(talk, whole)
    for moment in range(5, 2_000):
        storage, states = MemoryStorage(), list[object]()
        async with Stored(storage, "always") as talk:
            storage.stop_before(moment)
            await until_stopped(storage, live(talk, states))
            talk.abandon()
        if not storage.stopped:
            assert moment > 60, "it has many steps"
            return
        if not states:
            continue
        allowed = [unnamed(state) for state in (states[-1], *whole[len(states) : len(states) + 1])]
        for names in {0, storage.unsynced_name_changes()}:
            found = await after_restart(storage.crash(name_changes=names, tail=TAILS[tail]))
            assert unnamed(found) in allowed, f"stopped before operation {moment}, after {len(states)} steps"
        backup = MemoryStorage()
        back_up(storage.kill(), backup)
        assert unnamed(await after_restart(backup.crash())) in allowed, f"a backup at operation {moment}"


async def until_stopped(storage: MemoryStorage, life: Coroutine[Any, Any, None]) -> None:
    """Let it live until its process ends: what waits for the disk then waits for ever."""
    living = asyncio.ensure_future(life)
    while not living.done() and not storage.stopped:
        await let_threads_run()
    living.cancel()
    with suppress(asyncio.CancelledError, StoppedError, LogPoisonedError, EngineError, RewriteFailedError):
        await living


def unnamed(state: object) -> object:
    """Without generations, which are random."""
    assert isinstance(state, dict)
    return {name: (rows, edges, counts[:-1], groups) for name, (rows, edges, counts, groups) in state.items()}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["create", "append", "sync", "rename", "sync_directory"])
async def test_a_disk_that_fails_while_storing_loses_nothing(operation: str, code: int) -> None:
    """The nodes stay in memory, and are stored the next time, unless the log itself has failed."""
    for nth in range(1, 5):
        storage = MemoryStorage()
        async with Stored(storage) as talk:
            await talk.fill(100)
            await talk.call("DBSIZE", synced=True)
            before = seen(keyspace_of(talk.engine))
            storage.fail(operation, code, nth=nth)
            with suppress(OSError, EngineError, LogPoisonedError):
                await storer_of(talk.engine).store(lambda: True)
            await settle()
            storage.heal()
            assert seen(keyspace_of(talk.engine)) == before
            for disk in (storage.kill(), storage.crash()):
                assert await after_restart(disk) == before
            if not str(await talk.call("XADD", "s", "1000-0", "n", "1")).startswith("-"):
                with suppress(EngineError):
                    await talk.store()
                after = seen(keyspace_of(talk.engine))
                assert await after_restart(storage.kill()) == after


async def test_a_backup_has_the_files_of_runs() -> None:
    """What is restored of it is what was there; it is made while more is stored, and refuses damages."""
    storage, backup, second = MemoryStorage(), MemoryStorage(), MemoryStorage()
    async with filled(storage, 100) as talk:
        before = seen(keyspace_of(talk.engine))
        copied = back_up(storage, backup)
        assert copied.files == 2
        assert inspect(backup).stored[0].runs == 1
        await talk.fill(100, 200)
        await talk.store()
    restore(backup, second, [encode([Regenerate(b"sixteen bytes of")])], 0)
    assert unnamed(await after_restart(second)) == unnamed(before)
    (name,) = run_files(backup)
    content = backup.content(name)
    files = {each: backup.content(each) for each in backup.names() if each != "lock"}
    broken = MemoryStorage(files | {name: content[:300] + bytes([content[300] ^ 1]) + content[301:]})
    assert inspect(broken).stored[0].damage is not None
    with pytest.raises(LogRefusedError, match=name):
        back_up(broken, MemoryStorage())
    del files[name]
    assert inspect(MemoryStorage(files)).missing == [name]


async def test_a_lost_manifest_forgets_no_run() -> None:
    """The files say what the log is; those of runs are named again by the start."""
    storage = MemoryStorage()
    async with filled(storage, 100) as talk:
        before = seen(keyspace_of(talk.engine))
    files = {name: storage.content(name) for name in storage.names() if name not in {"lock", "manifest"}}
    lost = MemoryStorage(files)
    step = plan(lost)
    assert step is not None
    lost.lock()
    step.do(lost, [], 0)
    lost.unlock()
    assert await after_restart(lost) == before
    assert decode(lost.content("manifest")).runs == (2,)


# --- damage -------------------------------------------------------------------------------------------------

DAMAGES = 300


@pytest.fixture
async def stored() -> MemoryStorage:
    """A log with runs of ten nodes or less in a file."""
    storage = MemoryStorage()
    async with Stored(storage) as talk:
        await talk.fill(400)
        for _ in range(2):
            await talk.store()
            await talk.fill(200, 1_000)
        await talk.engine.rewrite()
    return storage


def damaged(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    kind = rng.randrange(4)
    if kind == 0:
        return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    if kind == 1:
        return content[:at]
    length = rng.randrange(1, 200)
    filling = bytes(length) if kind == 2 else rng.randbytes(length)
    return (content[:at] + filling + content[at + length :])[: len(content)]


@pytest.mark.no_cover
async def test_no_damage_of_a_file_is_served(stored: MemoryStorage) -> None:
    """Each range is as it was, or refused; lengths stay, and everything beside goes on."""
    async with Stored(stored.kill()) as talk:
        whole = await talk.call("XRANGE", "s", "-", "+")
        sound = b",".join(keyspace_of(talk.engine).keys["s"].stream.range(0, 1 << 127).parts)
    assert isinstance(whole, list)
    (name,) = run_files(stored)
    rng, refused = random.Random(7), 0
    for _ in range(DAMAGES):
        files = {each: stored.content(each) for each in stored.names() if each != "lock"}
        files[name] = damaged(files[name], rng)
        engine = Engine.open(MemoryStorage(files), clock=HandClock())
        keyspace = keyspace_of(engine)
        stream = keyspace.keys["s"].stream
        assert stream.length == len(whole)
        for part in stream.parts_from():
            try:
                found = stream.range(part.first, part.last)
            except EngineError:
                assert isinstance(part, Run), "what is in memory is not refused"
                refused += 1
                continue
            assert found.count == part.live
            assert b",".join(found.parts) in sound
        await engine.close()
    assert refused > DAMAGES // 2, "most damages are in what is referred to"


async def test_what_is_damaged_is_refused_alone(stored: MemoryStorage) -> None:
    """Reads beside it, writes, trims past it and restarts go on; a trim into it stops before it."""
    (name,) = run_files(stored)
    content = bytearray(stored.content(name))
    content[200] ^= 1
    files = {each: stored.content(each) for each in stored.names() if each != "lock"} | {name: bytes(content)}
    storage = MemoryStorage(files)
    async with Stored(storage) as talk:
        told: list[str] = []
        keyspace_of(talk.engine).runs.on_damaged = told.append
        for _ in range(2):
            reply = await talk.call("XRANGE", "s", "1-0", "9-0")
            assert str(reply).startswith("-MISCONF a part of this stream cannot be read")
        assert told == [f"{name}, offset 0: {told[0].rpartition(': ')[2]}"]
        assert str(await talk.call("XDEL", "s", "5-0")).startswith("-MISCONF")
        assert await talk.call("XRANGE", "s", "1100-0", "1100-0") == [["1100-0", ["n", "value 1100"]]]
        assert await talk.call("XADD", "s", "MAXLEN", "590", "5000-0", "n", "1") != "5000-0"
        length = await talk.call("XLEN", "s")
        assert await talk.call("XADD", "s", "5000-0", "n", "1") == "5000-0"
        assert await talk.call("XLEN", "s") == int(str(length)) + 1
        again = Engine.open(storage.kill(), clock=HandClock())
        with pytest.raises(EngineError, match="entries_damaged"):
            keyspace_of(again).keys["s"].stream.range(1 << 64, 9 << 64)
        await again.close()
        assert await talk.call("XTRIM", "s", "MINID", "1000-0") == 400
        assert await talk.call("XRANGE", "s", "-", "+", "COUNT", "1") == [["1000-0", ["n", "value 1000"]]]


async def test_a_missing_file_is_refused_range_by_range(stored: MemoryStorage) -> None:
    (name,) = run_files(stored)
    files = {each: stored.content(each) for each in stored.names() if each not in {"lock", name}}
    storage = MemoryStorage(files)
    async with Stored(storage) as talk:
        assert await talk.call("XLEN", "s") == 600
        assert str(await talk.call("XRANGE", "s", "1-0", "9-0")).startswith("-MISCONF")
        assert await talk.call("XADD", "s", "5000-0", "n", "1") == "5000-0"
        await talk.call("XTRIM", "s", "MAXLEN", "1")
        assert await talk.call("XLEN", "s") == 1


# --- at work ------------------------------------------------------------------------------------------------


def hold_reads(engine: Engine) -> threading.Event:
    """Let reads of the disk wait for an event."""
    gate, fetcher = threading.Event(), engine._fetcher  # noqa: SLF001 - the disk is slow
    read = fetcher._read  # noqa: SLF001

    def read_later(*place: int) -> bytes:
        assert gate.wait(10), "it is let go"
        return read(*place)

    fetcher._read = read_later  # noqa: SLF001
    return gate


GROUP_READ = ("COUNT", "3", "BLOCK", "60000", "STREAMS", "s", ">")


async def test_a_group_read_of_cold_entries_lets_others_go_first() -> None:
    """It waits for the disk and holds no place meanwhile; each entry is delivered once."""
    async with Stored(MemoryStorage()) as talk:
        await talk.fill(100)
        await talk.call("XGROUP", "CREATE", "s", "g", "0")
        await talk.call("XGROUP", "CREATE", "s", "end", "95-0")
        await talk.store()
        gate = hold_reads(talk.engine)
        cold = await talk.begin("XREADGROUP", "GROUP", "g", "a", *GROUP_READ)
        assert not cold.done()
        warm = await talk.call("XREADGROUP", "GROUP", "end", "a", "COUNT", "1", "STREAMS", "s", ">")
        assert warm == [["s", [["96-0", ["n", "value 96"]]]]]
        gate.set()
        found = await cold
        assert isinstance(found, list)
        assert [row[0] for row in found[0][1]] == ["1-0", "2-0", "3-0"]


async def test_a_reader_that_leaves_while_the_disk_reads_takes_nothing() -> None:
    """Its entries are there for the next one."""
    async with Stored(MemoryStorage()) as talk:
        await talk.fill(100)
        await talk.call("XGROUP", "CREATE", "s", "g", "0")
        await talk.store()
        gate = hold_reads(talk.engine)
        cold = await talk.begin("XREADGROUP", "GROUP", "g", "a", *GROUP_READ)
        await cold.give_up()
        gate.set()
        assert await talk.call("XPENDING", "s", "g") == [0, None, None, None]


async def test_too_many_reads_that_wait_for_the_disk_are_refused() -> None:
    """Sixty-four wait; one more is to come again later."""
    async with filled(MemoryStorage(), 100) as talk:
        gate = hold_reads(talk.engine)
        begun = [await talk.begin("XRANGE", "s", f"{each}-0", "+", "COUNT", "1") for each in range(1, 66)]
        assert [each.done() for each in begun] == [*[False] * 64, True]
        assert await begun[-1] == "-ERR too many blocked reads"
        first = XRange(stream="s", start=1 << 64, end=1 << 64)
        replies = await ask(talk.engine, Call([adding("s", "200-0"), first], How.EACH))
        assert isinstance(replies[0], Added), "what ran before the one that is refused counts"
        assert isinstance(replies[1], EngineError)
        assert replies[1].code == "too_many_waiters"
        gate.set()
        assert [await each for each in begun[:-1]] == [
            [[f"{each}-0", ["n", f"value {each}"]]] for each in range(1, 65)
        ]


async def test_a_caller_has_a_part_of_the_reads_that_wait_for_the_disk() -> None:
    """Sixteen; the others have theirs, and it has them again once it was answered."""
    async with filled(MemoryStorage(), 100) as talk:
        gate = hold_reads(talk.engine)
        read = XRange(stream="s", start=1 << 64, end=1 << 64)

        def begin(caller: str) -> asyncio.Task[Sequence[object]]:
            return asyncio.ensure_future(ask(talk.engine, Call((read,), caller=caller)))

        begun = [begin("a") for _ in range(16)]
        await settle()
        with pytest.raises(EngineError, match="too_many_waiters"):
            await begin("a")
        begun.append(begin("b"))
        gate.set()
        for _ in range(2):
            assert [reply.count for (reply,) in await asyncio.gather(*begun)] == [1] * len(begun)  # type: ignore[attr-defined]
            begun = [begin("a") for _ in range(16)]
        await asyncio.gather(*begun)


async def test_a_transaction_and_a_pipeline_read_what_is_cold() -> None:
    """The one within its turn; in the other, commands behind wait with it."""
    async with filled(MemoryStorage(), 100) as talk:
        assert await talk.transaction("XADD s 200-0 a 1", "XRANGE s 1-0 1-0", "XLEN s") == [
            "200-0",
            [["1-0", ["n", "value 1"]]],
            101,
        ]
        first = XRange(stream="s", start=1 << 64, end=1 << 64)
        replies = await ask(talk.engine, Call([adding("s", "201-0"), first, XLen(stream="s")], How.EACH))
        assert isinstance(replies[1], Entries)
        assert (replies[1].count, replies[2]) == (1, 102)


async def test_storing_begins_above_the_soft_limit() -> None:
    """And ends below it; without one nothing is ever stored."""
    for more_bytes, files in ((None, 0), (150_000, 1)):
        storage = MemoryStorage()
        async with Stored(storage) as talk:
            keyspace_of(talk.engine).memory.observe = lambda _: None  # type: ignore[assignment, method-assign]
            limit = 0 if more_bytes is None else talk.engine.memory.used_bytes + more_bytes
            storer_of(talk.engine).soft_bytes = limit or None
            await talk.call("CONFIG", "SET", "stream-node-max-entries", "10")
            for number in range(1, 800):
                await talk.call("XADD", "s", f"{number}-0", "n", random.Random(number).randbytes(300).hex())
            await talk.look_for(4)
            assert len(run_files(storage)) == files
            if limit:
                assert talk.engine.memory.used_bytes < limit


async def test_storing_looks_again_once_more_has_come() -> None:
    """Nothing was cold, and ten seconds may bring more than fits: so a 64th of the limit is enough."""
    async with Stored(MemoryStorage()) as talk:
        memory, runs = talk.engine.memory, keyspace_of(talk.engine).runs
        memory.observe = lambda _: None  # type: ignore[assignment, method-assign]
        storer_of(talk.engine).soft_bytes = 64 * 10_000
        memory.shared.add(64 * 20_000)
        await talk.call("CONFIG", "SET", "stream-node-max-entries", "10")

        async def add(count: int, size: int) -> int:
            """How many runs there are some seconds later."""
            for _ in range(count):
                await talk.call("XADD", "s", "*", "n", random.Random(1).randbytes(size).hex())
            await talk.look_for(3)
            return sum(file.runs for file in runs.files.values())

        assert await add(21, 100) == 1, "what is full is stored"
        assert await add(21, 10) == 1, "little has come since nothing was cold"
        assert await add(1, 6_000) == 2, "much has"
        memory.shared.add(-64 * 20_000)


async def test_runs_are_whole_until_memory_is_short() -> None:
    """A run of few nodes takes as much memory as one of many: half-way to the limit they do not wait."""
    async with Stored(MemoryStorage()) as talk:
        memory, stream = talk.engine.memory, "s"
        memory.observe = lambda _: None  # type: ignore[assignment, method-assign]
        await talk.fill(1_000)
        storer_of(talk.engine).soft_bytes = memory.used_bytes * 4 // 5
        memory.bytes_max = 4 * memory.used_bytes
        found = []
        for more_bytes in (0, 2 * memory.used_bytes):
            memory.shared.add(more_bytes)
            await talk.look_for(12)
            parts = keyspace_of(talk.engine).keys[stream].stream.nodes.values()
            found.append([part.nodes if isinstance(part, Run) else 1 for part in parts])
            memory.shared.add(-more_bytes)
        assert found == [[64, *[1] * 35], [64, 35]]
