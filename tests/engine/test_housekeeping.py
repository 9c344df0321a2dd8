"""What time brings: overdue entries are given back, silent consumers go, and nothing is looked at in vain.

Knows: the timeouts of a group's policy, whom they concern, which streams are maintained.
Must never know: APIs.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Engine, ids
from engine.commands import types, weir_commands
from engine.commands.base import Command
from engine.commands.housekeeping import TURN_KEYS_MAX, TURN_LOOKS_MAX, TURN_RELEASES_MAX
from engine.dedup import ANSWER_AGE_MS_MAX
from engine.parts.idempotence import Idempotence, idempotence_of
from engine.parts.keeping import Retention
from engine.records.changes import Cut, Release, SeeConsumer
from engine.replies import ConsumerInfo, GroupRead, PendingList
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.house import House, adding, id_of
from tests.engine.test_costs import BODY, cost

# For a thread that syncs: two seconds at least.
_LOOKS_MAX = 10_000


def grouped(house: House, stream: str = "s", **policy: Any) -> None:
    house.run(weir_commands.EnsureGroup(stream=stream, group="g", start=0, mkstream=True, policy=policy))


def reading(consumer: str = "c", **more: Any) -> types.XReadGroup:
    return types.XReadGroup(group="g", consumer=consumer, streams=[("s", types.Cursor.NEW)], **more)


def rows(house: House) -> list[tuple[str, str | None, int]]:
    """Pending entries in order of delivery: ID, owner, count."""
    return [
        (ids.format(entry_id), one.consumer.name if one.consumer else None, one.delivery_count)
        for entry_id, one in house.key("s").groups["g"].in_order_of_delivery()
    ]


# --- overdue entries ------------------------------------------------------------------------------------


def test_overdue_entries_are_released_in_order_with_their_counts(house: House) -> None:
    """Those idle longest first, to the millisecond; the others stay with whom they are."""
    grouped(house, ack_timeout_ms=1_000)
    house.fill("s", 4)
    house.run(reading(count=3))
    house.pass_ms(10)
    house.call("XCLAIM", "s", "g", "d", 0, "1-0")
    house.pass_ms(989)
    house.keep_house()
    assert not house.turn.records
    house.pass_ms(1)
    house.keep_house()
    assert rows(house) == [("2-0", None, 1), ("3-0", None, 1), ("1-0", "d", 2)]
    assert list(house.turn.signalled) == ["s"]
    house.pass_ms(10)
    house.keep_house()
    assert rows(house) == [("2-0", None, 1), ("3-0", None, 1), ("1-0", None, 2)]
    house.keep_house()
    assert not house.turn.records, "once"


def test_a_released_entry_counts_on(house: House) -> None:
    """The next reader that claims gets it at once, as delivery number two."""
    grouped(house, ack_timeout_ms=1_000)
    house.fill("s", 1)
    house.run(reading())
    house.pass_ms(1_000)
    house.keep_house()
    found = house.of(GroupRead, reading("d", claim_min_idle_ms=100_000)).streams[0].entries
    assert [(one.id, one.delivery_count) for one in found] == [(id_of("1-0"), 2)]


def test_what_was_delivered_often_enough_becomes_a_dead_letter_and_the_rest_released(house: House) -> None:
    grouped(house, ack_timeout_ms=1_000, dead_letter_stream="dead", max_deliveries=2)
    house.fill("s", 2)
    house.run(reading())
    house.call("XCLAIM", "s", "g", "d", 0, "2-0")
    house.pass_ms(1_000)
    house.keep_house()
    assert rows(house) == [("1-0", None, 1)]
    assert dict(house.pairs("dead")[0])["weir-id"] == b"2-0"
    assert dict(house.pairs("dead")[0])["weir-consumer"] == b"d"


@pytest.mark.parametrize(
    "removing",
    [types.XDel(stream="s", ids=[id_of("1-0")])]
    + [types.XTrim(stream="s", trim=types.Trim(maxlen=kept)) for kept in (1, 0)],
)
def test_overdue_entries_that_are_gone_are_forgotten(house: House, removing: Command) -> None:
    """They would never be read, and would block retention for good."""
    grouped(house, ack_timeout_ms=1_000)
    house.fill("s", 2)
    house.run(reading())
    house.run(removing)
    house.pass_ms(1_000)
    house.keep_house()
    assert rows(house) == [(entry_id, None, 1) for entry_id in house.live("s")]


def test_many_overdue_entries_go_in_turns(house: House) -> None:
    """A turn releases 1 000, over all groups together; True while there is more."""
    for stream in ("s", "t"):
        grouped(house, stream, ack_timeout_ms=1_000)
        house.fill(stream, 1_200)
        house.run(types.XReadGroup(group="g", consumer="c", streams=[(stream, types.Cursor.NEW)]))
    house.pass_ms(1_000)
    released: list[int] = []
    more: object = True
    while more is True:
        more = house.run(weir_commands.Maintain())
        released.append(sum(len(one.ids) for one in house.turn.records if isinstance(one, Release)))
    assert sum(released) == 2_400
    assert max(released) == TURN_RELEASES_MAX
    assert house.key("t").groups["g"].released_count() == 1_200


# --- silent consumers -----------------------------------------------------------------------------------


def test_silent_consumers_are_removed_and_what_they_held_released(house: House) -> None:
    """Not seen for the timeout, to the millisecond; reading is being seen, also when nothing is found."""
    grouped(house, consumer_timeout_ms=1_000)
    house.fill("s", 3)
    house.run(reading("a", count=2))
    house.run(reading("b", count=1))
    house.pass_ms(999)
    house.run(reading("b"))
    house.keep_house()
    assert house.consumers("s", "g") == ["a", "b"]
    house.pass_ms(1)
    house.keep_house()
    assert "s" in house.turn.signalled
    assert house.consumers("s", "g") == ["b"]
    assert rows(house) == [("1-0", None, 1), ("2-0", None, 1), ("3-0", "b", 1)]


def test_a_silent_consumer_with_much_in_hand_goes_in_turns(house: House) -> None:
    grouped(house, consumer_timeout_ms=1_000)
    house.fill("s", 2_500)
    house.run(reading())
    house.pass_ms(1_000)
    assert house.keep_house() == -(-2_500 // TURN_RELEASES_MAX)
    assert house.consumers("s", "g") == []
    assert house.key("s").groups["g"].released_count() == 2_500


def test_who_waits_is_not_silent(house: House) -> None:
    """However long; only for the stream and group where it waits."""
    for stream in ("s", "t"):
        grouped(house, stream, consumer_timeout_ms=1_000)
    for command in (reading("a"), reading("b")):
        house.run(command)
    house.call("XGROUP", "CREATECONSUMER", "t", "g", "a")
    house.pass_ms(100_000)
    waiting = {"s": {("g", "a"), ("h", "b")}, "t": {("g", "b")}}
    house.run(weir_commands.Maintain(waiting=lambda stream: waiting[stream]))
    assert house.consumers("s", "g") == ["a"]
    assert house.consumers("t", "g") == []


def test_silence_counts_from_the_end_of_a_wait(house: House) -> None:
    """Nothing is written where silence is not counted, or without consumers."""
    grouped(house, consumer_timeout_ms=1_000)
    house.run(reading("a"))
    house.pass_ms(5_000)
    house.run(weir_commands.EndWait(streams=["s", "none"], group="g", consumer="a"))
    house.keep_house()
    house.pass_ms(999)
    house.keep_house()
    assert house.consumers("s", "g") == ["a"]
    house.pass_ms(1)
    house.keep_house()
    assert house.consumers("s", "g") == []
    for ending in (("g", "a"), ("none", "a")):
        house.run(weir_commands.EndWait(streams=["s"], group=ending[0], consumer=ending[1]))
        assert not house.turn.records
    house.run(weir_commands.UpdateGroup(stream="s", group="g", policy={"consumer_timeout_ms": None}))
    house.run(reading("a"))
    house.pass_ms(1)
    house.run(weir_commands.EndWait(streams=["s"], group="g", consumer="a"))
    assert not house.turn.records


def test_nobody_is_silent_while_nobody_listens(house: House) -> None:
    """A gateway that was down for an hour gives everybody the whole timeout to come back."""
    grouped(house, consumer_timeout_ms=1_000)
    house.run(reading("a"))
    house.pass_ms(3_600_000)
    started = house.now_ms
    house.run(weir_commands.Maintain(since_ms=started))
    house.pass_ms(999)
    house.run(weir_commands.Maintain(since_ms=started))
    assert house.consumers("s", "g") == ["a"]
    house.pass_ms(1)
    house.run(weir_commands.Maintain(since_ms=started))
    assert house.consumers("s", "g") == []


# --- what is maintained -------------------------------------------------------------------------------------


def test_streams_that_time_does_not_change_cost_nothing(house: House) -> None:
    """Entries, groups, consumers, pending entries: none of them is a reason to look; nor what was, once."""
    for number in range(300):
        house.fill(f"s{number}", 2)
        house.run(types.XGroupCreate(stream=f"s{number}", group="g", start=0))
        house.run(types.XReadGroup(group="g", consumer="c", streams=[(f"s{number}", types.Cursor.NEW)]))
    house.run(weir_commands.EnsureStream(stream="s0"))
    house.run(weir_commands.EnsureGroup(stream="s1", group="h", start=0))
    assert not house.keyspace.maintained
    house.run(weir_commands.UpdateStream(stream="s2", archived_up_to=5))
    grouped(house, "s3", dead_letter_stream="dead", max_deliveries=1)
    house.run(weir_commands.UpdateStream(stream="s4", retention={"max_len": 1}))
    house.run(weir_commands.UpdateStream(stream="s4", retention={"max_len": None}))
    house.keep_house()
    assert not house.keyspace.maintained


@pytest.mark.parametrize("again", [House.restart, House.rewrite])
def test_a_restart_tends_what_needs_it(house: House, again: Any) -> None:
    """Retention, timeouts and idempotency keys; nothing else, after the first round."""
    house.run(weir_commands.EnsureStream(stream="kept", retention=Retention(max_age_ms=5)))
    grouped(house, "acked", ack_timeout_ms=5)
    grouped(house, "seen", consumer_timeout_ms=5)
    house.call("XADD", "produced", "IDMP", "p", "i", "*", "a", "1")
    house.fill("plain", 1)
    house.run(weir_commands.EnsureStream(stream="gone", retention=Retention(max_age_ms=5)))
    house.call("DEL", "gone")
    again(house)
    house.keep_house()
    assert set(house.keyspace.maintained) == {"kept", "acked", "seen", "produced"}
    house.pass_ms(100_000)
    house.keep_house()
    assert set(house.keyspace.maintained) == {"kept", "acked", "seen"}
    assert house.info("produced", "iids-tracked") == 0


def test_many_tended_streams_take_turns(house: House) -> None:
    """A turn looks at 500 of them; the others are the next one's."""
    for number in range(TURN_LOOKS_MAX + 500):
        house.run(weir_commands.EnsureStream(stream=f"s{number}", retention=Retention(max_len=1)))
    for number in range(TURN_LOOKS_MAX + 500):
        house.run(weir_commands.UpdateStream(stream=f"s{number}", retention={"max_len": 2}))
        house.fill(f"s{number}", 3)
    cut: list[int] = []
    for _ in range(3):
        house.run(weir_commands.Maintain())
        cut.append(sum(isinstance(record, Cut) for record in house.turn.records))
    assert cut == [TURN_LOOKS_MAX, 500, 0]


@pytest.mark.no_cover
def test_a_round_looks_at_every_tended_stream_before_it_rests(house: House) -> None:
    """1 000 streams with overdue entries: none waits for another second, and none is looked at twice."""
    for number in range(1_000):
        house.run(adding(f"s{number}", "1-0"))
        house.run(
            weir_commands.EnsureGroup(stream=f"s{number}", group="g", start=0, policy={"ack_timeout_ms": 10})
        )
        house.run(types.XReadGroup(group="g", consumer="c", streams=[(f"s{number}", types.Cursor.NEW)]))
    house.pass_ms(10)
    turns, released = 0, 0
    while True:
        more = house.run(weir_commands.Maintain())
        turns += 1
        released += sum(isinstance(record, Release) for record in house.turn.records)
        assert len(house.turn.records) <= TURN_LOOKS_MAX
        if more is not True:
            break
    assert released == 1_000
    # A look at a stream, one at its group, and four for what is given back.
    assert turns == 6 * 1_000 / TURN_LOOKS_MAX


def test_what_comes_and_goes_during_a_round_is_no_matter_to_it(house: House) -> None:
    """Streams deleted are passed over; new ones have their look in the next round at the latest."""
    for number in range(TURN_LOOKS_MAX * 2):
        house.run(weir_commands.EnsureStream(stream=f"s{number}", retention=Retention(max_age_ms=1)))
    assert house.run(weir_commands.Maintain()) is True
    for number in range(TURN_LOOKS_MAX * 2):
        house.call("DEL", f"s{number}")
    house.run(weir_commands.EnsureStream(stream="new", retention=Retention(max_age_ms=1)))
    house.fill("new", 1)
    house.keep_house()
    house.keep_house()
    assert house.live("new") == []
    assert house.run(weir_commands.Maintain()) is False


def test_a_stream_with_more_than_a_turn_of_work_lets_the_others_have_theirs(house: House) -> None:
    """It stands last in the round, and its round is over only when nothing is left."""
    house.run(weir_commands.EnsureStream(stream="a"))
    house.fill("a", 25_000)
    house.run(weir_commands.UpdateStream(stream="a", retention={"max_len": 1}))
    house.run(weir_commands.EnsureStream(stream="b"))
    house.fill("b", 3)
    house.run(weir_commands.UpdateStream(stream="b", retention={"max_len": 1}))
    lengths = []
    while True:
        more = house.run(weir_commands.Maintain())
        lengths.append((house.key("a").stream.length, house.key("b").stream.length))
        if more is not True:
            break
    assert lengths == [(15_000, 3), (5_002, 1), (1, 1)]


def test_a_second_costs_what_has_expired_and_not_what_producers_there_are(house: House) -> None:
    """Counted in calls, with 10 producers and with 2 000."""
    costs = []
    for count in (10, 2_000):
        for number in range(count):
            house.call("XADD", f"s{count}", "IDMP", f"p{number}", "i", "*", "a", "1")
        house.keep_house()
        costs.append(cost(house, weir_commands.Maintain()))
        house.pass_ms(100_000)
        house.keep_house()
        assert house.info(f"s{count}", "iids-tracked") == 0
    assert costs[1] <= costs[0] * 1.1, costs


def test_idempotency_keys_that_expire_all_at_once_go_in_several_turns(house: House) -> None:
    """One turn forgets a limited number of keys; the round is over when all are forgotten."""
    house.call("XADD", "s", "1-0", "a", "1")
    house.call("XCFGSET", "s", "IDMP-MAXSIZE", 10_000)
    idempotency_table = idempotence_of(house.key("s"))
    for number in range(TURN_KEYS_MAX + 500):
        house.run(
            types.XAdd(
                stream="s",
                bodies=[BODY],
                producer_key=types.ProducerKey(b"p%d" % (number % 3), b"%d" % number),
            )
        )
    house.pass_ms(100_000)
    assert house.run(weir_commands.Maintain()) is True
    assert idempotency_table.keys_tracked == 500
    house.keep_house()
    assert idempotency_table.keys_tracked == 0
    assert idempotency_table.producers == {}


def test_answers_under_keys_are_freed_after_a_day_though_nobody_writes(house: House) -> None:
    """Those of a stream and those of publications into many; to the millisecond, and a stream with none
    left is not looked at any more.
    """
    key = types.IdempotencyKey("k", b"digest")
    house.run(types.XAdd(stream="s", bodies=[BODY], idempotency=key))
    house.run(weir_commands.Publish(parts=[types.XAdd(stream="t", bodies=[BODY])], idempotency=key))
    house.pass_ms(ANSWER_AGE_MS_MAX)
    house.keep_house()
    assert idempotence_of(house.key("s")).answers
    assert house.keyspace.answers
    house.pass_ms(1)
    house.keep_house()
    assert not idempotence_of(house.key("s")).answers
    assert not house.keyspace.answers
    assert not house.keyspace.maintained


class Walked:
    """Productions as a walk over all of them finds what has expired."""

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.keys: dict[bytes, list[tuple[bytes, int]]] = {}

    def record(self, producer: bytes, key: bytes, entry_id: int) -> None:
        rows = [row for row in self.keys.get(producer, []) if row[0] != key]
        self.keys[producer] = [*rows, (key, entry_id)][-self.maxsize :]

    def expired(self, oldest_kept_ms: int) -> dict[bytes, int]:
        counts = {
            producer: sum(1 for _ in takewhile(lambda row: row[1] >> 64 <= oldest_kept_ms, rows))
            for producer, rows in self.keys.items()
        }
        return {producer: count for producer, count in counts.items() if count}

    def forget(self, producer: bytes, count: int) -> None:
        self.keys[producer] = self.keys[producer][count:]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("record"), st.sampled_from("pqr"), st.integers(0, 30)),
            st.tuples(st.just("forget"), st.just(""), st.integers(0, 30)),
            st.tuples(st.just("look"), st.just(""), st.integers(0, 30)),
        ),
        max_size=60,
    )
)
def test_what_has_expired_is_what_a_walk_over_all_finds(steps: list[tuple[str, str, int]]) -> None:
    """Also where IDs do not ascend (XIDMPRECORD), the oldest were pushed out, and a clock goes back."""
    idempotency_table, walked = Idempotence(0, 3), Walked(3)
    for number, (step, name, ms) in enumerate(steps):
        if step == "record":
            idempotency_table.record(name.encode(), b"%d" % number, ms << 64)
            walked.record(name.encode(), b"%d" % number, ms << 64)
            continue
        found = idempotency_table.find_expired(ms)
        assert dict(found) == walked.expired(ms)
        assert len(found) == len(dict(found)), "each producer is listed once"
        for producer, count in found if step == "forget" else ():
            idempotency_table.forget(producer, count)
            walked.forget(producer, count)


# --- in the engine --------------------------------------------------------------------------------------


class MaintainedEngine:
    """An engine in memory, its clock and its loop's moved by hand."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.engine = Engine.open(None, clock=self.clock)

    async def run(self, command: Command) -> Any:
        return await reply_to(self.engine, command)

    async def pass_ms(self, ms: int) -> None:
        """Time, second by second, so that housekeeping comes as often as it would."""
        while ms > 0:
            self.clock.pass_ms(min(ms, 500))
            ms -= 500
            await settle()

    @staticmethod
    async def answered(waiting: asyncio.Task[Any]) -> Any:
        """The answer of a read that has one by now: it leaves when a thread has synced what came before."""
        for _ in range(_LOOKS_MAX):
            if waiting.done():
                break
            await let_threads_run()
        return waiting.result()

    async def consumers(self) -> dict[str, int]:
        """Names and how long ago each was seen."""
        found = await self.run(types.XInfoConsumers(stream="s", group="g"))
        assert all(isinstance(one, ConsumerInfo) for one in found)
        return {one.name: one.idle_ms for one in found}


@pytest.fixture
async def running() -> AsyncIterator[MaintainedEngine]:
    """A started engine. At the end it agrees with itself."""
    running = MaintainedEngine()
    running.clock.drive(asyncio.get_running_loop())
    await running.engine.start()
    yield running
    running.engine.check()
    await running.engine.close()


def policy(**given: Any) -> weir_commands.EnsureGroup:
    return weir_commands.EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=given)


async def test_a_consumer_in_a_long_poll_is_there(running: MaintainedEngine) -> None:
    """Removed neither while it waits nor before the timeout is over after its wait; then it is."""
    await running.run(policy(consumer_timeout_ms=5_000))
    await running.run(adding("s", "1-0"))
    await running.run(reading("a"))
    waiting = asyncio.create_task(running.run(reading("a", block_ms=60_000)))
    await settle()
    await running.pass_ms(59_500)
    assert await running.consumers() == {"a": 59_500}
    await running.pass_ms(500)
    assert (await running.answered(waiting)).streams == ()
    assert await running.consumers() == {"a": 0}
    await running.pass_ms(4_000)
    assert list(await running.consumers()) == ["a"]
    await running.pass_ms(2_000)
    assert await running.consumers() == {}
    found = await running.run(types.XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=9))
    assert isinstance(found, PendingList)
    assert [one.consumer for one in found.entries] == [None]


async def test_a_consumer_that_gives_up_was_there_until_then(running: MaintainedEngine) -> None:
    """A connection that closes in the middle of a wait leaves the whole timeout to come back."""
    await running.run(policy(consumer_timeout_ms=5_000))
    waiting = asyncio.create_task(running.run(reading("a", block_ms=60_000)))
    await settle()
    await running.pass_ms(30_000)
    waiting.cancel()
    await settle()
    await running.pass_ms(4_000)
    assert list(await running.consumers()) == ["a"]
    await running.pass_ms(2_000)
    assert await running.consumers() == {}


async def test_where_silence_is_not_counted_a_wait_leaves_no_trace(running: MaintainedEngine) -> None:
    """As in Redis: seen when it began to wait."""
    await running.run(policy())
    waiting = asyncio.create_task(running.run(reading("a", block_ms=1_000)))
    await settle()
    await running.pass_ms(2_000)
    assert (await running.answered(waiting)).streams == ()
    assert await running.consumers() == {"a": 2_000}


async def test_a_waiting_reader_that_claims_gets_what_is_overdue(running: MaintainedEngine) -> None:
    """Released by the timeout, long before it is idle for as long as the reader would wait."""
    await running.run(policy(ack_timeout_ms=3_000))
    await running.run(adding("s", "1-0"))
    await running.run(reading("a"))
    waiting = asyncio.create_task(running.run(reading("b", block_ms=60_000, claim_min_idle_ms=50_000)))
    await settle()
    await running.pass_ms(2_500)
    assert not waiting.done()
    await running.pass_ms(1_500)
    found = (await running.answered(waiting)).streams[0].entries
    assert [(one.id, one.delivery_count) for one in found] == [(id_of("1-0"), 2)]


async def test_acknowledged_work_is_left_alone(running: MaintainedEngine) -> None:
    await running.run(policy(ack_timeout_ms=1_000))
    await running.run(adding("s", "1-0"))
    await running.run(reading("a"))
    assert await running.run(types.XAck(stream="s", group="g", ids=[id_of("1-0")])) == 1
    await running.pass_ms(5_000)
    found = await running.run(types.XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=9))
    assert found == PendingList([])


def test_seeing_is_a_record(house: House) -> None:
    """What the end of a wait changes is in the log."""
    grouped(house, consumer_timeout_ms=1_000)
    house.run(reading("a"))
    house.pass_ms(7)
    house.run(weir_commands.EndWait(streams=["s"], group="g", consumer="a"))
    assert [type(record) for record in house.turn.records] == [SeeConsumer]
