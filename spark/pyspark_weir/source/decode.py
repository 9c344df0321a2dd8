"""A page of entries as the Arrow batch that Spark takes.

Knows: what each column holds; that halves of an ID may exceed a bigint, and times the calendar.
Must never know: where pages come from, which ranges are read.
"""

from binascii import a2b_base64
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import ids
from pyspark_weir.errors import PipelineError
from pyspark_weir.gateway import ColumnsPage
from pyspark_weir.schema import RESERVED

Places = npt.NDArray[np.int32]
# Of a table of every entry by every name; with more, repeats are looked for by sorting.
_SEEN_CELLS_MAX: Final = 1 << 22


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
        np.cumsum(_small_numbers(page.n), out=offsets[1:])
        place = _small_numbers(page.name_index)
        if not page.base64:
            values = pa.array(page.values, type=pa.string())
            return cls(tuple(page.names), place, values.cast(pa.binary()) if binary else values, offsets)
        text_of = _text_reader(on_bad_utf8, where)
        names = [text_of(name) for name in page.names]
        # Different bytes may have become the same text.
        different = {name: at for at, name in enumerate(dict.fromkeys(names))}
        if len(different) < len(names):
            place = np.asarray([different[name] for name in names], dtype=np.int32)[place]
        values = (
            pa.array([a2b_base64(value) for value in page.values], type=pa.binary())
            if binary
            else pa.array([text_of(value) for value in page.values], type=pa.string())
        )
        return cls(tuple(different), place, values, offsets)

    @property
    def rows(self) -> Places:
        count = len(self.offsets) - 1
        return np.repeat(np.arange(count, dtype=np.int32), np.diff(self.offsets))

    def keys(self) -> pa.Array:
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
        if size > _SEEN_CELLS_MAX:
            return len(np.unique(cells)) < len(cells)
        seen = np.zeros(size, dtype=np.bool_)
        seen[cells] = True
        return int(np.count_nonzero(seen)) < len(cells)


def _small_numbers(numbers: Sequence[int]) -> Places:
    """Through bytes where all of them fit, which numpy reads three times as fast as a list."""
    try:
        return np.frombuffer(bytes(numbers), np.uint8).astype(np.int32)
    except ValueError:
        return np.asarray(numbers, dtype=np.int32)


def _text_reader(on_bad_utf8: str, where: str) -> Callable[[str], str]:
    """Base64 to text, with what is done where the bytes are none."""

    def read(written: str) -> str:
        raw = a2b_base64(written)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            if on_bad_utf8 == "fail":
                raise PipelineError(
                    "WEIR_BAD_UTF8",
                    f"{where}: an entry holds bytes that are no UTF-8 text; read it with "
                    "fieldsFormat=entries, which keeps bytes, or with onBadUtf8=replace or base64",
                ) from None
            return written if on_bad_utf8 == "base64" else raw.decode("utf-8", "replace")

    return read


# As Spark reads a boolean.
_TRUE: Final = pa.array(["true", "t", "yes", "y", "1"])
_FALSE: Final = pa.array(["false", "f", "no", "n", "0"])


def cast_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """`texts` (strings, nulls among them) as `kind`."""
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_binary(kind):
        return texts.cast(kind)
    trimmed = pc.utf8_trim_whitespace(texts)
    if pa.types.is_boolean(kind):
        return _booleans(trimmed)
    if pa.types.is_timestamp(kind):
        return _each(trimmed, kind, _moment)
    if pa.types.is_decimal(kind):
        return _each(trimmed, kind, lambda text: _decimal(text, kind))
    if pa.types.is_integer(kind):
        trimmed = _digits(trimmed)
    try:
        return pc.cast(trimmed, kind)
    except pa.ArrowInvalid:
        # Some text is none: then one by one.
        return _each(trimmed, kind, lambda text: pa.scalar(text).cast(kind).as_py())


def _digits(texts: pa.Array) -> pa.Array:
    """Null for what is no integer to Spark: Arrow would read `0x10`, but no plus."""
    plain = pc.match_substring_regex(texts, "^[+-]?[0-9]+$")
    return pc.utf8_ltrim(pc.if_else(plain, texts, pa.scalar(None, pa.string())), "+")


def _booleans(texts: pa.Array) -> pa.Array:
    lowered = pc.utf8_lower(texts)
    true, false = pc.is_in(lowered, _TRUE), pc.is_in(lowered, _FALSE)
    return pc.if_else(pc.or_(true, false), true, pa.scalar(None, pa.bool_()))


def _each(texts: pa.Array, kind: pa.DataType, read: Callable[[str], object]) -> pa.Array:
    """One by one, each different text once."""
    encoded = texts.dictionary_encode()
    found: list[object] = []
    for text in encoded.dictionary.to_pylist():
        try:
            found.append(read(text))
        except (ValueError, OverflowError, InvalidOperation, pa.ArrowInvalid):
            found.append(None)
    return pa.array(found, type=kind).take(encoded.indices)


def _moment(text: str) -> datetime:
    """A time; without a zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _decimal(text: str, kind: pa.Decimal128Type) -> Decimal:
    """Rounded to the column's scale, as Spark does. Raises where it has too many digits."""
    found = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP)
    # Python reads `1_0`, and the digits of other scripts.
    if not text.isascii() or "_" in text or not found.is_finite():
        raise ValueError(text)
    if len(found.as_tuple().digits) > kind.precision:
        raise ValueError(text)
    return found


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
_SHOWN_CHARS_MAX: Final = 100
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
        name = one.name
        if self._form.format == "columns":
            if name not in RESERVED:
                return self._cast_column(name, one.type)
            name = RESERVED[name]
        if self._form.format == "deadletter" and name in LETTER:
            # A letter about a letter has these names twice; the last are its own.
            return cast_texts(self._fields.of_name(LETTER[name], "last"), one.type)
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

    def _cast_column(self, name: str, kind: pa.DataType) -> pa.Array:
        if pa.types.is_binary(kind) and self._page.base64:
            raw = Fields.of(self._page, binary=True, on_bad_utf8=self._form.on_bad_utf8, where="")
            return raw.of_name(name, self._form.dup_fields)
        texts = self._fields.of_name(name, self._form.dup_fields)
        values = cast_texts(texts, kind)
        misfits = values.null_count - texts.null_count
        if misfits and self._form.fail_fast:
            text = texts.filter(pc.and_(values.is_null(), texts.is_valid()))[0].as_py()
            raise PipelineError(
                "WEIR_BAD_VALUE",
                f"{self._where}: {text[:_SHOWN_CHARS_MAX]!r} does not fit column {name}; "
                "mode=PERMISSIVE reads such values as null",
            )
        if misfits:
            self._misfits[name] += misfits
        return values

    @property
    def _where(self) -> str:
        return f"stream {self._stream} of {self._gateway}, up to {self._page.next_id}"


def _bigints(halves: pa.Array) -> pa.Array:
    """As signed 64-bit; null above, where the ID's text has the number."""
    raw: npt.NDArray[np.uint64] = halves.to_numpy(zero_copy_only=False)
    large = raw > ids.BIGINT_MAX
    return pa.array(raw.astype(np.int64), mask=large) if large.any() else pa.array(raw.view(np.int64))


def _times(ms: pa.Array, kind: pa.DataType) -> pa.Array:
    """As microseconds since 1970; null beyond the year 9999."""
    raw: npt.NDArray[np.uint64] = ms.to_numpy(zero_copy_only=False)
    late = raw > ids.TS_MS_MAX
    if late.any():
        raw = np.where(late, 0, raw)
    return pa.array(raw.astype(np.int64) * 1_000, mask=late if late.any() else None).cast(kind)


def _objects(fields: Fields) -> list[str]:
    names, values = fields.keys().to_pylist(), fields.values.to_pylist()
    edges = fields.offsets.tolist()
    return [
        orjson.dumps(dict(zip(names[start:end], values[start:end], strict=True))).decode()
        for start, end in pairwise(edges)
    ]
