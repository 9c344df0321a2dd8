"""Trimming: bodies → XTRIM, and what it answers.

Knows: the shapes of api.md for it. Must never know: statuses, sockets, what becomes of an entry's memory.
"""

from typing import Final

import msgspec

from app.errors import invalid
from app.http import members
from app.http.members import Members
from engine import ids
from engine.commands import Refs, Trim, XTrim
from engine.replies import Reply, Trimmed

TRIM: Final = ("maxlen", "minid", "older_than_ms", "approx", "limit", "refs", "dry_run", "guard")

_WAYS: Final = TRIM[:3]
_REFS: Final = tuple(refs.value for refs in Refs)


def trim(stream: str, given: Members) -> XTrim:
    """POST …/trim: exact unless told otherwise."""
    ways = [name for name in _WAYS if name in given]
    if len(ways) != 1:
        pointer = f"/{ways[1]}" if ways else ""
        raise invalid(pointer, f"a trim has one of {', '.join(_WAYS)}")
    approx = members.boolean(given, "approx")
    limit = members.integer(given, "limit", least=0)
    if limit is not None and not approx:
        raise invalid("/limit", "it goes with approximate trimming")
    (way,) = ways
    upto = given[way]
    if upto is None:
        raise invalid(f"/{way}", "it is not null")
    wanted = Trim(
        maxlen=members.integer(given, "maxlen", least=0),
        minid=members.entry_id(upto, "/minid") if way == "minid" else None,
        older_than_ms=members.integer(given, "older_than_ms", least=0),
        approx=approx,
        limit=limit,
        refs=_refs(given),
        count_pending=True,
    )
    dry_run, guard = members.boolean(given, "dry_run"), members.boolean(given, "guard")
    return XTrim(stream=stream, trim=wanted, dry_run=dry_run, guard=guard)


def _refs(given: Members) -> Refs:
    return Refs(members.word(given, "refs", _REFS)) if "refs" in given else Refs.KEEP


def trimmed(reply: Reply) -> bytes:
    """What a trim removed, or would remove."""
    assert isinstance(reply, Trimmed), "XTRIM tells what went"
    return msgspec.json.encode(
        {
            "deleted": reply.deleted,
            "first_id": ids.text(reply.first_id),
            "pending_affected": reply.pending_affected,
        }
    )
