"""A row group of an archive's file as entries: encoded once, so that each page is a slice.

Knows: the columns of a file, the stored form of an entry. Must never know: which groups a page needs.

Entries of one stream in a group are a *run*: their IDs as `id_key`s, ascending, and one text, in which they
are joined by commas as in a page.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine import entries
from pyspark_weir.table.ranges import ENTRY_KEYS, StreamKey
from pyspark_weir.table.reading import condition_of
from pyspark_weir.table.schema import IN_FILES, Keys, keys_of
from pyspark_weir.table.table import EntryFilter

# What is read of a file.
COLUMNS: Final = pa.schema([IN_FILES.field(name) for name in (*ENTRY_KEYS, "id", "fields")])
_to_json: Final = msgspec.json.Encoder().encode
# What JSON writes otherwise.
_SPECIAL: Final = r'["\\\x00-\x1f]'
# What a run takes beside its text: an `id_key` and an offset an entry.
_ENTRY_BYTES: Final = 40
# On the way texts exist several times, as bytes of Arrow's and of Python's.
_PIECE_BYTES: Final = 2 << 20


def key_of(entry_id: int) -> np.bytes_:
    """An ID as an `id_key`."""
    return np.bytes_(b"%032x" % entry_id)


class Run(NamedTuple):
    """Entries of one stream: entry `n` is `text[offsets[n] : offsets[n + 1] - 1]`."""

    keys: Keys
    text: bytes
    offsets: npt.NDArray[np.int64]

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Which entries have IDs from `low` to `high`: the first, and the one behind the last."""
        first = np.searchsorted(self.keys, key_of(low), "left")
        return int(first), int(np.searchsorted(self.keys, key_of(high), "right"))

    def id(self, place: int) -> int:
        """The ID of an entry."""
        return int(self.keys[place], 16)

    def length(self, first: int, end: int) -> int:
        """The bytes of a slice."""
        return int(self.offsets[end] - self.offsets[first])

    def slice(self, first: int, end: int) -> bytes:
        """The entries from `first` to before `end`, joined by commas; there is one at least."""
        return self.text[self.offsets[first] : self.offsets[end] - 1]


class LeftOut(NamedTuple):
    """How many entries of a stream were left out of a group, which had it from `low` to `high`."""

    low: np.bytes_
    high: np.bytes_
    number: int


class Group(NamedTuple):
    """The runs of a row group, without the entries that are known to be deleted; `size` in bytes."""

    runs: Mapping[StreamKey, Run]
    left_out: Mapping[StreamKey, LeftOut]
    size: int


class Deleted(NamedTuple):
    """The recorded deletions at a version, None before there are any: `id_key`s of each stream, ascending."""

    version: int | None
    keys: Mapping[StreamKey, Keys]

    @classmethod
    def of(cls, version: int | None, rows: pa.Table) -> Self:
        """What `deletions.read` found."""
        return cls(version, {key: np.sort(keys_of(own)) for key, own in _by_stream(rows)})

    def within(self, key: StreamKey, low: np.bytes_, high: np.bytes_) -> Keys:
        """Those of a stream from `low` to `high`."""
        found = self.keys.get(key)
        if found is None:
            return np.array([], "S32")
        return found[np.searchsorted(found, low) : np.searchsorted(found, high, "right")]

    def are_left_out_of(self, group: Group) -> bool:
        """Whether a group that was encoded at an earlier version lacks all of them: none is ever taken
        back.
        """
        return all(
            len(self.within(key, left.low, left.high)) == left.number for key, left in group.left_out.items()
        )


def encode_group(rows: pa.Table, deleted: Deleted) -> Group:
    """A group's entries, but those that were deleted."""
    runs: dict[StreamKey, Run] = {}
    left_out: dict[StreamKey, LeftOut] = {}
    for key, own in _by_stream(rows):
        keys, ordered = _in_order(own)
        gone = deleted.within(key, keys[0], keys[-1])
        left_out[key] = LeftOut(keys[0], keys[-1], len(gone))
        if len(gone):
            kept = ~np.isin(keys, gone)
            keys, ordered = keys[kept], ordered.filter(pa.array(kept))
        runs[key] = Run(keys, *_encode_in_pieces(ordered))
    return Group(runs, left_out, sum(len(run.text) + _ENTRY_BYTES * len(run.keys) for run in runs.values()))


def _by_stream(rows: pa.Table) -> Iterator[tuple[StreamKey, pa.Table]]:
    found = [StreamKey(**row) for row in rows.group_by(StreamKey._fields).aggregate([]).to_pylist()]
    for key in found:
        yield key, rows if len(found) == 1 else rows.filter(condition_of(EntryFilter(*key)))


def _in_order(rows: pa.Table) -> tuple[Keys, pa.Table]:
    """A foreign OPTIMIZE does not sort."""
    keys = keys_of(rows)
    if bool((keys[1:] >= keys[:-1]).all()):
        return keys, rows
    order = np.argsort(keys, kind="stable")
    return keys[order], rows.take(pa.array(order))


def _encode_in_pieces(rows: pa.Table) -> tuple[bytes, npt.NDArray[np.int64]]:
    """As `_encode`, with a piece and not the whole in several forms at once."""
    step = max(1, _PIECE_BYTES * rows.num_rows // max(1, rows.nbytes))
    if step >= rows.num_rows:
        return _encode(rows)
    pieces = [_encode(rows.slice(first, step)) for first in range(0, rows.num_rows, step)]
    begins = np.cumsum([0, *(len(text) for text, _ in pieces)])
    offsets = [own[:-1] + begin for (_, own), begin in zip(pieces, begins[:-1], strict=True)]
    return b"".join(text for text, _ in pieces), np.concatenate([*offsets, begins[-1:]])


def _encode(rows: pa.Table) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The stored forms of entries, each with a comma behind it; where each begins, and the last one ends."""
    fields = rows["fields"].combine_chunks()
    pairs, ends = fields.flatten(), np.asarray(fields.offsets, np.int64)
    ends = ends - ends[0]
    names, values = pairs.field("name").dictionary_encode(), pairs.field("value")
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        # Some value is not UTF-8.
        return _one_by_one(rows, names, values, ends)
    known, places = names.dictionary.to_pylist(), names.indices.to_numpy()
    width = int(ends[1]) if len(ends) > 1 else 0
    is_even = width > 0 and len(places) == width * rows.num_rows and bool((np.diff(ends) == width).all())
    if not is_even or not (places.reshape(-1, width) == places[:width]).all():
        return _one_by_one(rows, names, texts, ends)
    row_names = [known[place] for place in places[:width].tolist()]
    if len(set(row_names)) < width:
        return _one_by_one(rows, names, texts, ends)
    return _alike(rows["id"].combine_chunks(), row_names, _escape(texts))


def _alike(ids: Any, names: Sequence[str], values: Any) -> tuple[bytes, npt.NDArray[np.int64]]:  # noqa: ANN401 - pyarrow has no types
    """Entries with the same names, all of them different: arrays are joined, not made into objects."""
    parts: list[Any] = ['{"id":"', ids, '","fields":{']
    for place, name in enumerate(names):
        own = values.take(pa.array(np.arange(place, len(values), len(names))))
        before = '",' if place else ""
        parts += [f'{before}{_to_json(name).decode()}:"', own]
    joined = pc.binary_join_element_wise(*parts, '"}},', "")
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[: len(joined) + 1].astype(np.int64)
    return joined.buffers()[2].to_pybytes()[: offsets[-1]], offsets


def _escape(texts: Any) -> Any:  # noqa: ANN401 - the same
    """Texts as they stand between quotation marks."""
    special = pc.match_substring_regex(texts, _SPECIAL)
    found = texts.filter(special).to_pylist()
    if not found:
        return texts
    return pc.replace_with_mask(texts, special, pa.array([_to_json(one)[1:-1].decode() for one in found]))


def _one_by_one(
    rows: pa.Table,
    names: Any,  # noqa: ANN401 - the same
    values: Any,  # noqa: ANN401 - the same
    ends: npt.NDArray[np.int64],
) -> tuple[bytes, npt.NDArray[np.int64]]:
    known, given = names.dictionary.to_pylist(), values.to_pylist()
    pairs = list(zip([known[place] for place in names.indices.to_pylist()], given, strict=True))
    texts = [
        b'{"id":"%b"%b,' % (one.encode(), entries.body(pairs[first:end]))
        for one, (first, end) in zip(rows["id"].to_pylist(), pairwise(ends.tolist()), strict=True)
    ]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return b"".join(texts), offsets
