"""Groups and consumers on the wire: making, changing, showing, removing them, and reading as one of them.

Knows: the shapes of api.md for groups and their consumers. Must never know: statuses, sockets, how a group is
kept.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from app import names
from app.errors import invalid
from app.http import members, query
from app.http.deliveries import delivered
from app.http.members import Members, capped
from app.wire.read import ReadLimits, gap_members
from engine import errors, ids
from engine.commands import Cursor, RemoveConsumer, XReadGroup
from engine.replies import ConsumerInfo, GroupInfo, Reply, StreamDeliveries

T = TypeVar("T", GroupInfo, ConsumerInfo)

_POLICY: Final = ("dead_letter", "ack_timeout_ms", "consumer_timeout_ms")
CREATE: Final = ("name", "start", "mkstream", "entries_read", *_POLICY)
ENSURE: Final = ("start", "mkstream", "entries_read", *_POLICY)
UPDATE: Final = ("last_delivered_id", "entries_read", *_POLICY)
READ: Final = ("count", "wait", "noack", "after", "claim_min_idle_ms")


_TRANSFER: Final = "transfer:"
_JSON_BOOLEANS: Final = {True: b"true", False: b"false"}
_START: Final = "it is '$', '0' or an ID"


# ---- groups


def _page(rows: Sequence[T], query_string: bytes, limit_max: int) -> tuple[Sequence[T], str | None]:
    """Rows by name after `after`, at most `limit`; and the name to go on after, None at the end."""
    given = query.parse(query_string, ("after", "limit"))
    limit = query.integer(given, "limit", least=1, most=limit_max, default=limit_max)
    after = given.get("after")
    rows = rows if after is None else [one for one in rows if one.name > after]
    page = rows[:limit]
    return page, page[-1].name if len(rows) > len(page) else None


# ---- consumers


def consumers(infos: Reply, query_string: bytes, limit_max: int) -> bytes:
    """A page of a group's consumers."""
    page, following = _page(_consumers(infos), query_string, limit_max)
    return msgspec.json.encode({"consumers": list(map(_consumer, page)), "next": following})


def consumer(infos: Reply, stream: str, group: str, name: str) -> bytes:
    """One consumer of a group. Raises `no_consumer`."""
    for info in _consumers(infos):
        if info.name == name:
            return msgspec.json.encode(_consumer(info))
    raise errors.no_consumer(stream, group, name)


def _consumers(infos: Reply) -> list[ConsumerInfo]:
    assert isinstance(infos, Sequence), "XINFO CONSUMERS answers a list"
    return [one for one in infos if isinstance(one, ConsumerInfo)]


def _consumer(info: ConsumerInfo) -> dict[str, object]:
    """`inactive_ms` is null before the first delivery."""
    return {
        "name": info.name,
        "pending": info.pending,
        "idle_ms": capped(info.idle_ms),
        "inactive_ms": None if info.inactive_ms < 0 else capped(info.inactive_ms),
    }


def remove_consumer(stream: str, group: str, consumer: str, query_string: bytes) -> RemoveConsumer:
    """DELETE …/consumers/{consumer}."""
    pending = query.parse(query_string, ("pending",)).get("pending", "refuse")
    if pending.startswith(_TRANSFER):
        heir = names.check_text(pending.removeprefix(_TRANSFER), "consumer name")
        if heir == consumer:
            raise invalid("pending", "the entries go to another consumer")
        return RemoveConsumer(stream=stream, group=group, consumer=consumer, transfer_to=heir)
    if pending not in ("refuse", "drop"):
        raise invalid("pending", "it is refuse, drop or transfer:<consumer>")
    return RemoveConsumer(stream=stream, group=group, consumer=consumer, drop=pending == "drop")


def removed_consumer(held: Reply) -> bytes:
    """How many pending entries it held."""
    assert isinstance(held, int), "removing a consumer answers a number"
    return b'{"pending":%d}' % held


# ---- reading


def read(
    stream: str, group: str, consumer: str, given: Members, limits: ReadLimits, wait_s: int | None
) -> XReadGroup:
    """POST …/consumers/{consumer}/read: new entries, or with `after` the consumer's own pending ones.

    `wait_s` is the preference.
    """
    count = members.integer(given, "count", least=1, most=limits.count_max, nullable=False)
    after = given.get("after")
    wait_ms = _wait_ms(given, None if "after" in given else wait_s, limits)
    noack = members.boolean(given, "noack")
    if "after" in given:
        # 0 and false ask for nothing: clients that always send them read what was delivered too.
        asked = {"wait": wait_ms, "noack": noack, "claim_min_idle_ms": "claim_min_idle_ms" in given}
        for name in (name for name, wanted in asked.items() if wanted):
            raise invalid(f"/{name}", "it does not go with `after`, a read of what was delivered already")
    return XReadGroup(
        group=group,
        consumer=consumer,
        streams=[(stream, members.entry_id(after, "/after") if "after" in given else Cursor.NEW)],
        count=limits.count_default if count is None else count,
        block_ms=wait_ms or None,
        noack=noack,
        claim_min_idle_ms=members.integer(given, "claim_min_idle_ms", least=0),
        bytes_max=limits.bytes_max,
    )


def _wait_ms(given: Members, wait_s: int | None, limits: ReadLimits) -> int | None:
    """The member wins over the preference."""
    wait_ms = members.integer(given, "wait", least=0, most=limits.wait_ms_max, nullable=False)
    if wait_ms is None and wait_s is not None:
        wait_ms = wait_s * 1000
        if wait_ms > limits.wait_ms_max:
            raise invalid("Prefer", f"wait is at most {limits.wait_ms_max // 1000} seconds")
    return wait_ms


def deliveries(found: StreamDeliveries) -> bytes:
    """What a read gave: new entries as they are stored, others with how often they were delivered."""
    plain = not found.history and all(one.idle_ms is None for one in found.entries)
    texts = [one.text or b"" for one in found.entries] if plain else list(map(delivered, found.entries))
    if found.history:
        after = found.entries[-1].id if found.entries else found.after
        where = b'"next":"%b"' % ids.text(after).encode()
    else:
        where = b'"last_delivered_id":"%b"' % ids.text(found.last_delivered_id).encode()
    gap = b',"gap":' + msgspec.json.encode(gap_members(found.gap)) if found.gap is not None else b""
    more = _JSON_BOOLEANS[found.more]
    return b'{"entries":[%b],%b,"more":%b%b}' % (b",".join(texts), where, more, gap)


def nothing_delivered(info: Reply, *, more: bool) -> bytes:
    """The answer of a read of new entries that found none; `info` is the group. `more` tells that a limit
    ended it.
    """
    assert isinstance(info, GroupInfo), "describing a group answers the group"
    last = ids.text(info.last_delivered_id).encode()
    return b'{"entries":[],"last_delivered_id":"%b","more":%b}' % (last, _JSON_BOOLEANS[more])


def no_history(after: int) -> bytes:
    """The answer of a read of history that had no room for any of it."""
    return b'{"entries":[],"next":"%b","more":true}' % ids.text(after).encode()
