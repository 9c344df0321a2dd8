"""Exports: a range of any length as lines, page by page.

Knows: which pages make up a range, what a line is, what to say where the range is trimmed meanwhile.
Must never know: sockets, how fast the lines are read.

The end is fixed before the first page: what is published meanwhile is not part of it, so that an export of a
stream that grows has an end, and `Weir-Next-Id` goes on exactly behind it.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Final

import msgspec
from fastapi import Query
from pydantic import Field

from app.auth import Action
from app.http import media, projection
from app.http.entries.entry_pages import WHERE, DirectedRange, gap_refused, gap_text, where
from app.http.models import INTEGER_MAX, EntryId, StreamName, Whole
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response, StreamingResponse
from engine import ids
from engine.commands import Command, DescribeEdges, XRange, XRead
from engine.replies import Edges, Entries, Gap, Reply, StreamsRead

router: Final = Router("entries")

# What is held of an export at any time, and about a millisecond of work.
PAGE_BYTES_MAX: Final = 256 << 10
_BETWEEN: Final = b',{"id":"'
_LINE: Final = b'\n{"id":"'


class ExportRange(DirectedRange):
    """Which entries an export has: as many as there are, unless `count` says otherwise."""

    after: Annotated[EntryId | None, Field(description="a cursor: an ID or `0`")] = None
    count: Annotated[
        Annotated[int, Whole(1, INTEGER_MAX)] | None, Field(description="maximum number of entries")
    ] = None


@router.get(
    "/v1/streams/{stream}/export",
    Action.READ,
    refusals=("malformed_id", "gap"),
    headers=WHERE,
    answers={
        "content": {
            media.NDJSON: {
                "schema": {
                    "type": "string",
                    "description": 'one entry a line; a line `{"gap": …}` where entries were removed',
                }
            }
        }
    },
)
async def export_entries(
    request: RequestParameter, stream: StreamName, asked: Annotated[ExportRange, Query()]
) -> Response:
    """Export a range of any length, one entry a line.

    The lines come as fast as they are read. The end is fixed when the export starts: what is published
    meanwhile is not part of it, and `Weir-Next-Id` goes on behind it.
    """
    export = Export.of(stream, asked)
    begun = export.begin(await request.transaction(export.first()))
    headers = where(begun.next, begun.edges, None)
    return StreamingResponse(_lines(request, export, begun.text), headers, media_type=media.NDJSON.encode())


async def _lines(request: RequestParameter, export: "Export", text: bytes) -> AsyncGenerator[bytes, None]:
    if text:
        yield text
    while not export.done:
        text = export.go_on(await request.transaction(export.more()))
        if text:
            yield text


class Export(msgspec.Struct):
    """A range and how far it has been read. `left` entries are still to come, None for no limit.

    Forwards it goes from above `cursor` up to `end`, backwards from below `cursor` down to `end`.
    """

    stream: str
    cursor: int
    end: int
    reverse: bool
    left: int | None
    fields: Sequence[str] | None
    fail_on_gap: bool
    is_cursor: bool
    edges: Edges | None = None
    done: bool = False

    @classmethod
    def of(cls, stream: str, asked: ExportRange) -> "Export":
        """The range before its first page."""
        low, high = asked.first(), asked.last_id()
        return cls(
            stream=stream,
            cursor=high + 1 if asked.reverse else low - 1,
            end=low if asked.reverse else high,
            reverse=bool(asked.reverse),
            left=asked.count,
            fields=asked.fields,
            fail_on_gap=asked.fails_on_gap,
            is_cursor=asked.after is not None,
        )

    def first(self) -> Sequence[Command]:
        """The commands of the first page, one turn."""
        look = [XRead(streams=[(self.stream, self.cursor)], count=1)] if self.is_cursor else []
        return [*self.more(), *look]

    def more(self) -> Sequence[Command]:
        """The commands of any other page, one turn."""
        low, high = (self.end, self.cursor - 1) if self.reverse else (self.cursor + 1, self.end)
        wanted = XRange(
            stream=self.stream,
            start=max(low, ids.ID_MIN),
            end=high,
            count=self.left,
            reverse=self.reverse,
            bytes_max=PAGE_BYTES_MAX,
        )
        return [DescribeEdges(stream=self.stream), wanted]

    def begin(self, replies: Sequence[Reply]) -> "Beginning":
        """The first page, which fixes the end. Raises `gap` where that was asked for."""
        edges, found = replies[:2]
        gap = None
        if self.is_cursor and isinstance(replies[2], StreamsRead) and replies[2].streams:
            gap = replies[2].streams[0].gap
        if gap is not None and self.fail_on_gap:
            raise gap_refused(gap)
        self.edges = edges if isinstance(edges, Edges) else None
        if not self.reverse:
            self.end = min(self.end, self.edges.last_id if self.edges is not None else 0)
        everything = None if self.reverse or self.left is not None else max(self.end, self.cursor, 0)
        text = (_line(gap) if gap is not None else b"") + self._lines(found)
        if self.done and not self.reverse and everything is None:
            everything = max(self.cursor, 0)
        return Beginning(text, everything, self.edges)

    def go_on(self, replies: Sequence[Reply]) -> bytes:
        """The next page, after a `gap` line if entries were removed since the page before."""
        edges, found = replies
        assert isinstance(found, Entries), "XRANGE answers entries"
        gap = self._lost(edges if isinstance(edges, Edges) else None, found)
        if gap is None:
            return self._lines(found)
        if self.fail_on_gap or not found.count or not gap.first_available:
            self.done = True
            return _line(gap)
        # In reverse order the gap comes after the page.
        return self._lines(found) + _line(gap) if self.reverse else _line(gap) + self._lines(found)

    def _lines(self, found: Reply) -> bytes:
        assert isinstance(found, Entries), "XRANGE answers entries"
        self.done = not found.more
        if not found.count:
            return b""
        self.cursor = found.last
        if self.left is not None:
            self.left -= found.count
            self.done = self.done or not self.left
        joined = found.json() if self.fields is None else projection.project(found.json(), self.fields)
        return joined.replace(_BETWEEN, _LINE) + b"\n"

    def _lost(self, edges: Edges | None, found: Entries) -> Gap | None:
        """What a trim, or the end of the whole stream, took of what was still to come."""
        assert self.edges is not None, "there was a page before, and more to come"
        if edges is None or edges.generation != self.edges.generation:
            return Gap(self.cursor, 0, None)
        if not self.reverse:
            return Gap(self.cursor, edges.first_id, None) if self.cursor < edges.removed_upto else None
        overtaken = max(self.end, self.edges.removed_upto + 1) <= edges.removed_upto
        if overtaken and not found.more and (not found.count or edges.removed_upto < found.last):
            return Gap(self.end, edges.first_id, None)
        return None


class Beginning(msgspec.Struct, frozen=True):
    """The first page, where to go on behind the whole export (None: not known yet), the stream's edges."""

    text: bytes
    next: int | None
    edges: Edges | None


def _line(gap: Gap) -> bytes:
    return b'{"gap":%b}\n' % gap_text(gap)
