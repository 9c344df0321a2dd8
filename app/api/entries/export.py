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
from app.http.entries.entry_pages import WHERE, DirectedRange, GapReport, where
from app.http.models import INTEGER_MAX, GivenCursor, StreamName, Whole
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response, StreamingResponse
from engine import ids
from engine.commands.base import Command
from engine.commands.types import XRange, XRead
from engine.commands.weir_commands import DescribeEdges
from engine.replies import Edges, Entries, Gap, Reply, StreamsRead

router: Final = Router("entries")

# The most that is held of an export at any time, and about a millisecond of work.
PAGE_BYTES_MAX: Final = 256 << 10
_BETWEEN: Final = b',{"id":"'
_LINE: Final = b'\n{"id":"'


class ExportRange(DirectedRange):
    """Which entries an export has: as many as there are, unless `count` says otherwise."""

    after: GivenCursor | None = None
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
    bytes_max = request.reserve_some(PAGE_BYTES_MAX)
    begun = export.begin(await request.transaction(export.first(bytes_max)))
    headers = where(begun.next, begun.edges, None, begun.generation)
    return StreamingResponse(_lines(request, export, begun.text), headers, media_type=media.NDJSON.encode())


async def _lines(request: RequestParameter, export: "Export", text: bytes) -> AsyncGenerator[bytes, None]:
    if text:
        yield text
    while not export.done:
        bytes_max = request.reserve_some(PAGE_BYTES_MAX)
        text = export.go_on(await request.transaction(export.more(bytes_max)))
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
    # The generation of the cursor, empty where it says none; None where there is no cursor.
    known: str | None
    shows_generations: bool
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
            known=None if asked.after is None else asked.after.generation,
            shows_generations=asked.shows_generations and not asked.reverse,
        )

    def first(self, bytes_max: int) -> Sequence[Command]:
        """The commands of the first page, one turn."""
        if self.known is None:
            return self.more(bytes_max)
        return [
            *self.more(bytes_max),
            XRead(streams=[(self.stream, self.cursor)], count=1, known=[self.known]),
        ]

    def more(self, bytes_max: int) -> Sequence[Command]:
        """The commands of any other page, one turn."""
        low, high = (self.end, self.cursor - 1) if self.reverse else (self.cursor + 1, self.end)
        wanted = XRange(
            stream=self.stream,
            start=max(low, ids.ID_MIN),
            end=high,
            count=self.left,
            reverse=self.reverse,
            bytes_max=bytes_max,
            up_to_damage=True,
        )
        return [DescribeEdges(stream=self.stream), wanted]

    def begin(self, replies: Sequence[Reply]) -> "Beginning":
        """The first page, which fixes the end. Raises `gap` where that was asked for."""
        edges, entries = replies[:2]
        gap, self.edges = None, edges if isinstance(edges, Edges) else None
        if self.known is not None and isinstance(replies[2], StreamsRead) and replies[2].streams:
            gap = replies[2].streams[0].gap
        if gap is not None and self.fail_on_gap:
            raise self._report(gap).refused()
        if gap is not None and gap.next is not None:
            self.done = True
            return Beginning(self._line(gap), gap.next, self.edges, self._generation)
        if not self.reverse:
            self.end = min(self.end, self.edges.last_id if self.edges is not None else 0)
        everything = None if self.reverse or self.left is not None else max(self.end, self.cursor, 0)
        text = (self._line(gap) if gap is not None else b"") + self._lines(entries)
        if self.done and not self.reverse and everything is None:
            everything = max(self.cursor, 0)
        return Beginning(text, everything, self.edges, self._generation)

    def go_on(self, replies: Sequence[Reply]) -> bytes:
        """The next page, after a `gap` line if entries were removed since the page before."""
        edges, entries = replies
        assert isinstance(entries, Entries), "XRANGE answers entries"
        there = edges if isinstance(edges, Edges) else None
        gap = self._lost(there, entries)
        if gap is None:
            return self._lines(entries)
        line = self._line(gap, there.generation if there is not None and self.shows_generations else "")
        if self.fail_on_gap or not entries.count or gap.next is not None:
            self.done = True
            return line
        # In reverse order the gap comes after the page.
        return self._lines(entries) + line if self.reverse else line + self._lines(entries)

    @property
    def _generation(self) -> str:
        """What cursors are written with."""
        return self.edges.generation if self.edges is not None and self.shows_generations else ""

    def _report(self, gap: Gap, generation: str | None = None) -> GapReport:
        return GapReport(gap, self._generation if generation is None else generation, self.shows_generations)

    def _line(self, gap: Gap, generation: str | None = None) -> bytes:
        return b'{"gap":%b}\n' % self._report(gap, generation).text()

    def _lines(self, entries: Reply) -> bytes:
        assert isinstance(entries, Entries), "XRANGE answers entries"
        self.done = not entries.more
        if not entries.count:
            return b""
        self.cursor = entries.last
        if self.left is not None:
            self.left -= entries.count
            self.done = self.done or not self.left
        joined = entries.json() if self.fields is None else projection.project(entries.json(), self.fields)
        return joined.replace(_BETWEEN, _LINE) + b"\n"

    def _lost(self, edges: Edges | None, entries: Entries) -> Gap | None:
        """What a trim, or the end of the whole stream, took of what was still to come."""
        assert self.edges is not None, "there was a page before, and more to come"
        if entries.whole:
            return None
        if edges is None or edges.generation != self.edges.generation:
            first, reason = (0, "deleted") if edges is None else (edges.first_id, "recreated")
            return Gap(self.cursor, first, None, reason, 0)
        if not self.reverse:
            first = entries.first if entries.archived else edges.first_id
            return Gap(self.cursor, first, None) if self.cursor < edges.removed_upto else None
        overtaken = max(self.end, self.edges.removed_upto + 1) <= edges.removed_upto
        if overtaken and not entries.more and (not entries.count or edges.removed_upto < entries.last):
            return Gap(self.end, edges.first_id, None)
        return None


class Beginning(msgspec.Struct, frozen=True):
    """The first page, where to go on behind the whole export (None: not known yet), the stream's edges, and
    the generation of cursors where they have one.
    """

    text: bytes
    next: int | None
    edges: Edges | None
    generation: str
