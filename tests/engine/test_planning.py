"""Plans: what lies behind each cursor, a budget shared, ranges cut; cheap however long the streams are."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import entries, ids
from engine.apportion import apportion
from engine.commands.execution import READ_STREAMS_MAX, Blocked, execute, is_ready
from engine.commands.planning import durable_queue
from engine.commands.types import Delete, FlushAll, Trim, XDel, XTrim
from engine.commands.weir_commands import Plan
from engine.records.changes import Append, RemoveStream, SetCounters
from engine.replies import Planned, StreamPlan
from engine.runtime.unsynced import UnsyncedPositions
from tests.engine.house import House, id_of
from tests.engine.test_costs import BODY, Calls, cost, filled, id_at, pack


@pytest.fixture
def house() -> House:
    """Streams `a` with 1-0 to 9-0 and `b` with 1-0 to 3-0; all of both is on disk."""
    house = House()
    house.fill("a", 9)
    house.fill("b", 3)
    house.keyspace.unsynced_from = lambda _: ids.ID_MAX + 1
    return house


def planned(house: House, command: Plan) -> dict[str, StreamPlan]:
    return {one.stream: one for one in house.of(Planned, command).streams}


def of_a(house: House, after: str, **more: object) -> StreamPlan:
    command = Plan(streams=[("a", id_of(after))], **more)  # type: ignore[arg-type]
    return planned(house, command)["a"]


def test_a_range_is_counted_up_to_the_end(house: House) -> None:
    """Entries and bytes behind the cursor, and where the stream begins and ends."""
    house.run(XTrim(stream="a", trim=Trim(maxlen=8)))
    house.run(XDel(stream="a", ids=[id_of("5-0")]))
    one = of_a(house, "3-0")
    assert (one.after, one.end, one.count, one.lag) == (id_of("3-0"), id_of("9-0"), 5, 5)
    assert (one.first_id, one.last_id, one.removed_upto) == (id_of("2-0"), id_of("9-0"), id_of("1-0"))
    assert (one.max_deleted_id, one.durable, one.cuts) == (id_of("5-0"), id_of("9-0"), [])
    text = entries.encode(id_of("4-0"), BODY)
    assert one.bytes == 5 * len(text)


@pytest.mark.parametrize("after", ["9-0", "9-5", "30-0"])
def test_nothing_to_read_ends_where_it_begins(house: House, after: str) -> None:
    """Also for a cursor ahead of the stream: who asks compares it with the last ID."""
    one = of_a(house, after)
    assert (one.end, one.count, one.bytes, one.lag, one.last_id) == (id_of(after), 0, 0, 0, id_of("9-0"))


def test_an_end_bounds_its_stream(house: House) -> None:
    """Inclusive; the lag is of all the same. One before the cursor leaves nothing."""
    for end, found in (("4-0", ("4-0", 2)), ("4-7", ("4-0", 2)), ("1-0", ("2-0", 0)), ("99-0", ("9-0", 7))):
        one = of_a(house, "2-0", ends={"a": id_of(end)})
        assert (ids.format(one.end), one.count, one.lag) == (*found, 7)


def test_a_missing_stream_is_told(house: House) -> None:
    """Among the present ones."""
    reply = house.of(Planned, Plan(streams=[("none", 0), ("b", 0)]))
    assert ([one.stream for one in reply.streams], reply.missing) == (["b"], ["none"])


def test_a_budget_is_shared_in_proportion(house: House) -> None:
    """Of entries; each stream gets one at least."""
    for most, counts in ((8, (6, 2)), (2, (1, 1)), (1, (1, 1)), (100, (9, 3))):
        found = planned(house, Plan(streams=[("a", 0), ("b", 0)], max_entries=most))
        assert tuple(one.count for one in found.values()) == counts
        assert [ids.format(one.end) for one in found.values()] == [f"{count}-0" for count in counts]


def test_a_budget_of_bytes_is_kept(house: House) -> None:
    """But for the first entry of each stream; both budgets together are the smaller one."""
    size = len(entries.encode(id_of("4-0"), BODY))
    assert of_a(house, "0-0", max_bytes=3 * size).count == 3
    assert of_a(house, "0-0", max_bytes=3 * size - 1).count == 2
    assert of_a(house, "0-0", max_bytes=1).count == 1
    assert of_a(house, "0-0", max_bytes=5 * size, max_entries=2).count == 2
    one = of_a(house, "0-0", max_bytes=2 * size, max_entries=5)
    assert (one.count, one.bytes, one.lag) == (2, 2 * size, 9)


def test_ranges_are_cut_into_equal_pieces(house: House) -> None:
    """By their entries; a cut ends its piece, and no piece is empty."""
    assert [ids.format(cut) for cut in of_a(house, "0-0", parts=3).cuts] == ["3-0", "6-0"]
    assert len(of_a(house, "0-0", parts=200).cuts) == 8
    assert of_a(house, "9-0", parts=3).cuts == []


def test_what_a_crash_may_take_back_is_not_planned(house: House) -> None:
    """With `durable_only`; `durable` says it in any case."""
    house.keyspace.unsynced_from = lambda name: id_of("5-0") if name == "a" else ids.ID_MAX + 1
    assert [ids.format(one) for one in (of_a(house, "0-0").end, of_a(house, "0-0").durable or 0)] == [
        "9-0",
        "4-0",
    ]
    one = of_a(house, "0-0", durable_only=True)
    assert (ids.format(one.end), one.count, one.lag) == ("4-0", 4, 9)
    assert of_a(house, "6-0", durable_only=True).end == id_of("6-0")
    house.keyspace.unsynced_from = None
    assert of_a(house, "0-0").durable is None
    assert house.refused(Plan(streams=[("a", 0)], durable_only=True)).code == "invalid"


def test_a_plan_of_nothing_waits(house: House) -> None:
    """In the queues of its streams, or of what is on disk of them; ready once there is something."""
    outcome = execute(house.keyspace, Plan(streams=[("a", id_of("9-0")), ("c", 0)], block_ms=5), house.now_ms)
    blocked = outcome.reply
    assert isinstance(blocked, Blocked)
    assert blocked.streams == ("a", "c")
    assert not is_ready(house.keyspace, blocked, house.now_ms)
    house.fill("a", 1, first=10)
    assert is_ready(house.keyspace, blocked, house.now_ms)
    assert is_ready(house.keyspace, blocked, house.now_ms, "a")
    assert not is_ready(house.keyspace, blocked, house.now_ms, "c")


def test_a_plan_of_what_is_on_disk_waits_for_that(house: House) -> None:
    """A stream's own queue does not wake it."""
    house.keyspace.unsynced_from = lambda _: id_of("9-0")
    command = Plan(streams=[("a", id_of("8-0"))], durable_only=True, block_ms=5)
    blocked = execute(house.keyspace, command, house.now_ms).reply
    assert isinstance(blocked, Blocked)
    assert blocked.streams == (durable_queue("a"),)
    assert not is_ready(house.keyspace, blocked, house.now_ms, durable_queue("a"))
    house.keyspace.unsynced_from = lambda _: ids.ID_MAX + 1
    assert is_ready(house.keyspace, blocked, house.now_ms, durable_queue("a"))


def test_a_plan_is_of_so_many_streams(house: House) -> None:
    """As every read is."""
    streams = [(f"s{number}", 0) for number in range(READ_STREAMS_MAX + 1)]
    assert house.refused(Plan(streams=streams)).code == "invalid"


@given(st.lists(st.integers(0, 10_000), max_size=30), st.integers(1, 30_000))
def test_shares_are_fair(wanted: Sequence[int], budget: int) -> None:
    """No stream gets more than it wants, nor nothing; the budget is used up, and kept but for single ones.
    A stream that wants more does not get less.
    """
    given_shares = apportion(wanted, budget)
    hungry = sum(one > 0 for one in wanted)
    assert all(min(1, one) <= got <= one for one, got in zip(wanted, given_shares, strict=True))
    assert sum(given_shares) == min(sum(wanted), max(budget, hungry))
    by_want = [got for _, got in sorted(zip(wanted, given_shares, strict=True))]
    assert all(larger >= smaller - 1 for smaller, larger in pairwise(by_want))
    exact = [one * budget / max(sum(wanted), 1) for one in wanted]
    if budget <= sum(wanted):
        assert all(abs(got - part) <= max(2, hungry) for got, part in zip(given_shares, exact, strict=True))


@given(st.lists(st.integers(1, 60), min_size=1, unique=True), st.data())
def test_a_plan_read_page_by_page_misses_nothing(numbers: Sequence[int], data: st.DataObject) -> None:
    """With any budget, pieces and holes: each entry is in one piece of one plan."""
    house = House()
    house.keyspace.settings["stream-node-max-entries"] = data.draw(st.integers(1, 8))
    for number in sorted(numbers):
        house.fill("a", 1, first=number)
    gone = data.draw(st.sets(st.sampled_from(numbers), max_size=len(numbers) - 1))
    house.run(XDel(stream="a", ids=[id_at(number) for number in gone]))
    live = [id_at(number) for number in sorted(set(numbers) - gone)]
    after, found = 0, list[int]()
    while True:
        one = planned(
            house,
            Plan(
                streams=[("a", after)],
                max_entries=data.draw(st.none() | st.integers(1, 20)),
                max_bytes=data.draw(st.none() | st.integers(1, 600)),
                parts=data.draw(st.integers(1, 5)),
            ),
        )["a"]
        pieces = [live_in(live, low, high) for low, high in pairwise([after, *one.cuts, one.end])]
        assert all(pieces) or one.count == 0
        assert sum(map(len, pieces)) == one.count
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
        found += [entry_id for piece in pieces for entry_id in piece]
        if not one.count:
            break
        after = one.end
    assert found == live


def live_in(live: Sequence[int], low: int, high: int) -> list[int]:
    return [entry_id for entry_id in live if low < entry_id <= high]


# ---- costs


@pytest.mark.no_cover
@pytest.mark.parametrize(("counts", "holes"), [((10_000, 1_000_000), False), ((10_000, 100_000), True)])
def test_a_plan_costs_the_same_for_long_streams(counts: Sequence[int], *, holes: bool) -> None:
    """Counted, shared and cut: of a hundred times the entries at half as many calls more, holes or none."""
    costs = []
    for count in counts:
        house = filled(count)
        if holes:
            for low in range(1, count, 1_500):
                house.run(XDel(stream="s", ids=[id_at(n) for n in range(low, min(low + 1_500, count), 3)]))
        pack(house)
        command = Plan(streams=[("s", id_at(count // 3))], max_entries=count // 2, max_bytes=10**7, parts=8)
        house.run(command)
        costs.append(cost(house, command))
    assert costs[1] <= costs[0] * 1.5


def test_a_plan_that_waits_is_looked_at_where_something_happened() -> None:
    """One stream of a thousand."""
    house = House()
    streams = [(f"s{number}", 0) for number in range(1_000)]
    blocked = execute(house.keyspace, Plan(streams=streams, block_ms=1), house.now_ms).reply
    assert isinstance(blocked, Blocked)
    with Calls() as calls:
        assert not is_ready(house.keyspace, blocked, house.now_ms, "s7")
    many = calls.count
    with Calls() as calls:
        assert not is_ready(house.keyspace, Blocked(Plan(streams=streams[:10]), (), 1), 0, "s7")
    assert many <= calls.count + 20


# ---- what is on disk


def lowest(volatile: UnsyncedPositions, names: Sequence[str] = ("a", "b")) -> Mapping[str, int]:
    found = {name: volatile.lowest(name) for name in names}
    return {name: one for name, one in found.items() if one <= ids.ID_MAX}


def test_frames_between_two_syncs_become_durable_together() -> None:
    """Once the last position of them is on disk, never before; what comes meanwhile holds nothing back."""
    volatile = UnsyncedPositions()
    volatile.note_staged([Append("a", [b""], [5]), Append("b", [b""], [7])], 100)
    volatile.note_staged([Append("a", [b""], [9])], 200)
    assert lowest(volatile) == {"a": 5, "b": 7}
    assert volatile.note_synced(100) == []
    volatile.begin_sync()
    volatile.note_staged([Append("a", [b""], [12])], 300)
    assert lowest(volatile) == {"a": 5, "b": 7}
    assert sorted(volatile.note_synced(200)) == ["a", "b"]
    assert lowest(volatile) == {"a": 12}
    assert volatile.note_synced(300) == ["a"]
    assert lowest(volatile) == {}


def test_of_a_stream_made_anew_nothing_is_durable_yet() -> None:
    """With any IDs of the one before; the lowest of both counts."""
    volatile = UnsyncedPositions()
    volatile.note_staged([Append("a", [b""], [50])], 100)
    assert volatile.note_synced(90) == []
    volatile.begin_sync()
    volatile.note_staged([RemoveStream("a"), Append("a", [b""], [5])], 200)
    volatile.note_staged([SetCounters("b", 70, 0, 0)], 300)
    assert lowest(volatile) == {"a": 5, "b": 70}
    assert volatile.note_synced(100) == ["a"]
    assert lowest(volatile) == {"a": 5, "b": 70}
    assert set(volatile.note_synced(300)) == {"a", "b"}
    assert lowest(volatile) == {}


def test_a_stream_that_is_gone_is_missing(house: House) -> None:
    """And a name taken again is another generation."""
    before = of_a(house, "0-0").generation
    house.run(Delete(streams=["a"]))
    assert house.of(Planned, Plan(streams=[("a", 0)])).missing == ["a"]
    house.fill("a", 1)
    assert of_a(house, "0-0").generation != before
    house.run(FlushAll())
    assert house.of(Planned, Plan(streams=[("a", 0), ("b", 0)])).missing == ["a", "b"]
