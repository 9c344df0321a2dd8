"""Streams on the wire: retention, last IDs, lists, what a stream is.

Knows: the shapes of api.md for streams. Must never know: statuses, sockets, how a stream is kept.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app.api.groups import Group
from app.errors import invalid
from app.http import members, query
from app.http.members import Members, capped
from engine import ids
from engine.commands import (
    EnsureStream,
    Retention,
    StreamInfos,
    UpdateStream,
    XInfoStream,
    XInfoStreamFull,
    XRange,
    XSetId,
)
from engine.replies import ConsumerDetail, Entries, GroupDetail, Reply, StreamDetail, StreamInfo, StreamPage

PUT: Final = ("retention",)
PATCH: Final = ("retention", "archived_up_to")
LAST_ID: Final = ("last_id", "entries_added", "max_deleted_id")

LIMIT_MAX: Final = 1_000
DETAIL_COUNT_DEFAULT: Final = 10
DETAIL_COUNT_MAX: Final = 1_000

_LIMITS: Final = ("max_len", "max_age_ms", "max_bytes")
_PROMISES: Final = ("keep_unacknowledged", "keep_unarchived")


# ---- requests


def listing(query_string: bytes) -> StreamInfos:
    """GET /v1/streams."""
    given = query.parse(query_string, ("prefix", "after", "limit"))
    limit = query.integer(given, "limit", least=1, most=LIMIT_MAX, default=100)
    assert limit is not None, "it has a default"
    return StreamInfos(prefix=given.get("prefix", ""), after=given.get("after"), limit=limit)


def ensure(stream: str, given: Members) -> EnsureStream:
    """PUT: the whole retention; what is not named has no limit."""
    return EnsureStream(stream=stream, retention=Retention()._replace(**_retention(given)))


def update(stream: str, given: Members) -> UpdateStream:
    """PATCH: what is named changes; null takes a limit away."""
    archived = "archived_up_to" in given
    return UpdateStream(
        stream=stream,
        retention=_retention(given),
        archived_up_to=members.entry_id(given["archived_up_to"], "/archived_up_to") if archived else None,
    )


def _retention(given: Members) -> Mapping[str, Any]:
    if "retention" not in given:
        return {}
    wanted = members.inner(given, "retention", (*_LIMITS, *_PROMISES))
    if wanted is None:
        raise invalid("/retention", "it is a JSON object")
    changes: dict[str, Any] = {}
    for name in _LIMITS:
        if name in wanted:
            changes[name] = members.integer(wanted, name, least=0, where="/retention")
    for name in _PROMISES:
        if name in wanted:
            changes[name] = _switch(wanted, name)
    return changes


def _switch(wanted: Members, name: str) -> bool:
    value = wanted[name]
    if not isinstance(value, bool):
        raise invalid(f"/retention/{name}", "it is true or false")
    return value


def set_last_id(stream: str, given: Members) -> XSetId:
    """POST …/last-id."""
    max_deleted = given.get("max_deleted_id")
    return XSetId(
        stream=stream,
        last_id=members.entry_id(given.get("last_id"), "/last_id"),
        entries_added=members.integer(given, "entries_added", least=0),
        max_deleted_id=None if max_deleted is None else members.entry_id(max_deleted, "/max_deleted_id"),
    )


def look(stream: str, query_string: bytes, bytes_max: int) -> list[XInfoStream | XInfoStreamFull | XRange]:
    """GET: the stream, and with `full` its first entries and its groups with what is pending."""
    given = query.parse(query_string, ("full", "count"))
    count = query.integer(given, "count", least=1, most=DETAIL_COUNT_MAX, default=DETAIL_COUNT_DEFAULT)
    if not query.boolean(given, "full", default=False):
        if "count" in given:
            raise invalid("count", "it goes with full=true")
        return [XInfoStream(stream=stream)]
    first = XRange(stream=stream, start=ids.ID_MIN, end=ids.ID_MAX, count=count, bytes_max=bytes_max)
    return [XInfoStreamFull(stream=stream, count=count), first]


# ---- answers


def stream(name: str, info: Reply) -> bytes:
    """A stream as every call shows it."""
    assert isinstance(info, StreamInfo), "XINFO STREAM answers the stream"
    return msgspec.json.encode(_stream(name, info))


def page(found: Reply, bytes_max: int) -> bytes:
    """A list of streams, cut where its first and last entries get too large, at least one."""
    assert isinstance(found, StreamPage), "listing answers a page"
    shown: list[bytes] = []
    left, following = bytes_max, found.next
    for place, (name, info) in enumerate(found.streams):
        text = stream(name, info)
        left -= len(text)
        if left < 0 and shown:
            following = found.streams[place - 1][0]
            break
        shown.append(text)
    return b'{"streams":[%b],"next":%b}' % (b",".join(shown), msgspec.json.encode(following))


def detail(name: str, found: Reply, first: Reply) -> bytes:
    """A stream with its first entries and its groups."""
    assert isinstance(found, StreamDetail), "XINFO STREAM FULL answers the details"
    assert isinstance(first, Entries), "XRANGE answers entries"
    details = b",".join(map(_group, found.groups))
    return b'%b,"entries":[%b],"group_details":[%b]}' % (
        stream(name, found.stream)[:-1],
        first.json(),
        details,
    )


def _stream(name: str, info: StreamInfo) -> dict[str, object]:
    return {
        "name": name,
        "type": "stream",
        "length": info.length,
        "first_id": ids.text(info.first_id),
        "last_id": ids.text(info.last_id),
        "first_entry": _raw(info.first_entry),
        "last_entry": _raw(info.last_entry),
        "max_deleted_id": ids.text(info.max_deleted_id),
        "removed_upto": ids.text(info.removed_upto),
        "entries_added": capped(info.entries_added),
        "nodes": info.nodes,
        "groups": info.groups,
        "generation": info.generation,
        "retention": {name: getattr(info, name) for name in (*_LIMITS, *_PROMISES)},
        "archived_up_to": ids.text(info.archived_up_to),
        "memory_bytes": info.memory_bytes,
    }


def _raw(text: bytes | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text)


def _group(found: GroupDetail) -> bytes:
    more = {
        "nacked": found.nacked_count,
        "pending_entries": [
            _pending(entry_id, at_ms, count, {"consumer": consumer})
            for entry_id, consumer, at_ms, count in found.pending
        ],
        "consumer_details": list(map(_consumer, found.consumers)),
    }
    return Group.of(found.group).model_dump_json().encode()[:-1] + b"," + msgspec.json.encode(more)[1:]


def _consumer(found: ConsumerDetail) -> dict[str, object]:
    return {
        "name": found.name,
        "pending": found.pending_count,
        "seen_time_ms": found.seen_time_ms,
        "active_time_ms": found.active_time_ms,
        "pending_entries": [_pending(entry_id, at_ms, count, {}) for entry_id, at_ms, count in found.pending],
    }


def _pending(entry_id: int, at_ms: int, count: int, more: Mapping[str, str | None]) -> dict[str, object]:
    return {
        "id": ids.text(entry_id),
        **more,
        "delivery_time_ms": at_ms,
        "delivery_count": capped(count),
    }
