"""Fields of entries as JSON and forms write them: names and values as they are stored.

Knows: which values there are and how each is written. Must never know: entries, limits, batches.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Final, cast

from app.errors import RefusalError, invalid, locate, step
from app.http import strict_json
from app.http.strict_json import Json, Number, Object

Value = str | bytes

INT64_MIN: Final = -(1 << 63)
UINT64_MAX: Final = (1 << 64) - 1
_INTEGER_DIGITS_MAX: Final = 20
VALUE_SCHEMA: Final[dict[str, Any]] = {"type": ["string", "number", "boolean"]}
FIELDS_SCHEMA: Final[dict[str, Any]] = {
    "description": "an object of names and values, or a list of [name, value] pairs",
    "anyOf": [
        {"type": "object", "minProperties": 1, "additionalProperties": VALUE_SCHEMA},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "array",
                "prefixItems": [{"type": "string"}, VALUE_SCHEMA],
                "minItems": 2,
                "maxItems": 2,
            },
        },
    ],
}
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9a-fA-F]{2})")


def fields(value: Json, pointer: str, *, nested: bool = False) -> Sequence[tuple[str, Value]]:
    """Names and values, of an object or of a list of pairs. `nested`: other values are their JSON text."""
    if isinstance(value, Object):
        return named_values(value, pointer, nested=nested)
    if not isinstance(value, list):
        raise invalid(pointer, "fields are an object, or a list of [name, value] pairs")
    pairs: list[Json] = cast("list[Json]", value)
    return [_pair(pair, f"{pointer}/{place}", nested=nested) for place, pair in enumerate(pairs)]


def _pair(pair: Json, pointer: str, *, nested: bool) -> tuple[str, str]:
    if not isinstance(pair, list) or isinstance(pair, Object) or len(pair) != 2:
        raise invalid(pointer, "a pair is [name, value]")
    name, value = pair
    if not isinstance(name, str) or isinstance(name, Number):
        raise invalid(f"{pointer}/0", "a name is a string")
    return name, _text(value, f"{pointer}/1", nested=nested)


def named_values(value: Object, pointer: str, *, nested: bool = False) -> list[tuple[str, str]]:
    """Those of an object, in which each name occurs once."""
    twice = strict_json.repeated_name(value)
    if twice is not None:
        hint = 'the name occurs twice: to publish that, send "fields" as a list of [name, value] pairs'
        raise invalid(f"{pointer}/{step(twice)}", hint)
    return [(name, _text(item, f"{pointer}/{step(name)}", nested=nested)) for name, item in value]


def _text(value: Json, pointer: str, *, nested: bool) -> str:
    """A value as it is stored: numbers and booleans as their JSON text."""
    if isinstance(value, Number):
        return _number_text(value, pointer)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if nested:
        return strict_json.compact(value)
    hint = (
        "values are strings, numbers or booleans: encode anything else, as JSON text for instance, as "
        "/entries/ndjson?nested=json does"
    )
    raise invalid(pointer, hint)


def _number_text(number: Number, pointer: str) -> str:
    if number.lstrip("-").isdigit():
        if len(number) > _INTEGER_DIGITS_MAX or not INT64_MIN <= int(number) <= UINT64_MAX:
            raise invalid(pointer, "the integer has more than 64 bits: send it as a string")
    elif float(number) in (float("inf"), float("-inf")):
        raise invalid(pointer, "the number is beyond a double: send it as a string")
    return str(number)


def from_base64(value: Value, pointer: str) -> bytes:
    """Bytes. Raises `malformed_encoding`."""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        hint = "this is not base64"
        raise RefusalError(
            "malformed_encoding", f"{pointer}: {hint}", places=[locate(pointer, hint)]
        ) from None


def form_pair(piece: bytes) -> tuple[str, bytes]:
    """A name and its value, percent-decoded. Raises `malformed_encoding`."""
    name, _, value = piece.partition(b"=")
    try:
        return _unquote(name).decode(), _unquote(value)
    except ValueError:
        raise RefusalError(
            "malformed_encoding", "the form is not percent-encoded, or a field's name is not UTF-8"
        ) from None


def _unquote(text: bytes) -> bytes:
    """Percent-decoded bytes; a `%` without two hexadecimal digits behind it is a ValueError."""
    if _BAD_ESCAPE.search(text):
        raise ValueError(text[:32])
    # Quoted-printable has the same escapes behind another sign, and a decoder in C.
    return binascii.a2b_qp(text.replace(b"+", b" ").replace(b"=", b"%3D").replace(b"%", b"="))
