"""Pending entries on the wire: looking at them, acknowledging, giving back, moving them to dead letters.

Knows: the shapes of api.md for what was delivered and is not done. Must never know: statuses, sockets.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from app import names
from app.errors import invalid
from app.http import members, query
from app.http.members import Members, capped
from app.wire.read import ReadLimits
from engine import ids
from engine.commands import BuryEntries, Nack, NackMode, Refs, XAck, XAckDel, XNack, XPending, XPendingRange
from engine.replies import Buried, Deletions, PendingEntry, PendingList, PendingSummary, Reply

ACK: Final = ("ids", "delete")
NACK: Final = ("ids", "mode", "retry_count", "force")
BURY: Final = ("ids", "reason")
PARAMETERS: Final = ("start", "end", "count", "consumer", "min_idle_ms")

reason_chars_max: Final = 1_000
_reason_default: Final = "by hand"
_RESULTS: Final = {1: "deleted", -1: "absent", 2: "kept"}
_REFS: Final = [refs.value for refs in Refs]
_MODES: Final = [mode.value for mode in NackMode]


# ---- looking


def look(stream: str, group: str, query_string: bytes, limits: ReadLimits) -> XPending | XPendingRange:
    """GET …/pending: the summary, or with any parameter the list."""
    given = query.parse(query_string, PARAMETERS)
    if not given:
        return XPending(stream=stream, group=group)
    count = query.integer(given, "count", least=1, most=limits.count_max, default=limits.count_default)
    min_idle_ms = query.integer(given, "min_idle_ms", least=0, most=members.integer_max, default=0)
    assert count is not None, "it has a default"
    assert min_idle_ms is not None, "it has a default"
    return XPendingRange(
        stream=stream,
        group=group,
        start=query.bound(given.get("start", "-"), "start", upper=False),
        end=query.bound(given.get("end", "+"), "end", upper=True),
        count=count,
        consumer=names.checked_text(given["consumer"], "consumer name") if "consumer" in given else None,
        min_idle_ms=min_idle_ms,
    )


def seen(command: XPending | XPendingRange, reply: Reply) -> bytes:
    """The answer to `look`."""
    if isinstance(command, XPendingRange):
        assert isinstance(reply, PendingList), "XPENDING with a range answers a list"
        return _list(reply, max(command.start - 1, ids.ID_MIN))
    assert isinstance(reply, PendingSummary), "XPENDING answers a summary"
    return _summary(reply)


def _summary(reply: PendingSummary) -> bytes:
    return msgspec.json.encode(
        {
            "count": reply.count,
            "first_id": ids.text(reply.first_id) if reply.count else None,
            "last_id": ids.text(reply.last_id) if reply.count else None,
            "consumers": [{"name": name, "count": count} for name, count in reply.consumers],
        }
    )


def _list(reply: PendingList, before: int) -> bytes:
    following = reply.entries[-1].id if reply.entries else before
    return msgspec.json.encode(
        {
            "pending": list(map(_pending, reply.entries)),
            "next": ids.text(following),
            "more": reply.more,
        }
    )


def _pending(one: PendingEntry) -> dict[str, str | int | None]:
    """Nobody's entries have no consumer, and no time since when they are."""
    return {
        "id": ids.text(one.id),
        "consumer": one.consumer,
        "idle_ms": None if one.consumer is None else capped(one.idle_ms),
        "delivery_count": capped(one.delivery_count),
    }


# ---- acknowledging


def acknowledge(
    stream: str, group: str, given: Members, *, ids_max: int, lookups_max: int
) -> Sequence[XAck] | Sequence[XAckDel]:
    """POST …/ack: one command that tells what became of each ID, or one for each ID."""
    deleting = given.get("delete") is not None
    wanted = members.entry_ids(given, lookups_max if deleting else ids_max)
    if not deleting:
        return [XAck(stream=stream, group=group, ids=(one,)) for one in wanted]
    refs = Refs(members.word(given, "delete", _REFS))
    return [XAckDel(stream=stream, group=group, ids=wanted, refs=refs)]


def acknowledged(
    commands: Sequence[XAck] | Sequence[XAckDel], replies: Sequence[object]
) -> tuple[int, bytes]:
    """How many were pending, and the answer: what became of each ID."""
    results: dict[str, str] = {}
    for command, reply in zip(commands, replies, strict=True):
        assert isinstance(command, XAck | XAckDel), "these alone acknowledge"
        words = map(_RESULTS.__getitem__, reply.results) if isinstance(reply, Deletions) else [_word(reply)]
        results.update(zip(map(ids.text, command.ids), words, strict=True))
    count = sum(word != "absent" for word in results.values())
    return count, msgspec.json.encode({"acknowledged": count, "results": results})


def _word(reply: object) -> str:
    return "acknowledged" if reply == 1 else "absent"


# ---- giving back


def give_back(stream: str, group: str, given: Members, lookups_max: int) -> Sequence[XNack]:
    """POST …/nack: one command for each ID, so that each has its result."""
    mode = NackMode(members.word(given, "mode", _MODES))
    retry_count = members.integer(given, "retry_count", least=0)
    force = members.boolean(given, "force")
    nacks = [
        Nack(ids=(one,), mode=mode, retry_count=retry_count, force=force)
        for one in members.entry_ids(given, lookups_max)
    ]
    return [XNack(stream=stream, group=group, nack=nack) for nack in nacks]


def given_back(commands: Sequence[XNack], replies: Sequence[Reply]) -> bytes:
    """How many are nobody's now, and what became of each ID."""
    results: dict[str, str] = {}
    for command, reply in zip(commands, replies, strict=True):
        results[ids.text(command.nack.ids[0])] = "released" if reply == 1 else "absent"
    count = sum(word == "released" for word in results.values())
    return msgspec.json.encode({"released": count, "results": results})


# ---- dead letters


def bury(stream: str, group: str, given: Members, ids_max: int) -> BuryEntries:
    """POST …/dead-letter."""
    wanted, reason = members.entry_ids(given, ids_max), _reason_default
    if "reason" in given:
        reason = members.text(given, "reason", "it is a string")
    if len(reason) > reason_chars_max:
        raise invalid("/reason", f"it has at most {reason_chars_max} characters")
    return BuryEntries(stream=stream, group=group, ids=wanted, reason=reason)


def buried(reply: Reply) -> bytes:
    """Where the entries are now, and which they were."""
    assert isinstance(reply, Buried), "burying answers what was buried"
    return msgspec.json.encode({"stream": reply.stream, "ids": list(map(ids.text, reply.ids))})
