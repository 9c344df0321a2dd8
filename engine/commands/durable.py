"""Durable Streams: streams with a media type, producers that write each batch once, lifetimes that slide.

Knows: what is refused, in which order, and which records follow.
Must never know: HTTP, wire formats.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from engine import entries, errors, ids
from engine.commands import types
from engine.commands.durable_commands import (
    AppendBatches,
    AppendDurable,
    CreateDurable,
    DescribeDurable,
    ForkPoint,
    ProducerBatch,
)
from engine.commands.entries import PreparedEntries, expect_open, prepare_checked, store
from engine.commands.expiring import TIME_MS_MAX
from engine.commands.keys import COPY_COST_MAX
from engine.commands.registry import Steps, runs
from engine.commands.turn import TURN_ENTRIES_MAX, Turn
from engine.copying import copy_cost, texts_to_fork
from engine.errors import EngineError
from engine.generations import gap_of
from engine.keyspace import Key
from engine.parts.closing import Closed, CloseStream
from engine.parts.durable import (
    JSON_MEDIA,
    AdvanceProducer,
    AdvanceProducers,
    DurableStream,
    ProducerPlace,
    SetMedia,
    SetOrigins,
    SetWriterSeq,
    kind_of,
)
from engine.records.changes import SetLifetime
from engine.records.durable import ForkStored, ForkStream, NoteFork
from engine.replies import Added, BatchesAppended, DurableAppended, DurableCreated, DurableInfo, Gap

# Of a producer that has not written yet.
_NOWHERE: Final = ProducerPlace(-1, -1, 0)


class _Origin(NamedTuple):
    """Where a fork comes from: the entries up to an ID, and maybe a part of the next one, with its ID; and
    the texts of those that are in a file, where it ends among them.
    """

    key: Key
    durable: DurableStream
    upto: int = 0
    part: tuple[int, bytes] | None = None
    texts: Sequence[bytes] | None = None


@runs(CreateDurable)
def create_durable(turn: Turn, command: CreateDurable) -> Steps[DurableCreated]:
    stream = command.stream
    key = turn.keyspace.find(stream)
    if key is not None:
        _expect_same(command, key)
        return DurableCreated(_info(key), created=False)
    if stream in turn.keyspace.forks.hidden:
        raise errors.stream_exists(stream)
    turn.expect_room(1)
    origin = None if command.fork is None else _origin(turn, command, command.fork)
    media, ttl_ms, expires_at_ms = _lifetime(turn, command, origin)
    yield
    key = _begin(turn, stream, command.fork, origin)
    turn.emit(SetMedia(stream, media, ttl_ms, command.config))
    if origin is not None:
        origins = origin.durable.origins_upto(origin.key.generation, origin.upto)
        turn.emit(SetOrigins(stream, *zip(*origins, strict=True)))
    if expires_at_ms is not None:
        turn.emit(SetLifetime(stream, expires_at_ms))
    if origin is not None and origin.part is not None:
        entry_id, body = origin.part
        _append(turn, stream, key, types.XAdd(stream=stream, bodies=[body], ids=[entry_id]))
    if command.bodies:
        _append(turn, stream, key, types.XAdd(stream=stream, bodies=command.bodies))
    if command.closes:
        turn.emit(CloseStream(stream, turn.now_ms, ""))
    for part in () if origin is None else origin.key.parts:
        for record in part.fork(stream):
            turn.emit(record)
    return DurableCreated(_info(key), created=True)


def _expect_same(command: CreateDurable, key: Key) -> None:
    durable = DurableStream.of(key)
    if (
        durable is None
        or durable.config != command.config
        # A fork has the media type of its source where it names none.
        or (command.media and durable.kind != kind_of(command.media))
        or command.closes != (Closed.of(key) is not None)
    ):
        raise errors.stream_exists(command.stream)


def _origin(turn: Turn, command: CreateDurable, fork: ForkPoint) -> _Origin:
    if fork.source in turn.keyspace.forks.hidden:
        raise errors.stream_exists(fork.source)
    key = turn.key(fork.source)
    durable = DurableStream.of(key)
    if durable is None:
        raise errors.not_durable(fork.source)
    if command.media and kind_of(command.media) != durable.kind:
        raise errors.media_type_differs(durable.media)
    end = key.stream.last_id
    upto = end if fork.upto is None else fork.upto
    is_own = turn.keyspace.generations.goes_on(fork.generation, key.generation)
    if not (is_own or _inherits(turn, durable, upto, fork.generation)):
        raise errors.fork_of_another_stream(fork.source)
    if copy_cost(key) > COPY_COST_MAX:
        raise errors.too_large_to_copy()
    if upto > end:
        raise errors.fork_beyond_end()
    if end >= ids.ID_MAX - len(command.bodies):
        raise errors.stream_exhausted()
    upto, part = _beyond(key, durable, upto, fork.beyond)
    return _Origin(key, durable, upto, part, texts_to_fork(key.stream, upto))


def _inherits(turn: Turn, durable: DurableStream | None, after: int, known: str) -> bool:
    """Whether a position of this generation is one in what a fork has of another stream."""
    if durable is None or not known:
        return False
    goes_on = turn.keyspace.generations.goes_on
    return any(after <= one.upto and goes_on(known, one.generation) for one in durable.origins)


def _beyond(key: Key, durable: DurableStream, upto: int, beyond: int) -> tuple[int, tuple[int, bytes] | None]:
    """Up to which entry a fork goes, and the part that it has of the next one."""
    if not beyond:
        return upto, None
    wanted = beyond if durable.kind == JSON_MEDIA else 1
    if wanted > TURN_ENTRIES_MAX:
        raise errors.fork_beyond_end()
    found = key.stream.range(upto + 1, ids.ID_MAX, count=wanted)
    if found.count < wanted:
        raise errors.fork_beyond_end()
    if durable.kind == JSON_MEDIA:
        return found.last, None
    ((_, data),) = entries.pairs_of(found.json())
    if beyond > len(data):
        raise errors.fork_beyond_end()
    return (
        (found.last, None) if beyond == len(data) else (upto, (found.last, entries.data_body(data[:beyond])))
    )


def _lifetime(
    turn: Turn, command: CreateDurable, origin: _Origin | None
) -> tuple[str, int | None, int | None]:
    """The media type, the time to live, and when it first ends."""
    media, ttl_ms, expires_at_ms = command.media, command.ttl_ms, command.expires_at_ms
    if origin is not None:
        media = media or origin.durable.media
        if ttl_ms is None and expires_at_ms is None:
            ttl_ms = origin.durable.ttl_ms
            expires_at_ms = origin.key.expires_at_ms
    if ttl_ms is not None:
        expires_at_ms = min(turn.now_ms + ttl_ms, TIME_MS_MAX)
    return media, ttl_ms, expires_at_ms


def _begin(turn: Turn, stream: str, fork: ForkPoint | None, origin: _Origin | None) -> Key:
    if fork is None or origin is None:
        return turn.create_stream(stream)
    place = stream, fork.source, origin.upto, turn.keyspace.new_generation()
    turn.emit(ForkStream(*place) if origin.texts is None else ForkStored(*place, origin.texts))
    turn.emit(NoteFork(stream, fork.source))
    turn.signal(stream)
    turn.notify("new", stream)
    return turn.keyspace.keys[stream]


def _append(turn: Turn, stream: str, key: Key, command: types.XAdd) -> Added:
    prepared = prepare_checked(turn, key, command)
    assert isinstance(prepared, PreparedEntries), "it has no key to repeat"
    return store(turn, prepared)


@runs(DescribeDurable)
def describe_durable(turn: Turn, command: DescribeDurable) -> DurableInfo | None:
    key = turn.keyspace.find(command.stream)
    if key is None:
        _expect_shown(turn, command.stream)
        return None
    after, known = command.after, command.known
    if after is None or _inherits(turn, DurableStream.of(key), after, known):
        return _info(key)
    return _info(key, gap_of(after, known, key.identity, turn.keyspace.generations))


def _expect_shown(turn: Turn, stream: str) -> None:
    if stream in turn.keyspace.forks.hidden:
        raise errors.stream_gone(stream)


def _info(key: Key, gap: Gap | None = None) -> DurableInfo:
    stream, durable = key.stream, DurableStream.of(key)
    return DurableInfo(
        media=None if durable is None else durable.media,
        ttl_ms=None if durable is None else durable.ttl_ms,
        expires_at_ms=key.expires_at_ms,
        last_id=stream.last_id,
        removed_upto=stream.removed_upto,
        generation=key.generation,
        closed=Closed.of(key) is not None,
        gap=gap,
    )


def _durable(turn: Turn, stream: str) -> tuple[Key, DurableStream]:
    if turn.keyspace.find(stream) is None:
        _expect_shown(turn, stream)
    key = turn.key(stream)
    durable = DurableStream.of(key)
    if durable is None:
        raise errors.not_durable(stream)
    return key, durable


@runs(AppendDurable)
def append_durable(turn: Turn, command: AppendDurable) -> DurableAppended:
    key, durable = _durable(turn, command.stream)
    batch = command.batch
    place = (batch and durable.place_of(batch.producer, turn.now_ms)) or _NOWHERE
    if Closed.of(key) is not None:
        return _repeat_end(turn, command, key, place)
    if command.closes:
        turn.expect_may_end(command.stream)
    if command.bodies and command.kind != durable.kind:
        raise errors.media_type_differs(durable.media)
    if batch is not None and _is_repeated(batch, place):
        return _reply(key, place, duplicate=True)
    if command.writer_seq is not None and command.writer_seq <= durable.writer_seq:
        raise errors.writer_seq_too_small(durable.writer_seq.decode("latin-1"))
    if command.bodies:
        _append(turn, command.stream, key, types.XAdd(stream=command.stream, bodies=command.bodies))
    _note_writers(turn, command, durable)
    if command.closes:
        turn.emit(CloseStream(command.stream, turn.now_ms, ""))
        turn.signal(command.stream)
    return _reply(key, None if batch is None else durable.producers[batch.producer])


@runs(AppendBatches)
def append_batches(turn: Turn, command: AppendBatches) -> BatchesAppended:
    stream = command.stream
    key, durable = _durable(turn, stream)
    expect_open(turn, stream, key)
    if command.kind != durable.kind:
        raise errors.media_type_differs(durable.media)
    at_ms = max(turn.now_ms, durable.last_ms())
    places: dict[str, ProducerPlace] = {}
    bodies: list[bytes] = []
    # Of each batch: how many entries are stored behind it, its producer's place, and whether it was there.
    found: list[tuple[int, ProducerPlace, bool] | None] = []
    for batch, own in zip(command.batches, command.bodies_of_each(), strict=True):
        place = places.get(batch.producer) or durable.place_of(batch.producer, turn.now_ms) or _NOWHERE
        try:
            is_repeated = _is_repeated(batch, place)
        except EngineError:
            found.append(None)
            continue
        if not is_repeated:
            # In the order of their last batches, as if each came alone.
            places.pop(batch.producer, None)
            place = places[batch.producer] = ProducerPlace(batch.epoch, batch.seq, at_ms)
            bodies += own
        found.append((len(bodies), place, is_repeated))
    last_ids: Sequence[int] = (key.stream.last_id,)
    if bodies:
        added = _append(turn, stream, key, types.XAdd(stream=stream, bodies=bodies))
        last_ids = [*last_ids, *added.ids]
        epochs, seqs, _ = zip(*places.values(), strict=True)
        turn.emit(AdvanceProducers(stream, [*places], epochs, seqs, at_ms))
    generation = key.generation
    return BatchesAppended(
        [
            one and DurableAppended(last_ids[one[0]], generation, *one[1][:2], duplicate=one[2])
            for one in found
        ]
    )


def _reply(key: Key, place: ProducerPlace | None, *, duplicate: bool = False) -> DurableAppended:
    epoch, seq = (None, None) if place is None else place[:2]
    is_closed = Closed.of(key) is not None
    return DurableAppended(
        key.stream.last_id, key.generation, epoch, seq, duplicate=duplicate, closed=is_closed
    )


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
