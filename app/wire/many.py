"""Many streams at once: bodies → XREAD, XREADGROUP and Publish, and what they answer.

Knows: the shapes of api.md for both. Must never know: statuses, sockets, where a stream is kept.
"""

from collections.abc import Mapping, Sequence

import msgspec

from app import names
from app.errors import invalid
from app.http import entry_bodies
from app.http.entry_bodies import EntryLimits
from engine import ids
from engine.commands import Chunk, IdempotencyKey, Publish, XAdd
from engine.replies import Published, Reply, Republished


def _check_names(found: Sequence[str], streams_max: int) -> None:
    if len(found) > streams_max:
        raise invalid("/streams", f"one request names at most {streams_max} streams")
    for name in found:
        names.check_text(name, "stream name")


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
