"""A macro node: consecutive entries packed together, tombstones, size, sealing.

Knows: entries in their stored form (`engine.entries`), which of them are deleted, and compression.
Must never know: groups, other nodes, disk.

The open node is the last of a stream and takes entries; sealing makes it one block of bytes that never
changes:

    OpenNode     ids [ 1-0, 1-1, … ]   texts [ {"id":"1-0",…}, {"id":"1-1",…}, … ]   deleted 0b00…
    SealedNode   first 1-0  last 9-3   text  {"id":"1-0",…},{"id":"1-1",…},…         deleted 0b00…
                                       or that text under zstd, once the node is cold

Deletions are a bit mask beside the text, an integer, so that a node with another mask is a new node that
shares the text. There is no index: IDs and borders are found in the text itself, which costs microseconds
where it is needed at all; a range over a whole node is the text as it stands.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec
import zstandard

from engine import entries
from engine.memory import ENTRY_BYTES, OPEN_NODE_BYTES, Footprint

# The level that shrinks entries to a tenth at a few tenths of a microsecond each.
_ZSTD_LEVEL: Final = 1
# The event loop's alone, as `new_compressor` says of its kind.
_DECOMPRESSOR: Final = zstandard.ZstdDecompressor()


def new_compressor() -> zstandard.ZstdCompressor:
    """For one thread alone: a context in two threads at once corrupts what it gives."""
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=False)


class ByteCounter(msgspec.Struct, gc=False, eq=False):
    """Counts the bytes of texts: as held in memory (part of `footprint`), and unpacked."""

    footprint: Footprint
    held_bytes: int = 0
    plain_bytes: int = 0

    def hold(self, size: int) -> None:
        """Add to the bytes held; negative to subtract."""
        self.held_bytes += size
        self.footprint.add(size)

    def drop(self, texts: Sequence["Text"]) -> None:
        """Count texts out, all at once: there may be a million entries in them."""
        self.hold(-sum([text.held_bytes() for text in texts]))
        self.plain_bytes -= sum([text.size for text in texts])
        for text in texts:
            text.byte_counter = None


class Text(msgspec.Struct, gc=False, eq=False):
    """Joined entries, plain or compressed, which only this class knows. The content never changes.

    Each text refers to the counter of its stream, since it is compressed later by code that knows no stream.
    The collector passes it over: a counter leads to no text.
    """

    _plain: bytes | None
    _packed: bytes | None = None
    byte_counter: ByteCounter | None = None

    @property
    def size(self) -> int:
        """In bytes, of the plain form."""
        plain = self._plain
        return zstandard.frame_content_size(self._packed or b"") if plain is None else len(plain)

    def copy(self) -> "Text":
        """The same content for another stream."""
        return Text(self._plain, self._packed)

    def plain(self) -> bytes:
        """The joined entries."""
        plain = self._plain
        return _DECOMPRESSOR.decompress(self._packed or b"") if plain is None else plain

    def compress(self, compressor: zstandard.ZstdCompressor | None = None) -> bytes:
        """The joined entries under zstd. May be called from any thread while the plain form is held. Pass
        a compressor to pack many texts.
        """
        if self._packed is not None:
            return self._packed
        # The library leaves a buffer as long as the plain text behind the bytes that it gives: copy those.
        return bytes(memoryview((compressor or new_compressor()).compress(self.plain())))

    def keep_packed(self, packed: bytes) -> None:
        """From here on hold only the compressed form, which `compress` gave."""
        before = self.held_bytes()
        self._packed = packed
        self._plain = None
        if self.byte_counter is not None:
            self.byte_counter.hold(len(packed) - before)

    def count_in(self, byte_counter: ByteCounter) -> None:
        """Be counted in `byte_counter` from here on, in each form that the text takes."""
        assert self.byte_counter is None, "a text belongs to one stream"
        self.byte_counter = byte_counter
        byte_counter.hold(self.held_bytes())
        byte_counter.plain_bytes += self.size

    @property
    def is_packed(self) -> bool:
        """Whether only the compressed form is held."""
        return self._plain is None

    def held_bytes(self) -> int:
        """How much memory the content takes."""
        return len((self._packed if self._plain is None else self._plain) or b"")


def compress_each(texts: Sequence[Text]) -> list[bytes]:
    """Compress each text as `Text.compress` does, all in one call of the library. A thread that asked for the
    interpreter's lock after each text would wait for the event loop each time.
    """
    unpacked = [text for text in texts if not text.is_packed]
    if not unpacked:
        return [text.compress() for text in texts]
    segments = new_compressor().multi_compress_to_buffer([text.plain() for text in unpacked])
    packed = {text: segments[place].tobytes() for place, text in enumerate(unpacked)}
    return [packed[text] if text in packed else text.compress() for text in texts]


class SealedNode(msgspec.Struct, kw_only=True, gc=False, eq=False):
    """A full node. It never changes: deleting makes a new one that shares the text.

    `held` entries stand in the text; `count` is what Redis would count, removed and repacked ones included.
    `weight` is its live entries and the bytes of their texts as one integer, `live << 64 | bytes`, so that
    one row of sums counts both; a deleted entry's bytes are not known apart, and taken off in proportion.
    """

    first: int
    last: int
    count: int
    held: int
    deleted: int
    text: Text
    weight: int = 0

    def __post_init__(self) -> None:
        live, size = self.live, self.text.size - (self.held - 1)
        self.weight = live << 64 | (size * live // self.held if self.deleted else size)

    @property
    def size(self) -> int:
        """The bytes of the plain text, deleted entries too."""
        return self.text.size

    @property
    def live(self) -> int:
        """How many entries are not deleted."""
        return self.held - self.deleted.bit_count()

    def texts(self) -> list[bytes]:
        """Each held entry, deleted ones too."""
        return entries.texts(self.text.plain())

    def without(self, deleted: int) -> "SealedNode":
        """The node with the entries of this mask deleted."""
        return self._copy(held=self.held, deleted=deleted, text=self.text)

    def repack(self, kept: list[bytes]) -> "SealedNode":
        """The node with nothing but its live entries, which are `kept`; not compressed."""
        return self._copy(held=len(kept), deleted=0, text=Text(b",".join(kept)))

    def copy(self) -> "SealedNode":
        """The same node for another stream: the bytes of its text are shared."""
        return self._copy(held=self.held, deleted=self.deleted, text=self.text.copy())

    def _copy(self, *, held: int, deleted: int, text: Text) -> "SealedNode":
        return SealedNode(
            first=self.first, last=self.last, count=self.count, held=held, deleted=deleted, text=text
        )


class OpenNode(msgspec.Struct, gc=False, eq=False):
    """The node that takes entries. `size` is the bytes of all texts taken.

    There may be hundreds of thousands with one entry each: IDs and texts are in tuples until there are more.
    """

    ids: Sequence[int] = ()
    stored: Sequence[bytes] = ()
    deleted: int = 0
    size: int = 0

    @property
    def first(self) -> int:
        return self.ids[0]

    @property
    def last(self) -> int:
        return self.ids[-1]

    @property
    def live(self) -> int:
        return len(self.ids) - self.deleted.bit_count()

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return OPEN_NODE_BYTES + len(self.ids) * ENTRY_BYTES + self.size

    def texts(self) -> Sequence[bytes]:
        """Each entry, deleted ones too."""
        return self.stored

    def extend(self, ids: Sequence[int], texts: Sequence[bytes], size: int) -> None:
        """Take entries; `size` is the sum of their bytes."""
        kept_ids, kept = self.ids, self.stored
        self.size += size
        if isinstance(kept_ids, list) and isinstance(kept, list):
            kept_ids.extend(ids)
            kept.extend(texts)
        elif kept_ids or len(ids) > 1:
            self.ids, self.stored = [*kept_ids, *ids], [*kept, *texts]
        else:
            self.ids, self.stored = tuple(ids), tuple(texts)

    def seal(self) -> SealedNode:
        """The same entries as one immutable block."""
        return SealedNode(
            first=self.ids[0],
            last=self.ids[-1],
            count=len(self.ids),
            held=len(self.ids),
            deleted=self.deleted,
            text=Text(b",".join(self.stored)),
        )


Node = OpenNode | SealedNode
weight_of: Final = attrgetter("weight")


def live_places(node: Node, count: int) -> list[int]:
    """The places of entries not deleted, of `count` held ones, ascending."""
    deleted = node.deleted
    return [place for place in range(count) if not deleted >> place & 1]


def live_place(deleted: int, index: int) -> int:
    """The place of the entry that `index` live ones stand before. Trimming deletes from the front: what is
    deleted there is passed in one step.
    """
    place = ((deleted + 1) & ~deleted).bit_length() - 1
    rest = deleted >> place
    if not rest:
        return place + index
    while index or rest & 1:
        index -= not rest & 1
        rest >>= 1
        place += 1
    return place


def last_live_place(deleted: int, stop: int) -> int:
    """The place of the last entry before `stop` that is not deleted, -1 if there is none."""
    return (~deleted & (1 << stop) - 1).bit_length() - 1
