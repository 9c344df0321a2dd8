"""A rewrite makes the log short and changes nothing that anybody can see, whenever it is stopped."""

import asyncio
import errno
import random
from collections.abc import Callable

import pytest

from engine import Engine, Growth, RewriteFailedError
from engine.keyspace import Keyspace
from engine.log.manifest import Manifest, decode
from engine.nodes import OpenNode
from engine.runtime.rewriting import SLICE_S
from engine.storage.memory import MemoryStorage, StoppedError
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk
from tests.engine.images import image
from tests.engine.running import keyspace_of
from tests.engine.test_log_writing import TAILS


def manifest_of(storage: MemoryStorage) -> Manifest:
    return decode(storage.content("manifest"))


async def populate(talk: Conversation) -> None:
    """A little of everything that a snapshot has to know."""
    for number in range(1, 251):
        await talk.call("XADD", "s", f"{number}-0", "name", f"value {number}")
    await talk.call("XADD", "t", "5-0", "a", "1", "a", "2")
    await talk.call("XADD", "t", "IDMP", "producer", "key", "*", "a", "1")
    await talk.call("XGROUP", "CREATE", "s", "g", "0")
    await talk.call("XGROUP", "CREATE", "s", "empty", "$")
    await talk.call("XGROUP", "CREATECONSUMER", "s", "g", "idle")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "40", "STREAMS", "s", ">")
    await talk.call("XREADGROUP", "GROUP", "g", "b", "COUNT", "20", "STREAMS", "s", ">")
    await talk.call("XACK", "s", "g", "3-0", "45-0")
    await talk.call("XNACK", "s", "g", "FAIL", "IDS", "2", "7-0", "50-0")
    await talk.call("XDEL", "s", "1-0", "9-0", "55-0", "249-0")
    await talk.call("XSETID", "t", "9000000000000-0")
    await talk.call("CONFIG", "SET", "stream-node-max-entries", "30")


class TestARewrite:
    async def test_changes_nothing_and_survives_a_restart(self) -> None:
        """Memory is as it was, and what a restart makes of base and segments is the same again."""
        storage = MemoryStorage()
        async with Conversation(storage, "everysec") as talk:
            await populate(talk)
            before = image(keyspace_of(talk.engine))
            await talk.engine.rewrite()
            assert image(keyspace_of(talk.engine)) == before
            image_of_disk = storage.crash()
        assert manifest_of(image_of_disk).base is not None
        async with Conversation(image_of_disk) as again:
            assert image(keyspace_of(again.engine)) == before
            first = image_of_disk.content(base_name(image_of_disk))
            await again.engine.rewrite()
            second = image_of_disk.content(base_name(image_of_disk))
            assert len(first) == len(second), "a rewrite of a rewrite has the same records"
            assert image(keyspace_of(again.engine)) == before

    async def test_makes_the_log_short(self) -> None:
        """What was trimmed and acknowledged takes no room any more, and the old files are gone."""
        storage = MemoryStorage()
        async with Conversation(storage) as talk:
            for number in range(1, 2_001):
                await talk.call("XADD", "s", "MAXLEN", "10", f"{number}-0", "name", "value " * 10)
            done = await talk.engine.rewrite()
            assert done.bytes_after * 20 < done.bytes_before
            names = [name for name in storage.names() if name.endswith(".weir")]
            assert names == [file.name for file in manifest_of(storage).files()]
            assert len(names) == 2

    async def test_leaves_no_byte_of_what_was_deleted(self) -> None:
        """Deleted means gone: in sealed nodes and in the open one."""
        storage = MemoryStorage()
        async with Conversation(storage) as talk:
            for number in range(1, 251):
                await talk.call("XADD", "s", f"{number}-0", "secret", f"content-of-{number}-")
            gone = ["5-0", "150-0", "201-0", "249-0"]
            await talk.call("XDEL", "s", *gone)
            assert any(b"content-of-249-" in storage.content(name) for name in storage.names())
            await talk.engine.rewrite()
            restarted = storage.crash()
        async with Conversation(restarted) as again:
            await again.engine.rewrite()
            for node in again.engine._keyspace.keys["s"].stream.nodes_from():  # noqa: SLF001 - what is held
                assert isinstance(node, OpenNode) or b"content-of-150-" not in node.text.plain()
            everything = [restarted.content(name) for name in restarted.names()]
            for secret in (b"content-of-249-", b"content-of-201-"):
                assert not any(secret in content for content in everything)
            entries = await again.call("XRANGE", "s", "248-0", "+")
            assert [entry[0] for entry in as_rows(entries)] == ["248-0", "250-0"]

    async def test_goes_on_while_everything_changes(self) -> None:
        """Turns between two slices of it are in the new segment, whole, and none is in both or in neither."""
        storage = MemoryStorage()
        rng = random.Random(5)
        async with Conversation(storage, "everysec") as talk:
            for stream in range(30):
                for number in range(1, 60):
                    await talk.call("XADD", f"s{stream}", f"{number}-0", "a", "1")
                await talk.call("XGROUP", "CREATE", f"s{stream}", "g", "0")
                await talk.call("XREADGROUP", "GROUP", "g", "c", "COUNT", "20", "STREAMS", f"s{stream}", ">")
            for _ in range(3):
                rewriting = asyncio.ensure_future(talk.engine.rewrite())
                while not rewriting.done():
                    await change_something(talk, rng)
                await rewriting
                before = image(keyspace_of(talk.engine))
                await talk.call("DBSIZE", synced=True)
                assert await after_restart(storage.kill()) == before

    async def test_begins_by_itself_when_the_log_has_grown(self) -> None:
        """Twice what the last one left, and a least size; then not again before it has grown as much."""
        storage = MemoryStorage()
        async with Grown(storage, Growth(100, 20_000)) as talk:
            await talk.call("XADD", "s", "1-0", "a", "x" * 10_000)
            await talk.seconds(2)
            assert manifest_of(storage).base is None
            await talk.call("XADD", "s", "MAXLEN", "1", "2-0", "a", "x" * 10_000)
            await talk.seconds(2)
            assert manifest_of(storage).base is not None
            first = base_name(storage)
            await talk.call("XADD", "s", "MAXLEN", "1", "3-0", "a", "x" * 3_000)
            await talk.seconds(2)
            assert base_name(storage) == first

    async def test_that_nobody_wants_is_not_begun(self) -> None:
        """0 percent is never."""
        storage = MemoryStorage()
        async with Grown(storage, Growth(0, 100)) as talk:
            await talk.call("XADD", "s", "1-0", "a", "x" * 10_000)
            await talk.seconds(3)
            assert manifest_of(storage).base is None

    async def test_asked_for_twice_is_one(self) -> None:
        """Who asks while one is under way waits for its end."""
        storage = MemoryStorage()
        async with Conversation(storage) as talk:
            await populate(talk)
            first, second = await asyncio.gather(talk.engine.rewrite(), talk.engine.rewrite())
            assert first == second
            created = [name for what, name in storage.operations if what == "create"]
            assert [name for name in created if name.startswith("segment-")] == [
                "segment-1.weir",
                "segment-2.weir",
            ]

    async def test_keeps_the_promise_about_ids(self) -> None:
        """IDs that may have been shown before it are not given again after a crash."""
        storage = MemoryStorage()
        async with Conversation(storage, "everysec") as talk:
            shown = await talk.call("XADD", "s", "*", "a", "1")
            await talk.call("XDEL", "s", str(shown))
            await talk.call("DEL", "s")
            await talk.engine.rewrite()
            lost = storage.crash()
            wall_ms = talk.clock.wall_ms()
        async with Conversation(lost, "everysec") as again:
            again.clock.pass_ms(wall_ms - again.clock.wall_ms(), 0)
            later = await again.call("XADD", "s", "*", "a", "1")
            assert id_of(later) > id_of(shown)


class TestAFault:
    @pytest.mark.no_cover
    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
    @pytest.mark.parametrize(
        "operation", ["create", "append", "preallocate", "rename", "sync_directory", "unlink", "sync"]
    )
    async def test_at_any_step_loses_nothing(self, operation: str, code: int) -> None:
        """The rewrite is given up or done; what was there is there, and a restart loads it."""
        for nth in range(1, 30):
            storage = MemoryStorage()
            async with Conversation(storage, "everysec") as talk:
                await populate(talk)
                await talk.call("DBSIZE", synced=True)
                before = image(keyspace_of(talk.engine))
                count = [name for name, _ in storage.operations].count(operation)
                storage.fail(operation, code, nth=nth)
                ending = asyncio.ensure_future(outcome(talk.engine))
                while not ending.done():
                    # An append that found no room is tried again in a second.
                    stalled = talk.engine._writer.log.stalled  # noqa: SLF001 - only the log knows
                    await talk.pass_ms(0 if stalled is None else 1_000)
                    await let_threads_run()
                failed = ending.result()
                assert image(keyspace_of(talk.engine)) == before
                reached = [name for name, _ in storage.operations].count(operation) - count >= nth
                storage.heal()
                for crashed in (storage.kill(), storage.crash()):
                    assert await after_restart(crashed) == before
                if reached and not (failed and operation in {"append", "sync"}):
                    await talk.add("s", "1000-0")
            if not reached:
                assert nth > 1
                return

    async def test_is_tried_again_after_a_while(self) -> None:
        """It stops no service: a minute later the next rewrite is begun, and later each time."""
        storage = MemoryStorage()
        async with Grown(storage, Growth(100, 1_000)) as talk:
            storage.fail("create", errno.EIO, nth=1)
            await talk.call("XADD", "s", "1-0", "a", "x" * 2_000)
            await talk.seconds(2)
            assert "Input/output error" in str(talk.engine.figures().rewrites.failure)
            await talk.seconds(50)
            assert manifest_of(storage).base is None
            await talk.seconds(15)
            assert manifest_of(storage).base is not None
            assert talk.engine.figures().rewrites.failure is None

    async def test_a_rewrite_is_given_up_when_the_engine_closes(self) -> None:
        """A shutdown does not wait for it, and leaves a log that was never begun anew."""
        storage = MemoryStorage()
        async with Conversation(storage) as talk:
            await populate(talk)
            before = image(keyspace_of(talk.engine))
            rewriting = asyncio.ensure_future(talk.engine.rewrite())
            await asyncio.sleep(0)
            await talk.close()
            with pytest.raises(RewriteFailedError, match="being closed"):
                await rewriting
        async with Conversation(storage.crash()) as again:
            assert image(keyspace_of(again.engine)) == before

    async def test_a_poisoned_log_is_not_rewritten(self) -> None:
        """After a failed sync only a restart knows what the disk holds."""
        storage = MemoryStorage()
        async with Conversation(storage, "always") as talk:
            storage.fail("sync", errno.EIO)
            refused = await talk.call("XADD", "s", "1-0", "a", "1")
            assert str(refused).startswith("-")
            with pytest.raises(RewriteFailedError):
                await talk.engine.rewrite()


@pytest.mark.no_cover
@pytest.mark.parametrize("tail", TAILS)
async def test_a_power_cut_at_any_step_gives_the_old_files_or_the_new(tail: str) -> None:
    """Stopped before each operation, with each image that the disk may have then: the same streams."""
    populated = MemoryStorage()
    async with Conversation(populated) as talk:
        await populate(talk)
        before = image(keyspace_of(talk.engine))
    for moment in range(1000):
        storage = populated.kill()
        async with Conversation(storage) as talk:
            storage.stop_before(moment)
            await rewrite_until_stopped(talk.engine, storage)
            talk.abandon()
        images = [
            storage.crash(name_changes=names, tail=TAILS[tail])
            for names in range(storage.unsynced_name_changes() + 1)
        ]
        for crashed in (*images, storage.kill()):
            assert await after_restart(crashed) == before
        if not storage.stopped:
            assert moment > 10
            return


class TestTheLoop:
    async def test_never_waits_for_the_disk(self) -> None:
        """While a sync of the rewrite hangs, readers of what is safe are answered, and writers too."""
        storage = SlowDisk()
        async with Conversation(storage, "everysec") as talk:
            await populate(talk)
            await talk.call("DBSIZE", synced=True)
            storage.hold()
            rewriting = asyncio.ensure_future(talk.engine.rewrite())
            for number in range(1_000, 1_050):
                assert await talk.call("XADD", "s", f"{number}-0", "a", "1") == f"{number}-0"
                assert await talk.call("XLEN", "s")
            assert not rewriting.done()
            storage.let_go()
            await rewriting

    async def test_is_given_back_after_each_slice(self) -> None:
        """However much there is to write, others have their turn every few milliseconds of it."""
        storage = MemoryStorage()
        async with Conversation(storage) as talk:
            for number in range(200):
                await talk.call("XADD", f"s{number}", "1-0", "a", "1")
            talk.clock.ticking_s = SLICE_S / 4
            rewriting = asyncio.ensure_future(talk.engine.rewrite())
            turns = 0
            while not any(name == "append" and file.startswith("base") for name, file in storage.operations):
                await let_threads_run()
            appended = len(storage.operations)
            while len(storage.operations) == appended:
                turns += 1
                await asyncio.sleep(0)
            await rewriting
            assert turns > 20


async def after_restart(storage: MemoryStorage, look: Callable[[Keyspace], object] = image) -> object:
    """What a new process makes of the directory."""
    engine = Engine.open(storage, clock=HandClock())
    engine.check()
    found = look(keyspace_of(engine))
    await engine.close()
    return found


async def rewrite_until_stopped(engine: Engine, storage: MemoryStorage) -> None:
    rewriting = asyncio.ensure_future(engine.rewrite())
    while not rewriting.done() and not storage.stopped:
        await let_threads_run()
    for _ in range(20):
        await let_threads_run()
    rewriting.cancel()
    await asyncio.wait([rewriting])
    assert rewriting.cancelled() or isinstance(
        rewriting.exception(), StoppedError | RewriteFailedError | None
    )


async def outcome(engine: Engine) -> bool:
    """Whether the rewrite failed."""
    try:
        await engine.rewrite()
    except RewriteFailedError:
        return True
    return False


async def change_something(talk: Conversation, rng: random.Random) -> None:
    stream = f"s{rng.randrange(30)}"
    change = rng.randrange(7)
    number = rng.randrange(1, 60)
    if change == 0:
        await talk.call("XADD", stream, "*", "a", "1")
    elif change == 1:
        await talk.call("XDEL", stream, f"{number}-0")
    elif change == 2:
        await talk.call("XREADGROUP", "GROUP", "g", "d", "COUNT", "3", "STREAMS", stream, ">")
    elif change == 3:
        await talk.call("XACK", stream, "g", f"{number}-0")
    elif change == 4:
        await talk.call("XTRIM", stream, "MINID", f"{number // 4}-0")
    elif change == 5 and number < 3:
        await talk.call("DEL", stream)
    else:
        await talk.call("XCLAIM", stream, "g", "e", "0", f"{number}-0")
        await talk.call("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")


class Grown(Conversation):
    """A conversation with an engine that rewrites by itself."""

    def __init__(self, storage: MemoryStorage, growth: Growth) -> None:
        super().__init__(storage)
        self._growth = growth

    def opened(self) -> Engine:
        return Engine.open(self.storage, clock=self.clock, fsync="everysec", growth=self._growth)

    async def seconds(self, count: int) -> None:
        """Let seconds pass, one by one, and wait for what they began."""
        for _ in range(count):
            await self.pass_ms(1_000)
            while self.engine.figures().rewrites.running:
                await let_threads_run()
            await settle()


def base_name(storage: MemoryStorage) -> str:
    base = manifest_of(storage).base
    assert base is not None
    return base.name


def id_of(reply: object) -> tuple[int, ...]:
    return tuple(int(part) for part in str(reply).split("-"))


def as_rows(reply: object) -> list[list[object]]:
    assert isinstance(reply, list)
    return reply
