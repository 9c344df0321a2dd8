"""Entries delivered too often end in a stream of their own, once, with all that they held.

Knows: each way to deliver an entry again, what a dead letter holds, and what is left behind.
Must never know: APIs.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine import Clock, Engine, entries, ids
from engine.commands import dead_letters, types
from engine.commands.base import Command
from engine.commands.weir_commands import DeadLetterEntries, EnsureGroup, UpdateGroup
from engine.entries import Pairs
from engine.errors import stream_exhausted
from engine.records.changes import Append, Settle
from engine.replies import Added, AutoClaimed, Claimed, DeadLettered, Entries, GroupRead
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, settle
from tests.engine.house import House, adding, everywhere, id_of

ONE, TWO = id_of("1-0"), id_of("2-0")


def grouped(house: House, *, letters: str = "dead", deliveries: int = 2, stream: str = "s") -> None:
    """A group that buries what was delivered `deliveries` times."""
    policy = {"dead_letter_stream": letters, "max_deliveries": deliveries}
    house.run(EnsureGroup(stream=stream, group="g", start=0, mkstream=True, policy=policy))


def reading(
    consumer: str = "c", cursor: int | types.Cursor = types.Cursor.NEW, **more: Any
) -> types.XReadGroup:
    return types.XReadGroup(group="g", consumer=consumer, streams=[("s", cursor)], **more)


def claiming(*entry_ids: int, consumer: str = "d", **more: Any) -> types.XClaim:
    claim = types.Claim(ids=entry_ids or (ONE, TWO), min_idle_ms=0, **more)
    return types.XClaim(stream="s", group="g", consumer=consumer, claim=claim)


def autoclaiming(**more: Any) -> types.XAutoClaim:
    return types.XAutoClaim(stream="s", group="g", consumer="d", min_idle_ms=0, start=0, **more)


AGAIN = {
    "a read that claims": reading("d", claim_min_idle_ms=0),
    "a history read": reading("c", 0),
    "XCLAIM": claiming(),
    "XAUTOCLAIM": autoclaiming(),
}


def given(reply: object) -> list[int]:
    """The IDs handed out by any of them."""
    if isinstance(reply, GroupRead):
        return [one.id for stream in reply.streams for one in stream.entries]
    assert isinstance(reply, Claimed | AutoClaimed)
    return [one.id for one in reply.entries]


@everywhere
@pytest.mark.parametrize("way", AGAIN)
def test_the_delivery_beyond_the_limit_buries(house: House, way: str) -> None:
    """Up to the limit entries are delivered; the next delivery finds them in the dead-letter stream,
    settled.
    """
    grouped(house)
    house.fill("s", 2)
    house.run(reading())
    assert given(house.run(AGAIN[way])) == [ONE, TWO]
    owner = "c" if way == "a history read" else "d"
    assert [(row[1], row[3]) for row in house.pending("s", "g")] == [(owner, 2)] * 2  # type: ignore[index]
    assert given(house.run(AGAIN[way])) == []
    assert house.turn.dead_lettered == [("s", "g", one, "max_deliveries") for one in (ONE, TWO)]
    assert house.pending("s", "g") == []
    assert house.live("s") == ["1-0", "2-0"], "the stream keeps its entries"
    letters = [[("a", b"1"), *letter(one, owner, 2)] for one in ("1-0", "2-0")]
    assert sorted(house.pairs("dead")) == letters
    assert given(house.run(AGAIN[way])) == []
    assert len(house.live("dead")) == 2, "once is enough"


@pytest.mark.parametrize("way", AGAIN)
def test_dead_letters_come_in_one_frame(house: House, way: str) -> None:
    """Before their entries are settled; who reads them is woken."""
    grouped(house, deliveries=1)
    house.fill("s", 2)
    house.run(reading())
    frames = len(house.payloads)
    house.run(AGAIN[way])
    assert len(house.payloads) == frames + 1
    kinds = [type(record) for record in house.turn.records]
    assert kinds.index(Append) < kinds.index(Settle)
    assert "dead" in house.turn.signalled


@everywhere
def test_in_a_transaction_too(house: House) -> None:
    """The reply stands in its place."""
    grouped(house, deliveries=1)
    house.fill("s", 2)
    house.run(reading())
    found = house.transaction(("XAUTOCLAIM", "s", "g", "d", "0", "0"), ("XLEN", "s"))
    assert (found, len(house.live("dead"))) == ([["0-0", [], []], 2], 2)


def letter(entry_id: str, owner: str, count: int, reason: str = "max_deliveries") -> list[tuple[str, bytes]]:
    """The fields that a letter has beside the entry's, in order."""
    return [
        ("weir-source", b"s"),
        ("weir-id", entry_id.encode()),
        ("weir-group", b"g"),
        ("weir-consumer", owner.encode()),
        ("weir-deliveries", b"%d" % count),
        ("weir-reason", reason.encode()),
    ]


@pytest.mark.parametrize("ask", [claiming(just_ids=True), autoclaiming(just_ids=True)])
def test_justid_is_no_delivery(house: House, ask: Command) -> None:
    """It neither counts nor buries, however often."""
    grouped(house, deliveries=1)
    house.fill("s", 1)
    house.run(reading())
    for _ in range(3):
        assert given(house.run(ask)) == [ONE]
    assert house.keyspace.find("dead") is None


@pytest.mark.parametrize(
    "policy", [{"dead_letter_stream": "dead"}, {"max_deliveries": 1}, {"dead_letter_stream": None}]
)
def test_half_a_policy_buries_nothing(house: House, policy: dict[str, object]) -> None:
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
    house.fill("s", 1)
    house.run(reading())
    for _ in range(5):
        assert given(house.run(claiming())) == [ONE]


ENTRIES: list[Pairs] = [
    [("a", "1"), ("a", "2"), ("b", "")],
    [("a", b"\xff\x00"), ("b", "text")],
    [("a", b"\xff"), ("a", "ü\U0001f600"), ("weir-source", "mine")],
    [("", ',{"id":"'), ("weir-id", "0-1")],
]


@pytest.mark.parametrize("pairs", ENTRIES)
def test_a_letter_holds_the_entry_as_it_was(house: House, pairs: Pairs) -> None:
    """Repeated names, any bytes, names that look like the letter's own: all in order, then the letter's."""
    grouped(house, deliveries=1)
    house.run(types.XAdd(stream="s", bodies=[entries.body(pairs)], ids=[ONE]))
    house.run(reading())
    house.run(reading("c", 0))
    raw = [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
    assert house.pairs("dead") == [[*raw, *letter("1-0", "c", 1)]]


def test_a_released_entry_has_no_consumer(house: House) -> None:
    grouped(house, deliveries=1)
    house.fill("s", 1)
    house.run(reading())
    house.call("XNACK", "s", "g", "FAIL", "IDS", 1, "1-0")
    house.run(reading("d", claim_min_idle_ms=10_000))
    assert house.pairs("dead")[0][1:] == letter("1-0", "", 1)


@everywhere
def test_by_hand(house: House) -> None:
    """With any count: pending entries go, with the reason; others are left alone; each once."""
    house.fill("s", 5)
    house.run(EnsureGroup(stream="s", group="g", start=0, policy={"dead_letter_stream": "dead"}))
    house.run(reading(count=3))
    house.run(types.XDel(stream="s", ids=[id_of("3-0")]))
    wanted = [id_of(f"{number}-0") for number in (2, 1, 2, 3, 4, 9)]
    dead_lettered = house.of(
        DeadLettered, DeadLetterEntries(stream="s", group="g", ids=wanted, reason="bad ü")
    )
    assert dead_lettered == DeadLettered("dead", [id_of("2-0"), ONE], [])
    assert [pairs[1:] for pairs in house.pairs("dead")] == [
        letter("2-0", "c", 1, "bad ü"),
        letter("1-0", "c", 1, "bad ü"),
    ]
    assert [row[0] for row in house.pending("s", "g")] == ["3-0"]  # type: ignore[index]
    again = house.of(DeadLettered, DeadLetterEntries(stream="s", group="g", ids=wanted, reason="again"))
    assert again == DeadLettered("dead", [], [])


@everywhere
def test_by_hand_without_a_place_to_go(house: House) -> None:
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True))
    assert house.refused(DeadLetterEntries(stream="s", group="g", ids=[ONE], reason="")).code == "invalid"
    assert house.refused(DeadLetterEntries(stream="s", group="h", ids=[ONE], reason="")).code == "no_group"
    assert house.refused(DeadLetterEntries(stream="t", group="g", ids=[ONE], reason="")).code == "no_group"


def test_a_poison_that_loops_ends_there_once(house: House) -> None:
    """Every worker dies of it; the others' work is done, and the poison stands in the letters once."""
    grouped(house, deliveries=3)
    house.fill("s", 6)
    house.run(reading("w0"))
    done: list[int] = []
    for number in range(1, 12):
        for entry_id in given(house.run(reading(f"w{number}", claim_min_idle_ms=0, count=1))):
            if entry_id == id_of("4-0"):
                break
            house.call("XACK", "s", "g", ids.format(entry_id))
            done.append(entry_id)
    assert len(house.live("dead")) == 1
    assert ("weir-id", b"4-0") in house.pairs("dead")[0]
    assert len(done) == 5
    assert not house.key("s").groups["g"].pending


def test_an_empty_history_is_the_end_of_it(house: House) -> None:
    """Entries that become dead letters on the way do not count: what lies behind them is answered."""
    grouped(house, deliveries=1)
    house.fill("s", 15)
    house.run(reading(count=10))
    house.run(UpdateGroup(stream="s", group="g", policy={"max_deliveries": 2}))
    house.run(reading("c", 0))
    house.run(reading())
    assert given(house.run(reading("c", 0, count=3))) == [id_of(f"{number}-0") for number in (11, 12, 13)]
    assert len(house.live("dead")) == 10


def test_the_letters_may_go_to_the_stream_itself(house: House) -> None:
    """The entry stands at its end again, as a new one: the count begins anew, nothing is delivered twice."""
    grouped(house, letters="s", deliveries=1)
    house.fill("s", 2)
    house.run(reading())
    found = given(house.run(reading("d", claim_min_idle_ms=0)))
    assert len(found) == 2
    assert min(found) > id_of("2-0")
    assert [dict(pairs).get("weir-id") for pairs in house.pairs("s")] == [None, None, b"1-0", b"2-0"]
    assert [each for each, _ in house.key("s").groups["g"].pending.items()] == found


def test_letters_without_ids_left_are_not_written(house: House) -> None:
    """Where the stream's IDs are used up the entry goes on being delivered, which is reported each time; by
    hand it is refused.
    """
    grouped(house, deliveries=1)
    house.fill("s", 1)
    house.run(adding("dead"))
    house.run(types.XSetId(stream="dead", last_id=ids.ID_MAX))
    house.run(reading())
    for ask in AGAIN.values():
        assert given(house.run(ask)) == [ONE] or ask is AGAIN["a history read"]
        refused = [("s", "g", "dead", stream_exhausted().detail)]
        assert house.turn.letters_refused == (refused if given(house.run(ask)) else [])
    refusal = house.refused(DeadLetterEntries(stream="s", group="g", ids=[ONE], reason=""))
    assert refusal.code == "stream_exhausted"


def test_letters_go_behind_an_id_in_the_future(house: House) -> None:
    grouped(house, deliveries=1)
    house.fill("s", 1)
    house.run(adding("dead", f"{house.now_ms + 10_000}-7"))
    house.run(reading())
    house.run(claiming())
    assert house.live("dead")[-1] == f"{house.now_ms + 10_000}-8"
    assert house.turn.auto_ms == house.now_ms + 10_000


@pytest.mark.parametrize("way", AGAIN)
def test_one_frame_takes_so_many_bytes(house: House, way: str) -> None:
    """What has no room in the turn is not delivered and stays pending, for the next."""
    grouped(house, deliveries=1)
    large = entries.body([("a", "x" * (1 << 20))])
    numbers = range(1, 8)
    for number in numbers:
        house.run(types.XAdd(stream="s", bodies=[large], ids=[id_of(f"{number}-0")]))
    house.run(reading())
    ask = claiming(*[id_of(f"{number}-0") for number in numbers]) if way == "XCLAIM" else AGAIN[way]
    for dead_lettered in (3, 6, 7):
        assert given(house.run(ask)) == []
        assert len(house.live("dead")) == dead_lettered
        assert len(house.payloads[-1]) < dead_letters.TURN_LETTERS_BYTES_MAX + (1 << 20)
    assert not house.key("s").groups["g"].pending


@pytest.mark.parametrize("way", ["a read that claims", "a history read"])
def test_one_turn_takes_so_many_letters(house: House, way: str) -> None:
    grouped(house, deliveries=1)
    house.fill("s", 2_500)
    house.run(reading())
    for dead_lettered in (1_000, 2_000, 2_500):
        assert given(house.run(AGAIN[way])) == []
        assert len(house.live("dead")) == dead_lettered


# --- in the engine --------------------------------------------------------------------------------------


class RunningHouse:
    """An engine in memory under a clock moved by hand."""

    def __init__(self, storage: MemoryStorage, clock: HandClock) -> None:
        self.storage = storage
        self.clock = clock
        self.engine = Engine.open(storage, clock=_as_clock(clock), fsync="everysec")
        self.answer: list[tuple[str, str, int, str]] = []
        self.engine.events.dead_lettered = self.answer.extend

    async def run(self, command: Command) -> Any:
        return await reply_to(self.engine, command)


def _as_clock(clock: HandClock) -> Clock:
    return clock


async def poisoned(running: RunningHouse, run: Callable[[Command], Any]) -> None:
    """A group whose one entry was delivered as often as it may be."""
    policy = {"dead_letter_stream": "dead", "max_deliveries": 1}
    await run(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
    await run(adding("s", "1-0"))
    await run(reading())


async def test_who_waits_for_letters_is_woken_by_whoever_buries() -> None:
    """Also where the one who buries was waiting itself, for the entry to be idle long enough."""
    clock = HandClock()
    running = RunningHouse(MemoryStorage(), clock)
    await poisoned(running, running.run)
    clock.drive(asyncio.get_running_loop())
    await running.engine.start()
    watching = types.XReadGroup(
        group="w", consumer="c", streams=[("dead", types.Cursor.NEW)], block_ms=60_000
    )
    await running.run(EnsureGroup(stream="dead", group="w", start=0, mkstream=True))
    watcher = asyncio.create_task(running.run(watching))
    claimer = asyncio.create_task(running.run(reading("d", claim_min_idle_ms=5_000, block_ms=60_000)))
    await settle()
    assert running.engine.figures().waiting == 2
    clock.pass_ms(5_000)
    await settle()
    await reply_to(
        running.engine, types.DbSize(), synced=True
    )  # what was shown leaves when its IDs are promised
    await settle()
    assert watcher.done()
    assert given(watcher.result()) != []
    assert running.answer == [("s", "g", ONE, "max_deliveries")]
    claimer.cancel()
    await settle()
    running.engine.check()
    await running.engine.close()


async def test_ids_of_letters_are_not_given_again_after_a_crash() -> None:
    """A letter that was shown and then lost in a crash leaves its ID unused."""
    clock = HandClock()
    running = RunningHouse(MemoryStorage(), clock)
    await poisoned(running, running.run)
    await running.run(adding("s", "2-0"))
    await running.run(reading())
    assert given(await running.run(claiming(ONE))) == []
    await reply_to(running.engine, UpdateGroup(stream="s", group="g"), synced=True)
    assert given(await running.run(claiming(id_of("2-0")))) == []
    shown = await running.run(types.XRange(stream="dead", start=0, end=ids.ID_MAX))
    assert isinstance(shown, Entries)
    assert shown.count == 2
    again = RunningHouse(running.storage.crash(), clock)
    kept = await again.run(types.XRange(stream="dead", start=0, end=ids.ID_MAX))
    assert isinstance(kept, Entries)
    assert kept.count == 1, "the second letter is lost"
    added = await again.run(adding("dead"))
    assert isinstance(added, Added)
    assert added.ids[0] > shown.last
    await again.engine.close()
    await running.engine.close()
