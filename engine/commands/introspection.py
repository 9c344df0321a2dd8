"""XINFO: streams, groups and consumers as they are.

Knows: which numbers Redis shows, and Weir's own beside them (docs/semantics.md).
Must never know: in what shape they are shown. Changes nothing.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from engine import errors, ids
from engine.commands import types, weir_commands
from engine.commands.registry import runs
from engine.commands.retention import holder
from engine.commands.turn import Turn
from engine.groups import Group
from engine.keyspace import Key, Keyspace
from engine.lag import lag
from engine.parts import policy_of
from engine.parts.closing import Closed
from engine.parts.durable import DurableStream
from engine.parts.idempotence import idempotence_of
from engine.parts.keeping import Retention, kept_of
from engine.parts.schedules import StreamSchedules
from engine.pending_states import Consumer, PendingState
from engine.replies import (
    Archived,
    ConsumerDetail,
    ConsumerInfo,
    Edges,
    GroupCounts,
    GroupDetail,
    GroupInfo,
    GroupMeasure,
    Measured,
    StreamDetail,
    StreamInfo,
    StreamMeasure,
    StreamUse,
)
from engine.states import ACTIVE_MS_MAX, Ages, group_state, stream_state

# Streams that one turn looks at, and the number of groups behind which it looks at no more of them.
_COUNTED_STREAMS_MAX: Final = 1_000
_COUNTED_GROUPS_MAX: Final = 1_000


@runs(types.XInfoStream)
def xinfo_stream(turn: Turn, command: types.XInfoStream) -> StreamInfo:
    turn.key(command.stream)
    return stream_info(turn.keyspace, command.stream, turn.now_ms)


def stream_info(keyspace: Keyspace, name: str, now_ms: int) -> StreamInfo:
    """A stream as it is."""
    key = keyspace.keys[name]
    closed = Closed.of(key)
    stream, given, kept = key.stream, idempotence_of(key), kept_of(key)
    held_by, held_id = holder(key, now_ms)
    limits: dict[str, Any] = dict(zip(Retention._fields, kept.retention, strict=True))
    return StreamInfo(
        length=stream.length,
        nodes=stream.node_count,
        last_id=stream.last_id,
        max_deleted_id=stream.max_deleted_id,
        entries_added=stream.entries_added,
        first_id=stream.first_id,
        idmp_duration_s=given.duration_s,
        idmp_maxsize=given.maxsize,
        pids_tracked=len(given.producers),
        iids_tracked=given.keys_tracked,
        iids_added=given.added,
        iids_duplicates=given.duplicates,
        groups=len(key.groups),
        first_entry=stream.get(stream.first_id) if stream.length else None,
        last_entry=stream.get(stream.last_live_id) if stream.length else None,
        generation=key.generation,
        removed_upto=stream.removed_upto,
        **limits,
        archived_up_to=kept.archived_up_to,
        expires_at_ms=key.expires_at_ms,
        memory_bytes=stream.held_bytes(),
        closed_at_ms=None if closed is None else closed.at_ms,
        close_reason="" if closed is None else closed.reason,
        media=None if (durable := DurableStream.of(key)) is None else durable.media,
        forked_from=keyspace.forks.source_of(name),
        held_by=held_by,
        held_id=held_id,
        schedules=len(StreamSchedules.of(key) or ()),
        state=stream_state(
            is_closed=closed is not None,
            is_drained=closed is None or all(is_drained(key, group) for group in key.groups.values()),
        ),
    )


def expect(turn: Turn, name: str, expected: StreamInfo | None) -> None:
    """Check a precondition of a change. Raises `precondition_failed` unless the stream is exactly so."""
    if expected is not None and stream_info(turn.keyspace, name, turn.now_ms) != expected:
        raise errors.stream_changed()


@runs(weir_commands.Watch)
def watch(turn: Turn, command: weir_commands.Watch) -> int:
    return turn.keyspace.versions.watch(command.stream)


@runs(weir_commands.Unchanged)
def unchanged(turn: Turn, command: weir_commands.Unchanged) -> bool:
    return all(turn.keyspace.versions.has(stream, version) for stream, version in command.versions.items())


@runs(types.DescribeUse)
def describe_use(turn: Turn, command: types.DescribeUse) -> StreamUse | None:
    key = turn.keyspace.find(command.stream)
    if key is None:
        return None
    used_ms = max(key.used_ms, turn.keyspace.opened_ms)
    return StreamUse(key.footprint.bytes, max(0, turn.now_ms - used_ms))


@runs(weir_commands.DescribeEdges)
def describe_edges(turn: Turn, command: weir_commands.DescribeEdges) -> Edges | None:
    key = turn.keyspace.find(command.stream)
    if key is None:
        return None
    stream = key.stream
    return Edges(stream.first_id, stream.last_id, stream.removed_upto, key.generation)


@runs(weir_commands.DescribeArchived)
def describe_archived(turn: Turn, command: weir_commands.DescribeArchived) -> Archived | None:
    key = turn.keyspace.find(command.stream)
    if key is None:
        return None
    kept = kept_of(key)
    first, end = bisect_left(kept.deleted, command.low), bisect_right(kept.deleted, command.high)
    deleted = kept.deleted[first:end]
    return Archived(key.generation, key.stream.removed_upto, kept.archived_up_to, deleted)


@runs(weir_commands.MeasureStreams)
def measure_streams(turn: Turn, command: weir_commands.MeasureStreams) -> Measured:
    measures, left = [], command.groups_max
    for name in command.streams:
        key = turn.keyspace.find(name)
        if key is not None:
            groups = [_group_measure(turn, key, *row) for row in sorted(key.groups.items())[:left]]
            left -= len(groups)
            out = len(key.groups) - len(groups)
            measures.append(StreamMeasure(name, key.stream.length, key.stream.held_bytes(), groups, out))
    return Measured(measures)


@runs(weir_commands.CountGroups)
def count_groups(turn: Turn, command: weir_commands.CountGroups) -> GroupCounts:
    counts: Counter[str] = Counter()
    names = turn.keyspace.names(prefix="", after=command.after, limit=_COUNTED_STREAMS_MAX)
    for name in names:
        groups = turn.keyspace.keys[name].groups
        counts.update(state_of(turn, name, group_name, group) for group_name, group in groups.items())
        if counts.total() >= _COUNTED_GROUPS_MAX:
            return GroupCounts(counts, name)
    return GroupCounts(counts, names[-1] if len(names) == _COUNTED_STREAMS_MAX else None)


def _group_measure(turn: Turn, key: Key, name: str, group: Group) -> GroupMeasure:
    # In order of delivery, so the first is the oldest however many there are.
    _, oldest = next(group.owned_longest_first(), (0, None))
    return GroupMeasure(
        name,
        _lag(key, group),
        len(group.pending),
        0 if oldest is None else oldest.idle_ms(turn.now_ms),
        group.is_paused,
    )


@runs(types.XInfoGroups)
def xinfo_groups(turn: Turn, command: types.XInfoGroups) -> Sequence[GroupInfo]:
    key = turn.key(command.stream)
    return [group_info(turn, command.stream, name, group) for name, group in sorted(key.groups.items())]


def group_info(turn: Turn, stream: str, name: str, group: Group) -> GroupInfo:
    """A group as it is."""
    key = turn.keyspace.keys[stream]
    return GroupInfo(
        name=name,
        consumers=len(group.consumers),
        pending=len(group.pending),
        last_delivered_id=group.last_delivered_id,
        entries_read=group.entries_read,
        lag=_lag(key, group),
        passed_over=len(group.passed_over),
        **policy_of(group),
        state=state_of(turn, stream, name, group),
    )


def state_of(turn: Turn, stream: str, name: str, group: Group) -> str:
    """The state of a group in a word."""
    key = turn.keyspace.keys[stream]
    ages = Ages(*(_age_ms(turn, at_ms) for at_ms in (group.seen_ms, group.active_ms, group.failed_ms)))
    behind, pending = not has_read_all(key, group), len(group.pending)
    if (ages.seen is None or ages.seen >= ACTIVE_MS_MAX) and (behind or pending):
        # Who waits may have asked long ago.
        waits = any(reader[0] == name for reader in turn.keyspace.readers(stream))
        ages = ages._replace(seen=0 if waits else ages.seen)
    return group_state(
        ages,
        is_drained=Closed.of(key) is not None and is_drained(key, group),
        paused=group.is_paused,
        has_lag=behind,
        pending=pending,
    )


def _age_ms(turn: Turn, at_ms: int) -> int | None:
    return None if at_ms < 0 else max(0, turn.now_ms - at_ms)


def is_drained(key: Key, group: Group) -> bool:
    """Whether a group has read and acknowledged all that there is."""
    return not group.pending and has_read_all(key, group)


def has_read_all(key: Key, group: Group) -> bool:
    """Whether nothing is left to be delivered."""
    return group.last_delivered_id >= key.stream.last_live_id and not group.passed_over


def _lag(key: Key, group: Group) -> int | None:
    """What was passed over is still to be delivered."""
    unread = lag(key.stream, group.last_delivered_id, group.entries_read)
    return None if unread is None else unread + len(group.passed_over)


@runs(types.XInfoConsumers)
def xinfo_consumers(turn: Turn, command: types.XInfoConsumers) -> Sequence[ConsumerInfo]:
    key = turn.key(command.stream)
    group = key.groups.get(command.group)
    if group is None:
        raise errors.no_group_for_key(command.stream, command.group)
    return [_consumer_info(turn, consumer) for _, consumer in sorted(group.consumers.items())]


def _consumer_info(turn: Turn, consumer: Consumer) -> ConsumerInfo:
    active_ms = consumer.active_time_ms
    return ConsumerInfo(
        name=consumer.name,
        pending=len(consumer.pending),
        idle_ms=max(0, turn.now_ms - consumer.seen_time_ms),
        inactive_ms=max(0, turn.now_ms - active_ms) if active_ms >= 0 else -1,
    )


@runs(types.XInfoStreamFull)
def xinfo_stream_full(turn: Turn, command: types.XInfoStreamFull) -> StreamDetail:
    key = turn.key(command.stream)
    return StreamDetail(
        stream=stream_info(turn.keyspace, command.stream, turn.now_ms),
        entries=key.stream.range(0, ids.ID_MAX, count=command.count, bytes_max=command.bytes_max),
        groups=[
            _group_detail(turn, command.stream, name, group, command.count)
            for name, group in sorted(key.groups.items())
        ],
    )


def _group_detail(turn: Turn, stream: str, name: str, group: Group, count: int | None) -> GroupDetail:
    return GroupDetail(
        group=group_info(turn, stream, name, group),
        nacked_count=group.released_count(),
        pending=[
            (
                entry_id,
                state.consumer.name if state.consumer else None,
                state.delivery_time_ms,
                state.delivery_count,
            )
            for entry_id, state in islice(group.pending.items(), count)
        ],
        consumers=[
            _consumer_detail(group, consumer, count) for _, consumer in sorted(group.consumers.items())
        ],
    )


def _consumer_detail(group: Group, consumer: Consumer, count: int | None) -> ConsumerDetail:
    rows = [
        (entry_id, _known(group.pending.get(entry_id)))
        for entry_id, _ in islice(consumer.pending.items(), count)
    ]
    return ConsumerDetail(
        name=consumer.name,
        seen_time_ms=consumer.seen_time_ms,
        active_time_ms=consumer.active_time_ms,
        pending_count=len(consumer.pending),
        pending=[(entry_id, state.delivery_time_ms, state.delivery_count) for entry_id, state in rows],
    )


def _known(pending: PendingState | None) -> PendingState:
    assert pending is not None, "what a consumer holds is pending in its group"
    return pending
