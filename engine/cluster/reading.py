"""XREAD and XREADGROUP of one stream, as words for its server.

Knows: how cursors are resolved, how a gap is found. Must never know: waiting, several streams.
"""

from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Final

import msgspec

from engine import ids
from engine.cluster import replies, scripts
from engine.cluster.group_scripts import read_group
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import WriteOrigin
from engine.cluster.wire import Words
from engine.cluster.words import by_script, sends
from engine.commands import Cursor, DescribeEdges, XRead, XReadGroup
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


def read_request(command: XRead, stream: str, cursor: int | Cursor) -> BackendRequest:
    """XREAD of one of its streams. Reply: the cursor as it was resolved, and the entries or None."""
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

    def decode(results: Sequence[Any]) -> tuple[int, StreamEntries | None]:
        found: Edges | None = look.decode(results[:1])
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
        if found is None or not entries.count:
            return after, None
        gap = Gap(after, found.first_id, None) if 0 < after < found.removed_upto else None
        if is_lost:
            gap = Gap(after, entries.first, None, "failover")
        return after, StreamEntries(stream, entries, after, None if cursor is Cursor.LAST_ENTRY else gap)

    return msgspec.structs.replace(look, commands=[*look.commands, *between], decode=decode)


@sends(XRead)
def _one_read(command: XRead, _: WriteOrigin) -> BackendRequest:
    """XREAD of one stream is one request."""
    ((stream, cursor),) = command.streams
    request = read_request(command, stream, cursor)

    def decode(results: Sequence[Any]) -> StreamsRead:
        after, entries = request.decode(results)
        return StreamsRead([] if entries is None else [entries], [(stream, after)])

    return msgspec.structs.replace(request, decode=decode)


@sends(XReadGroup)
def _one_group_read(command: XReadGroup, _: WriteOrigin) -> BackendRequest:
    """So is XREADGROUP."""
    return by_script(command.streams[0][0], read_group(command), Lane.GROUP)
