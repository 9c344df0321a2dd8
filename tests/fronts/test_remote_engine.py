"""What only a front can meet: replies that come late, a front or an engine's process that is gone."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from app.fronts.messages import MessageKind
from app.live.leases import ConsumerKey, ConsumerLease, ConsumerLeases
from engine import Call, Engine, EngineError, ReadHandle, ask
from engine.commands.types import Cursor, XAck, XAdd, XGroupCreate, XLen, XPending, XRead, XReadGroup
from engine.entries import body
from engine.replies import Added, GroupRead, PendingSummary, Reply, StreamsRead
from tests.engine.asking import begin_read, reply_to, submit, submit_each, turn_of
from tests.engine.clocks import settle
from tests.engine.running import engine_of
from tests.fronts.joined import Joined, join
from tests.waiting import until_async

ADD = XAdd(stream="s", bodies=[body([("a", b"1")])])
READ = XReadGroup(streams=[("s", Cursor.NEW)], group="g", consumer="c", block_ms=60_000)
Replies = Sequence[Reply | EngineError]


engine = engine_of(XGroupCreate(stream="s", group="g", start=0, mkstream=True), fsync="always")


@pytest.fixture
async def joined(engine: Engine) -> Joined:
    return await join(engine)


async def pending(engine: Engine) -> int:
    found = await reply_to(engine, XPending(stream="s", group="g"))
    assert isinstance(found, PendingSummary)
    return found.count


async def waiting(engine: Engine, reads: int) -> None:
    async with asyncio.timeout(5):
        while engine.figures().waiting != reads:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)


async def undone(engine: Engine) -> None:
    """Wait until the entry is as if nobody had read it."""
    async with asyncio.timeout(5):
        while await pending(engine):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)
    found = await reply_to(engine, READ)
    assert isinstance(found, GroupRead)
    assert [one.delivery_count for one in found.streams[0].entries] == [1]


async def test_a_read_that_is_cancelled_while_it_waits_takes_nothing(engine: Engine, joined: Joined) -> None:
    reading = asyncio.create_task(reply_to(joined.remote, READ))
    await waiting(engine, 1)
    reading.cancel()
    await waiting(engine, 0)
    await reply_to(joined.remote, ADD)
    assert await pending(engine) == 0


async def test_what_was_delivered_to_a_read_that_was_cancelled_meanwhile_is_undone(
    engine: Engine, joined: Joined
) -> None:
    """The reply and the end of the read pass each other on the way."""
    reading = asyncio.create_task(reply_to(joined.remote, READ))
    await waiting(engine, 1)
    await reply_to(engine, ADD)
    assert not reading.done()
    reading.cancel()
    await undone(engine)


async def test_what_is_read_for_a_front_that_is_gone_is_undone(engine: Engine, joined: Joined) -> None:
    """By both kinds of group reads, while the delivery waits for the log."""
    reading = asyncio.create_task(reply_to(joined.remote, READ))
    await waiting(engine, 1)
    adding = asyncio.create_task(reply_to(engine, ADD))
    await waiting(engine, 0)
    joined.cut()
    await adding
    with pytest.raises(EngineError, match="restarting"):
        await reading
    await undone(engine)


async def test_a_front_that_is_gone_leaves_no_read_behind(engine: Engine, joined: Joined) -> None:
    """Neither tails nor group reads, by callback or not: entries go to others."""
    answers: list[Replies] = []
    tail = asyncio.create_task(reply_to(joined.remote, XRead(streams=[("s", 0)], block_ms=60_000)))
    begin_read(joined.remote, READ, answers.append)
    await waiting(engine, 2)
    joined.cut()
    await waiting(engine, 0)
    with pytest.raises(EngineError, match="restarting"):
        await tail
    assert [error.code for [error] in answers if isinstance(error, EngineError)] == ["restarting"]
    await reply_to(engine, ADD)
    assert await pending(engine) == 0


async def test_a_read_is_ended_with_what_its_time_would_give(engine: Engine, joined: Joined) -> None:
    """Before it has reached the engine's process too."""
    for is_early in (False, True):
        answers: list[Replies] = []
        handle = begin_read(joined.remote, READ, answers.append)
        if not is_early:
            await waiting(engine, 1)
        handle.end()
        await waiting(engine, 0)
        while not answers:  # noqa: ASYNC110 - the other end tells nothing else
            await asyncio.sleep(0)
        assert answers == [[GroupRead([], [], [], [])]]


class BrokenLeases(ConsumerLeases):
    """The engine's process cannot lease a consumer."""

    def acquire(self, consumer: ConsumerKey, replaced: Callable[[], None]) -> ConsumerLease:
        raise RuntimeError(consumer)


async def test_a_lease_that_fails_is_refused_and_no_call_of_its_number_is(engine: Engine) -> None:
    """Its reader neither waits for ever nor reads beside another one; leaving is no failure then."""
    failed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["message"]))
    joined = await join(engine, BrokenLeases())
    reading = asyncio.create_task(reply_to(joined.remote, READ))
    await waiting(engine, 1)
    lease = joined.leases.acquire(ConsumerKey("s", "g", "c"), lambda: None)
    async with asyncio.timeout(5):
        refusal = await lease.alone
    assert refusal is not None
    assert refusal.code == "internal"
    lease.leave()
    await settle()
    assert (failed, reading.done()) == (["a front's message failed"], False)
    await reply_to(engine, ADD)
    assert isinstance(await reading, GroupRead)


async def test_a_lease_is_had_behind_the_reader_before_it(joined: Joined) -> None:
    """Also where that one is of the same front."""
    key = ConsumerKey("s", "g", "c")
    first = joined.leases.acquire(key, lambda: first.leave())  # noqa: PLW0108 - it is not there yet
    second = joined.leases.acquire(key, lambda: None)
    async with asyncio.timeout(5):
        assert (await first.alone, await second.alone) == (None, None)
    assert first.over.done()


async def test_a_front_that_is_gone_leaves_no_consumer_behind(engine: Engine) -> None:
    """Another one may read as it at once."""
    key, shared = ConsumerKey("s", "g", "c"), ConsumerLeases()
    gone, there = await join(engine, shared), await join(engine, shared)
    async with asyncio.timeout(5):
        await gone.leases.acquire(key, lambda: None).alone
        gone.cut()
        assert await there.leases.acquire(key, lambda: None).alone is None


async def test_each_tenant_leases_consumers_of_its_own(joined: Joined) -> None:
    """Their names are the same, and so is the front."""
    replaced, prefixes = list[str](), ("", "acme.", "other.")
    key = ConsumerKey("s", "g", "c")
    leases = [
        joined.leases.under(prefix).acquire(key, partial(replaced.append, prefix)) for prefix in prefixes
    ]
    async with asyncio.timeout(5):
        assert [await lease.alone for lease in leases] == [None] * 3
    assert replaced == []


async def test_waits_end_with_draining_and_those_of_other_fronts_go_on(
    engine: Engine, joined: Joined
) -> None:
    """As the engine's own end of waits does: those that come later end too, and what is there is read."""
    other = await join(engine)
    waits = [
        asyncio.create_task(reply_to(joined.remote, READ)),
        asyncio.create_task(reply_to(other.remote, READ)),
    ]
    await waiting(engine, 2)
    joined.remote.end_waits()
    for read in (waits[0], reply_to(joined.remote, XRead(streams=[("s", 0)], block_ms=60_000))):
        with pytest.raises(EngineError) as refused:
            await read
        assert refused.value.code == "draining"
    await reply_to(joined.remote, ADD)
    assert isinstance(await waits[1], GroupRead)
    assert isinstance(await reply_to(joined.remote, XRead(streams=[("s", 0)], block_ms=60_000)), StreamsRead)


async def test_after_the_end_of_the_engines_process_everything_is_refused(joined: Joined) -> None:
    """What was asked for before, and what comes later; each way in has its answer, never at once."""
    remote, answers = joined.remote, list[Replies]()
    for outcome in ("unknown", "not done"):
        submit(remote, [ADD, ADD], answers.append)
        submit_each(remote, [ADD, ADD], answers.append)
        running = asyncio.gather(reply_to(remote, ADD), turn_of(remote, [ADD]), return_exceptions=True)
        assert not answers
        joined.cut()
        for refused in await running:
            assert isinstance(refused, EngineError)
            assert (refused.code, refused.members["outcome"]) == ("restarting", outcome)
        await settle()
        assert [len(found) for found in answers] == [1, 2]
        answers.clear()


async def test_what_is_submitted_in_one_cycle_is_one_frame_and_runs_in_order(
    engine: Engine, joined: Joined
) -> None:
    """The replies come back in the same order."""
    found: asyncio.Queue[Replies] = asyncio.Queue()
    frames = 0
    received = joined.port.link.data_received

    def count(data: bytes) -> None:
        nonlocal frames
        frames += 1
        received(data)

    joined.port.link.data_received = count  # type: ignore[method-assign] # counted, and passed on
    for _ in range(100):
        submit(joined.remote, [ADD], found.put_nowait)
    added = [(await found.get())[0] for _ in range(100)]
    given = [one.ids[0] for one in added if isinstance(one, Added)]
    assert given == sorted(given)
    assert (len(given), frames) == (100, 1)
    assert await reply_to(engine, XLen(stream="s")) == 100


async def test_refusals_come_as_the_engine_gives_them(joined: Joined) -> None:
    """One in place of a reply, and one of the whole."""
    replies = await turn_of(
        joined.remote, [ADD, XAck(stream="s", group="g", ids=[1 << 127]), XLen(stream="t")]
    )
    assert isinstance(replies[0], Added)
    with pytest.raises(EngineError) as refused:
        await reply_to(joined.remote, XGroupCreate(stream="none", group="g", start=0))
    assert refused.value.code == "no_stream"
    each: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
    submit_each(joined.remote, [XGroupCreate(stream="none", group="g", start=0), ADD], each.set_result)
    first, second = await each
    assert isinstance(first, EngineError)
    assert isinstance(second, Added)


async def test_figures_are_reported_when_they_change(joined: Joined) -> None:
    assert joined.remote.figures().streams == 1
    await reply_to(joined.remote, XAdd(stream="t", bodies=ADD.bodies))
    await until_async(lambda: joined.remote.figures().streams == 2, 5)
    assert joined.remote.figures().appended == 1
    assert joined.remote.memory.used_bytes >= joined.remote.memory.estimated_bytes > 0
    assert sum(joined.remote.figures().sync_seconds.counts) > 0


async def test_a_command_is_not_run_while_its_reply_could_only_wait(engine: Engine, joined: Joined) -> None:
    """Behind what its front has not taken: a front may ask for more than memory holds, so nothing more is
    read of it.
    """
    link = joined.port.link
    link.pause_writing()
    was_paused = joined.pipes[0].is_paused
    asked = [asyncio.ensure_future(reply_to(joined.remote, ADD)) for _ in range(3)]
    await settle()
    assert engine.figures().appended == 0
    link.resume_writing()
    assert (was_paused, joined.pipes[0].is_paused) == (True, False)
    await asyncio.gather(*asked)
    assert engine.figures().appended == 3


async def test_a_front_reads_on_while_what_it_asks_is_not_taken(joined: Joined) -> None:
    """Or neither end would go on, each behind what the other has not read."""
    asked = asyncio.ensure_future(reply_to(joined.remote, ADD))
    joined.front.pause_writing()
    assert not joined.pipes[1].is_paused
    assert isinstance(await asked, Added)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_command_that_cannot_be_carried_fails_alone(joined: Joined, *, waits: bool) -> None:
    """The others of its cycle are sent. A name that is no text is not."""
    reported = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    before = asyncio.ensure_future(reply_to(joined.remote, ADD))
    await asyncio.sleep(0)
    read = XRead(streams=[("\ud800", 0)], block_ms=1_000)
    call = Call([read], waits=ReadHandle() if waits else None, origin="req_1")
    with pytest.raises(EngineError) as refused:
        await ask(joined.remote, call)
    assert refused.value.code == "internal"
    assert [context["origin"] for context in reported] == ["req_1"]
    assert isinstance(await before, Added)


async def test_a_reply_that_cannot_be_carried_fails_alone(engine: Engine, joined: Joined) -> None:
    """What it has delivered is taken back."""
    reported = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await reply_to(engine, ADD)
    send = joined.port.link.send
    is_first = True

    def fail_once(*message: Any) -> None:
        nonlocal is_first
        if is_first and message[0] == MessageKind.REPLIES:
            is_first = False
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        send(*message)

    joined.port.link.send = fail_once  # type: ignore[method-assign] # as one that cannot be encoded
    call = Call([msgspec.structs.replace(READ, block_ms=None)], origin="req_2")
    with pytest.raises(EngineError) as refused:
        await ask(joined.remote, call)
    assert refused.value.code == "internal"
    assert [context["origin"] for context in reported] == ["req_2"]
    await undone(engine)
