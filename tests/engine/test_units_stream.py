"""A stream of packed nodes behaves as a list of entries: appended to, cut, thinned, packed and read."""

import threading
from bisect import bisect_left
from itertools import accumulate
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from zstandard import ZstdDecompressor

from engine import entries, ids
from engine.keyspace import Key, Keyspace
from engine.nodes import SealedNode, Text
from engine.records.changes import SetCounters
from engine.rows import StoredTexts
from engine.sealed import UNPACKED_NODES
from engine.stream import NodeLimits, Stream
from tests import halves

some_ids = st.integers(0, 80)
bounds = st.tuples(some_ids, some_ids)
counts = st.none() | st.integers(1, 12)
byte_limits = st.none() | st.integers(0, 400)


def text_of(entry_id: int) -> bytes:
    return entries.encode(entry_id, entries.body([("n", "x" * (entry_id % 20))]))


def texts_of(parts: object) -> list[bytes]:
    assert isinstance(parts, list | tuple)
    return [text for part in parts for text in entries.texts(part)]


class BesideAList(RuleBasedStateMachine):
    """Every way to change and to read a stream, against the same done to a list of IDs."""

    @initialize(entries_max=st.integers(0, 6), bytes_max=st.sampled_from([0, 60, 200]))
    def begin(self, entries_max: int, bytes_max: int) -> None:
        self.limits = NodeLimits(entries_max, bytes_max)
        self.stream = Stream()
        self.live: list[int] = []
        self.last = 0
        self.added = 0
        self.removed_upto = 0
        self.max_deleted = 0
        # Those that a group may still have pending.
        self.gone: set[int] = set()
        self.cold: list[Text] = []

    def _removed(self, gone: set[int]) -> None:
        """The list without them, and what a reader may have missed: those before all that is left."""
        self.live = [entry_id for entry_id in self.live if entry_id not in gone]
        before_all = [entry_id for entry_id in gone if not self.live or entry_id < self.live[0]]
        self.removed_upto = max(self.removed_upto, *before_all, 0) if before_all else self.removed_upto

    @rule(steps=st.lists(st.integers(1, 3), min_size=1, max_size=9))
    def append(self, steps: list[int]) -> None:
        new = list(accumulate(steps, initial=self.last))[1:]
        self.last = new[-1]
        self.cold += self.stream.append(new, [text_of(entry_id) for entry_id in new], self.limits)
        self.live += new
        self.added += len(new)

    @rule(below=some_ids)
    def cut(self, below: int) -> None:
        gone = {entry_id for entry_id in self.live if entry_id < below}
        assert self.stream.cut(below) == len(gone)
        self.gone |= gone
        self._removed(gone)

    @rule(gone=st.sets(some_ids, max_size=12), tombstone=st.booleans())
    def remove(self, gone: set[int], *, tombstone: bool) -> None:
        found = gone & set(self.live)
        assert self.stream.remove(sorted(gone), tombstone=tombstone) == len(found)
        self._removed(found)
        if tombstone and found:
            self.max_deleted = max(self.max_deleted, *found)
            self.gone |= found

    @rule()
    def remove_a_run(self) -> None:
        """Most of a node at once, so that it is packed anew."""
        self.remove(set(self.live[1:6]), tombstone=True)

    @rule()
    def compress(self) -> None:
        """What has gone cold, as the gateway does in the background."""
        for text in self.cold:
            text.keep_packed(text.compress())
        self.cold.clear()

    @rule(last=some_ids, shown=some_ids)
    def set_last_id(self, last: int, shown: int) -> None:
        """XSETID, which leaves no entry and no deleted one above the last ID, and may hide that some were."""
        last = max(last, self.max_deleted, *self.live[-1:])
        self.max_deleted = min(shown, self.max_deleted)
        keyspace = Keyspace()
        keyspace.keys["s"] = Key("ab", self.stream)
        SetCounters("s", last, self.added, self.max_deleted).apply(keyspace)
        self.last, self.removed_upto = last, min(self.removed_upto, last)

    @rule(low=some_ids, high=some_ids, count=counts, bytes_max=byte_limits, reverse=st.booleans())
    def range(self, low: int, high: int, count: int | None, bytes_max: int | None, *, reverse: bool) -> None:
        found = [entry_id for entry_id in self.live if low <= entry_id <= high][:: -1 if reverse else 1]
        run = self.stream.range(low, high, count=count, bytes_max=bytes_max, reverse=reverse)
        texts = texts_of(run.parts)
        given_ids = [entries.id_of(text) for text in texts]
        assert given_ids == found[: len(given_ids)]
        assert texts == [text_of(entry_id) for entry_id in given_ids]
        edges = (given_ids[0], given_ids[-1]) if given_ids else (0, 0)
        assert (run.count, run.first, run.last) == (len(texts), *edges)
        assert run.more is (len(given_ids) < len(found))
        self._is_as_long_as_it_may_be(found[:count], given_ids, bytes_max)

    @rule(cursor=some_ids, count=counts, bytes_max=byte_limits)
    def after(self, cursor: int, count: int | None, bytes_max: int | None) -> None:
        found = [entry_id for entry_id in self.live if entry_id > cursor][:count]
        run = self.stream.after(cursor, count, bytes_max)
        given_ids = [entry_id for entry_id, _ in run]
        assert given_ids == found[: len(given_ids)]
        assert [text for _, text in run] == [text_of(entry_id) for entry_id in given_ids]
        self._is_as_long_as_it_may_be(found, given_ids, bytes_max)

    @staticmethod
    def _is_as_long_as_it_may_be(found: list[int], given_ids: list[int], bytes_max: int | None) -> None:
        """At least one; not over the limit; and the next would not have fitted, commas counted or not."""
        sizes = [len(text_of(entry_id)) for entry_id in found]
        taken = sum(sizes[: len(given_ids)])
        if bytes_max is None:
            assert given_ids == found
        elif found:
            assert given_ids
            assert taken <= bytes_max or len(given_ids) == 1
            assert len(given_ids) == len(found) or taken + sizes[len(given_ids)] + len(given_ids) > bytes_max

    @rule(bound=bounds)
    def count_between(self, bound: tuple[int, int]) -> None:
        low, high = min(bound), max(bound)
        expected = bisect_left(self.live, high + 1) - bisect_left(self.live, low)
        assert self.stream.count_between(low, high) == expected

    @rule(entry_id=some_ids)
    def find(self, entry_id: int) -> None:
        is_live = entry_id in self.live
        assert (entry_id in self.stream) is is_live
        assert self.stream.get(entry_id) == (text_of(entry_id) if is_live else None)

    @invariant()
    def agrees(self) -> None:
        stream = self.stream
        stream.check()
        edges = (self.live[0], self.live[-1]) if self.live else (0, 0)
        assert (stream.length, stream.first_id, stream.last_live_id) == (len(self.live), *edges)
        assert (stream.last_id, stream.entries_added) == (self.last, self.added)
        assert (stream.removed_upto, stream.max_deleted_id) == (self.removed_upto, self.max_deleted)
        holes = [entry_id for entry_id in self.gone - set(self.live) if edges[0] < entry_id < edges[1]]
        assert stream.gone_upto >= max(holes, default=0)


BesideAList.TestCase.settings = settings(max_examples=halves.some(200), stateful_step_count=30)
TestBesideAList = BesideAList.TestCase


def filled(count: int, limits: NodeLimits, size: int = 10) -> tuple[Stream, list[Text]]:
    """A stream with this number of entries, one after the other; and what has gone cold by that."""
    stream, cold = Stream(), list[Text]()
    for number in range(1, count + 1):
        text = entries.encode(number, entries.body([("n", "x" * size)]))
        cold += stream.append([number], [text], limits)
    return stream, cold


def test_a_node_seals_at_its_entries_deleted_ones_too() -> None:
    """As Redis counts: deleting makes no room in a node."""
    stream, _ = filled(3, NodeLimits(3, 0))
    stream.remove([2], tombstone=True)
    stream.append([4], [text_of(4)], NodeLimits(3, 0))
    assert stream.node_count == 2


@pytest.mark.parametrize(("bytes_max", "nodes"), [(0, 1), (1, 6), (200, 2), (10_000, 1)])
def test_a_node_seals_at_its_bytes(bytes_max: int, nodes: int) -> None:
    """Before the entry that would come after it is full; 0 is no limit."""
    stream, _ = filled(6, NodeLimits(0, bytes_max))
    assert stream.node_count == nodes


# Two of the first entries have 80 bytes.
NODE_LIMITS: Final = [NodeLimits(4, 300), NodeLimits(5, 0), *(NodeLimits(0, 80 + by) for by in (-1, 0, 1))]


@pytest.mark.parametrize("limits", [*NODE_LIMITS, *(NodeLimits(3, 80 + by) for by in (-1, 0, 1))])
@pytest.mark.parametrize("first", [0, 1, 2, 3, 5, 29])
@pytest.mark.parametrize("as_list", [True, False])
def test_a_batch_makes_the_nodes_that_its_entries_would_one_by_one(
    limits: NodeLimits, first: int, *, as_list: bool
) -> None:
    """Given as a list or as texts that are made when they are asked for, after `first` other entries."""
    one_by_one, cold = filled(30, limits)
    batch, gone_cold = filled(first, limits)
    run = StoredTexts(0, first + 1, [entries.body([("n", "x" * 10)])] * (30 - first))
    gone_cold += batch.append(range(first + 1, 31), run[:] if as_list else run, limits)
    batch.check()
    assert [text.plain() for text in gone_cold] == [text.plain() for text in cold]
    assert described(batch) == described(one_by_one)


def sealed(stream: Stream) -> list[SealedNode]:
    """Its sealed nodes."""
    return [node for node in stream.nodes.values() if isinstance(node, SealedNode)]


def described(stream: Stream) -> list[object]:
    """All that entries leave in a stream."""
    nodes = [(node.first, node.last, node.count, node.text.plain()) for node in sealed(stream)]
    opened = None if stream.open is None else (stream.open.ids, stream.open.stored, stream.open.size)
    counters = stream.length, stream.first_id, stream.last_id, stream.entries_added, stream.footprint.bytes
    return [nodes, opened, counters]


def test_the_newest_nodes_stay_warm() -> None:
    """Texts are given out for compression once enough newer nodes are sealed, each once."""
    stream, cold = filled(100, NodeLimits(5, 0))
    texts = [node.text for node in sealed(stream)]
    assert cold == texts[: len(texts) - UNPACKED_NODES]


def test_a_range_of_whole_nodes_is_their_texts() -> None:
    """Slices, not entries: a thousand entries are ten pieces."""
    stream, _ = filled(1_000, NodeLimits(100, 0))
    run = stream.range(0, ids.ID_MAX)
    assert (len(run.parts), run.count) == (10, 1_000)
    first = sealed(stream)[0]
    assert run.parts[0] is first.text.plain()


def test_a_node_half_dead_is_packed_anew() -> None:
    """Its text shrinks; what Redis would count of it stays; its borders too."""
    stream, _ = filled(11, NodeLimits(10, 0))
    before = sealed(stream)[0]
    stream.remove([2, 3, 4, 5, 6], tombstone=True)
    half = sealed(stream)[0]
    assert half.text is before.text
    stream.remove([7], tombstone=True)
    packed = sealed(stream)[0]
    assert (packed.held, packed.count, packed.deleted) == (4, 10, 0)
    assert (packed.first, packed.last) == (1, 10)
    assert packed.size < half.size
    assert (before.deleted, half.deleted) == (0, 0b111110)


def test_a_packed_node_is_to_be_packed_again_when_it_shrinks() -> None:
    """It is cold: the plain form would be held for no reader."""
    stream, _ = filled(11, NodeLimits(10, 0), size=200)
    text = sealed(stream)[0].text
    text.keep_packed(text.compress())
    stream.remove([1, 2, 3, 4, 5, 6], tombstone=True)
    shrunk = sealed(stream)[0]
    (cold,) = stream.take_cold()
    assert cold is shrunk.text
    cold.keep_packed(cold.compress())
    assert shrunk.text.held_bytes() < shrunk.size
    assert [entries.id_of(each) for each in shrunk.texts()] == [7, 8, 9, 10]


def test_a_node_that_is_repacked_goes_cold_as_it_would_have() -> None:
    """One of the newest takes the place of its old text; one that waits for its compression is to be packed
    itself.
    """
    stream, _ = filled(9, NodeLimits(4, 0))
    stream.remove([1, 2, 3], tombstone=True)
    cold = stream.take_cold()
    for number in range(10, 60):
        cold += stream.append([number], [text_of(number)], NodeLimits(4, 0))
    assert cold == [node.text for node in sealed(stream)][:-UNPACKED_NODES]
    stream.remove([5, 6, 7], tombstone=True)
    assert stream.take_cold() == [sealed(stream)[1].text]


TEXTS_EACH: Final = 400


def test_packing_in_two_threads_is_safe() -> None:
    """The packing thread and the loop may each have a node in hand."""
    plain = [text_of(number) * 200 for number in range(1, 30)]
    failures: list[object] = []

    def pack() -> None:
        for number in range(TEXTS_EACH):
            content = plain[number % len(plain)]
            try:
                if ZstdDecompressor().decompress(Text(content).compress()) != content:
                    failures.append(number)
            except Exception as error:  # noqa: BLE001 - any error at all is the failure
                failures.append(error)

    threads = [threading.Thread(target=pack) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_count_of_all_that_was_added_stays_within_64_bits() -> None:
    """XSETID may have set it as high as it goes; it stays there."""
    stream = Stream()
    stream.entries_added = (1 << 63) - 2
    stream.append(
        [1, 2, 3], [entries.encode(one, entries.body([("a", "1")])) for one in (1, 2, 3)], NodeLimits(9, 0)
    )
    assert stream.entries_added == (1 << 63) - 1
