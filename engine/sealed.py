"""The sealed nodes of a stream in order, and what their texts take; a few texts taken apart, of all streams.

Knows: which texts are held, and so the sums of their bytes.
Must never know: the open node, the stream, readers.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Final

from engine import entries
from engine.blocks import Snapshot, SortedMap
from engine.memory import NODE_BYTES, Footprint
from engine.nodes import ByteCounter, SealedNode, Text

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


class SealedNodes(SortedMap[SealedNode]):
    """Nodes by their first IDs. All writes go through here, which keeps `byte_counter` right."""

    __slots__ = ("byte_counter", "cold", "hot")

    def __init__(self, footprint: Footprint) -> None:
        super().__init__(_BLOCK_NODES_MAX)
        self.byte_counter = ByteCounter(footprint)
        # The texts of the newest nodes, which stay unpacked.
        self.hot: list[Text] = []
        # Texts of nodes behind the newest that were repacked, and are plain now.
        self.cold: list[Text] = []

    def extend(self, keys: Sequence[int], values: Sequence[SealedNode]) -> None:
        """Append nodes."""
        super().extend(keys, values)
        self.byte_counter.footprint.add(len(keys) * NODE_BYTES)
        for node in values:
            node.text.count_in(self.byte_counter)

    def set(self, key: int, value: SealedNode) -> None:
        """Replace a node."""
        before = self.get(key)
        assert before is not None, "nodes are appended, or replaced by what is left of them"
        self.replace(before, value)

    def replace(self, before: SealedNode, node: SealedNode) -> None:
        """Put what is left of a node in its place."""
        super().set(node.first, node)
        if before.text is not node.text:
            self.byte_counter.drop((before.text,))
            node.text.count_in(self.byte_counter)

    def pop(self, key: int) -> SealedNode | None:
        """Remove a node."""
        node = super().pop(key)
        if node is not None:
            self.byte_counter.footprint.add(-NODE_BYTES)
            self.byte_counter.drop((node.text,))
        return node

    def drop_first(self, count: int) -> None:
        """Remove the lowest `count` nodes."""
        self.byte_counter.footprint.add(-count * NODE_BYTES)
        self.byte_counter.drop([node.text for node in islice(self.values(), count)])
        super().drop_first(count)

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
        texts = [node.text for node in self.values()]
        assert self.byte_counter.plain_bytes == sum(text.size for text in texts), (
            "the plain bytes are the texts'"
        )
        assert self.byte_counter.held_bytes == sum(text.held_bytes() for text in texts), (
            "the bytes held are the texts', packed ones as they are"
        )


class _NoSealedNodes(SealedNodes):
    """Those of a stream that never had any: one for all of them, never written."""

    __slots__ = ()

    def extend(self, keys: Sequence[int], values: Sequence[SealedNode]) -> None:
        raise AssertionError("a stream makes nodes of its own first")

    def snapshot(self) -> Snapshot[SealedNode]:
        return _EMPTY_SNAPSHOT


_EMPTY_SNAPSHOT: Final[Snapshot[SealedNode]] = Snapshot(())
NO_NODES: Final = _NoSealedNodes(Footprint())


class DecodedNodeCache:
    """The texts unpacked last, over all streams, whole or taken apart: a walk entry by entry over a cold node
    unpacks it once, and readers that follow each other through the same history share its nodes.
    """

    __slots__ = ("_decoded", "_decoded_bytes", "_plain", "_plain_bytes")

    def __init__(self) -> None:
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
