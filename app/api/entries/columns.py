"""Pages of columns: a range's entries as flat lists, for readers that take millions of them.

Knows: what a page asks for, in which slices it is read, how entries become lists.
Must never know: sockets, who reads.

    {"ms": […], "seq": […], "n": [fields an entry], "kd": [names], "k": [each field's place in kd], "v": […]}

The end is fixed before the first slice. A page that is overtaken by a trim ends before what went lost, so
that the next read, which starts behind it, reports the error.
"""

import asyncio
import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

import msgspec
from fastapi import Query
from pydantic import Field, model_validator

from app.auth import Action
from app.http import media
from app.http.entries.entry_pages import WHERE, EntryRange, GapReport, where
from app.http.models import ABSENT, Count, Flag, GivenCursor, ResponseModel, StreamName, Whole, wrong
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response
from app.settings import Settings
from engine import EngineError, entries, ids
from engine.commands.base import Command
from engine.commands.types import XRange, XRead
from engine.commands.weir_commands import DescribeEdges
from engine.errors import ENTRIES_DAMAGED
from engine.replies import Edges, Entries, Gap, Reply, StreamsRead

router: Final = Router("entries")

# One turn's work, and one step of making lists: a few milliseconds.
SLICE_BYTES_MAX: Final = 256 << 10
# Of a page that names no limit.
PAGE_BYTES_DEFAULT: Final = 4 << 20
# A page is there as entries and as lists of their parts, and then as these and as the body.
_COPIES: Final = 2


class ColumnsRange(EntryRange):
    """Which entries a page of columns has. They are read forwards, without waiting."""

    after: GivenCursor | None = None
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
            if name in self.effective():
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
    b64: Annotated[bool, Field(description="some value is not UTF-8")] = ABSENT


@router.get(
    "/v1/streams/{stream}/columns",
    Action.READ,
    refusals=("malformed_id", "gap"),
    headers={
        **WHERE,
        "Weir-More": "whether a limit, not the end, ended the page",
        "Weir-Removed-Upto": "a cursor other than 0-0 below it has missed entries",
        "Weir-Gap": "why the cursor is not of this stream: the `reason` of a gap; there are no entries",
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
    page = ColumnsReading.of(stream, asked, request.gateway.settings)
    page.bytes_left = min(page.bytes_left, request.reserve_some(_COPIES * page.bytes_left) // _COPIES)
    page.begin(await request.transaction(page.first()))
    while not page.done:
        # Others come between two slices.
        await asyncio.sleep(0)
        try:
            page.go_on(await request.transaction(page.commands()))
        except EngineError as refusal:
            page.end_before(refusal)
    made = await _build(page, ColumnsBuilder(page.fields))
    if made.spoilt:
        made = await _build(page, ColumnsBuilder(page.fields, binary=True))
    page.texts.clear()
    following = page.cursor if page.gap is None else page.gap.goes_on_after
    headers = where(max(following, ids.ID_MIN), page.edges, None, page.generation)
    if page.gap is not None and page.gap.reason is not None:
        headers.append((b"weir-gap", page.gap.reason.encode()))
    headers.append((b"weir-more", b"true" if page.more else b"false"))
    if page.edges is not None:
        headers.append((b"weir-removed-upto", ids.format(page.missed_upto).encode()))
    return Response(200, made.body(), headers, media_type=media.COLUMNS.encode())


async def read_accepted_columns(
    request: RequestParameter, stream: StreamName, asked: Annotated[AcceptedColumns, Query()]
) -> Response:
    """The same where Accept asks for it."""
    return await read_columns(request, stream, asked)


async def _build(page: "ColumnsReading", made: "ColumnsBuilder") -> "ColumnsBuilder":
    for text in page.texts:
        made.add(text)
        if made.spoilt:
            break
        await asyncio.sleep(0)
    return made


class ColumnsReading(msgspec.Struct):
    """A page while it is read, slice by slice: above `cursor` up to `end`."""

    stream: str
    cursor: int
    end: int
    left: int
    bytes_left: int
    fields: Sequence[str] | None
    fail_on_gap: bool
    # The generation of the cursor, empty where it says none; None where there is no cursor.
    known: str | None
    shows_generations: bool
    texts: list[bytes]
    # Where the cursor is of another stream.
    gap: Gap | None = None
    edges: Edges | None = None
    # What a cursor before it has missed: what the archive has is not missed.
    missed_upto: int = 0
    more: bool = False
    done: bool = False

    @classmethod
    def of(cls, stream: str, asked: ColumnsRange, settings: Settings) -> "ColumnsReading":
        """The page before its first slice."""
        return cls(
            stream=stream,
            cursor=asked.first() - 1,
            end=asked.last_id(),
            left=asked.count or settings.columns_count_max,
            bytes_left=asked.max_bytes or min(PAGE_BYTES_DEFAULT, settings.answer_bytes_max),
            fields=asked.fields,
            fail_on_gap=asked.fails_on_gap,
            known=None if asked.after is None else asked.after.generation,
            shows_generations=asked.shows_generations,
            texts=[],
        )

    @property
    def generation(self) -> str:
        """What cursors are written with."""
        return self.edges.generation if self.edges is not None and self.shows_generations else ""

    def first(self) -> Sequence[Command]:
        """The commands of the first slice, one turn."""
        if self.known is None:
            return self.commands()
        return [*self.commands(), XRead(streams=[(self.stream, self.cursor)], count=1, known=[self.known])]

    def commands(self) -> Sequence[Command]:
        """The commands of the next slice, one turn."""
        wanted = XRange(
            stream=self.stream,
            start=self.cursor + 1,
            end=self.end,
            count=self.left,
            bytes_max=min(self.bytes_left, SLICE_BYTES_MAX),
            up_to_damage=True,
        )
        return [DescribeEdges(stream=self.stream), wanted]

    def begin(self, replies: Sequence[Reply]) -> None:
        """The first slice, which fixes the end. Raises `gap` where that was asked for."""
        edges, entries, *looked = replies
        self.edges = edges if isinstance(edges, Edges) else None
        assert isinstance(entries, Entries), "XRANGE answers entries"
        self._compare(looked, is_whole=entries.whole)
        if self.edges is None or self.gap is not None:
            self.done = True
            return
        self.end = min(self.end, self.edges.last_id)
        self._take(entries)

    def end_before(self, refusal: EngineError) -> None:
        """End the page where the next slice cannot be read. Raises the refusal where there is none before."""
        if refusal.code != ENTRIES_DAMAGED or not self.texts:
            raise refusal
        self.done = self.more = True

    def _compare(self, looked: Sequence[Reply], *, is_whole: bool) -> None:
        """Find out whether the cursor is of this stream, and what was removed behind it."""
        gap = None
        for reply in looked:
            if isinstance(reply, StreamsRead) and reply.streams:
                gap = reply.streams[0].gap
                self.more = reply.streams[0].entries.more
        if self.edges is not None:
            removed_upto = self.edges.removed_upto
            self.missed_upto = min(max(self.cursor, 0), removed_upto) if is_whole else removed_upto
        if gap is None and self.edges is not None and self.known is not None:
            removed = 0 < self.cursor < self.missed_upto
            gap = Gap(self.cursor, self.edges.first_id, None) if removed else None
        elif gap is not None and gap.next is None:
            # The archive begins behind the cursor, or lacks what comes next.
            self.missed_upto = min(self.missed_upto, gap.first_available - 1)
        if gap is not None and self.fail_on_gap:
            raise GapReport(gap, self.generation, self.shows_generations).refused()
        self.gap = gap if gap is not None and gap.next is not None else None

    def go_on(self, replies: Sequence[Reply]) -> None:
        """Another slice."""
        edges, entries = replies
        assert self.edges is not None, "there was a slice before"
        lost = (
            not isinstance(edges, Edges)
            or edges.generation != self.edges.generation
            or (self.cursor < edges.removed_upto and not (isinstance(entries, Entries) and entries.whole))
        )
        if lost:
            self.done = self.more = True
        else:
            self._take(entries)

    def _take(self, entries: Reply) -> None:
        assert isinstance(entries, Entries), "XRANGE answers entries"
        self.more = entries.more
        self.done = not entries.more
        if not entries.count:
            return
        text = entries.json()
        if self.texts and len(text) > self.bytes_left:
            # A slice has one entry at least, a page only where it has no other.
            self.done = self.more = True
            return
        self.texts.append(text)
        self.cursor = entries.last
        self.left -= entries.count
        self.bytes_left -= len(text)
        self.done = self.done or self.left <= 0 or self.bytes_left <= 0


class _ColumnEntry(msgspec.Struct, gc=False):
    id: str
    fields: dict[str, str]
    encoding: str | None = None
    pairs: list[tuple[str, str]] | None = None


# For 1,000 entries orjson takes 6 times as long as msgspec (CPU time, `python -m bench.decoding`):
# docs/decisions/msgspec-for-entries-and-frames.md.
_decode: Final = msgspec.json.Decoder(list[_ColumnEntry]).decode
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
        # Until a slice is found that is not.
        self._uniform = fields is None and not binary
        self._places: dict[str, int] = {}
        # The places of an entry's names, for each row of names that entries have.
        self._shapes: dict[tuple[str, ...], list[int]] = {}
        self._ms: list[bytes] = []
        self._sequences: list[bytes] = []
        self._counts: list[bytes] = []
        self._keys: list[bytes] = []
        self._values: list[bytes] = []

    def add(self, text: bytes) -> None:
        """Entries joined by commas."""
        uniform = split_uniform(text) if self._uniform else None
        self._uniform = uniform is not None
        if uniform is None:
            self._add_each(text)
            return
        names, entry_ids, values = uniform
        self._add_ids(b"-".join(entry_ids))
        self._counts.append(_inside([len(names)] * len(entry_ids)))
        self._keys.append(_inside((self._shapes.get(names) or self._shape(names)) * len(entry_ids)))
        self._values.append(b'"%b"' % b'","'.join(values))

    def _add_each(self, text: bytes) -> None:
        entries = _decode(b"[%b]" % text)
        counts: list[int] = []
        keys: list[int] = []
        values: list[str | bytes] = []
        for entry in entries:
            names, texts = self._fields(entry)
            places = self._shapes.get(names)
            if places is None:
                places = self._shape(names)
            counts.append(len(names))
            keys += places
            values += texts
        if self.spoilt:
            return
        self._add_ids("-".join([entry.id for entry in entries]).encode())
        self._counts.append(_inside(counts))
        if keys:
            self._keys.append(_inside(keys))
            # msgspec writes bytes as base64.
            self._values.append(_inside(values))

    def _add_ids(self, joined: bytes) -> None:
        """IDs joined by `-`: their halves take turns. No number is parsed, however large."""
        halves = joined.split(b"-")
        self._ms.append(b",".join(halves[::2]))
        self._sequences.append(b",".join(halves[1::2]))

    def _fields(self, entry: _ColumnEntry) -> tuple[tuple[str, ...], Sequence[str | bytes]]:
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
        # At once: a list that is joined by itself would be one more copy.
        return b"".join(
            [
                *(b'{"ms":[', *_separated(self._ms), b'],"seq":[', *_separated(self._sequences)),
                *(b'],"n":[', *_separated(self._counts), b'],"kd":', _encode(names)),
                *(b',"k":[', *_separated(self._keys), b'],"v":[', *_separated(self._values)),
                b'],"b64":true}' if self._binary else b"]}",
            ]
        )


def _separated(pieces: Sequence[bytes]) -> Iterator[bytes]:
    for place, piece in enumerate(pieces):
        if place:
            yield b","
        yield piece


def _inside(values: Sequence[object]) -> bytes:
    return _encode(values)[1:-1]


# ---- slices whose entries all have the same names

# Names without quotes and escapes: JSON writes them as they are.
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
# Each name costs a search of the slice. With more than these, decoding takes no longer.
_NAMES_MAX: Final = 4
_END: Final = b"\x1f"
# What no string of JSON holds as it is: here they are marks. A quote or an escape that is left is one too.
_MARKS: Final = bytes([*range(32), *b'"\\'])
_UNMARKED: Final = bytes(byte for byte in range(256) if byte not in _MARKS)
_TO_END: Final = bytes(_END[0] if byte in _MARKS else byte for byte in range(256))


def split_uniform(text: bytes) -> tuple[tuple[str, ...], list[bytes], list[bytes]] | None:
    """The names of each entry, the IDs, and the values as they stand between quotes; None unless all entries
    have the same names in the same order, and nothing is escaped.

    With one field it takes half of the time that decoding takes, with four of up to 8 characters 0.8 of it.

    What stands between two values is replaced by a mark, a different one before each field; the marks in
    their order then say whether the slice is of this form. What is replaced begins with a quote. A quote
    within a value has a backslash, and a backslash stays as a mark that fits no such order: no value is cut.
    """
    names = tuple(_decode(b"[%b]" % text.partition(entries.SEPARATOR)[0])[0].fields)
    if not 0 < len(names) <= _NAMES_MAX or not all(map(_NAME.fullmatch, names)):
        return None
    if not text.startswith(b'{"id":"') or not text.endswith(b'"}}'):
        return None
    marked = text[len(b'{"id":"') : -len(b'"}}')].replace(b'"}},{"id":"', _END) + _END
    order = bytes(range(1, len(names) + 1)) + _END
    before = '","fields":{"'
    for place, name in enumerate(names):
        marked = marked.replace(f'{before}{name}":"'.encode(), order[place : place + 1])
        before = '","'
    if marked.translate(None, _UNMARKED) != order * marked.count(_END):
        return None
    values = marked.translate(_TO_END).split(_END)
    # After the last mark.
    values.pop()
    entry_ids = values[:: len(order)]
    del values[:: len(order)]
    return names, entry_ids, values
