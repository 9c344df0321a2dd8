"""Cold entries in files, where something else goes wrong or changes beside them."""

import asyncio
import errno
from collections.abc import Sequence

import pytest

from engine import Engine, EngineError
from engine.commands.durable_commands import CreateDurable, ForkPoint
from engine.commands.types import XRange
from engine.commands.weir_commands import UpdateStream
from engine.nodes import SealedNode
from engine.parts.keeping import kept_of
from engine.protocol import Call, How, ask
from engine.remedies import PASSING, explain
from engine.replies import Added
from engine.runs import DamagedRunError, LoadedRun, Place, Run
from engine.storage.memory import MemoryHandle, MemoryStorage
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, let_threads_run
from tests.engine.house import adding
from tests.engine.running import keyspace_of
from tests.engine.test_runs import Stored, after_restart, filled, hold_reads, run_files, seen, storer_of


async def test_deletions_from_a_run_are_remembered_for_the_archive() -> None:
    """As those from memory; a restart knows them too."""
    storage = MemoryStorage()
    async with Stored(storage) as talk:
        await talk.fill(100)
        await reply_to(talk.engine, UpdateStream(stream="s", archived_up_to=90 << 64))
        await talk.store()
        assert await talk.call("XDEL", "s", "5-0", "50-0") == 2
        for engine in (talk.engine, Engine.open(storage.kill(), clock=HandClock())):
            assert kept_of(keyspace_of(engine).keys["s"]).deleted == [5 << 64, 50 << 64]


@pytest.mark.parametrize("upto", [3, 20, 47, 90, 100])
async def test_a_fork_outlives_the_files_of_its_source(upto: int) -> None:
    """What it has of a run is in the log, for a later start finds no such file."""
    storage = MemoryStorage()
    async with Stored(storage) as talk:
        await reply_to(talk.engine, CreateDurable(stream="s", media="text/plain"))
        await talk.call("CONFIG", "SET", "stream-node-max-entries", "10")
        for number in range(1, 101):
            await talk.call("XADD", "s", f"{number}-0", "data", f"value {number}")
        assert await talk.call("XDEL", "s", "2-0", "47-0") == 2
        await talk.store()
        await talk.call("XDEL", "s", "3-0", "46-0")
        reads = keyspace_of(talk.engine).runs.reads_in_turns
        await reply_to(talk.engine, CreateDurable(stream="f", media="", fork=ForkPoint("s", upto << 64)))
        assert keyspace_of(talk.engine).runs.reads_in_turns == reads, "the thread reads"
        left = [number for number in range(1, upto + 1) if number not in (2, 3, 46, 47)]
        assert list(keyspace_of(talk.engine).keys["f"].stream.live_ids()) == [each << 64 for each in left]
        assert await after_restart(storage.kill()) == seen(keyspace_of(talk.engine))
        await talk.call("DEL", "s")
        await talk.call("XTRIM", "f", "MAXLEN", "0")
        before = seen(keyspace_of(talk.engine))
    for _ in range(2):
        assert await after_restart(storage) == before
        assert run_files(storage) == []


async def test_a_range_that_ends_before_a_damaged_run_is_read() -> None:
    """By its end, and by its count."""
    storage = MemoryStorage()
    async with Stored(storage) as talk:
        await talk.fill(1_000)
        assert await talk.store() == 2
        runs = list(keyspace_of(talk.engine).keys["s"].stream.nodes.values())
        fetcher = talk.engine._fetcher  # noqa: SLF001 - the disk is damaged
        read = fetcher._read  # noqa: SLF001
        bad = runs[1].offset  # type: ignore[union-attr]
        fetcher._read = lambda file, at, length: b"" if at == bad else read(file, at, length)  # noqa: SLF001
        last = [["640-0", ["n", "value 640"]]]
        assert await talk.call("XRANGE", "s", "640-0", "640-0") == last
        assert await talk.call("XRANGE", "s", "640-0", "+", "COUNT", "1") == last
        assert await talk.call("XREAD", "COUNT", "1", "STREAMS", "s", "639-0") == [["s", last]]
        assert str(await talk.call("XRANGE", "s", "640-0", "641-0")).startswith("-MISCONF")
        fetcher._read = read  # noqa: SLF001
        assert await talk.call("XRANGE", "s", "640-0", "640-0") == last
        assert len(keyspace_of(talk.engine).runs.damaged) == 1
        assert await talk.call("XRANGE", "s", "641-0", "641-0") == [["641-0", ["n", "value 641"]]]
        assert not keyspace_of(talk.engine).runs.damaged


async def test_a_pipeline_is_not_refused_for_its_last_command() -> None:
    """What ran before it has its answers, so that it is not sent again."""
    async with filled(MemoryStorage(), 100) as talk:
        gate = hold_reads(talk.engine)
        begun = [await talk.begin("XRANGE", "s", f"{each}-0", "+", "COUNT", "1") for each in range(1, 65)]
        first = XRange(stream="s", start=1 << 64, end=1 << 64)
        calls = [adding("s", "201-0"), first, adding("s", "202-0")]
        added, refused, behind = await ask(talk.engine, Call(calls, How.EACH))
        assert isinstance(added, Added)
        assert isinstance(behind, Added)
        assert isinstance(refused, EngineError)
        assert refused.code == "too_many_waiters"
        gate.set()
        for each in begun:
            await each


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ENOENT])
async def test_a_read_that_failed_is_tried_again(code: int) -> None:
    """The bytes may be sound; only they can be damaged for good. What the process lacks is no damage."""
    async with filled(MemoryStorage(), 100) as talk:
        fetcher = talk.engine._fetcher  # noqa: SLF001 - the disk fails
        read = fetcher._read  # noqa: SLF001

        def fail(*_: int) -> bytes:
            raise OSError(code, "it fails")

        fetcher._read = fail  # noqa: SLF001
        refused = str(await talk.call("XRANGE", "s", "1-0", "1-0"))
        found = [*keyspace_of(talk.engine).runs.damaged.values()]
        remedy = explain(OSError(code, "it fails"))
        if code in PASSING:
            assert (refused, found) == (
                f"-ERR a part of this stream cannot be read from the disk now: {remedy}",
                [],
            )
        else:
            assert refused.startswith("-MISCONF a part of this stream cannot be read from the disk, 1-0")
            assert [one.endswith(remedy) for one in found] == [True]
        fetcher._read = read  # noqa: SLF001
        assert await talk.call("XRANGE", "s", "1-0", "1-0") == [["1-0", ["n", "value 1"]]]


async def test_a_fault_while_the_disk_reads_is_answered_and_reported() -> None:
    """As one of the gateway: the bytes count as sound, and what waits is no more than before."""
    async with filled(MemoryStorage(), 100) as talk:
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        fetcher = talk.engine._fetcher  # noqa: SLF001 - what no disk does
        read, fault = fetcher._read, MemoryError("too large")  # noqa: SLF001

        def fail(*_: int) -> bytes:
            raise fault

        fetcher._read = fail  # noqa: SLF001
        begun = [await talk.begin(*words.split()) for words in ("XRANGE s 1-0 1-0", "XREAD STREAMS s 0")]
        assert [str(await each)[:19] for each in begun] == ["-ERR internal error"] * 2
        assert (len(fetcher), set(reported)) == (0, {fault})
        assert not keyspace_of(talk.engine).runs.damaged
        fetcher._read = read  # noqa: SLF001
        assert await talk.call("XRANGE", "s", "1-0", "1-0") == [["1-0", ["n", "value 1"]]]


async def test_the_disk_is_asked_once_for_what_is_looked_up() -> None:
    """And for a long range in ever larger steps: what ran before does not run again for each run."""
    async with Stored(MemoryStorage()) as talk:
        await talk.fill(6_400 * 2)
        assert await talk.store() == 20
        asked: list[int] = []
        fetcher = talk.engine._fetcher  # noqa: SLF001 - to count
        fetch = fetcher._fetch  # noqa: SLF001

        def count(runs: Sequence[Run]) -> dict[Place, LoadedRun | DamagedRunError]:
            asked.append(len(runs))
            return fetch(runs)

        fetcher._fetch = count  # type: ignore[method-assign] # noqa: SLF001
        for reading in ("XRANGE s - +", "XREVRANGE s + -", "XREAD STREAMS s 0"):
            asked.clear()
            assert len(str(await talk.call(*reading.split()))) > 12_800
            assert sum(asked) in (19, 20), "one may be at hand"
            assert len(asked) < 6
        asked.clear()
        assert await talk.call("XDEL", "s", *(f"{number}-0" for number in range(5, 12_000, 640))) == 19
        assert asked == [19]


async def test_what_is_left_of_runs_is_taken_one_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turns between."""
    cycles, taken = 0, list[int]()

    async def count() -> None:
        nonlocal cycles
        while True:
            cycles += 1
            await asyncio.sleep(0)

    def take(loaded: LoadedRun, run: Run) -> Sequence[SealedNode]:
        taken.append(cycles)
        return of(loaded, run)

    of = LoadedRun.of
    async with Stored(MemoryStorage()) as talk:
        await talk.fill(6_400)
        assert await talk.store() == 10
        for first in range(0, 6_400, 400):
            gone = [f"{number}-0" for number in range(first, first + 400) if number % 4]
            assert await talk.call("XDEL", "s", *gone) == 300
        storer_of(talk.engine)._file = None  # noqa: SLF001 - as if the file were full
        monkeypatch.setattr(LoadedRun, "of", take)
        counting = asyncio.ensure_future(count())
        assert await storer_of(talk.engine).repack() == (10, None)
        counting.cancel()
        assert len(set(taken)) == len(taken) == 10


async def test_a_deletion_takes_no_more_apart_than_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry of each node is looked for, and what is left is not found out anew for the next deletion."""
    taken: list[SealedNode] = []
    texts = SealedNode.texts

    def take(node: SealedNode) -> list[bytes]:
        taken.append(node)
        return texts(node)

    async with Stored(MemoryStorage()) as talk:
        await talk.fill(640 + 10)
        assert await talk.store() == 1
        await talk.call("XDEL", "s", *(f"{number}-0" for number in range(5, 640, 10)))
        monkeypatch.setattr(SealedNode, "texts", take)
        assert await talk.call("XDEL", "s", *(f"{number}-0" for number in range(6, 640, 10))) == 64
        assert len(taken) < 10
        assert await talk.call("XTRIM", "s", "MINID", "16-0") == 12
        assert await talk.call("XDEL", "s", "17-0", "16-0", "15-0") == 1
        assert len(taken) < 20
        monkeypatch.undo()
        left = [number for number in range(18, 651) if number % 10 not in (5, 6) or number > 640]
        rows = await talk.call("XRANGE", "s", "-", "+")
        assert [row[0] for row in rows] == [f"{number}-0" for number in left]  # type: ignore[attr-defined]


class FullDisk(MemoryStorage):
    """A disk that takes nothing into files of runs."""

    def create(self, name: str) -> MemoryHandle:
        if not name.startswith("run-"):
            return super().create(name)
        super().create(name)
        return FullHandle(self, name, self._file(name))


class FullHandle(MemoryHandle):
    """A handle of such a file."""

    def append(self, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "no room")


async def test_a_full_disk_is_asked_later_and_later() -> None:
    """Each time leaves a file that the manifest names, and that has room for so many."""
    storage = FullDisk()
    async with Stored(storage) as talk:
        await talk.fill(100)
        keyspace_of(talk.engine).memory.observe = lambda _: None  # type: ignore[assignment, method-assign]
        storer_of(talk.engine).soft_bytes = 1
        for _ in range(3_600 // 5):
            await talk.pass_ms(5_000)
            await let_threads_run()
        assert 5 <= len(run_files(storage)) <= 12
        assert storer_of(talk.engine).failure is not None
        assert len(await talk.call("XRANGE", "s", "-", "+")) == 100  # type: ignore[arg-type]
