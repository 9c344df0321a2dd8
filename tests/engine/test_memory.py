"""The memory limit: what is refused, what goes on, and that the estimate is near what the process takes.

Knows: every command, and figures of the process where they are given by hand.
Must never know: control groups, APIs.
"""

import asyncio
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from engine import Caps, Engine, EngineError, Memory, entries
from engine.commands import schedule_commands, types, weir_commands
from engine.commands.base import Command, MemoryNeed
from engine.commands.durable_commands import AppendBatches, AppendDurable, CreateDurable, ProducerBatch
from engine.commands.execution import check_memory
from engine.commands.registry import RUN
from engine.commands.storing import StoreRuns
from engine.commands.weir_commands import DeadLetterEntries, EnsureGroup, EnsureStream, Publish, Redrive
from engine.keyspace import Keyspace
from engine.records.snapshot import Capture
from engine.recurrence import Rule
from engine.replies import Reply
from engine.storage.memory import MemoryStorage
from tests.engine.asking import begin_read, reply_to, submit, turn_of
from tests.engine.clocks import HandClock
from tests.engine.growth import SCHEDULES, SHAPES, bodies
from tests.engine.house import House, adding, id_of

MB: Final = 1_000_000
# At names of 15 bytes, as those that are made up.
SCHEDULE_BYTES_MAX: Final = 300
OOM: Final = "OOM command not allowed when used memory > 'maxmemory'."
# What makes room, or adds nothing. A command that is new tomorrow has to be put somewhere.
GOING_ON: Final = {
    types.XDel, types.XDelEx, types.XTrim, types.XSetId, types.XCfgSet, types.XAck, types.XAckDel,
    types.XGroupSetId, types.XGroupDestroy, types.XGroupDelConsumer, types.Delete, types.FlushAll,
    types.Expire, types.Persist, types.Rename, weir_commands.ExpireStreams, weir_commands.Close,
    types.ConfigSet, weir_commands.UpdateStream, weir_commands.UpdateGroup, weir_commands.DeleteGroup,
    weir_commands.DeleteConsumer, weir_commands.Maintain, weir_commands.EndWait, weir_commands.GiveBack,
    weir_commands.Acknowledge, weir_commands.Extend, weir_commands.PutMetadata, weir_commands.Undo,
    weir_commands.EnforceRetention, weir_commands.ReleaseDeferred, schedule_commands.CancelSchedule,
    schedule_commands.PauseSchedule,
    StoreRuns,
}  # fmt: skip

READ_NEW: Final = types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)])
ADDING: Final[list[Command]] = [
    adding("s"),
    EnsureStream(stream="new"),
    types.Copy(stream="s", target="new"),
    AppendDurable(stream="s", bodies=[entries.body([("data", "1")])], kind="text/plain"),
    AppendBatches(
        stream="s",
        kind="text/plain",
        batches=[ProducerBatch("p", 0, 0)],
        counts=[1],
        bodies=[entries.body([("data", "1")])],
    ),
    CreateDurable(stream="new", media="text/plain"),
    weir_commands.AddEach(stream="s", bodies=[entries.body([("a", "1")])]),
    EnsureGroup(stream="s", group="new", start=0),
    EnsureGroup(stream="new", group="g", start=0, mkstream=True),
    types.XGroupCreate(stream="s", group="new", start=0),
    types.XGroupCreateConsumer(stream="s", group="g", consumer="new"),
    Publish(parts=[adding("s"), adding("t")]),
    DeadLetterEntries(stream="s", group="g", ids=[id_of("5-0")], reason="r"),
    Redrive(stream="s", group="g", letters="dead", ids=[id_of("5-0")]),
    schedule_commands.SetSchedule(
        stream="s", schedule=schedule_commands.NewSchedule("a", entries.body([("a", "1")]), Rule(in_ms=1))
    ),
    schedule_commands.AddScheduled(stream="s", add=adding("s")),
    schedule_commands.FireSchedule(stream="s", name="a"),
    schedule_commands.FireDueSchedules(),
]
DELIVERING: Final[list[Command]] = [
    READ_NEW,
    types.XClaim(stream="s", group="g", consumer="d", claim=types.Claim(ids=[id_of("5-0")], min_idle_ms=0)),
    types.XAutoClaim(stream="s", group="g", consumer="d", min_idle_ms=0, start=0, count=1),
    types.XNack(
        stream="s", group="g", nack=types.Nack(mode=types.NackMode.FAIL, ids=[id_of("5-1")], force=True)
    ),
]
ROOM_MAKING: Final[list[Command]] = [
    types.XRange(stream="s", start=0, end=1 << 127),
    types.XRead(streams=[("s", 0)]),
    Redrive(stream="s", group="g", letters="dead", ids=[id_of("5-0")], dry_run=True),
    types.XReadGroup(group="g", consumer="c", streams=[("s", 0)]),
    types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)], count=1, noack=True),
    EnsureStream(stream="s"),
    EnsureGroup(stream="s", group="g", start=0),
    types.XNack(stream="s", group="g", nack=types.Nack(mode=types.NackMode.FAIL, ids=[id_of("5-0")])),
    types.XAck(stream="s", group="g", ids=[id_of("5-0")]),
    types.XAckDel(stream="s", group="g", ids=[id_of("5-0")]),
    types.XDel(stream="s", ids=[id_of("5-2")]),
    types.XTrim(stream="s", trim=types.Trim(maxlen=1)),
    types.XGroupDestroy(stream="s", group="g"),
]


def limited(bytes_max: int | None) -> Memory:
    return Memory(bytes_max)


# --- what is counted --------------------------------------------------------------------------------------


def test_it_is_full_at_the_limit_and_not_one_below() -> None:
    """And deliveries end a tenth above it."""
    memory = limited(1_000)
    seen = []
    for used in (999, 1_000, 1_001, 1_099, 1_100):
        memory.streams.add(used - memory.used_bytes)
        seen.append((memory.is_full, memory.is_over))
    assert seen == [(False, False), (True, False), (True, False), (True, False), (True, True)]
    assert not limited(None).is_full


def test_what_the_process_takes_beside_the_data_counts() -> None:
    memory = limited(200 * MB)
    memory.streams.add(50 * MB)
    memory.observe(120 * MB)
    assert memory.used_bytes == 120 * MB
    memory.observe(150 * MB)
    assert memory.used_bytes == 150 * MB, "it grew by itself: buffers, say"
    memory.observe(110 * MB)
    assert memory.used_bytes == 110 * MB, "and gave that back"


def test_deleting_makes_room_though_the_process_keeps_the_memory() -> None:
    """It is reused, not taken anew: what comes next fills it, and only what is beyond counts."""
    memory = limited(200 * MB)
    memory.observe(60 * MB)
    memory.streams.add(140 * MB)
    memory.observe(200 * MB)
    assert (memory.used_bytes, memory.is_full) == (200 * MB, True)
    memory.streams.add(-100 * MB)
    memory.observe(200 * MB)
    assert (memory.used_bytes, memory.is_full) == (100 * MB, False)
    memory.streams.add(60 * MB)
    memory.observe(200 * MB)
    assert memory.used_bytes == 160 * MB
    memory.observe(205 * MB)
    assert memory.used_bytes == 165 * MB, "5 MB more, unexplained"


def test_an_estimate_that_is_too_low_is_made_up_for() -> None:
    """The process grows by 150 where 100 are known of; an estimate that is too high counts as it is."""
    memory = limited(None)
    memory.observe(60 * MB)
    memory.streams.add(100 * MB)
    memory.observe(210 * MB)
    assert memory.used_bytes == 210 * MB
    memory.streams.add(100 * MB)
    memory.observe(260 * MB)
    assert memory.used_bytes == 260 * MB, "never more than the larger of both"


def test_where_the_process_cannot_be_looked_at_the_estimate_decides() -> None:
    memory = limited(100)
    memory.streams.add(100)
    memory.observe(None)
    assert (memory.used_bytes, memory.is_full) == (100, True)


def test_it_tells_when_it_becomes_full_and_when_there_is_room() -> None:
    """Once each, at the next look at the process."""
    memory, result = limited(100), list[bool]()
    memory.on_change = result.append
    for change in (100, 0, 5, -6, 0, 1):
        memory.streams.add(change)
        memory.observe(None)
    assert result == [True, False, True]


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.early
def test_each_command_is_known_to_add_to_deliver_or_to_go_on() -> None:
    """One that changes something and needs nothing is one that makes room, or adds nothing to speak of."""
    adding_or_delivering = {type(command) for command in [*ADDING, *DELIVERING]} | {types.XIdmpRecord}
    named = {kind for kind in RUN if kind.needs is not MemoryNeed.NONE}
    assert named <= adding_or_delivering, "what needs memory has a row in ADDING or DELIVERING"
    going_on = {kind for kind in RUN if kind.changes} - adding_or_delivering
    assert going_on == GOING_ON, "what needs none has a line in GOING_ON"


@pytest.mark.parametrize("kind", [kind for kind in RUN if not kind.changes], ids=lambda kind: kind.__name__)
def test_what_only_reads_needs_no_memory(kind: type[Command]) -> None:
    assert kind.needs is MemoryNeed.NONE
    assert kind.memory_need is Command.memory_need


def house_at(part: float) -> House:
    """A stream with a group that has read half of it, whose estimated bytes are `part` of the limit."""
    house = House()
    house.run(adding("s", "5-0", "5-1", "5-2", "5-3"))
    house.run(EnsureGroup(stream="s", group="g", start=0, policy={"dead_letter_stream": "t"}))
    house.run(types.XReadGroup(group="g", consumer="c", count=1, streams=[("s", types.Cursor.NEW)]))
    used = house.keyspace.memory.used_bytes
    memory = Memory(math.ceil(used / part))
    memory.streams, memory.shared = house.keyspace.memory.streams, house.keyspace.memory.shared
    house.keyspace.memory = memory
    return house


def refused(keyspace: Keyspace, command: Command) -> bool:
    """Whether it is refused for want of memory, in a transaction with a read."""
    try:
        check_memory(keyspace, [types.XRange(stream="s", start=0, end=0), command])
    except EngineError as refusal:
        return (refusal.code, refusal.redis) == ("memory_full", OOM)
    return False


def name(command: Command) -> str:
    return type(command).__name__


@pytest.mark.parametrize("command", ADDING, ids=name)
def test_what_adds_is_refused_at_the_limit(command: Command) -> None:
    assert [refused(house_at(part).keyspace, command) for part in (0.99, 1.0, 1.1)] == [False, True, True]


@pytest.mark.parametrize("command", DELIVERING, ids=name)
def test_what_delivers_is_refused_a_tenth_above(command: Command) -> None:
    """Workers go on taking, for what they finish makes room."""
    assert [refused(house_at(part).keyspace, command) for part in (1.0, 1.09, 1.11)] == [False, False, True]


@pytest.mark.parametrize("command", ROOM_MAKING, ids=name)
def test_what_reads_and_what_makes_room_goes_on(command: Command) -> None:
    house = house_at(1.5)
    assert not refused(house.keyspace, command)
    house.run(command)
    house.check()


def test_nothing_becomes_a_dead_letter_where_there_is_no_memory_for_it() -> None:
    """What was delivered too often stays pending, and becomes a dead letter once there is room."""
    house = house_at(1.5)
    bytes_max = house.keyspace.memory.bytes_max
    policy = {"max_deliveries": 1, "ack_timeout_ms": 10}
    house.run(weir_commands.UpdateGroup(stream="s", group="g", policy=policy))
    house.pass_ms(10)
    house.keep_house()
    assert house.keyspace.find("t") is None
    assert len(house.key("s").groups["g"].pending) == 1
    memory = Memory()
    memory.streams, memory.shared = house.keyspace.memory.streams, house.keyspace.memory.shared
    assert bytes_max
    house.keyspace.memory = memory
    house.call("XCLAIM", "s", "g", "c", "0", "5-0")
    assert house.live("t")


async def outcomes(engine: Engine, command: Command) -> list[object]:
    """What the command is answered by each way into the engine that takes it."""
    loop = asyncio.get_running_loop()
    found: list[object] = []

    async def given(run: Callable[[Callable[[Any], None]], object]) -> None:
        answered = loop.create_future()
        run(answered.set_result)
        found.extend(await answered)

    for work in (
        reply_to(engine, command),
        turn_of(engine, [types.XRange(stream="s", start=0, end=0), command]),
    ):
        try:
            reply: Reply | list[Reply | EngineError] = await work
        except EngineError as refusal:
            found.append(refusal)
        else:
            found.append(reply)
    await given(lambda done: submit(engine, [command], done))
    if isinstance(command, types.XReadGroup):
        await given(lambda done: begin_read(engine, command, done))
    return found


async def test_a_start_with_more_than_the_limit_starts_and_refuses_by_every_way_in() -> None:
    """Nothing is changed by what is refused; reads, acks, trims and deletes go on."""
    storage = MemoryStorage()
    for bytes_max in (None, 1):
        async with Engine.open(
            storage, clock=HandClock(1_000), fsync="always", caps=Caps(memory_bytes_max=bytes_max)
        ) as engine:
            if bytes_max is None:
                await reply_to(engine, adding("s", "5-0", "5-1", "5-2", "5-3"))
                await reply_to(engine, types.XGroupCreate(stream="s", group="g", start=0))
                await reply_to(
                    engine,
                    types.XReadGroup(group="g", consumer="c", count=1, streams=[("s", types.Cursor.NEW)]),
                )
            else:
                assert engine.memory.is_full
                for command in (*ADDING, *DELIVERING):
                    found = await outcomes(engine, command)
                    assert {getattr(one, "code", one) for one in found} == {"memory_full"}, command
                for command in ROOM_MAKING:
                    assert not isinstance(await reply_to(engine, command), EngineError)
                assert engine.figures().waiting == 0
                engine.check()


# --- that it is near what the process takes -----------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_estimate_is_within_a_fifth_of_what_the_process_grows_by(shape: str, tmp_path: Path) -> None:
    estimated, resident = grown(shape, tmp_path)
    assert resident > 15 * MB, "large beside what the interpreter itself needs"
    assert 0.8 * resident <= estimated <= 1.2 * resident, (estimated, resident)


def grown(shape: str, directory: Path) -> tuple[int, int]:
    """By how many bytes a process grows with data of that shape: as estimated, and as it does."""
    command = [sys.executable, "-m", "tests.engine.growth", shape, str(directory)]
    # Coverage would make it three times as long, and takes memory of its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    estimated, resident = map(int, ended.stdout.split())
    return estimated, resident


def test_a_schedule_takes_at_most_300_bytes_beside_its_entry(tmp_path: Path) -> None:
    _, resident = grown("schedules", tmp_path)
    (body,) = bodies(1)
    assert resident / SCHEDULES - sys.getsizeof(body) <= SCHEDULE_BYTES_MAX


def test_what_is_taken_away_is_counted_no_more() -> None:
    """To the last byte, for each kind."""
    house = House()
    empty = house.keyspace.memory.used_bytes
    house.run(
        types.XAdd(stream="s", bodies=[b'"a":"1"'] * 1_000, idempotency=types.IdempotencyKey("k", b"d"))
    )
    house.run(types.XAdd(stream="s", bodies=[b'"a":"1"'], producer_key=types.ProducerKey(b"p", b"k")))
    house.run(Publish(parts=[adding("t")], idempotency=types.IdempotencyKey("k", b"d")))
    house.run(Publish(parts=[adding("t")], chunk=weir_commands.Chunk("p", 1, 1)))
    house.run(EnsureGroup(stream="s", group="g", start=0))
    house.run(READ_NEW)
    house.check()
    house.call("DEL", "s")
    house.check()
    house.run(types.FlushAll())
    while house.keyspace.free_some():
        pass
    assert house.keyspace.memory.used_bytes == empty
    house.check()


@pytest.mark.parametrize(
    "command",
    [types.Delete(streams=["s"]), types.FlushAll(), types.XGroupDestroy(stream="s", group="g")],
    ids=["DEL", "FLUSHALL", "DESTROY"],
)
def test_what_was_removed_counts_until_it_is_freed(command: Command) -> None:
    """A rewrite has still to read it: what is added meanwhile takes other memory."""
    house = House()
    house.run(EnsureStream(stream="t"))
    house.fill("s", 1_000)
    house.run(EnsureGroup(stream="s", group="g", start=0))
    house.run(READ_NEW)
    memory = house.keyspace.memory
    used = memory.used_bytes
    capture = Capture(house.keyspace)
    house.run(command)
    assert not house.keyspace.free_some()
    assert memory.used_bytes == used
    capture.close()
    while house.keyspace.free_some():
        pass
    assert memory.garbage.bytes == 0
    assert memory.used_bytes < used
    house.check()
