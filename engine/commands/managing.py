"""Weir's own commands: retention, policies, dead letters by hand, many streams at once, and values that the
gateway keeps beside the streams, as durable as entries and in every backup.

Knows: what is refused, and which records follow; how much those values may take, not what they mean.
Must never know: wire formats.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from engine import errors, ids
from engine.commands import types, weir_commands
from engine.commands.dead_letters import Dead, fit_letters, move_to_dead_letters, refuse_letters
from engine.commands.entries import PreparedEntries, prepare, store
from engine.commands.expiring import expiry_of
from engine.commands.grouping import clamped, drop_consumer, existing_group, forget_passed, start_of
from engine.commands.introspection import expect, group_info, stream_info
from engine.commands.keys import unexpired_names
from engine.commands.ordering import check_order
from engine.commands.registry import Steps, runs
from engine.commands.turn import Turn, Unfinished
from engine.dedup import EPOCH_BYTES_MAX, EPOCH_CHUNKS_MAX, PUBLISHED
from engine.groups import Group
from engine.keyspace import Key
from engine.parts import POLICY_DEFAULT, policy_changes, policy_of
from engine.parts.keeping import Describe, Retention, kept_of
from engine.parts.redelivery import redelivery_of
from engine.pending_states import not_held_by
from engine.records import changes
from engine.replies import (
    Added,
    DeadLettered,
    GroupInfo,
    MetadataPage,
    Published,
    Republished,
    StoredRun,
    StreamInfo,
    StreamPage,
)

# Streams described in one page: each takes up to 10 µs.
_INFOS_MAX: Final = 1_000
# The bytes of the first and last entries that they bring.
INFOS_BYTES_MAX: Final = 8 << 20
# What a publication into many streams may take, as estimated: it is one turn. There is room for 1,000 streams
# with 10,000 entries, and for 1,500 with an entry each.
PUBLISH_WORK_US_MAX: Final = 18_000
# Pending entries that one turn transfers: up to 15 µs each.
TRANSFERRED_MAX: Final = 500
# Names and values together: a rewrite writes all of them in one go.
METADATA_BYTES_MAX: Final = 4 << 20


@runs(weir_commands.EnsureStream)
def ensure_stream(turn: Turn, command: weir_commands.EnsureStream) -> bool:
    key = turn.keyspace.find(command.stream)
    created, lifetime = key is None, _record_of(turn, command.stream, command.lifetime)
    key = key or turn.create_stream(command.stream)
    _describe(turn, command.stream, key, command.retention, kept_of(key).archived_up_to)
    _set_lifetime(turn, key, lifetime)
    return created


@runs(weir_commands.UpdateStream)
def update_stream(turn: Turn, command: weir_commands.UpdateStream) -> Steps[bool]:
    key = turn.key(command.stream)
    expect(turn, command.stream, command.expected)
    lifetime = _record_of(turn, command.stream, command.lifetime)
    yield
    kept = kept_of(key)
    archived_up_to = kept.archived_up_to if command.archived_up_to is None else command.archived_up_to
    _describe(turn, command.stream, key, kept.retention._replace(**command.retention), archived_up_to)
    _set_lifetime(turn, key, lifetime)
    return True


def _record_of(
    turn: Turn, stream: str, wanted: weir_commands.NewLifetime | None
) -> changes.SetLifetime | None:
    """The change of the lifetime. Raises `invalid` for a time that is over, or too far away."""
    if wanted is None or wanted.ms is None:
        return None if wanted is None else changes.SetLifetime(stream, None)
    at_ms = expiry_of(turn, wanted.ms, relative=wanted.relative, command="pexpireat")
    if at_ms <= turn.now_ms:
        raise errors.lifetime_over()
    return changes.SetLifetime(stream, at_ms)


def _set_lifetime(turn: Turn, key: Key, lifetime: changes.SetLifetime | None) -> None:
    if lifetime is not None and lifetime.expires_at_ms != key.expires_at_ms:
        turn.emit(lifetime)


def _describe(turn: Turn, stream: str, key: Key, retention: Retention, archived_up_to: int) -> None:
    kept = kept_of(key)
    if (retention, archived_up_to) != (kept.retention, kept.archived_up_to):
        turn.emit(Describe(stream, *retention, archived_up_to))


@runs(weir_commands.StreamInfos)
def stream_infos(turn: Turn, command: weir_commands.StreamInfos) -> StreamPage:
    most = min(command.limit, _INFOS_MAX)
    names = unexpired_names(turn, command.prefix, command.after, most + 1)
    page: list[tuple[str, StreamInfo]] = []
    size = 0
    for name in names[:most]:
        info = stream_info(turn.keyspace, name, turn.now_ms)
        size += info.entries_bytes
        if page and size > INFOS_BYTES_MAX:
            break
        page.append((name, info))
    return StreamPage(page, page[-1][0] if len(names) > len(page) else None)


# --- groups ---------------------------------------------------------------------------------------------


@runs(weir_commands.EnsureGroup)
def ensure_group(turn: Turn, command: weir_commands.EnsureGroup) -> bool:
    key = turn.keyspace.find(command.stream)
    if key is None and not command.mkstream:
        raise errors.key_required(command.stream)
    if key is not None and command.group in key.groups:
        return False
    check_order(None, POLICY_DEFAULT, command.policy)
    key = key or turn.create_stream(command.stream)
    start, entries_read = start_of(key, command.start), clamped(key, command.entries_read)
    turn.create_group(command.stream, command.group, start, entries_read)
    _set_policy(turn, command.stream, command.group, command.policy)
    return True


@runs(weir_commands.UpdateGroup)
def update_group(turn: Turn, command: weir_commands.UpdateGroup) -> bool:
    key, group = existing_group(turn, command.stream, command.group)
    check_order(group, policy_of(group), command.policy)
    if command.start is not None:
        start, entries_read = start_of(key, command.start), clamped(key, command.entries_read)
        forget_passed(turn, command.stream, command.group)
        turn.move_group(command.stream, command.group, start, entries_read)
        # XGROUP SETID wakes no reader. A consumer that stays connected would wait for the next entry.
        turn.signal(command.stream)
    elif command.entries_read is not None:
        known = clamped(key, command.entries_read)
        turn.move_group(command.stream, command.group, group.last_delivered_id, known)
    if command.start is not None or command.entries_read is not None:
        turn.notify("xgroup-setid", command.stream)
    _set_policy(turn, command.stream, command.group, command.policy)
    return True


def _set_policy(turn: Turn, stream: str, name: str, given: Mapping[str, Any]) -> None:
    group = turn.keyspace.keys[stream].groups[name]
    was_paused = group.is_paused
    for record in policy_changes(stream, name, policy_of(group), given):
        turn.emit(record)
    if group.is_paused != was_paused:
        turn.signal(stream)


@runs(weir_commands.DescribeGroup)
def describe_group(turn: Turn, command: weir_commands.DescribeGroup) -> GroupInfo:
    _, group = turn.group(command.stream, command.group)
    return group_info(turn, command.stream, command.group, group)


@runs(weir_commands.DeleteGroup)
def remove_group(turn: Turn, command: weir_commands.DeleteGroup) -> bool:
    _, group = existing_group(turn, command.stream, command.group)
    if group.pending and not command.drop:
        raise errors.group_has_pending(command.group, len(group.pending))
    turn.emit(changes.RemoveGroup(command.stream, command.group))
    turn.signal(command.stream)
    return True


@runs(weir_commands.DeleteConsumer)
def remove_consumer(turn: Turn, command: weir_commands.DeleteConsumer) -> int | Unfinished:
    _, group = existing_group(turn, command.stream, command.group)
    consumer = group.consumers.get(command.consumer)
    if consumer is None:
        raise errors.no_consumer(command.stream, command.group, command.consumer)
    held = len(consumer.pending)
    if held and not command.drop and command.transfer_to is None:
        raise errors.consumer_has_pending(command.consumer, held)
    if command.transfer_to == command.consumer:
        return held
    if command.transfer_to is None:
        return drop_consumer(turn, command.stream, command.group, consumer)
    if held > TRANSFERRED_MAX and not turn.may_continue:
        raise errors.too_many_to_remove(command.consumer, held)
    transferred: int = (turn.so_far or 0) + (
        _transfer(turn, command, group, command.transfer_to) if held else 0
    )
    if consumer.pending:
        return Unfinished(transferred)
    turn.emit(changes.RemoveConsumer(command.stream, command.group, command.consumer))
    return transferred


def _transfer(turn: Turn, command: weir_commands.DeleteConsumer, group: Group, heir: str) -> int:
    """Give entries to another consumer as they are, in order of delivery: nothing was delivered."""
    page = group.consumers[command.consumer].pending.page(0, TRANSFERRED_MAX)
    held = [(entry_id, state) for entry_id, _ in page if (state := group.pending.get(entry_id))]
    rows = sorted(held, key=lambda row: row[1].order)
    turn.see_consumer(command.stream, command.group, heir)
    for time_ms, together in groupby(rows, key=lambda row: row[1].delivery_time_ms):
        run = list(together)
        counts = [state.delivery_count for _, state in run]
        turn.emit(
            changes.Own(
                command.stream, command.group, heir, [entry_id for entry_id, _ in run], time_ms, counts
            )
        )
    return len(rows)


@runs(weir_commands.DeadLetterEntries)
def dead_letter_entries(turn: Turn, command: weir_commands.DeadLetterEntries) -> Steps[DeadLettered]:
    key, group = turn.group(command.stream, command.group)
    target = redelivery_of(group).dead_letter_stream
    if target is None:
        raise errors.invalid("ERR the group has no dead-letter stream", "set the group's dead_letter first")
    if (refusal := refuse_letters(turn, target)) is not None:
        raise refusal
    wanted = dict.fromkeys(command.ids)
    pending = {entry_id: state for entry_id in wanted if (state := group.pending.get(entry_id))}
    not_held = not_held_by(pending, command.consumer)
    texts = key.stream.find_each(entry_id for entry_id in pending if entry_id not in not_held)
    letters = [
        Dead(entry_id, texts[entry_id], state, command.reason)
        for entry_id, state in pending.items()
        if entry_id in texts
    ]
    dead = fit_letters(turn, command.stream, command.group, letters)
    yield
    moved = move_to_dead_letters(turn, command.stream, command.group, dead)
    return DeadLettered(target, moved, list(not_held))


# --- many streams ---------------------------------------------------------------------------------------


@runs(weir_commands.Publish)
def publish(turn: Turn, command: weir_commands.Publish) -> Steps[Published | Republished]:
    repeated = _published_before(turn, command.idempotency) or _chunk_before(turn, command)
    if repeated is not None:
        return repeated
    if len({part.stream for part in command.parts}) < len(command.parts):
        raise errors.invalid("ERR a stream occurs twice", "each stream occurs once, with all its entries")
    took_us = command.work_us(turn.keyspace)
    if took_us > PUBLISH_WORK_US_MAX:
        raise errors.publishes_too_much(took_us, PUBLISH_WORK_US_MAX)
    prepared = [_prepared(turn, part) for part in command.parts]
    turn.expect_room(sum(part.stream not in turn.keyspace.keys for part in command.parts))
    yield
    added = [(part.command.stream, store(turn, part)) for part in prepared]
    key, chunk = command.idempotency, command.chunk
    if key is not None:
        given = [entry_id for _, run in added for entry_id in run.ids]
        counts = [len(run.ids) for _, run in added]
        names = [name for name, _ in added]
        turn.emit(changes.RememberPublish(key.key, key.digest, names, counts, given, turn.now_ms))
    if chunk is not None:
        turn.emit(changes.PublishChunk(chunk.producer, chunk.epoch, chunk.number, _encode_runs(added)))
    return Published(added)


def _published_before(turn: Turn, key: types.IdempotencyKey | None) -> Published | None:
    answer = None if key is None else PUBLISHED.find(turn.keyspace.answers, key.key, turn.now_ms)
    if key is None or answer is None:
        return None
    if answer.digest != key.digest:
        raise errors.idempotency_mismatch()
    return Published([(name, Added(given)) for name, given in answer.streams], duplicate=True)


def _chunk_before(turn: Turn, command: weir_commands.Publish) -> Republished | None:
    """What was answered to the chunk the first time; refused where it was not, and its epoch is over.

    Refused also where it has other streams now, or other numbers of entries: what it brings would be lost
    without a word. That its entries are the same is not looked at.
    """
    chunk = command.chunk
    if chunk is None:
        return None
    producers = turn.keyspace.producers
    answer = producers.answer(chunk.producer, chunk.epoch, chunk.number)
    if answer is not None:
        rows = _ROWS_OF(answer)
        stored = sorted((name, count) for name, _, _, count in rows)
        if stored != sorted((part.stream, len(part.bodies)) for part in command.parts):
            raise errors.chunk_mismatch(chunk.producer, chunk.epoch, chunk.number)
        return Republished([_run(*row) for row in rows])
    epoch = producers.epoch(chunk.producer)
    if chunk.epoch < epoch:
        raise errors.stale_epoch(chunk.producer, epoch)
    if not producers.has_room(chunk.producer, chunk.epoch):
        raise errors.too_many_chunks(EPOCH_CHUNKS_MAX, EPOCH_BYTES_MAX)
    return None


# How the answer of a chunk is kept: of each stream its name, the first and the last ID, and their number.
_Row = tuple[str, str, str, int]
_ROWS_OF: Final = msgspec.json.Decoder(list[_Row]).decode


def _encode_runs(added: Sequence[tuple[str, Added]]) -> bytes:
    rows = [(name, ids.format(run.ids[0]), ids.format(run.ids[-1]), len(run.ids)) for name, run in added]
    return msgspec.json.encode(rows)


def _run(name: str, first: str, last: str, count: int) -> StoredRun:
    return StoredRun(name, ids.parse_canonical(first.encode()), ids.parse_canonical(last.encode()), count)


def _prepared(turn: Turn, part: types.XAdd) -> PreparedEntries:
    prepared = prepare(turn, part)
    if prepared is None:
        raise errors.no_such_key(part.stream)
    assert isinstance(prepared, PreparedEntries), "a part has no idempotence of its own"
    return prepared


@runs(weir_commands.PutMetadata)
def put_metadata(turn: Turn, command: weir_commands.PutMetadata) -> bool:
    metadata = turn.keyspace.metadata
    before = metadata.get(command.name)
    if command.value:
        others = sum(len(name) + len(value) for name, value in metadata.items() if name != command.name)
        if others + len(command.name) + len(command.value) > METADATA_BYTES_MAX:
            raise errors.too_much_metadata(METADATA_BYTES_MAX)
    if (command.value or None) != before:
        turn.emit(changes.SetMetadata(command.name, command.value or b""))
    return before is not None


@runs(weir_commands.ListMetadata)
def list_metadata(turn: Turn, command: weir_commands.ListMetadata) -> MetadataPage:
    items = [item for item in turn.keyspace.metadata.items() if item[0].startswith(command.prefix)]
    return MetadataPage(sorted(items))
