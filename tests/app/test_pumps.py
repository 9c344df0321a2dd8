"""The two pumps with sinks that a test holds: what is written, when, and what goes back.

Knows: a keyspace as the engine. Must never know: sockets, protocols, how entries are written.
"""

from collections.abc import Callable, Sequence

import pytest

from app.live.consumer import Consumer, Credit, Taken
from app.live.feeds import FeedGap, FeedItem, FeedPage
from app.live.leases import ConsumerKey
from app.live.readers import Gate, GroupPump, Room, StreamPump
from engine import EngineError, entries, ids
from engine.commands import types
from engine.replies import StreamDeliveries
from tests.app.conversing import EngineWorld

KEY = ConsumerKey("s", "g", "c")
AWAY = EngineError("backend_unavailable", "ERR away", "the backend cannot be used now")
MANY = 1_000


class PlantedError(Exception):
    """What a sink fails with."""


class StreamsSink:
    """Takes what it has room for, a page at a time once it is `slow`."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.is_full = self.slow = self.takes_live = False
        self.count_max = MANY
        self.waits_for_backend = False
        self.ends: list[Exception | None] = []
        # Where it fails.
        self.fails = ""

    def _do(self, what: str) -> None:
        if self.fails == what:
            raise PlantedError

    def room(self) -> Room | None:
        self._do("room")
        return None if self.is_full else Room(self.count_max, 1 << 20)

    def write(self, place: int, item: FeedItem | None) -> None:
        self._do("write")
        assert not self.ends, "nothing is written behind the end"
        if isinstance(item, FeedPage):
            self.written += [f"{place}:{one}" for one in ids_of(item)]
        elif item is not None:
            self.written.append(f"{place} {'gap' if isinstance(item, FeedGap) else 'end'}")
        self.is_full = self.slow and item is not None

    def write_live(self, place: int, page: FeedPage) -> bool:
        self._do("write_live")
        if not self.takes_live or self.is_full:
            return False
        self.written += [f"{place}:{one}" for one in ids_of(page)]
        return True

    def caught_up(self, place: int) -> None:
        self._do("caught_up")
        self.written.append(f"{place} caught up")

    def waits(self, place: int, why: EngineError) -> bool:
        return self.waits_for_backend

    def end(self, why: Exception | None) -> None:
        self.ends.append(why)

    @property
    def entries(self) -> list[str]:
        return [one for one in self.written if ":" in one]


def ids_of(page: FeedPage) -> list[str]:
    return [ids.format(entries.id_of(text)) for text in entries.texts(page.entries)]


def following(world: EngineWorld, sink: StreamsSink, *streams: str, gate: Gate | None = None) -> StreamPump:
    """A pump of these streams, from their beginning."""

    async def subscribed() -> StreamPump:
        tails = [await world.tenant.feeds.subscribe(stream, 0) for stream in streams]
        return StreamPump(tails, sink, gate)

    pump = world.loop.run_until_complete(subscribed())
    world.do(pump.begin)
    return pump


def expected(world: EngineWorld, *streams: str) -> list[str]:
    return [f"{place}:{one}" for place, stream in enumerate(streams) for one in world.texts(stream)]


@pytest.fixture
def world() -> EngineWorld:
    return EngineWorld()


# ---- streams


@pytest.mark.parametrize("takes_live", [False, True])
def test_each_page_is_written_once_behind_a_full_sink(world: EngineWorld, *, takes_live: bool) -> None:
    """However long it is full; what is new meanwhile waits in the feed."""
    sink = StreamsSink()
    sink.slow, sink.takes_live, sink.count_max = True, takes_live, 2
    world.add("s", 5)
    pump = following(world, sink, "s")
    for _ in range(8):
        world.settle()
        world.add("s")
        sink.is_full = False
        world.do(pump.go_on)
    # A page for each entry at most: one that comes again must not go on for ever.
    for _ in range(13):
        sink.is_full = False
        world.do(pump.go_on)
        world.settle()
    assert sink.entries == expected(world, "s")
    assert len(sink.entries) == 13


def test_a_live_page_that_is_refused_comes_in_its_turn(world: EngineWorld) -> None:
    sink = StreamsSink()
    pump = following(world, sink, "s")
    world.settle()
    sink.is_full = True
    world.add("s", 2)
    world.settle()
    assert sink.entries == []
    sink.is_full, sink.takes_live = False, True
    world.do(pump.go_on)
    world.settle()
    world.add("s")
    world.settle()
    assert sink.entries == expected(world, "s")


def test_streams_take_turns_and_are_caught_up_once_each(world: EngineWorld) -> None:
    world.add("a", 4)
    world.add("b", 1)
    sink = StreamsSink()
    sink.count_max = 2
    following(world, sink, "a", "b")
    world.settle()
    first, second, third, last = world.texts("a")
    (only,) = world.texts("b")
    assert sink.written == [
        f"0:{first}", f"0:{second}", f"1:{only}", "1 caught up", f"0:{third}", f"0:{last}", "0 caught up"
    ]  # fmt: skip


def test_what_waits_for_its_reader_is_caught_up_with_again(world: EngineWorld) -> None:
    sink = StreamsSink()
    pump = following(world, sink, "s")
    world.settle()
    sink.is_full = True
    world.add("s")
    world.settle()
    pump.fall_behind()
    sink.is_full = False
    world.do(pump.go_on)
    world.settle()
    assert sink.written == ["0 caught up", *expected(world, "s"), "0 caught up"]


def test_one_look_at_history_at_a_time_goes_through_a_gate(world: EngineWorld) -> None:
    """A reader without room lets the next one pass."""
    world.add("s", 3)
    world.engine.answers_later = True
    gate, sinks = Gate(), [StreamsSink() for _ in range(3)]
    sinks[1].is_full = True
    pumps = [following(world, sink, "s", gate=gate) for sink in sinks]
    for sink in sinks:
        sink.count_max = 2
    world.settle()
    assert [len(sink.entries) for sink in sinks] == [3, 0, 3]
    sinks[1].is_full = False
    world.do(pumps[1].go_on)
    world.settle()
    assert sinks[1].entries == expected(world, "s")
    assert not gate.is_shut


def test_a_pump_that_stops_while_it_looks_lets_the_next_one_pass(world: EngineWorld) -> None:
    world.add("s", 3)
    world.engine.answers_later = True
    gate, sinks = Gate(), [StreamsSink() for _ in range(2)]
    tails = [world.loop.run_until_complete(world.tenant.feeds.subscribe("s", 0)) for _ in sinks]
    pumps = [StreamPump([tail], sink, gate) for tail, sink in zip(tails, sinks, strict=True)]

    def begin() -> None:
        for pump in pumps:
            pump.begin()
        pumps[0].stop()

    world.do(begin)
    world.settle()
    assert [sink.entries for sink in sinks] == [[], expected(world, "s")]


def test_no_live_page_passes_a_stream_that_waits_for_its_turn(world: EngineWorld) -> None:
    """It would take the room that the other one was given."""
    world.add("s", 3)
    sink, gate = StreamsSink(), Gate()
    sink.takes_live = gate.is_shut = True
    following(world, sink, "s", "t", gate=gate)
    world.add("t")
    world.settle()
    assert sink.entries == []
    world.do(gate.open)
    world.settle()
    assert sink.entries == expected(world, "s", "t")


@pytest.mark.parametrize("where", ["room", "write", "write_live", "caught_up"])
def test_a_sink_that_fails_ends_its_pump(world: EngineWorld, where: str) -> None:
    """Nothing is written behind that, and nothing is followed any more."""
    world.add("s", 2)
    sink = StreamsSink()
    sink.fails = where
    following(world, sink, "s", "t")
    world.settle()
    for stream in ("s", "t"):
        world.add(stream)
        world.settle()
    assert [type(why) for why in sink.ends] == [PlantedError]
    assert len(world.tenant.feeds) == 0


def test_a_pump_that_is_stopped_half_way_has_lost_nothing(world: EngineWorld) -> None:
    """What was written and the place where it stands are one."""
    world.add("s", 5)
    sink = StreamsSink()
    sink.count_max, sink.slow = 2, True
    pump = following(world, sink, "s")
    world.settle()
    world.do(pump.stop)
    sink.is_full = False
    world.do(pump.go_on)
    world.settle()
    assert sink.entries == expected(world, "s")[:2]
    assert ids.format(pump.tails[0].cursor) == world.texts("s")[1]
    assert (sink.ends, len(world.tenant.feeds)) == ([], 0)


@pytest.mark.parametrize("waits", [False, True])
def test_a_backend_that_is_away_ends_a_pump_unless_its_reader_waits(
    world: EngineWorld, *, waits: bool
) -> None:
    """Other streams go on, and this one where it was."""
    world.add("s")
    world.add("t")
    sink = StreamsSink()
    sink.waits_for_backend = waits
    world.engine.refusals = {types.XRange: AWAY}
    pump = following(world, sink, "s", "t")
    world.settle()
    world.engine.refusals = {}
    assert sink.ends == ([] if waits else [AWAY])
    if waits:

        async def again(place: int) -> None:
            tail = pump.tails[place]
            pump.follow(place, await world.tenant.feeds.subscribe(tail.stream, tail.cursor))

        for place in (1, 0):
            world.loop.run_until_complete(again(place))
        world.settle()
        assert sorted(sink.entries) == expected(world, "s", "t")
        world.do(pump.stop)
        world.loop.run_until_complete(again(0))
        assert len(world.tenant.feeds) == 0


# ---- groups


class GroupSink:
    """Takes what it has room for."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.said: list[str] = []
        self.is_full = self.slow = self.overflows = self.waits_for_backend = False
        self.ends: list[Exception | None] = []
        self.fails = ""

    def _do(self, what: str) -> None:
        if self.fails == what:
            raise PlantedError

    def declines(self, found: StreamDeliveries) -> bool:
        self._do("declines")
        return self.overflows

    def write(self, taken: Taken, *, was_closed: bool) -> None:
        self._do("write")
        assert not self.ends, "nothing is written behind the end"
        self.given += map(ids.format, taken.ids)
        if taken.end is not None:
            self.said.append("drained" if taken.end.drained else "closed")
        self.is_full = self.slow and bool(taken.ids)

    def lack_credit(self) -> None:
        self._do("lack_credit")
        self.said.append("no credit")

    def replaced(self) -> None:
        self._do("replaced")
        self.said.append("replaced")

    def waits(self, why: EngineError) -> bool:
        return self.waits_for_backend

    def end(self, why: Exception | None) -> None:
        self.ends.append(why)


def working(
    world: EngineWorld, sink: GroupSink, credit: int | None = None, batch_max: int = MANY
) -> GroupPump:
    """A pump of the consumer `c`."""
    consumer = Consumer(KEY, Credit(credit, batch_max), bytes_max=1 << 20)
    made: list[GroupPump] = []

    def begin() -> None:
        engine = world.tenant.engine
        made.append(GroupPump(world.tenant.leases, engine, consumer, sink, lambda *_: None))
        made[0].begin()

    world.do(begin)
    return made[0]


def pending(world: EngineWorld) -> list[tuple[str, str | None, int]]:
    """ID, consumer and delivery count of all that is pending."""
    group = world.keyspace.keys["s"].groups["g"]
    return [
        (ids.format(entry_id), None if one.consumer is None else one.consumer.name, one.delivery_count)
        for entry_id, one in group.pending.items(0)
    ]


@pytest.fixture
def group(world: EngineWorld) -> EngineWorld:
    """With a group of three entries."""
    world.add("s", 3)
    world.run(types.XGroupCreate(stream="s", group="g", start=0))
    return world


def read_before(world: EngineWorld, count: int = 2) -> list[str]:
    """Entries that the consumer has from an earlier reader."""
    reply = world.run(
        types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)], count=count)
    )
    return [ids.format(one.id) for one in reply.streams[0].entries]


def test_no_more_is_read_than_there_is_room_and_credit_for(group: EngineWorld) -> None:
    sink = GroupSink()
    sink.slow = True
    pump = working(group, sink, credit=2, batch_max=1)
    for expected_entries in (1, 2, 2):
        group.settle()
        assert len(sink.given) == expected_entries
        sink.is_full = False
        group.do(pump.go_on)
    assert sink.said[0] == "no credit"


@pytest.mark.parametrize("is_history", [False, True])
def test_history_that_is_not_written_stays_and_what_is_new_goes_back(
    group: EngineWorld, *, is_history: bool
) -> None:
    """To a sink that overflows meanwhile; it comes when there is room."""
    before = read_before(group, 3) if is_history else []
    sink = GroupSink()
    sink.is_full = is_history
    pump = working(group, sink)
    group.settle()
    sink.is_full = False

    def fill() -> None:
        pump.go_on()
        sink.overflows = sink.is_full = True

    group.do(fill)
    if not is_history:
        group.add("s", 2)
    group.settle()
    if is_history:
        assert sink.given == []
        assert [row[:2] for row in pending(group)] == [(entry_id, "c") for entry_id in before]
    else:
        assert len(sink.given) == 3
        assert [row[1:] for row in pending(group)][3:] == [(None, 0)] * 2
    sink.overflows = sink.is_full = False
    group.do(pump.go_on)
    group.settle()
    assert sink.given == group.texts("s")


@pytest.mark.parametrize("ending", ["stop", "close", "end"])
def test_what_a_read_brings_too_late_goes_back(group: EngineWorld, ending: str) -> None:
    """As if it had never been delivered."""
    sink = GroupSink()
    pump = working(group, sink)

    def deliver() -> None:
        group.engine.serve()
        getattr(pump, ending)()

    group.do(deliver)
    group.settle()
    assert sink.given == []
    assert [row[1:] for row in pending(group)] == [(None, 0)] * 3
    assert sink.ends == ([None] if ending == "end" else [])
    group.do(pump.close)


@pytest.mark.parametrize("where", ["declines", "write", "lack_credit", "replaced"])
def test_a_sink_that_fails_ends_its_consumer(group: EngineWorld, where: str) -> None:
    """What it was not given goes back, and it reads nothing more."""
    sink, second = GroupSink(), GroupSink()
    sink.fails = where
    pump = working(group, sink, credit=2)
    group.settle()
    working(group, second)
    group.add("s")
    group.do(pump.close)
    group.settle()
    assert [type(why) for why in sink.ends] == [PlantedError]
    assert second.given == group.texts("s")


SETTLED: dict[str, Callable[[Sequence[int]], types.XAck | types.XNack | types.XClaim]] = {
    "acknowledged": lambda wanted: types.XAck(stream="s", group="g", ids=wanted),
    "given back": lambda wanted: types.XNack(
        stream="s", group="g", nack=types.Nack(ids=wanted, mode=types.NackMode.SILENT)
    ),
    "claimed": lambda wanted: types.XClaim(
        stream="s", group="g", consumer="other", claim=types.Claim(ids=wanted, min_idle_ms=0)
    ),
}


@pytest.mark.parametrize("way", SETTLED)
def test_what_is_settled_elsewhere_makes_room_by_one_look_a_cycle(group: EngineWorld, way: str) -> None:
    """At once, and only if it was in flight here."""
    group.add("s", 7)
    sink = GroupSink()
    pump = working(group, sink, credit=4)
    group.pass_cycles()
    looks = len(group.engine.calls)
    others = [ids.parse(text) or 0 for text in group.texts("s")[4:]]
    own = [ids.parse(text) or 0 for text in sink.given]

    def settle_some(wanted: Sequence[int]) -> None:
        for one in wanted:
            group.tenant.leases.settled("s", [one])

    group.do(settle_some, others)
    group.pass_cycles()
    assert len(group.engine.calls) == looks
    group.engine.execute(SETTLED[way](own[:3]))
    group.do(settle_some, own[:3])
    group.pass_cycles()
    looked = [one for one in group.engine.calls[looks:] if isinstance(one.commands[0], types.XPendingRange)]
    assert len(looked) <= 2
    assert len(sink.given) == 7
    assert len(pump.consumer.in_flight) == 4


@pytest.mark.parametrize("delivers", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_a_lost_reply_ends_a_consumer_unless_its_reader_waits(
    group: EngineWorld, *, waits: bool, delivers: bool
) -> None:
    """Then each entry comes once, as a first delivery."""
    sink = GroupSink()
    sink.waits_for_backend = waits
    working(group, sink)
    group.settle()
    bodies = [entries.body([("n", "1")])] * 2
    group.engine.execute(types.XAdd(stream="s", bodies=bodies))
    group.do(group.engine.lose, AWAY, delivers=delivers)
    group.settle()
    assert sink.ends == ([] if waits else [AWAY])
    assert sink.given == (group.texts("s") if waits else group.texts("s")[:3])
    if waits:
        assert {row[2] for row in pending(group)} == {1}
