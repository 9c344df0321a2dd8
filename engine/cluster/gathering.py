"""Commands that take several requests: of several streams, of all of them, of what Weir keeps beside them.

Knows: which requests, and how their replies become one; how the budget of a plan is shared, and when what it
names is durable. Must never know: connections, waiting.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex
from typing import Any, Final, Protocol, TypeVar

import msgspec

from engine import errors, ids
from engine.apportion import apportion
from engine.cluster import group_words, redrive, words
from engine.cluster.group_scripts import group_read, read_stream
from engine.cluster.keys import is_stream_name
from engine.cluster.reading import read_request, streams_read
from engine.cluster.refusals import not_supported
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import ScriptCall, Word, script, stream_keys
from engine.cluster.words import METADATA_KEY, by_script
from engine.commands import (
    Command,
    ConfigGet,
    DbSize,
    Delete,
    EndWait,
    Exists,
    FindDeadLetters,
    FindGroup,
    GiveBack,
    ListMetadata,
    ListStreams,
    MeasureStreams,
    Plan,
    Redrive,
    StreamInfos,
    XInfoGroups,
    XInfoStream,
    XRead,
    XReadGroup,
)
from engine.errors import EngineError
from engine.replies import (
    ConfigValues,
    GroupMeasure,
    Listing,
    Measured,
    MetadataPage,
    Planned,
    Presence,
    Reply,
    StreamDeliveries,
    StreamInfo,
    StreamMeasure,
    StreamPage,
    StreamPlan,
)

_GLOB: Final = re.compile(r"([\\*?\[\]])")
_INFOS_MAX: Final = 1_000
# Names that are tried at once: making the requests holds the loop up.
_TRIED_AT_ONCE: Final = 100

C = TypeVar("C", bound=Command)


class Backend(Protocol):
    """What runs requests."""

    @property
    def durability(self) -> str:
        """What an answer to a write promises."""

    async def run(self, request: BackendRequest) -> Any:  # noqa: ANN401 - as `decode` makes it
        """Run one. Raises EngineError."""

    async def scan(self, pattern: str) -> Sequence[bytes]:
        """The names of all streams that match, in no order."""

    async def is_allowed_all(self) -> bool:
        """Whether the servers let the gateway read any key. Raises EngineError."""


Gather = Callable[[Backend, Any], Awaitable[Reply]]
_GATHERERS: Final[dict[type[Command], Gather]] = {}


def gatherer(command: Command) -> Gather | None:
    """What runs the command, None where one request does."""
    if isinstance(command, XRead | XReadGroup) and len(command.streams) == 1:
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
    return await asyncio.gather(*map(backend.run, requests), return_exceptions=True)


def _all(found: Sequence[Any]) -> Sequence[Any]:
    """The same where none was refused. Raises EngineError."""
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


# --- reading


@gathers(XRead)
async def _read(backend: Backend, command: XRead) -> Reply:
    requests = [read_request(command, place) for place in range(len(command.streams))]
    return streams_read(command, _all(await _each(backend, requests)))


@gathers(XReadGroup)
async def _read_group(backend: Backend, command: XReadGroup) -> Reply:
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
    found = await _each(
        backend,
        [
            words.by_script(stream, read_stream(command, stream, cursor), Lane.GROUP)
            for stream, cursor in command.streams
        ],
    )
    if any(isinstance(one, BaseException) for one in found):
        await _give_back(backend, command, [one for one in found if isinstance(one, StreamDeliveries)])
    return group_read(_all(found))


async def _read_in_order(backend: Backend, command: XReadGroup) -> Reply:
    """One stream after the other, since what a group's read gives is delivered: each gets what is left."""
    found: list[StreamDeliveries] = []
    unfinished: list[str] = []
    left, has_given = command, False
    for stream, cursor in command.streams:
        if left.count_total == 0 or left.bytes_total == 0:
            unfinished.append(stream)
            continue
        call = read_stream(left, stream, cursor, has_given=has_given)
        try:
            one = await backend.run(words.by_script(stream, call, Lane.GROUP))
        except EngineError:
            await _give_back(backend, command, found)
            raise
        if has_given and one.more and not one.entries:
            unfinished.append(stream)
            continue
        found.append(one)
        left, has_given = _left_of(left, one), has_given or bool(one.entries)
    return msgspec.structs.replace(group_read(found), unfinished=unfinished)


def _left_of(command: XReadGroup, given: StreamDeliveries) -> XReadGroup:
    """The read of the other streams; a total of 0 where one is used up."""
    size = sum(len(one.text or b"") for one in given.entries)
    return msgspec.structs.replace(
        command,
        count_total=command.count_total and max(0, command.count_total - len(given.entries)),
        bytes_total=command.bytes_total and max(0, command.bytes_total - size),
    )


async def _give_back(backend: Backend, command: XReadGroup, found: Sequence[StreamDeliveries]) -> None:
    commands = [
        GiveBack(
            stream=one.stream,
            group=command.group,
            consumer=command.consumer,
            ids=[entry.id for entry in one.entries],
        )
        for one in found
        if one.entries and not one.history
    ]
    await _each(backend, [words.only_request(one) for one in commands])


@gathers(FindGroup)
async def _find_group(backend: Backend, command: FindGroup) -> Reply:
    looks = [words.only_request(XInfoGroups(stream=stream)) for stream in command.streams]
    found: list[Presence] = []
    for rows in await _each(backend, looks):
        if isinstance(rows, EngineError) and rows.code == "no_stream":
            found.append(Presence.NO_STREAM)
        elif isinstance(rows, BaseException):
            raise rows
        else:
            found.append(group_words.presence(rows, command.group))
    return found


@gathers(FindDeadLetters)
async def _find_dead_letters(backend: Backend, command: FindDeadLetters) -> Reply:
    return await redrive.find(backend.run, command)


@gathers(Redrive)
async def _redrive(backend: Backend, command: Redrive) -> Reply:
    return await redrive.redrive(backend.run, command)


@gathers(Exists)
async def _exists(backend: Backend, command: Exists) -> Reply:
    counts = _all(
        await _each(backend, [words.only_request(Exists(streams=[name])) for name in command.streams])
    )
    return len([count for count in counts if count])


@gathers(Delete)
async def _delete(backend: Backend, command: Delete) -> Reply:
    """Of several slots: each stream by itself."""
    each = [msgspec.structs.replace(command, streams=[name]) for name in dict.fromkeys(command.streams)]
    return len(
        [count for count in _all(await _each(backend, [words.only_request(one) for one in each])) if count]
    )


@gathers(Plan)
async def _plan(backend: Backend, command: Plan) -> Reply:
    async def run_each(requests: Sequence[BackendRequest]) -> Sequence[StreamPlan | None]:
        return _all(await _each(backend, requests))

    return await plan(run_each, command, backend.durability)


# --- all streams


async def _names(backend: Backend, prefix: str, after: str | None) -> list[str]:
    """The names of streams in order. Those that are no names here are of other programs."""
    found = await backend.scan(_GLOB.sub(r"\\\1", prefix) + "*")
    names = {name.decode() for name in found if is_stream_name(name)}
    return sorted(name for name in names if after is None or name > after)


async def _page(
    backend: Backend, prefix: str, after: str | None, most: int | None
) -> tuple[list[str], str | None]:
    """The first `most` streams of those that the gateway may read, and where to go on (None at the end): a
    server lists the keys that it does not let its user read, too.
    """
    names = await _names(backend, prefix, after)
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


@gathers(ListStreams)
async def _list(backend: Backend, command: ListStreams) -> Reply:
    if command.at is None:
        return Listing(*await _page(backend, command.prefix, command.after, command.limit))
    names, _ = await _page(backend, command.prefix, None, None)
    start = int(command.at * len(names))
    return Listing([*names[start:], *names[:start]][: command.limit])


@gathers(DbSize)
async def _db_size(backend: Backend, command: DbSize) -> Reply:
    names, _ = await _page(backend, "", None, None)
    return len(names)


@gathers(StreamInfos)
async def _infos(backend: Backend, command: StreamInfos) -> Reply:
    page, following = await _page(backend, command.prefix, command.after, min(command.limit, _INFOS_MAX))
    looked = await _each(backend, [words.only_request(XInfoStream(stream=name)) for name in page])
    rows = [(name, one) for name, one in zip(page, looked, strict=True) if not _is_gone(one)]
    _all([one for _, one in rows])
    return StreamPage(rows, following)


def _is_gone(found: object) -> bool:
    """Deleted since it was listed, or not to be read any more."""
    return isinstance(found, EngineError) and found.code in ("no_stream", "backend_forbidden")


@gathers(MeasureStreams)
async def _measure(backend: Backend, command: MeasureStreams) -> Reply:
    names = list(command.streams)
    infos = await _each(backend, [words.only_request(XInfoStream(stream=name)) for name in names])
    groups = await _each(backend, [words.only_request(XInfoGroups(stream=name)) for name in names])
    room, measured = command.groups_max, []
    for name, info, rows in zip(names, infos, groups, strict=True):
        if isinstance(info, StreamInfo) and not isinstance(rows, BaseException):
            given = [GroupMeasure(one.name, one.lag, one.pending, 0) for one in rows[:room]]
            room -= len(given)
            measured.append(
                StreamMeasure(name, info.length, info.memory_bytes, given, len(rows) - len(given))
            )
    return Measured(measured)


# --- beside the streams


@gathers(ListMetadata)
async def _list_metadata(backend: Backend, command: ListMetadata) -> Reply:
    request = BackendRequest(
        stream=METADATA_KEY,
        commands=[("HGETALL", METADATA_KEY)],
        decode=lambda found: found[0],
        lane=Lane.READ,
    )
    found = {name.decode(): value for name, value in (await backend.run(request)).items()}
    return MetadataPage(sorted(item for item in found.items() if item[0].startswith(command.prefix)))


@gathers(EndWait)
async def _end_wait(backend: Backend, command: EndWait) -> Reply:
    """Silence is counted by the server, from the consumer's last command."""
    return True


@gathers(ConfigGet)
async def _config_get(backend: Backend, command: ConfigGet) -> Reply:
    """The server's settings are its own."""
    return ConfigValues([])


RunEach = Callable[[Sequence[BackendRequest]], Awaitable[Sequence[StreamPlan | None]]]
_NOTHING: Final = "memory"


async def plan(run_each: RunEach, command: Plan, durability: str) -> Planned:
    """See `Plan`. With `durable_only` a plan is a write, whose confirmation is for all writes before it.
    Raises EngineError.
    """
    if command.durable_only and durability == _NOTHING:
        raise not_supported("durable_only", "backend_durability=memory")
    count = len(command.streams)
    entries, size = [command.max_entries] * count, [command.max_bytes] * count
    if count > 1 and not (command.max_entries is command.max_bytes is None):
        counted = await run_each(_requests(command, [None] * count, [None] * count))
        entries = _shares([0 if one is None else one.count for one in counted], command.max_entries)
        size = _shares([0 if one is None else one.bytes for one in counted], command.max_bytes)
    found = await run_each(_requests(command, entries, size))
    rows = list(zip([name for name, _ in command.streams], found, strict=True))
    return Planned([one for _, one in rows if one is not None], [name for name, one in rows if one is None])


def _shares(wanted: Sequence[int], budget: int | None) -> list[int | None]:
    return [None] * len(wanted) if budget is None else [*apportion(wanted, budget)]


def _requests(
    command: Plan, entries: Sequence[int | None], size: Sequence[int | None]
) -> list[BackendRequest]:
    rows = zip(command.streams, entries, size, strict=True)
    lane = Lane.WRITE if command.durable_only else Lane.READ
    return [
        by_script(name, _call(command, name, after, most, most_bytes), lane)
        for (name, after), most, most_bytes in rows
    ]


def _call(command: Plan, name: str, after: int, most: int | None, most_bytes: int | None) -> ScriptCall:
    end = command.ends.get(name)
    words: list[Word] = [token_hex(8), ids.format(after), "" if end is None else ids.format(end)]
    words += ["" if most is None else most, "" if most_bytes is None else most_bytes]
    words += [command.parts, int(command.durable_only)]

    def decode(reply: Any) -> StreamPlan | None:  # noqa: ANN401 - as the server sent it
        if reply is None:
            return None
        stop, count, size, *edges, generation, lag, cuts = reply
        first, last, removed_upto, max_deleted = map(ids.parse_canonical, edges)
        return StreamPlan(
            stream=name,
            after=after,
            end=ids.parse_canonical(stop),
            count=count,
            bytes=size,
            first_id=first,
            last_id=last,
            removed_upto=removed_upto,
            max_deleted_id=max_deleted,
            generation=generation.decode(),
            durable=last if command.durable_only else None,
            lag=lag,
            cuts=list(map(ids.parse_canonical, cuts)),
        )

    return ScriptCall(script("plan"), stream_keys(name)[:2], words, decode)
