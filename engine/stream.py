"""Ordered nodes: append, range, trim, delete, edges, and the one iterator over entries.

Knows: where an entry lies, which IDs were given and taken away, and how many entries there ever were.
Must never know: who asks, what time it is, consumer groups.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from engine import entries, ids
from engine.memory import ENTRY_BYTES, NODE_BYTES, OPEN_NODE_BYTES, Footprint
from engine.nodes import (
    Node,
    OpenNode,
    SealedNode,
    Text,
    last_live_place,
    live_place,
    live_places,
    weight_of,
)
from engine.range_builder import RangeBuilder
from engine.replies import Entries
from engine.sealed import DecodedNodeCache, SealedNodes

# The newest sealed nodes of a stream, this many, stay uncompressed: live readers lag a few hundred entries,
# not thousands.
HOT_NODES: Final = 4
# Redis keeps the counter in 64 bits with a sign.
_ENTRIES_ADDED_MAX: Final = (1 << 63) - 1


# Up to this many entries of a cold node are searched in its text; for more it is split into entries.
_FEW_OF_NODE: Final = 4
# Nodes that one removal packs anew. Others stay as they are until something of theirs is removed again.
_REPACKS_MAX: Final = 100
# From this many on, an index of the whole node is cheaper than a bisection for each.
_MANY_OF_NODE: Final = 12


class NodeLimits(NamedTuple):
    """When a node seals: its entries (deleted ones too), and the bytes of their texts; 0 is no limit."""

    entries_max: int
    bytes_max: int


class TrimPlan(NamedTuple):
    """What a trim removes: all below `cut`, or (where references matter) exactly `ids`.

    `scanned` entries were looked at for that. Where `resume_at` is given, everything below that ID stays, and
    what lies beyond has not been looked at.
    """

    cut: int
    ids: Sequence[int]
    removed: int
    scanned: int = 0
    resume_at: int | None = None


class Stream:
    """The entries of one stream. IDs are integers; `0` stands for "none" among them."""

    __slots__ = (
        "_cold",
        "_found",
        "_hot",
        "entries_added",
        "first_id",
        "last_id",
        "last_live_id",
        "length",
        "max_deleted_id",
        "nodes",
        "open",
        "removed_upto",
        "views",
    )

    def __init__(self) -> None:
        self.nodes = SealedNodes()
        self.open: OpenNode | None = None
        self.length = 0
        # The last ID given; of the live entries, the first and the last one's.
        self.last_id = 0
        self.first_id = 0
        self.last_live_id = 0
        self.max_deleted_id = 0
        self.entries_added = 0
        # The highest ID removed while no smaller entry was live: what a reader's cursor is compared with for
        # gaps.
        self.removed_upto = 0
        self._hot: deque[Text] = deque()
        # Texts of nodes that were packed, and were taken apart for what is left of them.
        self._cold: list[Text] = []
        # What was looked for to be removed, until it is.
        self._found: tuple[list[int], list[tuple[Node, dict[int, tuple[int, bytes]]]]] | None = None
        # Nodes taken apart. A keyspace gives all its streams the same, so that none holds one of its own.
        self.views = DecodedNodeCache()

    # --- writing --------------------------------------------------------------------------------------------

    def append(self, new_ids: Sequence[int], texts: list[bytes], limits: NodeLimits) -> list[Text]:
        """Append entries with ascending IDs above `last_id`; the texts that have gone cold by it."""
        assert new_ids[0] > self.last_id, "the command has compared the IDs"
        done = 0
        while done < len(texts):
            node = self._room(limits)
            stop = self._fits(node, texts, done, limits)
            chunk = texts[done:stop]
            size = sum(map(len, chunk))
            node.extend(list(new_ids[done:stop]), chunk, size)
            self.footprint.add(len(chunk) * ENTRY_BYTES + size)
            done = stop
        if self.length == 0:
            self.first_id = new_ids[0]
        self.length += len(texts)
        self.entries_added = min(self.entries_added + len(texts), _ENTRIES_ADDED_MAX)
        self.last_id = self.last_live_id = new_ids[-1]
        return [self._hot.popleft() for _ in range(len(self._hot) - HOT_NODES)]

    def _room(self, limits: NodeLimits) -> OpenNode:
        """The open node, a new one if the old one is full."""
        node = self.open
        if node is not None and (
            (limits.entries_max and len(node.ids) >= limits.entries_max)
            or (limits.bytes_max and node.size >= limits.bytes_max)
        ):
            self._seal()
            node = None
        if node is None:
            node = self.open = OpenNode()
            self.footprint.add(OPEN_NODE_BYTES)
        return node

    def _seal(self) -> None:
        assert self.open is not None, "there is a node to seal"
        sealed = self.open.seal()
        self.nodes.extend((sealed.first,), (sealed,))
        self._hot.append(sealed.text)
        self._drop_open(self.open)

    def _drop_open(self, node: OpenNode) -> None:
        """Have no open node any more."""
        self.footprint.add(-node.footprint_bytes)
        self.open = None

    @staticmethod
    def _fits(node: OpenNode, texts: list[bytes], start: int, limits: NodeLimits) -> int:
        """The end of the longest run from `start` that the node takes: entries go in while it is not full."""
        stop = len(texts) if not limits.entries_max else start + limits.entries_max - len(node.ids)
        if not limits.bytes_max:
            return stop
        size = node.size
        if size + sum(map(len, texts[start:stop])) < limits.bytes_max:
            return stop
        for place in range(start, min(stop, len(texts))):
            if size >= limits.bytes_max:
                return place
            size += len(texts[place])
        return stop

    def cut(self, below: int) -> int:
        """Remove all entries with IDs below `below`; how many were live."""
        if below <= self.first_id or not self.length:
            return 0
        before, highest = self.length, 0
        head, last_whole = self._head(), None
        if head is not None and head.last < below:
            last_whole = self._cut_whole(below)
            head = self._head()
        if head is not None and head.first < below:
            highest = self._cut_inside(head, below)
        if not highest and last_whole is not None:
            highest = self._last_live(last_whole)
        head = self._head()
        self.first_id = 0 if head is None else self._id_at(head, live_place(head.deleted, 0))
        self.last_live_id = self.last_live_id if self.length else 0
        self.removed_upto = max(self.removed_upto, highest)
        return before - self.length

    def _cut_whole(self, below: int) -> Node | None:
        """Remove the nodes that lie below; the last of them."""
        whole = 0
        last_whole: Node | None = None
        for node in self.nodes.values():
            if node.last >= below:
                break
            self.length -= node.live
            whole, last_whole = whole + 1, node
        self.nodes.drop_first(whole)
        if self.nodes or self.open is None or self.open.last >= below:
            return last_whole
        emptied = self.open
        self._drop_open(emptied)
        self.length -= emptied.live
        return emptied

    def _cut_inside(self, head: Node, below: int) -> int:
        """Remove from the front of the first node; the highest live ID that went, 0 if none did.

        A trim at each append takes the first entry alone, which is known without a look at any.
        """
        first = live_place(head.deleted, 0)
        if below == self.first_id + 1:
            self._mask(head, head.deleted | (2 << first) - 1)
            return self.first_id
        stop = self._place(head, self._texts(head), below)
        if stop <= first:
            return 0
        highest = self._id_at(head, last_live_place(head.deleted, stop))
        self._mask(head, head.deleted | (1 << stop) - 1)
        return highest

    def remove(self, gone: Sequence[int], *, tombstone: bool) -> int:
        """Remove single entries; how many were live. `tombstone` is a deletion (XDEL), else it is a trim."""
        before = self.length
        removed: list[int] = []
        repacks_left = _REPACKS_MAX
        for node, found in self._found_before(sorted(set(gone))):
            mask = node.deleted
            for place, _ in found.values():
                mask |= 1 << place
            repacks_left -= self._mask(node, mask, repack=repacks_left > 0)
            removed += found
        if not removed:
            return 0
        if tombstone:
            self.max_deleted_id = max(self.max_deleted_id, removed[-1])
        first_before = self.first_id
        self._find_edges(removed)
        if self.first_id != first_before:
            edge = self.first_id or ids.ID_MAX + 1
            self.removed_upto = max(self.removed_upto, removed[bisect_left(removed, edge) - 1])
        return before - self.length

    def _found_before(self, ordered: list[int]) -> Sequence[tuple[Node, dict[int, tuple[int, bytes]]]]:
        """What `find_each` has found for these IDs just now, or what is found anew."""
        kept, self._found = self._found, None
        if kept is not None and kept[0] == ordered and all(map(self._is_held, kept[1])):
            return kept[1]
        return list(self._find_each(ordered))

    def _is_held(self, row: tuple[Node, object]) -> bool:
        node = row[0]
        return isinstance(node, SealedNode) and self.nodes.get(node.first) is node

    def _mask(self, node: Node, deleted: int, *, repack: bool = True) -> bool:
        """Let `deleted` be the node's deletions; a node without live entries goes. Whether what is left was
        packed anew.
        """
        self.length -= deleted.bit_count() - node.deleted.bit_count()
        if isinstance(node, OpenNode):
            node.deleted = deleted
            if not node.live:
                self._drop_open(node)
            return False
        left = node.without(deleted)
        live = left.live
        if not live:
            self.nodes.pop(left.first)
            return False
        repack = repack and live * 2 < left.held
        if repack:
            kept = [text for place, text in enumerate(self._texts(node)) if not deleted >> place & 1]
            left = left.repacked(kept)
            self.views.exchange(node.text, left.text, kept)
            if node.text.is_packed:
                self._cold.append(left.text)
        self.nodes.replace(node, left)
        return repack

    def take_cold(self) -> list[Text]:
        """The texts that removing entries has left unpacked, to be compressed again."""
        cold, self._cold = self._cold, []
        return cold

    def _find_edges(self, removed: Sequence[int]) -> None:
        """Look for the first and the last live entry again, where `removed` (ascending) held them."""
        if removed[0] <= self.first_id <= removed[-1]:
            self.first_id = next((run_ids[0] for run_ids, _ in self._runs(0, ids.ID_MAX)), 0)
        if removed[-1] >= self.last_live_id:
            self.last_live_id = next((run_ids[-1] for run_ids, _ in self._runs_down(0, ids.ID_MAX)), 0)

    def restore_node(self, node: SealedNode) -> None:
        """Take a sealed node of a snapshot; the counters were restored before it."""
        self.nodes.extend((node.first,), (node,))
        self.length += node.live

    def restore_open(self, run_ids: list[int], texts: list[bytes], deleted: int) -> None:
        """Take the open node of a snapshot."""
        self.open = OpenNode()
        self.open.extend(run_ids, texts, sum(map(len, texts)))
        self.open.deleted = deleted
        self.footprint.add(self.open.footprint_bytes)
        self.length += self.open.live

    # --- trimming -------------------------------------------------------------------------------------------

    def plan_cut(self, *, maxlen: int | None, minid: int | None, approx: bool, limit: int) -> TrimPlan:
        """What a trim that keeps references removes, by Redis's walk over whole nodes from the head.

        `limit` 0 is none. `approx` stops before the first node that would have to be taken apart, for the
        limit's sake too; else the limit is met exactly.
        """
        length, removed, cut = self.length, 0, 0
        if maxlen == length - 1 and not approx:
            # One entry more than wanted, as at each append to a stream kept at a length.
            return TrimPlan(self.first_id + 1, (), 1)
        for node in self._nodes():
            live = node.live
            if maxlen is not None and length <= maxlen:
                break
            whole = length - live >= maxlen if maxlen is not None else node.last < (minid or 0)
            if whole and not (limit and removed + live > limit):
                length, removed, cut = length - live, removed + live, node.last + 1
                continue
            if not approx:
                count = self._live_before(node, minid or 0) if maxlen is None else length - maxlen
                return self._inside(node, min(count, limit - removed) if limit else count, removed, cut)
            break
        return TrimPlan(cut, (), removed)

    def plan_bytes(self, bytes_max: int, *, approx: bool, limit: int) -> TrimPlan:
        """What has to go, in whole nodes, for the texts to take about `bytes_max`, never less.

        A node that has to go is taken apart where the limit wants it, unless `approx`.
        """
        size, removed, cut = self.text_bytes, 0, 0
        for node in self._nodes():
            if size - node.size < bytes_max:
                break
            if limit and removed + node.live > limit:
                return (
                    TrimPlan(cut, (), removed)
                    if approx
                    else self._inside(node, limit - removed, removed, cut)
                )
            size, removed, cut = size - node.size, removed + node.live, node.last + 1
        return TrimPlan(cut, (), removed)

    def _inside(self, node: Node, count: int, removed: int, cut: int) -> TrimPlan:
        """A plan that has come to `removed` and `cut`, and takes `count` more, the first live of `node`."""
        if count <= 0:
            return TrimPlan(cut, (), removed)
        return TrimPlan(self._id_at(node, live_place(node.deleted, count - 1)) + 1, (), removed + count)

    def plan_removal(
        self,
        *,
        maxlen: int | None,
        minid: int | None,
        limit: int,
        within: tuple[int, int],
        most: int,
        scanned_max: int,
        kept: Callable[[Sequence[int]], Collection[int]],
    ) -> TrimPlan:
        """What a trim that looks at references removes of the nodes that have IDs `within`: entry by entry.
        What `kept` gives back of a node's IDs stays. No more than `most` go, and about `scanned_max` are
        looked at.
        """
        start, upto = within
        length, gone, scanned = self.length, list[int](), 0
        for node in self._nodes(start):
            live = node.live
            if node.first > upto or (maxlen is not None and length <= maxlen):
                break
            if limit and len(gone) + live > limit:
                break
            if scanned >= scanned_max:
                return TrimPlan(0, gone, len(gone), scanned, None if gone else node.first)
            scanned += live
            eligible = length - live >= maxlen if maxlen is not None else node.last < (minid or 0)
            run_ids = self._live_ids(node)
            staying = kept(run_ids)
            for entry_id in run_ids:
                if length <= maxlen if maxlen is not None else entry_id >= (minid or 0):
                    break
                if len(gone) == most:
                    return TrimPlan(0, gone, len(gone), scanned)
                if entry_id not in staying:
                    gone.append(entry_id)
                    length -= 1
            if not eligible:
                break
        return TrimPlan(0, gone, len(gone), scanned)

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def node_count(self) -> int:
        """How many nodes there are (Redis's radix-tree-keys)."""
        return len(self.nodes) + (self.open is not None)

    def live_below(self, bound: int) -> int:
        """The highest live ID below `bound`, or 0."""
        return next((run_ids[-1] for run_ids, _ in self._runs_down(0, bound - 1)), 0) if bound else 0

    def live_from(self, bound: int) -> int:
        """The lowest live ID from `bound` on, or 0."""
        return next((run_ids[0] for run_ids, _ in self._runs(bound, ids.ID_MAX)), 0)

    def live_ids(self) -> Iterator[int]:
        """All live IDs upwards. The stream must not change meanwhile."""
        return (entry_id for run_ids, _ in self._runs(0, ids.ID_MAX) for entry_id in run_ids)

    def live_runs(self, low: int, high: int) -> Iterator[Sequence[int]]:
        """The live IDs in `[low, high]` upwards, run by run. The stream must not change meanwhile."""
        return (run_ids for run_ids, _ in self._runs(low, high))

    def get(self, entry_id: int) -> bytes | None:
        """The stored text of a live entry."""
        found = self._locate(entry_id)
        return None if found is None else self._texts(found[0])[found[1]]

    def find_each(self, wanted: Iterable[int], *, removing: bool = False) -> dict[int, bytes]:
        """The stored texts of those that are live, ascending: each node is looked into once. With `removing`
        these are going to be removed next, which need not look again.
        """
        ordered = sorted({entry_id for entry_id in wanted if self.first_id <= entry_id <= self.last_live_id})
        rows = list(self._find_each(ordered))
        texts = {entry_id: text for _, found in rows for entry_id, (_, text) in found.items()}
        if removing:
            self._found = list(texts), rows
        return texts

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
    ) -> Entries:
        """The live entries with IDs in `[low, high]`, as slices of stored text. At least one, whatever
        `bytes_max`.
        """
        if low > high or not self.length:
            return Entries()
        run = RangeBuilder(self.length if count is None else count, bytes_max)
        if reverse:
            for run_ids, texts in self._runs_down(low, high):
                run.add(run_ids[::-1], texts[::-1])
                if run.full:
                    break
        else:
            for node in self._nodes(low):
                if node.first > high or run.full:
                    break
                if not (
                    isinstance(node, SealedNode)
                    and low <= node.first
                    and node.last <= high
                    and run.add_node(node)
                ):
                    run.add(*self._window(node, low, high))
        return run.entries(more=self._more(run.last, low, high, reverse=reverse))

    def _more(self, last: int, low: int, high: int, *, reverse: bool) -> bool:
        """Whether the range goes on behind `last`."""
        if not last:
            return False
        if reverse:
            return (
                self.first_id < last and low < last and next(self._runs_down(low, last - 1), None) is not None
            )
        if last >= self.last_live_id or last >= high:
            return False
        return high >= self.last_live_id or next(self._runs(last + 1, high), None) is not None

    def after(self, cursor: int, count: int | None, bytes_max: int | None = None) -> list[tuple[int, bytes]]:
        """IDs and texts of the live entries above `cursor`, at least one of them where there is one."""
        found: list[tuple[int, bytes]] = []
        if self.last_live_id <= cursor:
            return found
        left = self.length if count is None else count
        size = 0
        for run_ids, texts in self._runs(cursor + 1, ids.ID_MAX):
            for entry_id, text in zip(run_ids[:left], texts, strict=False):
                size += len(text)
                if bytes_max is not None and size > bytes_max and found:
                    return found
                found.append((entry_id, text))
            left -= min(left, len(run_ids))
            if not left:
                break
        return found

    def count_between(self, low: int, high: int) -> int:
        """How many live entries have IDs in `[low, high]`; logarithmic, holes included."""
        return self._count_below(high + 1) - self._count_below(low)

    def _count_below(self, bound: int) -> int:
        node = self._node_of(bound)
        if node is None:
            return 0
        before = self.nodes.weight_below(node.first, weight_of) >> 64
        if bound > node.last:
            return before + node.live
        return before + self._live_before(node, bound)

    def distance_from_first(self, entry_id: int) -> int | None:
        """How many entries were ever added up to `entry_id`, or None where deletions make it unknowable.

        Redis's streamEstimateDistanceFromFirstEverEntry.
        """
        if self.entries_added == 0:
            return 0
        if self.length == 0 and entry_id <= self.last_id:
            return self.entries_added
        if entry_id and entry_id < self.max_deleted_id:
            return None
        if entry_id == self.last_id:
            return self.entries_added
        if entry_id > self.last_id:
            return None
        if not self.max_deleted_id or self.max_deleted_id < self.first_id:
            if entry_id < self.first_id:
                return self.entries_added - self.length
            if entry_id == self.first_id:
                return self.entries_added - self.length + 1
        return None

    def has_tombstone_from(self, entry_id: int) -> bool:
        """Whether an entry at or above `entry_id` may have been deleted from among the live ones."""
        return self.length > 0 and self.max_deleted_id > 0 and entry_id <= self.max_deleted_id

    @property
    def footprint(self) -> Footprint:
        """How much memory it takes, with all that its key adds."""
        return self.nodes.tally.footprint

    @property
    def footprint_bytes(self) -> int:
        """How much memory its nodes take, counted anew."""
        opened = self.open.footprint_bytes if self.open else 0
        return self.nodes.tally.held_bytes + len(self.nodes) * NODE_BYTES + opened

    @property
    def text_bytes(self) -> int:
        """The bytes of all texts, unpacked."""
        return self.nodes.tally.plain_bytes + (self.open.size if self.open else 0)

    def held_bytes(self) -> int:
        """How much memory the texts take, compressed ones as they are."""
        return self.nodes.tally.held_bytes + (self.open.size if self.open else 0)

    def check(self) -> None:
        """Assert that nodes, edges and counts agree."""
        self.nodes.check()
        found = [entry_id for run_ids, _ in self._runs(0, ids.ID_MAX) for entry_id in run_ids]
        assert found == sorted(set(found)), "IDs ascend over all nodes"
        assert len(found) == self.length, "the length is the number of live entries"
        assert (self.first_id, self.last_live_id) == ((found[0], found[-1]) if found else (0, 0)), (
            "the edges are live"
        )
        assert self.last_live_id <= self.last_id, "no entry lies beyond the last ID"
        assert self.entries_added >= self.length, "every live entry was added"
        assert all(node.live for node in self._nodes()), "no node stays without a live entry"
        assert self.count_between(0, ids.ID_MAX) == self.length, "counting agrees with the length"

    # --- finding --------------------------------------------------------------------------------------------

    def _nodes(self, low: int = 0) -> Iterator[Node]:
        """The nodes upwards, from the one that may hold `low`."""
        floor = self.nodes.floor(low)
        for _, node in self.nodes.items(floor[0] if floor else 0):
            if node.last >= low:
                yield node
        if self.open is not None:
            yield self.open

    def _head(self) -> Node | None:
        first = self.nodes.first()
        return first[1] if first else self.open

    def _node_of(self, entry_id: int) -> Node | None:
        """The node that may hold `entry_id`."""
        if self.open is not None and entry_id >= self.open.first:
            return self.open
        floor = self.nodes.floor(entry_id)
        return floor[1] if floor else None

    def _find_each(self, ordered: Sequence[int]) -> Iterator[tuple[Node, dict[int, tuple[int, bytes]]]]:
        """Of ascending IDs those that are live, node by node, each with its place and its text."""
        start = 0
        while start < len(ordered):
            node = self._node_of(ordered[start])
            stop = start if node is None else bisect_right(ordered, node.last, start)
            if node is not None and stop > start:
                found = self._find_in(node, ordered[start:stop])
                if found:
                    yield node, found
            # An ID between two nodes is passed over.
            start = max(stop, start + 1)

    def _find_in(self, node: Node, ordered: Sequence[int]) -> dict[int, tuple[int, bytes]]:
        found: dict[int, tuple[int, bytes]] = {}
        if isinstance(node, SealedNode) and len(ordered) <= _FEW_OF_NODE and node.text not in self.views:
            # Taking a cold node apart costs more than looking for a few.
            plain = node.text.plain()
            rows = ((entry_id, entries.find(plain, entry_id)) for entry_id in ordered)
            found = {entry_id: row for entry_id, row in rows if row is not None}
        else:
            texts = self._texts(node)
            places = _places_of(node, texts, ordered)
            found = {entry_id: (place, texts[place]) for entry_id, place in places}
        if not node.deleted:
            return found
        return {entry_id: row for entry_id, row in found.items() if not node.deleted >> row[0] & 1}

    def _locate(self, entry_id: int) -> tuple[Node, int] | None:
        """The node of a live entry and its place there."""
        node = self._node_of(entry_id)
        if node is None or entry_id > node.last:
            return None
        texts = self._texts(node)
        place = self._place(node, texts, entry_id)
        if place == len(texts) or node.deleted >> place & 1:
            return None
        return (node, place) if self._id_at(node, place) == entry_id else None

    def _id_at(self, node: Node, place: int) -> int:
        return node.ids[place] if isinstance(node, OpenNode) else entries.id_of(self._texts(node)[place])

    def _live_before(self, node: Node, bound: int) -> int:
        """How many live entries of the node lie below `bound`."""
        place = self._place(node, self._texts(node), bound)
        return place - (node.deleted & (1 << place) - 1).bit_count()

    def _last_live(self, node: Node) -> int:
        """The node's highest live ID; known without a look inside where nothing was ever deleted."""
        if not node.deleted and (isinstance(node, OpenNode) or node.held == node.count):
            return node.last
        return self._id_at(node, last_live_place(node.deleted, len(self._texts(node))))

    @staticmethod
    def _place(node: Node, texts: list[bytes], entry_id: int) -> int:
        """The place of the first held entry at or above `entry_id`."""
        if isinstance(node, OpenNode):
            return bisect_left(node.ids, entry_id)
        return bisect_left(texts, entry_id, key=entries.id_of)

    def _texts(self, node: Node) -> list[bytes]:
        if isinstance(node, OpenNode):
            return node.stored
        return self.views.of(node.text)

    def _live_ids(self, node: Node) -> list[int]:
        return self._window(node, 0, ids.ID_MAX)[0]

    def _window(self, node: Node, low: int, high: int) -> tuple[list[int], list[bytes]]:
        """IDs and texts of the node's live entries in `[low, high]`."""
        texts = self._texts(node)
        if isinstance(node, OpenNode):
            start, stop = bisect_left(node.ids, low), bisect_right(node.ids, high)
            run_ids = node.ids[start:stop]
        else:
            start = 0 if low <= node.first else bisect_left(texts, low, key=entries.id_of)
            stop = len(texts) if node.last <= high else bisect_right(texts, high, key=entries.id_of)
            run_ids = list(entries.ids_of(texts[start:stop]))
        run_texts = texts[start:stop]
        if not node.deleted:
            return run_ids, run_texts
        places = [place - start for place in live_places(node, len(texts)) if start <= place < stop]
        return [run_ids[place] for place in places], [run_texts[place] for place in places]

    def _runs(self, low: int, high: int) -> Iterator[tuple[list[int], list[bytes]]]:
        """The live entries in `[low, high]` upwards, node by node, none empty: the one iterator."""
        for node in self._nodes(low):
            if node.first > high:
                return
            run = self._window(node, low, high)
            if run[0]:
                yield run

    def _runs_down(self, low: int, high: int) -> Iterator[tuple[list[int], list[bytes]]]:
        """The same downwards; within a node upwards still."""
        if self.open is not None and self.open.first <= high:
            run = self._window(self.open, low, high)
            if run[0]:
                yield run
        for _, node in self.nodes.items_down(high):
            if node.last < low:
                return
            run = self._window(node, low, high)
            if run[0]:
                yield run


def _places_of(node: Node, texts: list[bytes], ordered: Sequence[int]) -> list[tuple[int, int]]:
    """Those of ascending IDs that the node holds, deleted ones too, each with its place."""
    if len(ordered) >= _MANY_OF_NODE:
        held = node.ids if isinstance(node, OpenNode) else entries.ids_of(texts)
        index = dict(zip(held, range(len(texts)), strict=True))
        return [(entry_id, index[entry_id]) for entry_id in ordered if entry_id in index]
    found: list[tuple[int, int]] = []
    for entry_id in ordered:
        place = Stream._place(node, texts, entry_id)  # noqa: SLF001 - of this module
        if place < len(texts) and entries.id_of(texts[place]) == entry_id:
            found.append((entry_id, place))
    return found
