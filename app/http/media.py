"""Media types and preferences: the small grammars of HTTP's headers.

Knows: Content-Type, Accept, Prefer, If-Match, Idempotency-Key, Weir-Producer and its companions as text.
Must never know: what they are asked for.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from app.errors import RefusalError, invalid, locate
from engine import ids

IDEMPOTENCY_KEY_BYTES_MAX: Final = 255

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
NDJSON: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
COLUMNS: Final = "application/vnd.weir.columns+json"
CLOUDEVENT: Final = "application/cloudevents+json"
CLOUDEVENTS: Final = "application/cloudevents-batch+json"
# The header of an event in the binary mode.
EVENT_MARK: Final = b"ce-specversion"

_CHARSET: Final = re.compile(r";\s*charset\s*=\s*\"?([^\s;\"]*)", re.IGNORECASE)
_QUALITY: Final = re.compile(r";\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*(?:;|$)", re.IGNORECASE)
# Without commas, which no tag of ours has.
_ENTITY_TAG: Final = re.compile(rb'(?:W/)?"[!#-+\--~]*"')
_KEY: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class MediaType(msgspec.Struct, frozen=True):
    """`text` is the whole header as it was sent (empty without one), `name` the lower-case type without
    parameters.
    """

    text: str
    name: str


def content_type(header: bytes) -> MediaType:
    """The body's media type. Raises `unsupported_media_type` for multipart and other charsets."""
    text = header.decode("latin-1").strip()
    name = text.partition(";")[0].strip().lower()
    if name.startswith("multipart/"):
        raise RefusalError(
            "unsupported_media_type", "multipart bodies are not supported: send one entry or a batch"
        )
    charset = _CHARSET.search(text)
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8"):
        raise RefusalError("unsupported_media_type", "the only charset is UTF-8")
    if not text.isascii() or not text.isprintable():
        raise RefusalError("unsupported_media_type", "the Content-Type is malformed")
    return MediaType(text, name)


def is_event(name: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body of this type, with these headers, is a CloudEvent, or a batch of them."""
    return name in (CLOUDEVENT, CLOUDEVENTS) or EVENT_MARK in headers


def check_is_json(media_name: str, method: str = "") -> None:
    """These bodies are JSON; without a Content-Type they are taken for it. PATCH takes merge patches too,
    which is what its bodies are (RFC 7396).
    """
    is_patch = method == "PATCH" and media_name == MERGE_PATCH
    if media_name not in ("", JSON) and not is_patch:
        raise RefusalError(
            "unsupported_media_type", "the body is JSON: say Content-Type: application/json (curl --json)"
        )


def check_accepts_json(header: bytes) -> None:
    """Refuse an Accept that nothing here satisfies. Raises `not_acceptable`."""
    accepted(header, (JSON,))


def accepted(header: bytes, offered: Sequence[str]) -> str:
    """Which of the offered media types an Accept likes best, the first one where it does not say.

    Raises `not_acceptable`.
    """
    if not header or header == b"*/*":
        return offered[0]
    best, quality_best = "", 0.0
    for piece in header.decode("latin-1").lower().split(","):
        name, quality = piece.partition(";")[0].strip(), _quality(piece)
        meant = _meant(name, offered)
        if meant and quality > quality_best:
            best, quality_best = meant, quality
    if not best:
        raise RefusalError("not_acceptable", f"what is available is {', '.join(offered)}")
    return best


def asks_for_events(header: bytes, offered: Sequence[str]) -> bool:
    """Whether an Accept names events, and prefers them to the rest of what is offered."""
    pieces = header.decode("latin-1").lower().split(",")
    named = any(piece.partition(";")[0].strip() == EVENTS and _quality(piece) for piece in pieces)
    return named and accepted(header, offered) == EVENTS


def _meant(name: str, offered: Sequence[str]) -> str:
    """The offered type that a name or a pattern of them stands for, empty for none."""
    if name == "*/*":
        return offered[0]
    if name.endswith("/*"):
        return next((one for one in offered if one.startswith(name[:-1])), "")
    return name if name in offered else ""


def _quality(piece: str) -> float:
    match = _QUALITY.search(piece)
    return min(float(match[1]), 1.0) if match else 1.0


class Preferences(msgspec.Struct, frozen=True):
    """Of RFC 7240's Prefer: what is known here. `wait_s` is None where it was not asked for."""

    minimal: bool = False
    synced: bool = False
    wait_s: int | None = None

    @property
    def applied(self) -> bytes:
        """Preference-Applied for a publish, empty for none."""
        named = ((self.minimal, b"return=minimal"), (self.synced, b"durability=fsync"))
        return b", ".join(text for wanted, text in named if wanted)


NO_PREFERENCES: Final = Preferences()


def preferences(header: bytes) -> Preferences:
    """Unknown preferences are ignored, as RFC 7240 wants; known ones with impossible values are 422."""
    minimal = synced = False
    wait_s: int | None = None
    for piece in header.decode("latin-1").split(","):
        name, _, value = piece.partition(";")[0].strip().lower().partition("=")
        match name.strip(), value.strip().strip('"'):
            case "return", "minimal":
                minimal = True
            case "durability", "fsync":
                synced = True
            case "durability", word:
                raise invalid("Prefer", f"durability={word[:32]} is not available: the only one is `fsync`")
            case "wait", word:
                if not word.isascii() or not word.isdigit() or len(word) > 9:
                    raise invalid("Prefer", "wait is a number of seconds")
                wait_s = int(word)
    return Preferences(minimal=minimal, synced=synced, wait_s=wait_s)


def if_match(header: bytes) -> int | Literal["*"]:
    """The last ID that If-Match expects; 0 is an empty or missing stream, `*` any that exists."""
    text = header.decode("latin-1").strip()
    if text == "*":
        return "*"
    quoted = len(text) > 2 and text[0] == text[-1] == '"'
    expected = ids.parse(text[1:-1]) if quoted else None
    if expected is None:
        hint = 'it is `*` or the stream\'s last ID in quotation marks: "<ms>-<seq>"'
        raise RefusalError("malformed_id", f"If-Match: {hint}", places=[locate("If-Match", hint)])
    return expected


def entity_tags(header: bytes) -> Sequence[bytes] | Literal["*"]:
    """The entity tags that If-Match names, weak ones with their `W/`; `*` is any (RFC 9110, 13.1.1)."""
    tags = [one.strip() for one in header.split(b",")]
    if tags == [b"*"]:
        return "*"
    if not all(map(_ENTITY_TAG.fullmatch, tags)):
        raise invalid("If-Match", "it is `*` or entity tags in quotation marks, between commas")
    return tags


def idempotency_key(header: bytes) -> str:
    """The key as it is kept."""
    return _printable(header, "Idempotency-Key", "a key")


def producer(header: bytes) -> str:
    """The name of a producer of chunks, of which a key may be made."""
    return _printable(header, "Weir-Producer", "a producer")


def _printable(header: bytes, name: str, what: str) -> str:
    text = header.decode("latin-1")
    if len(text) > IDEMPOTENCY_KEY_BYTES_MAX or not _KEY.fullmatch(text):
        raise invalid(name, f"{what} has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} printable ASCII characters")
    return text
