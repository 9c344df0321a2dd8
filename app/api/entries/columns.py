"""Pages of columns: a range's entries as flat lists, for readers that take millions of them.

Knows: what a page asks for, in which slices it is read, how entries become lists.
Must never know: sockets, who reads.

    {"ms": […], "seq": […], "n": [fields an entry], "kd": [names], "k": [each field's place in kd], "v": […]}

The end is fixed before the first slice. A page that is overtaken by a trim ends before what went lost, so
that the read that goes on behind it is the one that is told.
"""

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from typing import Annotated, Final, Self

import msgspec
from fastapi import Query
from pydantic import Field, model_validator

from app.auth import Action
from app.http import media
from app.http.entries.entry_pages import WHERE, EntryRange, gap_refused, where
from app.http.models import Count, EntryId, Flag, ResponseModel, StreamName, Whole, absent, wrong
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response
from app.settings import Settings
from engine import ids
from engine.commands import Command, DescribeEdges, XRange
from engine.replies import Edges, Entries, Gap, Reply

router: Final = Router("entries")

# One turn's work, and one step of making lists: a few milliseconds.
SLICE_BYTES_MAX: Final = 256 << 10
# Of a page that names no limit.
PAGE_BYTES_DEFAULT: Final = 4 << 20


class ColumnsRange(EntryRange):
    """Which entries a page of columns has. They are read forwards, without waiting."""

    after: Annotated[EntryId | None, Field(description="a cursor: an ID or `0`")] = None
    count: Annotated[
        Annotated[int, Whole(1, "columns_count_max")] | None,
        Field(description="maximum number of entries, by default the largest"),
    ] = None
    max_bytes: Annotated[
        Annotated[int, Whole(1, "answer_bytes_max")] | None,
        Field(description="maximum bytes of entries, but one entry; 4 MiB by default"),
    ] = None


class AcceptedColumns(ColumnsRange):
    """The same where Accept asks for it: what other forms of the answer take may stand there, and ask for
    nothing.
    """

    reverse: Flag | None = None
    last: Annotated[int, Whole()] | None = None
    wait: Annotated[int, Whole()] | None = None

    @model_validator(mode="after")
    def _check_forwards(self) -> Self:
        for name in ("reverse", "last", "wait"):
            if name in self.asked():
                raise wrong("it does not go with columns, which are read forwards and do not wait", at=name)
        return self


class Columns(ResponseModel):
    """Entries as flat lists: both halves of each ID, unsigned 64-bit; `n` fields of each entry; and of every
    field in order its name's place in `kd` and its value. With `b64` all of `kd` and `v` is base64.
    """

    ms: list[int]
    seq: list[int]
    n: list[Count]
    kd: list[str]
    k: list[Count]
    v: list[str]
    b64: Annotated[bool, Field(description="some value is not UTF-8")] = absent()


@router.get(
    "/v1/streams/{stream}/columns",
    Action.READ,
    refusals=("malformed_id", "gap"),
    headers={
        **WHERE,
        "Weir-More": "whether a limit, not the end, ended the page",
        "Weir-Removed-Upto": "a cursor other than 0-0 below it has missed entries",
    },
    answers={"content": {media.COLUMNS: {"schema": {"$ref": "#/components/schemas/Columns"}}}},
    described=(Columns,),
)
async def read_columns(
    request: RequestParameter, stream: StreamName, asked: Annotated[ColumnsRange, Query()]
) -> Response:
    """Read a page of entries as flat lists, for readers of millions of entries.

    docs/bulk.md describes it. Go on with `after` and the `Weir-Next-Id` of the page before.
    """
    page = ColumnsPage.of(stream, asked, request.gateway.settings)
    page.begin(await request.transaction(page.commands()))
    while not page.done:
        # Others come between two slices.
        await asyncio.sleep(0)
        page.go_on(await request.transaction(page.commands()))
    made = await _build(page, ColumnsBuilder(page.fields))
    if made.spoilt:
        made = await _build(page, ColumnsBuilder(page.fields, binary=True))
    headers = where(max(page.cursor, ids.ID_MIN), page.edges, None)
    headers.append((b"weir-more", b"true" if page.more else b"false"))
    if page.edges is not None:
        headers.append((b"weir-removed-upto", ids.format(page.edges.removed_upto).encode()))
    return Response(200, made.body(), headers, media_type=media.COLUMNS.encode())


async def read_accepted_columns(
    request: RequestParameter, stream: StreamName, asked: Annotated[AcceptedColumns, Query()]
) -> Response:
    """The same where Accept asks for it."""
    return await read_columns(request, stream, asked)


async def _build(page: "ColumnsPage", made: "ColumnsBuilder") -> "ColumnsBuilder":
    for text in page.texts:
        made.add(text)
        if made.spoilt:
            break
        await asyncio.sleep(0)
    return made


class ColumnsPage(msgspec.Struct):
    """A page while it is read, slice by slice: above `cursor` up to `end`."""

    stream: str
    cursor: int
    end: int
    left: int
    bytes_left: int
    fields: Sequence[str] | None
    fail_on_gap: bool
    is_cursor: bool
    texts: list[bytes]
    edges: Edges | None = None
    more: bool = False
    done: bool = False

    @classmethod
    def of(cls, stream: str, asked: ColumnsRange, settings: Settings) -> "ColumnsPage":
        """The page before its first slice."""
        return cls(
            stream=stream,
            cursor=asked.first() - 1,
            end=asked.last_id(),
            left=asked.count or settings.columns_count_max,
            bytes_left=asked.max_bytes or min(PAGE_BYTES_DEFAULT, settings.answer_bytes_max),
            fields=asked.fields,
            fail_on_gap=asked.fails_on_gap,
            is_cursor=asked.after is not None,
            texts=[],
        )

    def commands(self) -> Sequence[Command]:
        """The commands of the next slice, one turn."""
        wanted = XRange(
            stream=self.stream,
            start=self.cursor + 1,
            end=self.end,
            count=self.left,
            bytes_max=min(self.bytes_left, SLICE_BYTES_MAX),
        )
        return [DescribeEdges(stream=self.stream), wanted]

    def begin(self, replies: Sequence[Reply]) -> None:
        """The first slice, which fixes the end. Raises `gap` where that was asked for."""
        edges, found = replies
        self.edges = edges if isinstance(edges, Edges) else None
        if self.edges is None:
            self.done = True
            return
        gap = 0 < self.cursor < self.edges.removed_upto and self.is_cursor
        if gap and self.fail_on_gap:
            raise gap_refused(Gap(self.cursor, self.edges.first_id, None))
        self.end = min(self.end, self.edges.last_id)
        self._take(found)

    def go_on(self, replies: Sequence[Reply]) -> None:
        """Another slice."""
        edges, found = replies
        assert self.edges is not None, "there was a slice before"
        lost = (
            not isinstance(edges, Edges)
            or edges.generation != self.edges.generation
            or self.cursor < edges.removed_upto
        )
        if lost:
            self.done = self.more = True
        else:
            self._take(found)

    def _take(self, found: Reply) -> None:
        assert isinstance(found, Entries), "XRANGE answers entries"
        self.more = found.more
        self.done = not found.more
        if not found.count:
            return
        text = found.json()
        if self.texts and len(text) > self.bytes_left:
            # A slice has one entry at least, a page only where it has no other.
            self.done = self.more = True
            return
        self.texts.append(text)
        self.cursor = found.last
        self.left -= found.count
        self.bytes_left -= len(text)
        self.done = self.done or self.left <= 0 or self.bytes_left <= 0


class _Stored(msgspec.Struct, gc=False):
    id: str
    fields: dict[str, str]
    encoding: str | None = None
    pairs: list[tuple[str, str]] | None = None


# For 1,000 entries orjson takes 6 times as long as msgspec (CPU time, `python -m bench.decoding`):
# docs/decisions/msgspec-for-entries-and-frames.md.
_decode: Final = msgspec.json.Decoder(list[_Stored]).decode
_encode: Final = msgspec.json.Encoder().encode


class ColumnsBuilder:
    """Entries becoming lists, a slice at a time. Each list is kept as JSON text, so that it is made once.

    Once a value is found that is not UTF-8 it is `spoilt`, and has to be begun anew with `binary`: names and
    values are base64 then, all of them.
    """

    def __init__(self, fields: Sequence[str] | None, *, binary: bool = False) -> None:
        self._wanted = None if fields is None else frozenset(fields)
        self._binary = binary
        self.spoilt = False
        self._places: dict[str, int] = {}
        # The places of an entry's names, for each row of names that entries have.
        self._shapes: dict[tuple[str, ...], list[int]] = {}
        self._ms: list[str] = []
        self._sequences: list[str] = []
        self._counts: list[bytes] = []
        self._keys: list[bytes] = []
        self._values: list[bytes] = []

    def add(self, text: bytes) -> None:
        """Entries joined by commas."""
        found = _decode(b"[%b]" % text)
        counts: list[int] = []
        keys: list[int] = []
        values: list[str | bytes] = []
        for entry in found:
            names, texts = self._fields(entry)
            places = self._shapes.get(names)
            if places is None:
                places = self._shape(names)
            counts.append(len(names))
            keys += places
            values += texts
        if self.spoilt:
            return
        # The halves of all IDs in turn: no number is parsed, however large.
        halves = "-".join([entry.id for entry in found]).split("-")
        self._ms += halves[::2]
        self._sequences += halves[1::2]
        self._counts.append(_inside(counts))
        if keys:
            self._keys.append(_inside(keys))
            # msgspec writes bytes as base64.
            self._values.append(_inside(values))

    def _fields(self, entry: _Stored) -> tuple[tuple[str, ...], Sequence[str | bytes]]:
        """Names and values of one entry, in order."""
        if self._wanted is None and entry.pairs is None and entry.encoding is None and not self._binary:
            # Nearly all of them.
            return tuple(entry.fields), list(entry.fields.values())
        pairs = list(entry.fields.items()) if entry.pairs is None else entry.pairs
        if self._wanted is not None:
            pairs = [pair for pair in pairs if pair[0] in self._wanted]
        names = tuple([name for name, _ in pairs])
        if entry.encoding is None and not self._binary:
            return names, [value for _, value in pairs]
        raw = [value.encode() if entry.encoding is None else b64decode(value) for _, value in pairs]
        if self._binary:
            return names, raw
        try:
            return names, [value.decode() for value in raw]
        except UnicodeDecodeError:
            self.spoilt = True
            return names, raw

    def _shape(self, names: tuple[str, ...]) -> list[int]:
        places = [self._places.setdefault(name, len(self._places)) for name in names]
        self._shapes[names] = places
        return places

    def body(self) -> bytes:
        """The page."""
        names: list[str] | list[bytes] = list(self._places)
        if self._binary:
            names = [name.encode() for name in self._places]
        return b'{"ms":[%b],"seq":[%b],"n":[%b],"kd":%b,"k":[%b],"v":[%b]%b}' % (
            ",".join(self._ms).encode(),
            ",".join(self._sequences).encode(),
            b",".join(self._counts),
            _encode(names),
            b",".join(self._keys),
            b",".join(self._values),
            b',"b64":true' if self._binary else b"",
        )


def _inside(values: Sequence[object]) -> bytes:
    return _encode(values)[1:-1]
