"""JSON, read strictly: all that RFC 8259 leaves to luck is refused or kept as it was written.

Knows: objects with all their members in order, numbers as their text, what makes text no JSON.
Must never know: entries, streams, and what anybody does with a value.

This is the careful reader, at some microseconds a value. The fast ones beside it (`entries`, `ndjson`) come
first and
leave to it what they cannot prove to be plain.
"""

import json
import re
from typing import Final, NoReturn

from app.errors import Refusal

# A value costs about a hundred bytes of memory here: this keeps the largest body's values below 100 MB.
values_max: Final = 1_000_000

_STRING_OR_BRACKET: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{\]}]', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class Number(str):
    """A JSON number as it was written."""

    __slots__ = ()


class Object(list[tuple[str, "Json"]]):
    """A JSON object: its members in order, repeated names and all."""

    __slots__ = ()


Json = str | Number | bool | None | Object | list["Json"]


def parse(body: bytes, *, depth_max: int) -> Json:
    """The value that `body` is. Raises `malformed_json` for everything that is not plain, finite UTF-8
    JSON.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"byte {error.start} is not UTF-8") from None
    if sum(map(text.count, ",[{")) > values_max:
        raise Refusal("body_too_large", f"the body has more than {values_max} values")
    try:
        value: Json = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise malformed(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise malformed(f"it is nested deeper than {depth_max} levels") from None
    _check_depth(text, depth_max)
    _check_surrogates(text)
    return value


def malformed(detail: str) -> Refusal:
    """400: not JSON."""
    return Refusal("malformed_json", f"the JSON cannot be read: {detail}")


def repeated_name(members: Object) -> str | None:
    """The first name that stands twice, None if each stands once."""
    seen = set[str]()
    for name, _ in members:
        if name in seen:
            return name
        seen.add(name)
    return None


def _refuse_constant(word: str) -> NoReturn:
    raise malformed(f"{word} is no JSON value")


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=Object, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant
)


def _check_depth(text: str, depth_max: int) -> None:
    """Run on text that is known to be JSON: brackets are paired, strings end."""
    if text.count("[") + text.count("{") <= depth_max:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        token = match[0]
        if token in ("[", "{"):
            depth += 1
            if depth > depth_max:
                raise malformed(f"it is nested deeper than {depth_max} levels")
        elif token in ("]", "}"):
            depth -= 1


def _check_surrogates(text: str) -> None:
    """Half of a surrogate pair is no character: it could be stored nowhere and answered to nobody."""
    if _SURROGATE.search(text) is None:
        return
    high_end = -1
    for match in _ESCAPE.finditer(text):
        unit = int(match[1], 16) if match[1] else 0
        low = 0xDC00 <= unit <= 0xDFFF
        if (low or high_end >= 0) and not (low and high_end == match.start()):
            raise malformed("a surrogate stands without its other half")
        high_end = match.end() if 0xD800 <= unit <= 0xDBFF else -1
    if high_end >= 0:
        raise malformed("a surrogate stands without its other half")
