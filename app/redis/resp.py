"""Values of the command API: RESP2 shapes to JSON, JSON arguments to words.

Knows: what JSON can't carry (integers beyond 2^53, bytes that are not UTF-8) and how the SDKs of this wire
form agree to carry it: numbers as strings, strings as base64 (`Upstash-Encoding: base64`, `Weir-Encoding:
base64`).
Must never know: commands, replies of the engine, HTTP.
"""

import base64 as base64_codec
import binascii
from collections.abc import Sequence
from typing import Final, TypeAlias, cast

import msgspec

from engine import errors

# `bytes` are bulk strings, `str` the simple ones (OK, PONG, the lines of HELP). `msgspec.Raw`, `bytes` to the
# type checker, is text that is written as it is.
Resp: TypeAlias = "int | bytes | str | list[Resp] | None"


class Pairs(list["Resp"]):
    """Names and values alternate: a map, where the protocol has maps."""


class Named(list["Resp"]):
    """Lists of a name and its value: a map too."""


class Verbatim(bytes):
    """Text for people."""

    __slots__ = ()


# JavaScript's Number.MAX_SAFE_INTEGER: above it neighbouring integers become one.
_INTEGER_MAX: Final = (1 << 53) - 1


class NumberText(str):
    """A JSON number as it was written, so that `1.50` and 30 digits keep their text."""

    __slots__ = ()


_decode: Final = msgspec.json.Decoder(float_hook=NumberText).decode


def load(body: bytes) -> object:
    """The JSON value in `body`; numbers that are not small integers as `NumberText`.

    Raises `msgspec.DecodeError` where `body` isn't JSON.
    """
    return _decode(body)


def arguments(values: Sequence[object], *, base64: bool) -> list[bytes]:
    """The words of one command from a JSON list of strings, numbers and booleans.

    With `base64` every string is base64 (RFC 4648 section 4, padded); numbers and booleans are their JSON
    text in any case. Raises the refusal `invalid` for anything else.
    """
    if not base64:
        try:
            # Nearly all words are text; this takes nothing else.
            return [*map(str.encode, cast("Sequence[str]", values))]
        except (TypeError, UnicodeEncodeError):
            pass
    return [_argument(value, place, base64=base64) for place, value in enumerate(values)]


def _argument(value: object, place: int, *, base64: bool) -> bytes:
    if isinstance(value, str):
        if base64 and not isinstance(value, NumberText):
            return _from_base64(value, place)
        return _utf8(value, place)
    # True and False are integers to Python.
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, int | float):
        return msgspec.json.encode(value) if isinstance(value, float) else b"%d" % value
    kind = "null" if value is None else "an object" if isinstance(value, dict) else "a list"
    raise errors.invalid(
        "ERR invalid argument: strings, numbers and booleans only",
        f"argument {place} is {kind}: encode it as a string",
    )


def _utf8(value: str, place: int) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise errors.invalid(
            "ERR invalid argument: not UTF-8",
            f"argument {place} has a lone surrogate: use base64 for raw bytes",
        ) from None


def _from_base64(value: str, place: int) -> bytes:
    try:
        return base64_codec.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise errors.invalid("ERR invalid argument: not base64", f"argument {place} is not base64") from None


def to_json(resp: Resp, *, base64: bool) -> object:
    """`resp` as a value for a JSON encoder.

    Integers beyond ±(2^53 − 1) become strings. Without `base64` bytes that are not UTF-8 show as U+FFFD. With
    it every string is base64, numbers in strings too, because the SDKs decode every string. The only
    exception is a reply that is just the simple string OK; the SDKs make the same exception.
    """
    if isinstance(resp, str) and resp == "OK":
        return resp
    return _in_base64(resp) if base64 else _in_text(resp)


def _in_text(resp: Resp) -> object:
    if isinstance(resp, bytes):
        return resp.decode(errors="replace")
    if isinstance(resp, list):
        return [_in_text(element) for element in resp]
    if isinstance(resp, int) and not -_INTEGER_MAX <= resp <= _INTEGER_MAX:
        return str(resp)
    return resp


def _in_base64(resp: Resp) -> object:
    if isinstance(resp, msgspec.Raw):
        return resp
    if isinstance(resp, list):
        return [_in_base64(element) for element in resp]
    if isinstance(resp, int):
        if -_INTEGER_MAX <= resp <= _INTEGER_MAX:
            return resp
        resp = str(resp)
    if isinstance(resp, str):
        resp = resp.encode()
    return None if resp is None else base64_codec.b64encode(resp).decode("ascii")
