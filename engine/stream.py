"""One stream: how entries are appended, cut and removed, and the counters that Redis keeps of that.

Knows: the nodes, which IDs were given and removed, and how many entries were ever added.
Must never know: callers, the time, consumer groups.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from engine import ids, rows
from engine.live_entries import Found, LiveEntries
from engine.memory import ENTRY_BYTES, OPEN_NODE_BYTES, SEALED_NODES_BYTES
from engine.nodes import Node, OpenNode, SealedNode, Text, last_live_place, live_place
from engine.runs import Run, RunLeft, in_range
from engine.sealed import NO_NODES, SPARE_CACHE, UNPACKED_NODES, Part, SealedNodes

# Redis keeps the counter in a signed 64-bit integer.
_ENTRIES_ADDED_MAX: Final = (1 << 63) - 1
# Nodes that one removal may repack. The others wait until the next removal from them.
_REPACKS_MAX: Final = 100
_NOTHING_LEFT: Final[Mapping[int, RunLeft]] = MappingProxyType({})


class NodeLimits(NamedTuple):
    """When a node seals: its entries (deleted ones too), and the bytes of their texts; 0 is no limit."""

    entries_max: int
    bytes_max: int


class Stream(LiveEntries, gc=False, eq=False):
    """The entries of one stream, and its counters. IDs are integers; `0` stands for "none" among them."""

    # The last ID given.
    last_id: int = 0
    max_deleted_id: int = 0
    entries_added: int = 0
    # The highest ID removed while no smaller entry was live. A reader whose cursor is below it has a gap.
    removed_upto: int = 0
    # How far entries were removed that XSETID made the counters above forget; 0 if it never did.
    forgotten_upto: int = 0
    # What `find_to_remove` has found, until `remove` takes it.
    _found: tuple[list[int], list[Found]] | None = None

    @property
    def gone_upto(self) -> int:
        """Above it, no group has an entry pending that is gone, between the first and the last live one.

        It never falls. Trims by references (XTRIM with ACKED or DELREF) do not raise it: they leave nothing
        pending.
        """
        return max(self.max_deleted_id, self.removed_upto, self.forgotten_upto)

    # --- writing --------------------------------------------------------------------------------------------

    def append(self, new_ids: Sequence[int], texts: Sequence[bytes], limits: NodeLimits) -> list[Text]:
        """Append entries with ascending IDs above `last_id`; the texts that have gone cold by it."""
        assert new_ids[0] > self.last_id, "the command has compared the IDs"
        if len(new_ids) == 1:
            # One integer for all that name the entry: an element of a range is made anew each time.
            new_ids = (new_ids[0],)
            self._take(self._room(limits), new_ids, (texts[0],))
        else:
            self._append_each(new_ids, texts, limits)
        if self.length == 0:
            self.first_id = new_ids[0]
        self.length += len(texts)
        self.entries_added = min(self.entries_added + len(texts), _ENTRIES_ADDED_MAX)
        self.last_id = self.last_live_id = new_ids[-1]
        return self.nodes.take_cooled() if len(self.nodes.hot) > UNPACKED_NODES else []

    def _append_each(self, new_ids: Sequence[int], texts: Sequence[bytes], limits: NodeLimits) -> None:
        """Fill the open node, and seal what is full."""
        joins, done = limits.entries_max > 0, 0
        # `[:]` makes every entry now; slices of the lazy form would make them again.
        texts = texts if joins else texts[:]
        while done < len(texts):
            stop = done + limits.entries_max
            if joins and stop < len(texts) and not self._has_room(limits):
                joins = self._append_whole(new_ids[done:stop], texts, done, limits)
                done, texts = (stop, texts) if joins else (done, texts[:])
                continue
            node = self._room(limits)
            most = limits.entries_max - len(node.ids) if limits.entries_max else len(texts)
            chunk = self._take_fitting(node, texts[done : done + most], limits)
            self._take(node, new_ids[done : done + len(chunk)], chunk)
            done += len(chunk)

    def _take(self, node: OpenNode, new_ids: Sequence[int], texts: Sequence[bytes]) -> None:
        """Put entries into the open node."""
        size = sum(map(len, texts))
        node.extend(new_ids, texts, size)
        self.footprint.add(len(texts) * ENTRY_BYTES + size)

    def _append_whole(
        self, node_ids: Sequence[int], texts: Sequence[bytes], start: int, limits: NodeLimits
    ) -> bool:
        """Append the entries from `start` on as a sealed node. Returns False if they exceed its limit of
        bytes.
        """
        count = len(node_ids)
        joined = rows.join(texts, start, start + count)
        if limits.bytes_max and len(joined) >= limits.bytes_max:
            return False
        if self.open is not None:
            self._seal()
        text, first, last = Text(joined), node_ids[0], node_ids[-1]
        self._add_sealed(SealedNode(first=first, last=last, count=count, held=count, deleted=0, text=text))
        return True

    def _has_room(self, limits: NodeLimits) -> bool:
        """Whether there is an open node that takes an entry."""
        node = self.open
        return node is not None and not (
            (limits.entries_max and len(node.ids) >= limits.entries_max)
            or (limits.bytes_max and node.size >= limits.bytes_max)
        )

    def _room(self, limits: NodeLimits) -> OpenNode:
        """The open node, a new one if the old one is full."""
        if self.open is not None and not self._has_room(limits):
            self._seal()
        if self.open is None:
            self.open = OpenNode()
            self.footprint.add(OPEN_NODE_BYTES)
        return self.open

    def _seal(self) -> None:
        assert self.open is not None, "there is a node to seal"
        self._add_sealed(self.open.seal())
        self._drop_open(self.open)

    def _add_sealed(self, node: SealedNode) -> None:
        self._own_nodes().extend((node.first,), (node,))
        self.nodes.hot.append(node.text)

    def _own_nodes(self) -> SealedNodes:
        """The sealed nodes, to append to: most streams never have any."""
        if self.nodes is NO_NODES:
            self.nodes = SealedNodes(self.footprint)
            self.footprint.add(SEALED_NODES_BYTES)
        return self.nodes

    def _drop_open(self, node: OpenNode) -> None:
        """Have no open node any more."""
        self.footprint.add(-node.footprint_bytes)
        self.open = None

    @staticmethod
    def _take_fitting(node: OpenNode, texts: Sequence[bytes], limits: NodeLimits) -> Sequence[bytes]:
        """As many of the texts as the node takes: entries go in until its bytes reach the limit."""
        size = node.size
        if not limits.bytes_max or size + sum(map(len, texts)) < limits.bytes_max:
            return texts
        for place, text in enumerate(texts):
            if size >= limits.bytes_max:
                return texts[:place]
            size += len(text)
        return texts

    def cut(self, below: int, left: Mapping[int, RunLeft] = _NOTHING_LEFT) -> int:
        """Remove all entries with IDs below `below`; how many were live. `left` is what `left_below` gave."""
        if below <= self.first_id or not self.length:
            return 0
        before, highest = self.length, 0
        head, last_whole = self._head(), None
        if head is not None and head.last < below:
            last_whole = self._cut_whole(below)
            head = self._head()
        if head is not None and head.first < below:
            highest = self._cut_run(head, left) if isinstance(head, Run) else self._cut_inside(head, below)
        if not highest and last_whole is not None:
            highest = self.last_of(last_whole)
        head = self._head()
        self.first_id = 0 if head is None else self.first_of(head)
        self.last_live_id = self.last_live_id if self.length else 0
        self.removed_upto = max(self.removed_upto, highest)
        return before - self.length

    def _cut_whole(self, below: int) -> Node | Run | None:
        """Remove the nodes entirely below the bound; return the last of them."""
        whole = 0
        last_whole: Node | Run | None = None
        for node in self.nodes.values():
            if node.last >= below:
                break
            self.length -= node.live
            whole, last_whole = whole + 1, node
        if whole:
            self.nodes.drop_first(whole)
        if self.nodes or self.open is None or self.open.last >= below:
            return last_whole
        emptied = self.open
        self._drop_open(emptied)
        self.length -= emptied.live
        return emptied

    def _cut_run(self, head: Run, left: Mapping[int, RunLeft]) -> int:
        """The same of a run."""
        if head.first not in left:
            return 0
        self._leave(head, left[head.first], ())
        return left[head.first].highest

    def _leave(self, run: Run, left: RunLeft, gone: Sequence[int]) -> None:
        """Let `left` be what the run has, and nothing of it stay that has no live entries."""
        self.length -= run.live - left.live
        if left.live:
            self.nodes.replace(run, run.leave(left, gone))
        else:
            self.nodes.pop(run.first)

    def _cut_inside(self, head: Node, below: int) -> int:
        """Remove from the front of the first node; the highest live ID that went, 0 if none did.

        A trim at each append takes the first entry alone, which is known without a look at any.
        """
        first = live_place(head.deleted, 0)
        if below == self.first_id + 1:
            self._mask(head, head.deleted | (2 << first) - 1)
            return self.first_id
        stop = self.place_of(head, self.texts_of(head), below)
        if stop <= first:
            return 0
        highest = self.id_at(head, last_live_place(head.deleted, stop))
        self._mask(head, head.deleted | (1 << stop) - 1)
        return highest

    def find_to_remove(self, wanted: Iterable[int]) -> dict[int, bytes]:
        """As `find_each`; a `remove` of the same IDs right after it need not search again."""
        rows = self.find_by_node(wanted)
        texts = {entry_id: text for _, live in rows for entry_id, (_, text) in live.items()}
        self._found = list(texts), rows
        return texts

    def remove(
        self, gone: Sequence[int], *, tombstone: bool, left: Mapping[int, RunLeft] = _NOTHING_LEFT
    ) -> int:
        """Remove single entries; how many were live. `tombstone` is a deletion (XDEL), else it is a trim.
        `left` is what `left_without` gave.
        """
        before, ordered = self.length, sorted(set(gone))
        removed = self._remove_from_runs(ordered, left)
        if removed:
            there = set(removed)
            ordered = [entry_id for entry_id in ordered if entry_id not in there]
        in_runs, repacks_left = len(removed), _REPACKS_MAX
        for node, live in self._found_before(ordered):
            mask = node.deleted
            for place, _ in live.values():
                mask |= 1 << place
            repacks_left -= self._mask(node, mask, repack=repacks_left > 0)
            removed += live
        if not removed:
            return 0
        if in_runs:
            removed.sort()
        if tombstone:
            self.max_deleted_id = max(self.max_deleted_id, removed[-1])
        first_before = self.first_id
        self._find_edges(removed)
        if self.first_id != first_before:
            edge = self.first_id or ids.ID_MAX + 1
            self.removed_upto = max(self.removed_upto, removed[bisect_left(removed, edge) - 1])
        return before - self.length

    def _remove_from_runs(self, ordered: Sequence[int], left: Mapping[int, RunLeft]) -> list[int]:
        """Remove those of ascending IDs that are in runs; which these are."""
        removed: list[int] = []
        for first, row in left.items():
            run = self.nodes.get(first)
            assert isinstance(run, Run), "the run is there as it was when the record was made"
            inside = in_range(run, ordered)
            self._leave(run, row, inside)
            removed += inside
        return removed

    def _found_before(self, ordered: list[int]) -> list[Found]:
        """What `find_each` has found for these IDs just now, or what is found anew."""
        kept, self._found = self._found, None
        if kept is not None and kept[0] == ordered and all(map(self._is_current, kept[1])):
            return kept[1]
        return self.find_by_node(ordered)

    def _is_current(self, row: tuple[Node, object]) -> bool:
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
            kept = [text for place, text in enumerate(self.texts_of(node)) if not deleted >> place & 1]
            left = left.repack(kept)
            self.node_cache.replace(node.text, left.text, kept)
            hot = self.nodes.hot
            if not node.text.is_packed and node.text in hot:
                hot[hot.index(node.text)] = left.text
            else:
                self.nodes.cold.append(left.text)
        self.nodes.replace(node, left)
        return repack

    def take_cold(self) -> list[Text]:
        """The texts that removing entries has left unpacked, to be compressed again."""
        return self.nodes.take_cold() if self.nodes.cold else []

    def _find_edges(self, removed: Sequence[int]) -> None:
        """Look for the first and the last live entry again, where `removed` (ascending) held them."""
        if removed[0] <= self.first_id <= removed[-1]:
            head = self._head()
            self.first_id = 0 if head is None else self.first_of(head)
        if removed[-1] >= self.last_live_id:
            last = self.nodes.last()
            tail = self.open or (last[1] if last else None)
            self.last_live_id = 0 if tail is None else self.last_of(tail)

    def restore_node(self, node: Part) -> None:
        """Take a sealed node or a run of a snapshot; the counters were restored before it."""
        self._own_nodes()
        self._expect_run()
        self.nodes.extend((node.first,), (node,))
        self.length += node.live

    def store(self, run: Run) -> None:
        """Let a run stand for the nodes that it holds."""
        self._expect_run()
        self.nodes.store(run)

    def _expect_run(self) -> None:
        """Runs of a stream in a keyspace are counted there."""
        if self.node_cache is not SPARE_CACHE:
            self.nodes.runs_of_all = self.node_cache.runs

    def restore_open(self, run_ids: Sequence[int], texts: Sequence[bytes], deleted: int) -> None:
        """Take the open node of a snapshot."""
        self.open = OpenNode()
        self.open.extend(run_ids, texts, sum(map(len, texts)))
        self.open.deleted = deleted
        self.footprint.add(self.open.footprint_bytes)
        self.length += self.open.live

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

    def check(self) -> None:
        """Assert that nodes, edges and counts agree."""
        self.nodes.check()
        entry_ids = [entry_id for run_ids, _ in self._runs(0, ids.ID_MAX) for entry_id in run_ids]
        assert entry_ids == sorted(set(entry_ids)), "IDs ascend over all nodes"
        assert len(entry_ids) == self.length, "the length is the number of live entries"
        assert (self.first_id, self.last_live_id) == (
            (entry_ids[0], entry_ids[-1]) if entry_ids else (0, 0)
        ), "the edges are live"
        assert self.last_live_id <= self.last_id, "no entry lies beyond the last ID"
        assert self.entries_added >= self.length, "every live entry was added"
        assert all(node.live for node in self.nodes_from()), "no node stays without a live entry"
        assert self.count_between(0, ids.ID_MAX) == self.length, "counting agrees with the length"
