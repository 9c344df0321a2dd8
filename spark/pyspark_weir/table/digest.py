"""Digests of entries: they prove that two places hold the same ones.

Knows: which bytes of an entry count. Must never know: where entries are stored, what is compared with what.

An entry's digest is BLAKE2b, 16 bytes, of its `id_key` and then, field by field, of the name and of the
value, each behind its length (4 bytes, least first). The digest of many is the sum of theirs modulo 2^128,
as numbers whose first byte is the least: it does not matter how they are parted or ordered, and some can be
taken out again.
"""

from collections.abc import Iterable
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir.table.parquet import ROW_GROUP_ROWS_MAX

# One row an entry, its digest in two halves.
Digests = npt.NDArray[np.uint64]
NONE: Final = 0
_MODULUS: Final = 1 << 128
_BYTES: Final = 16
# Entries are put together in memory once more; one of 1 MiB is as long as 64.
_SLICE_BYTES: Final = 32 << 20


def of_rows(rows: pa.Table) -> Digests:
    """Of rows with the columns `id_key` and `fields`."""
    parts = [_of_slice(part) for part in slices(rows)]
    return np.concatenate(parts) if parts else np.empty((0, 2), np.uint64)


def slices(rows: pa.Table) -> Iterable[pa.Table]:
    """The same rows in parts that are small enough to be worked on in memory."""
    fitting = _SLICE_BYTES * rows.num_rows // max(1, rows.nbytes)
    step = max(1, min(fitting, ROW_GROUP_ROWS_MAX))
    return (rows.slice(start, step) for start in range(0, rows.num_rows, step))


def _of_slice(rows: pa.Table) -> Digests:
    fields = rows["fields"].combine_chunks()
    pairs, offsets = fields.flatten(), np.asarray(fields.offsets, np.int32)
    names, values = pairs.field("name"), pairs.field("value")
    return of_fields(rows["id_key"].combine_chunks(), offsets - offsets[0], names, values)


def of_fields(
    id_keys: Any,  # noqa: ANN401 - pyarrow has no types
    offsets: npt.NDArray[np.int32],
    names: Any,  # noqa: ANN401 - the same
    values: Any,  # noqa: ANN401 - the same
) -> Digests:
    """Of entries whose fields are one behind the other: those of entry `n` from `offsets[n]` to before the
    next one's.
    """
    names, values = names.cast(pa.binary()), values.cast(pa.binary())
    fields = pc.binary_join_element_wise(
        *(part for texts in (names, values) for part in (_lengths(texts), texts)),
        b"",
        null_handling="replace",
        null_replacement="",
    )
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), fields), b"")
    texts = pc.binary_join_element_wise(id_keys.cast(pa.binary()), joined, b"")
    _, edges, data = texts.buffers()
    places = np.frombuffer(edges, np.int32)[texts.offset :][: len(texts) + 1].tolist()
    whole = memoryview(data) if data is not None else b""
    found = [blake2b(whole[start:end], digest_size=_BYTES).digest() for start, end in pairwise(places)]
    return np.frombuffer(b"".join(found), "<u8").astype(np.uint64).reshape(-1, 2)


def _lengths(texts: Any) -> Any:  # noqa: ANN401 - the same
    numbers = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype("<u4")
    return pa.Array.from_buffers(pa.binary(4), len(numbers), [None, pa.py_buffer(numbers)]).cast(pa.binary())


def total(digests: Digests) -> int:
    """Of all of them."""
    lanes = digests.astype("<u8").view("<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64).tolist()
    return plus(*(lane << 32 * place for place, lane in enumerate(lanes)))


def plus(*digests: int) -> int:
    """Of what all of these are of."""
    return sum(digests) % _MODULUS


def minus(digest: int, part: int) -> int:
    """Without a part of it."""
    return (digest - part) % _MODULUS


def to_text(digest: int) -> str:
    """As commits have it."""
    return f"{digest:032x}"
