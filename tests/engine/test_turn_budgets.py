"""What the commands of one transaction read, deliver and name together: the limits of one turn.

Knows: the limits, lowered, at their edges.
Must never know: APIs, how long anything takes (`test_stalls.py`).
"""

from collections.abc import Sequence

import pytest

from engine import EngineError, entries
from engine.commands import execution, turn, types
from engine.commands.base import Command
from engine.commands.execution import execute_all
from engine.replies import Entries, GroupRead, Reply, StreamsRead
from tests.engine.house import House, id_of

BODY = entries.body([("a", "1")])
ALL = types.XRange(stream="s", start=0, end=id_of("9-0"))
BACKWARDS = types.XRange(stream="s", start=0, end=id_of("9-0"), reverse=True)

LONG_TOGETHER: dict[str, Command] = {
    "XINFO GROUPS": types.XInfoGroups(stream="s"),
    "XINFO CONSUMERS": types.XInfoConsumers(stream="s", group="g"),
    "XINFO STREAM FULL": types.XInfoStreamFull(stream="s"),
    "XPENDING": types.XPending(stream="s", group="g"),
    "XAUTOCLAIM": types.XAutoClaim(stream="s", group="g", consumer="d", min_idle_ms=9, start=0),
    "KEYS": types.ListStreams(),
    "COPY": types.Copy(stream="s", target="t"),
}


@pytest.fixture
def house() -> House:
    """A stream of 5-0, 5-1 … 5-8, and groups that have read nothing."""
    house = House()
    house.run(types.XAdd(stream="s", bodies=[BODY] * 9, ids=[id_of(f"5-{number}") for number in range(9)]))
    for group in ("g", "h"):
        house.run(types.XGroupCreate(stream="s", group=group, start=0))
    return house


def together(house: House, *commands: Command) -> Sequence[Reply | EngineError]:
    replies, _ = execute_all(house.keyspace, commands, house.now_ms)
    return replies


def number_of(reply: object) -> int:
    """How many entries a reply has."""
    if isinstance(reply, Entries):
        return reply.count
    if isinstance(reply, StreamsRead):
        return sum(one.entries.count for one in reply.streams)
    assert isinstance(reply, GroupRead)
    return sum(len(one.entries) for one in reply.streams)


def test_reads_share_the_entries_of_a_turn(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may give one; a read of its own has all of them again. Backwards an entry counts four times."""
    monkeypatch.setattr(turn, "TURN_ENTRIES_MAX", 12)
    read = types.XRead(streams=[("s", 0)])
    assert [number_of(reply) for reply in together(house, ALL, read, ALL)] == [9, 3, 1]
    assert [number_of(reply) for reply in together(house, BACKWARDS, read)] == [3, 1]
    assert [number_of(house.run(ALL)), number_of(house.run(BACKWARDS))] == [9, 3]
    shortened = house.run(BACKWARDS)
    assert isinstance(shortened, Entries)
    assert shortened.more


def test_reads_share_the_bytes_of_a_turn(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they have a limit of their own; the next one may give one entry."""
    size = sum(map(len, house.of(Entries, ALL).parts)) // 9
    monkeypatch.setattr(turn, "TURN_READ_BYTES_MAX", 11 * (size + 1))
    bounded = types.XRange(stream="s", start=0, end=id_of("9-0"), bytes_max=1 << 20)
    found = [number_of(reply) for reply in together(house, bounded, bounded, bounded, ALL)]
    assert found[0] == 9
    assert found[1] in (2, 3)
    assert found[2:] == [1, 9]


def test_groups_share_the_new_entries_of_a_turn(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not delivered is the next read's."""
    monkeypatch.setattr(turn, "TURN_IDS_MAX", 11)
    reads = [
        types.XReadGroup(group=group, consumer="c", streams=[("s", types.Cursor.NEW)]) for group in ("g", "h")
    ]
    assert [number_of(reply) for reply in together(house, *reads, *reads)] == [9, 2, 0, 1]
    assert number_of(house.run(reads[1])) == 6
    house.keyspace.check()


@pytest.mark.parametrize(("second", "is_refused"), [(4, False), (5, False), (6, True)])
def test_commands_share_the_ids_that_they_name(
    house: House, monkeypatch: pytest.MonkeyPatch, second: int, *, is_refused: bool
) -> None:
    """The first may name more; one that goes beyond has changed nothing."""
    monkeypatch.setattr(turn, "TURN_IDS_MAX", 9)
    house.run(types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)]))
    found = [id_of(f"5-{number}") for number in range(9)]
    replies = together(
        house,
        types.XAck(stream="s", group="g", ids=found[:4]),
        types.XAck(stream="s", group="g", ids=found[:second]),
    )
    assert replies[0] == 4
    assert isinstance(replies[1], EngineError) == is_refused
    assert len(house.key("s").groups["g"].pending) == (5 if is_refused else 9 - max(4, second))
    monkeypatch.setattr(turn, "TURN_IDS_MAX", 3)
    assert house.run(types.XAck(stream="s", group="g", ids=found)) == (
        5 if is_refused else 9 - max(4, second)
    )


def test_a_transaction_that_would_take_too_long_is_not_run(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its commands take is added up before the first of them; one alone, and as many as may, run."""
    add, look = types.XAdd(stream="new", bodies=[BODY]), types.XInfoGroups(stream="s")
    monkeypatch.setattr(
        execution, "TURN_WORK_US_MAX", add.work_us(house.keyspace) + look.work_us(house.keyspace)
    )
    with pytest.raises(EngineError, match="use a pipeline, or several transactions") as refused:
        together(house, add, look, look)
    assert refused.value.code == "invalid"
    assert "new" not in house.keyspace.keys
    _, groups = together(house, add, look)
    assert isinstance(groups, list)
    monkeypatch.setattr(execution, "TURN_WORK_US_MAX", 0)
    assert together(house, look) == [groups]


@pytest.mark.parametrize("replies", LONG_TOGETHER)
def test_rows_of_many_count_for_a_transaction(replies: str, house: House) -> None:
    """A hundred consumers, groups and streams more: each costs more than before."""
    command = LONG_TOGETHER[replies]
    before = command.work_us(house.keyspace)
    for number in range(100):
        house.run(types.XGroupCreate(stream="s", group=f"g{number}", start=0))
        house.run(
            types.XReadGroup(group="g", consumer=f"c{number}", streams=[("s", types.Cursor.NEW)], count=1)
        )
        house.run(types.XAdd(stream=f"s{number}", bodies=[BODY]))
    assert command.work_us(house.keyspace) > before
