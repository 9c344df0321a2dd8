"""The fields of a page of entries, flat: names, values, and where each entry begins.

Knows: repeated names, bytes that are not UTF-8, how flat lists become Arrow without a look at each row.
Must never know: gateways, IDs, Spark.
"""

from binascii import a2b_base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir.errors import PipelineError
from pyspark_weir.gateway import ColumnsPage

Places = npt.NDArray[np.int32]
# Of a table of every entry by every name; with more, repeats are looked for by sorting.
_seen_cells_max: Final = 1 << 22


@dataclass(frozen=True)
class Fields:
    """`names`: each different name; `place`: which of them a field has; `values`: string or binary;
    `offsets`: where each entry's fields begin, and at last where they end.
    """

    names: tuple[str, ...]
    place: Places
    values: pa.Array
    offsets: Places

    @classmethod
    def of(cls, page: ColumnsPage, *, binary: bool, on_bad_utf8: str, where: str) -> Self:
        """From a page; `binary`: values as they are, else as text. Raises PipelineError WEIR_BAD_UTF8."""
        offsets = np.zeros(len(page) + 1, dtype=np.int32)
        np.cumsum(np.asarray(page.n, dtype=np.int32), out=offsets[1:])
        place = np.asarray(page.name_index, dtype=np.int32)
        if not page.base64:
            values = pa.array(page.values, type=pa.string())
            return cls(tuple(page.names), place, values.cast(pa.binary()) if binary else values, offsets)
        reading = _Reading(on_bad_utf8, where)
        names = [reading.text(name) for name in page.names]
        # Different bytes may have become the same text.
        different = {name: at for at, name in enumerate(dict.fromkeys(names))}
        if len(different) < len(names):
            place = np.asarray([different[name] for name in names], dtype=np.int32)[place]
        values = (
            pa.array([a2b_base64(value) for value in page.values], type=pa.binary())
            if binary
            else pa.array([reading.text(value) for value in page.values], type=pa.string())
        )
        return cls(tuple(different), place, values, offsets)

    @property
    def rows(self) -> Places:
        """Which entry each field belongs to."""
        count = len(self.offsets) - 1
        return np.repeat(np.arange(count, dtype=np.int32), np.diff(self.offsets))

    def keys(self) -> pa.Array:
        """Each field's name."""
        return pa.array(self.names, type=pa.string()).take(pa.array(self.place))

    def entry_bytes(self) -> npt.NDArray[np.int64]:
        """How many bytes the names and values of each entry have."""
        names = np.asarray([len(name.encode()) for name in self.names], dtype=np.int64)
        values = pc.binary_length(self.values).to_numpy(zero_copy_only=False).astype(np.int64)
        total = np.zeros(len(self.place) + 1, dtype=np.int64)
        if len(self.place):
            np.cumsum(values + names[self.place], out=total[1:])
        return np.diff(total[self.offsets])

    def without_repeats(self, keep: str) -> Self:
        """Each name once an entry: its `first` or its `last` value, where that one stood."""
        rows = self.rows
        cells = rows.astype(np.int64) * max(len(self.names), 1) + self.place
        if not self._repeats(cells):
            return self
        if keep == "first":
            kept = np.unique(cells, return_index=True)[1]
        else:
            kept = len(cells) - 1 - np.unique(cells[::-1], return_index=True)[1]
        kept.sort()
        return self._only(kept)

    def without_last(self, names: Iterable[str]) -> Self:
        """Without the last field of each of these names in every entry that has one."""
        rows = self.rows
        kept = np.ones(len(self.place), dtype=np.bool_)
        for name in names:
            if name in self.names:
                at = np.flatnonzero(self.place == self.names.index(name))
                last = np.full(len(self.offsets) - 1, -1, dtype=np.int64)
                last[rows[at]] = at
                kept[last[last >= 0]] = False
        return self._only(np.flatnonzero(kept))

    def _only(self, kept: npt.NDArray[np.int64]) -> Self:
        counts = np.bincount(self.rows[kept], minlength=len(self.offsets) - 1)
        offsets = np.zeros(len(self.offsets), dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        return replace(self, place=self.place[kept], values=self.values.take(pa.array(kept)), offsets=offsets)

    def of_name(self, name: str, keep: str) -> pa.Array:
        """One value an entry, null where it has none of that name."""
        places: npt.NDArray[np.int64] = np.full(len(self.offsets) - 1, -1, dtype=np.int64)
        if name in self.names:
            at = np.flatnonzero(self.place == self.names.index(name))
            # Of several values for one place numpy keeps the last.
            at = at[::-1] if keep == "first" else at
            places[self.rows[at]] = at
        return self.values.take(pa.array(places, mask=places < 0))

    def _repeats(self, cells: npt.NDArray[np.int64]) -> bool:
        size = (len(self.offsets) - 1) * len(self.names)
        if size > _seen_cells_max:
            return len(np.unique(cells)) < len(cells)
        seen = np.zeros(size, dtype=np.bool_)
        seen[cells] = True
        return int(np.count_nonzero(seen)) < len(cells)


class _Reading:
    """Base64 to text, with what is done where the bytes are none."""

    def __init__(self, on_bad_utf8: str, where: str) -> None:
        self._where = where
        ways: dict[str, Callable[[bytes, str], str]] = {
            "replace": lambda raw, _: raw.decode("utf-8", "replace"),
            "base64": lambda _, written: written,
            "fail": self._refuse,
        }
        self._otherwise = ways[on_bad_utf8]

    def text(self, written: str) -> str:
        raw = a2b_base64(written)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return self._otherwise(raw, written)

    def _refuse(self, raw: bytes, written: str) -> str:
        raise PipelineError(
            "WEIR_BAD_UTF8",
            f"{self._where}: an entry holds bytes that are no UTF-8 text; read it with fieldsFormat=entries, "
            "which keeps bytes, or with onBadUtf8=replace or base64",
        )
