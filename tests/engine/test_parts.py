"""A command that is too much for one turn takes several, by every way into the engine."""

import asyncio
from typing import Final

import msgspec
import pytest

from engine import Engine, EngineError, entries
from engine.commands import pending, types
from engine.commands.base import Command
from engine.commands.execution import Unfinished, execute_all
from engine.commands.grouping import DROPPED_MAX
from engine.commands.turn import TURN_LOOKUPS_MAX, TURN_SCANNED_MAX
from engine.commands.weir_commands import DeleteConsumer, GiveBack
from engine.ids import ID_MAX
from engine.replies import PendingList, Trimmed
from tests.engine.asking import reply_to, submit, turn_of
from tests.engine.clocks import HandClock
from tests.engine.house import House, adding, id_of

BODY: Final = entries.body([("a", "1")])
# It delivers no more than `TURN_IDS_MAX` entries.
READ: Final = types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)])


@pytest.mark.parametrize("callback", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        types.XGroupDelConsumer(stream="s", group="g", consumer="c"),
        DeleteConsumer(stream="s", group="g", consumer="c", drop=True),
    ],
    ids=["XGROUP", "drop"],
)
async def test_the_reply_counts_all_that_it_held(command: Command, *, callback: bool) -> None:
    """A transaction, which is one turn, refuses it, and nothing is changed."""
    async with Engine.open(None, clock=HandClock(1_000), fsync="always") as engine:
        await reply_to(engine, types.XAdd(stream="s", bodies=[b',"fields":{"a":"1"}}'] * (DROPPED_MAX + 1)))
        await reply_to(engine, types.XGroupCreate(stream="s", group="g", start=0))
        for _ in range(2):
            await reply_to(engine, READ)
        (refusal,) = await turn_of(engine, [command])
        assert isinstance(refusal, EngineError)
        assert refusal.members == {"pending": DROPPED_MAX + 1}
        if callback:
            answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            submit(engine, [command], answered.set_result)
            assert await answered == [DROPPED_MAX + 1]
        else:
            assert await reply_to(engine, command) == DROPPED_MAX + 1
        engine.check()


# One in each block at least.
OTHERS: Final = range(100, TURN_SCANNED_MAX, 200)


def looking(house: House, count: int = 10) -> types.XPendingRange:
    """A house in which 3 entries of `c` are idle, behind `TURN_SCANNED_MAX` + 1 that are not; the look for
    them. Among these are idle ones of another consumer, so that no block is passed over as a whole.
    """
    house.run(types.XAdd(stream="s", bodies=[BODY] * (TURN_SCANNED_MAX + 4 + len(OTHERS))))
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    for _ in range(2):
        house.run(READ)
    group = house.key("s").groups["g"]
    rows = group.pending.page(0, TURN_SCANNED_MAX + 1 + len(OTHERS))
    claim = types.Claim(ids=[rows[place][0] for place in OTHERS], min_idle_ms=0, just_ids=True)
    house.run(types.XClaim(stream="s", group="g", consumer="other", claim=claim))
    house.pass_ms(10)
    for place, (entry_id, _) in enumerate(rows):
        if place not in OTHERS:
            group.own_run([entry_id], group.consumers["c"], house.now_ms, [1])
    return types.XPendingRange(
        stream="s", group="g", start=0, end=ID_MAX, count=count, min_idle_ms=10, consumer="c"
    )


@pytest.mark.no_cover
@pytest.mark.parametrize(("count", "more"), [(2, True), (3, False), (4, False)])
@pytest.mark.parametrize("consumer", [None, "c"])
def test_a_look_for_idle_entries_takes_several_turns(consumer: str | None, count: int, *, more: bool) -> None:
    house = House()
    others = 0 if consumer == "c" else len(OTHERS)
    look = msgspec.structs.replace(looking(house, others + count), consumer=consumer)
    first, reply = house.turns(look)
    last = [entry_id for entry_id, _ in house.key("s").groups["g"].pending.items()][-3:]
    assert isinstance(first, Unfinished)
    assert isinstance(reply, PendingList)
    assert ([one.id for one in reply.entries[others:]], reply.more) == (last[:count], more)


def test_a_look_for_idle_entries_that_one_turn_takes() -> None:
    """In a transaction all that it passes over counts, for all its commands together."""
    house = House()
    beyond = looking(house)
    lowest = house.key("s").stream.first_id
    look = msgspec.structs.replace(beyond, start=lowest + 1)
    (found,) = house.turns(look)
    assert isinstance(found, PendingList)
    assert len(found.entries) == 3
    at_limit = msgspec.structs.replace(beyond, start=lowest + 4)
    (same, refusal), turn = execute_all(house.keyspace, [at_limit, at_limit], house.now_ms)
    assert same == found
    assert isinstance(refusal, EngineError)
    assert str(TURN_SCANNED_MAX) in refusal.redis
    one_more = msgspec.structs.replace(beyond, start=lowest + 3)
    (refused,), _ = execute_all(house.keyspace, [one_more], house.now_ms)
    assert str(refused) == str(refusal)
    assert not turn.records


@pytest.mark.parametrize(("count", "sizes"), [(5, [4, 5]), (4, [4]), (8, [4, 8]), (9, [4, 8, 9])])
@pytest.mark.parametrize("consumer", [None, "c"])
def test_many_rows_of_pending_entries_take_several_turns(
    consumer: str | None, count: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four in each turn; one more is looked for where these are as many as are asked for."""
    monkeypatch.setattr(pending, "TURN_ROWS_MAX", 4)
    house = House()
    house.run(adding("s", *[f"5-{number}" for number in range(10)]))
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    house.run(READ)
    look = types.XPendingRange(stream="s", group="g", start=0, end=ID_MAX, count=count, consumer=consumer)
    *before, reply = house.turns(look)
    assert isinstance(reply, PendingList)
    assert [one.id for one in reply.entries] == [id_of(f"5-{number}") for number in range(count)]
    assert (reply.more, len(before)) == (True, len(sizes) - 1)
    (whole,), _ = execute_all(house.keyspace, [look], house.now_ms)
    assert whole == reply, "a transaction is one turn"


def test_a_group_that_is_removed_meanwhile_has_no_pending_entries() -> None:
    house = House()
    turns = house.turns(looking(house))
    assert isinstance(next(turns), Unfinished)
    house.run(types.XGroupDestroy(stream="s", group="g"))
    with pytest.raises(EngineError, match="NOGROUP"):
        next(turns)


@pytest.mark.parametrize(("more", "turns"), [(0, 1), (1, 2)])
def test_many_entries_are_given_back_in_several_turns(more: int, turns: int) -> None:
    """What the consumer holds of them; a transaction refuses more than one turn takes."""
    house = House()
    house.fill("s", TURN_LOOKUPS_MAX + 1)
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    for _ in range(2):
        house.run(READ)
    house.run(types.XAck(stream="s", group="g", ids=[1 << 64]))
    given = [number << 64 for number in range(1, TURN_LOOKUPS_MAX + 1 + more)]
    command = GiveBack(stream="s", group="g", consumer="c", ids=given)
    if more:
        (refusal,), _ = execute_all(house.keyspace, [command], house.now_ms)
        assert isinstance(refusal, EngineError)
    *before, released = house.turns(command)
    assert (len(before) + 1, released) == (turns, TURN_LOOKUPS_MAX - 1 + more)
    assert house.key("s").groups["g"].released_count() == released
    house.check()


def behind_pending(count: int) -> House:
    """A house in which the first `count` entries of a stream are pending, and one behind them is not."""
    house = House()
    house.fill("s", count + 1)
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    for _ in range(2):
        house.run(READ)
    house.run(types.XAck(stream="s", group="g", ids=[(count + 1) << 64]))
    return house


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(("pending", "turns"), [(TURN_SCANNED_MAX // 2 - 1, 1), (TURN_SCANNED_MAX // 2, 2)])
def test_a_trim_that_finds_nothing_to_remove_looks_on_in_further_turns(
    pending: int, turns: int, *, dry_run: bool
) -> None:
    """An entry that is looked at counts for itself and for the group with which it is compared."""
    house = behind_pending(pending)
    command = types.XTrim(stream="s", trim=types.Trim(maxlen=0, refs=types.Refs.ACKED), dry_run=dry_run)
    *before, reply = house.turns(command)
    assert (len(before) + 1, reply) == (turns, Trimmed(1, 1 << 64))
    assert house.key("s").stream.length == pending + (1 if dry_run else 0)
    house.check()


def test_a_trim_on_append_or_in_a_transaction_ends_with_its_turn() -> None:
    house = behind_pending(TURN_SCANNED_MAX // 2)
    trim = types.Trim(maxlen=0, refs=types.Refs.ACKED)
    (reply,), _ = execute_all(house.keyspace, [types.XTrim(stream="s", trim=trim)], house.now_ms)
    assert reply == Trimmed(0, 1 << 64)
    assert house.added(types.XAdd(stream="s", bodies=[BODY], trim=trim)).trimmed == 0


def test_a_stream_that_is_deleted_meanwhile_has_nothing_to_trim() -> None:
    house = behind_pending(TURN_SCANNED_MAX // 2)
    turns = house.turns(types.XTrim(stream="s", trim=types.Trim(maxlen=0, refs=types.Refs.ACKED)))
    assert isinstance(next(turns), Unfinished)
    house.run(types.Delete(streams=["s"]))
    assert next(turns) == Trimmed(0)


@pytest.mark.parametrize(("below", "extra"), [(TURN_SCANNED_MAX - 1, 0), (TURN_SCANNED_MAX, 1)])
def test_far_below_a_deleted_entry_the_pending_ones_are_counted_with_it(below: int, extra: int) -> None:
    house = behind_pending(below + 1)
    house.run(types.XDel(stream="s", ids=[(below + 1) << 64]))
    trim = types.XTrim(stream="s", trim=types.Trim(maxlen=0, count_pending=True), dry_run=True)
    assert house.of(Trimmed, trim).pending_affected == below + extra
