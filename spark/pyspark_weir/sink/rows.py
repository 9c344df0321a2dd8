"""Rows of a data frame, as Arrow batches → entries → chunks: what one request stores, all or nothing.

Knows: which column is the stream, the ID, the fields, the key; how nulls are written; which names may be;
where a chunk ends. Must never know: how entries are sent, what Spark is doing.

A value becomes one exact text, or bytes:

    text           as it is; Spark lets bytes that are no UTF-8 through, and so does this
    binary         its bytes
    integers       digits                          decimal    all its digits, never an exponent
    float, double  the shortest text that reads back the same; NaN, Infinity, -Infinity as Spark writes them
    boolean        true, false                     date       2026-01-31
    timestamp      2026-01-31T23:59:59.000001Z     timestamp_ntz   the same without the Z
    time           23:59:59.000000001              day-time interval   PT-1.500000S
    array, map, struct, variant   JSON: structs are objects, maps too where their keys are texts (else
                   lists of pairs), decimals, times, NaN and infinities strings as above, binary is base64

A retry has to cut the same entries at the same places: so a chunk ends by what is in it and never by time,
nor by how the entries came.

    stream           text; the option `stream` wins over it
    id               text, optional: "<ms>-<seq>", "<ms>-*" or "*"; null is "*"
    fields           map<string, …>, or array<struct<name, value>> where names may repeat; without it every
                     other column is a field
    idempotency_id   text or binary, optional: what makes this entry the same as one sent before
"""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import raw_options
from pyspark_weir.errors import CodedError, OptionError
from pyspark_weir.raw_options import flag, word

Value = str | bytes

_US: Final = 1_000_000
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def values_of(column: pa.Array) -> Sequence[Value | None]:
    """Each value's text or bytes; None for null. Raises TypeError for a type that has no text."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _texts(column)
    for is_kind, convert in _KINDS:
        if is_kind(kind):
            return convert(column)
    raise TypeError(f"a value of type {kind} has no text")


def _texts(column: pa.Array) -> Sequence[Value | None]:
    try:
        return cast("list[Value | None]", column.to_pylist())
    except UnicodeDecodeError:
        large = pa.types.is_large_string(column.type)
        return cast(
            "list[Value | None]", column.cast(pa.large_binary() if large else pa.binary()).to_pylist()
        )


def _bytes(column: pa.Array) -> Sequence[Value | None]:
    try:
        # All of them at once; the gateway stores the same bytes, and what is text is cheaper from here on.
        return cast("list[Value | None]", pc.cast(column, pa.large_string()).to_pylist())
    except pa.ArrowInvalid:
        return cast("list[Value | None]", column.to_pylist())


def _cast(column: pa.Array) -> Sequence[Value | None]:
    return cast("list[Value | None]", pc.cast(column, pa.string()).to_pylist())


def _floats(column: pa.Array) -> Sequence[Value | None]:
    return [None if text is None else _float(text) for text in pc.cast(column, pa.string()).to_pylist()]


def _float(text: str) -> str:
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    # What looks like an integer would be read back as one.
    return text if "." in text or "e" in text else f"{text}.0"


def _decimals(column: pa.Array) -> Sequence[Value | None]:
    return [None if value is None else format(value, "f") for value in column.to_pylist()]


def _timestamps(column: pa.Array) -> Sequence[Value | None]:
    zoned = column.type.tz is not None
    # Within Arrow all zoned times are UTC; without the zone they are written so, in any year.
    texts = pc.cast(column.cast(pa.timestamp("us")) if zoned else column, pa.string()).to_pylist()
    end = "Z" if zoned else ""
    return [None if text is None else f"{text.replace(' ', 'T')}{end}" for text in texts]


def _durations(column: pa.Array) -> Sequence[Value | None]:
    return [None if us is None else _duration(us) for us in pc.cast(column, pa.int64()).to_pylist()]


def _duration(us: int) -> str:
    seconds, rest = divmod(abs(us), _US)
    return f"PT{'-' if us < 0 else ''}{seconds}.{rest:06d}S"


def _nothing(column: pa.Array) -> Sequence[Value | None]:
    return [None] * len(column)


# ---- JSON


def _to_json(column: pa.Array) -> Sequence[Value | None]:
    dump = _plain_of(column.type)
    # Maps come as lists of pairs.
    return [None if value is None else orjson.dumps(dump(value)).decode() for value in column.to_pylist()]


def _plain_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes a value of this type into one that JSON knows."""
    if pa.types.is_struct(kind):
        parts = [(field.name, _or_null(_plain_of(field.type))) for field in kind]
        return lambda value: {name: plain(value[name]) for name, plain in parts}
    if pa.types.is_map(kind):
        return _plain_map(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _or_null(_plain_of(kind.value_type))
        return lambda value: [item(one) for one in value]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return lambda value: value
    if pa.types.is_float64(kind):
        return _plain_float
    if pa.types.is_floating(kind):
        # Widened, 0.1 would be 0.10000000149011612.
        return lambda value: _plain_float(float(_one(value, kind) or 0))
    if pa.types.is_decimal(kind):
        return lambda value: format(cast("Decimal", value), "f")
    return lambda value: _one(value, kind)


def _plain_map(kind: pa.MapType) -> Callable[[Any], Any]:
    key, item = _plain_of(kind.key_type), _or_null(_plain_of(kind.item_type))
    if pa.types.is_string(kind.key_type):
        return lambda value: {name: item(one) for name, one in value}
    return lambda value: [[key(name), item(one)] for name, one in value]


def _plain_float(value: float) -> float | str:
    return value if value - value == 0 else _NOT_FINITE[str(value)]


def _one(value: object, kind: pa.DataType) -> Value | None:
    """A time inside of something: written as a column of it would be."""
    return values_of(pa.array([value], kind))[0]


def _or_null(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else plain(value)


_KINDS: Final[
    Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Sequence[Value | None]]]]
] = (
    (pa.types.is_binary, _bytes),
    (pa.types.is_large_binary, _bytes),
    (pa.types.is_integer, _cast),
    (pa.types.is_floating, _floats),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_boolean, _cast),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_date, _cast),
    (pa.types.is_time, _cast),
    (pa.types.is_duration, _durations),
    (pa.types.is_nested, _to_json),
    (pa.types.is_null, _nothing),
)


NullFields = Literal["skip", "empty", "fail"]
Pairs = Sequence[tuple[str, Value]]

STREAM: Final = "stream"
ID: Final = "id"
FIELDS: Final = "fields"
KEY: Final = "idempotency_id"
# What our own source gives beside an entry's fields; the gateway makes them anew.
_ABOUT: Final = frozenset({"ms", "seq", "ts", "shard", "bytes", "id_key"})

# As the gateway takes names; here the row is still known.
_NAME_BYTES_MAX: Final = 512
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_RESERVED: Final = "weir/"
_ID: Final = re.compile(r"\*|\d{1,20}-(\d{1,20}|\*)", re.ASCII)


class RowError(CodedError):
    """A row that is no entry: which one, and what would make it one."""

    CODE = "WEIR_ROW"


class SinkEntry(NamedTuple):
    """What is to be stored. `id` None: the gateway's. `key`: the row's own idempotency key, if it has one."""

    stream: str
    id: str | None
    pairs: Pairs
    key: Value | None


@dataclass(frozen=True)
class RowOptions:
    """How rows are read. `key_column` is looked for under that name; without `explicit_ids` a column `id` is
    a field like any other, or ignored beside a column `fields`.
    """

    stream: str | None = raw_options.text("stream", "topic")
    null_fields: NullFields = word("nullFields", ("skip", "empty", "fail"))
    explicit_ids: bool = flag("explicitIds", default=True)
    key_column: str | None = raw_options.text("keyColumn")


class Rows:
    """The entries of rows of one schema. Raises OptionError for a schema that cannot be written."""

    def __init__(self, schema: pa.Schema, options: RowOptions) -> None:
        self._options = options
        names = list(schema.names)
        if options.stream is not None:
            _check_stream(options.stream)
        elif STREAM not in names:
            raise OptionError("there is no stream to write to: give the option stream, or a column `stream`")
        self._stream = names.index(STREAM) if options.stream is None else None
        self._id = names.index(ID) if options.explicit_ids and ID in names else None
        self._key = _key_place(names, options)
        self._fields = names.index(FIELDS) if FIELDS in names else None
        taken = {place for place in (self._id, self._key, self._fields) if place is not None}
        taken |= {names.index(STREAM)} if STREAM in names else set()
        self._columns = [(place, name) for place, name in enumerate(names) if place not in taken]
        if self._fields is not None:
            _expect_nothing_lost(name for _, name in self._columns)
        for place, what in ((self._stream, STREAM), (self._id, ID)):
            if place is not None:
                _expect_text(schema.field(place), what)
        self._streams_seen: set[str] = set()

    def entries(self, batch: pa.RecordBatch) -> Iterator[SinkEntry]:
        """The entries of a batch, in the order of its rows. Raises RowError."""
        rows = batch.num_rows
        pairs = self._pairs(batch)
        streams = self._streams(batch)
        ids = [None] * rows if self._id is None else self._ids(batch.column(self._id))
        keys = [None] * rows if self._key is None else values_of(batch.column(self._key))
        for row, (stream, entry_id, fields, key) in enumerate(zip(streams, ids, pairs, keys, strict=True)):
            if not fields:
                raise RowError(
                    f"row {row} for the stream {stream} has no field that is not null: leave such rows out, "
                    "or set nullFields=empty"
                )
            yield SinkEntry(stream, entry_id, fields, key)

    def _streams(self, batch: pa.RecordBatch) -> Sequence[str]:
        if self._stream is None:
            assert self._options.stream is not None, "the constructor has looked"
            return [self._options.stream] * batch.num_rows
        names = values_of(batch.column(self._stream))
        for name in set(names) - self._streams_seen:
            if not isinstance(name, str):
                raise RowError("a row's column `stream` is null, or no UTF-8: say where it is to go")
            _check_stream(name)
            self._streams_seen.add(name)
        return names  # type: ignore[return-value] # each was looked at

    def _ids(self, column: pa.Array) -> Sequence[str | None]:
        ids = values_of(column)
        for one in ids:
            if one is not None and not (isinstance(one, str) and _ID.fullmatch(one)):
                raise RowError(
                    f"{one!r} in the column `id` is no ID, which is like 1526919030474-55; if it is a field "
                    "and no ID, set explicitIds=false"
                )
        return [None if one == "*" else one for one in ids]  # type: ignore[misc] # bytes were refused above

    def _pairs(self, batch: pa.RecordBatch) -> Iterator[Pairs]:
        if self._fields is not None:
            return self._list_pairs(batch.column(self._fields))
        names = [name for _, name in self._columns]
        columns = [values_of(batch.column(place)) for place, _ in self._columns]
        if not columns:
            return iter([()] * batch.num_rows)
        rows = zip(*columns, strict=True)
        if any(None in column for column in columns):
            return (self._mend(names, values) for values in rows)
        return (cast("Pairs", list(zip(names, values, strict=True))) for values in rows)

    def _list_pairs(self, column: pa.Array) -> Iterator[Pairs]:
        """The pairs of a map, or of an array of structs of two."""
        offsets = column.offsets.to_pylist()
        # A slice of a batch has all that the batch has beneath it.
        first, size = offsets[0], offsets[-1] - offsets[0]
        if pa.types.is_map(column.type):
            every_name, every_value = column.keys.slice(first, size), column.items.slice(first, size)
        else:
            name, value = _struct_of_two(column.type)
            # With the structs' own nulls in them; their fields show what lies beneath those.
            children = column.values.slice(first, size).flatten()
            every_name, every_value = children[name], children[value]
        parts = [
            slice(offsets[row] - first, offsets[row + 1] - first) if here else slice(0)
            for row, here in enumerate(column.is_valid().to_pylist())
        ]
        return _part(values_of(every_name), values_of(every_value), parts, self._mend)

    def _mend(self, names: Sequence[Value | None], values: Sequence[Value | None]) -> Pairs:
        mode = self._options.null_fields
        pairs: list[tuple[str, Value]] = []
        for name, value in zip(names, values, strict=True):
            if not isinstance(name, str):
                raise RowError("a field's name is null, or no UTF-8: name it, or leave it out")
            if value is None and mode == "fail":
                raise RowError(
                    f"the field {name} is null, and nullFields=fail: fill it, or let nulls be skipped"
                )
            if value is not None or mode == "empty":
                pairs.append((name, "" if value is None else value))
        return pairs


def _part(
    names: Sequence[Value | None],
    values: Sequence[Value | None],
    parts: Sequence[slice],
    mend: Callable[[Sequence[Value | None], Sequence[Value | None]], Pairs],
) -> Iterator[Pairs]:
    """Each row's part of all names and values; `mend` is for batches with nulls, which are rare."""
    if None in values or not all(isinstance(name, str) for name in names):
        return (mend(names[part], values[part]) for part in parts)
    pairs = cast("list[tuple[str, Value]]", list(zip(names, values, strict=True)))
    return (pairs[part] for part in parts)


def _struct_of_two(kind: pa.DataType) -> tuple[int, int]:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    item = kind.value_type if is_list else None
    names = [field.name for field in item] if item is not None and pa.types.is_struct(item) else []
    if sorted(names) != ["name", "value"]:
        raise OptionError(
            f"the column `fields` is {kind}: it is a map<string, …>, or an array<struct<name, value>>"
        )
    return names.index("name"), names.index("value")


def _key_place(names: Sequence[str], options: RowOptions) -> int | None:
    if options.key_column is None:
        return names.index(KEY) if KEY in names else None
    if options.key_column not in names:
        raise OptionError(f"keyColumn={options.key_column}: there is no such column")
    return names.index(options.key_column)


def _expect_nothing_lost(others: Iterator[str]) -> None:
    lost = sorted(name for name in others if name not in _ABOUT and name != ID)
    if lost:
        raise OptionError(
            f"beside a column `fields`, the columns {', '.join(lost)} would not be stored: put them into "
            "`fields`, or drop them"
        )


def _expect_text(field: pa.Field, what: str) -> None:
    if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
        hint = "; if it is a field and no ID, set explicitIds=false" if what == ID else ""
        raise OptionError(f"the column `{what}` is {field.type}: it is to be text{hint}")


def _check_stream(name: str) -> None:
    size = len(name.encode(errors="surrogatepass"))
    misleads = name.startswith(_RESERVED) or any(part in ("", ".", "..") for part in name.split("/"))
    if size > _NAME_BYTES_MAX or misleads or _FORBIDDEN.search(name):
        shown = name[:80]
        raise RowError(
            f"{shown!r} is no name of a stream: it has 1 to {_NAME_BYTES_MAX} bytes of UTF-8, no control "
            "characters, between slashes nothing that is empty, '.' or '..', and does not begin with "
            f"{_RESERVED!r}"
        )


CHUNK_ROWS_DEFAULT: Final = 5_000
# The gateway's limit on a batch.
CHUNK_ROWS_MAX: Final = 10_000
# Of the entries' written forms: an eighth of what the gateway takes at once. One entry alone may have more.
CHUNK_BYTES_MAX: Final = 1 << 20
# The gateway's limit on a request.
CHUNK_STREAMS_MAX: Final = 1_000

T = TypeVar("T")


@dataclass(frozen=True)
class TaskChunk(Generic[T]):
    """Consecutive entries of a task in their written form, by stream; in order within each."""

    number: int
    streams: dict[str, list[T]]
    rows: int

    def counts(self) -> dict[str, int]:
        return {name: len(entries) for name, entries in self.streams.items()}


def cut(
    entries: Iterable[SinkEntry], write: Callable[[SinkEntry], tuple[T, int]], rows_max: int
) -> Iterator[TaskChunk[T]]:
    """Chunks numbered from 0. `write` gives an entry's written form and its bytes."""
    number, rows, size = 0, 0, 0
    streams: dict[str, list[T]] = {}
    for entry in entries:
        written, entry_size = write(entry)
        crowded = len(streams) == CHUNK_STREAMS_MAX and entry.stream not in streams
        if rows and (rows == rows_max or size + entry_size > CHUNK_BYTES_MAX or crowded):
            yield TaskChunk(number, streams, rows)
            number, rows, size, streams = number + 1, 0, 0, {}
        streams.setdefault(entry.stream, []).append(written)
        rows += 1
        size += entry_size
    if rows:
        yield TaskChunk(number, streams, rows)
