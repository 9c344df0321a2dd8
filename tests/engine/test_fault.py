"""A fault within a turn: nothing is served from memory that is ahead of the log, and nothing whole is lost.

What the next engine finds is what a kill -9 at that moment would have left.
"""

import asyncio
import errno
from typing import Final

import pytest

from engine import Engine, EngineError, Fsync, RewriteFailedError, StorageLockedError, entries, ids
from engine.commands import registry
from engine.commands.execution import Turn
from engine.commands.grouping import DROPPED_MAX, xgroup_delconsumer
from engine.commands.turn import TURN_LOOKUPS_MAX
from engine.commands.types import Cursor, XAdd, XGroupDelConsumer, XLen, XReadGroup
from engine.commands.weir_commands import GiveBack
from engine.storage.memory import MemoryStorage
from tests.engine.asking import begin_read, reply_to, submit
from tests.engine.clocks import let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk
from tests.engine.faulty import HOWS, How, PlantedError, fault_at
from tests.engine.images import image
from tests.engine.running import keyspace_of

POLICIES: Final[tuple[Fsync, ...]] = ("always", "everysec")
INTERNAL: Final = "-ERR internal error: the gateway's log has more"
RESTARTING: Final = "-LOADING the engine is being restarted after a fault"
# To a client of Redis, LOADING says that nothing was done.
CUT_SHORT: Final = (
    "-ERR the engine is being restarted after a fault: the request may or may not have been carried out"
)
# Something of everything: entries, a trim, a group, deliveries, acknowledgements, a stream that goes.
TRANSACTION: Final = (
    "XADD s 5-1 a 1",
    "XTRIM s MAXLEN 2",
    "XGROUP CREATE new g 0 MKSTREAM",
    "XREADGROUP GROUP g b STREAMS s >",
    "XACK s g 5-0",
    "XCLAIM s g b 0 5-1",
    "XADD t 1-0 a 1",
    "DEL gone",
)
# As many changes as it makes.
CHANGES: Final = 13
REPLY_S_MAX: Final = 10.0


class FaultyConversation(Conversation):
    """A conversation with an engine that may break down, and be opened again."""

    def __init__(self, storage: MemoryStorage, fsync: Fsync) -> None:
        super().__init__(storage, fsync)
        self.faults: list[BaseException] = []

    def opened(self) -> Engine:
        engine = super().opened()
        engine.events.faulty = self.faults.append
        return engine

    async def begin_world(self) -> None:
        """Streams, a group with a delivery, and something for the transaction to change."""
        for words in (
            "XADD s 5-0 a 1", "XADD gone 1-0 a 1", "XGROUP CREATE s g 0", "XREADGROUP GROUP g a STREAMS s >"
        ):  # fmt: skip
            await self.call(*words.split())

    async def restart(self) -> None:
        """What the gateway does after a fault."""
        assert self.faults, "there was one"
        assert self.engine.figures().waiting == 0, "nothing waits for an engine that is gone"
        await self.engine.finish_turns()
        storage = await self.engine.abandon()
        await self.engine.free()
        left = keyspace_of(self.engine)
        assert not left.keys, "the old data is free before the new is loaded"
        assert not left.garbage, "and no part of it waits to be freed"
        assert isinstance(storage, MemoryStorage)
        with pytest.raises(StorageLockedError):
            storage.rival().lock()
        self.engine = Engine.open(storage, clock=self.clock, fsync=self._fsync)
        await self.engine.start()


@pytest.mark.parametrize("fsync", POLICIES)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("nth", range(1, CHANGES + 1))
async def test_a_fault_at_any_change_of_a_transaction_leaves_what_a_kill_leaves(
    nth: int, how: How, fsync: Fsync
) -> None:
    """With readers that wait, a consumer that holds entries, and a rewrite under way: the turn never was."""
    storage = MemoryStorage()
    async with FaultyConversation(storage, fsync) as talk:
        await talk.begin_world()
        plain = await talk.begin("XREAD", "BLOCK", 60_000, "STREAMS", "s", "t", "$", "$")
        group = await talk.begin("XREADGROUP", "GROUP", "g", "a", "BLOCK", 60_000, "STREAMS", "s", ">")
        before = image(keyspace_of(talk.engine))
        rewriting = asyncio.ensure_future(talk.engine.rewrite())
        await settle()
        with fault_at(nth, how) as fault:
            with pytest.raises(EngineError) as refused:
                await talk.transaction(*TRANSACTION)
            assert fault.happened
        assert refused.value.code == "internal"
        killed = storage.kill()
        assert [await plain, await group] == [RESTARTING] * 2
        assert await talk.call("XLEN", "s") == RESTARTING
        await talk.restart()
        with pytest.raises(RewriteFailedError):
            await rewriting
        assert image(keyspace_of(talk.engine)) == before
        await _check_killed(killed, fsync, before)
        assert await talk.transaction(*TRANSACTION)
        assert len(talk.faults) == 1


async def _check_killed(storage: MemoryStorage, fsync: Fsync, before: object) -> None:
    """The process that a kill would have ended finds the same."""
    killed = Conversation(storage, fsync)
    engine = killed.opened()
    assert image(keyspace_of(engine)) == before
    await engine.start()
    await engine.close()


async def test_the_transaction_makes_so_many_changes() -> None:
    """None is left out above."""
    async with FaultyConversation(MemoryStorage(), "everysec") as talk:
        await talk.begin_world()
        with fault_at(1_000, "after") as fault:
            replies = await talk.transaction(*TRANSACTION)
        assert not [reply for reply in replies if str(reply).startswith("-")]
        assert fault.applied == CHANGES


async def test_answers_of_whole_turns_leave_and_what_cannot_be_proved_is_refused() -> None:
    """Under always they wait for their sync; where that fails no answer says that something is safe."""
    for code, expected in ((0, "1-0"), (errno.EIO, "-MISCONF")):
        disk = SlowDisk()
        async with FaultyConversation(disk, "always") as talk:
            disk.hold()
            adding = await talk.begin("XADD", "s", "1-0", "a", "1")
            with fault_at(1, "after"):
                assert await talk.call("XADD", "t", "1-0", "a", "1") == INTERNAL
            assert not adding.done()
            if code:
                disk.fail("sync", code)
            disk.let_go()
            await talk.restart()
            assert str(await adding).startswith(expected)
            assert await talk.call("XLEN", "t") == 0


@pytest.mark.parametrize("how", HOWS)
async def test_a_fault_in_a_read_that_waited_is_its_own(how: How) -> None:
    """The entry that woke it was published, the reader behind it is asked to come again."""
    async with FaultyConversation(MemoryStorage(), "always") as talk:
        await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        words = ("BLOCK", 60_000, "STREAMS", "s", ">")
        first = await talk.begin("XREADGROUP", "GROUP", "g", "a", *words)
        second = await talk.begin("XREADGROUP", "GROUP", "g", "b", *words)
        # The entry itself is the first change.
        with fault_at(2, how):
            adding = await talk.begin("XADD", "s", "1-0", "a", "1")
            assert await first == INTERNAL
            assert await second == RESTARTING
        await talk.restart()
        assert await adding == "1-0"
        assert await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">") == [
            ["s", [["1-0", ["a", "1"]]]]
        ]


async def test_a_fault_by_callback_is_told_by_callback() -> None:
    """A turn that was submitted, and a read of a group."""
    for nth in (1, 2):
        async with FaultyConversation(MemoryStorage(), "everysec") as talk:
            await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            result: list[object] = []
            with fault_at(1, "after"):
                if nth == 1:
                    add = XAdd(stream="s", bodies=[entries.body([("a", "1")])])
                    submit(talk.engine, [add], result.extend)
                else:
                    read = XReadGroup(group="g", consumer="a", streams=[("s", Cursor.NEW)], block_ms=9)
                    begin_read(talk.engine, read, result.extend)
                await settle()
            assert [getattr(one, "code", one) for one in result] == ["internal"]
            submit(talk.engine, [XLen(stream="s")], result.extend)
            assert [getattr(one, "code", one) for one in result] == ["internal", "restarting"]
            assert isinstance(result[1], EngineError)
            assert result[1].members == {"outcome": "not done"}
            await talk.restart()
            assert await talk.call("XLEN", "s") == 0


async def test_what_was_done_in_part_may_have_been_done() -> None:
    """Of a command that takes several turns the first one has run."""
    async with FaultyConversation(MemoryStorage(), "everysec") as talk:
        await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        bodies = [entries.body([("a", "1")])] * (TURN_LOOKUPS_MAX + 1)
        await reply_to(talk.engine, XAdd(stream="s", bodies=bodies))
        read = await talk.call("XREADGROUP", "GROUP", "g", "a", "COUNT", len(bodies), "STREAMS", "s", ">")
        held = [ids.parse_canonical(row[0].encode()) for row in read[0][1]]  # type: ignore[index]
        back = GiveBack(stream="s", group="g", consumer="a", ids=held)
        giving = asyncio.ensure_future(reply_to(talk.engine, back))
        await asyncio.sleep(0)
        with fault_at(1, "after"):
            assert await talk.call("XADD", "t", "1-0", "a", "1") == INTERNAL
        with pytest.raises(EngineError) as refused:
            await giving
        assert (refused.value.code, refused.value.members) == ("restarting", {"outcome": "unknown"})
        await talk.restart()


async def test_a_fault_in_reads_that_are_served_first_refuses_who_waits_for_them() -> None:
    """A read that cannot come behind them has them all served at once: one of them fails, it never runs."""
    readers = 101
    storage = MemoryStorage()
    async with FaultyConversation(storage, "everysec") as talk:
        await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        words = ("COUNT", 1, "BLOCK", 60_000, "STREAMS", "s", ">")
        waiting = [await talk.begin("XREADGROUP", "GROUP", "g", f"c{at}", *words) for at in range(readers)]
        result: list[object] = []
        bodies = [entries.body([("a", "1")])] * (readers + 1)
        submit(talk.engine, [XAdd(stream="s", bodies=bodies)], lambda _: None)
        # One of the readers is not served yet.
        with fault_at(1, "after") as fault:
            read = XReadGroup(group="g", consumer="late", streams=[("s", Cursor.NEW)], count=1)
            submit(talk.engine, [read], result.extend)
            await settle()
            assert fault.happened
        assert [getattr(one, "code", one) for one in result] == ["restarting"]
        assert [await one for one in waiting][-1] == INTERNAL
        await talk.restart()
        left = await talk.call("XREADGROUP", "GROUP", "g", "again", "STREAMS", "s", ">")
        assert len(left[0][1]) == 2  # type: ignore[index]


async def test_an_exception_in_a_command_of_several_turns_is_told_by_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs in a task that only that callback reports."""

    def planted(turn: Turn, command: XGroupDelConsumer) -> object:
        if turn.so_far is not None:
            raise PlantedError("before anything changed")
        return xgroup_delconsumer(turn, command)

    async with FaultyConversation(MemoryStorage(), "everysec") as talk:
        await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        for _ in range(2):
            bodies = [entries.body([("a", "1")])] * DROPPED_MAX
            await reply_to(talk.engine, XAdd(stream="s", bodies=bodies))
        while isinstance(await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">"), list):
            pass
        result: list[object] = []
        monkeypatch.setitem(vars(registry)["RUN"], XGroupDelConsumer, planted)
        remove = XGroupDelConsumer(stream="s", group="g", consumer="a")
        submit(talk.engine, [remove], result.extend)
        await settle()
        assert [getattr(one, "code", one) for one in result] == ["internal"]
        monkeypatch.undo()
        submit(talk.engine, [remove], result.extend)
        await settle()
        assert result[1:] == [DROPPED_MAX], "the first turn has dropped the others"


async def test_a_fault_in_housekeeping_is_noticed() -> None:
    """No client asked for that turn, and none is answered."""
    async with FaultyConversation(MemoryStorage(), "everysec") as talk:
        await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        await talk.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1")
        with fault_at(1, "before"):
            await talk.pass_ms(200_000)
            await settle()
        assert len(talk.faults) == 1
        assert await talk.call("XLEN", "s") == RESTARTING
        await talk.restart()
        assert await talk.call("XLEN", "s") == 1


async def test_a_fault_before_anybody_listens_is_kept_for_who_listens_then() -> None:
    """The first housekeeping belongs to the start, before the gateway has the engine."""
    storage = MemoryStorage()
    async with FaultyConversation(storage, "everysec") as talk:
        await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        await talk.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1")
        talk.clock.pass_ms(200_000)
        again = Engine.open(storage.kill(), clock=talk.clock)
        with fault_at(1, "before"):
            await again.start()
        assert again.events.fault is not None
        await again.close()


async def test_an_exception_before_anything_changed_is_nothing_but_that() -> None:
    """No restart: the turn is clean, and the engine serves on."""
    async with FaultyConversation(MemoryStorage(), "everysec") as talk:
        await talk.add("s", "1-0")
        body: list[bytes] = [None]  # type: ignore[list-item]
        with pytest.raises(EngineError, match="internal error"):
            await reply_to(talk.engine, XAdd(stream="s", bodies=body))
        assert talk.faults == []
        assert await talk.call("XADD", "s", "2-0", "a", "1") == "2-0"


async def test_ids_go_on_above_those_that_were_shown() -> None:
    """Above the reservation too, though the clock stands still."""
    async with FaultyConversation(MemoryStorage(), "everysec") as talk:
        shown = str(await talk.call("XADD", "s", "*", "a", "1"))
        with fault_at(1, "after"):
            assert await talk.call("XADD", "s", "*", "a", "1") == INTERNAL
        await talk.restart()
        given = str(await talk.call("XADD", "s", "*", "a", "1"))
        assert int(given.partition("-")[0]) > int(shown.partition("-")[0])
        assert not talk.engine.recovery.clean_stop


async def test_a_sync_under_way_is_waited_for() -> None:
    """A sync that is under way is waited for: nothing works on the files when they are read again."""
    disk = SlowDisk()
    async with FaultyConversation(disk, "everysec") as talk:
        await talk.add("s", "1-0")
        disk.hold()
        adding = await talk.begin("XADD", "s", "*", "a", "1")
        with fault_at(1, "after"):
            assert await talk.call("XADD", "t", "1-0", "a", "1") == INTERNAL
        restarting = asyncio.ensure_future(talk.restart())
        for _ in range(20):
            await let_threads_run()
        assert not restarting.done()
        disk.let_go()
        await restarting
        assert not str(await adding).startswith("-")
        assert await talk.call("XLEN", "s") == 2


async def test_an_engine_that_is_closed_after_a_fault_leaves_no_clean_end() -> None:
    """An owner that does not open another one, as a stop meanwhile."""
    storage = MemoryStorage()
    async with FaultyConversation(storage, "everysec") as talk:
        await talk.add("s", "1-0")
        with fault_at(1, "after"):
            assert await talk.call("XADD", "s", "2-0", "a", "1") == INTERNAL
    async with Conversation(storage, "everysec") as again:
        assert not again.engine.recovery.clean_stop
        assert await again.call("XLEN", "s") == 1
