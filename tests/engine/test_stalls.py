"""No turn holds the loop for more than 20 ms, for any command within the limits.

Knows: each command at its maximum, in a stream of which all is cold and pending.
Must never know: how the engine does it.

What counts is the processor time of the turn, with the encoding of its frame, on a machine that is compared
with the one on which the limits were set: a turn may take as often as long as a plain loop does there.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pytest

from engine import entries
from engine.commands import types, weir_commands
from engine.commands.base import Command
from engine.commands.execution import Unfinished, execute_all
from engine.commands.grouping import DROPPED_MAX
from engine.commands.managing import TRANSFERRED_MAX
from engine.commands.turn import TURN_COMMANDS_MAX, TURN_LOOKUPS_MAX, TURN_SCANNED_MAX, TURN_WORK_US_MAX
from engine.parts.idempotence import idempotence_of
from engine.records.payload import encode
from engine.records.snapshot import Capture
from tests.engine.house import House
from tests.turns import TURN_S_MAX, assert_within

pytestmark = pytest.mark.paired

ENTRIES: Final = 100_000
READ_MAX: Final = 10_000
# All IDs: of the entries of one node each, of entries side by side.
SPREAD: Final = [number << 64 for number in range(1, ENTRIES, ENTRIES // TURN_LOOKUPS_MAX)]
DENSE: Final = [number << 64 for number in range(1, TURN_LOOKUPS_MAX + 1)]
# Several entries of each group of neighbours: 8, 16 and 51 of 512.
STRIDES: Final = (64, 32, 10)
NEW: Final = [("s", types.Cursor.NEW)]


def filled(entry_count: int = ENTRIES, consumers: int = 1) -> House:
    """A stream whose entries are cold, and pending in a group."""
    house = House()
    body = entries.body([("sensor", "1234"), ("temperature", "19.8")])
    for first in range(1, entry_count + 1, READ_MAX):
        new_ids = [number << 64 for number in range(first, first + READ_MAX)]
        house.run(types.XAdd(stream="s", bodies=[body] * READ_MAX, ids=new_ids))
    for text in house.keyspace.cold:
        text.keep_packed(text.compress())
    house.keyspace.cold.clear()
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    for number in range(consumers):
        left = entry_count // consumers
        while left:
            count = min(left, READ_MAX)
            house.run(types.XReadGroup(group="g", consumer=f"c{number}", count=count, streams=NEW))
            left -= count
    house.pass_ms(1_000)
    return house


@contextmanager
def without_collector() -> Iterator[None]:
    """The collector does not run until the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def worked_s(turn: Callable[[], object]) -> float:
    """Processor time of one turn, with the freeing of what it leaves."""
    began = time.thread_time()
    reply = turn()
    del reply
    return time.thread_time() - began


def held_s(turn: Callable[[], object]) -> float:
    """The same, while the collector does not run."""
    with without_collector():
        return worked_s(turn)


def turns_s(turns: Iterator[object]) -> Iterator[float]:
    """The same of each turn of a command."""
    going_on = True

    def turn() -> None:
        nonlocal going_on
        going_on = isinstance(next(turns), Unfinished)

    with without_collector():
        while going_on:
            yield worked_s(turn)


def longest_s(house: House, *commands: Command) -> float:
    """The longest turn of these, and of freeing what they leave."""
    longest = max(held_s(lambda command=command: house.run(command)) for command in commands)  # type: ignore[misc]
    with without_collector():
        while house.keyspace.garbage:
            longest = max(longest, worked_s(house.keyspace.free_some))
    return longest


def nack(ids: Sequence[int]) -> Command:
    return types.XNack(stream="s", group="g", nack=types.Nack(ids=ids, mode=types.NackMode.FAIL))


def claim(ids: Sequence[int], *, just_ids: bool = False) -> Command:
    return types.XClaim(
        stream="s", group="g", consumer="d", claim=types.Claim(ids=ids, min_idle_ms=0, just_ids=just_ids)
    )


def give_back(ids: Sequence[int]) -> Command:
    return weir_commands.GiveBack(stream="s", group="g", consumer="c0", ids=ids)


def every(stride: int) -> list[int]:
    """As many IDs as one turn looks up, one of `stride` entries each."""
    return [number << 64 for number in range(1, TURN_LOOKUPS_MAX * stride, stride)]


def idle(consumer: str | None = None) -> Command:
    """A look for entries that are idle for longer than any is."""
    return types.XPendingRange(
        stream="s", group="g", start=0, end=1 << 127, count=READ_MAX, consumer=consumer, min_idle_ms=1 << 40
    )


AT_MOST: Final[dict[str, Command]] = {
    "XRANGE": types.XRange(stream="s", start=0, end=1 << 127, count=READ_MAX),
    "XREVRANGE": types.XRange(stream="s", start=0, end=1 << 127, count=READ_MAX, reverse=True),
    "XREVRANGE at most": types.XRange(stream="s", start=0, end=1 << 127, count=4 * READ_MAX, reverse=True),
    "XREADGROUP history": types.XReadGroup(group="g", consumer="c0", count=READ_MAX, streams=[("s", 0)]),
    "XREADGROUP claim": types.XReadGroup(
        group="g", consumer="d", count=READ_MAX, streams=NEW, claim_min_idle_ms=0, claims_own=True
    ),
    "XACK dense": types.XAck(stream="s", group="g", ids=[number << 64 for number in range(1, READ_MAX + 1)]),
    "XDEL dense": types.XDel(stream="s", ids=DENSE),
    "XDEL spread": types.XDel(stream="s", ids=SPREAD),
    "XDELEX spread": types.XDelEx(stream="s", ids=SPREAD, refs=types.Refs.DELETE),
    "XACKDEL spread": types.XAckDel(stream="s", group="g", ids=SPREAD),
    "XNACK spread": nack(SPREAD),
    "XCLAIM spread": claim(SPREAD),
    "XCLAIM backwards": claim(DENSE[::-1]),
    "XCLAIM JUSTID": claim(SPREAD, just_ids=True),
    "GIVE BACK": give_back(SPREAD),
    **{f"XNACK every {stride}": nack(every(stride)) for stride in STRIDES},
    **{f"XCLAIM JUSTID every {stride}": claim(every(stride), just_ids=True) for stride in STRIDES},
    **{f"GIVE BACK every {stride}": give_back(every(stride)) for stride in STRIDES},
    "XAUTOCLAIM": types.XAutoClaim(
        stream="s", group="g", consumer="d", min_idle_ms=0, start=0, count=READ_MAX
    ),
    "XPENDING": types.XPendingRange(stream="s", group="g", start=0, end=1 << 127, count=READ_MAX),
    "XTRIM": types.XTrim(stream="s", trim=types.Trim(maxlen=0)),
    "XTRIM DELREF": types.XTrim(stream="s", trim=types.Trim(maxlen=0, refs=types.Refs.DELETE)),
    "XGROUP DESTROY": types.XGroupDestroy(stream="s", group="g"),
    "DEL": types.Delete(streams=["s"]),
    "FLUSHALL": types.FlushAll(),
    "XGROUP DELCONSUMER": types.XGroupDelConsumer(stream="s", group="g", consumer="c0"),
    "transfer": weir_commands.DeleteConsumer(stream="s", group="g", consumer="c0", transfer_to="d"),
    "GIVE BACK dense": give_back([number << 64 for number in range(1, READ_MAX)]),
    "XPENDING IDLE": idle(),
    "XPENDING IDLE of one": idle("c0"),
    "XTRIM ACKED": types.XTrim(stream="s", trim=types.Trim(maxlen=0, refs=types.Refs.ACKED)),
}


@pytest.mark.parametrize("command", AT_MOST)
def test_a_command_at_its_limit_holds_the_loop_for_no_more_than_a_turn(command: str) -> None:
    assert_within(TURN_S_MAX, lambda: max(turns_s(filled().turns(AT_MOST[command]))))


def test_new_entries_and_lists_at_their_limits() -> None:
    body = entries.body([("a", "1")])
    commands = (
        types.XInfoConsumers(stream="s", group="g"),
        types.XInfoGroups(stream="s"),
        types.XAdd(stream="s", bodies=[body] * READ_MAX),
        types.XReadGroup(group="g", consumer="c0", count=READ_MAX, streams=NEW),
    )
    assert_within(TURN_S_MAX, lambda: longest_s(filled(consumers=10_000), *commands))


def test_many_streams_at_their_limits() -> None:
    """Listed, read by a group, held for a rewrite, deleted one and all; freed a part at a time."""
    names = [f"s{number}" for number in range(10_000)]

    def measured() -> float:
        house = House()
        for name in names:
            house.run(weir_commands.EnsureStream(stream=name))
        for name in names[:1_000]:
            house.run(types.XGroupCreate(stream=name, group="g", start=0))
            house.run(types.XAdd(stream=name, bodies=[entries.body([("a", "1")])]))
        return longest_s(
            house,
            weir_commands.StreamInfos(prefix="", after=None, limit=READ_MAX),
            types.XReadGroup(
                group="g", consumer="c", streams=[(name, types.Cursor.NEW) for name in names[:1_000]]
            ),
            types.Delete(streams=names[:1_000]),
            types.FlushAll(),
        )

    assert_within(TURN_S_MAX, measured)


def test_what_is_overdue_is_given_back_in_turns_while_a_rewrite_holds_each_stream() -> None:
    """200 streams with 1,000 remembered answers each, all of whose entries are due at once."""
    body = entries.body([("a", "1")])
    policy = {"ack_timeout_ms": 10, "dead_letter_stream": "letters", "max_deliveries": 1}

    def measured() -> float:
        house = House()
        for number in range(200):
            name = f"s{number}"
            house.run(types.XAdd(stream=name, bodies=[body] * 100))
            house.run(weir_commands.EnsureGroup(stream=name, group="g", start=0, policy=policy))
            house.run(types.XReadGroup(group="g", consumer="c", streams=[(name, types.Cursor.NEW)]))
            for answer in range(1_000):
                given = types.IdempotencyKey(f"k{answer}", b"d")
                house.run(types.XAdd(stream=name, bodies=[body], idempotency=given))
            assert len(idempotence_of(house.key(name)).answers) == 1_000
        house.pass_ms(100)
        capture = Capture(house.keyspace)
        longest = 0.0
        outcome: list[object] = [True]
        with without_collector():
            while outcome.pop() is True:
                longest = max(longest, worked_s(lambda: outcome.append(house.run(weir_commands.Maintain()))))
        capture.close()
        assert len(house.live("letters")) == 200 * 100
        return longest

    assert_within(TURN_S_MAX, measured)


@pytest.mark.parametrize("refs", types.Refs)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_trim_that_counts_pending_entries_below_a_deleted_one(refs: types.Refs, *, dry_run: bool) -> None:
    trim = types.XTrim(stream="s", trim=types.Trim(maxlen=0, count_pending=True, refs=refs), dry_run=dry_run)

    def measured() -> float:
        house = filled()
        house.run(types.XDel(stream="s", ids=[(ENTRIES - 1) << 64]))
        return max(turns_s(house.turns(trim)))

    assert_within(TURN_S_MAX, measured)


def test_a_million_entries_are_trimmed_in_one_turn() -> None:
    def measured() -> float:
        house = filled(10 * ENTRIES, consumers=0)
        longest = held_s(lambda: house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=0))))
        assert house.key("s").stream.length == 0
        return longest

    assert_within(TURN_S_MAX, measured)


TOGETHER: Final[dict[str, Callable[[int], Command]]] = {
    "XADD": lambda number: types.XAdd(stream=f"new{number}", bodies=[b',"fields":{"a":"1"}}']),
    "XACK": lambda number: types.XAck(stream="s", group="g", ids=[number << 64]),
    "XTRIM": lambda number: types.XTrim(stream=f"t{number}", trim=types.Trim(maxlen=90)),
    "XTRIM ACKED": lambda _: types.XTrim(stream="s", trim=types.Trim(maxlen=0, refs=types.Refs.ACKED)),
    "XPENDING": lambda _: types.XPendingRange(
        stream="s", group="g", start=0, end=TURN_SCANNED_MAX << 64, count=1, min_idle_ms=1 << 40
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_a_transaction_of_as_many_commands_as_one_turn_takes(name: str) -> None:
    commands = [TOGETHER[name](number) for number in range(TURN_COMMANDS_MAX)]

    def prepare() -> Callable[[], object]:
        house = filled()
        for number in range(TURN_COMMANDS_MAX):
            house.run(types.XAdd(stream=f"t{number}", bodies=[b',"fields":{"a":"1"}}'] * 101))
        for text in house.keyspace.cold:
            text.keep_packed(text.compress())
        return lambda: encode(execute_all(house.keyspace, commands, house.now_ms)[1].records)

    assert_within(TURN_S_MAX, lambda: held_s(prepare()))


@pytest.mark.parametrize(
    "command",
    [
        types.XInfoGroups(stream="s"),
        types.XInfoConsumers(stream="s", group="g"),
        types.XAutoClaim(stream="s", group="g", consumer="d", min_idle_ms=1 << 40, start=0, just_ids=True),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_transaction_takes_no_longer_than_is_estimated(command: Command) -> None:
    """As many as may run together."""
    house = filled(consumers=1_000)
    for number in range(500):
        house.run(types.XGroupCreate(stream="s", group=f"g{number}", start=0))
    commands = [command] * (TURN_WORK_US_MAX // command.work_us(house.keyspace))
    assert len(commands) > 1
    assert_within(TURN_S_MAX, lambda: held_s(lambda: execute_all(house.keyspace, commands, house.now_ms)))


@pytest.mark.parametrize("again", [False, True])
def test_publishing_into_as_many_streams_as_a_request_names(*, again: bool) -> None:
    """10 000 entries, into new streams or into existing ones."""
    bodies = [entries.body([("a", "1" * 100)])] * 10
    publish = weir_commands.Publish(
        parts=[types.XAdd(stream=f"s{number}", bodies=bodies) for number in range(1_000)]
    )

    def prepare() -> Callable[[], object]:
        house = House()
        if again:
            house.run(publish)
        return lambda: house.run(publish)

    assert_within(TURN_S_MAX, lambda: held_s(prepare()))


def test_an_entry_of_eight_megabytes() -> None:
    command = types.XAdd(stream="s", bodies=[entries.body([("a", "1" * (8 << 20))])])

    def prepare() -> Callable[[], object]:
        house = House()
        return lambda: house.run(command)

    assert_within(TURN_S_MAX, lambda: held_s(prepare()))


def test_letters_by_hand_are_made_in_one_turn() -> None:
    def measured() -> float:
        house = filled()
        house.run(weir_commands.UpdateGroup(stream="s", group="g", policy={"dead_letter_stream": "letters"}))
        return held_s(
            lambda: house.run(weir_commands.DeadLetterEntries(stream="s", group="g", ids=DENSE, reason="r"))
        )

    assert_within(TURN_S_MAX, measured)


def test_a_removed_group_with_a_million_pending_entries_is_freed_in_turns() -> None:
    """Ten groups of a hundred thousand, removed with their stream."""

    def measured() -> float:
        house = filled()
        for number in range(9):
            house.run(types.XGroupCreate(stream="s", group=f"g{number}", start=0))
            for _ in range(ENTRIES // READ_MAX):
                house.run(types.XReadGroup(group=f"g{number}", consumer="c", count=READ_MAX, streams=NEW))
        times = [held_s(lambda: house.run(types.Delete(streams=["s"])))]
        with without_collector():
            while house.keyspace.garbage:
                times.append(worked_s(house.keyspace.free_some))
        assert len(times) > 11, "not all in one"
        return max(times)

    assert_within(TURN_S_MAX, measured)


def test_a_large_consumer_is_removed_in_several_turns() -> None:
    """One at the limit goes at once; one above it is emptied first."""
    house = filled(READ_MAX)
    assert len(house.key("s").groups["g"].pending) == DROPPED_MAX
    remove = types.XGroupDelConsumer(stream="s", group="g", consumer="c0")
    transfer = house.turns(
        weir_commands.DeleteConsumer(stream="s", group="g", consumer="c0", transfer_to="d")
    )
    assert next(transfer) == Unfinished(TRANSFERRED_MAX)
    assert len(house.key("s").groups["g"].consumers["d"].pending) == TRANSFERRED_MAX
    house.check()
    house.run(types.XAdd(stream="s", bodies=[entries.body([("a", "1")])] * (TRANSFERRED_MAX + 1)))
    house.run(types.XReadGroup(group="g", consumer="c0", streams=NEW))
    assert list(house.turns(remove)) == [Unfinished(DROPPED_MAX), DROPPED_MAX + 1], "one above"
    house.check()
    house.run(types.XAdd(stream="s", bodies=[entries.body([("a", "1")])] * DROPPED_MAX))
    house.run(types.XReadGroup(group="g", consumer="c0", streams=NEW))
    assert list(house.turns(remove)) == [DROPPED_MAX]
    house.check()
