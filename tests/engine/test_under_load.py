"""What must not happen when a lot happens at once, or something goes wrong in the middle of it."""

import asyncio
import gc
import weakref

import pytest

from engine import EngineError, entries
from engine.commands.execution import Blocked
from engine.commands.types import XAdd, XLen, XRead, XSetId
from engine.storage.memory import MemoryStorage
from engine.waiters import Waiter, Waiters
from tests.engine.asking import reply_to, submit
from tests.engine.clocks import settle
from tests.engine.conversation import Conversation, SlowDisk
from tests.engine.images import image
from tests.engine.running import keyspace_of
from tests.engine.world import NOW_MS

BODY = entries.body([("a", "1")])
AHEAD = f"{NOW_MS + 3_600_000}-0"


async def test_ids_ahead_of_the_clock_hold_nobody_back_for_ever() -> None:
    """Their answers wait for a sync each, and leave with it though ever more of them arrive."""
    disk = SlowDisk()
    async with Conversation(disk, "everysec") as talk:
        await talk.call("XADD", "ahead", AHEAD, "a", "1")
        for _ in range(5):
            disk.hold()
            held = await talk.begin("XADD", "ahead", "*", "a", "1")
            other = await talk.begin("XADD", "other", "*", "a", "1")
            assert not held.done()
            later = await talk.begin("XADD", "ahead", "*", "a", "1")
            disk.let_go()
            assert await held
            assert await other
            await later


async def test_a_turn_that_cannot_be_logged_is_never_shown() -> None:
    """What it changed is in memory alone: nothing is answered from there any more."""
    storage = MemoryStorage()
    async with Conversation(storage, "everysec") as talk:
        await talk.add("s", "1-0")
        await talk.add("other", "1-0")
        with pytest.raises(EngineError, match="internal"):
            await reply_to(talk.engine, XSetId(stream="s", last_id=5 << 64, entries_added=1 << 70))
        assert str(await talk.call("XINFO", "STREAM", "s")).startswith("-LOADING")
        assert str(await talk.call("XLEN", "other")).startswith("-LOADING")
        assert str(await talk.call("XADD", "other", "2-0", "a", "1")).startswith("-LOADING")
    async with Conversation(storage.crash(), "everysec") as again:
        assert await again.call("XADD", "s", "2-0", "a", "1") == "2-0"


async def test_a_failing_callback_delays_nobody() -> None:
    """Its error goes to the loop's handler, and the answers behind it leave."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with Conversation(MemoryStorage(), "everysec") as talk:
        answers: list[object] = []
        submit(talk.engine, (XAdd(stream="s", bodies=(BODY,)),), lambda replies: answers[len(replies)])  # type: ignore[arg-type]
        submit(talk.engine, (XAdd(stream="s", bodies=(BODY,)), XLen(stream="s")), answers.append)
        await settle()
        assert len(answers) == 1
        assert isinstance(reported[0]["exception"], IndexError)


def test_an_answered_waiter_is_not_kept() -> None:
    """Its deadline still lies ahead, but neither it nor its answer waits for that."""
    waiters: Waiters[set[bytes]] = Waiters()
    blocked = Blocked(XRead(streams=(("s", 0),)), ("s",), 60_000)
    quiet = Waiter(blocked, {b""}, 1.0)
    waiters.add(quiet)
    answer = {b"a long answer"}
    answered = Waiter(blocked, answer, 60.0)
    waiters.add(answered)
    waiters.remove(answered)
    kept = weakref.ref(answer)
    del answered, answer
    gc.collect()
    assert kept() is None
    assert waiters.due(99.0, 9) == ([quiet], [])


async def test_streams_whose_frames_are_not_safe_cost_each_frame_the_same() -> None:
    """Thousands of streams written in one sync: their positions are not walked for each."""
    disk = SlowDisk()
    async with Conversation(disk, "always") as talk:
        disk.hold()
        done: list[object] = []
        for number in range(5_000):
            submit(talk.engine, (XAdd(stream=f"s{number}", bodies=(BODY,)),), done.append)
        before = image(keyspace_of(talk.engine))
        disk.let_go()
        assert await talk.call("DBSIZE") == 5_000
        assert len(done) == 5_000
        assert image(keyspace_of(talk.engine)) == before
