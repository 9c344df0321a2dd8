"""The text of a field as the type that a column has; null where the text is none of that type.

Knows: how numbers, times and truths are written. Must never know: entries, gateways, Spark.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# As Spark reads a boolean.
_TRUE: Final = pa.array(["true", "t", "yes", "y", "1"])
_FALSE: Final = pa.array(["false", "f", "no", "n", "0"])


def typed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
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
    try:
        return pc.cast(trimmed, kind)
    except pa.ArrowInvalid:
        # Some text is none: then one by one.
        return _each(trimmed, kind, lambda text: pa.scalar(text).cast(kind).as_py())


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
    """Rounded to the column's scale. Raises where it has too many digits."""
    found = Decimal(text).quantize(Decimal(1).scaleb(-kind.scale))
    if not found.is_finite() or len(found.as_tuple().digits) > kind.precision:
        raise ValueError(text)
    return found
