"""Reads, and commands that take several requests: of several streams, of all of them, of what Weir keeps
beside them.

Knows: which requests, and how their replies become one; how cursors are resolved, how a gap is found.
Must never know: connections, waiting.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from secrets import token_hex
from sys import maxsize
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from engine import entries, errors, ids
from engine.cluster import (
    durable_words,
    group_words,
    redrive,
    replies,
    schedule_words,
    scripts,
    words,
)
from engine.cluster.ends import end_from
from engine.cluster.group_scripts import GroupFound, group_read, read_group, read_stream
from engine.cluster.keys import auxiliary_pattern, stream_of
from engine.cluster.planning import plan
from engine.cluster.refusals import in_part
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import WriteOrigin
from engine.cluster.wire import Words
from engine.cluster.words import METADATA_KEY, by_script, sends
from engine.commands import types, weir_commands
from engine.commands.base import Command
from engine.commands.durable_commands import AppendBatches, AppendDurable
from engine.commands.managing import INFOS_BYTES_MAX
from engine.commands.reading import Budget, goes_on_after
from engine.errors import EngineError
from engine.name_rules import is_name
from engine.replies import (
    BatchesAppended,
    Edges,
    Entries,
    Gap,
    GroupCounts,
    GroupFacts,
    GroupMeasure,
    Listing,
    Measured,
    MetadataPage,
    NamedValues,
    Presence,
    Reply,
    StreamDeliveries,
    StreamEnd,
    StreamEntries,
    StreamInfo,
    StreamMeasure,
    StreamPage,
    StreamPlan,
    StreamsRead,
)
from engine.why import PENDING_LOOKED_AT

# They register what they send.
_MODULES: Final = (durable_words, schedule_words)
# What a read gives where it says nothing.
_COUNT: Final = 1_000
_GLOB: Final = re.compile(r"([\\*?\[\]])")
_INFOS_MAX: Final = 1_000
# Names that are tried at once: making the requests holds the loop up.
_TRIED_AT_ONCE: Final = 100
# Streams that are described at once, each with two entries.
_DESCRIBED_AT_ONCE: Final = 16

C = TypeVar("C", bound=Command)


class Found(NamedTuple):
    """What one stream gave: the cursor as it was resolved, the entries or None, and the generation, empty
    where the stream is missing; of a closed one its last entry and its end.
    """

    after: int
    entries: StreamEntries | None
    generation: str
    closed: tuple[int, StreamEnd] | None = None


def read_request(command: types.XRead, place: int) -> BackendRequest:
    """XREAD of one of its streams. Reply: `Found`."""
    stream, cursor = command.streams[place]
    known = None if command.known is None else command.known[place]
    most = command.count_of_one
    count = _COUNT if most is None else most
    given = cursor if isinstance(cursor, int) and cursor > 0 else None
    described = scripts.describe_edges(
        weir_commands.DescribeEdges(stream=stream), token_hex(8), given, count + 1
    )
    look = by_script(stream, described, Lane.READ)
    between: list[Words] = []
    if isinstance(cursor, int) and cursor < ids.ID_MAX:
        # One more says whether there are more.
        between = [("XRANGE", stream, ids.format(cursor + 1), "+", "COUNT", count + 1)]
    elif cursor is types.Cursor.LAST_ENTRY:
        between = [("XREVRANGE", stream, "+", "-", "COUNT", 1)]

    def decode(results: Sequence[Any]) -> Found:
        edges: Edges | None = look.decode(results[:1])
        closed = None if edges is None else _closed(stream, edges, results[0])
        generation = "" if edges is None else edges.generation
        rows = results[1] if between else ()
        is_lost = edges is not None and len(results[0]) > scripts.EDGES_LOST
        if is_lost:
            *_, rows = results[0]
        run = replies.entries_of(rows, count, command.bytes_of_all) if rows else Entries()
        if isinstance(cursor, int):
            after = cursor
        elif cursor is types.Cursor.LAST_ENTRY:
            after = max(0, run.last - 1)
        else:
            after = 0 if edges is None else edges.last_id
        if known is not None:
            turned = replies.gap_at(after, known, edges)
            if turned is not None and not (is_lost and turned.reason == "ahead"):
                more = edges is not None and edges.first_id > 0 and edges.last_id > turned.goes_on_after
                moved = StreamEntries(stream, Entries(more=more), after, turned)
                return Found(after, moved, generation, closed)
        if edges is None or not run.count:
            rest = (
                None if edges is None or closed is None or known is None else _rest_of(stream, edges, after)
            )
            return Found(after, rest, generation, closed)
        gap = Gap(after, edges.first_id, None) if 0 < after < edges.removed_upto else None
        if is_lost:
            gap = Gap(after, run.first, None, "failover")
        reported = None if cursor is types.Cursor.LAST_ENTRY else gap
        return Found(after, StreamEntries(stream, run, after, reported), generation, closed)

    return msgspec.structs.replace(look, commands=[*look.commands, *between], decode=decode)


def _closed(stream: str, edges: Edges, reply: Sequence[Any]) -> tuple[int, StreamEnd] | None:
    end = end_from(stream, reply[scripts.EDGES_MARK], edges.last_id)
    return None if end is None else (ids.parse_canonical(reply[scripts.EDGES_LAST_LIVE]), end)


def _rest_of(stream: str, edges: Edges, cursor: int) -> StreamEntries | None:
    """The gap where the last entries of a closed stream are gone: no entry comes that would show it."""
    if not 0 < cursor < edges.removed_upto:
        return None
    return StreamEntries(stream, Entries(), cursor, Gap(cursor, edges.first_id, None, None, edges.last_id))


def streams_read(command: types.XRead, each: Sequence[Found]) -> StreamsRead:
    """The reply of all its streams, which share what one read gives: the first ones have it."""
    room = Budget(command.bytes_of_all, maxsize, command.count_total)
    given: list[StreamEntries] = []
    unfinished: list[str] = []
    for held in [read.entries for read in each if read.entries is not None]:
        cut = _within(room, held)
        if cut is None:
            unfinished.append(held.stream)
        else:
            given.append(cut)
    return StreamsRead(
        given,
        [(stream, read.after) for (stream, _), read in zip(command.streams, each, strict=True)],
        unfinished,
        () if command.known is None else [read.generation for read in each],
        _ends(given, each),
    )


def _ends(given: Sequence[StreamEntries], each: Sequence[Found]) -> Sequence[StreamEnd]:
    """The ends of the closed streams of which nothing is left."""
    closed = [(read.after, *read.closed) for read in each if read.closed is not None]
    read_upto = {read.stream: read.entries.last or goes_on_after(read) for read in given} if closed else {}
    return [end for after, last_live_id, end in closed if last_live_id <= read_upto.get(end.stream, after)]


def _within(room: Budget, read: StreamEntries) -> StreamEntries | None:
    """What there is room for; None if that is none of its entries."""
    run = read.entries
    texts = [*takewhile(lambda text: room.takes(len(text)), run.parts)]
    if len(texts) == run.count:
        return read
    if not texts:
        return None
    cut = Entries(texts, len(texts), run.first, entries.id_of(texts[-1]), more=True)
    return msgspec.structs.replace(read, entries=cut)


@sends(types.XRead)
def _one_read(command: types.XRead, _: WriteOrigin) -> BackendRequest:
    """XREAD of one stream is one request."""
    request = read_request(command, 0)

    def decode(results: Sequence[Any]) -> StreamsRead:
        return streams_read(command, [request.decode(results)])

    return msgspec.structs.replace(request, decode=decode)


@sends(types.XReadGroup)
def _one_group_read(command: types.XReadGroup, _: WriteOrigin) -> BackendRequest:
    """So is XREADGROUP."""
    return by_script(command.streams[0][0], read_group(command), Lane.GROUP)


class Backend(Protocol):
    """What runs requests."""

    @property
    def durability(self) -> str:
        """What an answer to a write promises."""

    async def run_request(self, request: BackendRequest) -> Any:  # noqa: ANN401 - as `decode` makes it
        """Run one. Raises EngineError."""

    async def run_each(self, commands: Sequence[Command]) -> Sequence[Any]:
        """Run commands in their order where they are of one server; a refusal in its place."""

    async def scan(self, pattern: str, kind: str = "stream") -> Sequence[bytes]:
        """The names of all keys of a type that match, in no order."""

    async def is_allowed_all(self) -> bool:
        """Whether the servers let the gateway read any key. Raises EngineError."""


Gather = Callable[[Backend, Any], Awaitable[Reply]]
_GATHERERS: Final[dict[type[Command], Gather]] = {}


def gatherer(command: Command) -> Gather | None:
    """What runs the command, None where one request does."""
    if isinstance(command, types.XRead | types.XReadGroup) and len(command.streams) == 1:
        return None
    return _GATHERERS.get(type(command))


def gathers(kind: type[C]) -> Callable[[Callable[[Backend, C], Awaitable[Reply]]], Gather]:
    """Register what runs a kind of command."""

    def register(gather: Callable[[Backend, C], Awaitable[Reply]]) -> Gather:
        _GATHERERS[kind] = gather
        return gather

    return register


async def _each(backend: Backend, requests: Sequence[BackendRequest]) -> list[Any]:
    """The replies of requests that run side by side; a refusal in its place."""
    return await asyncio.gather(*map(backend.run_request, requests), return_exceptions=True)


def _all(results: Sequence[Any]) -> Sequence[Any]:
    """The same where none was refused. Raises EngineError."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _all_done(results: Sequence[Any]) -> Sequence[Any]:
    """The same of requests that change something: others were done where one was refused."""
    refused = [result for result in results if isinstance(result, BaseException)]
    if not refused:
        return results
    worst = _worst(refused)
    raise in_part(worst) if isinstance(worst, EngineError) and len(refused) < len(results) else worst


def _worst(refused: Sequence[BaseException]) -> BaseException:
    """Of several refusals the one that says least of what was done."""
    return max(
        refused, key=lambda one: isinstance(one, EngineError) and one.members.get("outcome") == "unknown"
    )


# --- reading


@gathers(types.XRead)
async def _read(backend: Backend, command: types.XRead) -> Reply:
    requests = [read_request(command, place) for place in range(len(command.streams))]
    return streams_read(command, _all(await _each(backend, requests)))


@gathers(types.XReadGroup)
async def _read_group(backend: Backend, command: types.XReadGroup) -> Reply:
    """No stream is read where one lacks the group.

    A read may still be refused: the group was removed meanwhile, or a server was lost. Then what the other
    streams delivered is given back; only NOACK's entries stay delivered, as nothing was pending.
    """
    streams = [stream for stream, _ in command.streams]
    looks = [group_words.has_group(stream, command.group) for stream in streams]
    for stream, is_found in zip(streams, _all(await _each(backend, looks)), strict=True):
        if not is_found:
            raise errors.no_group_in_read(stream, command.group)
    if command.has_totals:
        return await _read_in_order(backend, command)
    results = await _each(
        backend,
        [
            words.by_script(stream, read_stream(command, stream, cursor), Lane.GROUP)
            for stream, cursor in command.streams
        ],
    )
    refused = [result for result in results if isinstance(result, BaseException)]
    if refused:
        found = [result for result in results if isinstance(result, GroupFound)]
        raise await _undo(backend, command, found, _worst(refused))
    return group_read(results)


async def _read_in_order(backend: Backend, command: types.XReadGroup) -> Reply:
    """One stream after the other, since what a group's read gives is delivered: each gets what is left."""
    given: list[GroupFound] = []
    unfinished: list[str] = []
    left, has_given = command, False
    for stream, cursor in command.streams:
        if left.count_total == 0 or left.bytes_total == 0:
            unfinished.append(stream)
            continue
        call = read_stream(left, stream, cursor, has_given=has_given)
        try:
            found = await backend.run_request(words.by_script(stream, call, Lane.GROUP))
        except EngineError as refusal:
            raise await _undo(backend, command, given, refusal) from None
        deliveries = found.deliveries
        if has_given and deliveries.more and not deliveries.entries:
            unfinished.append(stream)
            continue
        given.append(found)
        left, has_given = _left_of(left, deliveries), has_given or bool(deliveries.entries)
    read = group_read(given)
    return msgspec.structs.replace(read, unfinished=[*read.unfinished, *unfinished])


def _left_of(command: types.XReadGroup, given: StreamDeliveries) -> types.XReadGroup:
    """The read of the other streams; a total of 0 where one is used up."""
    size = sum(len(entry.text or b"") for entry in given.entries)
    return msgspec.structs.replace(
        command,
        count_total=command.count_total and max(0, command.count_total - len(given.entries)),
        bytes_total=command.bytes_total and max(0, command.bytes_total - size),
    )


async def _undo(
    backend: Backend, command: types.XReadGroup, found: Sequence[GroupFound], refusal: BaseException
) -> BaseException:
    """Give back what the other streams of a read that is refused have delivered; the refusal of all."""
    commands = [
        weir_commands.GiveBack(
            stream=deliveries.stream,
            group=command.group,
            consumer=command.consumer,
            ids=[entry.id for entry in deliveries.entries],
        )
        for deliveries in (one.deliveries for one in found)
        if deliveries.entries and not deliveries.history
    ]
    given_back = await _each(backend, [words.only_request(giving_back) for giving_back in commands])
    is_whole = not (command.noack and commands) and not any(
        isinstance(one, BaseException) for one in given_back
    )
    return refusal if is_whole or not isinstance(refusal, EngineError) else in_part(refusal)


@gathers(types.FindGroup)
async def _find_group(backend: Backend, command: types.FindGroup) -> Reply:
    looks = [group_words.list_groups(stream) for stream in command.streams]
    presences: list[Presence] = []
    for rows in await _each(backend, looks):
        if isinstance(rows, EngineError) and rows.code == "no_stream":
            presences.append(Presence.NO_STREAM)
        elif isinstance(rows, BaseException):
            raise rows
        else:
            presences.append(group_words.presence(rows, command.group))
    return presences


@gathers(weir_commands.FindDeadLetters)
async def _find_dead_letters(backend: Backend, command: weir_commands.FindDeadLetters) -> Reply:
    return await redrive.find(backend.run_request, command)


@gathers(weir_commands.Redrive)
async def _redrive(backend: Backend, command: weir_commands.Redrive) -> Reply:
    return await redrive.redrive(backend.run_request, command)


@gathers(AppendBatches)
async def _append_batches(backend: Backend, command: AppendBatches) -> Reply:
    appends = [
        AppendDurable(stream=command.stream, kind=command.kind, batch=batch, bodies=bodies)
        for batch, bodies in zip(command.batches, command.bodies_of_each(), strict=True)
    ]
    replies = await backend.run_each(appends)
    for reply in replies:
        if isinstance(reply, EngineError) and "outcome" in reply.members:
            # The producers may send all of them again.
            raise reply
    return BatchesAppended([None if isinstance(reply, EngineError) else reply for reply in replies])


@gathers(types.Exists)
async def _exists(backend: Backend, command: types.Exists) -> Reply:
    counts = _all(
        await _each(backend, [words.only_request(types.Exists(streams=[name])) for name in command.streams])
    )
    return len([count for count in counts if count])


@gathers(types.Delete)
async def _delete(backend: Backend, command: types.Delete) -> Reply:
    """Of several slots: each stream by itself."""
    each = [msgspec.structs.replace(command, streams=[name]) for name in dict.fromkeys(command.streams)]
    return words.sum_deleted(_all_done(await _each(backend, [words.only_request(one) for one in each])))


@gathers(weir_commands.Plan)
async def _plan(backend: Backend, command: weir_commands.Plan) -> Reply:
    async def run_each(requests: Sequence[BackendRequest]) -> Sequence[StreamPlan | None]:
        return _all(await _each(backend, requests))

    return await plan(run_each, command, backend.durability)


# --- all streams


async def _names(backend: Backend, prefix: str, after: str | None, *, scheduled: bool = False) -> list[str]:
    """The names of streams in order. Those that are no names here are of other programs."""
    pattern = _GLOB.sub(r"\\\1", prefix) + "*"
    if scheduled:
        # What is due when is beside each stream that has schedules, and goes with the last of them.
        keys = await backend.scan(auxiliary_pattern("t", pattern), "zset")
        named = [name for key in keys if (name := stream_of(key)) is not None]
        # But for one that has expired: its own keys go with the next round of a gateway.
        there = _all(await _each(backend, [words.only_request(types.Exists(streams=[one])) for one in named]))
        names = {name for name, is_there in zip(named, there, strict=True) if is_there}
    else:
        names = {name.decode() for name in await backend.scan(pattern) if is_name(name)}
    return sorted(name for name in names if after is None or name > after)


async def _page(
    backend: Backend, prefix: str, after: str | None, most: int | None, *, scheduled: bool = False
) -> tuple[list[str], str | None]:
    """The first `most` streams of those that the gateway may read, and where to go on (None at the end): a
    server lists the keys that it does not let its user read, too.
    """
    names = await _names(backend, prefix, after, scheduled=scheduled)
    most = len(names) if most is None else most
    if await backend.is_allowed_all():
        page = names[:most]
        return page, page[-1] if page and len(names) > most else None
    page = []
    for start in range(0, len(names), _TRIED_AT_ONCE):
        some = names[start : start + _TRIED_AT_ONCE]
        allowed = _all(await _each(backend, [words.may_read(name) for name in some]))
        page += [name for name, is_allowed in zip(some, allowed, strict=True) if is_allowed]
        if len(page) > most:
            return page[:most], page[most - 1] if most else None
    return page, None


@gathers(types.ListStreams)
async def _list(backend: Backend, command: types.ListStreams) -> Reply:
    if command.at is None:
        found = command.prefix, command.after, command.limit
        return Listing(*await _page(backend, *found, scheduled=command.scheduled))
    names, _ = await _page(backend, command.prefix, None, None)
    start = int(command.at * len(names))
    return Listing([*names[start:], *names[:start]][: command.limit])


@gathers(types.DbSize)
async def _db_size(backend: Backend, command: types.DbSize) -> Reply:
    names, _ = await _page(backend, "", None, None)
    return len(names)


@gathers(weir_commands.StreamInfos)
async def _infos(backend: Backend, command: weir_commands.StreamInfos) -> Reply:
    page, following = await _page(backend, command.prefix, command.after, min(command.limit, _INFOS_MAX))
    rows: list[tuple[str, StreamInfo]] = []
    size = 0
    for start in range(0, len(page), _DESCRIBED_AT_ONCE):
        some = page[start : start + _DESCRIBED_AT_ONCE]
        looked = await _each(backend, [words.describe_stream(name, is_use=False) for name in some])
        there = [row for row in zip(some, looked, strict=True) if not _is_gone(row[1])]
        _all([info for _, info in there])
        for name, info in there:
            size += info.entries_bytes
            if rows and size > INFOS_BYTES_MAX:
                return StreamPage(rows, rows[-1][0])
            rows.append((name, info))
    return StreamPage(rows, following)


def _is_gone(reply: object) -> bool:
    """Deleted since it was listed, or not to be read any more."""
    return isinstance(reply, EngineError) and reply.code in ("no_stream", "backend_forbidden")


@gathers(weir_commands.MeasureStreams)
async def _measure(backend: Backend, command: weir_commands.MeasureStreams) -> Reply:
    names = list(command.streams)
    infos = await _each(backend, [words.describe_stream(name, is_use=False) for name in names])
    groups = await _each(backend, [group_words.list_groups(name) for name in names])
    room, measured = command.groups_max, []
    for name, info, rows in zip(names, infos, groups, strict=True):
        if isinstance(info, StreamInfo) and not isinstance(rows, BaseException):
            given = [
                GroupMeasure(group.name, group.lag, group.pending, 0, group.paused) for group in rows[:room]
            ]
            room -= len(given)
            measured.append(
                StreamMeasure(name, info.length, info.memory_bytes, given, len(rows) - len(given))
            )
    return Measured(measured)


@gathers(weir_commands.ExamineGroup)
async def _examine(backend: Backend, command: weir_commands.ExamineGroup) -> Reply:
    """What the servers have of it; whether their memory is full they say themselves, when they refuse."""
    stream, group = command.stream, command.group
    now_ms = await _now_ms(backend, stream)
    both = [words.describe_stream(stream, is_use=False), words.only_request(types.XInfoGroups(stream=stream))]
    info, groups = await _each(backend, both)
    if _is_gone(info) or _is_gone(groups):
        return GroupFacts(now_ms=now_ms)
    _all([info, groups])
    found = next((one for one in groups if one.name == group), None)
    if found is None:
        return GroupFacts(now_ms=now_ms, stream_exists=True)
    look = types.XPendingRange(
        stream=stream,
        group=group,
        start=0,
        end=ids.ID_MAX,
        count=PENDING_LOOKED_AT,
        consumer=command.consumer,
    )
    asked = [look, types.XInfoConsumers(stream=stream, group=group)]
    pending, consumers = await _each(backend, list(map(words.only_request, asked)))
    _all([pending, consumers])
    last = 0 if info.last_entry is None else entries.id_of(info.last_entry)
    return GroupFacts(
        now_ms=now_ms,
        stream_exists=True,
        group=found,
        length=info.length,
        first_id=info.first_id,
        removed_upto=info.removed_upto,
        last_live_id=last,
        pending=pending.entries,
        holds_id=info.held_id if info.held_by == group else 0,
        consumer_is_known=any(one.name == command.consumer for one in consumers),
        # Redis 7.0 does not say when a consumer was last given something.
        has_delivered=bool(consumers),
    )


async def _now_ms(backend: Backend, stream: str) -> int:
    """The clock of the server that has the stream."""

    def decode(results: Sequence[Any]) -> int:
        return int(results[0][0]) * 1_000 + int(results[0][1]) // 1_000

    found: int = await backend.run_request(
        BackendRequest(stream=stream, commands=[("TIME",)], decode=decode, lane=Lane.READ)
    )
    return found


@gathers(weir_commands.CountGroups)
async def _count_groups(backend: Backend, command: weir_commands.CountGroups) -> Reply:
    """Nothing is said of them: each scrape would ask the servers for all groups."""
    return GroupCounts({})


# --- beside the streams


@gathers(weir_commands.ListMetadata)
async def _list_metadata(backend: Backend, command: weir_commands.ListMetadata) -> Reply:
    request = BackendRequest(
        stream=METADATA_KEY,
        commands=[("HGETALL", METADATA_KEY)],
        decode=lambda results: results[0],
        lane=Lane.READ,
    )
    values = {name.decode(): value for name, value in (await backend.run_request(request)).items()}
    return MetadataPage(sorted(item for item in values.items() if item[0].startswith(command.prefix)))


@gathers(weir_commands.EndWait)
async def _end_wait(backend: Backend, command: weir_commands.EndWait) -> Reply:
    """Silence is counted by the server, from the consumer's last command."""
    return True


@gathers(types.ConfigGet)
async def _config_get(backend: Backend, command: types.ConfigGet) -> Reply:
    """The server's settings are its own."""
    return NamedValues([])
