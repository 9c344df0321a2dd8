"""What several clients ask within one cycle: one command of the engine, and each has its own reply."""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pytest

from app.live import joiner as joining
from app.live.joiner import Joiner
from engine import Call, CommandEngine, Done, Engine, EngineError, How, Quota, SystemClock, errors, ids
from engine.commands.base import Command
from engine.commands.durable_commands import AppendBatches, AppendDurable, CreateDurable, ProducerBatch
from engine.commands.types import Cursor, XAck, XAdd, XGroupCreate, XLen, XReadGroup
from engine.commands.weir_commands import Acknowledge, AddEach, Close
from engine.entries import body
from engine.protocol import EngineProxy
from engine.replies import AcknowledgedIds, Added, DurableAppended, Reply
from engine.storage.memory import MemoryStorage
from tests.app.resp.conftest import until
from tests.engine.asking import reply_to
from tests.engine.running import engine_of

SHORT: Final = body([("a", b"1")])
TEXT: Final = body([("data", b"1")])
Said = Reply | EngineError
PENDING: Final = 9


class Asked(EngineProxy):
    """An engine, and what it was sent since it began. `answer` is said instead of its reply, once."""

    def __init__(self, engine: CommandEngine) -> None:
        super().__init__(engine)
        self.engine = engine
        self.calls: list[Call] = []
        self.answer: Said | None = None

    def send(self, call: Call, done: Done) -> Sequence[Said] | None:
        self.calls.append(call)
        answer, self.answer = self.answer, None
        return self.engine.send(call, done) if answer is None else [answer]

    @property
    def kinds(self) -> list[type[Command]]:
        """Those of the commands, in order."""
        return [type(command) for call in self.calls for command in call.commands]


engine = engine_of(clock=SystemClock)


async def prepare(engine: Engine) -> None:
    """Give it entries in `s` that are pending in a group `g`, and a stream `d` of Durable Streams."""
    await reply_to(engine, XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    await reply_to(engine, XAdd(stream="s", bodies=[SHORT] * PENDING, ids=given(*range(1, PENDING + 1))))
    read = XReadGroup(streams=[("s", Cursor.NEW)], group="g", consumer="c", count=PENDING)
    await reply_to(engine, read)
    await reply_to(engine, CreateDurable(stream="d", media="text/plain"))


@pytest.fixture
async def asked(engine: Engine) -> Any:
    """The engine, prepared."""
    await prepare(engine)
    return Asked(engine)


def given(*numbers: int) -> list[int]:
    """The IDs of these numbers: entries up to `PENDING` are pending."""
    return [ids.parse(f"{number}-0") or 0 for number in numbers]


async def ask(asked: Any, *calls: Call | Command, joiner: Joiner | None = None) -> list[Said]:
    """The reply to each, all of which come within one cycle."""
    joiner, found = joiner or Joiner(), dict[int, Said]()

    def note(place: int, replies: Sequence[Said]) -> None:
        (found[place],) = replies

    for place, call in enumerate(calls):
        call = call if isinstance(call, Call) else Call((call,))  # noqa: PLW2901
        joiner.send(asked, call, partial(note, place))
    await until(lambda: len(found) == len(calls))
    return [found[place] for place in range(len(calls))]


def add(number: int = 1, stream: str = "s", **members: Any) -> XAdd:
    return XAdd(stream=stream, bodies=[SHORT] * number, **members)


def each(number: int = 1, stream: str = "s") -> AddEach:
    return AddEach(stream=stream, bodies=[SHORT] * number, apart=True)


def xack(*numbers: int, group: str = "g") -> XAck:
    return XAck(stream="s", group=group, ids=given(*numbers))


def ack(*numbers: int, by: str = "") -> Acknowledge:
    """By a consumer, or by any: `c` holds what is pending."""
    holders = [by] * len(numbers) if by else ()
    return Acknowledge(stream="s", group="g", ids=given(*numbers), holders=holders)


def append(number: int = 1, **members: Any) -> AppendDurable:
    return AppendDurable(stream="d", kind="text/plain", bodies=[TEXT] * number, **members)


def batch(producer: str, seq: int = 0) -> AppendDurable:
    return append(batch=ProducerBatch(producer=producer, epoch=0, seq=seq))


def codes(replies: Sequence[Said]) -> list[str]:
    """How each was refused; empty where it was not."""
    return [reply.code if isinstance(reply, EngineError) else "" for reply in replies]


# ---- what goes together


# Commands of three clients, and what the engine is sent for all.
TOGETHER: Final[dict[str, tuple[list[Command], type[Command]]]] = {
    "entries": ([add(), add(2), add()], XAdd),
    "entries of Redis clients": ([each(), each(2), each()], XAdd),
    "entries of both": ([add(), each(2), add()], XAdd),
    "acknowledgements": ([ack(1), ack(2, 3), ack(4)], Acknowledge),
    "acknowledgements of Redis clients": ([xack(1), xack(2, 3), xack(4)], Acknowledge),
    "acknowledgements of both": ([ack(1), xack(2, 3), ack(4)], Acknowledge),
    "those of consumers": ([ack(1, 2, by="c"), ack(3, 4, by="d"), ack(5, 20, by="c")], Acknowledge),
    "of consumers and others": ([ack(1, by="d"), xack(1, 2), ack(2, 3, by="c")], Acknowledge),
    "of one entry": ([ack(1, by="d"), ack(1, by="c"), ack(1, by="d")], Acknowledge),
    "of one entry, its holder first": ([ack(1, by="c"), ack(1, by="d"), ack(1)], Acknowledge),
    "appends": ([append(), append(2), append()], AppendDurable),
    "producers' batches": ([batch("a"), batch("b"), batch("c")], AppendBatches),
}


def _plain(reply: Said) -> object:
    """Of a reply what is the same at any time."""
    if isinstance(reply, Added):
        return len(reply.ids)
    if isinstance(reply, DurableAppended):
        return reply.epoch, reply.seq, reply.duplicate, reply.closed
    return (sorted(reply.ids), sorted(reply.not_held)) if isinstance(reply, AcknowledgedIds) else reply


@pytest.mark.parametrize("name", TOGETHER)
async def test_what_comes_within_a_cycle_is_one_command(asked: Asked, name: str) -> None:
    """Each has the reply that it would have alone."""
    commands, kind = TOGETHER[name]
    replies = await ask(asked, *commands)
    assert asked.kinds == [kind]
    other = Engine.open(MemoryStorage(), clock=SystemClock())
    async with other:
        await prepare(other)
        assert [*map(_plain, replies)] == [_plain(await reply_to(other, command)) for command in commands]


@pytest.mark.parametrize("name", TOGETHER)
async def test_one_by_itself_is_asked_as_it_is(asked: Asked, name: str) -> None:
    for command in TOGETHER[name][0]:
        asked.calls.clear()
        call = Call((command,))
        await ask(asked, call)
        assert asked.calls == [call]


async def test_ids_are_given_in_the_order_of_coming(asked: Asked) -> None:
    """Those of a client follow each other."""
    replies = await ask(asked, add(), each(2), add())
    added = [[*reply.ids] for reply in replies if isinstance(reply, Added)]
    first = added[0][0]
    assert added == [[first], [first + 1, first + 2], [first + 3]]
    durable = await ask(asked, append(), append(2), append())
    last = [reply.last_id for reply in durable if isinstance(reply, DurableAppended)]
    assert last == [last[0], last[0] + 2, last[0] + 3]


async def test_an_id_that_two_name_counts_for_the_first(asked: Asked) -> None:
    """One that is not pending counts for none."""
    replies = await ask(asked, xack(1, 2), ack(2, 3), xack(1, 3, PENDING + 1))
    assert [*map(_plain, replies)] == [2, (given(3), []), 0]


ALONE: Final[dict[str, Call]] = {
    "an ID": Call((add(ids=given(9_000_000_000_000)),)),
    "no stream to be made": Call((add(mkstream=False),)),
    "a condition": Call((add(expected_last_id=given(PENDING)[0]),)),
    "a quota": Call((add(),), quotas=[Quota("*", "", lambda _: True, bytes_max=1 << 30)]),
    "the disk": Call((add(),), synced=True),
    "two commands": Call((add(), add()), How.EACH),
    "many": Call((add(101),)),
    "large": Call((XAdd(stream="s", bodies=[body([("a", b"x" * (16 << 10))])]),)),
    "another kind": Call((XLen(stream="s"),)),
    "an end": Call((append(closes=True),)),
    "a writer's place": Call((append(writer_seq=b"1"),)),
}


@pytest.mark.parametrize("name", ALONE)
async def test_what_asks_for_more_goes_alone(asked: Asked, name: str) -> None:
    """At once, and as it is; behind what its client has asked before, if that is given."""
    joiner, found = Joiner(), list[Sequence[Said]]()
    first = joiner.send(asked, Call((add(),)), found.append)
    joiner.send(asked, Call((add(),)), found.append)
    assert first is not None
    assert joiner.send(asked, ALONE[name], found.append) is None
    assert asked.calls == [ALONE[name]]
    assert joiner.send(asked, ALONE[name], found.append, behind=first) is None
    assert [
        len(call.commands[0].bodies) for call in asked.calls[1:2] if isinstance(call.commands[0], XAdd)
    ] == [2]
    assert asked.calls[2:] == [ALONE[name]]
    await until(lambda: len(found) == 4)
    assert len(asked.calls) == 3


async def test_what_is_as_large_as_may_join_joins(asked: Asked) -> None:
    """A hundred entries, and 16 KiB."""
    spare = len(body([("a", b"")]))
    large = body([("a", b"x" * ((16 << 10) - spare))])
    await ask(asked, add(100), XAdd(stream="s", bodies=[large]))
    assert asked.kinds == [XAdd]


@pytest.mark.parametrize(
    ("one", "other"),
    [(add(), add(stream="t")), (ack(1), add()), (xack(1), xack(1, group="h")), (append(), batch("a"))],
    ids=["stream", "kind", "group", "batches"],
)
async def test_what_differs_does_not_go_together(asked: Asked, one: Command, other: Command) -> None:
    """What is behind another one has it sent first."""
    await reply_to(asked.engine, XGroupCreate(stream="s", group="h", start=0))
    replies = await ask(asked, one, other, one)
    assert len(asked.calls) == 2
    assert codes(replies) == [""] * 3
    asked.calls.clear()
    joiner, found = Joiner(), list[Sequence[Said]]()
    first = joiner.send(asked, Call((one,)), found.append)
    second = joiner.send(asked, Call((one,)), found.append, behind=first)
    assert second is first
    assert not asked.calls
    joiner.send(asked, Call((other,)), found.append, behind=first)
    assert len(asked.calls) == 1
    await until(lambda: len(found) == 3)


async def test_each_tenant_is_asked_by_itself(engine: Engine) -> None:
    """Its names of streams are others'."""
    joiner, found = Joiner(), list[Sequence[Said]]()
    sides = [Asked(engine), Asked(engine)]
    for side in (*sides, *sides):
        joiner.send(side, Call((add(),)), found.append)
    await until(lambda: len(found) == 4)
    assert [len(side.calls) for side in sides] == [1, 1]


async def test_a_full_command_does_not_wait_for_the_end_of_the_cycle(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four entries are as many as one takes here; what is large is full as well."""
    monkeypatch.setattr(joining, "_NUMBER_MAX", 4)
    joiner, found = Joiner(), list[Sequence[Said]]()
    for sent in (0, 1, 1):
        joiner.send(asked, Call((add(2),)), found.append)
        assert len(asked.calls) == sent
    monkeypatch.setattr(joining, "_BYTES_MAX", 3 * len(SHORT))
    joiner.send(asked, Call((add(),)), found.append)
    assert len(asked.calls) == 2
    await until(lambda: len(found) == 4)


# ---- what is refused


async def test_what_is_refused_together_is_asked_of_each(asked: Asked) -> None:
    """In their order: two IDs are left, so who asks for two of the rest is refused, and the next has one."""
    await reply_to(asked.engine, add(ids=[ids.ID_MAX - 2]))
    replies = await ask(asked, add(), add(2), add())
    assert codes(replies) == ["", "stream_exhausted", ""]
    assert [reply.ids[0] for reply in replies if isinstance(reply, Added)] == [ids.ID_MAX - 1, ids.ID_MAX]
    assert asked.kinds == [XAdd] * 4


async def test_a_redis_client_that_is_asked_alone_has_its_entries_apart(asked: Asked) -> None:
    """What its pipeline may not add is refused to those entries alone."""
    await reply_to(asked.engine, CreateDurable(stream="j", media="application/json"))
    good, bad = [body([("data", text)]) for text in (b"1", b"{")]
    parts = [AddEach(stream="j", bodies=bodies, apart=True) for bodies in ([good], [bad], [good, bad, good])]
    first, second, third = await ask(asked, *parts)
    assert asked.kinds == [XAdd, AddEach, AddEach, AddEach]
    assert isinstance(first, Added)
    assert isinstance(second, Added)
    assert (len(first.ids), len(second.ids), [*second.refused]) == (1, 0, [0])
    assert isinstance(third, Added)
    assert (len(third.ids), [*third.refused]) == (2, [1])


async def test_what_a_closed_stream_refuses_is_refused_to_each(asked: Asked) -> None:
    await reply_to(asked.engine, Close(stream="s"))
    assert codes(await ask(asked, add(), each(), add(2))) == ["stream_closed"] * 3


async def test_a_batch_that_is_refused_is_asked_for_alone(asked: Asked) -> None:
    """The refusal says why; the others are stored by one command."""
    replies = await ask(asked, batch("a"), batch("b", seq=7), batch("c"))
    assert codes(replies) == ["", "producer_gap", ""]
    assert asked.kinds == [AppendBatches, AppendDurable]


UNKNOWN: Final = {
    "a fault": errors.internal(),
    "an unknown outcome": EngineError("backend_unavailable", "ERR away", outcome="unknown"),
}


@pytest.mark.parametrize("refusal", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("name", TOGETHER)
async def test_what_may_have_run_is_asked_no_more(asked: Asked, name: str, refusal: EngineError) -> None:
    """One of them may have caused it, or all may have been done."""
    commands, _ = TOGETHER[name]
    asked.answer = refusal
    assert await ask(asked, *commands) == [refusal] * 3
    assert len(asked.calls) == 1


# ---- how it is answered


async def test_fifty_clients_are_answered_in_a_cycle(asked: Asked) -> None:
    """What follows from an answer takes time, and others have their turns in between."""
    joiner, found = Joiner(), list[Sequence[Said]]()
    for _ in range(101):
        joiner.send(asked, Call((add(),)), found.append)
    at_once = [0]
    while len(found) < 101:
        await asyncio.sleep(0)
        at_once.append(len(found))
    assert max(after - before for before, after in pairwise(at_once)) == 50
    added = [reply.ids[0] for (reply,) in found if isinstance(reply, Added)]
    assert added == [*range(added[0], added[0] + 101)]


async def test_a_client_that_fails_keeps_no_answer_from_others(asked: Asked) -> None:
    """The fault is reported."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    fault = RuntimeError("of one client")

    def fail(_: Sequence[Said]) -> None:
        raise fault

    joiner, found = Joiner(), list[Sequence[Said]]()
    joiner.send(asked, Call((add(),)), fail)
    joiner.send(asked, Call((add(),)), found.append)
    await until(lambda: len(found) == 1)
    assert reported == [fault]
