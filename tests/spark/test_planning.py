"""Planning: every entry in exactly one task, streams in order, tasks of about one size."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir import ids, planning
from pyspark_weir.planning import Sizes, TaskRange

names = st.tuples(st.sampled_from(["g0", "g1"]), st.text("abc", min_size=1, max_size=3))


def a_range(name: tuple[str, str], count: int, volume: int = 0) -> TaskRange:
    # IDs 1-0 to count-0, read from the beginning.
    return TaskRange(*name, after="0-0", end=f"{count}-0", count=count, bytes=volume, generation="ab")


ranges_of_names = st.dictionaries(names, st.integers(0, 900_000), max_size=30).map(
    lambda counts: [a_range(name, count) for name, count in counts.items()]
)
sizes = st.builds(
    Sizes,
    min_partitions=st.integers(1, 64),
    max_entries=st.integers(1_000, 300_000),
    max_bytes=st.just(1 << 40),
    ordered=st.booleans(),
)


def even_cuts(one: TaskRange, pieces: int) -> list[str]:
    """What the gateway answers for this number of parts."""
    return [f"{one.count * place // pieces}-0" for place in range(1, pieces)]


def planned(ranges: list[TaskRange], wanted: Sizes) -> list[tuple[TaskRange, ...]]:
    counts = planning.piece_counts(ranges, wanted)
    by_name = {one.name: one for one in ranges}
    cuts = {name: even_cuts(by_name[name], pieces) for name, pieces in counts.items()}
    return planning.pack(ranges, wanted, cuts)


@given(ranges_of_names, sizes)
def test_every_entry_is_in_exactly_one_task(ranges: list[TaskRange], wanted: Sizes) -> None:
    tasks = planned(ranges, wanted)
    for one in ranges:
        pieces = sorted(
            (piece for task in tasks for piece in task if piece.name == one.name),
            key=lambda piece: ids.parse(piece.after),
        )
        if one.count == 0:
            assert pieces == []
            continue
        assert (pieces[0].after, pieces[-1].end) == (one.after, one.end)
        assert all(left.end == right.after for left, right in pairwise(pieces))
        assert sum(piece.count for piece in pieces) == one.count


@given(ranges_of_names, sizes)
def test_no_task_is_empty(ranges: list[TaskRange], wanted: Sizes) -> None:
    tasks = planned(ranges, wanted)
    assert all(piece.count for task in tasks for piece in task)
    assert bool(tasks) == any(one.count for one in ranges)


@given(ranges_of_names, sizes)
def test_an_ordered_stream_stays_in_one_task(ranges: list[TaskRange], wanted: Sizes) -> None:
    places: dict[tuple[str, str], int] = {}
    for task in planned(ranges, wanted):
        assert list(task) == sorted(task, key=lambda one: (one.name, ids.parse(one.after)))
        for piece in task:
            places[piece.name] = places.get(piece.name, 0) + 1
    if wanted.ordered:
        assert all(count == 1 for count in places.values())


@given(ranges_of_names, sizes)
def test_the_largest_task_is_at_most_twice_what_is_even(ranges: list[TaskRange], wanted: Sizes) -> None:
    tasks = planned(ranges, wanted)
    if tasks:
        loads = [sum(piece.count for piece in task) for task in tasks]
        largest_piece = max(piece.count for task in tasks for piece in task)
        assert max(loads) <= sum(loads) / len(loads) + largest_piece


def test_a_small_stream_is_never_cut() -> None:
    wanted = Sizes(min_partitions=8, max_entries=200_000, max_bytes=1 << 30)
    assert planning.piece_counts([a_range(("g0", "s"), 2 * planning.CUT_ENTRIES_MIN - 1)], wanted) == {}


def test_a_lonely_long_stream_is_cut_for_all_cores() -> None:
    wanted = Sizes(min_partitions=2, max_entries=200_000, max_bytes=1 << 30)
    assert planning.piece_counts([a_range(("g0", "s"), 100_000)], wanted) == {("g0", "s"): 2}
    assert [task[0].count for task in planned([a_range(("g0", "s"), 100_000)], wanted)] == [50_000, 50_000]


def test_tasks_are_as_many_as_a_large_cluster_runs() -> None:
    wanted = Sizes(min_partitions=500, max_entries=200_000, max_bytes=1 << 30)
    ranges = [a_range(("g0", f"s{n}"), 100_000) for n in range(100)]
    assert len(planned(ranges, wanted)) == 500


def test_a_range_is_cut_into_as_many_pieces_as_the_gateway_answers() -> None:
    wanted = Sizes(min_partitions=1, max_entries=1_000, max_bytes=1 << 30)
    (pieces,) = planning.piece_counts([a_range(("g0", "s"), 256_000)], wanted).values()
    (more,) = planning.piece_counts([a_range(("g0", "s"), 257_000)], wanted).values()
    assert (pieces, more) == (256, 256)


def test_large_entries_are_cut_by_their_bytes() -> None:
    wanted = Sizes(min_partitions=1, max_entries=200_000, max_bytes=32 << 20)
    assert planning.piece_counts([a_range(("g0", "s"), 100, volume=100 << 20)], wanted) == {("g0", "s"): 4}


def test_a_hundred_small_streams_share_two_tasks() -> None:
    wanted = Sizes(min_partitions=2, max_entries=200_000, max_bytes=1 << 30)
    tasks = planned([a_range(("g0", f"s{n}"), 2_000) for n in range(100)], wanted)
    assert [sum(piece.count for piece in task) for task in tasks] == [100_000, 100_000]


def test_cuts_outside_of_the_range_are_left_out() -> None:
    one = TaskRange("g0", "s", after="5-0", end="9-0", count=4)
    pieces = planning.cut(one, ["5-0", "7-0", "9-0", "3-0", "7-0"])
    assert [(piece.after, piece.end) for piece in pieces] == [("5-0", "7-0"), ("7-0", "9-0")]
