"""XREAD and XREADGROUP of one stream, as words for its server.

Knows: how cursors are resolved, how a gap is found. Must never know: waiting, several streams.
"""

from collections.abc import Sequence
from itertools import takewhile
from secrets import token_hex
from sys import maxsize
from typing import Any, Final, NamedTuple

import msgspec

from engine import entries, ids
from engine.cluster import replies, scripts
from engine.cluster.group_scripts import read_group
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import WriteOrigin
from engine.cluster.wire import Words
from engine.cluster.words import by_script, sends
from engine.commands import Cursor, DescribeEdges, XRead, XReadGroup
from engine.commands.reading import Budget
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
    most = command.count_of_one
    count = _COUNT if most is None else most
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
        run = replies.entries_of(rows, count, command.bytes_of_all) if rows else Entries()
        if isinstance(cursor, int):
            after = cursor
        elif cursor is Cursor.LAST_ENTRY:
            after = max(0, run.last - 1)
        else:
            after = 0 if found is None else found.last_id
        if known is not None:
            turned = gap_of(after, known, _identity(found), _NO_GENERATIONS)
            if turned is not None and not (is_lost and turned.reason == "ahead"):
                more = found is not None and found.first_id > 0 and found.last_id > turned.goes_on_after
                return Found(after, StreamEntries(stream, Entries(more=more), after, turned), generation)
        if found is None or not run.count:
            return Found(after, None, generation)
        gap = Gap(after, found.first_id, None) if 0 < after < found.removed_upto else None
        if is_lost:
            gap = Gap(after, run.first, None, "failover")
        reported = None if cursor is Cursor.LAST_ENTRY else gap
        return Found(after, StreamEntries(stream, run, after, reported), generation)

    return msgspec.structs.replace(look, commands=[*look.commands, *between], decode=decode)


def _identity(found: Edges | None) -> Identity | None:
    if found is None:
        return None
    return Identity(found.generation, found.first_id, found.last_id, found.last_id > 0)


def streams_read(command: XRead, each: Sequence[Found]) -> StreamsRead:
    """The reply of all its streams, which share what one read gives: the first ones have it."""
    room = Budget(command.bytes_of_all, maxsize, command.count_total)
    given: list[StreamEntries] = []
    unfinished: list[str] = []
    for one in [one.entries for one in each if one.entries is not None]:
        cut = _within(room, one)
        if cut is None:
            unfinished.append(one.stream)
        else:
            given.append(cut)
    return StreamsRead(
        given,
        [(stream, one.after) for (stream, _), one in zip(command.streams, each, strict=True)],
        unfinished,
        () if command.known is None else [one.generation for one in each],
    )


def _within(room: Budget, found: StreamEntries) -> StreamEntries | None:
    """What there is room for; None if that is none of its entries."""
    run = found.entries
    texts = [*takewhile(lambda text: room.takes(len(text)), run.parts)]
    if len(texts) == run.count:
        return found
    if not texts:
        return None
    cut = Entries(texts, len(texts), run.first, entries.id_of(texts[-1]), more=True)
    return msgspec.structs.replace(found, entries=cut)


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
