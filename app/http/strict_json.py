"""JSON, read strictly: all that RFC 8259 leaves to luck is refused or kept as it was written.

Knows: objects with all their members in order, numbers as their text, what makes text no JSON.
Must never know: entries, streams, what a value is used for.

This is the careful reader, at some microseconds a value. The fast ones (`entries.entry_bodies`) come first,
and leave to it what they cannot prove to be plain.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress
from typing import Final, NoReturn, TypeVar, cast

import msgspec

from app.errors import RefusalError, invalid, step

# What is searched in one call, during which nothing else runs: up to 5 ms.
_PIECE_BYTES: Final = 128 << 10
# A value costs about a hundred bytes of memory here: this keeps the largest body's values below 100 MB.
VALUES_MAX: Final = 1_000_000

_STRING_OR_BRACKET: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{\]}]', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class Number(str):
    """A JSON number as it was written."""

    __slots__ = ()


class Object(list[tuple[str, "Json"]]):
    """A JSON object: its members in order, repeated names and all."""

    __slots__ = ()


T = TypeVar("T")
Json = str | Number | bool | None | Object | list["Json"]


def parse(body: bytes, *, depth_max: int, depth: int = 0) -> Json:
    """The value that `body` is, `depth` levels deep in others. Raises `malformed_json` for all that is
    not plain, finite UTF-8 JSON.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"byte {error.start} is not UTF-8") from None
    if sum(map(text.count, ",[{")) > VALUES_MAX:
        raise ContentRefusalError("body_too_large", f"the body has more than {VALUES_MAX} values")
    try:
        value: Json = _decoder.decode(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise malformed(f"{line}column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise malformed(f"it is nested deeper than {depth_max} levels", ContentRefusalError) from None
    _check_depth(text, depth_max, depth)
    _check_surrogates(text)
    return value


def compact(value: Json) -> str:
    """The value as JSON without blanks: numbers as they were written, members in their order."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Object):
        return f"{{{','.join([f'{compact(name)}:{compact(member)}' for name, member in value])}}}"
    if isinstance(value, list):
        items: list[Json] = cast("list[Json]", value)
        return f"[{','.join(map(compact, items))}]"
    return msgspec.json.encode(value).decode()


def exceeds(body: bytes, most: int, marks: bytes = b",[{") -> bool:
    """Whether JSON has more strings than `most`, or more of these marks outside of strings: values, objects,
    lists. Counted, not decoded: a millisecond or two for megabytes.
    """
    if sum(map(body.count, marks)) <= most:
        return False
    plain = without_escapes(body)
    # Each two quotation marks are a string.
    return plain.count(b'"') // 2 > most or _exceeds_outside(plain, marks, most)


def has_more_objects(body: bytes, most: int) -> bool:
    """Whether JSON has more objects than `most`; braces in strings, as of JSON within JSON, are none."""
    return body.count(b"{") > most and _exceeds_outside(without_escapes(body), b"{", most)


def without_escapes(body: bytes) -> bytes:
    """JSON without escaped backslashes and quotation marks: each that is left ends or begins a string."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body


def _exceeds_outside(plain: bytes, marks: bytes, most: int) -> bool:
    """Whether more than `most` of these marks are outside of strings."""
    found = 0
    for piece in _outside(plain):
        found += sum(map(piece.count, marks))
        if found > most:
            return True
    return False


def _outside(plain: bytes) -> Iterator[bytes]:
    """What is outside of strings, in pieces, so that other threads go on between them."""
    is_inside = 0
    for start in range(0, len(plain), _PIECE_BYTES):
        parts = plain[start : start + _PIECE_BYTES].split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def has_more_items(body: bytes, most: int, at_depth: int = 1) -> bool:
    """Whether an object or a list has more items than `most`, or all at this depth together: by their commas,
    up to where it is known. Decoders are as fast, but let no other thread go on.
    """
    depth, found = 0, 1
    for piece in _outside(without_escapes(body)):
        marks = piece.translate(None, _NO_MARKS)
        depths = list(accumulate(map(_STEPS.__getitem__, marks), initial=depth))
        # A comma leaves the depth as it was.
        found += list(compress(depths, marks.translate(_IS_COMMA))).count(at_depth)
        if found > most:
            return True
        depth = depths[-1]
    return False


def members_of(body: bytes, most: int) -> dict[str, bytes]:
    """The members of a large object as text, `most` of them at most: for what is read piece by piece.

    Raises `malformed_json`, 422 for what is no object and for a member that occurs twice.
    """
    if _OPENING.match(body) and has_more_items(_within(body), most):
        raise invalid("", f"an object here has at most {most} members")
    found = _split(_decode_members, body, "it is a JSON object")
    members = {name: bytes(raw) for name, raw in found.items()}
    # A decoder keeps the last of two equal names: then its text does not stand where the first one does.
    at, name = _skip(_OPENING, body, 0), b'""'
    for value in members.values():
        name, at = _name_at(body, at)
        end = _skip(_BLANKS, body, at + len(value))
        # A number may begin with another one: 12 and 1.
        if not body.startswith(value, at) or body[end : end + 1] not in (b",", b"}"):
            break
        at = _skip(_BETWEEN, body, end)
    else:
        if body.startswith(b"}", at):
            return members
        name, _ = _name_at(body, at)
    raise invalid(f"/{step(json.loads(name))}", "the member occurs twice")


def items_of(body: bytes, hint: str) -> Sequence[msgspec.Raw]:
    """The items of a large list as text. Raises 422 with the hint for what is no list."""
    return _split(_decode_items, _within(body), hint)


def _within(body: bytes) -> bytes:
    """The body, if it has no more values than one may have."""
    if exceeds(body, VALUES_MAX):
        raise ContentRefusalError("body_too_large", f"the body has more than {VALUES_MAX} values")
    return body


# Only msgspec gives values as they were sent (`Raw`): docs/decisions/msgspec-for-entries-and-frames.md.
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
# The marks of a structure, and how each changes the depth.
_STEPS: Final = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]
_NO_MARKS: Final = bytes(byte for byte in range(256) if byte not in b"[]{},")
_IS_COMMA: Final = bytes(byte in b"," for byte in range(256))
_OPENING: Final = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
_BLANKS: Final = re.compile(rb"[ \t\r\n]*")
_BETWEEN: Final = re.compile(rb"[ \t\r\n]*,?[ \t\r\n]*")
_NAME: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_AT_BYTE: Final = re.compile(r"(?:JSON is malformed: )?(.*?)(?: \(byte (\d+)\))?")


def _split(decoder: msgspec.json.Decoder[T], body: bytes, hint: str) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise invalid("", hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        match = _AT_BYTE.fullmatch(str(error))
        at = int(match[2]) if match and match[2] else len(body)
        line = body.count(b"\n", 0, at) + 1
        column = at - body.rfind(b"\n", 0, at)
        raise malformed(f"line {line}, column {column}: {match[1] if match else 'it is no JSON'}") from None
    except RecursionError:
        raise malformed("it is nested too deep", ContentRefusalError) from None


def _skip(pattern: re.Pattern[bytes], body: bytes, at: int) -> int:
    match = pattern.match(body, at)
    assert match is not None, "the decoder has read it"
    return match.end()


def _name_at(body: bytes, at: int) -> tuple[bytes, int]:
    match = _NAME.match(body, at)
    assert match is not None, "the decoder has read it"
    return match[1], match.end()


class NotPlainError(Exception):
    """A fast reader cannot prove this JSON to be plain: the strict one takes it."""


class ContentRefusalError(RefusalError):
    """JSON by its grammar, with something in it that cannot be taken."""


def malformed(detail: str, kind: type[RefusalError] = RefusalError) -> RefusalError:
    """400: not JSON."""
    return kind("malformed_json", f"the JSON cannot be read: {detail}")


def repeated_name(members: Object) -> str | None:
    """The first name that occurs twice, None if each occurs once."""
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


def _check_depth(text: str, depth_max: int, depth: int) -> None:
    """Run on text that is known to be JSON: brackets are paired, strings end."""
    if text.count("[") + text.count("{") <= depth_max - depth:
        return
    for match in _STRING_OR_BRACKET.finditer(text):
        token = match[0]
        if token in ("[", "{"):
            depth += 1
            if depth > depth_max:
                raise malformed(f"it is nested deeper than {depth_max} levels", ContentRefusalError)
        elif token in ("]", "}"):
            depth -= 1


def _check_surrogates(text: str) -> None:
    """A lone surrogate is not a character: it has no encoding in UTF-8."""
    if _SURROGATE.search(text) is None:
        return
    high_end = -1
    for match in _ESCAPE.finditer(text):
        unit = int(match[1], 16) if match[1] else 0
        low = 0xDC00 <= unit <= 0xDFFF
        if (low or high_end >= 0) and not (low and high_end == match.start()):
            raise malformed("a surrogate stands without its other half", ContentRefusalError)
        high_end = match.end() if 0xD800 <= unit <= 0xDBFF else -1
    if high_end >= 0:
        raise malformed("a surrogate stands without its other half", ContentRefusalError)
