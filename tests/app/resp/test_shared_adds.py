"""Plain XADDs of several clients at the same time: stored by one turn, answered one by one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import pytest

from app.doors.resp.lane import SharedAdds
from app.gateway import Gateway
from app.live.together import Replies
from app.redis.runs import each_added
from app.settings import Settings
from engine import Engine, EngineError, SystemClock, ids
from engine.commands import Close, CreateDurable, XAdd, XLen
from engine.entries import body
from engine.replies import Added
from engine.storage.memory import MemoryStorage
from tests.app.resp.conftest import TestedPort, until
from tests.engine.asking import reply_to

SHORT = body([("a", b"1")])


@asynccontextmanager
async def opened(storage: MemoryStorage) -> AsyncIterator[Engine]:
    engine = Engine.open(storage, clock=SystemClock())
    async with engine:
        yield engine
        engine.check()


async def add_together(engine: Engine, *parts: Sequence[bytes], stream: str = "s") -> list[Replies]:
    """The replies to each of the parts, which come within one cycle of the loop."""
    adds, found = SharedAdds(Gateway(Settings(), SystemClock())), dict[int, Replies]()
    for place, bodies in enumerate(parts):
        adds.add(engine, stream, bodies, partial(found.__setitem__, place))
    await until(lambda: len(found) == len(parts))
    return [found[place] for place in range(len(parts))]


def given(replies: Replies) -> list[int]:
    """The IDs of the entries of one client."""
    (reply,) = replies
    assert isinstance(reply, Added), reply
    return list(reply.ids)


async def test_entries_that_come_together_are_one_frame() -> None:
    """Each client has the IDs of its own entries, in the order of their coming."""
    async with opened(MemoryStorage()) as engine:
        one, two, three = map(given, await add_together(engine, [SHORT], [SHORT, SHORT], [SHORT]))
        assert [len(one), len(two), len(three)] == [1, 2, 1]
        assert one + two + three == list(range(one[0], one[0] + 4))
        assert await reply_to(engine, XLen(stream="s")) == 4
        before = engine.log_figures().bytes
        await add_together(engine, [SHORT], [SHORT], [SHORT])
        together = engine.log_figures().bytes - before
        for _ in range(3):
            await add_together(engine, [SHORT])
        alone = engine.log_figures().bytes - before - together
        assert together < alone, "a frame has a header"


async def test_another_stream_is_another_command() -> None:
    """What comes in the same cycle for another stream gets its own IDs."""
    async with opened(MemoryStorage()) as engine:
        adds, found = SharedAdds(Gateway(Settings(), SystemClock())), list[Replies]()
        for stream in ("s", "t", "s"):
            adds.add(engine, stream, [SHORT], found.append)
        await until(lambda: len(found) == 3)
        assert await reply_to(engine, XLen(stream="s")) == 2
        assert await reply_to(engine, XLen(stream="t")) == 1


async def test_a_full_run_does_not_wait_for_the_end_of_the_cycle() -> None:
    """1,000 entries are as many as one turn should take; 999 wait for more."""
    async with opened(MemoryStorage()) as engine:
        adds, found = SharedAdds(Gateway(Settings(), SystemClock())), list[Replies]()
        adds.add(engine, "s", [SHORT] * 999, found.append)
        assert engine.appended == 0
        adds.add(engine, "s", [SHORT], found.append)
        assert engine.appended == 1_000
        adds.add(engine, "s", [SHORT], found.append)
        await until(lambda: len(found) == 3)
        assert engine.appended == 1_001


async def test_a_run_that_would_be_too_long_goes_in_two() -> None:
    """999 entries wait, and two more come: their client's turn is the next one."""
    async with opened(MemoryStorage()) as engine:
        adds, found = SharedAdds(Gateway(Settings(), SystemClock())), list[Replies]()
        adds.add(engine, "s", [SHORT] * 999, found.append)
        adds.add(engine, "s", [SHORT] * 2, found.append)
        assert engine.appended == 999
        await until(lambda: len(found) == 2)
        assert engine.appended == 1_001


async def test_a_client_that_fails_keeps_no_answer_from_others() -> None:
    """The fault is reported."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    fault = RuntimeError("of one client")

    def fail(_: Replies) -> None:
        raise fault

    async with opened(MemoryStorage()) as engine:
        adds, found = SharedAdds(Gateway(Settings(), SystemClock())), list[Replies]()
        adds.add(engine, "s", [SHORT], fail)
        adds.add(engine, "s", [SHORT], found.append)
        await until(lambda: len(found) == 1)
    assert reported == [fault]


async def test_fifty_clients_are_answered_in_a_cycle() -> None:
    """What follows from an answer takes time, and others have their turns in between."""
    async with opened(MemoryStorage()) as engine:
        adds, found = SharedAdds(Gateway(Settings(), SystemClock())), list[Replies]()
        for _ in range(101):
            adds.add(engine, "s", [SHORT], found.append)
        at_once = [0]
        while len(found) < 101:
            await asyncio.sleep(0)
            at_once.append(len(found))
        assert max(after - before for before, after in pairwise(at_once)) == 50
    assert [reply for (reply,) in map(given, found)] == sorted(reply for (reply,) in map(given, found))


async def test_who_comes_last_gets_no_id_where_there_are_too_few() -> None:
    """Two IDs are left for three clients."""
    async with opened(MemoryStorage()) as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[SHORT], ids=[ids.ID_MAX - 2]))
        one, two, three = map(given, await add_together(engine, [SHORT], [SHORT, SHORT], [SHORT]))
        assert (one, two, three) == ([ids.ID_MAX - 1], [ids.ID_MAX], [])


async def test_what_has_no_room_together_is_tried_one_by_one() -> None:
    """The disk has room for the reserve of the log and for short entries, not for twice the large one."""
    async with opened(MemoryStorage(space_bytes=17 << 20)) as engine:
        large = body([("a", b"x" * (5 << 20))])
        (first,), (second,), (third,) = await add_together(engine, [SHORT], [large], [SHORT])
        assert isinstance(first, Added)
        assert isinstance(second, EngineError)
        assert second.code == "storage_full"
        assert isinstance(third, Added)
        assert await reply_to(engine, XLen(stream="s")) == 2


JSON = CreateDurable(stream="s", media="application/json")
GOOD, BAD = [body([("data", text)]) for text in (b"1", b"{")]


@pytest.mark.parametrize("closed", [False, True])
async def test_what_one_may_not_add_is_refused_to_that_one(*, closed: bool) -> None:
    """And of its own pipeline to those entries alone, as Redis refuses a command."""
    async with opened(MemoryStorage()) as engine:
        await reply_to(engine, JSON)
        if closed:
            await reply_to(engine, Close(stream="s"))
        found = await add_together(engine, [GOOD], [BAD], [GOOD, BAD, BAD, GOOD], [GOOD])
        outcomes = [
            ["id" if isinstance(one, int) else one.code for one in each_added(reply, number)]
            for ((reply,), number) in zip(found, (1, 1, 4, 1), strict=True)
        ]
        added = "stream_closed" if closed else "id"
        rest = "stream_closed" if closed else "invalid"
        assert [outcomes[0], outcomes[3]] == [[added], [added]]
        assert outcomes[1] == ["invalid"]
        assert outcomes[2] == [added, rest, rest, added]
        assert await reply_to(engine, XLen(stream="s")) == (0 if closed else 4)


async def test_a_pipeline_goes_on_behind_what_its_stream_does_not_take(port: TestedPort) -> None:
    """By itself, among others and in a transaction."""
    await reply_to(port.gateway.engine, JSON)
    wire = await port.connect()
    adds = [("XADD", "s", "*", "data", text) for text in ("1", "{", "2", "x y", "3")]
    for before in ([], [("PING",)]):
        for command in (*before, *adds, ("XLEN", "s")):
            wire.send(*command)
        found = [await wire.reply() for _ in (*before, *adds, ("XLEN", "s"))][len(before) :]
        assert [isinstance(one, bytes) for one in found[:5]] == [True, False, True, False, True]
        assert all("has one field, data" in str(one) for one in (found[1], found[3]))
        assert found[5] == 3 + 3 * len(before)
    await wire.call("MULTI")
    for command in adds:
        await wire.call(*command)
    done = await wire.call("EXEC")
    assert isinstance(done, list)
    assert [isinstance(one, bytes) for one in done] == [True, False, True, False, True]
    assert await wire.call("XLEN", "s") == 9


async def test_clients_at_the_same_time_have_their_own_ids(port: TestedPort) -> None:
    """Also one that has sent more, one that adds to another stream, and one that leaves at once."""
    wires = [await port.connect() for _ in range(4)]
    await asyncio.gather(*[wire.call("PING") for wire in wires])
    first, second, third, leaving = wires
    first.send("XADD", "s", "*", "from", "1")
    second.send("XADD", "s", "*", "from", "2")
    second.send("XADD", "t", "*", "from", "2")
    second.send("XLEN", "t")
    third.send("XADD", "s", "*", "from", "3")
    leaving.send("XADD", "s", "*", "from", "4")
    leaving.close()
    added = [await wire.reply() for wire in (first, second, third)]
    assert len({*added}) == 3
    assert isinstance(await second.reply(), bytes)
    assert await second.reply() == 1
    rows = await first.call("XRANGE", "s", "-", "+")
    assert isinstance(rows, list)
    of = {row[1][1]: row[0] for row in rows}
    assert [of[b"1"], of[b"2"], of[b"3"]] == added
