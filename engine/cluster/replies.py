"""Replies of a server as those of the engine.

Knows: the shapes of RESP3, as Redis 7.0 and Valkey 9.1 give them. Must never know: commands' words.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from engine import entries, ids
from engine.cluster.ends import end_from
from engine.cluster.kept import Fields, policy_of, retention_from
from engine.cluster.stored import text_of
from engine.commands.group_reading import DELIVERY_COUNT_MAX
from engine.errors import NO_GROUP
from engine.generations import Generations, Identity, gap_of
from engine.replies import (
    ConsumerDetail,
    ConsumerInfo,
    Delivered,
    Edges,
    Entries,
    Gap,
    GroupDetail,
    GroupInfo,
    PendingEntry,
    PendingList,
    PendingSummary,
    StreamDetail,
    StreamInfo,
)
from engine.states import Ages, group_state, stream_state

# The owners of released entries, and of those that come back later: consumers that no client reads as.
RELEASED: Final = "weir:released"
DEFERRED: Final = "weir:deferred"
NO_CONSUMERS: Final = {RELEASED, DEFERRED}

Row = tuple[bytes, Sequence[bytes] | None]
parse: Final = ids.parse_canonical
# How streams ended is not known of a server.
_NO_GENERATIONS: Final = Generations()


def name_of(word: bytes) -> str:
    """A name that another program may have chosen."""
    return word.decode(errors="replace")


def owner_of(word: bytes) -> str | None:
    """The consumer that holds an entry, None where that is one of Weir's own."""
    name = name_of(word)
    return None if name in NO_CONSUMERS else name


# --- entries


def texts_of(rows: Iterable[Row]) -> list[bytes]:
    """The stored forms of entries."""
    return [text_of(entry_id, words) for entry_id, words in rows if words is not None]


def entries_of(rows: Sequence[Row], count: int | None, bytes_max: int | None) -> Entries:
    """A run of entries, at most `count` of them and `bytes_max` bytes; one entry is always given."""
    given = rows if count is None else rows[:count]
    texts = texts_of(given)
    if bytes_max is not None:
        size = 0
        for place, text in enumerate(texts):
            size += len(text)
            if place and size > bytes_max:
                del texts[place:]
                break
    if not texts:
        return Entries(more=bool(rows))
    more = len(texts) < len(rows)
    return Entries(texts, len(texts), entries.id_of(texts[0]), entries.id_of(texts[-1]), more)


def claimed_of(rows: Sequence[Any], *, just_ids: bool) -> Sequence[Delivered]:
    """What a claim gave. The server does not say how often these were delivered before."""
    if just_ids:
        return [Delivered(parse(entry_id), None, 0) for entry_id in rows]
    given = (row for row in rows if row is not None and row[1] is not None)
    return [Delivered(parse(entry_id), text_of(entry_id, words), 1) for entry_id, words in given]


class BackendPending(NamedTuple):
    """One row of XPENDING; the consumer of a released entry is empty."""

    consumer: str
    idle_ms: int
    deliveries: int


def deliveries_of(number: int) -> int:
    """How many deliveries a script says: to it, the highest number is the lowest."""
    return min(abs(number), DELIVERY_COUNT_MAX)


_NOT_PENDING: Final = BackendPending("", 0, 0)


def with_counts(
    given: Sequence[Delivered], before: Mapping[int, BackendPending], after: Mapping[int, BackendPending]
) -> list[Delivered]:
    """The same, with how they were pending before and are now."""
    deliveries = []
    for entry in given:
        was, now = before.get(entry.id, _NOT_PENDING), after.get(entry.id, _NOT_PENDING)
        released = entry.id in before and not was.consumer
        deliveries.append(
            Delivered(entry.id, entry.text, now.deliveries, was.idle_ms, was.deliveries, released)
        )
    return deliveries


# --- what is pending


def pending_summary(reply: Sequence[Any]) -> PendingSummary:
    """XPENDING."""
    count, first, last, rows = reply
    if not count:
        return PendingSummary(0, 0, 0, [])
    owned = sorted((owner, int(held)) for name, held in rows if (owner := owner_of(name)) is not None)
    return PendingSummary(count, parse(first), parse(last), owned)


def pending_list(rows: Sequence[Any], deferred: Mapping[int, int], count: int) -> PendingList:
    """XPENDING with a range, of which one more than `count` was asked for; `deferred` says when some come
    back.
    """
    pending = [
        PendingEntry(entry_id, None, -1, deliveries, deferred.get(entry_id))
        if (owner := owner_of(consumer)) is None
        else PendingEntry(entry_id, owner, idle_ms, deliveries)
        for word, consumer, idle_ms, deliveries in rows[:count]
        for entry_id in [parse(word)]
    ]
    return PendingList(pending, more=len(rows) > count)


# --- positions


def gap_at(cursor: int, known: str, edges: Edges | None) -> Gap | None:
    """The gap of a position that is not of this stream, see `generations.gap_of`."""
    there = None
    if edges is not None:
        there = Identity(edges.generation, edges.first_id, edges.last_id, edges.last_id > 0)
    return gap_of(cursor, known, there, _NO_GENERATIONS)


# --- XINFO


# What a server does not count.
_NO_PRODUCERS: Final = [one for one in StreamInfo.__struct_fields__ if one[:4] in {"idmp", "pids", "iids"}]


def stream_info(
    info: Mapping[bytes, Any],
    edges: Edges,
    expires_at_ms: int,
    memory_bytes: int,
    kept: Sequence[bytes | None],
    schedules: int,
    of_groups: Sequence[Any],
) -> StreamInfo:
    """XINFO STREAM, and what it does not say: `kept` are the fields `RETENTION`, `CLOSED`,
    `DURABLE` and `HAD_GROUP`.
    """
    *retention, mark, media, source, had_group = kept
    groups = info[b"groups"] if isinstance(info[b"groups"], int) else len(info[b"groups"])
    is_ending, holder, held_id = of_groups
    limits = retention_from(retention) | dict.fromkeys(_NO_PRODUCERS, 0)
    is_kept_whole = limits["keep_unacknowledged"] and not groups and had_group is None
    end = end_from("", mark, edges.last_id)
    first, last = info.get(b"first-entry"), info.get(b"last-entry")
    return StreamInfo(
        length=info[b"length"],
        nodes=info[b"radix-tree-nodes"],
        last_id=edges.last_id,
        max_deleted_id=parse(info[b"max-deleted-entry-id"]),
        entries_added=info[b"entries-added"],
        first_id=edges.first_id,
        groups=groups,
        first_entry=None if first is None else text_of(*first),
        last_entry=None if last is None else text_of(*last),
        generation=edges.generation,
        removed_upto=edges.removed_upto,
        expires_at_ms=expires_at_ms if expires_at_ms > 0 else None,
        memory_bytes=memory_bytes,
        **limits,
        closed_at_ms=None if end is None else end.closed_at_ms,
        close_reason="" if end is None else end.reason,
        media=None if media is None else media.decode(),
        forked_from=None if source is None else source.decode(),
        held_by=NO_GROUP if is_kept_whole else name_of(holder),
        held_id=parse(held_id) if held_id else 0,
        schedules=schedules,
        state=stream_state(is_closed=end is not None, is_drained=not is_ending),
    )


class GroupSigns(NamedTuple):
    """What XINFO GROUPS does not say: how many of the consumers are Weir's own; how many ms ago one of the
    others asked, one was given something, and an entry failed, -1 for never; whether there are unread
    entries; whether the stream is closed.
    """

    hidden: int
    seen: int
    active: int
    failed: int
    has_lag: int
    is_closed: int


def group_info(row: Mapping[bytes, Any], kept: Fields, signs: GroupSigns | None = None) -> GroupInfo:
    """One row of XINFO GROUPS. `kept` are the stream's metadata. Without signs its state is not known."""
    consumers, name = row[b"consumers"], name_of(row[b"name"])
    policy, hidden, state = policy_of(kept, name), 0, ""
    if signs is not None:
        pending = row[b"pel-count"] if b"pel-count" in row else row[b"pending"]
        hidden = signs.hidden
        state = group_state(
            Ages(*(None if age < 0 else age for age in signs[1:4])),
            is_drained=bool(signs.is_closed) and not signs.has_lag and not pending,
            paused=policy["paused"],
            has_lag=bool(signs.has_lag),
            pending=pending,
        )
    return GroupInfo(
        name=name,
        consumers=consumers - hidden if isinstance(consumers, int) else len(_shown(consumers)),
        # In full, `pending` is the list.
        pending=row[b"pel-count"] if b"pel-count" in row else row[b"pending"],
        last_delivered_id=parse(row[b"last-delivered-id"]),
        entries_read=row.get(b"entries-read"),
        lag=row.get(b"lag"),
        **policy,
        state=state,
    )


def group_infos(
    rows: Sequence[Mapping[bytes, Any]], kept: Fields, signs: Sequence[Sequence[int]] | None = None
) -> list[GroupInfo]:
    """XINFO GROUPS, by name; `signs` are those of each."""
    known = [None] * len(rows) if signs is None else [GroupSigns(*one) for one in signs]
    groups = (group_info(row, kept, one) for row, one in zip(rows, known, strict=True))
    return sorted(groups, key=lambda group: group.name)


def _shown(consumers: Sequence[Mapping[bytes, Any]]) -> list[Mapping[bytes, Any]]:
    return [row for row in consumers if name_of(row[b"name"]) not in NO_CONSUMERS]


def consumer_infos(rows: Sequence[Mapping[bytes, Any]]) -> list[ConsumerInfo]:
    """XINFO CONSUMERS, by name. Redis 7.0 does not say when a consumer was last given an entry."""
    consumers = [
        ConsumerInfo(name_of(row[b"name"]), row[b"pending"], row[b"idle"], row.get(b"inactive", -1))
        for row in _shown(rows)
    ]
    return sorted(consumers, key=lambda consumer: consumer.name)


def stream_detail(
    info: Mapping[bytes, Any], described: StreamInfo, kept: Fields, signs: Sequence[Sequence[int]]
) -> StreamDetail:
    """XINFO STREAM FULL."""
    groups = sorted(
        (_group_detail(row, kept, GroupSigns(*one)) for row, one in zip(info[b"groups"], signs, strict=True)),
        key=lambda detail: detail.group.name,
    )
    return StreamDetail(described, entries_of(info[b"entries"], None, None), groups)


def _group_detail(row: Mapping[bytes, Any], kept: Fields, signs: GroupSigns) -> GroupDetail:
    pending = [
        (parse(entry_id), owner_of(consumer), time_ms, deliveries)
        for entry_id, consumer, time_ms, deliveries in row[b"pending"]
    ]
    consumers = [
        ConsumerDetail(
            name_of(consumer[b"name"]),
            consumer[b"seen-time"],
            consumer.get(b"active-time", consumer[b"seen-time"]),
            consumer[b"pel-count"],
            [
                (parse(entry_id), time_ms, deliveries)
                for entry_id, time_ms, deliveries in consumer[b"pending"]
            ],
        )
        for consumer in row[b"consumers"]
    ]
    released = sum(consumer.pending_count for consumer in consumers if consumer.name in NO_CONSUMERS)
    return GroupDetail(
        group_info(row, kept, signs),
        released,
        pending,
        [consumer for consumer in consumers if consumer.name not in NO_CONSUMERS],
    )
