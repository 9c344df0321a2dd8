"""What readers that stay have in common, over every door: each entry once, nothing lost, and how it ends.

Knows: a gateway on a loop of the test, the five kinds of readers. Must never know: what moves entries.
"""

import json
import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import pytest

from app.doors.websocket.session import Session
from app.live.budgets import FREE_BYTES
from app.settings import Settings
from engine import entries, ids
from engine.commands import types
from engine.commands.weir_commands import Close, UpdateGroup
from engine.replies import PendingList
from tests.app.pushing import Json, PushPeer, PushWorld, RefusingLeases, Stored, world_of
from tests.app.test_sse import EventReader

SETTINGS: Final = Settings(log_requests="none", count_max=1_000, durable_streams=True)
_NUMBER: Final = re.compile(r'"n":"(\d+)"')
_DELIVERY: Final = re.compile(_NUMBER.pattern + r'\}(?:,"delivery_count":(\d+))?')
IDLE_MS: Final = 1_000


class Reader(ABC):
    """A reader of the stream `s` from its beginning, or `c` of the group `g`; `more` says something else."""

    def __init__(self, house: PushWorld, **more: Any) -> None:
        self.house = house
        self.more = more
        house.do(self.begin)

    @abstractmethod
    def begin(self) -> None: ...
    @property
    @abstractmethod
    def text(self) -> str:
        """All that came, but for what frames it."""

    @property
    @abstractmethod
    def is_over(self) -> bool: ...
    @abstractmethod
    def stall(self) -> None: ...
    @abstractmethod
    def release(self) -> None: ...
    @abstractmethod
    def lose(self) -> None: ...

    @property
    def got(self) -> list[int]:
        return [int(number) for number in _NUMBER.findall(self.text)]

    @property
    def deliveries(self) -> list[tuple[int, int]]:
        """Of a group: with how often each was delivered by then."""
        return [(int(number), int(count or 1)) for number, count in _DELIVERY.findall(self.text)]


class Socket(Reader):
    FRAME: ClassVar[Json] = {"op": "subscribe", "streams": {"s": "0"}}

    def begin(self) -> None:
        self.peer = PushPeer(self.house, Session, "192.0.2.1")
        self.house.peers.append(self.peer)
        self.peer.say(**{**self.FRAME, **self.more}, sub="r")

    @property
    def text(self) -> str:
        return json.dumps([*self.peer.frames, self.peer.wire.closed], separators=(",", ":"))

    @property
    def is_over(self) -> bool:
        return self.peer.wire.closed is not None or "r" not in self.peer.session.table.by_name

    def stall(self) -> None:
        self.peer.stall()

    def release(self) -> None:
        self.house.do(self.peer.release)

    def lose(self) -> None:
        self.house.do(self.peer.lose)


class SocketGroup(Socket):
    FRAME: ClassVar[Json] = {
        "op": "consume",
        "stream": "s",
        "group": "g",
        "consumer": "c",
        "credit": 1_000,
        "batch_max": 100,
    }


class Tail(Reader):
    PATH, QUERY = "/v1/streams/s/tail", "after=0"

    def begin(self) -> None:
        self.events = EventReader(self.house.app, self.PATH, self.query, accept="text/event-stream")

    @property
    def query(self) -> str:
        return self.QUERY

    @property
    def text(self) -> str:
        return self.events.body.decode()

    @property
    def is_over(self) -> bool:
        return self.events.over

    def stall(self) -> None:
        self.events.stall()

    def release(self) -> None:
        self.house.do(self.events.release)

    def lose(self) -> None:
        self.house.do(self.events.lose)
        self.house.run(self.events.leave())


class Group(Tail):
    PATH = "/v1/streams/s/groups/g/consumers/c/stream"

    def begin(self) -> None:
        self.PATH = self.PATH.replace("/c/", f"/{self.more.pop('consumer', 'c')}/")
        super().begin()

    @property
    def query(self) -> str:
        given = {"max_in_flight": self.more.pop("credit", 1_000), **self.more}
        return "&".join(f"{name}={value}" for name, value in given.items())


class Durable(Tail):
    PATH, QUERY = "/v1/stream/s", "offset=-1&live=sse"


Kind = type[Reader]
STREAMS: Final[list[Kind]] = [Socket, Tail, Durable]
GROUPS: Final[list[Kind]] = [SocketGroup, Group]


def begun(kind: Kind, house: PushWorld, **more: Any) -> Reader:
    """One that has all that there is."""
    reader = kind(house, **more)
    house.settle()
    return reader


def pass_s(house: PushWorld, seconds: int) -> None:
    """In steps, so that what runs every second does."""
    for _ in range(2 * seconds):
        house.clock.pass_ms(500)
        house.settle()


# No second brings a sync: that is a thread, with a time of its own.
house = world_of(SETTINGS, fsync="no")


@pytest.fixture
def stored(house: PushWorld) -> Stored:
    """Three entries, and a group that has read none of them."""
    stored = Stored(house, "s")
    stored.add([5 << 64, 1, 1])
    house.execute(types.XGroupCreate(stream="s", group="g", start=0))
    return stored


def pending(house: PushWorld) -> list[tuple[str, int]]:
    """Consumer, empty for none, and delivery count of all that is pending."""
    found = house.execute(types.XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=1_000))
    assert isinstance(found, PendingList)
    return [(one.consumer or "", one.delivery_count) for one in found.entries]


@pytest.mark.parametrize("kind", STREAMS + GROUPS)
def test_what_is_there_and_then_what_is_new_comes_once(house: PushWorld, stored: Stored, kind: Kind) -> None:
    reader = begun(kind, house)
    for steps in ([1], [1, 1, 1], [1 << 64], [1]):
        stored.add(steps)
        house.settle()
    assert reader.got == stored.all
    reader.lose()


@pytest.mark.parametrize("kind", STREAMS + GROUPS)
def test_a_reader_that_stalls_gets_each_entry_once(house: PushWorld, stored: Stored, kind: Kind) -> None:
    """However often, and whatever comes meanwhile."""
    reader = begun(kind, house)
    for _ in range(3):
        reader.stall()
        for steps in ([1], [1, 1], [1]):
            stored.add(steps)
            house.settle()
        reader.release()
        house.settle()
        assert reader.got == stored.all
    reader.lose()


@pytest.mark.parametrize("kind", STREAMS + GROUPS)
def test_a_reader_that_leaves_takes_nothing_more(house: PushWorld, stored: Stored, kind: Kind) -> None:
    """Nothing that is published next is given to it."""
    reader = begun(kind, house)
    reader.lose()
    stored.add([1, 1])
    house.settle()
    assert len(reader.got) == 3
    assert len(pending(house)) == (3 if kind in GROUPS else 0)
    assert house.engine.figures().waiting == 0


@pytest.mark.parametrize("kind", STREAMS + GROUPS)
def test_a_stream_that_ends_ends_its_readers(house: PushWorld, stored: Stored, kind: Kind) -> None:
    """Behind its last entry, and of a group once nothing is pending: what is given back comes again."""
    reader = begun(kind, house)
    reader.stall()
    stored.add([1])
    house.execute(Close(stream="s"))
    house.settle()
    reader.release()
    house.settle()
    assert reader.got == stored.all
    last = reader.text[reader.text.rindex(str(stored.last)) :]
    assert ("streamClosed" if kind is Durable else "closed") in last
    assert reader.is_over is (kind in STREAMS)
    if kind in GROUPS:
        nack = types.Nack(ids=stored.all[:1], mode=types.NackMode.FAIL)
        house.execute(types.XNack(stream="s", group="g", nack=nack))
        house.settle()
        assert reader.got == [*stored.all, stored.all[0]]
        house.execute(types.XAck(stream="s", group="g", ids=stored.all))
        house.app.gateway.leases.settled("s", ())
        house.settle()
        assert "drained" in last + reader.text[-100:]
        assert reader.is_over
        anew = begun(kind, house)
        assert (anew.got, anew.is_over) == ([], True)
        assert anew.text.index("closed") < anew.text.index("drained")
        anew.lose()
    reader.lose()


@pytest.mark.parametrize("kind", STREAMS + GROUPS)
def test_a_gateway_that_stops_ends_its_readers(house: PushWorld, stored: Stored, kind: Kind) -> None:
    """Behind what was there; a worker may acknowledge first."""
    reader = begun(kind, house)
    stored.add([1])
    house.do(house.app.life.drain)
    house.settle()
    assert reader.got == stored.all
    if kind is SocketGroup:
        assert not reader.is_over
        house.clock.pass_ms(0, 2_000)
        house.settle()
    assert reader.is_over
    reader.lose()


@pytest.mark.parametrize("kind", STREAMS + GROUPS)
def test_deliveries_are_counted_when_they_have_left(house: PushWorld, stored: Stored, kind: Kind) -> None:
    """Live or not. What waits, and is lost with its reader, is none."""
    reader = begun(kind, house)
    stored.add([1])
    house.settle()
    reader.stall()
    if isinstance(reader, Socket):
        # A socket takes a frame where none waits before it.
        house.do(reader.peer.say, "ping")
    for steps in ([1] * 2_000, [1]):
        stored.add(steps)
        house.settle()
    reader.lose()
    house.settle()
    counted = house.app.gateway.reports.counters.delivered
    assert (sum(counted.values()), len(reader.got)) == (4, 4)


@pytest.mark.parametrize("ending", ["release", "lose"])
@pytest.mark.parametrize("kind", [Tail, Durable, Group])
@pytest.mark.usefixtures("stored")
def test_a_long_piece_is_in_the_output_budget_until_it_has_left(
    house: PushWorld, kind: Kind, ending: str
) -> None:
    """Or its reader has. Sockets count themselves what they have not taken."""
    budget, reader = house.app.gateway.limits.budgets.output, begun(kind, house)
    reader.stall()
    house.execute(types.XAdd(stream="s", bodies=[entries.body([("a", "x" * FREE_BYTES)])]))
    house.settle()
    assert budget.held_bytes > FREE_BYTES
    getattr(reader, ending)()
    house.settle()
    assert budget.held_bytes == 0
    reader.lose()


@pytest.mark.parametrize("kind", GROUPS)
def test_what_is_new_and_was_not_sent_goes_back(house: PushWorld, stored: Stored, kind: Kind) -> None:
    """As if it had never been delivered."""
    reader = begun(kind, house)
    house.execute(types.XAck(stream="s", group="g", ids=stored.all))
    reader.stall()
    stored.add([1, 1])
    house.settle()
    reader.lose()
    house.settle()
    assert pending(house) == [("", 0)] * 2
    again = begun(kind, house)
    assert again.got == stored.all[3:]
    again.lose()


@pytest.mark.parametrize("kind", GROUPS)
def test_history_that_was_not_sent_stays_with_its_consumer(
    house: PushWorld, stored: Stored, kind: Kind
) -> None:
    """It comes first when the consumer comes back."""
    stored.add([1] * 247)
    begun(kind, house).lose()
    house.settle()
    reader = kind(house)
    while not reader.got:
        house.step()
    reader.stall()
    house.settle()
    assert len(reader.got) < len(stored.all)
    reader.lose()
    house.settle()
    assert {consumer for consumer, _ in pending(house)} == {"c"}
    assert len(pending(house)) == len(stored.all)
    again = begun(kind, house)
    assert again.got == stored.all
    again.lose()


@pytest.mark.parametrize("more", [{}, {"claim_min_idle_ms": IDLE_MS}])
@pytest.mark.parametrize("kind", GROUPS)
def test_what_was_released_behind_its_back_comes_again_and_takes_room_once(
    house: PushWorld, stored: Stored, kind: Kind, more: Json
) -> None:
    """By any client, also by one that had taken it over."""
    reader, first = begun(kind, house, credit=4, **more), stored.all[0]
    release = types.XNack(stream="s", group="g", nack=types.Nack(ids=[first], mode=types.NackMode.FAIL))
    claim = types.Claim(ids=[first], min_idle_ms=0)
    for command in (release, types.XClaim(stream="s", group="g", consumer="x", claim=claim), release):
        house.execute(command)
        house.settle()
    assert reader.got == [*stored.all, first, first]
    stored.add([1])
    house.settle()
    assert reader.got[-1] == stored.last
    reader.lose()


@pytest.mark.parametrize("kind", GROUPS)
def test_a_deleted_entry_of_its_own_has_no_fields(house: PushWorld, stored: Stored, kind: Kind) -> None:
    """It is there to be acknowledged."""
    begun(kind, house).lose()
    house.settle()
    stored.trim(1)
    again = begun(kind, house)
    assert (again.text.count('"fields":null'), again.got) == (2, stored.all[2:])
    again.lose()


@pytest.mark.parametrize("kind", GROUPS)
def test_a_consumer_that_cannot_be_leased_is_given_nothing(
    house: PushWorld, stored: Stored, kind: Kind
) -> None:
    """Another reader may have it. It ends as by any fault of the gateway."""
    house.app.gateway.leases = RefusingLeases()
    house.app.life.open(house.engine)
    reader = begun(kind, house)
    assert (reader.got, pending(house), reader.is_over) == ([], [], True)
    assert '"internal"' in reader.text


@pytest.mark.parametrize("kind", GROUPS)
def test_a_consumer_that_works_on_what_it_has_is_not_silent(
    house: PushWorld, stored: Stored, kind: Kind
) -> None:
    """However long, and though no read of its waits; its silence begins when it has left."""
    house.execute(UpdateGroup(stream="s", group="g", policy={"consumer_timeout_ms": 5_000}))
    reader = begun(kind, house, credit=1)
    pass_s(house, 12)
    assert pending(house) == [("c", 1)]
    reader.lose()
    pass_s(house, 4)
    assert pending(house) == [("c", 1)]
    pass_s(house, 2)
    assert pending(house) == [("", 1)]


@pytest.mark.parametrize("kind", GROUPS)
def test_what_is_worked_on_for_long_stays_with_its_worker(
    house: PushWorld, stored: Stored, kind: Kind
) -> None:
    """Though it takes over what others hold for that long: it is not sent again, and its count stays."""
    worker = begun(kind, house, claim_min_idle_ms=IDLE_MS)
    pass_s(house, 5)
    stored.add([1])
    pass_s(house, 1)
    assert worker.deliveries == [(one, 1) for one in stored.all]
    assert pending(house) == [("c", 1)] * 4
    worker.lose()


@pytest.mark.parametrize("second", GROUPS)
@pytest.mark.parametrize("first", GROUPS)
def test_what_a_hung_worker_holds_goes_to_another(
    house: PushWorld, stored: Stored, first: Kind, second: Kind
) -> None:
    """Though the hung one is connected and has room; the last holder is the one that failed."""
    policy = {"dead_letter_stream": "dead", "max_deliveries": 2}
    house.execute(UpdateGroup(stream="s", group="g", policy=policy))
    hung = begun(first, house, consumer="a", claim_min_idle_ms=IDLE_MS)
    pass_s(house, 3)
    other = begun(second, house, consumer="b", claim_min_idle_ms=IDLE_MS)
    assert other.deliveries == [(one, 2) for one in stored.all]
    assert pending(house) == [("b", 2)] * 3
    # Idle with the other one for as long, the hung one gets it: that would be the third delivery.
    pass_s(house, 2)
    assert hung.deliveries == [(one, 1) for one in stored.all]
    assert pending(house) == []
    for worker in (hung, other):
        worker.lose()


@pytest.mark.parametrize("second", GROUPS)
@pytest.mark.parametrize("first", GROUPS)
def test_another_reader_takes_a_consumer_over(
    house: PushWorld, stored: Stored, first: Kind, second: Kind
) -> None:
    """By whichever door: the first learns why, the second has all that is pending, and what is new."""
    one = begun(first, house)
    other = begun(second, house)
    stored.add([1])
    house.settle()
    assert (one.got, other.got) == (stored.all[:3], stored.all)
    assert one.is_over
    assert '"replaced"' in one.text
    for reader in (one, other):
        reader.lose()
