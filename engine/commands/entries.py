"""XADD, XLEN, XRANGE, XDEL, XDELEX, XTRIM, XSETID and idempotent publishing: the entries of a stream.

Knows: Redis's order of checks (docs/semantics.md).
Must never know: groups beyond the references to an entry, wire formats.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from engine import entries, errors, ids, rows
from engine.commands import types, weir_commands
from engine.commands.references import (
    Trimming,
    emit_trim,
    find_referenced,
    first_kept,
    references_of,
    remove_references,
    select_trim,
)
from engine.commands.registry import Steps, runs
from engine.commands.retention import select_retention
from engine.commands.turn import Turn, Unfinished, removal_of
from engine.keyspace import Key
from engine.parts import idempotence
from engine.parts.closing import Closed
from engine.parts.keeping import kept_of
from engine.records import changes
from engine.replies import Added, Deletions, Entries, Trimmed

deleted, absent, kept = 1, -1, 2


class PreparedEntries(NamedTuple):
    """An append that nothing can refuse any more. `auto_ms`: the latest time of an ID that it was given, or
    -1 where the client named them. `trimming`: what its trim does to what is in files.
    """

    command: types.XAdd
    ids: Sequence[int]
    auto_ms: int
    trimming: Trimming | None = None


class Repeated(NamedTuple):
    """The answer of the first time, and the record where repetitions are counted."""

    added: Added
    record: idempotence.RepeatProducerKey | None = None


@runs(types.XAdd)
def xadd(turn: Turn, command: types.XAdd) -> Steps[Added | None]:
    prepared = prepare(turn, command)
    yield
    return None if prepared is None else store(turn, prepared)


@runs(weir_commands.AddEach)
def add_each(turn: Turn, command: weir_commands.AddEach) -> Added:
    key = turn.keyspace.find(command.stream)
    refused, refusal = _not_taken(key, command.bodies) if command.apart else ((), "")
    bodies = command.bodies
    if refused:
        gone = {*refused}
        bodies = [body for place, body in enumerate(bodies) if place not in gone]
    if not bodies:
        return Added((), refused=refused, refusal=refusal)
    left = ids.ID_MAX - (key.stream.last_id if key else 0)
    prepared = prepare(turn, types.XAdd(stream=command.stream, bodies=bodies[: left or None]))
    assert isinstance(prepared, PreparedEntries), "it makes the stream, and has no key to repeat"
    added = store(turn, prepared)
    return replace(added, refused=refused, refusal=refusal) if refused else added


def _not_taken(key: Key | None, bodies: Sequence[bytes]) -> tuple[Sequence[int], str]:
    """The places of those that the stream does not take, and why."""
    refused, why = list[int](), ""
    if key is not None and key.parts:
        for place, body in enumerate(bodies):
            if (refusal := _refuse_bodies(key, [body])) is not None:
                refused.append(place)
                why = refusal.detail
    return refused, why


def _refuse_bodies(key: Key, bodies: Sequence[bytes]) -> errors.EngineError | None:
    """Why entries like these are never in the stream: what one of its parts says."""
    for part in key.parts:
        if part.may_refuse and (refusal := part.may_hold(bodies)) is not None:
            return refusal
    return None


def check_bodies(key: Key, bodies: Sequence[bytes]) -> None:
    """Refuse entries that are never in the stream."""
    if (refusal := _refuse_bodies(key, bodies)) is not None:
        raise refusal


def prepare(turn: Turn, command: types.XAdd) -> PreparedEntries | Repeated | None:
    """Check everything. None: the stream is not to be made."""
    if 0 in command.ids:
        raise errors.id_is_zero()
    key = turn.keyspace.find(command.stream)
    if key is None and not command.mkstream:
        return None
    for part in () if key is None else key.parts:
        if part.may_refuse and (refusal := part.may_hold(command.bodies)) is not None:
            raise refusal
    return prepare_checked(turn, key, command)


def prepare_checked(turn: Turn, key: Key | None, command: types.XAdd) -> PreparedEntries | Repeated:
    """The same, of entries that the stream takes."""
    # A repeated request is answered as the first time, although that has moved the last ID.
    repeated = _repeated(turn, key, command)
    if repeated is not None:
        return repeated
    expect_open(turn, command.stream, key)
    expect_last_id(key, command.expected_last_id)
    given, trimming = _new_ids(turn, key, command), None
    if command.trim is not None and key is not None and key.stream.nodes.runs:
        trimming = select_trim(turn, command.stream, command.trim, added=len(given[0]))
    return PreparedEntries(command, *given, trimming)


def store(turn: Turn, prepared: PreparedEntries | Repeated) -> Added:
    """Append what was prepared, in the same turn; then trim, and keep what the retention keeps."""
    if isinstance(prepared, Repeated):
        if prepared.record is not None:
            turn.emit(prepared.record)
        return prepared.added
    command, new_ids, auto_ms, trimming = prepared
    key = turn.keyspace.find(command.stream) or turn.create_stream(command.stream)
    turn.emit(changes.Append(command.stream, _texts(new_ids, command.bodies), new_ids))
    turn.auto_ms = max(turn.auto_ms, auto_ms)
    _remember(turn, command, new_ids)
    trimmed = Trimmed(0)
    if command.trim is not None:
        trimmed = emit_trim(turn, command.stream, command.trim, trimming)
    kept = kept_of(key).retention
    if kept.max_len is not None or kept.max_bytes is not None:
        # Of whole nodes: that costs next to nothing beside an append.
        cut = select_retention(turn, command.stream, exact=False)
        if cut is not None:
            turn.emit(cut)
    turn.signal(command.stream)
    return Added(new_ids, trimmed=trimmed.deleted, pending_affected=trimmed.pending_affected)


def expect_open(turn: Turn, stream: str, key: Key | None, *, for_good: bool = False) -> None:
    """Refuse entries of a stream that takes none now, or takes none `for_good`."""
    if key is not None and (refusal := turn.refuse_entries(stream, key, for_good=for_good)) is not None:
        raise refusal


def expect_last_id(key: Key | None, expected: int | None) -> None:
    """Check the precondition of a change: this is the stream's last ID."""
    last_id = key.stream.last_id if key else 0
    # "0-0" also matches an empty stream that once had entries.
    empty = key is None or key.stream.length == 0
    if expected is not None and expected != last_id and not (expected == 0 and empty):
        raise errors.last_id_mismatch(ids.format(last_id))


def _repeated(turn: Turn, key: Key | None, command: types.XAdd) -> Repeated | None:
    """The answer of the first time, if these entries were stored already."""
    if key is None:
        return None
    if command.idempotency is not None:
        answers = idempotence.idempotence_of(key).answers
        answer = idempotence.ANSWERS.find(answers, command.idempotency.key, turn.now_ms)
        if answer is not None:
            if answer.digest != command.idempotency.digest:
                raise errors.idempotency_mismatch()
            return Repeated(Added(answer.ids, duplicate=True))
    if command.producer_key is not None:
        given = command.producer_key
        first = idempotence.idempotence_of(key).find(given.producer, given.key, turn.now_ms)
        if first is not None:
            return Repeated(Added((first,), duplicate=True), idempotence.RepeatProducerKey(command.stream))
    return None


def _new_ids(turn: Turn, key: Key | None, command: types.XAdd) -> tuple[Sequence[int], int]:
    """The IDs of the new entries, and the highest milliseconds that the clock gave to one (-1: none)."""
    last_id = key.stream.last_id if key else 0
    if not command.ids:
        first = _automatic(turn, last_id)
        last = first + len(command.bodies) - 1
        if last > ids.ID_MAX:
            raise errors.stream_exhausted()
        return range(first, last + 1), ids.ms_of(last)
    new_ids: list[int] = []
    auto_ms = -1
    for wanted in command.ids:
        last_id = _next_id(turn, last_id, wanted)
        new_ids.append(last_id)
        if wanted is None:
            auto_ms = max(auto_ms, ids.ms_of(last_id))
        elif isinstance(wanted, types.AutoSequence):
            # No floor keeps a number of a time that the client names from being given again: it is shown only
            # once it is on disk, as an ID far ahead of the clock is.
            auto_ms = ids.MS_MAX
    return new_ids, auto_ms


def _automatic(turn: Turn, last_id: int) -> int:
    """`*`: the clock's milliseconds, or the next ID where the clock is behind."""
    if last_id == ids.ID_MAX:
        raise errors.stream_exhausted()
    now_ms = max(turn.now_ms, turn.keyspace.floor_ms + 1)
    return ids.make(now_ms, 0) if now_ms > ids.ms_of(last_id) else last_id + 1


def _next_id(turn: Turn, last_id: int, wanted: types.NewId) -> int:
    if wanted is None:
        return _automatic(turn, last_id)
    if last_id == ids.ID_MAX:
        raise errors.stream_exhausted()
    if isinstance(wanted, types.AutoSequence):
        sequence = 0 if wanted.ms != ids.ms_of(last_id) else ids.sequence_of(last_id) + 1
        if sequence > ids.SEQUENCE_MAX:
            raise errors.id_not_increasing(ids.format(last_id))
        wanted = ids.make(wanted.ms, sequence)
    if wanted <= last_id:
        raise errors.id_not_increasing(ids.format(last_id))
    return wanted


def _texts(new_ids: Sequence[int], bodies: Sequence[bytes]) -> Sequence[bytes]:
    if isinstance(new_ids, range):
        return rows.stored(new_ids[0], bodies)
    return [entries.encode(entry_id, body) for entry_id, body in zip(new_ids, bodies, strict=True)]


def _remember(turn: Turn, command: types.XAdd, new_ids: Sequence[int]) -> None:
    if command.producer_key is not None:
        turn.emit(
            idempotence.RememberProducerKey(
                command.stream, command.producer_key.producer, command.producer_key.key, new_ids[-1]
            )
        )
    if command.idempotency is not None:
        key = command.idempotency
        turn.emit(idempotence.RememberAnswer(command.stream, key.key, key.digest, new_ids, turn.now_ms))


@runs(types.XLen)
def xlen(turn: Turn, command: types.XLen) -> int:
    key = turn.keyspace.find(command.stream)
    return key.stream.length if key else 0


@runs(types.XRange)
def xrange(turn: Turn, command: types.XRange) -> Entries | None:
    key = turn.keyspace.find(command.stream)
    if key is None:
        return Entries()
    if command.count == 0:
        return None
    reverse = command.reverse
    count = turn.most_entries(command.count, reverse=reverse)
    found = key.stream.range(
        command.start,
        command.end,
        count=count,
        reverse=reverse,
        bytes_max=turn.most_bytes(command.bytes_max),
        up_to_damage=command.up_to_damage,
    )
    turn.count_entries(found.count, sum(map(len, found.parts)), reverse=reverse)
    if not reverse and Closed.of(key) is not None:
        read_upto = found.last or max(command.start - 1, ids.ID_MIN)
        return replace(found, closed=key.stream.last_live_id <= read_upto)
    return found


@runs(types.XDel)
def xdel(turn: Turn, command: types.XDel) -> Steps[int]:
    key = turn.keyspace.find(command.stream)
    gone = [] if key is None else list(key.stream.find_to_remove(command.ids))
    if key is None or not gone:
        return 0
    removal = removal_of(command.stream, key.stream, gone, tombstone=True)
    yield
    turn.emit(removal)
    return len(gone)


@runs(types.XDelEx)
def xdelex(turn: Turn, command: types.XDelEx) -> Steps[Deletions]:
    key = turn.keyspace.find(command.stream)
    if key is None:
        return Deletions([absent] * len(command.ids))
    return Deletions((yield from delete_each(turn, command, key, command.ids)))


def delete_each(
    turn: Turn,
    command: types.XDelEx | types.XAckDel,
    key: Key,
    wanted: Sequence[int],
    settling: str | None = None,
) -> Steps[list[int]]:
    """Delete entries with regard to their references, once a group has settled all of them; return the result
    of each. Refused where more references would go than the turn has room for.
    """
    stream, refs, ordered = command.stream, command.refs, sorted(set(wanted))
    if refs is types.Refs.DELETE:
        turn.ask_room(references_of(key, ordered))
    staying = find_referenced(key, ordered, settling) if refs is types.Refs.ACKED else set[int]()
    gone = list(key.stream.find_to_remove(each for each in ordered if each not in staying))
    removal = removal_of(stream, key.stream, gone, tombstone=True)
    yield
    if settling is not None:
        turn.settle(stream, settling, list(wanted))
    if refs is types.Refs.DELETE:
        # Those of entries that are not there too.
        remove_references(turn, stream, ordered)
    if gone:
        turn.emit(removal)
    # An ID that is named again was deleted by its first mention.
    left = dict.fromkeys(gone, deleted)
    return [kept if entry_id in staying else left.pop(entry_id, absent) for entry_id in wanted]


@runs(types.XTrim)
def xtrim(turn: Turn, command: types.XTrim) -> Steps[Trimmed | Unfinished]:
    """A dry run has done it when it has selected; where a turn finds nothing to remove, the next one looks on
    from there.
    """
    key = turn.keyspace.find(command.stream)
    if key is None:
        return Trimmed(0)
    selected = select_trim(turn, command.stream, command.trim, guard=command.guard)
    plan = selected.plan
    if plan.resume_at is not None and turn.may_continue:
        return Unfinished(plan.resume_at)
    if command.dry_run:
        return Trimmed(plan.removed, first_kept(key, plan), selected.affected)
    yield
    return emit_trim(turn, command.stream, command.trim, selected)


@runs(types.XSetId)
def xsetid(turn: Turn, command: types.XSetId) -> bool:
    if command.max_deleted_id and command.last_id < command.max_deleted_id:
        raise errors.last_id_too_small(
            "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
        )
    key = turn.key(command.stream)
    expect_open(turn, command.stream, key)
    stream = key.stream
    entries_added = stream.entries_added if command.entries_added is None else command.entries_added
    if command.last_id < stream.max_deleted_id:
        raise errors.last_id_too_small(
            "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
        )
    if stream.length and command.last_id < stream.last_live_id:
        raise errors.last_id_too_small(
            "ERR The ID specified in XSETID is smaller than the target stream top item"
        )
    if stream.length and entries_added < stream.length:
        raise errors.last_id_too_small(
            "ERR The entries_added specified in XSETID is smaller than the target stream length"
        )
    max_deleted_id = command.max_deleted_id or stream.max_deleted_id
    if command.last_id < stream.last_id:
        # A reader that waits above it gets a gap.
        turn.signal(command.stream)
    turn.emit(changes.SetCounters(command.stream, command.last_id, entries_added, max_deleted_id))
    return True


@runs(types.XCfgSet)
def xcfgset(turn: Turn, command: types.XCfgSet) -> bool:
    key = turn.key(command.stream)
    settings, kept = command.settings, idempotence.idempotence_of(key)
    duration_s = kept.duration_s if settings.duration_s is None else settings.duration_s
    maxsize = kept.maxsize if settings.maxsize is None else settings.maxsize
    if (duration_s, maxsize) != (kept.duration_s, kept.maxsize):
        turn.emit(idempotence.ConfigureProducerKeys(command.stream, duration_s, maxsize))
    return True


@runs(types.XIdmpRecord)
def xidmprecord(turn: Turn, command: types.XIdmpRecord) -> Steps[bool]:
    key = turn.key(command.stream)
    producer_key = command.producer_key
    before = idempotence.idempotence_of(key).find(producer_key.producer, producer_key.key, turn.now_ms)
    if before is not None:
        if before != command.id:
            raise errors.invalid("ERR IID already exists for this producer with a different stream ID")
        return True
    if command.id not in key.stream:
        raise errors.EngineError("no_entry", "ERR No such message in stream")
    yield
    turn.emit(
        idempotence.RememberProducerKey(command.stream, producer_key.producer, producer_key.key, command.id)
    )
    return True
