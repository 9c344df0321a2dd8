"""Every command whose reply may be long says so, and holds as much before it runs as the reply may take.

Each command runs in an engine that is filled until the command's reply is as long as it can be. A command
that is not here fails, unless its function answers nothing but a number, a word or nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, get_args, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

from app.limits import CommandLimits, text_bytes
from app.live.budgets import BODY_COPIES, FREE_BYTES
from app.settings import Settings
from engine import entries, ids
from engine.commands import durable_commands, schedule_commands, types, weir_commands
from engine.commands.base import Command
from engine.commands.dead_letters import LETTER_FIELDS
from engine.commands.redriving import TURN_LOOKS_MAX, TURN_REDRIVEN_MAX
from engine.commands.registry import RUN, STEPS
from engine.commands.scheduling import LATER_MAX
from engine.commands.turn import Blocked, Unfinished
from engine.recurrence import Rule
from engine.replies import Dropped, StreamInfo
from engine.why import PENDING_LOOKED_AT
from tests.engine.house import House

SETTINGS: Final = Settings()
LIMITS: Final = CommandLimits.of(SETTINGS)
MIB: Final = 1 << 20
S: Final = "s"
# As long as a name may be, and of characters that JSON writes with an escape.
NAME: Final = '"' * 500
LONG: Final = entries.body([("a", "x" * (SETTINGS.entry_bytes_max - 100))])
SHORT: Final = entries.body([("a", "1")])
# The entries that fill an answer exactly where there are as many as it may have.
USUAL: Final = entries.body([("a", "x" * (LIMITS.answer_bytes_max // LIMITS.rows_max - 60))])
IN_AN_HOUR: Final = Rule(in_ms=3_600_000)
LONGEST_RULE: Final = Rule(cron="0" + ",0" * 120 + " * * * *", tz="America/Argentina/ComodRivadavia")
# Whose replies are short by their types.
_SHORT_TYPES: Final = {int, bool, str, type(None), Dropped, Blocked, Unfinished}
# What streams, groups and consumers a test has of each kind: as many as a turn describes.
MANY: Final = 1_000

Case = Callable[[House], Command]
CASES: dict[type[Command], Case] = {}


def case(kind: type[Command]) -> Callable[[Case], Case]:
    """Enter how a command gets its longest reply."""

    def enter(function: Case) -> Case:
        CASES[kind] = function
        return function

    return enter


def names(number: int) -> list[str]:
    """As many long names."""
    return [f"{NAME}{at:06}" for at in range(number)]


def add(house: House, body: bytes, number: int, stream: str = S) -> list[int]:
    """Add an entry as often; their IDs are as long as they can be."""
    top = (1 << 128) - 2 - number
    added = [top + at for at in range(number)]
    house.run(types.XAdd(stream=stream, bodies=[body] * number, ids=added))
    return added


def deliver(house: House, number: int, body: bytes = SHORT, consumer: str = NAME) -> list[int]:
    """Have a consumer hold as many entries."""
    added = add(house, body, number)
    house.run(weir_commands.EnsureGroup(stream=S, group="g", start=0, policy={"dead_letter_stream": "dead"}))
    while house.run(read_group(consumer, count=500)).streams:  # type: ignore[attr-defined] # a GroupRead
        pass
    return added


def read_group(consumer: str = "c", count: int = LIMITS.rows_max) -> types.XReadGroup:
    return types.XReadGroup(
        group="g",
        consumer=consumer,
        streams=[(S, types.Cursor.NEW)],
        count=count,
        bytes_max=LIMITS.answer_bytes_max,
    )


# --- entries


@case(types.XAdd)
def _add(_: House) -> Command:
    bodies = [SHORT] * SETTINGS.batch_entries_max
    return types.XAdd(stream=S, bodies=bodies, ids=[(1 << 127) + at for at in range(len(bodies))])


@case(weir_commands.AddEach)
def _add_each(_: House) -> Command:
    return weir_commands.AddEach(stream=S, bodies=[SHORT] * SETTINGS.batch_entries_max)


@case(weir_commands.Publish)
def _publish(_: House) -> Command:
    bodies = [SHORT] * (SETTINGS.batch_entries_max // MANY)
    return weir_commands.Publish(parts=[types.XAdd(stream=name, bodies=bodies) for name in names(MANY)])


@case(weir_commands.Close)
def _close(house: House) -> Command:
    add(house, SHORT, 1)
    return weir_commands.Close(stream=S, reason="x" * 256)


@case(types.XTrim)
def _trim(house: House) -> Command:
    add(house, SHORT, 100)
    return types.XTrim(stream=S, trim=types.Trim(maxlen=0))


@case(types.XDelEx)
def _delete(house: House) -> Command:
    return types.XDelEx(stream=S, ids=add(house, SHORT, LIMITS.lookups_max), refs=types.Refs.DELETE)


@case(types.XRange)
def _range(house: House) -> Command:
    add(house, USUAL, LIMITS.rows_max)
    most = LIMITS.answer_bytes_max
    return types.XRange(stream=S, start=0, end=ids.ID_MAX, count=LIMITS.rows_max, bytes_max=most)


@case(types.XRead)
def _read(house: House) -> Command:
    streams = names(MANY)
    for name in streams:
        add(house, USUAL, LIMITS.rows_max // MANY, name)
    return types.XRead(
        streams=[(name, 0) for name in streams], count=LIMITS.rows_max, bytes_max=LIMITS.answer_bytes_max
    )


@case(weir_commands.DescribeEdges)
def _edges(house: House) -> Command:
    add(house, LONG, 2)
    return weir_commands.DescribeEdges(stream=S)


@case(weir_commands.DescribeArchived)
def _archived(house: House) -> Command:
    gone = add(house, SHORT, 10_000)
    house.run(weir_commands.UpdateStream(stream=S, archived_up_to=gone[-1]))
    for at in range(0, len(gone), LIMITS.lookups_max):
        house.run(types.XDel(stream=S, ids=gone[at : at + LIMITS.lookups_max]))
    return weir_commands.DescribeArchived(stream=S, low=0, high=ids.ID_MAX)


# --- groups


@case(types.XReadGroup)
def _read_group(house: House) -> Command:
    add(house, USUAL, LIMITS.rows_max)
    house.run(weir_commands.EnsureGroup(stream=S, group="g", start=0))
    return read_group()


@case(weir_commands.Acknowledge)
def _acknowledge(house: House) -> Command:
    return weir_commands.Acknowledge(stream=S, group="g", ids=deliver(house, LIMITS.ids_max))


@case(types.XAckDel)
def _ack_and_delete(house: House) -> Command:
    return types.XAckDel(stream=S, group="g", ids=deliver(house, LIMITS.lookups_max))


@case(types.XClaim)
def _claim(house: House) -> Command:
    claim = types.Claim(ids=deliver(house, 20, LONG), min_idle_ms=0)
    return types.XClaim(stream=S, group="g", consumer="d", claim=claim, bytes_max=LIMITS.answer_bytes_max)


@case(weir_commands.Extend)
def _extend(house: House) -> Command:
    return weir_commands.Extend(stream=S, group="g", consumer=NAME, ids=deliver(house, LIMITS.lookups_max))


@case(types.XNack)
def _give_back(house: House) -> Command:
    ids_held = deliver(house, LIMITS.lookups_max)
    return types.XNack(stream=S, group="g", nack=types.Nack(ids=ids_held, mode=types.NackMode.FAIL))


@case(types.XAutoClaim)
def _claim_idle(house: House) -> Command:
    deliver(house, 20, LONG)
    return types.XAutoClaim(
        stream=S, group="g", consumer="d", min_idle_ms=0, start=0, bytes_max=LIMITS.answer_bytes_max
    )


@case(weir_commands.DeadLetterEntries)
def _dead_letter(house: House) -> Command:
    return weir_commands.DeadLetterEntries(
        stream=S, group="g", ids=deliver(house, LIMITS.lookups_max), reason="x" * 512
    )


def _with_letters(house: House, number: int) -> list[int]:
    policy = {"dead_letter_stream": "dead"}
    house.run(weir_commands.EnsureGroup(stream=S, group="g", start=0, mkstream=True, policy=policy))
    noted = zip(LETTER_FIELDS, (S, "1-0", "g", "c", "2", "max_deliveries"), strict=True)
    return add(house, entries.body([("a", "1"), *noted]), number, "dead")


@case(weir_commands.FindDeadLetters)
def _find_letters(house: House) -> Command:
    _with_letters(house, TURN_LOOKS_MAX)
    return weir_commands.FindDeadLetters(
        stream=S, group="g", letters="dead", start=0, end=ids.ID_MAX, count=10_000
    )


@case(weir_commands.Redrive)
def _redrive(house: House) -> Command:
    letters = _with_letters(house, TURN_REDRIVEN_MAX)
    return weir_commands.Redrive(stream=S, group="g", letters="dead", ids=letters)


@case(types.XPending)
def _pending(house: House) -> Command:
    for at, name in enumerate(names(MANY)):
        house.run(types.XAdd(stream=S, bodies=[SHORT], ids=[at + 1]))
        house.run(weir_commands.EnsureGroup(stream=S, group="g", start=0))
        house.run(read_group(name))
    return types.XPending(stream=S, group="g")


@case(types.XPendingRange)
def _pending_entries(house: House) -> Command:
    deliver(house, LIMITS.rows_max // 10)
    return types.XPendingRange(stream=S, group="g", start=0, end=ids.ID_MAX, count=LIMITS.rows_max // 10)


def _with_groups(house: House) -> None:
    for name in names(MANY):
        house.run(
            weir_commands.EnsureGroup(
                stream=S, group=name, start=0, mkstream=True, policy={"dead_letter_stream": NAME}
            )
        )


@case(weir_commands.DescribeGroup)
def _describe_group(house: House) -> Command:
    house.run(
        weir_commands.EnsureGroup(
            stream=S, group=NAME, start=0, mkstream=True, policy={"dead_letter_stream": NAME}
        )
    )
    return weir_commands.DescribeGroup(stream=S, group=NAME)


@case(weir_commands.ExamineGroup)
def _examine_group(house: House) -> Command:
    deliver(house, 2 * PENDING_LOOKED_AT)
    return weir_commands.ExamineGroup(stream=S, group="g")


@case(weir_commands.CountGroups)
def _count_groups(house: House) -> Command:
    _with_groups(house)
    return weir_commands.CountGroups()


@case(types.XInfoGroups)
def _groups(house: House) -> Command:
    _with_groups(house)
    return types.XInfoGroups(stream=S)


@case(types.FindGroup)
def _find_group(_: House) -> Command:
    return types.FindGroup(streams=names(MANY), group="g")


@case(types.XInfoConsumers)
def _consumers(house: House) -> Command:
    house.run(weir_commands.EnsureGroup(stream=S, group="g", start=0, mkstream=True))
    for name in names(MANY):
        house.run(types.XGroupCreateConsumer(stream=S, group="g", consumer=name))
    return types.XInfoConsumers(stream=S, group="g")


# --- streams


@case(types.XInfoStream)
def _info(house: House) -> Command:
    add(house, LONG, 2)
    return types.XInfoStream(stream=S)


@case(types.XInfoStreamFull)
def _details(house: House) -> Command:
    deliver(house, 20, LONG)
    for name in names(MANY):
        house.run(types.XGroupCreateConsumer(stream=S, group="g", consumer=name))
    return types.XInfoStreamFull(stream=S, count=MANY, bytes_max=LIMITS.answer_bytes_max)


@case(types.DescribeUse)
def _use(house: House) -> Command:
    add(house, LONG, 2)
    return types.DescribeUse(stream=S)


@case(types.ListStreams)
def _list(house: House) -> Command:
    for name in names(2 * MANY):
        house.run(weir_commands.EnsureStream(stream=name))
    return types.ListStreams()


@case(weir_commands.StreamInfos)
def _infos(house: House) -> Command:
    for name in names(20):
        add(house, LONG, 2, name)
    return weir_commands.StreamInfos(limit=MANY)


@case(weir_commands.MeasureStreams)
def _measure(house: House) -> Command:
    _with_groups(house)
    return weir_commands.MeasureStreams(streams=[S], groups_max=MANY)


@case(weir_commands.Plan)
def _plan(house: House) -> Command:
    streams = names(200)
    for name in streams:
        add(house, SHORT, 256, name)
    return weir_commands.Plan(streams=[(name, 0) for name in streams], parts=256)


# --- Durable Streams


@case(durable_commands.CreateDurable)
def _create_durable(_: House) -> Command:
    return durable_commands.CreateDurable(
        stream=S, media="application/json; " + "x" * 200, bodies=[SHORT] * 100
    )


@case(durable_commands.AppendDurable)
def _append_durable(house: House) -> Command:
    house.run(durable_commands.CreateDurable(stream=S, media="application/json"))
    batch = durable_commands.ProducerBatch("x" * 400, 0, 0)
    return durable_commands.AppendDurable(
        stream=S, bodies=[SHORT] * 100, kind="application/json", batch=batch
    )


@case(durable_commands.AppendBatches)
def _append_batches(house: House) -> Command:
    house.run(durable_commands.CreateDurable(stream=S, media="application/json"))
    batches = [durable_commands.ProducerBatch(f"p{at}", 0, 0) for at in range(MANY)]
    return durable_commands.AppendBatches(
        stream=S, kind="application/json", batches=batches, counts=[1] * MANY, bodies=[SHORT] * MANY
    )


@case(durable_commands.DescribeDurable)
def _describe_durable(house: House) -> Command:
    house.run(durable_commands.CreateDurable(stream=S, media="application/json; " + "x" * 200, bodies=[LONG]))
    return durable_commands.DescribeDurable(stream=S)


# --- schedules


def _schedule(name: str, body: bytes = LONG, rule: Rule = IN_AN_HOUR) -> schedule_commands.SetSchedule:
    return schedule_commands.SetSchedule(stream=S, schedule=schedule_commands.NewSchedule(name, body, rule))


@case(schedule_commands.SetSchedule)
def _set_schedule(_: House) -> Command:
    return _schedule(NAME)


@case(schedule_commands.AddScheduled)
def _add_scheduled(_: House) -> Command:
    later = [schedule_commands.NewSchedule(name, SHORT, IN_AN_HOUR) for name in names(LATER_MAX)]
    bodies = [SHORT] * (SETTINGS.batch_entries_max - LATER_MAX)
    return schedule_commands.AddScheduled(stream=S, add=types.XAdd(stream=S, bodies=bodies), later=later)


@case(schedule_commands.PauseSchedule)
def _pause_schedule(house: House) -> Command:
    house.run(_schedule(NAME))
    return schedule_commands.PauseSchedule(stream=S, name=NAME, pause=schedule_commands.Pause())


@case(schedule_commands.FireSchedule)
def _fire(house: House) -> Command:
    house.run(_schedule(NAME))
    return schedule_commands.FireSchedule(stream=S, name=NAME)


@case(schedule_commands.DescribeSchedule)
def _describe_schedule(house: House) -> Command:
    house.run(_schedule(NAME))
    return schedule_commands.DescribeSchedule(stream=S, name=NAME)


@case(schedule_commands.ListSchedules)
def _list_schedules(house: House) -> Command:
    body = entries.body([("a", "x" * 8_000)])
    for name in names(MANY):
        house.run(_schedule(name, body, LONGEST_RULE))
    return schedule_commands.ListSchedules(stream=S, limit=MANY)


# --- beside the streams


@case(types.ConfigGet)
def _config(_: House) -> Command:
    return types.ConfigGet()


@case(weir_commands.ListMetadata)
def _metadata(house: House) -> Command:
    for name in names(63):
        house.run(weir_commands.PutMetadata(name=name, value=b"x" * (64 << 10)))
    return weir_commands.ListMetadata()


# --- the tests


def size(value: object) -> int:
    """How many bytes it takes as JSON, IDs and bytes as text."""
    if isinstance(value, str | bytes):
        return len(value) + (value.count('"') if isinstance(value, str) else 0) + 3
    if isinstance(value, bool | None):
        return 6
    if isinstance(value, int):
        return len(ids.format(value) if value >= 1 << 64 else str(value)) + 3
    if isinstance(value, Enum):
        return size(value.value)
    if isinstance(value, msgspec.Struct):
        members = {name: getattr(value, name) for name in value.__struct_fields__}
        return size({name: member for name, member in members.items() if member is not None})
    if isinstance(value, Mapping):
        return 2 + sum(size(name) + size(member) for name, member in value.items())
    fields = getattr(value, "_fields", ())
    assert isinstance(value, Sequence), value
    return 2 + sum(map(size, fields)) + sum(map(size, value))


def _is_short(kind: type[Command]) -> bool:
    given = get_type_hints(RUN[kind])["return"]
    if kind in STEPS:
        *_, given = get_args(given)
    return {*(get_args(given) or (given,))} <= _SHORT_TYPES


@pytest.mark.early
def test_every_command_is_tried() -> None:
    """A new one, too: its longest reply is to be constructed here."""
    assert {kind for kind in RUN if not _is_short(kind)} == set(CASES), "each has a function marked @case"


# Each has a limit of its own, of which a row has room for all.
SHORT_TEXTS: Final = {"generation", "close_reason", "media", "forked_from", "state", "held_by"}


@pytest.mark.early
def test_a_text_of_a_stream_makes_a_list_of_streams_longer_or_is_short() -> None:
    """A page has a thousand streams."""
    hints, numbers = get_type_hints(StreamInfo), (int, bool, int | None)
    texts: Any = {one: b"" if bytes in get_args(of) else "" for one, of in hints.items() if of not in numbers}
    info = StreamInfo(**dict.fromkeys(hints, 0) | texts)
    longer = {name for name, text in texts.items() if replace(info, **{name: type(text)(9)}).entries_bytes}
    assert texts.keys() - longer == SHORT_TEXTS, "any other one counts in StreamInfo.entries_bytes"


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_a_long_reply_is_reserved(kind: type[Command]) -> None:
    """Before it is made, all of it but what each connection has, and what follows from the request alone, for
    whose body as much is held. What is written around entries is an eighth of their text at most.
    """
    house = House()
    command = CASES[kind](house)
    reply: Any = house.run(command)
    taken = size(reply)
    bound = LIMITS.answer_bound([command])
    assert taken <= bound + bound // 8 + max(FREE_BYTES, BODY_COPIES * size(command))
    if command.has_long_reply():
        assert taken / 2 <= text_bytes(reply) <= 2 * taken, "what is held until it is written"
