"""Columns of values → the text, or the bytes, that each value is stored as.

Knows: Arrow's types, and one exact text for each.
Must never know: fields, entries, which column this is.

    text           as it is; Spark lets bytes that are no UTF-8 through, and so does this
    binary         its bytes
    integers       digits                          decimal    all its digits, never an exponent
    float, double  the shortest text that reads back the same; NaN, Infinity, -Infinity as Spark writes them
    boolean        true, false                     date       2026-01-31
    timestamp      2026-01-31T23:59:59.000001Z     timestamp_ntz   the same without the Z
    time           23:59:59.000000001              day-time interval   PT-1.500000S
    array, map, struct, variant   JSON: structs are objects, maps too where their keys are texts (else
                   lists of pairs), decimals, times, NaN and infinities strings as above, binary is base64
"""

import base64
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

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


def _nested(column: pa.Array) -> Sequence[Value | None]:
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
    (pa.types.is_nested, _nested),
    (pa.types.is_null, _nothing),
)
