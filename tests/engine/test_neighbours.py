"""Every bound of every command, at an ID, one below and one above, where each has an entry: 5-0, 5-1, 5-2.

Knows: the engine, the naive model, and a real Redis 7.0 where it has the command; IDs at the edges of all.
Must never know: how any of them finds an entry. An ID that is off by one meets a neighbour here.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Final

import pytest

from engine import ids
from engine.commands.types import Cursor, Trim, XAck, XGroupCreate, XRead, XReadGroup, XTrim
from engine.commands.weir_commands import EnsureStream, Plan, UpdateStream
from engine.parts.keeping import Retention
from engine.replies import Gap, GroupRead, Planned, StreamsRead, Trimmed
from tests.engine.house import House, adding, id_of
from tests.engine.model import Model
from tests.engine.model_state import ID_MAX, Id, ModelTrim, Refusal, after, before, parse_id
from tests.engine.real_redis import RealRedis
from tests.engine.running import same
from tests.engine.steps import full
from tests.engine.test_beside_redis import comparable
from tests.engine.world import World

NEAR: Final = ("5-0", "5-1", "5-2")
AROUND: Final = ("4-18446744073709551615", *NEAR, "5-3")
LAST: Final = "18446744073709551615-18446744073709551615"
EDGES: Final = ("0-1", "0-2", "18446744073709551615-18446744073709551614", LAST)
# What the entries are, and the IDs that are asked for.
SHAPES: Final = ((NEAR, AROUND), (EDGES, ("0-0", *EDGES)))
Play = Callable[[Model], object]


def calling(name: str, /, *arguments: object, **options: object) -> Play:
    """What the model is asked."""
    return lambda model: getattr(model, name)(*arguments, **options)


class Beside:
    """One stream `s` three times over: what is asked of the engine is asked of the other two."""

    def __init__(self, server: RealRedis, entry_ids: Sequence[str], node_max: int) -> None:
        self.entry_ids, self.server, self.world = entry_ids, server, World()
        self.model = Model(now=self.world.now_ms)
        server.empty()
        self.ask("CONFIG", "SET", "stream-node-max-entries", str(node_max), play=calling("config", node_max))
        for entry_id in entry_ids:
            self.add(entry_id)

    def ask(self, *words: str, play: Play | None = None, newest: bool = False) -> object:
        """The engine's reply, which must be the others'; `newest` where 7.0 has not the command."""
        ours = self.world.call(*words)
        if not newest:
            theirs = self.server.call(*words)
            assert same(comparable(words, theirs), comparable(words, ours)), (
                f"{words}: Redis says {theirs}, the engine {ours}"
            )
        if play is not None:
            try:
                expected = play(self.model)
            except Refusal as refusal:
                expected = f"-{refusal}"
            assert same(expected, ours), f"{words}: the model says {expected}, the engine {ours}"
        return ours

    def add(self, entry_id: str, *words: str, play: Play | None = None) -> object:
        """An entry, or the refusal."""
        play = play or calling("xadd", "s", entry_id, ["a", "1"])
        return self.ask("XADD", "s", *words, entry_id, "a", "1", play=play)

    def group(self, name: str = "g", start: str = "0", consumer: str = "") -> None:
        """A group; with all entries pending for a consumer, if one is given."""
        self.ask("XGROUP", "CREATE", "s", name, start, play=calling("xgroup_create", "s", name, start))
        if consumer:
            words = ("XREADGROUP", "GROUP", name, consumer, "STREAMS", "s", ">")
            self.ask(*words, play=calling("xreadgroup", name, consumer, [("s", ">")]))

    def consumer(self, group: str, name: str) -> None:
        """A consumer: Redis 7.0 makes none for a read that finds nothing."""
        words = ("XGROUP", "CREATECONSUMER", "s", group, name)
        self.ask(*words, play=calling("xgroup_createconsumer", "s", group, name))

    def check(self, *, newest: bool = False) -> None:
        """All that can be seen is the same, and the engine agrees with itself."""
        step = full("s")
        self.ask(*step.words, play=step.play, newest=newest)
        self.world.check()


def lows(some: Sequence[str]) -> list[str]:
    return ["-", *some, *(f"({each}" for each in some)]


def highs(some: Sequence[str]) -> list[str]:
    return ["+", *some, *(f"({each}" for each in some)]


def low(words: str) -> Id | None:
    """The first ID that a bound lets in; None if there is none."""
    if words == "-":
        return (0, 0)
    one = parse_id(words.removeprefix("("))
    return (None if one == ID_MAX else after(one)) if words[0] == "(" else one


def high(words: str) -> Id | None:
    """The last ID that a bound lets in."""
    if words == "+":
        return ID_MAX
    one = parse_id(words.removeprefix("("))
    return (None if one == (0, 0) else before(one)) if words[0] == "(" else one


def plays(start: Id | None, end: Id | None, play: Callable[[Model, Id, Id], object]) -> Play | None:
    """Only the server knows the words for a bound that lets nothing in."""
    return None if start is None or end is None else lambda m: play(m, start, end)


@pytest.mark.parametrize("node_max", [1, 2, 100])
@pytest.mark.parametrize(("entry_ids", "asked"), SHAPES, ids=["near", "edges"])
def test_ranges(server: RealRedis, entry_ids: Sequence[str], asked: Sequence[str], node_max: int) -> None:
    """XRANGE, XREVRANGE and XPENDING, between any two bounds, each with and without itself."""
    beside = Beside(server, entry_ids, node_max)
    beside.group(consumer="a")
    for first, last in product(lows(asked), highs(asked)):
        start, end = low(first), high(last)
        beside.ask("XRANGE", "s", first, last, play=plays(start, end, lambda m, a, z: m.xrange("s", a, z)))
        play = plays(start, end, lambda m, a, z: m.xrange("s", a, z, reverse=True, count=2))
        beside.ask("XREVRANGE", "s", last, first, "COUNT", "2", play=play)
        play = plays(start, end, lambda m, a, z: m.xpending_range("s", "g", a, z, 9))
        beside.ask("XPENDING", "s", "g", first, last, "9", play=play)


@pytest.mark.parametrize("node_max", [1, 2, 100])
@pytest.mark.parametrize(("entry_ids", "asked"), SHAPES, ids=["near", "edges"])
def test_reads(server: RealRedis, entry_ids: Sequence[str], asked: Sequence[str], node_max: int) -> None:
    """XREAD, a group's history, what is new after SETID and CREATE, and XAUTOCLAIM's start and cursor."""
    beside = Beside(server, entry_ids, node_max)
    beside.group(consumer="a")
    beside.group("h")
    beside.consumer("h", "b")
    for place, cursor in enumerate(asked):
        beside.ask("XREAD", "STREAMS", "s", cursor, play=calling("xread", [("s", cursor)]))
        if cursor != LAST:  # Redis begins at 0-0 again there
            words = ("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", cursor)
            beside.ask(*words, play=calling("xreadgroup", "g", "a", [("s", cursor)]))
        setting = ("XGROUP", "SETID", "s", "h", cursor)
        beside.ask(*setting, play=calling("xgroup_setid", "s", "h", cursor))
        beside.group(f"g{place}", cursor)
        beside.consumer(f"g{place}", "b")
        for group in ("h", f"g{place}"):
            words = ("XREADGROUP", "GROUP", group, "b", "STREAMS", "s", ">")
            beside.ask(*words, play=calling("xreadgroup", group, "b", [("s", ">")]))
        for count in (1, 2, 3):
            claiming = ("XAUTOCLAIM", "s", "g", "a", "0", cursor, "COUNT", str(count), "JUSTID")
            play = calling("xautoclaim", "s", "g", "a", 0, parse_id(cursor), count=count, just_id=True)
            beside.ask(*claiming, play=play)
        beside.check()


def xtrim(beside: Beside, cursor: str) -> None:
    beside.ask("XTRIM", "s", "MINID", cursor, play=calling("xtrim", "s", ModelTrim("MINID", cursor)))


def xtrim_nodes(beside: Beside, cursor: str) -> None:
    trim = ModelTrim("MINID", cursor, approx=True)
    beside.ask("XTRIM", "s", *trim.words(), play=calling("xtrim", "s", trim))


def xtrim_acknowledged(beside: Beside, cursor: str) -> None:
    """The first two entries are acknowledged, so nothing else may go."""
    acked = [*map(parse_id, beside.entry_ids[:2])]
    beside.ask("XACK", "s", "g", *beside.entry_ids[:2], play=calling("xack", "s", "g", *acked))
    play = calling("xtrim", "s", ModelTrim("MINID", cursor), "ACKED")
    beside.ask("XTRIM", "s", "MINID", cursor, "ACKED", play=play, newest=True)


def xadd(beside: Beside, cursor: str) -> None:
    play = calling("xadd", "s", "6-0", ["a", "1"], trim=ModelTrim("MINID", cursor))
    beside.add("6-0", "MINID", cursor, play=play)


def xdel(beside: Beside, cursor: str) -> None:
    beside.ask("XDEL", "s", cursor, play=calling("xdel", "s", parse_id(cursor)))
    beside.ask("XREAD", "STREAMS", "s", cursor, play=calling("xread", [("s", cursor)]))


def xack(beside: Beside, cursor: str) -> None:
    beside.ask("XACK", "s", "g", cursor, play=calling("xack", "s", "g", parse_id(cursor)))


def xdelex(beside: Beside, cursor: str) -> None:
    play = calling("xdelex", "s", "DELREF", parse_id(cursor))
    beside.ask("XDELEX", "s", "DELREF", "IDS", "1", cursor, play=play, newest=True)


def xackdel(beside: Beside, cursor: str) -> None:
    play = calling("xackdel", "s", "g", "KEEPREF", parse_id(cursor))
    beside.ask("XACKDEL", "s", "g", "KEEPREF", "IDS", "1", cursor, play=play, newest=True)


def xnack(beside: Beside, cursor: str) -> None:
    play = calling("xnack", "s", "g", "FAIL", parse_id(cursor))
    beside.ask("XNACK", "s", "g", "FAIL", "IDS", "1", cursor, play=play, newest=True)


def xclaim(beside: Beside, cursor: str) -> None:
    beside.consumer("g", "b")
    one = parse_id(cursor)
    words = ("XCLAIM", "s", "g", "b", "0", cursor, "JUSTID", "LASTID", cursor)
    beside.ask(*words, play=calling("xclaim", "s", "g", "b", 0, one, just_id=True, last=one))


def xsetid(beside: Beside, cursor: str) -> None:
    beside.ask("XSETID", "s", cursor, play=calling("xsetid", "s", parse_id(cursor)))


SHARED: Final = (xtrim, xtrim_nodes, xadd, xdel, xack, xclaim, xsetid)
NEWEST: Final = (xtrim_acknowledged, xdelex, xackdel, xnack)


@pytest.mark.parametrize("node_max", [1, 2, 100])
@pytest.mark.parametrize(("entry_ids", "asked"), SHAPES, ids=["near", "edges"])
@pytest.mark.parametrize("change", [*SHARED, *NEWEST])
def test_changes(
    server: RealRedis,
    entry_ids: Sequence[str],
    asked: Sequence[str],
    node_max: int,
    change: Callable[[Beside, str], None],
) -> None:
    """At each ID: what goes, what stays, and every count after it."""
    for cursor in asked:
        beside = Beside(server, entry_ids, node_max)
        beside.group(consumer="a")
        change(beside, cursor)
        beside.check(newest=change in NEWEST)


def test_ids_that_do_not_go_on(server: RealRedis) -> None:
    """Refused at the last one and below it, taken right above it, up to the last ID there is."""
    beside = Beside(server, NEAR[:2], 100)
    for entry_id in ("0-0", "4-18446744073709551615", "5-0", "5-1", "4-*"):
        assert str(beside.add(entry_id)).startswith("-"), entry_id
    taken = ["5-2", "5-*", "5-18446744073709551615"]
    assert [beside.add(entry_id) for entry_id in taken] == ["5-2", "5-3", taken[-1]]
    # Redis 7.0 has other words for this one.
    assert "equal or smaller" in str(beside.world.call("XADD", "s", "5-*", "a", "1"))
    assert beside.add("6-*") == "6-0"
    assert [beside.add(entry_id) for entry_id in EDGES[2:]] == list(EDGES[2:])
    for entry_id in (LAST, "5-5", "*"):
        assert "exhausted" in str(beside.add(entry_id))
    beside.check()


# --- Weir's own: the oracle is the definition ---------------------------------------------------------------


ALL: Final = ("4-0", "4-18446744073709551615", *NEAR, "6-0")
ASKED: Final = ("3-0", "4-0", "4-1", "4-18446744073709551614", *ALL[1:5], "5-3", "6-0", "6-1")


def edges_of(gap: Gap | None) -> tuple[int, int] | None:
    return None if gap is None else (gap.requested, gap.first_available)


def between(start: str, end: str) -> list[str]:
    """What is behind `start`, up to `end`."""
    return [each for each in ALL if id_of(start) < id_of(each) <= id_of(end)]


@pytest.mark.parametrize("kept_from", ALL[1:])
@pytest.mark.parametrize("by", ["trim", "delete"])
def test_a_gap_begins_right_below_the_last_that_was_removed(house: House, kept_from: str, by: str) -> None:
    """There is none for a reader of that one: with neighbours, one ID more or less would lose it silently."""
    house.run(adding("s", *ALL))
    house.run(XGroupCreate(stream="s", group="g", start=0))
    gone = [each for each in ALL if id_of(each) < id_of(kept_from)]
    if by == "trim":
        house.run(XTrim(stream="s", trim=Trim(minid=id_of(kept_from))))
    else:
        house.call("XDEL", "s", *gone)
    for cursor in ASKED:
        after, is_behind = id_of(cursor), id_of(cursor) < id_of(gone[-1])
        found = house.of(StreamsRead, XRead(streams=[("s", after)])).streams
        gaps = [edges_of(one.gap) for one in found]
        assert gaps == ([(after, id_of(kept_from)) if is_behind else None] if found else []), cursor
        planned = house.of(Planned, Plan(streams=[("s", after)])).streams[0]
        assert planned.removed_upto == id_of(gone[-1])
        house.call("XGROUP", "SETID", "s", "g", cursor)
        given = house.of(GroupRead, XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)])).streams
        assert [edges_of(one.gap) for one in given] == gaps, cursor


LIMITS: Final = (Retention(max_len=0), Retention(max_age_ms=1), Retention(max_bytes=0))


@pytest.mark.parametrize("limit", LIMITS, ids=["length", "age", "bytes"])
def test_nothing_goes_that_is_not_archived(limit: Retention) -> None:
    """Up to and including the archive's mark, whichever limit wants more; the neighbour above it stays."""
    for mark in ASKED:
        house = House()
        house.run(adding("s", *ALL))
        house.run(EnsureStream(stream="s", retention=limit._replace(keep_unarchived=True)))
        house.run(UpdateStream(stream="s", archived_up_to=id_of(mark)))
        house.keep_house()
        assert house.live("s") == between(mark, LAST), mark
        house.check()


@pytest.mark.parametrize("limit", LIMITS, ids=["length", "age", "bytes"])
def test_nothing_goes_that_a_group_needs(limit: Retention) -> None:
    """What it has not read, or not acknowledged: the lowest of it stays, and all behind it."""
    for read, acked in product(range(len(ALL) + 1), repeat=2):
        house = House()
        house.run(adding("s", *ALL))
        house.run(XGroupCreate(stream="s", group="g", start=0))
        if read:
            house.run(XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)], count=read))
        house.run(XAck(stream="s", group="g", ids=[id_of(each) for each in ALL[:acked]]))
        house.run(EnsureStream(stream="s", retention=limit._replace(keep_unacknowledged=True)))
        house.keep_house()
        assert house.live("s") == list(ALL[min(read, acked) :]), (read, acked)
        house.check()


def test_a_guarded_trim_stops_at_what_a_group_needs(house: House) -> None:
    """It may take the entry before that one, and not that one itself; a dry run says the same."""
    house.run(adding("s", *ALL))
    house.run(XGroupCreate(stream="s", group="g", start=id_of("5-0")))  # needs 5-1
    for minid in ASKED:
        trim = Trim(minid=id_of(minid))
        gone = [each for each in ALL if id_of(each) < id_of(minid)]
        if "5-1" in gone:
            assert house.refused(XTrim(stream="s", trim=trim, guard=True)).code == "trim_guarded", minid
        else:
            dry = house.of(Trimmed, XTrim(stream="s", trim=trim, guard=True, dry_run=True))
            assert dry.deleted == len(gone), minid
    house.run(XTrim(stream="s", trim=Trim(minid=id_of("5-1")), guard=True))
    assert house.live("s") == ["5-1", "5-2", "6-0"]


@pytest.mark.parametrize("node_max", [1, 2, 100])
def test_a_plan_has_what_is_behind_its_cursor_up_to_its_end(house: House, node_max: int) -> None:
    """Exclusive and inclusive, with any budget; its pieces are the range, each entry once."""
    house.call("CONFIG", "SET", "stream-node-max-entries", node_max)
    house.run(adding("s", *ALL))
    for start, end in product(ASKED, repeat=2):
        wanted = between(start, end)
        for budget, parts in product((None, 1, 2), (1, 2, 9)):
            asked = Plan(
                streams=[("s", id_of(start))], ends={"s": id_of(end)}, max_entries=budget, parts=parts
            )
            found = house.of(Planned, asked).streams[0]
            planned = wanted[:budget]
            assert found.count == len(planned), (start, end)
            assert ids.format(found.end) == (planned[-1] if planned else start), (start, end)
            borders = [start, *map(ids.format, found.cuts), ids.format(found.end)]
            pieces = [between(one, other) for one, other in pairwise(borders)]
            assert [each for piece in pieces for each in piece] == planned, (start, end, parts)
            assert len(pieces) <= parts
            assert found.lag == len(between(start, LAST))
