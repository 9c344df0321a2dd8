"""Entries and the answers that hold them, as values.

Knows: an entry's JSON forms. Must never know: how it was sent or asked for.

Field values are text. Bytes that are not UTF-8 are kept in `str` with surrogate escapes, as Python does for
file names, so that one type serves all; `Entry.raw` gives the bytes.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from weir.errors import GapError, InvalidValueError

Value = str | bytes | int | float | bool
# What can be published: a mapping, or pairs where a name occurs twice.
Fields = Mapping[str, Value] | Sequence[tuple[str, Value]]


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries between `requested` and `first_available` were removed; `lost` of them, where that is known.

    `reason` is None or `trimmed` for that. Otherwise it says what came between, and newer gateways may have
    others than these: `deleted`, `expired`, `replaced` (by a rename or a copy) and `recreated`: what follows
    is another stream; `restored`: an older state of this one; `ahead`: the stream ends before `requested`;
    `failover`: a server of the backend has failed before another one had them.
    """

    requested: str
    first_available: str | None
    lost: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `pairs` are all fields in order, `fields` the last value of each name.

    Of an entry that was deleted while it was pending only the ID is left: `deleted` is true, `fields` empty.
    `delivery_count` and `idle_ms` are set where a group delivers or claims; `idle_ms` is None for an entry
    that was given back. `meta` is kept beside the fields: `traceparent` if a gateway that traces stored it as
    a part of a trace.
    """

    id: str
    pairs: tuple[tuple[str, str], ...]
    stream: str = ""
    deleted: bool = False
    delivery_count: int | None = None
    idle_ms: int | None = None
    meta: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def fields(self) -> dict[str, str]:
        """Values by name."""
        return dict(self.pairs)

    @property
    def raw(self) -> dict[str, bytes]:
        """The same as bytes, exactly as they were published."""
        return {name: value.encode("utf-8", "surrogateescape") for name, value in self.pairs}

    @classmethod
    def parse(cls, members: Mapping[str, Any], stream: str = "") -> Self:
        """From its JSON form."""
        fields = members.get("fields")
        pairs = members.get("pairs") or list((fields or {}).items())
        if members.get("encoding") == "base64":
            pairs = [
                (name, base64.b64decode(value).decode("utf-8", "surrogateescape")) for name, value in pairs
            ]
        return cls(
            id=members["id"],
            pairs=tuple((name, value) for name, value in pairs),
            stream=members.get("stream", stream),
            deleted="fields" in members and fields is None,
            delivery_count=members.get("delivery_count"),
            idle_ms=members.get("idle_ms"),
            meta=members.get("meta") or {},
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of one read. Continue after `next`; `more` says whether further entries exist now. `closed`:
    the stream is, and has nothing behind; `drained`, of a group: nor is anything pending in it; `paused`, of
    a group: it delivers nothing until it is resumed.
    """

    entries: tuple[Entry, ...]
    next: str | None
    more: bool
    gap: Gap | None = None
    closed: bool = False
    drained: bool = False
    paused: bool = False

    @classmethod
    def parse(cls, members: Mapping[str, Any], stream: str) -> Self:
        """From the answer's JSON."""
        gap = members.get("gap")
        return cls(
            entries=tuple(Entry.parse(one, stream) for one in members["entries"]),
            next=members.get("next"),
            more=bool(members.get("more")),
            gap=None if gap is None else parse_gap(gap),
            closed=bool(members.get("closed")),
            drained=bool(members.get("drained")),
            paused=bool(members.get("paused")),
        )


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish stored. `ids` is empty where only their number was asked for.

    `duplicate`: the same idempotency key had stored it before, and nothing was stored now.
    """

    first_id: str
    last_id: str
    count: int
    ids: tuple[str, ...]
    duplicate: bool

    @property
    def id(self) -> str:
        """The ID of a single entry."""
        return self.last_id

    @classmethod
    def parse(cls, members: Mapping[str, Any]) -> Self:
        """From the answer's JSON, of one entry or of a batch."""
        if "id" in members:
            entry_id = members["id"]
            return cls(entry_id, entry_id, 1, (entry_id,), members["duplicate"])
        return cls(
            first_id=members["first_id"],
            last_id=members["last_id"],
            count=members["count"],
            ids=tuple(members.get("ids", ())),
            duplicate=bool(members.get("duplicate")),
        )


def parse_gap(members: Mapping[str, Any]) -> Gap:
    """From its JSON form."""
    return Gap(
        members["requested"], members.get("first_available"), members.get("lost"), members.get("reason")
    )


def gap_error(stream: str, gap: Gap) -> GapError:
    """The exception for a gap."""
    return GapError(stream, gap.requested, gap.first_available, gap.lost, gap.reason)


def encode_entry(fields: Fields, entry_id: str | None = None) -> dict[str, Any]:
    """An entry as a publisher sends it.

    Raises InvalidValueError for one without fields, TypeError for a value of another type beside bytes.
    """
    pairs = list(fields.items() if isinstance(fields, Mapping) else fields)
    if not pairs:
        raise InvalidValueError("an entry has at least one field")
    members: dict[str, Any] = {} if entry_id is None else {"id": entry_id}
    if any(_is_binary(value) for _, value in pairs):
        members["encoding"] = "base64"
        pairs = [(name, base64.b64encode(_to_bytes(value)).decode()) for name, value in pairs]
    as_object = dict(pairs)
    members["fields"] = as_object if len(as_object) == len(pairs) else [list(pair) for pair in pairs]
    return members


def _is_binary(value: Value) -> bool:
    if isinstance(value, str):
        return not value.isascii() and any("\udc80" <= character <= "\udcff" for character in value)
    return isinstance(value, bytes)


def _to_bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidValueError.of_text(error) from None
    if isinstance(value, int | float):
        return to_json(value)
    raise TypeError(f"a value is str, bytes, int, float or bool, not {type(value).__name__}")


def to_json(value: object) -> bytes:
    """JSON as it is sent. Raises InvalidValueError for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidValueError.of_text(error) from None
    except ValueError as error:
        raise InvalidValueError(f"a value cannot be sent as JSON: {error}") from None
