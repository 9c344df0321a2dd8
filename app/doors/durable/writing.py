"""Writing: streams are created, appended to, closed and deleted.

Knows: which command does what, and the answers. Must never know: how entries are stored.
"""

from collections.abc import Callable
from urllib.parse import quote

from app.auth import Action
from app.doors.durable import bodies, headers
from app.doors.durable.appending import answer
from app.doors.durable.headers import OCTETS, PREFIX, malformed
from app.doors.durable.reading import closed, describe, media_of, next_offset
from app.http.requests import Request
from app.http.responses import Response
from engine import errors
from engine.commands import AppendDurable, CreateDurable, Delete, DescribeDurable, ForkPoint
from engine.durable_streams import kind_of
from engine.replies import DurableCreated

Reader = Callable[[bytes], bodies.Stored]


async def create(request: Request, stream: str) -> Response:
    """PUT: make the stream, or find it as it would be made."""
    said = request.headers
    media, lifetime, fork = headers.media_type(said), headers.lifetime(said), headers.fork(said)
    if fork is None:
        media = media or OCTETS
    else:
        request.require(Action.READ, fork.source)
    if headers.is_closed(said):
        _expect_may_close(request, stream, "createDurable")
    stored = await request.read_body(_optional(kind_of(media or await _media_of(request, fork)), request))
    request.take_more(len(stored))
    command = CreateDurable(
        stream=stream,
        media=media,
        config=headers.config(lifetime, fork),
        bodies=stored,
        ttl_ms=lifetime.ttl_ms,
        expires_at_ms=lifetime.expires_at_ms,
        closes=headers.is_closed(said),
        fork=fork,
    )
    made = await request.execute(command, synced=request.preferences.synced)
    assert isinstance(made, DurableCreated), "that is what it answers"
    shown = [next_offset(made.info.last_id, made.info.generation), *closed(made.info)]
    if made.created:
        shown.append((b"location", _url(request, stream)))
    return Response(201 if made.created else 200, b"", shown, media_type=media_of(made.info))


async def _media_of(request: Request, fork: ForkPoint | None) -> str:
    """The media type of the source, which a fork has too."""
    if fork is None or request.headers.get(b"content-length", b"") == b"0":
        return OCTETS
    return (await describe(request, fork.source)).media or OCTETS


def _optional(kind: str, request: Request) -> Reader:
    """A reader of a body that may be empty."""
    limits = request.gateway.limits.entries
    return lambda body: bodies.read(kind, body, limits) if body else ()


def _url(request: Request, stream: str) -> bytes:
    """The stream's own URL, as the client calls this host."""
    scheme, host = request.scope.get("scheme", "http"), request.headers.get(b"host", b"")
    return b"%b://%b%b%b" % (scheme.encode(), host, PREFIX.encode(), quote(stream, safe="/").encode())


def _expect_may_close(request: Request, stream: str, operation: str) -> None:
    """Raise `forbidden` unless the caller may end the stream; the audit log says so in any case."""
    request.note_action("close", operation, stream=stream)
    request.require(Action.CLOSE, stream)


async def append(request: Request, stream: str) -> Response:
    """POST: append, or close, or both."""
    said = request.headers
    closes = headers.is_closed(said)
    if closes:
        _expect_may_close(request, stream, "appendDurable")
    media, batch, seq = headers.media_type(said), headers.batch(said), headers.writer_seq(said)
    stored = await request.read_body(_expected(kind_of(media), request, closes=closes))
    request.take_more(len(stored))
    command = AppendDurable(
        stream=stream, bodies=stored, kind=kind_of(media), writer_seq=seq, batch=batch, closes=closes
    )
    done = await request.publish(command, synced=request.preferences.synced)
    status, shown = answer(done, has_entries=bool(stored))
    return request.respond(status, b"", shown)


def _expected(kind: str, request: Request, *, closes: bool) -> Reader:
    """A reader of a body that is only empty where the request closes the stream."""
    limits = request.gateway.limits.entries

    def reader(body: bytes) -> bodies.Stored:
        if body and not kind:
            raise malformed("Content-Type", "it says what the body is")
        stored = bodies.read(kind, body, limits) if body else ()
        if not stored and not closes:
            raise malformed("", "there is nothing to append")
        return stored

    return reader


async def delete(request: Request, stream: str) -> Response:
    """DELETE: remove the stream."""
    # A description refuses where the stream was removed before.
    found = [DescribeDurable(stream=stream), Delete(streams=[stream])]
    _, removed = await request.write(*found)
    if not removed:
        raise errors.no_such_key(stream)
    return Response(204)
