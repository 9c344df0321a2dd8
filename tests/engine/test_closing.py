"""The end of a stream: what closes it, what it refuses and allows from then on, and which readers end."""

from typing import Final

import pytest

from engine import EngineError, ReadHandle, entries
from engine.commands.execution import execute
from engine.commands.types import Cursor, IdempotencyKey, Until, XAdd, XInfoStream, XRead, XReadGroup
from engine.commands.weir_commands import Close, EnsureStream, Plan, Publish, Redrive, UpdateGroup
from engine.parts.closing import REASON_BYTES_MAX, CloseStream
from engine.parts.keeping import Retention
from engine.records.changes import Append
from engine.records.payload import decode
from engine.replies import Closed, GroupRead, Planned, StreamEnd, StreamInfo, StreamsRead
from tests.engine.asking import begin_read, reply_to
from tests.engine.clocks import settle
from tests.engine.conversation import Conversation
from tests.engine.test_renaming import rich, shown
from tests.engine.world import NOW_MS, World

CLOSED: Final = "-CLOSED stream is closed"
_CYCLES: Final = 10
BODY: Final = entries.body([("a", "1")])


def close(world: World, stream: str = "s", **how: object) -> Closed:
    reply = run(world, Close(stream=stream, **how))  # type: ignore[arg-type] # its own fields
    assert isinstance(reply, Closed), reply
    return reply


def run(world: World, command: object) -> object:
    outcome = world.execute(command)  # type: ignore[arg-type] # any command
    return None if outcome is None else outcome[0]


def refused(reply: object) -> EngineError:
    assert isinstance(reply, EngineError), reply
    return reply


def filled() -> World:
    world = World()
    world.add("s", "5-0", "5-1", "5-2")
    return world


def test_a_stream_is_closed_for_good_and_once() -> None:
    """Closing it again says when it was closed, and why, and changes nothing."""
    world = filled()
    end = StreamEnd("s", (5 << 64) + 2, NOW_MS, "done")
    assert close(world, reason="done") == Closed(end)
    assert world.signalled == ["s"]
    world.pass_ms(50)
    assert close(world, reason="other") == Closed(end, duplicate=True)
    assert world.signalled == []
    info = run(world, XInfoStream(stream="s"))
    assert isinstance(info, StreamInfo)
    assert (info.closed_at_ms, info.close_reason) == (NOW_MS, "done")
    world.check()


def test_an_end_is_an_event() -> None:
    """Of keyspace notifications, once, behind that of its entries."""
    world = filled()
    world.keyspace.notifies = True
    outcome = execute(world.keyspace, Close(stream="s", add=XAdd(stream="s", bodies=[BODY])), world.now_ms)
    assert outcome.turn.events == [("xadd", "s"), ("xclose", "s")]
    assert execute(world.keyspace, Close(stream="s"), world.now_ms).turn.events == []


def test_a_stream_that_is_not_there_cannot_be_closed() -> None:
    """Unless entries come with the end: these make it, as they do elsewhere."""
    world = World()
    assert refused(run(world, Close(stream="s"))).code == "no_stream"
    assert refused(
        run(world, Close(stream="s", add=XAdd(stream="s", bodies=[BODY], mkstream=False)))
    ).code == ("no_stream")
    reply = close(world, add=XAdd(stream="s", bodies=[BODY, BODY], ids=[5 << 64, (5 << 64) + 1]))
    assert reply.added is not None
    assert list(reply.added.ids) == [5 << 64, (5 << 64) + 1]
    assert reply.end == StreamEnd("s", (5 << 64) + 1, NOW_MS, "")
    assert world.ids("s") == ["5-0", "5-1"]
    assert world.call("XADD", "s", "*", "a", "1") == CLOSED


def test_entries_and_the_end_are_one_frame() -> None:
    """A crash leaves both or neither."""
    world = filled()
    outcome = world.payloads[:]
    close(world, add=XAdd(stream="s", bodies=[BODY]))
    (frame,) = world.payloads[len(outcome) :]
    assert [type(record) for record in decode(frame)] == [Append, CloseStream]


def test_a_stream_that_is_closed_takes_no_entries() -> None:
    """By any command; the refusal says of which stream the last entry is, which it is, and since when."""
    world = filled()
    world.call("XGROUP", "CREATE", "s", "g", "0")
    close(world)
    refusal = refused(run(world, XAdd(stream="s", bodies=[BODY])))
    assert (refusal.code, refusal.redis) == ("stream_closed", "CLOSED stream is closed")
    generation = world.keyspace.keys["s"].generation
    assert refusal.members == {
        "generation": generation,
        "last_id": "5-2",
        "closed_at": "2023-11-14T22:13:20.000Z",
    }
    assert world.call("XADD", "s", "9-0", "a", "1") == CLOSED
    assert world.call("XSETID", "s", "9-0") == CLOSED
    assert refused(run(world, Close(stream="s", add=XAdd(stream="s", bodies=[BODY])))).code == "stream_closed"
    parts = [XAdd(stream="t", bodies=[BODY]), XAdd(stream="s", bodies=[BODY])]
    assert refused(run(world, Publish(parts=parts))).code == "stream_closed"
    assert world.call("EXISTS", "t") == 0
    assert world.ids("s") == ["5-0", "5-1", "5-2"]
    world.check()


def test_a_stream_that_is_closed_takes_no_dead_letters() -> None:
    """Entries go on being delivered, as where it has no IDs left; and redriving into it is refused."""
    world = filled()
    world.add("dead", "1-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    policy = {"dead_letter_stream": "dead", "max_deliveries": 1}
    run(world, UpdateGroup(stream="s", group="g", policy=policy))
    world.read("g", "a", "s", ">", "COUNT", 1)
    close(world, "dead")
    assert world.read("g", "a", "s", "0") != []
    assert world.call("XLEN", "dead") == 1
    run(world, Close(stream="t", add=XAdd(stream="t", bodies=[BODY])))
    world.call("COPY", "dead", "letters")
    body = entries.body(
        [
            ("item", "pear"),
            ("weir-source", "s"),
            ("weir-id", "5-0"),
            ("weir-group", "g"),
            ("weir-consumer", "a"),
            ("weir-deliveries", "2"),
            ("weir-reason", "max_deliveries"),
        ]
    )
    run(world, XAdd(stream="letters", bodies=[body], ids=[7 << 64]))
    close(world)
    refusal = refused(run(world, Redrive(stream="s", group="g", letters="letters", ids=[7 << 64])))
    assert refusal.code == "stream_closed"
    assert world.ids("letters") == ["1-0", "7-0"]


def test_all_else_goes_on() -> None:
    """Reading, groups, deleting, trimming, retention, lifetimes."""
    world = filled()
    close(world)
    assert world.call("XGROUP", "CREATE", "s", "g", "0") == "OK"
    assert len(world.ids("s")) == 3
    world.read("g", "a", "s", ">", "COUNT", 2)
    assert world.call("XACK", "s", "g", "5-0") == 1
    assert world.call("XDEL", "s", "5-0") == 1
    assert world.call("XTRIM", "s", "MINID", "5-2") == 1
    run(world, EnsureStream(stream="s", retention=Retention(max_len=1)))
    assert world.call("EXPIRE", "s", 100) == 1
    assert world.call("DEL", "s") == 1
    world.add("s", "1-0")
    assert world.ids("s") == ["1-0"]


def test_a_repeated_request_is_answered_as_the_first_time() -> None:
    """Also by a stream that was closed meanwhile, or by that request; another key is refused."""
    world = World()
    key, last = IdempotencyKey("k", b"d"), IdempotencyKey("l", b"d")
    first = run(world, XAdd(stream="s", bodies=[BODY], idempotency=key))
    ending = Close(stream="s", add=XAdd(stream="s", bodies=[BODY], idempotency=last))
    closed = run(world, ending)
    again = run(world, ending)
    assert isinstance(closed, Closed)
    assert isinstance(again, Closed)
    assert closed.added is not None
    assert again.added is not None
    assert (again.end, list(again.added.ids)) == (closed.end, list(closed.added.ids))
    assert (closed.duplicate, again.duplicate) == (False, True)
    repeated = run(world, XAdd(stream="s", bodies=[BODY], idempotency=key))
    assert (repeated.duplicate, list(repeated.ids)) == (True, list(first.ids))  # type: ignore[attr-defined]
    other = IdempotencyKey("m", b"d")
    assert refused(run(world, XAdd(stream="s", bodies=[BODY], idempotency=other))).code == "stream_closed"


def test_an_end_has_the_precondition_of_an_entry() -> None:
    """The stream's last ID; a stream that has another stays open."""
    world = filled()
    assert refused(run(world, Close(stream="s", expected_last_id=(5 << 64) + 1))).code == "last_id_mismatch"
    assert close(world, expected_last_id=(5 << 64) + 2).duplicate is False


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_reason_is_short(letter: str) -> None:
    """In bytes; at the limit, and one character beyond it."""
    world = filled()
    most = REASON_BYTES_MAX // len(letter.encode())
    assert refused(run(world, Close(stream="s", reason=letter * (most + 1)))).code == "invalid"
    assert close(world, reason=letter * most).end.reason == letter * most
    world.check()


def test_a_rename_keeps_the_end_and_a_copy_is_open() -> None:
    """A copy begins anew."""
    world = rich()
    close(world, reason="done")
    before = shown(world, "s")
    assert world.call("RENAME", "s", "t") == "OK"
    assert world.call("XADD", "t", "*", "a", "1") == CLOSED
    assert world.call("COPY", "t", "u") == 1
    assert shown(world, "u") == before
    assert str(world.call("XADD", "u", "*", "a", "1")).startswith(f"{NOW_MS}-")
    world.check()


# --- readers ------------------------------------------------------------------------------------------------


def read(world: World, after: int, **how: object) -> StreamsRead | None:
    reply = run(world, XRead(streams=[("s", after)], **how))  # type: ignore[arg-type] # its own fields
    assert reply is None or isinstance(reply, StreamsRead), reply
    return reply


def test_a_read_says_closed_where_nothing_is_left() -> None:
    """Not where a limit ended it, one entry before."""
    world = filled()
    close(world, reason="done")
    end = StreamEnd("s", (5 << 64) + 2, NOW_MS, "done")
    for after, count, ends in ((0, 3, [end]), (0, 2, []), (5 << 64, 2, [end]), ((5 << 64) + 2, 1, [end])):
        reply = read(world, after, count=count)
        assert reply is not None
        assert list(reply.closed) == ends
    world.call("XDEL", "s", "5-2")
    reply = read(world, (5 << 64) + 1)
    assert reply is not None
    assert list(reply.closed) == [end]


def test_a_read_that_waits_ends_where_nothing_more_can_come() -> None:
    """If it is to; Redis's waits for its time."""
    world = filled()
    close(world)
    last = (5 << 64) + 2
    assert read(world, last, block_ms=1_000) is None
    ended = read(world, last, block_ms=1_000, until=Until.CLOSED)
    assert ended is not None
    assert (list(ended.streams), [end.stream for end in ended.closed]) == ([], ["s"])
    both = XRead(streams=[("s", last), ("t", 0)], block_ms=1_000, until=Until.CLOSED)
    assert run(world, both) is None
    run(world, Close(stream="t", add=XAdd(stream="t", bodies=[BODY], ids=[1 << 64])))
    world.call("XDEL", "t", "1-0")
    reply = run(world, both)
    assert isinstance(reply, StreamsRead)
    assert [end.stream for end in reply.closed] == ["s", "t"]


def test_what_was_removed_behind_a_reader_is_a_gap_before_the_end() -> None:
    """No entry comes any more that would show it. As Redis reads it is nothing."""
    world = filled()
    close(world)
    world.call("XTRIM", "s", "MAXLEN", 0)
    generation = world.keyspace.keys["s"].generation
    reply = read(world, 5 << 64, known=[generation], block_ms=10, until=Until.CLOSED)
    assert reply is not None
    gap = reply.streams[0].gap
    assert gap is not None
    assert (gap.requested, gap.first_available, gap.next) == (5 << 64, 0, (5 << 64) + 2)
    behind = read(world, gap.goes_on_after, known=[generation], block_ms=10, until=Until.CLOSED)
    assert behind is not None
    assert (list(behind.streams), len(behind.closed)) == ([], 1)
    redis = read(world, 5 << 64)
    assert redis is not None
    assert list(redis.streams) == []


def group_read(world: World, **how: object) -> GroupRead | None:
    command = XReadGroup(group="g", consumer="a", streams=[("s", Cursor.NEW)], block_ms=1_000, **how)  # type: ignore[arg-type]
    reply = run(world, command)
    assert reply is None or isinstance(reply, GroupRead), reply
    return reply


def test_a_group_reads_until_it_has_all_and_until_all_is_done() -> None:
    """`closed` is where nothing is left to read, `drained` where nothing is pending either."""
    world = filled()
    world.call("XGROUP", "CREATE", "s", "g", "0")
    close(world)
    one = group_read(world, count=2, until=Until.CLOSED)
    assert one is not None
    assert list(one.closed) == []
    other = group_read(world, until=Until.CLOSED)
    assert other is not None
    assert [(end.stream, end.drained) for end in other.closed] == [("s", False)]
    ended = group_read(world, until=Until.CLOSED)
    assert ended is not None
    assert list(ended.streams) == []
    assert group_read(world, until=Until.DRAINED) is None
    assert group_read(world) is None
    world.call("XACK", "s", "g", "5-0", "5-1")
    assert world.signalled == []
    world.call("XACK", "s", "g", "5-2")
    assert world.signalled == ["s"]
    drained = group_read(world, until=Until.DRAINED)
    assert drained is not None
    assert [end.drained for end in drained.closed] == [True]


def test_removing_the_last_consumer_drains_too() -> None:
    """What it held is pending no more."""
    world = filled()
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "b", "s", ">")
    close(world)
    world.call("XGROUP", "DELCONSUMER", "s", "g", "b")
    assert world.signalled == ["s"]
    assert group_read(world, until=Until.DRAINED) is not None


def test_a_plan_says_closed() -> None:
    """Of each stream."""
    world = filled()
    world.add("t", "1-0")
    close(world)
    reply = run(world, Plan(streams=[("s", 0), ("t", 0)]))
    assert isinstance(reply, Planned)
    assert [(one.stream, one.closed) for one in reply.streams] == [("s", True), ("t", False)]


async def test_a_thousand_readers_that_wait_end_with_the_stream() -> None:
    """Of each kind, in the cycle in which it is closed; those that wait as Redis's go on."""
    async with Conversation() as conversation:
        await _end_readers(conversation)


async def _end_readers(conversation: Conversation) -> None:
    await conversation.call("XADD", "s", "5-0", "a", "1")
    await conversation.call("XGROUP", "CREATE", "s", "g", "5-0")
    engine = conversation.engine
    ended: list[object] = []
    stay: list[object] = []
    staying: list[ReadHandle] = []
    for number in range(1_000):
        plain = XRead(streams=[("s", 5 << 64)], block_ms=60_000, until=Until.CLOSED)
        grouped = XReadGroup(
            group="g", consumer=f"c{number}", streams=[("s", Cursor.NEW)], block_ms=60_000, until=Until.CLOSED
        )
        begin_read(engine, plain, ended.append)
        begin_read(engine, grouped, ended.append)
        staying.append(begin_read(engine, XRead(streams=[("s", 5 << 64)], block_ms=60_000), stay.append))
    await settle()
    assert (len(ended), engine.figures().waiting) == (0, 3_000)
    await reply_to(engine, Close(stream="s", reason="done"))
    # No time passes: a slice of them ends in each cycle of the loop.
    for _ in range(_CYCLES):
        await settle()
    assert (len(ended), len(stay), engine.figures().waiting) == (2_000, 0, 1_000)
    assert all(reply[0].closed[0].reason == "done" for reply in ended)  # type: ignore[index]
    for handle in staying:
        handle.cancel()
    await settle()
