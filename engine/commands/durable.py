"""Durable Streams: streams with a media type, producers that write each batch once, lifetimes that slide.

Knows: what is refused, in which order, and which records follow.
Must never know: HTTP, wire formats.
"""

from collections.abc import Sequence
from typing import Final

from engine import errors
from engine.commands import types
from engine.commands.durable_commands import AppendDurable, CreateDurable, DescribeDurable, ProducerBatch
from engine.commands.entries import PreparedEntries, prepare_checked, store
from engine.commands.expiring import TIME_MS_MAX
from engine.commands.registry import runs
from engine.commands.turn import Turn
from engine.durable_streams import DurableStream, ProducerPlace, kind_of
from engine.keyspace import Key
from engine.records import AdvanceProducer, CloseStream, SetLifetime, SetMedia, SetWriterSeq
from engine.replies import DurableAppended, DurableCreated, DurableInfo

# Of a producer that has not written yet.
_NOWHERE: Final = ProducerPlace(-1, -1, 0)


@runs(CreateDurable)
def create_durable(turn: Turn, command: CreateDurable) -> DurableCreated:
    key = turn.keyspace.find(command.stream)
    if key is not None:
        _expect_same(command, key)
        return DurableCreated(_info(key), created=False)
    expires_at_ms = command.expires_at_ms
    if command.ttl_ms is not None:
        expires_at_ms = min(turn.now_ms + command.ttl_ms, TIME_MS_MAX)
    prepared = _prepare(turn, command.stream, None, command.bodies)
    key = turn.create_stream(command.stream)
    turn.emit(SetMedia(command.stream, command.media, command.ttl_ms, command.config))
    if expires_at_ms is not None:
        turn.emit(SetLifetime(command.stream, expires_at_ms))
    if prepared is not None:
        store(turn, prepared)
    if command.closes:
        turn.emit(CloseStream(command.stream, turn.now_ms, ""))
    return DurableCreated(_info(key), created=True)


def _expect_same(command: CreateDurable, key: Key) -> None:
    durable = key.durable
    is_same = durable is not None and (durable.kind, durable.config) == (
        kind_of(command.media),
        command.config,
    )
    if not is_same or command.closes != (key.closed is not None):
        raise errors.stream_exists(command.stream)


def _prepare(turn: Turn, stream: str, key: Key | None, bodies: Sequence[bytes]) -> PreparedEntries | None:
    if not bodies:
        return None
    prepared = prepare_checked(turn, key, types.XAdd(stream=stream, bodies=bodies))
    assert isinstance(prepared, PreparedEntries), "it has no key to repeat"
    return prepared


@runs(DescribeDurable)
def describe_durable(turn: Turn, command: DescribeDurable) -> DurableInfo | None:
    key = turn.keyspace.find(command.stream)
    return None if key is None else _info(key)


def _info(key: Key) -> DurableInfo:
    stream, durable = key.stream, key.durable
    return DurableInfo(
        media=None if durable is None else durable.media,
        ttl_ms=None if durable is None else durable.ttl_ms,
        expires_at_ms=key.expires_at_ms,
        last_id=stream.last_id,
        removed_upto=stream.removed_upto,
        generation=key.generation,
        closed=key.closed is not None,
    )


@runs(AppendDurable)
def append_durable(turn: Turn, command: AppendDurable) -> DurableAppended:
    key, batch = turn.key(command.stream), command.batch
    durable = key.durable
    if durable is None:
        raise errors.not_durable(command.stream)
    place = durable.producers.get(batch.producer, _NOWHERE) if batch else _NOWHERE
    if key.closed is not None:
        return _repeat_end(turn, command, key, place)
    if command.bodies and command.kind != durable.kind:
        raise errors.media_type_differs(durable.media)
    if batch is not None and _is_repeated(batch, place):
        return _reply(key, place, duplicate=True)
    if command.writer_seq is not None and command.writer_seq <= durable.writer_seq:
        raise errors.writer_seq_too_small(durable.writer_seq.decode("latin-1"))
    prepared = _prepare(turn, command.stream, key, command.bodies)
    if prepared is not None:
        store(turn, prepared)
    _note_writers(turn, command, durable)
    if command.closes:
        turn.emit(CloseStream(command.stream, turn.now_ms, ""))
        turn.signal(command.stream)
    return _reply(key, None if batch is None else durable.producers[batch.producer])


def _reply(key: Key, place: ProducerPlace | None, *, duplicate: bool = False) -> DurableAppended:
    epoch, seq = (None, None) if place is None else place[:2]
    return DurableAppended(key.stream.last_id, epoch, seq, duplicate=duplicate, closed=key.closed is not None)


def _repeat_end(turn: Turn, command: AppendDurable, key: Key, place: ProducerPlace) -> DurableAppended:
    """The answer of a closed stream to what it has already; any other write is refused."""
    batch = command.batch
    if batch is None and command.closes and not command.bodies:
        return _reply(key, None, duplicate=True)
    if batch is not None and batch.epoch < place.epoch:
        raise errors.producer_fenced(batch.producer, place.epoch)
    if batch is not None and batch.epoch == place.epoch and batch.seq <= place.seq:
        return _reply(key, place, duplicate=True)
    refusal = turn.refuse_entries(command.stream, key)
    assert refusal is not None, "it is closed"
    raise refusal


def _is_repeated(batch: ProducerBatch, place: ProducerPlace) -> bool:
    """Whether the batch was written before. Raises the refusal of one that may not be written now."""
    if batch.epoch < place.epoch:
        raise errors.producer_fenced(batch.producer, place.epoch)
    if batch.epoch == place.epoch and batch.seq <= place.seq:
        return True
    if batch.epoch > place.epoch and batch.seq and place is not _NOWHERE:
        raise errors.epoch_begins_at_zero(batch.producer)
    expected = place.seq + 1 if batch.epoch == place.epoch else 0
    if batch.seq != expected:
        raise errors.producer_gap(batch.producer, expected, batch.seq)
    return False


def _note_writers(turn: Turn, command: AppendDurable, durable: DurableStream) -> None:
    if command.writer_seq is not None:
        turn.emit(SetWriterSeq(command.stream, command.writer_seq))
    batch = command.batch
    if batch is not None:
        # In the order of time, also where the clock goes back: the same are forgotten when the log is read.
        at_ms = max(turn.now_ms, durable.last_ms())
        turn.emit(AdvanceProducer(command.stream, batch.producer, batch.epoch, batch.seq, at_ms))
