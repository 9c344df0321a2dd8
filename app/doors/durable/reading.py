"""Reading: pages, long-polls, and what a stream is.

Knows: which command finds what, and the headers of each answer. Must never know: how entries are stored.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from app.doors.durable import bodies, offsets
from app.doors.durable.events import DurableStreamResponse, Following
from app.doors.durable.headers import Query, query
from app.doors.durable.offsets import BEGINNING, Offset, Word
from app.errors import RefusalError
from app.http.asks import Ask, Result
from app.http.conditional import revalidate
from app.http.entries.entry_pages import ARCHIVED_HEADER
from app.http.requests import Request
from app.http.responses import Header, Response
from app.live.feeds import Subscriber
from app.live.waiting import Place
from engine import errors, ids
from engine.commands.durable_commands import DescribeDurable
from engine.commands.types import Until, XRange, XRead
from engine.parts.durable import kind_of
from engine.replies import DurableInfo, Entries, Reply, StreamsRead

# Larger pages are made in a thread: this takes up to 5 ms.
_INLINE_BYTES_MAX: Final = 256 << 10
NO_STORE: Final = (b"cache-control", b"no-store")
UP_TO_DATE: Final = (b"stream-up-to-date", b"true")
CLOSED: Final = (b"stream-closed", b"true")


class _Page(NamedTuple):
    """Entries behind a place; `last_id` is where a reader is then."""

    stream: DurableInfo
    entries: Entries
    after: int
    last_id: int

    @property
    def is_last(self) -> bool:
        """Whether it reaches the end of the stream."""
        return not self.entries.more

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes behind it."""
        return self.is_last and self.stream.closed


def head(_: Request, stream: str, __: None) -> Ask:
    """HEAD: what the stream is, which is no use of it."""

    def answer(reply: Reply) -> Response:
        found = there(reply, stream)
        lifetime: list[Header] = []
        if found.ttl_ms is not None:
            lifetime = [(b"stream-ttl", b"%d" % (found.ttl_ms // 1000))]
        elif found.expires_at_ms is not None:
            lifetime = [(b"stream-expires-at", ids.rfc3339(found.expires_at_ms).encode())]
        shown = [NO_STORE, next_offset(found.last_id, found.generation), *lifetime, *closed(found)]
        return Response(200, b"", shown, media_type=media_of(found))

    return Ask([DescribeDurable(stream=stream)], answer)


def _description(stream: str, offset: Offset | None) -> DescribeDurable:
    if offset is None:
        return DescribeDurable(stream=stream)
    return DescribeDurable(stream=stream, after=offset.after, known=offset.generation)


def there(found: Reply, stream: str) -> DurableInfo:
    """The description of a stream. Raises EngineError where there is none."""
    if found is None:
        raise errors.no_such_key(stream)
    assert isinstance(found, DurableInfo), "that is what it answers"
    return found


def next_offset(last_id: int, generation: str) -> Header:
    """Where a reader goes on."""
    return b"stream-next-offset", offsets.write(last_id, generation)


def closed(stream: DurableInfo) -> list[Header]:
    """Says so of a closed stream."""
    return [CLOSED] if stream.closed else []


def media_of(stream: DurableInfo) -> bytes:
    """The media type of its answers."""
    return (bodies.JSON if stream.media is None else stream.media).encode("latin-1")


def read(request: Request, stream: str, _: None) -> Ask:
    """GET: what is there, or what comes."""
    wanted = query(request.query)
    offset = _offset_of(wanted)

    def answer(page: _Page) -> Result:
        if offset is None:
            page = page._replace(after=page.stream.last_id)
        if wanted.live:
            comes = partial(_show_live, request, wanted.cursor)
            is_over = page.entries.count or page.has_ended
            return comes(page) if is_over else _wait(request, stream, page, comes)
        if offset is None:
            return _respond(page, [])
        return _respond(page, (), partial(_tagged, request, page))

    return _look(request, stream, offset, answer)


def _show_live(request: Request, cursor: str, page: _Page) -> Result:
    shown = (b"stream-cursor", offsets.cursor(cursor, request.gateway.clock.wall_ms()))
    return _respond(page, [shown]) if page.entries.count else Response(204, b"", [shown, *_places(page)])


def _offset_of(wanted: Query) -> Offset | None:
    """Where a read begins, None for the end."""
    if wanted.offset is Word.NOW:
        return None
    return BEGINNING if isinstance(wanted.offset, Word) else wanted.offset


def _look(request: Request, stream: str, offset: Offset | None, answer: Callable[[_Page], Result]) -> Ask:
    """Ask what is behind an offset, None for the end."""
    after = ids.ID_MAX if offset is None else offset.after
    settings = request.gateway.settings
    # As much as may be: who does not follow reads one page alone with the protocol's client for TypeScript.
    look = XRange(
        stream=stream,
        start=min(after + 1, ids.ID_MAX),
        # Nothing is behind the highest ID.
        end=ids.ID_MAX if after < ids.ID_MAX else 0,
        count=settings.count_max,
        bytes_max=settings.answer_bytes_max,
        up_to_damage=True,
    )
    return Ask(
        [_description(stream, offset), look],
        lambda described, found: answer(_page(there(described, stream), found, offset)),
    )


def _page(info: DurableInfo, found: Reply, offset: Offset | None) -> _Page:
    assert isinstance(found, Entries), "that is what it answers"
    after = ids.ID_MAX if offset is None else _after(info, offset)
    if offset is not None and 0 < after < info.removed_upto and not found.whole:
        raise _removed(found.first - 1 if found.archived else info.removed_upto, info.generation)
    return _Page(info, found, after, found.last if found.more else info.last_id)


def _after(stream: DurableInfo, offset: Offset) -> int:
    """Behind which entry a reader goes on: earlier, where a backup was restored that lacks the last ones that
    it had. Raises RefusalError for what is no offset of this stream.
    """
    gap = stream.gap
    if gap is None:
        return offset.after
    if gap.reason != "restored":
        raise RefusalError("gap", "the offset is of an earlier stream of this name: begin with offset=-1")
    return gap.goes_on_after


def _removed(upto: int, generation: str) -> RefusalError:
    """Says so of what comes next, and where there is something again: with an archive, which may lack
    entries between others, not always from the beginning on.
    """
    there = offsets.write(upto, generation).decode()
    return RefusalError("gap", f"entries behind this offset were removed: go on with offset={there}")


def _wait(request: Request, stream: str, page: _Page, answer: Callable[[_Page], Result]) -> Ask:
    """Ask what comes behind the page; else it is the page again."""
    settings, info = request.gateway.settings, page.stream
    wait = XRead(
        streams=[(stream, page.last_id)],
        count=settings.count_max,
        bytes_max=settings.answer_bytes_max,
        block_ms=min(round(1000 * settings.durable_long_poll_s), settings.wait_ms_max),
        known=[info.generation],
        until=Until.CLOSED,
    )
    # How much comes is not known yet.
    request.release_output()

    def come(reply: Reply) -> Result:
        assert isinstance(reply, StreamsRead), "that is what it answers"
        found = Entries()
        for one in reply.streams:
            if one.gap is not None:
                # It is another stream, or gone, or has lost what comes next.
                return _look(request, stream, Offset(page.last_id, info.generation), answer)
            found = one.entries
        there = replace(info, closed=bool(reply.closed))
        return answer(_Page(there, found, page.last_id, found.last or page.last_id))

    return Ask([wait], come)


def _places(page: _Page) -> list[Header]:
    """Where a reader is behind the page."""
    end = [UP_TO_DATE] if page.is_last else []
    offset = next_offset(page.last_id, page.stream.generation)
    return [offset, *end, *([CLOSED] if page.has_ended else [])]


def _respond(
    page: _Page, others: Sequence[Header], end: Callable[[Response], Response] | None = None
) -> Result:
    kind = None if page.stream.media is None else kind_of(page.stream.media)
    joined = page.entries.json()

    def made(body: bytes) -> Response:
        archived = [ARCHIVED_HEADER] if page.entries.archived else []
        response = Response(200, body, [*_places(page), *archived, *others], media_type=media_of(page.stream))
        return response if end is None else end(response)

    async def made_later() -> Response:
        return made(await asyncio.to_thread(bodies.page, kind, joined))

    is_short = len(joined) <= _INLINE_BYTES_MAX or kind is None
    return made(bodies.page(kind, joined)) if is_short else made_later()


def _tagged(request: Request, page: _Page, response: Response) -> Response:
    """The page with its tag, which names the stream by its generation; 304 where the client has it. A cache
    asks each time: whose page it has, and whether the stream is still that one, it cannot know.
    """
    end = b":c" if page.has_ended else b""
    places = b":".join(offsets.write(one, page.stream.generation) for one in (page.after, page.last_id))
    # No entry comes to be between two others, so their number tells what was deleted.
    tag = b'"%b:%d%b"' % (places, page.entries.count, end)
    return revalidate(request.headers, response, tag)


async def follow(request: Request, stream: str) -> Response:
    """GET: the stream as events, from there on."""
    wanted = query(request.query)
    offset = _offset_of(wanted)
    found = there(await request.execute(_description(stream, offset)), stream)
    # What was removed may be in the archive: its first page shows.
    after = found.last_id if offset is None else min(_after(found, offset), found.last_id)
    gateway = request.gateway
    place = gateway.waits.enter(request.caller, gateway.limits.connections)
    try:
        tail = await request.tenant.feeds.subscribe(
            stream, after, generation=found.generation, reader=request.caller
        )
    except BaseException:
        place.leave()
        raise
    source = Following(gateway, request.caller, tail, found.media, wanted.cursor)
    if after < found.removed_upto:
        await _begin(source, found, place, tail)
    return DurableStreamResponse(request, source, place)


async def _begin(source: Following, stream: DurableInfo, place: Place, tail: Subscriber) -> None:
    """Fetch what was removed from the stream, before the answer has begun. Raises RefusalError where entries
    are missing, EngineError.
    """
    is_missing, begun = True, tail.cursor
    try:
        is_missing = await source.begin(stream.removed_upto)
    finally:
        if is_missing:
            source.close()
            place.leave()
    if is_missing:
        # Where nothing is there yet it has not moved.
        upto = tail.cursor if tail.cursor > begun else stream.removed_upto
        raise _removed(upto, stream.generation)
