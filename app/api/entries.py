"""Publishing and reading the entries of one stream."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final
from urllib.parse import quote

from app.api import tail
from app.api.streams import change
from app.auth import Action
from app.errors import RefusalError, invalid
from app.http import columns, entry_bodies, media, query
from app.http.calls import Answer, Call, Header, Pieces
from app.http.columns import Columns, ColumnsPage
from app.http.media import Preferences
from app.http.routing import Routes
from app.wire import export, options, removals
from app.wire import read as reading
from app.wire.export import Export
from app.wire.options import Demands
from engine import ids
from engine.commands import XRange
from engine.replies import Added, Edges, Entries, Gap

routes: Final = Routes()

_FORMS: Final = (media.JSON, media.NDJSON, media.EVENTS, media.COLUMNS)
_PRODUCER_HEADERS: Final = (b"weir-producer", b"weir-epoch", b"weir-chunk")


@routes.post("/v1/streams/{stream}/entries", Action.WRITE, "addEntries", hot=True)
async def add_entries(call: Call) -> Answer:
    """Append one entry, or a batch that is stored whole or not at all (XADD)."""
    stream, wishes, wanted, demands = (
        call.names["stream"],
        _wishes(call),
        options.parse(call.query),
        _demands(call),
    )
    reader = partial(
        entry_bodies.read,
        media=call.media_type,
        limits=call.gateway.entry_limits,
        digest=demands.key is not None,
    )
    published = await call.read(reader)
    reply = await call.execute(wanted.command(stream, published, demands), synced=wishes.synced)
    if not isinstance(reply, Added):
        raise RefusalError("no_stream", f"there is no stream {stream!r}, and nomkstream forbids to make it")
    body = options.added(reply, wanted, published, ids_wanted=not wishes.minimal)
    located = not published.batch and not wanted.removes(reply.ids[0])
    return Answer(201, body, _headers(call, reply, wishes, located=located))


def _wishes(call: Call) -> Preferences:
    for name in _PRODUCER_HEADERS:
        if name in call.headers:
            raise invalid(
                name.decode().title(), "chunks of a producer are published to /v1/publish, one stream too"
            )
    return media.preferences(call.headers.get(b"prefer", b""))


def _demands(call: Call) -> Demands:
    return Demands(
        media.if_match(call.headers.get(b"if-match")),
        media.idempotency_key(call.headers.get(b"idempotency-key")),
    )


def _headers(call: Call, reply: Added, wishes: Preferences, *, located: bool) -> list[Header]:
    headers = [(b"weir-durability", b"fsync" if wishes.synced else call.engine.durability.encode())]
    if located:
        place = f"/v1/streams/{quote(call.names['stream'], safe='')}/entries/{ids.text(reply.ids[0])}"
        headers.append((b"location", place.encode()))
    if wishes.applied:
        headers.append((b"preference-applied", wishes.applied))
    return headers


@routes.get("/v1/streams/{stream}/entries", Action.READ, "readEntries", hot=True, offers=_FORMS)
async def read_entries(call: Call) -> Answer:
    """Read a range of entries, or those after a cursor, waiting for them if told to (XRANGE, XREVRANGE,
    XREAD).
    """
    accept = media.accepted(call.headers.get(b"accept", b""), _FORMS)
    if accept == media.NDJSON:
        return await _export(call)
    if accept == media.COLUMNS:
        return await _columns(call)
    if accept == media.EVENTS:
        return await tail.events(call)
    wanted = reading.parse(call.names["stream"], call.query, call.wishes.wait_s, call.gateway.read_limits)
    page = reading.page(wanted, await call.run(wanted.commands))
    headers = _where(page.next, page.edges, page.gap)
    headers.append((b"weir-more", b"true" if page.more else b"false"))
    return Answer(200, page.body, headers)


async def _columns(call: Call) -> Answer:
    wanted = columns.parse(call.names["stream"], call.query, call.gateway.columns_limits)
    wanted.begin(await call.transaction(wanted.commands()))
    while not wanted.done:
        # Others come between two slices.
        await asyncio.sleep(0)
        wanted.go_on(await call.transaction(wanted.commands()))
    made = await _as_columns(wanted, Columns(wanted.fields))
    if made.spoilt:
        made = await _as_columns(wanted, Columns(wanted.fields, binary=True))
    headers = _where(max(wanted.cursor, ids.ID_MIN), wanted.edges, None)
    headers.append((b"weir-more", b"true" if wanted.more else b"false"))
    if wanted.edges is not None:
        headers.append((b"weir-removed-upto", ids.text(wanted.edges.removed_upto).encode()))
    return Answer(200, made.body(), headers, media_type=media.COLUMNS.encode())


async def _as_columns(wanted: ColumnsPage, made: Columns) -> Columns:
    for text in wanted.texts:
        made.add(text)
        if made.spoilt:
            break
        await asyncio.sleep(0)
    return made


async def _export(call: Call) -> Answer:
    wanted = export.parse(call.names["stream"], call.query)
    begun = wanted.begin(await call.transaction(wanted.first()))
    headers = _where(begun.next, begun.edges, None)
    return Pieces(_pages(call, wanted, begun.text), headers, media_type=media.NDJSON.encode())


async def _pages(call: Call, wanted: Export, text: bytes) -> AsyncGenerator[bytes, None]:
    if text:
        yield text
    while not wanted.done:
        text = wanted.go_on(await call.transaction(wanted.more()))
        if text:
            yield text


def _where(following: int | None, edges: Edges | None, gap: Gap | None) -> list[Header]:
    """What programs need to go on, and to notice what they lost."""
    headers = []
    if following is not None:
        headers.append((b"weir-next-id", ids.text(following).encode()))
    first = edges.first_id if edges is not None else gap.first_available if gap is not None else None
    if first is not None:
        headers.append((b"weir-first-available", ids.text(first).encode()))
    if edges is not None:
        headers.append((b"weir-generation", edges.generation.encode()))
    return headers


@routes.get("/v1/streams/{stream}/entries/{id}", Action.READ, "getEntry")
async def get_entry(call: Call) -> Answer:
    """Read one entry."""
    media.check_accepts_json(call.headers.get(b"accept", b""))
    entry_id = query.entry_id(call.names["id"], "id")
    query.parse(call.query, ())
    found = await call.execute(XRange(stream=call.names["stream"], start=entry_id, end=entry_id))
    if not isinstance(found, Entries) or not found.count:
        raise RefusalError("no_entry", f"there is no entry {ids.text(entry_id)} in the stream")
    return Answer(200, found.json())


@routes.delete("/v1/streams/{stream}/entries/{id}", Action.WRITE, "deleteEntry")
async def delete_entry(call: Call) -> Answer:
    """Delete one entry."""
    command = removals.delete_one(call.names["stream"], call.names["id"], call.query)
    became = removals.result(await change(call, command))
    if became == "absent":
        raise RefusalError("no_entry", f"there is no entry {call.names['id']} in the stream")
    if became == "kept":
        raise RefusalError(
            "trim_guarded", "a group has still to read or to acknowledge the entry: it is kept"
        )
    return call.written(204)


@routes.post("/v1/streams/{stream}/entries/delete", Action.WRITE, "deleteEntries")
async def delete_entries(call: Call) -> Answer:
    """Delete entries, and tell what became of each (XDEL, XDELEX)."""
    given = await call.members(*removals.DELETE)
    command = removals.delete(call.names["stream"], given, call.gateway.settings.lookups_max)
    reply = await change(call, command)
    return call.written(200, removals.deleted(command, reply, results_wanted=not call.wishes.minimal))
