"""JSON, read strictly: all that RFC 8259 leaves to luck is refused or kept as it was written.

Knows: objects with all their members in order, numbers as their text, what makes text no JSON.
Must never know: entries, streams, what a value is used for.

This is the careful reader, at some microseconds a value. The fast ones (`entries.entry_bodies`) come first,
and leave to it what they cannot prove to be plain.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from itertools import accumulate, compress
from typing import Final, NoReturn, TypeVar, cast

import msgspec

from app.errors import RefusalError, invalid, step

# What is searched in one call, during which nothing else runs: up to 5 ms.
_PIECE_BYTES: Final = 128 << 10
# What a value takes beside its text.
_VALUE_BYTES: Final = 100
VALUES_MAX: Final = 1_000_000
# Names of members are shorter.
_NAME_CHARS_MAX: Final = 64 << 10

_STRING_OR_BRACKET: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{\]}]', re.DOTALL)
_LONE_SURROGATE: Final = re.compile(
    r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]", re.DOTALL
)
# Ends where no surrogate is behind its other half, and no escape goes on.
_BETWEEN_ESCAPES: Final = re.compile(r'[^\\]{12}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[bfnrt/"]')
# The lead bytes of characters of four bytes, and of those that are beyond Latin-1.
_WIDE: Final = range(0xF0, 0xF5)
_BEYOND_LATIN: Final = range(0xC4, 0xF0)


class NeedsRoomError(Exception):
    """To read a body takes this many bytes of memory beside it, which are more than are held for it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


# What may be taken to read the body at hand, beside it.
room: Final = ContextVar("room", default=sys.maxsize)


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
    values = count_of(body, b",[{")
    if values > VALUES_MAX:
        raise ContentRefusalError("body_too_large", f"the body has more than {VALUES_MAX} values")
    # It is a copy of a part, or it is stored, in two pieces; its text is decoded whole, and then its values.
    expect_room(body, copies=3, strings=2, values=values)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"byte {error.start} is not UTF-8") from None
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


def expect_room(text: bytes, *, copies: int = 0, strings: int = 0, values: int = 0) -> None:
    """Raise NeedsRoomError if so many copies of a text, so many times the text as strings, and so many values
    take more than there is room for. One wide character makes a string four bytes a character.
    """
    most = room.get()
    if most < sys.maxsize:
        width = _width(text) if strings else 0
        size = (copies + strings * width) * len(text) + _VALUE_BYTES * values
        if size > most:
            raise NeedsRoomError(size)


def _width(text: bytes) -> int:
    """How many bytes a character takes, of the longest string that may be in it."""
    if text.isascii():
        return 1
    if any(lead in text for lead in _WIDE):
        return 4
    return 2 if any(lead in text for lead in _BEYOND_LATIN) else 1


def compact(value: Json) -> str:
    """The value as JSON without blanks: numbers as they were written, members in their order."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Object):
        return f"{{{','.join([f'{compact(name)}:{compact(member)}' for name, member in value])}}}"
    if isinstance(value, list):
        return f"[{','.join(map(compact, cast('list[Json]', value)))}]"
    return msgspec.json.encode(value).decode()


def exceeds(body: bytes, most: int, marks: bytes = b",[{") -> bool:
    """Whether JSON has more strings than `most`, or more of these marks outside of strings: values, objects,
    lists. Counted, not decoded: a millisecond or two for megabytes.
    """
    if len(body) <= most or count_of(body, marks) <= most:
        return False
    strings = found = 0
    for piece, quotes in _outside(body):
        # Each two quotation marks are a string.
        strings += quotes
        found += sum(map(piece.count, marks))
        if found > most or strings // 2 > most:
            return True
    return False


def count_of(body: bytes, marks: bytes) -> int:
    """How many of these bytes it has. Of a long one a piece at a time, so that other threads go on."""
    places = range(0, len(body), _PIECE_BYTES)
    return sum([body.count(mark, at, at + _PIECE_BYTES) for mark in marks for at in places])


def has_more_objects(body: bytes, most: int) -> bool:
    """Whether JSON has more objects than `most`; braces in strings, as of JSON within JSON, are none."""
    if body.count(b"{") <= most:
        return False
    found = accumulate(piece.count(b"{") for piece, _ in _outside(body))
    return any(count > most for count in found)


def quotes_of(body: bytes) -> int:
    """How many quotation marks begin or end a string."""
    return body.count(b'"') if b"\\" not in body else sum(plain.count(b'"') for plain in _unescaped(body))


def without_escapes(body: bytes) -> bytes:
    """JSON without escaped backslashes and quotation marks: each that is left ends or begins a string."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body


def least_bytes(body: bytes) -> int:
    """The fewest bytes that JSON can take once its blanks are left out, and its escapes are the characters
    that they stand for.
    """
    size = len(body) - count_of(body, b" \t\r\n")
    for start in range(0, len(body), _PIECE_BYTES):
        end = start + _PIECE_BYTES
        # Of a run of backslashes, each two are one escape.
        size -= body.count(b"\\", start, end) - body.count(b"\\\\", start, end)
        size -= 4 * body.count(b"\\u", start, end + 1)
    return size


def _unescaped(body: bytes) -> Iterator[bytes]:
    """JSON without escaped backslashes and quotation marks, in pieces, so that other threads go on between
    them.
    """
    start = 0
    while start < len(body):
        end = start + _PIECE_BYTES
        if body[end - 1 : end] == b"\\":
            # No escape is in two pieces.
            end = _skip(_BACKSLASHES, body, end) + 1
        yield without_escapes(body[start:end])
        start = end


def _outside(body: bytes) -> Iterator[tuple[bytes, int]]:
    """The marks outside of strings, in pieces, each with the number of quotation marks that it had."""
    is_inside = 0
    for plain in _unescaped(body):
        marks = plain.translate(None, _NO_MARKS)
        # Two beside each other end one string and begin another: what is inside of one stays inside.
        parts = marks.replace(b'""', b"").split(b'"')
        yield b"".join(parts[is_inside::2]), marks.count(b'"')
        is_inside ^= len(parts) % 2 == 0


def has_more_items(body: bytes, most: int, at_depth: int = 1) -> bool:
    """Whether an object or a list has more items than `most`, or all at this depth together: by their commas,
    up to where it is known. Decoders are as fast, but let no other thread go on.
    """
    if body.count(b",") < most:
        return False
    depth, found = 0, 1
    for written, _ in _outside(body):
        # What is empty leaves the depth as it was, as a comma does.
        marks = written.replace(b"[]", b"").replace(b"{}", b"")
        if not marks.strip(b","):  # as of a long list of numbers, in a tenth of the time
            found += len(marks) * (depth == at_depth)
            continue
        depths = list(accumulate(map(_STEPS.__getitem__, marks), initial=depth))
        found += list(compress(depths, marks.translate(_IS_COMMA))).count(at_depth)
        if found > most:
            return True
        depth = depths[-1]
    return found > most


def members_of(body: bytes, most: int | None) -> dict[str, bytes]:
    """The members of a large object as text, for what is read piece by piece: `most` of them at most, None
    where they are counted.

    Raises `malformed_json`, 422 for what is no object and for a member that occurs twice.
    """
    if _OPENING.match(body) and within(body) and most is not None and has_more_items(body, most):
        raise invalid("", f"an object here has at most {most} members")
    found = _split(_decode_members, body, "it is a JSON object")
    if max(map(len, found), default=0) > _NAME_CHARS_MAX:
        raise invalid("", f"the name of a member has at most {_NAME_CHARS_MAX} characters")
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
    return _split(_decode_items, within(body), hint)


def within(body: bytes) -> bytes:
    """The body, if it has no more values than one may have. Raises `body_too_large`."""
    if exceeds(body, VALUES_MAX):
        raise ContentRefusalError("body_too_large", f"the body has more than {VALUES_MAX} values")
    return body


# Only msgspec gives values as they were sent (`Raw`): docs/decisions/msgspec-for-entries-and-frames.md.
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
# How each mark of a structure changes the depth; and what is no such mark, and none of a string.
_STEPS: Final = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]
_NO_MARKS: Final = bytes(byte for byte in range(256) if byte not in b'[]{},"')
_IS_COMMA: Final = bytes(byte in b"," for byte in range(256))
_OPENING: Final = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*")
_BLANKS: Final = re.compile(rb"[ \t\r\n]*")
_BACKSLASHES: Final = re.compile(rb"\\*")
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
    start = 0 if "\\u" in text else len(text)
    while start < len(text):
        cut = _BETWEEN_ESCAPES.search(text, start + _PIECE_BYTES)
        end = len(text) if cut is None else cut.end()
        # The second one of two backslashes begins no escape.
        if _LONE_SURROGATE.search(text[start:end].replace("\\\\", "__")):
            raise malformed("a surrogate stands without its other half", ContentRefusalError)
        start = end
