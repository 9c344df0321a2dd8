"""Rows of a data frame, as Arrow batches → entries.

Knows: which column is the stream, the ID, the fields, the key; what becomes of nulls; which names may be.
Must never know: how entries are sent, what Spark is doing.

    stream           text; the option `stream` wins over it
    id               text, optional: "<ms>-<seq>", "<ms>-*" or "*"; null is "*"
    fields           map<string, …>, or array<struct<name, value>> where names may repeat; without it every
                     other column is a field
    idempotency_id   text or binary, optional: what makes this entry the same as one sent before
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, cast

import pyarrow as pa

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.sink.texts import Value, values_of

NullFields = Literal["skip", "empty", "fail"]
Pairs = Sequence[tuple[str, Value]]

STREAM: Final = "stream"
ID: Final = "id"
FIELDS: Final = "fields"
KEY: Final = "idempotency_id"
# What our own source gives beside an entry's fields; the gateway makes them anew.
_ABOUT: Final = frozenset({"ms", "seq", "ts", "shard", "bytes"})

# As the gateway takes names; here the row can still be told.
_name_bytes_max: Final = 512
_FORBIDDEN: Final = re.compile(r"[/\x00-\x1f\x7f-\x9f]")
_ID: Final = re.compile(r"\*|\d{1,20}-(\d{1,20}|\*)", re.ASCII)


class RowError(PipelineError):
    """A row that is no entry: which one, and what would make it one."""

    def __init__(self, sentence: str) -> None:
        super().__init__("WEIR_ROW", sentence)


class Entry(NamedTuple):
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

    stream: str | None = None
    null_fields: NullFields = "skip"
    explicit_ids: bool = True
    key_column: str | None = None


class Rows:
    """The entries of rows of one schema. Raises OptionError for a schema that cannot be written."""

    def __init__(self, schema: pa.Schema, options: RowOptions) -> None:
        self._options = options
        names = list(schema.names)
        if options.stream is not None:
            _checked_stream(options.stream)
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

    def entries(self, batch: pa.RecordBatch) -> Iterator[Entry]:
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
            yield Entry(stream, entry_id, fields, key)

    def _streams(self, batch: pa.RecordBatch) -> Sequence[str]:
        if self._stream is None:
            assert self._options.stream is not None, "the constructor has looked"
            return [self._options.stream] * batch.num_rows
        names = values_of(batch.column(self._stream))
        for name in set(names) - self._streams_seen:
            if not isinstance(name, str):
                raise RowError("a row's column `stream` is null, or no UTF-8: say where it is to go")
            _checked_stream(name)
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
            return self._listed(batch.column(self._fields))
        names = [name for _, name in self._columns]
        columns = [values_of(batch.column(place)) for place, _ in self._columns]
        if not columns:
            return iter([()] * batch.num_rows)
        rows = zip(*columns, strict=True)
        if any(None in column for column in columns):
            return (self._mended(names, values) for values in rows)
        return (cast("Pairs", list(zip(names, values, strict=True))) for values in rows)

    def _listed(self, column: pa.Array) -> Iterator[Pairs]:
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
        return _parted(values_of(every_name), values_of(every_value), parts, self._mended)

    def _mended(self, names: Sequence[Value | None], values: Sequence[Value | None]) -> Pairs:
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


def _parted(
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


def _checked_stream(name: str) -> None:
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= _name_bytes_max or name in (".", "..") or _FORBIDDEN.search(name):
        shown = name[:80]
        raise RowError(
            f"{shown!r} is no name of a stream: it has 1 to {_name_bytes_max} bytes of UTF-8, no '/', no "
            "control characters, and is not '.' or '..'"
        )
