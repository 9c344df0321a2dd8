"""Writing: streams are created, appended to, closed and deleted.

Knows: which command does what, and the answers. Must never know: how entries are stored.
"""

from collections.abc import Callable
from urllib.parse import quote

from app.auth import Action
from app.doors.durable import bodies, headers
from app.doors.durable.headers import OCTETS, PREFIX, malformed
from app.doors.durable.reading import CLOSED, closed, describe, media_of, next_offset
from app.http.asks import Ask
from app.http.requests import BodyReading, Request
from app.http.responses import Header, Response
from engine import errors
from engine.commands import (
    AppendDurable,
    CreateDurable,
    Delete,
    DescribeDurable,
    ForkPoint,
    ProducerBatch,
)
from engine.durable_streams import kind_of
from engine.replies import DurableAppended, DurableCreated, Reply

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
    stored = await request.read_body(
        BodyReading(_optional(kind_of(media or await _media_of(request, fork)), request))
    )
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
    stored = await request.read_body(reading(request, stream))
    made = await request.settle(appended(request, stream, stored))
    assert isinstance(made, Response), "an append has no model"
    return made


def reading(request: Request, stream: str) -> BodyReading[bodies.Stored]:
    """How the body of such a request is read."""
    closes = headers.is_closed(request.headers)
    if closes:
        _expect_may_close(request, stream, "appendDurable")
    media, _, _ = _said(request)
    return BodyReading(_expected(kind_of(media), request, closes=closes))


def _said(request: Request) -> tuple[str, ProducerBatch | None, bytes | None]:
    said = request.headers
    return headers.media_type(said), headers.batch(said), headers.writer_seq(said)


def appended(request: Request, stream: str, stored: bodies.Stored) -> Ask:
    """What appends these entries."""
    request.take_more(len(stored))
    media, batch, seq = _said(request)
    command = AppendDurable(
        stream=stream,
        bodies=stored,
        kind=kind_of(media),
        writer_seq=seq,
        batch=batch,
        closes=headers.is_closed(request.headers),
    )

    def answered(reply: Reply) -> Response:
        status, shown = _answer(reply, has_entries=bool(stored))
        return request.respond(status, b"", shown)

    return Ask([command], answered, request.preferences.synced, joins=True, publishes=True)


def _answer(reply: Reply, *, has_entries: bool) -> tuple[int, list[Header]]:
    """The status of the answer to an append, and its headers."""
    assert isinstance(reply, DurableAppended), "that is what it answers"
    shown = [next_offset(reply.last_id, reply.generation), *([CLOSED] if reply.closed else [])]
    if reply.epoch is None:
        return 204, shown
    shown += [(b"producer-epoch", b"%d" % reply.epoch), (b"producer-seq", b"%d" % (reply.seq or 0))]
    return 204 if reply.duplicate or not has_entries else 200, shown


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
