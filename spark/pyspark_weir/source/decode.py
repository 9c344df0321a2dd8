"""A page of entries as the Arrow batch that Spark takes.

Knows: what each column holds; that halves of an ID may exceed a bigint, and times the calendar.
Must never know: where pages come from, which ranges are read.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import ids
from pyspark_weir.errors import PipelineError
from pyspark_weir.gateway import ColumnsPage
from pyspark_weir.schema import RESERVED
from pyspark_weir.source.fields import Fields
from pyspark_weir.source.texts import typed

# 9999-12-31T23:59:59.999Z; later ones have no timestamp.
ts_ms_max: Final = 253_402_300_799_999
# Columns that are made of an entry's fields.
_NEED_FIELDS: Final = frozenset(("fields", "bytes"))
# Where no column is: the gateway leaves out all others, and one of that name would not be looked at.
_NO_FIELD: Final = ("-",)
# What the gateway adds to a dead letter, behind the fields that the entry had.
LETTER: Final = MappingProxyType(
    {
        "source": "weir-source",
        "source_id": "weir-id",
        "group": "weir-group",
        "consumer": "weir-consumer",
        "deliveries": "weir-deliveries",
        "reason": "weir-reason",
    }
)
# Of a value in an error.
_shown_chars_max: Final = 100
_KEY_DIGITS: Final = len(str(ids.HALF_MAX))


@dataclass(frozen=True)
class Form:
    """How entries become rows: `format` is fieldsFormat's, or `deadletter`; repeated names keep their
    `dup_fields` value. A value that does not fit its column is null, or fails with `fail_fast`.
    """

    schema: pa.Schema
    format: str = "map"
    on_bad_utf8: str = "replace"
    dup_fields: str = "first"
    fail_fast: bool = False

    def wanted_fields(self) -> tuple[str, ...]:
        """The fields to ask for, () for all of them."""
        names = self.schema.names
        if self.format == "columns":
            fields = tuple(name for name in names if name not in RESERVED)
            names = [RESERVED.get(name, name) for name in names]
            whole = "bytes" in names
        else:
            fields = ()
            whole = self.format == "deadletter" or not _NEED_FIELDS.isdisjoint(names)
        return () if whole else fields or _NO_FIELD

    def batch(
        self, page: ColumnsPage, gateway: str, stream: str, misfits: Counter[str] | None = None
    ) -> pa.RecordBatch:
        """The page's entries as rows. `misfits` counts values that do not fit, by column.

        Raises PipelineError WEIR_BAD_UTF8, WEIR_BAD_VALUE where these are to fail.
        """
        rows = _Rows(self, page, gateway, stream, Counter() if misfits is None else misfits)
        return pa.RecordBatch.from_arrays([rows.column(one) for one in self.schema], schema=self.schema)


class _Rows:
    """A page, with what several columns need made once."""

    def __init__(
        self, form: Form, page: ColumnsPage, gateway: str, stream: str, misfits: Counter[str]
    ) -> None:
        self._form = form
        self._page = page
        self._gateway = gateway
        self._stream = stream
        self._misfits = misfits
        self._ms = pa.array(page.ms, type=pa.uint64())
        self._seq = pa.array(page.seq, type=pa.uint64())
        self._read: Fields | None = None

    def column(self, one: pa.Field) -> pa.Array:
        """The array of a column."""
        name = one.name
        if self._form.format == "columns":
            if name not in RESERVED:
                return self._typed(name, one.type)
            name = RESERVED[name]
        if self._form.format == "deadletter" and name in LETTER:
            # A letter about a letter has these names twice; the last are its own.
            return typed(self._fields.of_name(LETTER[name], "last"), one.type)
        return self._entry_column(name, one.type)

    def _entry_column(self, name: str, kind: pa.DataType) -> pa.Array:
        if name == "fields":
            return self._fields_column(kind)
        if name in ("stream", "shard"):
            text = self._stream if name == "stream" else self._gateway
            return pa.repeat(pa.scalar(text, type=kind), len(self._page))
        if name == "ts":
            return _times(self._ms, kind)
        if name in ("ms", "seq"):
            return _bigints(self._ms if name == "ms" else self._seq)
        if name == "bytes":
            return pa.array(self._fields.entry_bytes())
        ms, seq = self._ms.cast(pa.string()), self._seq.cast(pa.string())
        if name == "id_key":
            ms, seq = (pc.utf8_lpad(half, _KEY_DIGITS, "0") for half in (ms, seq))
        return pc.binary_join_element_wise(ms, seq, "-")

    @property
    def _fields(self) -> Fields:
        if self._read is None:
            self._read = Fields.of(
                self._page,
                binary=self._form.format == "entries",
                on_bad_utf8=self._form.on_bad_utf8,
                where=self._where,
            )
        return self._read

    def _fields_column(self, kind: pa.DataType) -> pa.Array:
        fields = self._fields
        if self._form.format == "entries":
            pairs = pa.StructArray.from_arrays([fields.keys(), fields.values], fields=list(kind.value_type))
            return pa.ListArray.from_arrays(pa.array(fields.offsets), pairs, type=kind)
        if self._form.format == "deadletter":
            fields = fields.without_last(LETTER.values())
        fields = fields.without_repeats(self._form.dup_fields)
        if pa.types.is_map(kind):
            return pa.MapArray.from_arrays(pa.array(fields.offsets), fields.keys(), fields.values, type=kind)
        return pa.array(_objects(fields), type=kind)

    def _typed(self, name: str, kind: pa.DataType) -> pa.Array:
        if pa.types.is_binary(kind) and self._page.base64:
            raw = Fields.of(self._page, binary=True, on_bad_utf8=self._form.on_bad_utf8, where="")
            return raw.of_name(name, self._form.dup_fields)
        texts = self._fields.of_name(name, self._form.dup_fields)
        values = typed(texts, kind)
        misfits = values.null_count - texts.null_count
        if misfits and self._form.fail_fast:
            text = texts.filter(pc.and_(values.is_null(), texts.is_valid()))[0].as_py()
            raise PipelineError(
                "WEIR_BAD_VALUE",
                f"{self._where}: {text[:_shown_chars_max]!r} does not fit column {name}; "
                "mode=PERMISSIVE reads such values as null",
            )
        if misfits:
            self._misfits[name] += misfits
        return values

    @property
    def _where(self) -> str:
        return f"stream {self._stream} of {self._gateway}, up to {self._page.next_id}"


def _bigints(halves: pa.Array) -> pa.Array:
    """As signed 64-bit; null above, where the ID's text tells what it is."""
    raw: npt.NDArray[np.uint64] = halves.to_numpy(zero_copy_only=False)
    large = raw > ids.BIGINT_MAX
    return pa.array(raw.astype(np.int64), mask=large) if large.any() else pa.array(raw.view(np.int64))


def _times(ms: pa.Array, kind: pa.DataType) -> pa.Array:
    """As microseconds since 1970; null beyond the year 9999."""
    raw: npt.NDArray[np.uint64] = ms.to_numpy(zero_copy_only=False)
    late = raw > ts_ms_max
    if late.any():
        raw = np.where(late, 0, raw)
    return pa.array(raw.astype(np.int64) * 1_000, mask=late if late.any() else None).cast(kind)


def _objects(fields: Fields) -> list[str]:
    """Each entry as the text of a JSON object."""
    names, values = fields.keys().to_pylist(), fields.values.to_pylist()
    edges = fields.offsets.tolist()
    return [
        orjson.dumps(dict(zip(names[start:end], values[start:end], strict=True))).decode()
        for start, end in pairwise(edges)
    ]
