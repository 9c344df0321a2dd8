"""How much of a stream is kept, and what a trim removes.

Knows: retention by length, age and bytes, what stops it, guarded and dry trims, gaps.
Must never know: APIs.
"""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import Caps, Engine, EngineError, Quota, entries, errors, ids
from engine.commands import types
from engine.commands.retention import TURN_ENTRIES_MAX
from engine.commands.weir_commands import (
    DeleteGroup,
    DescribeEdges,
    EnsureStream,
    ExamineGroup,
    Maintain,
    UpdateStream,
)
from engine.parts.keeping import Retention, kept_of
from engine.replies import Edges, Gap, GroupRead, StreamInfo, StreamsRead, Trimmed
from engine.storage.memory import MemoryStorage
from engine.why import explain
from tests.engine.asking import reply_to, turn_of
from tests.engine.clocks import HandClock
from tests.engine.house import House, adding, everywhere, id_of

# In one slot of a cluster.
T = "{s}t"


def kept(house: House, stream: str, **retention: Any) -> None:
    house.run(EnsureStream(stream=stream, retention=Retention(**retention)))


def reading(stream: str, count: int | None = None, group: str = "g") -> types.XReadGroup:
    return types.XReadGroup(group=group, consumer="c", streams=[(stream, types.Cursor.NEW)], count=count)


# --- how much is kept -----------------------------------------------------------------------------------


@everywhere
def test_length_is_kept_by_whole_nodes_at_once_and_exactly_by_housekeeping(house: House) -> None:
    """A publish drops about a hundred at once; what is over is gone after the next housekeeping. What went
    is a gap.
    """
    kept(house, "s", max_len=250)
    lengths = set()
    for first in range(1, 500):
        house.fill("s", 1, first)
        lengths.add(house.run(types.XLen(stream="s")))
    assert lengths == {*range(1, 350)}
    for most in (250, 251, 250, 249, 1, 0):
        kept(house, "s", max_len=most)
        house.keep_house()
        first = 500 - min(most, 250 if most > 249 else most)
        assert house.live("s") == [f"{number}-0" for number in range(first, 500)]
        assert house.of(Edges, DescribeEdges(stream="s")).removed_upto == id_of(f"{first - 1}-0")


def test_age_is_kept_to_the_millisecond(house: House) -> None:
    """An entry as old as the limit stays; one that is a millisecond older goes."""
    kept(house, "s", max_age_ms=1_000)
    for _ in range(4):
        house.run(adding("s"))
        house.pass_ms(500)
    house.keep_house()
    assert len(house.live("s")) == 2
    house.pass_ms(1)
    house.keep_house()
    assert len(house.live("s")) == 1
    house.pass_ms(1_000)
    house.keep_house()
    assert house.live("s") == []


@pytest.mark.parametrize(("node_entries", "node_bytes"), [(100, 4096), (99, 4096), (0, 0)])
def test_a_stream_that_is_old_all_at_once_goes_in_turns(
    house: House, node_entries: int, node_bytes: int
) -> None:
    """At most 10 000 entries a turn, with nodes of any size; True exactly while there is more."""
    house.call("CONFIG", "SET", "stream-node-max-entries", node_entries)
    house.call("CONFIG", "SET", "stream-node-max-bytes", node_bytes)
    kept(house, "s", max_age_ms=1)
    for first in range(0, 25_500, 5_100):
        house.fill("s", 5_100, first + 1)
    left = 25_500
    while house.run(Maintain()) is True:
        assert left - house.key("s").stream.length == TURN_ENTRIES_MAX
        left = house.key("s").stream.length
    assert house.key("s").stream.length == 0


def test_the_turn_is_for_all_streams_together(house: House) -> None:
    """Ten streams old at once are one turn's work only as far as 10 000 entries go, and none is forgotten."""
    for number in range(10):
        kept(house, f"s{number}", max_len=1)
        house.fill(f"s{number}", 1)
    for number in range(10):
        house.run(UpdateStream(stream=f"s{number}", retention={"max_len": None}))
        house.fill(f"s{number}", 3_000, 2)
        house.run(UpdateStream(stream=f"s{number}", retention={"max_len": 1}))
    before = sum(key.stream.length for key in house.keyspace.keys.values())
    while True:
        more = house.run(Maintain())
        after = sum(key.stream.length for key in house.keyspace.keys.values())
        assert before - after <= TURN_ENTRIES_MAX
        before = after
        if more is not True:
            break
    assert before == 10


@pytest.mark.parametrize(("node_entries", "node_bytes"), [(100, 4096), (0, 0)])
def test_bytes_are_kept_in_whole_nodes(house: House, node_entries: int, node_bytes: int) -> None:
    """Never less than the limit stays, and less than a node more; large nodes go in several turns."""
    house.call("CONFIG", "SET", "stream-node-max-entries", node_entries)
    house.call("CONFIG", "SET", "stream-node-max-bytes", node_bytes)
    house.fill("s", 12_000)
    kept(house, "s", max_bytes=20_000)
    house.fill("s", 1_000, 20_000)
    house.keep_house()
    stream = house.key("s").stream
    if node_entries:
        assert 20_000 <= stream.text_bytes < 30_000
    else:
        assert stream.length == 13_000, "the only node cannot go without the stream falling below its limit"
    kept(house, "s", max_bytes=0)
    house.keep_house()
    assert stream.length == 0


def test_a_publish_keeps_bytes_too(house: House) -> None:
    kept(house, "s", max_bytes=20_000)
    for first in range(1, 5_000, 50):
        house.fill("s", 50, first)
        assert house.key("s").stream.text_bytes < 30_000
    assert house.key("s").stream.text_bytes >= 20_000


def test_the_strictest_limit_counts(house: House) -> None:
    kept(house, "s", max_len=50, max_age_ms=10, max_bytes=1_000_000)
    house.fill("s", 60)
    house.run(adding("s"))
    house.keep_house()
    assert len(house.live("s")) == 1


# --- what stops it --------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("limit", [{"max_len": 1}, {"max_age_ms": 1}, {"max_bytes": 0}])
def test_nothing_goes_that_a_group_has_still_to_read_or_acknowledge(
    house: House, limit: dict[str, int]
) -> None:
    """It stops exactly at the lowest ID that any group needs, and goes on when that is acknowledged."""
    house.fill("s", 10)
    for group in ("g", "h"):
        house.run(types.XGroupCreate(stream="s", group=group, start=0))
    kept(house, "s", **limit, keep_unacknowledged=True)
    house.run(reading("s", 6))
    house.run(reading("s", 8, "h"))
    house.run(types.XAck(stream="s", group="h", ids=[id_of(f"{number}-0") for number in range(1, 9)]))
    house.keep_house()
    assert house.live("s")[0] == "1-0"
    house.run(types.XAck(stream="s", group="g", ids=[id_of("1-0"), id_of("2-0"), id_of("4-0")]))
    house.keep_house()
    assert house.live("s")[0] == "3-0"
    house.fill("s", 300, 11)
    assert house.live("s")[0] == "3-0"
    house.run(types.XAck(stream="s", group="g", ids=[id_of(f"{number}-0") for number in range(3, 7)]))
    house.keep_house()
    assert house.live("s")[0] == "7-0"


_LIMITS = [{"max_len": 0}, {"max_len": 1}, {"max_age_ms": 1}, {"max_len": 0, "max_age_ms": 1}]


@everywhere
@pytest.mark.parametrize("limits", _LIMITS)
def test_until_there_is_a_group_all_is_kept(house: House, limits: dict[str, int]) -> None:
    """Nothing can be acknowledged yet. The first group gets all of it, and what it acknowledges goes; until
    then it is named with what it needs, unread or pending, where a limit would remove that.
    """
    kept(house, "s", **limits, keep_unacknowledged=True)
    house.fill("s", 301)
    house.fill("s", 1, 302)
    house.keep_house()
    assert (len(house.live("s")), held(house)) == (302, "no group")
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    house.keep_house()
    assert (len(house.live("s")), held(house)) == (302, "g 1-0")
    house.run(reading("s"))
    house.run(types.XDel(stream="s", ids=[id_of("1-0")]))
    house.keep_house()
    assert (house.live("s")[0], held(house)) == ("2-0", "g 1-0")
    house.run(types.XAck(stream="s", group="g", ids=[id_of(f"{number}-0") for number in range(1, 302)]))
    house.keep_house()
    assert (house.live("s"), held(house)) == (["302-0"], "" if limits == {"max_len": 1} else "g 302-0")


def test_until_there_is_a_group_all_is_kept_up_to_the_size(house: House) -> None:
    """Publishing and housekeeping keep `max_bytes`, whatever the other limits are."""
    kept(house, "s", max_len=0, max_bytes=20_000, keep_unacknowledged=True)
    for first in range(1, 5_000, 50):
        house.fill("s", 50, first)
        assert house.key("s").stream.text_bytes < 30_000
    house.keep_house()
    assert (house.key("s").stream.text_bytes >= 20_000, held(house)) == (True, "no group")
    house.run(UpdateStream(stream="s", retention={"keep_unarchived": True, "max_bytes": 0}))
    before = len(house.live("s"))
    house.keep_house()
    assert len(house.live("s")) == before


def _rename(house: House) -> None:
    house.run(types.Rename(stream="s", target=T))
    house.run(types.Rename(stream=T, target="s"))


def _copy(house: House) -> None:
    house.run(types.Copy(stream="s", target=T))
    _put_in_its_place(house)


def _put_in_its_place(house: House) -> None:
    house.run(types.Delete(streams=["s"]))
    house.run(types.Rename(stream=T, target="s"))


_ALL_ITS_WAYS = [House.restart, House.rewrite, _rename, _copy]


@everywhere
@pytest.mark.parametrize("way", _ALL_ITS_WAYS)
def test_that_there_was_no_group_goes_along(house: House, way: Callable[[House], None]) -> None:
    """Over a restart, a snapshot, another name and a copy."""
    kept(house, "s", max_len=0, keep_unacknowledged=True)
    house.fill("s", 5)
    way(house)
    house.keep_house()
    assert (len(house.live("s")), held(house)) == (5, "no group")


@everywhere
@pytest.mark.parametrize("way", _ALL_ITS_WAYS)
@pytest.mark.parametrize("destroy", [types.XGroupDestroy, DeleteGroup])
def test_without_its_last_group_nothing_is_unacknowledged(
    house: House, way: Callable[[House], None], destroy: type[types.XGroupDestroy | DeleteGroup]
) -> None:
    """Whoever removes it wants no more of it: limits are kept, in whichever way the stream goes on."""
    house.fill("s", 5)
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    house.run(destroy(stream="s", group="g"))
    way(house)
    kept(house, "s", max_len=1, keep_unacknowledged=True)
    way(house)
    house.keep_house()
    assert (house.live("s"), held(house)) == (["5-0"], "")
    house.check()


@everywhere
def test_a_stream_made_anew_has_had_no_group(house: House) -> None:
    """It is another generation."""
    house.fill("s", 1)
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    house.run(types.Delete(streams=["s"]))
    kept(house, "s", max_len=0, keep_unacknowledged=True)
    house.fill("s", 5)
    house.keep_house()
    assert (len(house.live("s")), held(house)) == (5, "no group")


_CAPS = {"memory_full": 1, "quota_exceeded": None, "storage_full": None}


@pytest.mark.parametrize("code", _CAPS)
@pytest.mark.parametrize("others", [[], [adding("other")]])
@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_refusal_for_want_of_room_names_the_stream_that_keeps_all(
    code: str, others: list[types.XAdd], *, is_kept: bool
) -> None:
    """Alone and among others, by each code there is; not where it would be trimmed."""
    assert _CAPS.keys() == errors.OF_ROOM
    disk, size = MemoryStorage(space_bytes=64 << 20), 32 << 20 if code == "storage_full" else 20_000
    quotas = [Quota("*", "", lambda _: True, None, 10_000)] if code == "quota_exceeded" else []
    large = types.XAdd(stream="s", bodies=[entries.body([("a", "x" * size)])])
    retention = Retention(max_len=0 if is_kept else None, keep_unacknowledged=is_kept)
    async with Engine.open(disk, clock=HandClock(), fsync="no") as engine:
        await reply_to(engine, EnsureStream(stream="s", retention=retention))
    caps = Caps(memory_bytes_max=_CAPS[code])
    async with Engine.open(disk, clock=HandClock(), fsync="no", caps=caps) as engine:
        refusal = None
        while refusal is None:
            try:
                await turn_of(engine, [*others, large], quotas=quotas)
            except EngineError as error:
                refusal = error
    assert refusal.code == code
    named = {"stream": "s", "held_by": "no group"} if is_kept else {}
    assert {name: refusal.members.get(name) for name in named} == named
    assert ("make its group" in refusal.detail, "held_by" in refusal.members) == (is_kept,) * 2


def held(house: House) -> str:
    info = house.of(StreamInfo, types.XInfoStream(stream="s"))
    return f"{info.held_by} {ids.format(info.held_id)}" if info.held_id else info.held_by


async def test_a_queue_whose_tasks_are_done_over_and_over_keeps_its_memory() -> None:
    """By what is counted and by what Python holds, but for the disk; what an old
    pending entry holds up goes with it, and `why` names the oldest, once.
    """

    async def held_bytes(rounds: int) -> tuple[int, int]:
        for _ in range(rounds):
            await reply_to(engine, types.XAdd(stream="s", bodies=[entries.body([("a", "1")])] * 100))
            read: Any = await reply_to(engine, reading("s"))
            done = [entry.id for entry in read.streams[0].entries]
            await reply_to(engine, types.XAck(stream="s", group="g", ids=done))
        await reply_to(engine, Maintain())
        gc.collect()
        without_disk = [tracemalloc.Filter(inclusive=False, filename_pattern="*/engine/storage/memory.py")]
        traces = tracemalloc.take_snapshot().filter_traces(without_disk).traces
        return engine.memory.estimated_bytes, sum(trace.size for trace in traces)

    async with Engine.open(None, clock=HandClock(1_000), fsync="no") as engine:
        await reply_to(engine, EnsureStream(stream="s", retention=Retention(0, keep_unacknowledged=True)))
        await reply_to(engine, types.XGroupCreate(stream="s", group="g", start=0))
        tracemalloc.start()
        try:
            before, python_before = await held_bytes(80)
            held: Any = await reply_to(engine, adding("s", "2000-0", "2000-1"))
            await reply_to(engine, reading("s"))
            assert (await held_bytes(1))[0] > before
            facts: Any = await reply_to(engine, ExamineGroup(stream="s", group="g"))
            said = [one.detail for one in explain(facts, "s", "g", None) if one.code == "held"]
            assert [detail.partition(" ")[0] for detail in said] == ["2000-0"]
            await reply_to(engine, types.XAck(stream="s", group="g", ids=held.ids))
            after, python_after = await held_bytes(320)
        finally:
            tracemalloc.stop()
    assert after == before
    # As objects, 32,000 entries would take 2.8 MB; 64 nodes of a hundred are at hand.
    assert python_after - python_before < 1 << 20


@everywhere
def test_nothing_goes_that_is_not_archived(house: House) -> None:
    """Up to and including `archived_up_to` may go, nothing beyond; a copy has no archive."""
    kept(house, "s", max_age_ms=1, keep_unarchived=True)
    house.fill("s", 5)
    house.keep_house()
    assert len(house.live("s")) == 5
    house.run(UpdateStream(stream="s", archived_up_to=id_of("3-0")))
    house.run(types.Copy(stream="s", target=T))
    house.keep_house()
    assert house.live("s") == ["4-0", "5-0"]
    copy = house.of(StreamInfo, types.XInfoStream(stream=T))
    assert (copy.length, copy.max_age_ms, copy.archived_up_to) == (5, 1, 0)


def test_a_change_names_only_what_changes(house: House) -> None:
    """The rest of the retention stays, the archive's mark too; None takes a limit away; twice logs once."""
    kept(house, "s", max_len=7, keep_unarchived=True)
    house.run(UpdateStream(stream="s", retention={"max_age_ms": 5}, archived_up_to=id_of("3-0")))
    house.run(UpdateStream(stream="s", retention={"max_bytes": 100}))
    assert kept_of(house.key("s")).retention == Retention(7, 5, 100, keep_unarchived=True)
    assert kept_of(house.key("s")).archived_up_to == id_of("3-0")
    house.run(UpdateStream(stream="s", retention={"max_len": None}))
    assert kept_of(house.key("s")).retention == Retention(None, 5, 100, keep_unarchived=True)
    logged = len(house.payloads)
    house.run(UpdateStream(stream="s", retention={"max_len": None}))
    assert len(house.payloads) == logged
    info = house.of(StreamInfo, types.XInfoStream(stream="s"))
    assert (info.max_len, info.max_age_ms, info.max_bytes, info.keep_unarchived) == (None, 5, 100, True)
    assert house.refused(UpdateStream(stream="none")).code == "no_stream"


@pytest.mark.parametrize("again", [House.restart, House.rewrite])
def test_retention_goes_on_after_a_restart(house: House, again: Any) -> None:
    """From the log and from a snapshot: the limits are there, and so is the duty to enforce them."""
    kept(house, "s", max_len=3, max_age_ms=10_000_000_000_000, keep_unarchived=True)
    house.fill("s", 10)
    house.run(UpdateStream(stream="s", archived_up_to=id_of("100-0")))
    again(house)
    house.keep_house()
    assert house.live("s") == ["8-0", "9-0", "10-0"]


# --- trims ----------------------------------------------------------------------------------------------


def test_a_trim_inside_a_node_whose_last_entry_is_deleted(house: House) -> None:
    """What is below goes, also when nothing live stays in the node."""
    house.fill("s", 3)
    house.run(types.XDel(stream="s", ids=[id_of("3-0")]))
    assert house.run(types.XTrim(stream="s", trim=types.Trim(minid=id_of("3-0")))) == Trimmed(2)
    assert house.live("s") == []


def test_a_guarded_trim_that_would_pass_a_group_removes_nothing(house: House) -> None:
    """It refuses at the oldest pending or unread entry, with any strategy, and trims up to there."""
    house.fill("s", 6)
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    house.run(reading("s", 4))
    house.run(types.XAck(stream="s", group="g", ids=[id_of("1-0"), id_of("2-0"), id_of("4-0")]))
    for trim in (
        types.Trim(maxlen=3),
        types.Trim(minid=id_of("4-0")),
        types.Trim(older_than_ms=1),
        types.Trim(maxlen=0),
    ):
        for refs in types.Refs:
            if refs is not types.Refs.ACKED:
                asked = types.XTrim(
                    stream="s", trim=types.Trim(**{**_fields(trim), "refs": refs}), guard=True
                )
                refusal = house.refused(asked)
                assert (refusal.code, refusal.members) == ("trim_guarded", {"needed_from": "3-0"})
    assert (
        house.of(Trimmed, types.XTrim(stream="s", trim=types.Trim(minid=id_of("3-0")), guard=True)).deleted
        == 2
    )
    assert house.of(Trimmed, types.XTrim(stream="s", trim=types.Trim(maxlen=4), guard=True)).deleted == 0


def _fields(trim: types.Trim) -> dict[str, Any]:
    return {name: getattr(trim, name) for name in trim.__struct_fields__}


def test_what_a_trim_takes_from_under_the_pending_is_counted_once(house: House) -> None:
    """An entry lost to a pending list by an earlier trim or delete is not lost again by the next."""
    house.fill("s", 6)
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    house.run(reading("s"))
    assert _affected(house, 5) == 1
    assert _affected(house, 4) == 1
    house.run(types.XDel(stream="s", ids=[id_of("4-0")]))
    assert _affected(house, 1) == 2


def _affected(house: House, maxlen: int) -> int:
    return house.of(
        Trimmed, types.XTrim(stream="s", trim=types.Trim(maxlen=maxlen, count_pending=True))
    ).pending_affected


fields = st.fixed_dictionaries({"refs": st.sampled_from(types.Refs), "approx": st.booleans()})
strategies = st.one_of(
    st.builds(lambda n: {"maxlen": n}, st.integers(0, 40)),
    st.builds(lambda n: {"minid": id_of(f"{n}-0")}, st.integers(0, 45)),
    st.builds(lambda n: {"older_than_ms": n}, st.integers(0, 60)),
)
trims = st.builds(
    lambda a, b, n: types.Trim(**a, **b, limit=n if b["approx"] else None, count_pending=True),
    strategies,
    fields,
    st.none() | st.integers(0, 20),
)
some = st.lists(st.integers(1, 40), max_size=12)


@given(
    node=st.integers(0, 7),
    length=st.integers(0, 40),
    gone=some,
    acked=some,
    read=st.lists(st.integers(0, 40), max_size=3),
    asked=st.lists(trims, min_size=1, max_size=3),
    guard=st.booleans(),
)
def test_a_dry_run_tells_what_the_trim_then_does(
    *,
    node: int,
    length: int,
    gone: list[int],
    acked: list[int],
    read: list[int],
    asked: list[types.Trim],
    guard: bool,
) -> None:
    """Its answer is the real one's, it changes nothing, and no trim removes more than was asked."""
    house = House(now_ms=45)
    house.call("CONFIG", "SET", "stream-node-max-entries", node)
    if length:
        house.fill("s", length)
    else:
        house.run(EnsureStream(stream="s"))
    for number, count in enumerate(read):
        house.run(types.XGroupCreate(stream="s", group=f"g{number}", start=0))
        if count:
            house.run(reading("s", count, f"g{number}"))
        house.run(types.XAck(stream="s", group=f"g{number}", ids=[id_of(f"{one}-0") for one in acked]))
    house.run(types.XDel(stream="s", ids=[id_of(f"{one}-0") for one in gone]))
    for trim in asked:
        _trim_both_ways(house, trim, guard=guard)
    house.check()


def _trim_both_ways(house: House, trim: types.Trim, *, guard: bool) -> None:
    try:
        dry = house.of(Trimmed, types.XTrim(stream="s", trim=trim, dry_run=True, guard=guard))
    except EngineError as refusal:
        result = refusal.members
    else:
        assert not house.turn.records, "a dry run changes nothing"
        _trim_as_told(house, trim, dry, guard=guard)
        return
    assert house.refused(types.XTrim(stream="s", trim=trim, guard=guard)).members == result


def _trim_as_told(house: House, trim: types.Trim, dry: Trimmed, *, guard: bool) -> None:
    before, pending = house.live("s"), _pending_alive(house)
    assert house.run(types.XTrim(stream="s", trim=trim, guard=guard)) == dry
    after = house.live("s")
    removed = [one for one in before if one not in after]
    assert len(removed) == dry.deleted
    assert (after or ["0-0"])[0] == f"{dry.first_id >> 64}-0"
    assert pending - _pending_alive(house) == dry.pending_affected
    exact = not trim.approx and trim.refs is not types.Refs.ACKED
    if trim.maxlen is not None:
        assert not removed or len(after) >= trim.maxlen
        assert not exact or len(after) <= trim.maxlen
    else:
        oldest = id_of(f"{max(0, house.now_ms - (trim.older_than_ms or 0))}-0")
        bound = oldest if trim.minid is None else trim.minid
        assert all(id_of(one) < bound for one in removed)
        assert not exact or all(id_of(one) >= bound for one in after)
    assert not trim.limit or len(removed) <= trim.limit


def _pending_alive(house: House) -> int:
    key = house.key("s")
    return sum(one in key.stream for group in key.groups.values() for one, _ in group.pending.items())


# --- gaps -----------------------------------------------------------------------------------------------


def gap_of(house: House, after: str) -> Gap | None:
    """What a reader that stopped there gets."""
    found = house.of(StreamsRead, types.XRead(streams=[("s", id_of(after))])).streams
    return found[0].gap if found else None


def test_a_reader_is_told_of_what_went_from_the_front(house: House) -> None:
    """Trimmed or deleted: a cursor below what was removed meets a gap; 0 never does, nor one at its edge."""
    house.fill("s", 10)
    house.run(types.XTrim(stream="s", trim=types.Trim(minid=id_of("4-0"))))
    assert gap_of(house, "2-0") == Gap(id_of("2-0"), id_of("4-0"), None)
    assert gap_of(house, "2-9") is not None
    assert gap_of(house, "3-0") is None
    assert gap_of(house, "0-0") is None
    house.run(types.XDel(stream="s", ids=[id_of("4-0"), id_of("5-0")]))
    assert gap_of(house, "3-0") == Gap(id_of("3-0"), id_of("6-0"), None)
    assert gap_of(house, "5-0") is None


def test_a_deletion_in_the_middle_is_no_gap(house: House) -> None:
    """Not by itself, nor when the front reaches it later: that entry was never promised."""
    house.fill("s", 5)
    house.run(types.XDel(stream="s", ids=[id_of("3-0")]))
    assert house.key("s").stream.removed_upto == 0
    house.run(types.XDel(stream="s", ids=[id_of("1-0"), id_of("2-0")]))
    assert house.key("s").stream.removed_upto == id_of("2-0")
    assert gap_of(house, "2-0") is None
    assert gap_of(house, "1-0") is not None


def test_entries_below_those_removed_before_the_last_id_was_set_back_are_no_gap(house: House) -> None:
    """XSETID down: what comes then was never removed, whatever was above it; over a restart too."""
    house.run(types.XAdd(stream="s", bodies=[entries.body([("n", "1")])], ids=[id_of("100-0")]))
    house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=0)))
    house.run(types.XSetId(stream="s", last_id=id_of("10-0")))
    house.run(
        types.XAdd(stream="s", bodies=[entries.body([("n", "1")])] * 2, ids=[id_of("11-0"), id_of("12-0")])
    )
    assert gap_of(house, "11-0") is None
    house.rewrite()
    assert gap_of(house, "11-0") is None
    assert gap_of(house, "9-0") == Gap(id_of("9-0"), id_of("11-0"), None)


def test_removed_upto_never_falls_otherwise_and_survives(house: House) -> None:
    house.fill("s", 5)
    house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=0)))
    assert house.key("s").stream.removed_upto == id_of("5-0")
    house.rewrite()
    house.fill("s", 2, 6)
    assert house.key("s").stream.removed_upto == id_of("5-0")
    assert gap_of(house, "4-0") == Gap(id_of("4-0"), id_of("6-0"), None)


@pytest.mark.parametrize(("deleting", "lost"), [(False, 3), (True, None)])
def test_a_group_is_told_how_many_it_lost(house: House, *, deleting: bool, lost: int | None) -> None:
    """The number where both counts are known, else null; reported once, with the entries that follow."""
    house.fill("s", 8)
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    house.run(reading("s", 2))
    house.run(types.XTrim(stream="s", trim=types.Trim(minid=id_of("6-0"))))
    if deleting:
        house.run(types.XDel(stream="s", ids=[id_of("7-0")]))
    first = house.of(GroupRead, reading("s", 1)).streams[0]
    assert first.gap == Gap(id_of("2-0"), id_of("6-0"), lost)
    assert house.of(GroupRead, reading("s", 1)).streams[0].gap is None


def test_a_new_group_has_no_gap(house: House) -> None:
    house.fill("s", 8)
    house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=2)))
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    assert house.of(GroupRead, reading("s")).streams[0].gap is None


@everywhere
def test_a_stream_that_changed_is_not_changed_again(house: House) -> None:
    """`expected` is compared in the same turn as the change."""
    house.fill("s", 2)
    seen = house.of(StreamInfo, types.XInfoStream(stream="s"))
    house.run(UpdateStream(stream="s", retention={"max_len": 7}, expected=seen))
    stale = UpdateStream(stream="s", retention={"max_len": 8}, expected=seen)
    assert house.refused(stale).code == "precondition_failed"
    now = house.of(StreamInfo, types.XInfoStream(stream="s"))
    assert (now.max_len, now.length) == (7, 2)


def test_a_publish_that_trims_and_keeps_at_once(house: House) -> None:
    """The publisher's own trim and the stream's retention both hold."""
    kept(house, "s", max_len=100)
    house.fill("s", 250)
    body = [entries.body([("a", "1")])]
    house.run(types.XAdd(stream="s", bodies=body, ids=[id_of("999-0")], trim=types.Trim(maxlen=5)))
    assert len(house.live("s")) == 5
