"""The live entries of one stream, in nodes: how they are found, read by range and counted.

Knows: the sealed nodes, the open one, the first and last live ID, and the slices of stored text that a range
gathers.
Must never know: how entries are added or removed, callers, the time, consumer groups.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, takewhile
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec

from engine import entries, errors, ids
from engine.memory import SEALED_NODES_BYTES, Footprint
from engine.nodes import Node, OpenNode, SealedNode, Text, last_live_place, live_place, live_places, weight_of
from engine.replies import Entries
from engine.runs import Run, RunLeft, in_range, measure, refuse
from engine.sealed import NO_NODES, SPARE_CACHE, DecodedNodeCache, SealedNodes

# Up to this many entries of a cold node are searched for in its text; for more, the text is split.
_SEARCHED_IN_TEXT_MAX: Final = 4
# From this many entries on, an index of the whole node is cheaper than one bisection for each.
_INDEXED_MIN: Final = 12

# The part of a node's weight that is the bytes of its live entries.
_BYTES_MASK: Final = (1 << 64) - 1

# Live entries of one node: by ID, the place in the node and the stored text.
Found: TypeAlias = tuple[Node, dict[int, tuple[int, bytes]]]


class RangeBuilder:
    """Slices gathered for an answer, up to a number of entries and of bytes."""

    __slots__ = ("_bytes_left", "_left", "_parts", "count", "first", "full", "last")

    def __init__(self, count_max: int, bytes_max: int | None) -> None:
        self._left = count_max
        self._bytes_left = bytes_max
        self._parts: list[bytes] = []
        self.count = 0
        self.first = 0
        self.last = 0
        self.full = count_max <= 0

    def add_node(self, node: SealedNode, plain: Callable[[Text], bytes]) -> bool:
        """Take a whole node without looking into it; False if it does not fit or has deletions or was
        repacked.
        """
        held = node.held
        if node.deleted or held != node.count or held > self._left:
            return False
        if self._bytes_left is not None:
            size = (node.weight & _BYTES_MASK) + held - 1
            if size > self._bytes_left:
                return False
            self._bytes_left -= size
        self._parts.append(plain(node.text))
        if not self.count:
            self.first = node.first
        self.last = node.last
        self.count += held
        self._left -= held
        self.full = not self._left
        return True

    def add(self, texts: Sequence[bytes]) -> None:
        """Take entries as far as the limits allow."""
        stop = min(len(texts), self._left)
        if self._bytes_left is not None:
            stop = self._fitting(texts, stop)
        if stop < len(texts):
            self.full = True
        if stop:
            first, last = entries.id_of(texts[0]), entries.id_of(texts[stop - 1])
            self._take(first, last, stop, b",".join(texts[:stop]))

    def _fitting(self, texts: Sequence[bytes], stop: int) -> int:
        left = self._bytes_left or 0
        for place in range(stop):
            left -= len(texts[place])
            if left < 0 and (place or self.count):
                return place
        return stop

    def _take(self, first: int, last: int, count: int, part: bytes) -> None:
        self._parts.append(part)
        if not self.count:
            self.first = first
        self.last = last
        self.count += count
        self._left -= count
        self.full = self.full or not self._left
        if self._bytes_left is not None:
            self._bytes_left = max(0, self._bytes_left - len(part))

    def entries(self, *, more: bool) -> Entries:
        return Entries(parts=self._parts, count=self.count, first=self.first, last=self.last, more=more)


class LiveEntries(msgspec.Struct, gc=False, eq=False):
    """The live entries of one stream. IDs are integers; `0` stands for "none" among them.

    The collector passes it over: nothing in a stream leads back to it, and there may be a million.
    """

    # How much memory it takes, with all that its key adds.
    footprint: Footprint = msgspec.field(default_factory=Footprint)
    nodes: SealedNodes = NO_NODES
    open: OpenNode | None = None
    # The number of live entries, and the IDs of the first and the last one.
    length: int = 0
    first_id: int = 0
    last_live_id: int = 0
    # A keyspace gives all its streams the same cache, so that memory has one limit.
    node_cache: DecodedNodeCache = SPARE_CACHE

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def node_count(self) -> int:
        """How many nodes there are (Redis's radix-tree-keys)."""
        return self.nodes.node_count + (self.open is not None)

    def live_below(self, bound: int) -> int:
        """The highest live ID below `bound`, or 0."""
        return next((run_ids[-1] for run_ids, _ in self._runs_down(0, bound - 1, 1)), 0) if bound else 0

    def live_from(self, bound: int) -> int:
        """The lowest live ID from `bound` on, or 0; looks into no run whose edges say so."""
        part = next(self.parts_from(bound), None)
        if isinstance(part, Run) and bound <= part.first_live:
            return part.first_live
        return next((run_ids[0] for run_ids, _ in self._runs(bound, ids.ID_MAX, 1)), 0)

    def live_ids(self) -> Iterator[int]:
        """All live IDs upwards. The stream must not change meanwhile."""
        return (entry_id for run_ids, _ in self._runs(0, ids.ID_MAX) for entry_id in run_ids)

    def live_runs(self, low: int, high: int) -> Iterator[Sequence[int]]:
        """The live IDs in `[low, high]` upwards, run by run. The stream must not change meanwhile."""
        return (run_ids for run_ids, _ in self._runs(low, high))

    def get(self, entry_id: int) -> bytes | None:
        """The stored text of a live entry."""
        node = self.node_of(entry_id)
        if node is None or entry_id > node.last:
            return None
        row = self._find_in(node, (entry_id,)).get(entry_id)
        return None if row is None else row[1]

    def find_each(self, wanted: Iterable[int]) -> dict[int, bytes]:
        """The stored texts of the wanted IDs that are live, ascending. Looks into each node once."""
        return {
            entry_id: text for _, rows in self.find_by_node(wanted) for entry_id, (_, text) in rows.items()
        }

    def find_by_node(self, wanted: Iterable[int]) -> list[Found]:
        """The wanted IDs that are live, ascending, grouped by node."""
        ordered = sorted({each for each in wanted if self.first_id <= each <= self.last_live_id})
        if self.nodes.runs:
            parts = (self.part_of(entry_id) for entry_id in ordered)
            self.node_cache.runs.expect(
                {part.place: part for part in parts if isinstance(part, Run)}.values()
            )
        return list(self._find_each(ordered))

    def unreadable(self, wanted: Sequence[int]) -> Collection[int]:
        """Those of the IDs that are in runs which the disk does not give."""
        if not self.nodes.runs:
            return ()
        runs, inside = self.node_cache.runs, dict[Run, list[int]]()
        low, high, same = 1, 0, list[int]()
        for entry_id in wanted:
            if not low <= entry_id <= high:
                part = self.part_of(entry_id)
                if not isinstance(part, Run) or entry_id > part.last:
                    continue
                # IDs that follow each other are mostly in the same run.
                low, high, same = part.first, part.last, inside.setdefault(part, [])
            same.append(entry_id)
        runs.expect(inside)
        return {each for run, same in inside.items() if not runs.gives(run) for each in same}

    def refusal_of(self, entry_id: int) -> errors.EngineError:
        """The refusal of what looks for an entry that is in a run which the disk does not give."""
        part = self.part_of(entry_id)
        assert isinstance(part, Run), "nodes are in memory"
        return refuse(part)

    def seems_there(self, entry_id: int) -> bool:
        """Whether an entry is there, as far as can be known without the disk; one that it does not give is
        not.
        """
        if not self.first_id <= entry_id <= self.last_live_id:
            return False
        part = self.part_of(entry_id)
        if not isinstance(part, Run) or self.node_cache.runs.has(part):
            return entry_id in self
        return part.keeps(entry_id) and part.place not in self.node_cache.runs.damaged

    def __contains__(self, entry_id: int) -> bool:
        return self._locate(entry_id) is not None

    def range(
        self,
        low: int,
        high: int,
        *,
        count: int | None = None,
        reverse: bool = False,
        bytes_max: int | None = None,
        up_to_damage: bool = False,
    ) -> Entries:
        """The live entries with IDs in `[low, high]`, as slices of stored text. At least one, even
        above `bytes_max`. With `up_to_damage` those before a part that the disk does not give, and a refusal
        only where that comes first; never in reverse.
        """
        if low > high or not self.length:
            return Entries()
        run = RangeBuilder(self.length if count is None else count, bytes_max)
        if reverse:
            cut = slice(None if count is None else -count, None)
            for node in self._nodes_down(low, high):
                # Their IDs alone would take as long as the rest.
                run.add(self._texts_in(node, low, high, cut)[::-1])
                if run.full:
                    break
        else:
            try:
                self._gather(run, low, high, count)
            except errors.EngineError as refusal:
                if not up_to_damage or not run.count or refusal.code != errors.ENTRIES_DAMAGED:
                    raise
        return run.entries(more=self._more(run.last, low, high, reverse=reverse))

    def _gather(self, run: RangeBuilder, low: int, high: int, count: int | None) -> None:
        for node in self.nodes_from(low, high):
            if node.first > high:
                break
            if not (
                isinstance(node, SealedNode)
                and low <= node.first
                and node.last <= high
                and run.add_node(node, self.node_cache.plain)
            ):
                run.add(self._texts_in(node, low, high, slice(count)))
            if run.full:
                break

    def _more(self, last: int, low: int, high: int, *, reverse: bool) -> bool:
        """Whether the range goes on behind `last`."""
        if not last:
            return False
        if reverse:
            if low <= self.first_id:
                return self.first_id < last
            before = self._runs_down(low, last - 1, 1)
            return low < last and next(before, None) is not None
        if last >= self.last_live_id or last >= high:
            return False
        return high >= self.last_live_id or self._any_from(last + 1, high)

    def _any_from(self, low: int, high: int) -> bool:
        """Whether there is a live entry in `[low, high]`; looks into no run whose edges say so."""
        for part in self.parts_from(low):
            if isinstance(part, Run) and low <= part.last_live and part.first_live >= low:
                return part.first_live <= high
            break
        return next(self._runs(low, high, 1), None) is not None

    def after(
        self, cursor: int, count: int | None, bytes_max: int | None = None, *, up_to_damage: bool = False
    ) -> list[tuple[int, bytes]]:
        """IDs and texts of the live entries above `cursor`, at least one of them where there is one.
        `up_to_damage` as in `range`.
        """
        rows: list[tuple[int, bytes]] = []
        try:
            self._gather_after(rows, cursor, count, bytes_max)
        except errors.EngineError as refusal:
            if not up_to_damage or not rows or refusal.code != errors.ENTRIES_DAMAGED:
                raise
        return rows

    def _gather_after(
        self, rows: list[tuple[int, bytes]], cursor: int, count: int | None, bytes_max: int | None
    ) -> None:
        left = self.length if count is None else count
        if self.last_live_id <= cursor or not left:
            return
        size = 0
        for run_ids, texts in self._runs(cursor + 1, ids.ID_MAX, left):
            for entry_id, text in zip(run_ids[:left], texts, strict=False):
                size += len(text)
                if bytes_max is not None and size > bytes_max and rows:
                    return
                rows.append((entry_id, text))
            left -= min(left, len(run_ids))
            if not left:
                break

    def count_between(self, low: int, high: int) -> int:
        """How many live entries have IDs in `[low, high]`; logarithmic, holes included."""
        return self._count_below(high + 1) - self._count_below(low)

    def _count_below(self, bound: int) -> int:
        part = self.part_of(bound)
        if part is None:
            return 0
        before = self.nodes.weight_below(part.first, weight_of) >> 64
        if bound > part.last:
            return before + part.live
        if isinstance(part, Run):
            for node in self.nodes_of(part):
                if bound <= node.last:
                    return before + self.live_before(node, bound)
                before += node.live
            return before
        return before + self.live_before(part, bound)

    # --- memory ---------------------------------------------------------------------------------------------

    @property
    def footprint_bytes(self) -> int:
        """How much memory its nodes take, counted anew."""
        opened = self.open.footprint_bytes if self.open else 0
        sealed = 0 if self.nodes is NO_NODES else SEALED_NODES_BYTES + self.nodes.footprint_bytes
        return self.nodes.byte_counter.held_bytes + sealed + opened

    @property
    def text_bytes(self) -> int:
        """The bytes of all texts, unpacked."""
        return self.nodes.byte_counter.plain_bytes + (self.open.size if self.open else 0)

    def held_bytes(self) -> int:
        """How much memory the texts take, compressed ones as they are."""
        return self.nodes.byte_counter.held_bytes + (self.open.size if self.open else 0)

    # --- finding --------------------------------------------------------------------------------------------

    def nodes_from(self, low: int = 0, high: int = ids.ID_MAX) -> Iterator[Node]:
        """The nodes upwards, from the one that may hold `low`; those of runs too. It looks into no run beyond
        `high`, nor before its nodes are asked for.
        """
        if self.open is not None and low >= self.open.first:
            # What readers that keep up ask for.
            return iter((self.open,))
        parts = self.parts_from(low)
        return self._nodes_in(parts, low, high) if self.nodes.runs else parts  # type: ignore[return-value]

    def _nodes_in(self, parts: Iterator[Node | Run], low: int, high: int) -> Iterator[Node]:
        for part in parts:
            if part.first > high:
                return
            if isinstance(part, Run):
                ahead = takewhile(lambda each: each.first <= high, parts)
                self.node_cache.runs.expect_next(part, ahead)
                yield from (node for node in self.nodes_of(part) if node.last >= low)
            else:
                yield part

    def parts_from(self, low: int = 0) -> Iterator[Node | Run]:
        """The nodes upwards, from the one that may hold `low`; a run as one."""
        if self.open is not None and low >= self.open.first:
            return iter((self.open,))
        floor = self.nodes.floor(low)
        if floor is None:
            parts = self.nodes.values_from(0)
        else:
            # It may end before `low`; none behind it does.
            parts = self.nodes.values_from(floor[0] + (floor[1].last < low))
        return parts if self.open is None else chain(parts, (self.open,))

    def nodes_of(self, run: Run) -> Sequence[SealedNode]:
        """The nodes that are left of a run: the one place that looks inside. Raises NotInMemoryError in a
        look that waits, EngineError where the disk does not give them.
        """
        return self.node_cache.runs.nodes_of(run)

    def _head(self) -> Node | Run | None:
        first = self.nodes.first()
        return first[1] if first else self.open

    def part_of(self, entry_id: int) -> Node | Run | None:
        """The node or the run that may hold `entry_id`."""
        if self.open is not None and entry_id >= self.open.first:
            return self.open
        floor = self.nodes.floor(entry_id)
        return floor[1] if floor else None

    def node_of(self, entry_id: int) -> Node | None:
        """The node that may hold `entry_id`."""
        part = self.part_of(entry_id)
        if not isinstance(part, Run):
            return part
        if entry_id > part.last:
            return None
        nodes = self.nodes_of(part)
        place = bisect_right(nodes, entry_id, key=attrgetter("first")) - 1
        return nodes[place] if place >= 0 else None

    def first_of(self, part: Node | Run) -> int:
        """The lowest live ID of a node or a run."""
        return part.first_live if isinstance(part, Run) else self.id_at(part, live_place(part.deleted, 0))

    def left_below(self, cut: int) -> RunLeft | None:
        """What a cut leaves of the run that it ends in; None where it ends in none."""
        part = self.part_of(cut - 1) if cut and self.nodes.runs else None
        if not isinstance(part, Run) or not part.first_live < cut <= part.last:
            return None
        if cut > part.last_live:
            return measure(part.first, cut, (), part.last_live)
        nodes = self.node_cache.runs.without(part, cut, ())
        highest = next(run_ids[-1] for run_ids, _ in self._runs_down(part.first, cut - 1, 1))
        return measure(part.first, cut, nodes, highest)

    def left_without(self, gone: Sequence[int]) -> list[RunLeft]:
        """What is left of each run when these live entries go."""
        ordered, left = sorted(set(gone)), list[RunLeft]()
        while ordered:
            part = self.part_of(ordered[0])
            inside = in_range(part, ordered) if isinstance(part, Run) else ()
            if isinstance(part, Run) and inside:
                nodes = self.node_cache.runs.without(part, part.floor, inside)
                left.append(measure(part.first, part.floor, nodes, inside[-1]))
            upto = ordered[0] if part is None else max(part.last, ordered[0])
            ordered = ordered[bisect_right(ordered, upto) :]
        return left

    def _find_each(self, ordered: Sequence[int]) -> Iterator[Found]:
        """Of ascending IDs those that are live, node by node, each with its place and its text."""
        start = 0
        while start < len(ordered):
            node = self.node_of(ordered[start])
            stop = start if node is None else bisect_right(ordered, node.last, start)
            if node is not None and stop > start:
                rows = self._find_in(node, ordered[start:stop])
                if rows:
                    yield node, rows
            # An ID between two nodes is passed over.
            start = max(stop, start + 1)

    def _find_in(self, node: Node, ordered: Sequence[int]) -> dict[int, tuple[int, bytes]]:
        matches: dict[int, tuple[int, bytes]] = {}
        if (
            isinstance(node, SealedNode)
            and len(ordered) <= _SEARCHED_IN_TEXT_MAX
            and node.text not in self.node_cache
        ):
            # Taking a cold node apart costs more than looking for a few.
            plain = self.node_cache.plain(node.text)
            rows = ((entry_id, entries.find(plain, entry_id)) for entry_id in ordered)
            matches = {entry_id: row for entry_id, row in rows if row is not None}
        else:
            texts = self.texts_of(node)
            places = _places_of(node, texts, ordered)
            matches = {entry_id: (place, texts[place]) for entry_id, place in places}
        if not node.deleted:
            return matches
        return {entry_id: row for entry_id, row in matches.items() if not node.deleted >> row[0] & 1}

    def _locate(self, entry_id: int) -> tuple[Node, int] | None:
        """The node of a live entry and its place there."""
        node = self.node_of(entry_id)
        if node is None or entry_id > node.last:
            return None
        texts = self.texts_of(node)
        place = self.place_of(node, texts, entry_id)
        if place == len(texts) or node.deleted >> place & 1:
            return None
        return (node, place) if self.id_at(node, place) == entry_id else None

    def id_at(self, node: Node, place: int) -> int:
        return node.ids[place] if isinstance(node, OpenNode) else entries.id_of(self.texts_of(node)[place])

    def live_before(self, node: Node, bound: int) -> int:
        """How many live entries of the node are below `bound`."""
        place = self.place_of(node, self.texts_of(node), bound)
        return place - (node.deleted & (1 << place) - 1).bit_count()

    def last_of(self, node: Node | Run) -> int:
        """The node's highest live ID; known without a look inside where nothing was ever deleted."""
        if isinstance(node, Run):
            return node.last_live
        if not node.deleted and (isinstance(node, OpenNode) or node.held == node.count):
            return node.last
        return self.id_at(node, last_live_place(node.deleted, len(self.texts_of(node))))

    @staticmethod
    def place_of(node: Node, texts: Sequence[bytes], entry_id: int) -> int:
        """The place of the first held entry at or above `entry_id`."""
        if isinstance(node, OpenNode):
            return bisect_left(node.ids, entry_id)
        return bisect_left(texts, entry_id, key=entries.id_of)

    def texts_of(self, node: Node) -> Sequence[bytes]:
        if isinstance(node, OpenNode):
            return node.stored
        return self.node_cache.of(node.text)

    def live_ids_of(self, node: Node) -> Sequence[int]:
        return self._window(node, 0, ids.ID_MAX)[0]

    def _window(
        self, node: Node, low: int, high: int, cut: slice = slice(None)
    ) -> tuple[Sequence[int], Sequence[bytes]]:
        """IDs and texts of the node's live entries in `[low, high]`, those of `cut` alone: to read the IDs of
        all that a sealed node has takes as long as the rest of a request.
        """
        if isinstance(node, OpenNode) and not node.deleted:
            start, stop = bisect_left(node.ids, low), bisect_right(node.ids, high)
            return node.ids[start:stop][cut], self.texts_of(node)[start:stop][cut]
        texts = self._texts_in(node, low, high, cut)
        return list(entries.ids_of(texts)), texts

    def _texts_in(self, node: Node, low: int, high: int, cut: slice) -> Sequence[bytes]:
        """The texts alone."""
        texts = self.texts_of(node)
        if isinstance(node, OpenNode):
            start, stop = bisect_left(node.ids, low), bisect_right(node.ids, high)
        else:
            start = 0 if low <= node.first else bisect_left(texts, low, key=entries.id_of)
            stop = len(texts) if node.last <= high else bisect_right(texts, high, key=entries.id_of)
        if node.deleted:
            places = [place for place in live_places(node, len(texts)) if start <= place < stop]
            return [texts[place] for place in places[cut]]
        return texts[start:stop][cut]

    def _runs(
        self, low: int, high: int, most: int | None = None
    ) -> Iterator[tuple[Sequence[int], Sequence[bytes]]]:
        """The live entries in `[low, high]` upwards, node by node, none empty: the one iterator. Of a node at
        most the first `most`: a caller takes no more than that.
        """
        for node in self.nodes_from(low, high):
            if node.first > high:
                return
            run = self._window(node, low, high, slice(most))
            if run[0]:
                yield run

    def _runs_down(
        self, low: int, high: int, most: int | None = None
    ) -> Iterator[tuple[Sequence[int], Sequence[bytes]]]:
        """The same downwards, with the last `most` of a node; within a node upwards still."""
        cut = slice(None if most is None else -most, None)
        for node in self._nodes_down(low, high):
            run = self._window(node, low, high, cut)
            if run[0]:
                yield run

    def _nodes_down(self, low: int, high: int) -> Iterator[Node]:
        """The nodes downwards that may hold IDs in `[low, high]`."""
        if self.open is not None and self.open.first <= high:
            yield self.open
        parts = (part for _, part in self.nodes.items_down(high))
        for part in parts:
            if part.last < low:
                return
            if isinstance(part, SealedNode):
                yield part
                continue
            ahead = takewhile(lambda each: each.last >= low, parts)
            self.node_cache.runs.expect_next(part, ahead)
            for node in reversed(self.nodes_of(part)):
                if node.last < low:
                    return
                if node.first <= high:
                    yield node


def _places_of(node: Node, texts: Sequence[bytes], ordered: Sequence[int]) -> list[tuple[int, int]]:
    """Those of ascending IDs that the node holds, deleted ones too, each with its place."""
    if len(ordered) >= _INDEXED_MIN:
        held = node.ids if isinstance(node, OpenNode) else entries.ids_of(texts)
        index = dict(zip(held, range(len(texts)), strict=True))
        return [(entry_id, index[entry_id]) for entry_id in ordered if entry_id in index]
    places: list[tuple[int, int]] = []
    for entry_id in ordered:
        place = LiveEntries.place_of(node, texts, entry_id)
        if place < len(texts) and entries.id_of(texts[place]) == entry_id:
            places.append((entry_id, place))
    return places
