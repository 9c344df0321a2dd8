"""Parses a client's text messages into frames.

Knows: strict JSON, which text is not a frame, where to find the `ref` of a refused frame.
Must never know: what a frame does.

Text that is not a JSON object closes the connection. A JSON object with an invalid value (half a surrogate
pair, a number out of range, too deep nesting) is a refused frame: the client gets an `error` with its `ref`,
and the connection stays open.
"""

import json
import re
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, NoReturn

import msgspec
from msgspec import UNSET, Raw, UnsetType, inspect

from app.doors.websocket.frames import CLIENT_FRAMES, Sent
from app.doors.websocket.frames import Ref as KnownRef
from app.errors import RefusalError, invalid, step
from app.http import strict_json
from app.http.strict_json import Json, Object

Ref = str | int | UnsetType

# msgspec reads a frame in 0.43 us, orjson and pydantic take 4 times as long (CPU time, `python -m
# bench.decoding`): docs/decisions/msgspec-for-entries-and-frames.md.
_decode: Final = msgspec.json.Decoder(Sent).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_UNREADABLE: Final = msgspec.MsgspecError, UnicodeDecodeError, RecursionError
# Names and JSON pointers of the members of each frame.
_NAMES: Final = {kind: [(field, f"/{field}") for field in kind.__struct_fields__] for kind in CLIENT_FRAMES}

_KINDS: Final = {
    str(info.tag): info
    for info in inspect.multi_type_info(CLIENT_FRAMES)
    if isinstance(info, inspect.StructType)
}
_MISSING: Final = "it is missing"
# The end of msgspec's words: the path of the wrong member, and its place in a list.
_PLACE: Final = re.compile(r" - at (?:key in )?`\$\.(?P<name>\w+)(?:\[(?P<at>[0-9]+)\])?[^`]*`$")
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{\]}]', re.DOTALL)
# Looking for what is wrong with a frame takes up to 2 µs for each value: of longer ones it is not looked for.
_VALUES_MAX: Final = 4_000
# Strings and brackets that are looked through for a `ref`: 6 ms.
_TOKENS_MAX: Final = 20_000
# Entries and commands of this size are not looked through for repeated members.
_RAW_BYTES_MIN: Final = 1_024
# A `ref` has at most 128 characters, each of up to 12 bytes if escaped.
_REF_VALUE: Final = re.compile(r'\s*:\s*("(?:[^"\\]|\\.){0,1536}"|-?[0-9]{1,16})(?=\s*[,}])')


class MalformedFrameError(Exception):
    """The message is not a frame: the connection must close."""

    def __init__(self, refusal: RefusalError) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class RefusedFrameError(Exception):
    """A refused frame; the connection stays open."""

    def __init__(self, refusal: RefusalError, ref: Ref) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.ref = ref


def read(text: bytes, depth_max: int) -> Sent:
    """Parse a frame.

    Raises MalformedFrameError if `text` is no JSON object, RefusedFrameError if the object is no frame.
    """
    try:
        frame: Sent = _decode(text)
    except _UNREADABLE:
        frame = _read_without_nulls(text, depth_max)
    if text.count(b'"') != 2 * _strings(frame):
        _check_members(text, frame, depth_max)
    return frame


def _read_without_nulls(text: bytes, depth_max: int) -> Sent:
    """Parse a frame without its null members: docs/decisions/null-is-not-given.md. Raises as `read`."""
    # What is no frame may have very many members: each is a name and its text, in two dictionaries.
    strict_json.expect_room(text, copies=2, values=4 * text.count(b":"))
    try:
        given = {name: value for name, value in _decode_members(text).items() if bytes(value) != b"null"}
        frame: Sent = _decode(msgspec.json.encode(given))
    except _UNREADABLE as error:
        _refuse(text, error, depth_max)
    return frame


def _strings(frame: Sent) -> int:
    """The number of strings in the frame's text, if no member is repeated and nothing is escaped."""
    count = 2
    for name, _ in _NAMES[type(frame)]:
        value = getattr(frame, name)
        if value is UNSET:
            continue
        count += 1
        if isinstance(value, str):
            count += 1
        elif isinstance(value, Raw):
            count += bytes(value).count(b'"') // 2
        elif isinstance(value, list):
            # Lists of a frame are of IDs alone.
            count += len(value)
        elif isinstance(value, dict):
            count += 2 * len(value)
    return count


def _check_members(text: bytes, frame: Sent, depth_max: int) -> None:
    """Refuse repeated members, unknown ones that are null, and invalid values."""
    for name, _ in _NAMES[type(frame)]:
        raw = getattr(frame, name)
        if isinstance(raw, Raw) and len(bytes(raw)) >= _RAW_BYTES_MIN:
            # What reads it checks it.
            text = text.replace(bytes(raw), b"0")
    if strict_json.exceeds(text, _VALUES_MAX):
        raise RefusedFrameError(invalid("", "a member occurs twice, or is not known here"), frame.ref)
    try:
        value = strict_json.parse(text, depth_max=depth_max)
    except RefusalError as refusal:
        raise RefusedFrameError(refusal, frame.ref) from None
    assert isinstance(value, Object), "it was parsed as a frame"
    inner = dict(value).get("streams")
    for where, members in (("", value), ("/streams", inner)):
        twice = strict_json.repeated_name(members) if isinstance(members, Object) else None
        if twice is not None:
            raise RefusedFrameError(invalid(f"{where}/{step(twice)}", "the member occurs twice"), frame.ref)
    unknown = _unknown(dict(value), type(frame).__struct_fields__)
    if unknown is not None:
        raise RefusedFrameError(unknown, frame.ref)


def _refuse(text: bytes, error: Exception, depth_max: int) -> NoReturn:
    """Raise the error for text that could not be parsed as a frame."""
    if strict_json.exceeds(text, _VALUES_MAX):
        _refuse_long(text)
    try:
        value = strict_json.parse(text, depth_max=depth_max)
    except strict_json.ContentRefusalError as refusal:
        raise RefusedFrameError(refusal, _ref_in(text)) from None
    except RefusalError as refusal:
        raise MalformedFrameError(refusal) from None
    if not isinstance(value, Object):
        raise MalformedFrameError(strict_json.malformed("a frame is a JSON object"))
    raise RefusedFrameError(_what_is_wrong(value, str(error)), _ref_in(text)) from None


def _refuse_long(text: bytes) -> NoReturn:
    """The same where it takes too long to find out more than whether it is an object."""
    try:
        members = _decode_members(text)
    except RecursionError:
        deep = strict_json.malformed("it is nested too deep", strict_json.ContentRefusalError)
        raise RefusedFrameError(deep, _ref_in(text)) from None
    except _UNREADABLE as error:
        raise MalformedFrameError(strict_json.malformed(str(error))) from None
    wrong = invalid("", f"it is not a frame; what is wrong is said of frames with up to {_VALUES_MAX} values")
    raise RefusedFrameError(wrong, _usable(bytes(members.get("ref", b"null")).decode())) from None


def _what_is_wrong(value: Object, error: str) -> RefusalError:
    """The refusal of an object that is no frame; `error` says in msgspec's words which member is wrong."""
    members = {name: member for name, member in value if member is not None}
    if "op" not in members:
        return invalid("/op", _MISSING)
    kind = _KINDS.get(str(members["op"]))
    if kind is None:
        return invalid("/op", f"it is one of {', '.join(_KINDS)}")
    fields = {field.name: field for field in kind.fields}
    if unknown := _unknown(dict(value), fields):
        return unknown
    for name, field in fields.items():
        if field.required and name not in members:
            return invalid(f"/{name}", _MISSING)
    place = _PLACE.search(error)
    if place is None or place["name"] not in fields:
        return invalid("", "it is not a frame")
    wrong = fields[place["name"]].type
    if place["at"] is not None and isinstance(wrong, inspect.ListType):
        return invalid(f"/{place['name']}/{place['at']}", _sentence(wrong.item_type))
    return invalid(f"/{place['name']}", _sentence(wrong))


def _unknown(members: Mapping[str, Json], known: Collection[str]) -> RefusalError | None:
    for name in members.keys() - {*known, "op"}:
        return invalid(f"/{step(name)}", f"unknown member; known here: {', '.join(known)}")
    return None


def _sentence(kind: inspect.Type) -> str:
    """What a value of this type is, as REST's refusals say it."""
    return f"it is {_noun(kind)}"


def _noun(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return _noun(kind.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number between {kind.ge} and {kind.le}"
        case inspect.StrType() if kind.max_length is not None:
            return f"a string of {kind.min_length or 0} to {kind.max_length} characters"
        case inspect.ListType():
            return "a list of at least one ID"
        case inspect.DictType():
            return "an object: the name of each stream with its cursor, a string"
        case inspect.UnionType():
            return ", or ".join(map(_noun, kind.types))
    return "a string"


def _ref_in(text: bytes) -> Ref:
    """The `ref` of a frame that could not be parsed; UNSET if it has no valid one, or not early enough."""
    chars, depth = text.decode(), 0
    for match in islice(_TOKEN.finditer(chars), _TOKENS_MAX):
        token = match[0]
        if token in ("[", "{"):
            depth += 1
        elif token in ("]", "}"):
            depth -= 1
        elif depth == 1 and (value := _REF_VALUE.match(chars, match.end())) and json.loads(token) == "ref":
            return _usable(value[1])
    return UNSET


def _usable(text: str) -> Ref:
    try:
        known: str | int = msgspec.json.decode(text, type=KnownRef)
    except msgspec.MsgspecError:
        return UNSET
    return known
