"""Claims on the wire: who takes over which pending entries, and entries as a consumer gets them.

Knows: the bodies of claim and autoclaim, the form of a delivered entry.
Must never know: statuses, sockets, when an entry is idle.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from app.errors import invalid
from app.http import members
from app.http.members import Members, integer_max
from app.wire.read import ReadLimits
from engine import ids
from engine.commands import Claim, XAutoClaim, XClaim
from engine.replies import AutoClaimed, Claimed, Delivered

CLAIM: Final = (
    *("consumer", "min_idle_ms", "ids", "idle_ms", "time_ms"),
    *("retry_count", "force", "just_ids", "last_id"),
)
AUTOCLAIM: Final = ("consumer", "min_idle_ms", "start", "count", "just_ids")


def claim(stream: str, group: str, given: Members, lookups_max: int, bytes_max: int) -> XClaim:
    """POST …/claim."""
    if given.get("idle_ms") is not None and given.get("time_ms") is not None:
        raise invalid("/idle_ms", "it does not go with time_ms")
    last_id = given.get("last_id")
    return XClaim(
        stream=stream,
        group=group,
        consumer=members.name_of(given, "consumer", "consumer name"),
        claim=Claim(
            ids=members.entry_ids(given, lookups_max),
            min_idle_ms=_min_idle_ms(given),
            idle_ms=members.integer(given, "idle_ms", least=0),
            time_ms=members.integer(given, "time_ms", least=0),
            retry_count=members.integer(given, "retry_count", least=0),
            force=members.boolean(given, "force"),
            just_ids=members.boolean(given, "just_ids"),
            last_id=None if last_id is None else members.entry_id(last_id, "/last_id"),
        ),
        bytes_max=bytes_max,
    )


def autoclaim(stream: str, group: str, given: Members, limits: ReadLimits) -> XAutoClaim:
    """POST …/autoclaim."""
    count = members.integer(given, "count", least=1, most=limits.count_max, nullable=False)
    start = given.get("start", "-")
    return XAutoClaim(
        stream=stream,
        group=group,
        consumer=members.name_of(given, "consumer", "consumer name"),
        min_idle_ms=_min_idle_ms(given),
        start=0 if start == "-" else members.entry_id(start, "/start"),
        count=limits.count_default if count is None else count,
        just_ids=members.boolean(given, "just_ids"),
        bytes_max=limits.bytes_max,
    )


def _min_idle_ms(given: Members) -> int:
    """It has to be there: a default would either take work from those who do it or take nothing."""
    value = members.integer(given, "min_idle_ms", least=0)
    if value is None:
        raise invalid("/min_idle_ms", "how long an entry has to be idle, in milliseconds, is missing")
    return value


# ---- answers


def claimed(reply: Claimed, *, just_ids: bool) -> bytes:
    """What a claim got, and whether it stopped before the last ID."""
    more = json_boolean(value=reply.more)
    return b'{%b,"more":%b}' % (_taken(reply.entries, just_ids=just_ids), more)


def autoclaimed(reply: AutoClaimed, *, just_ids: bool) -> bytes:
    """The same of an autoclaim, and where to go on: `0-0` is the end."""
    deleted = msgspec.json.encode([ids.text(one) for one in reply.deleted_ids])
    return b'{"next_start":"%b",%b,"deleted_ids":%b}' % (
        ids.text(reply.next_start).encode(),
        _taken(reply.entries, just_ids=just_ids),
        deleted,
    )


def json_boolean(*, value: bool) -> bytes:
    """A boolean as JSON text."""
    return b"true" if value else b"false"


def _taken(entries: Sequence[Delivered], *, just_ids: bool) -> bytes:
    if just_ids:
        return b'"ids":' + msgspec.json.encode([ids.text(one.id) for one in entries])
    return b'"entries":[%b]' % b",".join(map(delivered, entries))


def delivered(one: Delivered) -> bytes:
    """An entry with how often it was delivered, this time included, and, where it was taken over, for how
    long it had been idle. `fields` is null where the entry is gone from the stream.
    """
    text = one.text if one.text is not None else b'{"id":"%b","fields":null}' % ids.text(one.id).encode()
    idle = b',"idle_ms":%d' % min(one.idle_ms, integer_max) if one.idle_ms is not None else b""
    return b'%b,"delivery_count":%d%b}' % (text[:-1], min(one.delivery_count, integer_max), idle)
