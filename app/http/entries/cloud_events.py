"""CloudEvents 1.0 as entries, and entries as CloudEvents: the three modes of HTTP, and the JSON format.

Knows: which attributes an event has, how each mode writes them. Must never know: streams, statuses, sockets.

    binary      ce-id: 7, ce-source: /shop, …          the body is the data
    structured  {"specversion":"1.0","id":"7",…}       application/cloudevents+json
    batched     [{"specversion":"1.0","id":"7",…},…]   application/cloudevents-batch+json

An entry has the names of the binary mode as its fields: `ce-<attribute>`, `content-type`, and `data`, whose
text is kept byte for byte.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import orjson

from app.errors import RefusalError, invalid, step
from app.http import strict_json
from app.http.entries.stored_entries import Indexed, ParsedEntries, check_count, store_pairs
from app.http.entries.values import Value, from_base64
from app.http.media import CLOUDEVENT, CLOUDEVENTS, JSON
from app.limits import EntryLimits
from engine import entries, ids

# An event takes some 15 us to read: larger bodies are read in a thread.
INLINE_BYTES_MAX: Final = 64 << 10
_PREFIX: Final = "ce-"
_REQUIRED: Final = ("specversion", "id", "source", "type")
_NAME: Final = re.compile("[a-z0-9]{1,20}")
_TIME: Final = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_IS_JSON: Final = re.compile(r"[^;]*[/+]json\s*(;.*)?", re.IGNORECASE)

_Pairs = Sequence[tuple[str, Value]]


class Events(NamedTuple):
    """What a body has; `key` is the same for the same sources and IDs in the same order."""

    entries: ParsedEntries
    key: str


# ---- in


def read(
    body: bytes, media_name: str, headers: Mapping[bytes, bytes], limits: EntryLimits, more: _Pairs = ()
) -> Events:
    """The events of a body, all or none, each with `more` fields behind its own. Raises 422 with a pointer or
    the header of what is wrong, `malformed_json`, `malformed_encoding`.
    """
    found: list[_Pairs] = []
    is_batch = media_name == CLOUDEVENTS
    strict_json.expect_room(body, copies=3, values=body.count(b"{"))
    if is_batch:
        items = strict_json.items_of(body, "it is a list of events")
        check_count(len(items), limits)
        for index, text in enumerate(items):
            with Indexed(index):
                found.append(_structured(bytes(text), f"/{index}", limits))
    elif media_name == CLOUDEVENT:
        found.append(_structured(body, "", limits))
    else:
        found.append(_binary(body, headers))
    key = blake2b(digest_size=16)
    for pairs in found:
        fields = dict(pairs)
        key.update(repr((fields["ce-source"], fields["ce-id"])).encode())
    rows = [store_pairs([*pairs, *more], "", limits) for pairs in found]
    return Events(ParsedEntries(rows, batch=is_batch), f"ce:{key.hexdigest()}")


def _binary(body: bytes, headers: Mapping[bytes, bytes]) -> _Pairs:
    named = {header.decode("latin-1"): value for header, value in headers.items()}
    texts = {
        name.removeprefix(_PREFIX): _percent_decoded(name, value)
        for name, value in named.items()
        if name.startswith(_PREFIX)
    }
    media = named.get("content-type", b"").decode("latin-1")
    pairs: list[tuple[str, Value]] = [*_attributes(texts, f"{_PREFIX}{{}}".format)]
    if media:
        pairs.append(("content-type", media))
    return [*pairs, ("data", body)] if body or media else pairs


def _percent_decoded(header: str, value: bytes) -> str:
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise invalid(header, "it is percent-encoded UTF-8") from None


def _structured(text: bytes, pointer: str, limits: EntryLimits) -> _Pairs:
    try:
        members = strict_json.members_of(text, limits.fields_max)
    except RefusalError as refusal:
        refusal.places = [place._replace(name=pointer + place.name) for place in refusal.places]
        raise
    members = {name: raw for name, raw in members.items() if raw != b"null" or name == "data"}
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    if data is not None and encoded is not None:
        raise invalid(f"{pointer}/data_base64", "it does not go with data")
    texts = {name: _text(raw, f"{pointer}/{step(name)}") for name, raw in members.items()}
    media = texts.pop("datacontenttype", "")
    pairs: list[tuple[str, Value]] = [*_attributes(texts, f"{pointer}/{{}}".format)]
    if data is not None:
        # The format takes what has no type for JSON.
        media = media or JSON
    if media:
        pairs.append(("content-type", media))
    if encoded is not None:
        place = f"{pointer}/data_base64"
        pairs.append(("data", from_base64(_text(encoded, place), place)))
    elif data is not None and data.startswith(b'"') and not _IS_JSON.fullmatch(media):
        pairs.append(("data", _text(data, f"{pointer}/data")))
    elif data is not None:
        try:
            pairs.append(("data", data.decode()))
        except UnicodeDecodeError:
            raise strict_json.malformed(f"{pointer}/data is not UTF-8") from None
    return pairs


def _text(raw: bytes, pointer: str) -> str:
    """A string, or a number or boolean as its text."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise strict_json.malformed(f"{pointer}: {error}") from None
    if not isinstance(value, str | bool | int):
        raise invalid(pointer, "an attribute is a string, a whole number or a boolean")
    return value if isinstance(value, str) else raw.decode()


def _attributes(texts: Mapping[str, str], place: Callable[[str], str]) -> _Pairs:
    """Attributes as fields. Raises 422 for what is no event of version 1.0."""
    for name in _REQUIRED:
        if not texts.get(name):
            raise invalid(place(name), "an event has specversion, id, source and type, and none is empty")
    if texts["specversion"] != "1.0":
        raise invalid(place("specversion"), "the only version is 1.0")
    for name in texts:
        if not _NAME.fullmatch(name):
            raise invalid(place(step(name)), "the name of an attribute is 1 to 20 of a-z and 0-9")
    if "time" in texts and not _TIME.fullmatch(texts["time"]):
        raise invalid(place("time"), "it is a time as RFC 3339 has it: 2026-01-31T12:00:00Z")
    return [(f"{_PREFIX}{name}", text) for name, text in texts.items()]


# ---- out


def write(entry_id: int, pairs: Sequence[tuple[str, bytes]], source: str) -> bytes:
    """An entry as an event in JSON. One that is none gets the ID of the entry, this source, the type
    `weir.entry` and the time of its ID; its data is its field `data`, or else its fields as a JSON object,
    all in base64 with the attribute `encoding` where one is no text.
    """
    fields = dict(pairs)
    event = {
        name.removeprefix(_PREFIX): value.decode(errors="replace")
        for name, value in pairs
        if name.startswith(_PREFIX)
    }
    data, media = fields.get("data"), fields.get("content-type", b"").decode(errors="replace")
    if not all(map(event.get, _REQUIRED)):
        time = ids.rfc3339(ids.ms_of(entry_id))
        known = {"id": ids.format(entry_id), "source": source, "type": "weir.entry", "time": time}
        event = {"specversion": "1.0", **known}
        if data is None:
            shown = {name: _shown(value) for name, value in pairs}
            if None in shown.values():
                event["encoding"] = "base64"
                shown = {name: base64.b64encode(value).decode() for name, value in pairs}
            data, media = orjson.dumps(shown), JSON
    if media:
        event["datacontenttype"] = media
    text = orjson.dumps(event)
    return text if data is None else b"%b,%b}" % (text[:-1], _data(data, media))


def source_of(prefix: str, stream: str) -> str:
    """The source of a stream's entries that are no events."""
    return f"{prefix}/v1/streams/{quote(stream, safe='')}"


def _data(data: bytes, media: str) -> bytes:
    if (not media or _IS_JSON.fullmatch(media)) and entries.is_json(data):
        return b'"data":' + data
    text = _shown(data) if media and not _IS_JSON.fullmatch(media) else None
    if text is not None:
        return b'"data":' + orjson.dumps(text)
    return b'"data_base64":"%b"' % base64.b64encode(data)


def _shown(value: bytes) -> str | None:
    """Text; None for bytes that are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
