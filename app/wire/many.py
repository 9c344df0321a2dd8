"""Many streams at once: bodies → XREAD, XREADGROUP and Publish, and what they answer.

Knows: the shapes of api.md for both. Must never know: statuses, sockets, where a stream is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from app import names
from app.errors import invalid, step
from app.http import entry_bodies, members, strict_json
from app.http.entry_bodies import EntryLimits
from app.http.members import Members
from app.http.strict_json import Json, Number, Object
from app.wire import groups
from app.wire.read import ReadLimits, assemble, cursor, gap_refused, preferred_wait_ms
from engine import ids
from engine.commands import Chunk, Cursor, DescribeGroup, IdempotencyKey, Publish, XAdd, XRead, XReadGroup
from engine.replies import Entries, GroupRead, Published, Reply, Republished, StreamsRead

READ: Final = ("streams", "count", "wait", "on_gap", *("group", "consumer", "noack", "claim_min_idle_ms"))
_OF_GROUPS: Final = ("noack", "claim_min_idle_ms")


# ---- reading


def read(
    given: Members, limits: ReadLimits, streams_max: int, prefer_wait_s: int | None
) -> XRead | XReadGroup:
    """POST /v1/read: with `group` and `consumer` as a consumer of a group."""
    streams = _streams(given, streams_max)
    count = members.integer(given, "count", least=1, most=limits.count_max)
    wait_ms = members.integer(given, "wait", least=0, most=limits.wait_ms_max)
    if wait_ms is None:
        wait_ms = preferred_wait_ms(prefer_wait_s, limits)
    count, block_ms = limits.count_default if count is None else count, wait_ms or None
    if "group" in given or "consumer" in given:
        return _group_read(given, streams, count, block_ms, limits.bytes_max)
    for name in _OF_GROUPS:
        if name in given:
            raise invalid(f"/{name}", "it goes with group and consumer")
    cursors = [(name, cursor(after, _place(name))) for name, after in streams]
    return XRead(streams=cursors, count=count, block_ms=block_ms, bytes_max=limits.bytes_max)


def fails_on_gap(given: Members) -> bool:
    """Whether a gap is a refusal."""
    if "on_gap" not in given:
        return False
    if "group" in given:
        raise invalid("/on_gap", "a group's entries are delivered before a gap is known: look at `gap`")
    return members.word(given, "on_gap", ("report", "fail")) == "fail"


def _group_read(
    given: Members, streams: Sequence[tuple[str, str]], count: int, block_ms: int | None, bytes_max: int
) -> XReadGroup:
    return XReadGroup(
        group=members.name_of(given, "group", "group name"),
        consumer=members.name_of(given, "consumer", "consumer name"),
        streams=[(name, _group_cursor(after, _place(name))) for name, after in streams],
        count=count,
        block_ms=block_ms,
        noack=members.boolean(given, "noack"),
        claim_min_idle_ms=members.integer(given, "claim_min_idle_ms", least=0),
        bytes_max=bytes_max,
    )


def _group_cursor(text: str, place: str) -> int | Cursor:
    return Cursor.NEW if text == ">" else members.entry_id(text, place, "it is '>' or an ID")


def _streams(given: Members, streams_max: int) -> Sequence[tuple[str, str]]:
    value = given.get("streams")
    if not isinstance(value, Object) or not value:
        raise invalid("/streams", "it is an object: the name of each stream with its cursor")
    twice = strict_json.repeated_name(value)
    if twice is not None:
        raise invalid(_place(twice), "the stream stands twice")
    _check_names([name for name, _ in value], streams_max)
    return [(name, _text(after, _place(name))) for name, after in value]


def _check_names(found: Sequence[str], streams_max: int) -> None:
    if len(found) > streams_max:
        raise invalid("/streams", f"one request names at most {streams_max} streams")
    for name in found:
        names.checked_text(name, "stream name")


def _text(value: Json, place: str) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        raise invalid(place, "a cursor is a string: an ID, '0' or '$', for a group '>' or an ID")
    return value


def _place(name: str) -> str:
    return f"/streams/{step(name)}"


def missing(command: XRead | XReadGroup, reply: Reply) -> Sequence[DescribeGroup]:
    """What is still to ask: where the group stands in streams that gave nothing new."""
    if not isinstance(command, XReadGroup) or not isinstance(reply, GroupRead):
        return []
    found = {one.stream for one in reply.streams}
    return [
        DescribeGroup(stream=name, group=command.group)
        for name, after in command.streams
        if name not in found and after is Cursor.NEW
    ]


def answer(
    command: XRead | XReadGroup,
    reply: Reply,
    asked: Sequence[DescribeGroup],
    infos: Sequence[Reply],
    *,
    fail_on_gap: bool,
) -> bytes:
    """What each stream gave. Raises `gap` where that was asked for."""
    if isinstance(reply, StreamsRead):
        return _object(_read_bodies(reply, fail_on_gap=fail_on_gap))
    assert isinstance(reply, GroupRead), "a group's read answers deliveries"
    told = {one.stream: groups.deliveries(one) for one in reply.streams}
    for one, info in zip(asked, infos, strict=True):
        told[one.stream] = groups.nothing_delivered(info, more=one.stream in reply.unfinished)
    for name, after in command.streams:
        if name in reply.unfinished and isinstance(after, int):
            told[name] = groups.no_history(after)
    return _object(told)


def _read_bodies(reply: StreamsRead, *, fail_on_gap: bool) -> Mapping[str, bytes]:
    found = {one.stream: one for one in reply.streams}
    unfinished = set(reply.unfinished)
    told: dict[str, bytes] = {}
    for name, after in reply.cursors:
        one = found.get(name)
        gap = one.gap if one is not None else None
        if gap is not None and fail_on_gap:
            raise gap_refused(gap)
        entries = one.entries if one is not None else Entries(more=name in unfinished)
        told[name] = assemble(entries, after, gap, None).body
    return told


def _object(bodies: Mapping[str, bytes]) -> bytes:
    inside = b",".join(b"%b:%b" % (msgspec.json.encode(name), body) for name, body in bodies.items())
    return b'{"streams":{%b}}' % inside


# ---- publishing


def publication(
    body: bytes, limits: EntryLimits, streams_max: int, key: str | None, chunk: Chunk | None
) -> Publish:
    """POST /v1/publish."""
    parts = entry_bodies.read_many(body, limits, streams_max)
    _check_names(list(parts), streams_max)
    idempotency = IdempotencyKey(key, entry_bodies.digest_of(body)) if key is not None else None
    return Publish(
        parts=[XAdd(stream=name, bodies=one.bodies, ids=one.ids) for name, one in parts.items()],
        idempotency=idempotency,
        chunk=chunk,
    )


def published(reply: Reply) -> bytes:
    """What each stream got."""
    if isinstance(reply, Republished):
        stored = {one.stream: _stored(one.first_id, one.last_id, one.count) for one in reply.streams}
        return msgspec.json.encode({"streams": stored, "duplicate": True})
    assert isinstance(reply, Published), "publishing answers what was published"
    stored = {name: _stored(one.ids[0], one.ids[-1], len(one.ids)) for name, one in reply.streams}
    return msgspec.json.encode({"streams": stored, "duplicate": reply.duplicate})


def _stored(first_id: int, last_id: int, count: int) -> Mapping[str, str | int]:
    return {"first_id": ids.text(first_id), "last_id": ids.text(last_id), "count": count}
