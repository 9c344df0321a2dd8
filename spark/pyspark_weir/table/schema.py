"""The columns of an archive, and how an entry's ID becomes five of them.

Knows: Arrow types, and which halves of an ID fit them. Must never know: files, commits.
"""

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError, ArchiveError
from pyspark_weir.ids import EntryId

ENTRY_FIELDS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
# What rows are given by; the other columns follow from the ID.
GIVEN: Final = pa.schema(
    [
        pa.field("gateway", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("generation", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("fields", ENTRY_FIELDS, nullable=False),
    ]
)
# `id_key` is the ID in 32 hexadecimal digits: it sorts as IDs do. `ms` and `seq` are null above 2^63 - 1,
# `ts` is null after the year 9999.
IN_FILES: Final = pa.schema(
    [
        *(GIVEN.field(name) for name in ("gateway", "stream", "generation", "id")),
        pa.field("id_key", pa.string(), nullable=False),
        pa.field("ms", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        GIVEN.field("fields"),
    ]
)
# The table is partitioned by it; it is null where `ts` is.
DATE: Final = "date"
SCHEMA: Final = IN_FILES.append(pa.field(DATE, pa.date32()))
# Within a file.
SORTED_BY: Final = ("gateway", "stream", "id_key")
_DAY_MS: Final = 86_400_000
_KEY_DIGITS: Final = 32
# The column `id_key` in numpy.
KEYS: Final = f"S{_KEY_DIGITS}"
Keys = npt.NDArray[np.bytes_]
_IS_HEX: Final = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdef", np.uint8))
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)

Halves = npt.NDArray[np.uint64]


def all_of(conditions: Sequence[Any]) -> Any:  # noqa: ANN401 - expressions of pyarrow's
    """One expression that is true where all are; None for none."""
    return reduce(operator.and_, conditions) if conditions else None


def id_key(one: EntryId) -> str:
    """An ID as the column `id_key` has it."""
    return f"{one.ms:016x}{one.seq:016x}"


def keys_of(rows: pa.Table) -> Keys:
    """The column `id_key`. Raises ArchiveDamagedError where one is none."""
    texts = rows["id_key"].combine_chunks().cast(pa.binary())
    try:
        column = texts.cast(pa.binary(_KEY_DIGITS))
    except pa.ArrowInvalid as error:
        raise _no_key(str(error)) from None
    found = np.frombuffer(column.buffers()[1], KEYS)[column.offset : column.offset + len(column)]
    are_digits = _IS_HEX[found.view(np.uint8)].reshape(-1, _KEY_DIGITS).all(axis=1)
    if not are_digits.all():
        raise _no_key(str(found[~are_digits][0]))
    return found


def _no_key(found: str) -> ArchiveDamagedError:
    return ArchiveDamagedError(f"{found!r} is no id_key: run verify, and restore the file that has it")


def id_of_key(key: str) -> EntryId:
    """The ID that `id_key` was made of. Raises ArchiveDamagedError."""
    try:
        return EntryId(int(key[:16], 16), int(key[16:], 16))
    except ValueError:
        raise _no_key(key) from None


def complete(rows: pa.Table) -> pa.Table:
    """Rows of GIVEN as rows of SCHEMA, in the same order. Raises ArchiveError for nulls and malformed IDs."""
    given = _check_given(rows)
    ms, seq = _halves(given["id"].chunk(0))
    late = ms > np.uint64(ids.TS_MS_MAX)
    fitting = np.where(late, np.uint64(0), ms).astype(np.int64)
    columns: dict[str, Any] = {
        **{name: given[name] for name in GIVEN.names},
        "id_key": id_keys(ms, seq),
        "ms": _bigints(ms),
        "seq": _bigints(seq),
        "ts": pa.array(fitting * 1_000, mask=late).cast(SCHEMA.field("ts").type),
        DATE: pa.array((fitting // _DAY_MS).astype(np.int32), mask=late).cast(pa.date32()),
    }
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _check_given(rows: pa.Table) -> pa.Table:
    try:
        given = rows.select(GIVEN.names).cast(GIVEN).combine_chunks()
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise ArchiveError(f"these rows are not of {', '.join(GIVEN.names)}: {error}") from None
    for name in GIVEN.names:
        if given[name].null_count:
            raise ArchiveError(f"an entry has no {name}")
    return given


def _halves(texts: pa.Array) -> tuple[Halves, Halves]:
    # Only the one spelling of an ID, else `id` and `id_key` would name different entries.
    if not len(texts):
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    if not pc.all(pc.match_substring_regex(texts, r"^(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})$")).as_py():
        raise ArchiveError("an ID is not like 1700000000000-0")
    try:
        numbers = (
            pc.list_flatten(pc.split_pattern(texts, "-")).cast(pa.uint64()).to_numpy(zero_copy_only=False)
        )
    except pa.ArrowInvalid as error:
        raise ArchiveError(f"an ID is beyond 64 bits: {error}") from None
    return numbers[0::2], numbers[1::2]


def id_keys(ms: Halves, seq: Halves) -> pa.Array:
    """The column `id_key` of IDs. No Python per row: both halves big-endian, each byte by its two digits."""
    raw = np.stack([ms, seq], axis=1).astype(">u8").view(np.uint8)
    digits = np.ascontiguousarray(_HEX[raw.reshape(-1)])
    edges = np.arange(0, (len(ms) + 1) * _KEY_DIGITS, _KEY_DIGITS, dtype=np.int64)
    long = pa.LargeStringArray.from_buffers(len(ms), pa.py_buffer(edges), pa.py_buffer(digits))
    return long.cast(pa.string())


def _bigints(halves: Halves) -> pa.Array:
    large = halves > np.uint64(ids.BIGINT_MAX)
    return pa.array(np.where(large, np.uint64(0), halves).astype(np.int64), mask=large)
