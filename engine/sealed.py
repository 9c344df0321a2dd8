"""The sealed nodes of a stream in order, those in files as runs, and what their texts take; a few texts taken
apart, of all streams.

Knows: which texts are held, and so the sums of their bytes.
Must never know: the open node, the stream, readers.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeAlias

from engine import entries
from engine.blocks import Snapshot, SortedMap
from engine.memory import GONE_ID_BYTES, NODE_BYTES, RUN_BYTES, Footprint
from engine.nodes import ByteCounter, SealedNode, Text
from engine.runs import Run, Runs

# The newest sealed nodes of a stream stay uncompressed, since live readers lag a few hundred entries,
# not thousands.
UNPACKED_NODES: Final = 4
# Nodes a block of the list: small, since counting between two IDs walks part of one.
_BLOCK_NODES_MAX: Final = 64
# Limits of the cache: nodes taken apart, whole ones, and bytes of plain text, of each kind. The latest one
# always stays.
DECODED_NODES_MAX: Final = 64
PLAIN_NODES_MAX: Final = 1_024
DECODED_BYTES_MAX: Final = 4 << 20


# What stands in the place of one node, or of many.
Part: TypeAlias = SealedNode | Run


class SealedNodes(SortedMap[Part]):
    """Nodes and runs by their first IDs. All writes go through here, which keeps `byte_counter` right."""

    __slots__ = ("byte_counter", "cold", "gone_ids", "hot", "run_nodes", "runs", "runs_of_all")

    def __init__(self, footprint: Footprint) -> None:
        super().__init__(_BLOCK_NODES_MAX)
        self.byte_counter = ByteCounter(footprint)
        # The texts of the newest nodes, which stay unpacked.
        self.hot: list[Text] = []
        # Texts of nodes behind the newest that were repacked, and are plain now.
        self.cold: list[Text] = []
        # How many runs there are, how many nodes are left in them, and how many IDs stand beside them.
        self.runs = self.run_nodes = self.gone_ids = 0
        # Where the runs of all streams are counted; None outside a keyspace.
        self.runs_of_all: Runs | None = None

    def extend(self, keys: Sequence[int], values: Sequence[Part]) -> None:
        """Append nodes."""
        super().extend(keys, values)
        for part in values:
            self._count_in(part)

    def set(self, key: int, value: Part) -> None:
        """Replace a node."""
        before = self.get(key)
        assert before is not None, "nodes are appended, or replaced by what is left of them"
        self.replace(before, value)

    def replace(self, before: Part, part: Part) -> None:
        """Put what is left of a node in its place."""
        super().set(part.first, part)
        if isinstance(before, SealedNode) and isinstance(part, SealedNode):
            if before.text is not part.text:
                self.byte_counter.drop((before.text,))
                part.text.count_in(self.byte_counter)
            return
        self._count_in(part)
        self._count_out((before,))

    def pop(self, key: int) -> Part | None:
        """Remove a node."""
        part = super().pop(key)
        if part is not None:
            self._count_out((part,))
        return part

    def drop_first(self, count: int) -> None:
        """Remove the lowest `count` nodes."""
        self._count_out(list(islice(self.values(), count)))
        super().drop_first(count)

    def store(self, run: Run) -> None:
        """Put a run in the place of the nodes that it holds."""
        gone = [part for _, part in self.page(run.first, run.nodes) if part.first <= run.last]
        super().set(run.first, run)
        super().drop_each([part.first for part in gone[1:]])
        self._count_in(run)
        self._count_out(gone)
        texts = {part.text for part in gone if isinstance(part, SealedNode)}
        self.hot = [text for text in self.hot if text not in texts]

    def _count_in(self, part: Part) -> None:
        if isinstance(part, SealedNode):
            self.byte_counter.footprint.add(NODE_BYTES)
            part.text.count_in(self.byte_counter)
            return
        self._count_run(part, 1)
        if self.runs_of_all is not None:
            self.runs_of_all.add(part)

    def _count_out(self, parts: Sequence[Part]) -> None:
        texts = [part.text for part in parts if isinstance(part, SealedNode)]
        self.byte_counter.footprint.add(-len(texts) * NODE_BYTES)
        self.byte_counter.drop(texts)
        if self.runs:
            for part in parts:
                if isinstance(part, Run):
                    self._count_run(part, -1)
                    if self.runs_of_all is not None:
                        self.runs_of_all.drop(part)

    def _count_run(self, run: Run, by: int) -> None:
        self.runs += by
        self.run_nodes += by * run.nodes
        self.gone_ids += by * len(run.gone)
        self.byte_counter.plain_bytes += by * run.size
        self.byte_counter.footprint.add(by * (RUN_BYTES + len(run.gone) * GONE_ID_BYTES))

    def enter(self, runs: Runs) -> None:
        """The stream is one of a keyspace from here on."""
        if self is not NO_NODES:
            self.runs_of_all = runs
            for part in self.values() if self.runs else ():
                if isinstance(part, Run):
                    runs.add(part)

    def leave(self) -> None:
        """It is not any more: what it had is to be freed."""
        runs, self.runs_of_all = self.runs_of_all, None
        for part in self.values() if self.runs and runs is not None else ():
            if isinstance(part, Run):
                runs.drop(part)  # type: ignore[union-attr]

    @property
    def node_count(self) -> int:
        """How many nodes there are, those of runs too."""
        return len(self) - self.runs + self.run_nodes

    @property
    def footprint_bytes(self) -> int:
        """How much memory they take beside their texts."""
        nodes = (len(self) - self.runs) * NODE_BYTES
        return nodes + self.runs * RUN_BYTES + self.gone_ids * GONE_ID_BYTES

    def take_cooled(self) -> list[Text]:
        """The texts that newer nodes have made cold."""
        cooled = self.hot[:-UNPACKED_NODES]
        del self.hot[:-UNPACKED_NODES]
        return cooled

    def take_cold(self) -> list[Text]:
        """The texts that removing entries has left unpacked, to be compressed again."""
        cold, self.cold = self.cold, []
        return cold

    def check(self) -> None:
        """Assert order and counts, and that the byte counts equal those of a walk over all nodes."""
        super().check()
        texts = [part.text for part in self.values() if isinstance(part, SealedNode)]
        runs = [part for part in self.values() if isinstance(part, Run)]
        counted = (len(runs), sum(run.nodes for run in runs), sum(len(run.gone) for run in runs))
        assert (self.runs, self.run_nodes, self.gone_ids) == counted, "runs are counted as they are"
        in_files = sum(run.size for run in runs)
        assert self.byte_counter.plain_bytes == in_files + sum(text.size for text in texts), (
            "the plain bytes are the texts'"
        )
        assert self.byte_counter.held_bytes == sum(text.held_bytes() for text in texts), (
            "the bytes held are the texts', packed ones as they are"
        )


class _NoSealedNodes(SealedNodes):
    """Those of a stream that never had any: one for all of them, never written."""

    __slots__ = ()

    def extend(self, keys: Sequence[int], values: Sequence[Part]) -> None:
        raise AssertionError("a stream makes nodes of its own first")

    def snapshot(self) -> Snapshot[Part]:
        return _EMPTY_SNAPSHOT


_EMPTY_SNAPSHOT: Final[Snapshot[Part]] = Snapshot(())
NO_NODES: Final = _NoSealedNodes(Footprint())


class DecodedNodeCache:
    """The texts unpacked last, over all streams, whole or taken apart: a walk entry by entry over a cold node
    unpacks it once, and readers that follow each other through the same history share its nodes.
    """

    __slots__ = ("_decoded", "_decoded_bytes", "_plain", "_plain_bytes", "runs")

    def __init__(self, memory_bytes_max: int | None = None) -> None:
        # Those that are in files.
        self.runs = Runs(memory_bytes_max)
        # In both, the one that was used longest ago comes first. Only an `OrderedDict` removes the first of
        # many in constant time.
        self._decoded: OrderedDict[Text, list[bytes]] = OrderedDict()
        self._decoded_bytes = 0
        self._plain: OrderedDict[Text, bytes] = OrderedDict()
        self._plain_bytes = 0

    def __len__(self) -> int:
        return len(self._decoded)

    def __contains__(self, text: Text) -> bool:
        return text in self._decoded

    @property
    def plain_bytes(self) -> int:
        """The bytes of the texts that it holds whole."""
        return self._plain_bytes

    def of(self, text: Text) -> list[bytes]:
        """The single entries of a text."""
        texts = self._decoded.get(text)
        if texts is not None:
            self._decoded.move_to_end(text)
            return texts
        plain = self._plain.get(text)
        texts = entries.texts(text.plain() if plain is None else plain)
        self._keep_decoded(text, texts)
        return texts

    def plain(self, text: Text) -> bytes:
        """The joined entries of a text."""
        plain = self._plain.get(text)
        if plain is not None:
            self._plain.move_to_end(text)
            return plain
        plain = text.plain()
        if not text.is_packed:
            return plain
        self._plain_bytes += len(plain)
        while self._plain and (self._plain_bytes > DECODED_BYTES_MAX or len(self._plain) >= PLAIN_NODES_MAX):
            self._plain_bytes -= len(self._plain.popitem(last=False)[1])
        self._plain[text] = plain
        return plain

    def replace(self, gone: Text, text: Text, single: list[bytes]) -> None:
        """Keep what is at hand of a new text that takes the place of another."""
        if self._decoded.pop(gone, None) is not None:
            self._decoded_bytes -= gone.size
        self._plain_bytes -= len(self._plain.pop(gone, b""))
        self._keep_decoded(text, single)

    def _keep_decoded(self, text: Text, texts: list[bytes]) -> None:
        self._decoded_bytes += text.size
        while self._decoded and (
            self._decoded_bytes > DECODED_BYTES_MAX or len(self._decoded) >= DECODED_NODES_MAX
        ):
            self._decoded_bytes -= self._decoded.popitem(last=False)[0].size
        self._decoded[text] = texts


# That of streams outside a keyspace, while they are copied, say.
SPARE_CACHE: Final = DecodedNodeCache()
