"""Counting and finding by number say what a walk over all entries says, after any deletions and packing."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import entries, ids, order_statistics
from engine.nodes import SealedNode
from engine.order_statistics import Amount
from engine.stream import NodeLimits, Stream


def text_of(entry_id: int) -> bytes:
    return entries.encode(entry_id, entries.body([("n", "x" * (entry_id % 20))]))


def filled(entry_ids: Sequence[int], entries_max: int) -> Stream:
    stream = Stream()
    for entry_id in entry_ids:
        stream.append([entry_id], [text_of(entry_id)], NodeLimits(entries_max, 0))
    return stream


@settings(deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=60, unique=True), st.integers(1, 7), st.data())
def test_ranks_are_those_of_a_walk(drawn: list[int], entries_max: int, data: st.DataObject) -> None:
    """Every count, and every entry by its number, holes included."""
    stream = filled(sorted(drawn), entries_max)
    gone = data.draw(st.sets(st.sampled_from(drawn)))
    stream.remove(sorted(gone), tombstone=True)
    stream.cut(data.draw(st.integers(0, 100)))
    live = list(stream.live_ids())
    for node in stream.nodes.values():
        assert isinstance(node, SealedNode)
        node.text.keep_packed(node.text.compress())
    for bound in range(203):
        assert order_statistics.amount_below(stream, bound).live == sum(entry_id < bound for entry_id in live)
    assert [order_statistics.id_at(stream, number) for number in range(len(live))] == live
    for number, entry_id in enumerate(live):
        assert entry_id <= order_statistics.id_at(stream, number, roughly=True) <= stream.last_id


@settings(deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=60, unique=True), st.integers(1, 7))
def test_bytes_are_those_of_the_stored_texts(drawn: list[int], entries_max: int) -> None:
    """Exactly, where nothing was deleted; and so is what fits into a number of them."""
    stream = filled(sorted(drawn), entries_max)
    sizes = [len(text_of(entry_id)) for entry_id in sorted(drawn)]
    for bound in range(203):
        count = sum(entry_id < bound for entry_id in drawn)
        assert order_statistics.amount_below(stream, bound) == Amount(count, sum(sizes[:count]))
    sums = list(accumulate(sizes))
    for limit in range(0, sums[-1] + 40, 7):
        assert order_statistics.count_within(stream, limit) == sum(upto <= limit for upto in sums)


@settings(deadline=None)
@given(st.lists(st.integers(1, 200), min_size=2, max_size=60, unique=True), st.integers(1, 7), st.data())
def test_bytes_never_fall(drawn: list[int], entries_max: int, data: st.DataObject) -> None:
    """With deleted entries they are an estimate: it ascends with the IDs, and what fits is what it says."""
    stream = filled(sorted(drawn), entries_max)
    stream.remove(sorted(data.draw(st.sets(st.sampled_from(drawn), max_size=len(drawn) - 1))), tombstone=True)
    live = list(stream.live_ids())
    sums = [order_statistics.amount_below(stream, entry_id + 1).size for entry_id in live]
    assert sums == sorted(sums)
    for limit in range(0, sums[-1] + 40, 13):
        assert order_statistics.count_within(stream, limit) == sum(upto <= limit for upto in sums)


@pytest.mark.parametrize("bound", [0, 1, ids.ID_MAX])
def test_an_empty_stream_has_nothing_below(bound: int) -> None:
    """No node at all."""
    assert order_statistics.amount_below(Stream(), bound) == Amount(0, 0)
