"""Counting and finding by number: how many entries are between two IDs, which entry is the n-th.

Knows: that nodes are summed in blocks, so that each question is a bisection and a look into one node.
Must never know: callers, and what they need it for.

The bytes are those of the stored texts; of a node with deleted entries they are in proportion to what is
left, for its text is not taken apart. Sums are weights as `SealedNode` has them, `count << 64 | bytes`.
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final, NamedTuple

from engine import ids
from engine.live_entries import LiveEntries
from engine.nodes import Node, OpenNode, SealedNode, live_place, weight_of
from engine.runs import Run
from engine.sealed import Part

_BYTES: Final = (1 << 64) - 1


class Amount(NamedTuple):
    """Entries, and the bytes of their stored texts."""

    live: int
    size: int


def amount_below(stream: LiveEntries, bound: int) -> Amount:
    """The entries below `bound`."""
    if bound > stream.last_live_id:
        total = _below_open(stream)
        if stream.open is not None:
            total += stream.open.live << 64 | _node_bytes(stream.open, stream.open.live, len(stream.open.ids))
        return _amount(total)
    part = stream.part_of(bound)
    if part is None:
        return Amount(0, 0)
    total = stream.nodes.weight_below(part.first, weight_of)
    if not isinstance(part, OpenNode) and bound > part.last:
        return _amount(total + part.weight)
    if isinstance(part, Run):
        total, inner = _inside(stream, part, total, lambda _, node: node.last >= bound)
        if inner is None:
            return _amount(total)
        part = inner
    before, node = _amount(total), part
    place = stream.place_of(node, stream.texts_of(node), bound)
    live = place - (node.deleted & (1 << place) - 1).bit_count()
    inside = _bytes_before(stream, node, place, live)
    return Amount(before.live + live, before.size + inside)


def count_within(stream: LiveEntries, bytes_max: int) -> int:
    """How many entries from the first one on take at most `bytes_max` together."""
    spot = stream.nodes.seek(weight_of, _bytes_of, bytes_max)
    if spot is None:
        if stream.open is None:
            return stream.length
        before, node = _below_open(stream), stream.open
        return (before >> 64) + _count_within(stream, node, bytes_max - (before & _BYTES))
    before, part = _innermost(stream, *spot, lambda total: _bytes_of(total) > bytes_max)
    return (before >> 64) + _count_within(stream, part, bytes_max - (before & _BYTES))


def _innermost(
    stream: LiveEntries, before: int, part: Part, is_beyond: Callable[[int], bool]
) -> tuple[int, SealedNode]:
    """Of a run the node with which the sum comes beyond, or its last one, and the sum before it."""
    if not isinstance(part, Run):
        return before, part
    total, node = _inside(stream, part, before, lambda total, node: is_beyond(total + node.weight))
    if node is None:
        # The bytes of a run with deletions are known in proportion alone.
        node = stream.nodes_of(part)[-1]
        total -= node.weight
    return total, node


def _inside(
    stream: LiveEntries, run: Run, before: int, ends: Callable[[int, SealedNode], bool]
) -> tuple[int, SealedNode | None]:
    """The first node of a run that ends the search, and the sum before it."""
    for node in stream.nodes_of(run):
        if ends(before, node):
            return before, node
        before += node.weight
    return before, None


def id_at(stream: LiveEntries, number: int, *, roughly: bool = False) -> int:
    """The ID of the entry that `number` others stand before; `roughly`: of the last one of its node, which
    takes no look inside.
    """
    assert 0 <= number < stream.length, "the entry is there"
    spot = stream.nodes.seek(weight_of, _count_of, number)
    if spot is None:
        assert stream.open is not None, "an entry that is in no sealed node is in the open one"
        node: Node = stream.open
        before = _below_open(stream) >> 64
    else:
        if roughly:
            return spot[1].last
        sum_before, node = _innermost(stream, *spot, lambda total: _count_of(total) > number)
        before = sum_before >> 64
    return stream.id_at(node, live_place(node.deleted, number - before))


def _amount(total: int) -> Amount:
    return Amount(total >> 64, total & _BYTES)


def _count_of(total: int) -> int:
    return total >> 64


def _bytes_of(total: int) -> int:
    return total & _BYTES


def _below_open(stream: LiveEntries) -> int:
    """The sum over all sealed nodes."""
    return stream.nodes.weight_below(ids.ID_MAX + 1, weight_of)


def _node_bytes(node: Node, live: int, held: int) -> int:
    size = node.size if isinstance(node, OpenNode) else node.size - (held - 1)
    return size if live == held else size * live // held


def _bytes_before(stream: LiveEntries, node: Node, place: int, live: int) -> int:
    """The bytes of the `live` entries before a place."""
    if not node.deleted:
        return sum(map(len, stream.texts_of(node)[:place]))
    held = len(stream.texts_of(node))
    return _node_bytes(node, live, held)


def _count_within(stream: LiveEntries, node: Node, bytes_max: int) -> int:
    """How many live entries of the node take at most `bytes_max` together."""
    texts = stream.texts_of(node)
    if not node.deleted:
        return bisect_right(list(accumulate(map(len, texts))), bytes_max)
    sums = [_node_bytes(node, live, len(texts)) for live in range(1, node.live + 1)]
    return bisect_right(sums, bytes_max)
