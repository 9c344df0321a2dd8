"""Entries as the bodies of webhooks, in several forms, and their signatures.

Knows: Standard Webhooks, CloudEvents 1.0, an entry's fields. Must never know: HTTP, endpoints.

The library of Standard Webhooks signs text alone; an entry may be of any bytes, so the HMAC is made here.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal
from urllib.parse import quote

from weir.entries import Entry, to_json

Format = Literal["entry", "raw", "cloudevents", "cloudevents-binary", "cloudevents-batch"]
Headers = dict[str, str]
_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_IS_JSON: Final = re.compile(r"[^;]*[/+]json\s*(;.*)?", re.IGNORECASE)
_PREFIX: Final = "ce-"
_REQUIRED: Final = ("specversion", "id", "source", "type")
_NAME: Final = re.compile("[a-z0-9]{1,20}")
# 9999-12-31T23:59:59Z, the last time that has a form.
_LAST_S: Final = 253_402_300_799
# What the header of an attribute has as it is, beside letters, digits and `_.-~`.
_PLAIN: Final = "!#$&'()*+,/:;<=>?@[\\]^`{|}"


class NoDataError(ValueError):
    """The entry has nothing that this form could send."""


@dataclass(frozen=True, slots=True)
class Message:
    """One webhook. `id` is the same at each try."""

    id: str
    body: bytes
    headers: Headers = field(default_factory=dict)

    def signed(self, secrets: Sequence[bytes], now_s: int) -> Headers:
        """All headers, with a signature of each secret."""
        signatures = [sign(secret, self.id, now_s, self.body) for secret in secrets]
        own = {
            "webhook-id": self.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": " ".join(signatures),
        }
        return {**self.headers, **own}


def sign(secret: bytes, message_id: str, now_s: int, body: bytes) -> str:
    """`v1,<base64>` of Standard Webhooks."""
    made = hmac.new(secret, f"{message_id}.{now_s}.".encode(), hashlib.sha256)
    made.update(body)
    return f"v1,{base64.b64encode(made.digest()).decode()}"


def message_of(
    entries: Sequence[Entry], form: Format, *, generation: str, group: str, source: str
) -> Message:
    """The webhook of an entry; of several with the form `cloudevents-batch`. `source` begins that of entries
    that are no CloudEvents. Raises NoDataError.
    """
    first = entries[0]
    about = {
        "weir-stream": quote(first.stream, safe="/"),
        "weir-group": quote(group, safe="/"),
        "weir-deliveries": str(first.delivery_count or 1),
    }
    if form == "cloudevents-batch":
        named = "\n".join(f"{generation}.{entry.id}" for entry in entries)
        message_id = f"{generation}.{hashlib.sha256(named.encode()).hexdigest()[:32]}"
        body = b"[%b]" % b",".join(_structured(entry, source) for entry in entries)
        kind = {"content-type": "application/cloudevents-batch+json"}
        return Message(message_id, body, about | kind)
    message_id = f"{generation}.{first.id}"
    if form == "cloudevents":
        kind = {"content-type": "application/cloudevents+json"}
        return Message(message_id, _structured(first, source), about | kind)
    if form == "cloudevents-binary":
        event = _Event.of(first, source)
        texts = {f"{_PREFIX}{name}": quote(text, safe=_PLAIN) for name, text in event.attributes.items()}
        kind = {"content-type": _media(event.media)} if event.data is not None else {}
        return Message(message_id, event.data or b"", about | texts | kind)
    data = first.raw.get("data")
    if data is None and form == "raw":
        raise NoDataError("no data")
    if data is None:
        return Message(message_id, _fields(first)[0], about | {"content-type": _JSON})
    kind = {"content-type": _media(first.fields.get("content-type", ""))}
    return Message(message_id, data, about | kind)


def _media(text: str) -> str:
    """A content type that a header can have."""
    return text if text and text.isascii() and text.isprintable() else _BYTES


def _fields(entry: Entry) -> tuple[bytes, bool]:
    """The fields as a JSON object; whether all are in base64, since one is no text."""
    try:
        return to_json({name: value.decode() for name, value in entry.raw.items()}), False
    except UnicodeDecodeError:
        encoded = {name: base64.b64encode(value).decode() for name, value in entry.raw.items()}
        return to_json(encoded), True


@dataclass(frozen=True, slots=True)
class _Event:
    attributes: Mapping[str, str]
    media: str
    data: bytes | None

    @classmethod
    def of(cls, entry: Entry, source: str) -> "_Event":
        """An entry as an event, as the gateway reads it as one."""
        texts = {name: value.decode(errors="replace") for name, value in entry.raw.items()}
        found = {name.removeprefix(_PREFIX): text for name, text in texts.items() if name.startswith(_PREFIX)}
        found = {name: text for name, text in found.items() if _NAME.fullmatch(name)}
        data, media = entry.raw.get("data"), texts.get("content-type", "")
        if all(map(found.get, _REQUIRED)):
            return cls(found, media, data)
        at = datetime.fromtimestamp(min(int(entry.id.partition("-")[0]) // 1000, _LAST_S), UTC)
        at = at.replace(microsecond=int(entry.id.partition("-")[0]) % 1000 * 1000)
        found = {
            "specversion": "1.0",
            "id": entry.id,
            "source": f"{source}/v1/streams/{quote(entry.stream, safe='')}",
            "type": "weir.entry",
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        if data is None:
            data, is_base64 = _fields(entry)
            media = _JSON
            found |= {"encoding": "base64"} if is_base64 else {}
        return cls(found, media, data)


def _structured(entry: Entry, source: str) -> bytes:
    event = _Event.of(entry, source)
    members: dict[str, str] = {**event.attributes}
    if event.media:
        members["datacontenttype"] = event.media
    text = to_json(members)
    return text if event.data is None else b"%b,%b}" % (text[:-1], _data(event.data, event.media))


def _data(data: bytes, media: str) -> bytes:
    is_json = not media or _IS_JSON.fullmatch(media) is not None
    try:
        text = data.decode()
        if is_json:
            json.loads(text, parse_constant=_refuse)
            return b'"data":' + data
        return b'"data":' + to_json(text)
    except ValueError:
        return b'"data_base64":"%b"' % base64.b64encode(data)


def _refuse(word: str) -> None:
    raise ValueError(word)
