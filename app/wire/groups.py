"""Groups on the wire: bodies of creating, reading and acknowledging → commands, and what these answer.

Knows: the shapes of api.md for groups. Must never know: statuses, sockets, how a group is kept.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from app import names
from app.errors import Refusal, invalid
from app.wire import strict
from app.wire.query import malformed_id
from app.wire.read import ReadLimits, gap_members
from app.wire.strict import Json, Number, Object
from engine import (
    Cursor,
    Deletions,
    Delivered,
    GroupInfo,
    Refs,
    Reply,
    StreamDeliveries,
    XAck,
    XAckDel,
    XGroupCreate,
    XReadGroup,
    ids,
)

# JavaScript's Number.MAX_SAFE_INTEGER: above it neighbouring integers become one.
integer_max: Final = (1 << 53) - 1

_RESULTS: Final = {1: "deleted", -1: "absent", 2: "kept"}


def members(body: bytes, known: Sequence[str], *, depth_max: int) -> dict[str, Json]:
    """The members of a small JSON object; an empty body has none. Unknown and repeated ones are 422."""
    if not body:
        return {}
    value = strict.parse(body, depth_max=depth_max)
    if not isinstance(value, Object):
        raise invalid("", "the body is a JSON object")
    twice = strict.repeated_name(value)
    if twice is not None:
        raise invalid(f"/{twice[:128]}", "the member stands twice")
    for name, _ in value:
        if name not in known:
            raise invalid(f"/{name[:128]}", f"unknown member; known: {', '.join(known)}")
    return dict(value)


def create(stream: str, given: dict[str, Json]) -> XGroupCreate:
    """POST …/groups."""
    name = given.get("name")
    if not isinstance(name, str) or isinstance(name, Number):
        raise invalid("/name", "the group's name, a string, is missing")
    start = given.get("start", "$")
    return XGroupCreate(
        stream=stream,
        group=names.checked_text(name, "group name"),
        start=Cursor.LATEST if start == "$" else _id(start, "/start", "it is '$', '0' or an ID"),
        mkstream=_boolean(given, "mkstream"),
        entries_read=_integer(given, "entries_read", least=0, most=integer_max),
    )


def read(stream: str, group: str, consumer: str, given: dict[str, Json], limits: ReadLimits) -> XReadGroup:
    """POST …/consumers/{consumer}/read: new entries, or with `after` the consumer's own pending ones."""
    count = _integer(given, "count", least=1, most=limits.count_max)
    wait_ms = _integer(given, "wait", least=0, most=limits.wait_ms_max)
    after = given.get("after")
    if after is not None:
        for name in ("wait", "noack", "claim_min_idle_ms"):
            if name in given:
                raise invalid(f"/{name}", "it does not go with `after`, a read of what was delivered already")
    return XReadGroup(
        group=group,
        consumer=consumer,
        streams=[(stream, Cursor.NEW if after is None else _id(after, "/after", "it is an ID"))],
        count=limits.count_default if count is None else count,
        block_ms=wait_ms or None,
        noack=_boolean(given, "noack"),
        claim_min_idle_ms=_integer(given, "claim_min_idle_ms", least=0, most=integer_max),
        bytes_max=limits.bytes_max,
    )


def acknowledge(
    stream: str, group: str, given: dict[str, Json], ids_max: int
) -> Sequence[XAck] | Sequence[XAckDel]:
    """POST …/ack: one command that tells what became of each ID, or one for each ID."""
    wanted = _ids(given.get("ids"), ids_max)
    if "delete" not in given:
        return [XAck(stream=stream, group=group, ids=(one,)) for one in wanted]
    delete = given["delete"]
    if not isinstance(delete, str) or delete not in _REFS:
        raise invalid("/delete", f"it is one of {', '.join(_REFS)}")
    return [XAckDel(stream=stream, group=group, ids=wanted, numids=len(wanted), refs=Refs(delete))]


_REFS: Final = [refs.value for refs in Refs]


def _ids(value: Json, ids_max: int) -> list[int]:
    if not isinstance(value, list) or isinstance(value, Object) or not value:
        raise invalid("/ids", "it is a list of at least one ID")
    if len(value) > ids_max:
        raise invalid("/ids", f"one request names at most {ids_max} IDs")
    return list(dict.fromkeys(_id(one, f"/ids/{place}", "it is an ID") for place, one in enumerate(value)))


def _id(value: Json, pointer: str, hint: str) -> int:
    if not isinstance(value, str) or isinstance(value, Number):
        raise invalid(pointer, hint)
    parsed = ids.parse(value)
    if parsed is None:
        raise malformed_id(pointer, hint)
    return parsed


def _integer(given: dict[str, Json], name: str, *, least: int, most: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    text = str(value) if isinstance(value, Number) else ""
    if not text.removeprefix("-").isdigit() or len(text) > 20 or not least <= int(text) <= most:
        raise invalid(f"/{name}", f"it is a whole number between {least} and {most}")
    return int(text)


def _boolean(given: dict[str, Json], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"/{name}", "it is true or false")
    return value


# ---- answers


def group(info: GroupInfo) -> bytes:
    """A group as every call shows it."""
    return msgspec.json.encode(
        {
            "name": info.name,
            "consumers": info.consumers,
            "pending": info.pending,
            "last_delivered_id": ids.text(info.last_delivered_id),
            "entries_read": _capped(info.entries_read),
            "lag": _capped(info.lag),
        }
    )


def deliveries(found: StreamDeliveries) -> bytes:
    """What a read gave: new entries as they are stored, others with how often they were delivered."""
    plain = not found.history and all(one.idle_ms is None for one in found.entries)
    texts = [one.text or b"" for one in found.entries] if plain else list(map(_delivered, found.entries))
    if found.history:
        after = found.entries[-1].id if found.entries else found.after
        where = b'"next":"%b"' % ids.text(after).encode()
    else:
        where = b'"last_delivered_id":"%b"' % ids.text(found.last_delivered_id).encode()
    gap = b',"gap":' + msgspec.json.encode(gap_members(found.gap)) if found.gap is not None else b""
    return b'{"entries":[%b],%b%b}' % (b",".join(texts), where, gap)


def nothing_delivered(infos: Reply, name: str) -> bytes:
    """The answer of a read of new entries that found none; `infos` are the stream's groups."""
    assert isinstance(infos, Sequence), "XINFO GROUPS answers a list"
    where = [info.last_delivered_id for info in infos if isinstance(info, GroupInfo) and info.name == name]
    return msgspec.json.encode({"entries": [], "last_delivered_id": ids.text(where[0]) if where else None})


def _delivered(one: Delivered) -> bytes:
    text = one.text if one.text is not None else b'{"id":"%b","fields":null}' % ids.text(one.id).encode()
    idle = b',"idle_ms":%d' % min(one.idle_ms, integer_max) if one.idle_ms is not None else b""
    return b'%b,"delivery_count":%d%b}' % (text[:-1], min(one.delivery_count, integer_max), idle)


def acknowledged(
    commands: Sequence[XAck] | Sequence[XAckDel], replies: Sequence[object]
) -> tuple[int, bytes]:
    """How many were pending, and the answer: what became of each ID."""
    results: dict[str, str] = {}
    for command, reply in zip(commands, replies, strict=True):
        assert isinstance(command, XAck | XAckDel), "these alone acknowledge"
        assert not isinstance(command.ids, Exception), "the doors made the IDs themselves"
        words = map(_RESULTS.__getitem__, reply.results) if isinstance(reply, Deletions) else [_word(reply)]
        results.update(zip(map(ids.text, command.ids), words, strict=True))
    count = sum(word != "absent" for word in results.values())
    return count, msgspec.json.encode({"acknowledged": count, "results": results})


def _word(reply: object) -> str:
    return "acknowledged" if reply == 1 else "absent"


def _capped(value: int | None) -> int | None:
    return None if value is None else min(value, integer_max)


def check_is_json(media_name: str) -> None:
    """These bodies are JSON; without a Content-Type they are taken for it."""
    if media_name not in ("", "application/json"):
        raise Refusal(
            "unsupported_media_type", "the body is JSON: say Content-Type: application/json (curl --json)"
        )
