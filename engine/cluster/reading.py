"""XREAD and XREADGROUP of one stream, as words for its server.

Knows: how cursors are resolved, how a gap is found. Must never know: waiting, several streams.
"""

from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec

from engine import ids
from engine.cluster import replies, scripts
from engine.cluster.group_scripts import read_group
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import WriteOrigin
from engine.cluster.wire import Words
from engine.cluster.words import by_script, sends
from engine.commands import Cursor, DescribeEdges, XRead, XReadGroup
from engine.generations import Generations, Identity, gap_of
from engine.replies import (
    Edges,
    Entries,
    Gap,
    StreamEntries,
    StreamsRead,
)

# What a read gives where it says nothing.
_COUNT: Final = 1_000
# What the server says of a stream's edges; what follows is of a cursor whose entry was lost.
_EDGES: Final = 4
# How streams ended is not known of a server.
_NO_GENERATIONS: Final = Generations()


class Found(NamedTuple):
    """What one stream gave: the cursor as it was resolved, the entries or None, and the generation, empty
    where the stream is missing.
    """

    after: int
    entries: StreamEntries | None
    generation: str


def read_request(command: XRead, place: int) -> BackendRequest:
    """XREAD of one of its streams. Reply: `Found`."""
    stream, cursor = command.streams[place]
    known = None if command.known is None else command.known[place]
    count = _COUNT if command.count is None else command.count
    given = cursor if isinstance(cursor, int) and cursor > 0 else None
    described = scripts.describe_edges(DescribeEdges(stream=stream), token_hex(8), given, count + 1)
    look = by_script(stream, described, Lane.READ)
    between: list[Words] = []
    if isinstance(cursor, int) and cursor < ids.ID_MAX:
        # One more says whether there are more.
        between = [("XRANGE", stream, ids.format(cursor + 1), "+", "COUNT", count + 1)]
    elif cursor is Cursor.LAST_ENTRY:
        between = [("XREVRANGE", stream, "+", "-", "COUNT", 1)]

    def decode(results: Sequence[Any]) -> Found:
        found: Edges | None = look.decode(results[:1])
        generation = "" if found is None else found.generation
        rows = results[1] if between else ()
        is_lost = found is not None and len(results[0]) > _EDGES
        if is_lost:
            *_, rows = results[0]
        entries = replies.entries_of(rows, count, command.bytes_max) if rows else Entries()
        if isinstance(cursor, int):
            after = cursor
        elif cursor is Cursor.LAST_ENTRY:
            after = max(0, entries.last - 1)
        else:
            after = 0 if found is None else found.last_id
        if known is not None:
            turned = gap_of(after, known, _identity(found), _NO_GENERATIONS)
            if turned is not None and not (is_lost and turned.reason == "ahead"):
                more = found is not None and found.first_id > 0 and found.last_id > turned.goes_on_after
                return Found(after, StreamEntries(stream, Entries(more=more), after, turned), generation)
        if found is None or not entries.count:
            return Found(after, None, generation)
        gap = Gap(after, found.first_id, None) if 0 < after < found.removed_upto else None
        if is_lost:
            gap = Gap(after, entries.first, None, "failover")
        told = None if cursor is Cursor.LAST_ENTRY else gap
        return Found(after, StreamEntries(stream, entries, after, told), generation)

    return msgspec.structs.replace(look, commands=[*look.commands, *between], decode=decode)


def _identity(found: Edges | None) -> Identity | None:
    if found is None:
        return None
    return Identity(found.generation, found.first_id, found.last_id, found.last_id > 0)


def streams_read(command: XRead, each: Sequence[Found]) -> StreamsRead:
    """The reply of all its streams."""
    return StreamsRead(
        [one.entries for one in each if one.entries is not None],
        [(stream, one.after) for (stream, _), one in zip(command.streams, each, strict=True)],
        (),
        () if command.known is None else [one.generation for one in each],
    )


@sends(XRead)
def _one_read(command: XRead, _: WriteOrigin) -> BackendRequest:
    """XREAD of one stream is one request."""
    request = read_request(command, 0)

    def decode(results: Sequence[Any]) -> StreamsRead:
        return streams_read(command, [request.decode(results)])

    return msgspec.structs.replace(request, decode=decode)


@sends(XReadGroup)
def _one_group_read(command: XReadGroup, _: WriteOrigin) -> BackendRequest:
    """So is XREADGROUP."""
    return by_script(command.streams[0][0], read_group(command), Lane.GROUP)
