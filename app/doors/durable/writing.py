"""Writing: streams are created, appended to, closed and deleted.

Knows: which command does what, and the answers. Must never know: how entries are stored.
"""

import sys
from collections.abc import Callable
from urllib.parse import quote

from app.auth import Action
from app.doors.durable import bodies, headers
from app.doors.durable.headers import OCTETS, PREFIX, malformed
from app.doors.durable.reading import CLOSED, closed, media_of, next_offset, there
from app.http.asks import Ask
from app.http.models import ResponseModel
from app.http.request_bodies import BodyReading
from app.http.requests import Request
from app.http.responses import Header, Response
from engine import errors
from engine.commands.durable_commands import AppendDurable, CreateDurable, DescribeDurable, ForkPoint
from engine.commands.types import Delete
from engine.parts.durable import kind_of
from engine.replies import DurableAppended, DurableCreated, Reply

Reader = Callable[[bytes], bodies.Stored]


def read_first(request: Request, stream: str) -> BodyReading[bodies.Stored | bytes]:
    """How the body of such a request is read: as it is, where it has the media type of a source."""
    said = request.headers
    media, _, fork = headers.media_type(said), headers.lifetime(said), headers.fork(said)
    if fork is not None:
        request.require(Action.READ, fork.source)
    if headers.is_closed(said):
        _expect_may_close(request, stream, "createDurable")
    if media or fork is None or said.get(b"content-length", b"") == b"0":
        return BodyReading(_optional(media or OCTETS, request))
    return BodyReading(bytes, sys.maxsize)


def create(request: Request, stream: str, stored: bodies.Stored | bytes) -> Ask:
    """PUT: make the stream, or find it as it would be made."""
    fork = headers.fork(request.headers)
    if not isinstance(stored, bytes):
        return _create(request, stream, fork, stored)
    assert fork is not None, "it has the media type of a source"
    source = fork.source

    async def read(found: Reply) -> Response | ResponseModel:
        how = BodyReading(_optional(there(found, source).media or OCTETS, request))
        return await request.settle(_create(request, stream, fork, await how.read(request, stored)))

    return Ask([DescribeDurable(stream=source)], read)


def _create(request: Request, stream: str, fork: ForkPoint | None, stored: bodies.Stored) -> Ask:
    request.take_more(len(stored))
    said = request.headers
    lifetime = headers.lifetime(said)
    command = CreateDurable(
        stream=stream,
        media=headers.media_type(said) or (OCTETS if fork is None else ""),
        config=headers.config(lifetime, fork),
        bodies=stored,
        ttl_ms=lifetime.ttl_ms,
        expires_at_ms=lifetime.expires_at_ms,
        closes=headers.is_closed(said),
        fork=fork,
    )

    def answer(made: Reply) -> Response:
        assert isinstance(made, DurableCreated), "that is what it answers"
        shown = [next_offset(made.info.last_id, made.info.generation), *closed(made.info)]
        if made.created:
            shown.append((b"location", _url(request, stream)))
        return Response(201 if made.created else 200, b"", shown, media_type=media_of(made.info))

    return Ask([command], answer, request.preferences.synced)


def _optional(media: str, request: Request) -> Reader:
    """A reader of a body that may be empty."""
    kind, limits = kind_of(media), request.gateway.limits.entries
    return lambda body: bodies.read(kind, body, limits) if body else ()


def _url(request: Request, stream: str) -> bytes:
    """The stream's own URL, as the client calls this host."""
    scheme, host = request.scope.get("scheme", "http"), request.headers.get(b"host", b"")
    return b"%b://%b%b%b" % (scheme.encode(), host, PREFIX.encode(), quote(stream, safe="/").encode())


def _expect_may_close(request: Request, stream: str, operation: str) -> None:
    """Raise `forbidden` unless the caller may end the stream; the audit log says so in any case."""
    request.note_action("close", operation, stream=stream)
    request.require(Action.CLOSE, stream)


def read_appended(request: Request, stream: str) -> BodyReading[AppendDurable]:
    """How the command of such a request is read."""
    said = request.headers
    closes = headers.is_closed(said)
    if closes:
        _expect_may_close(request, stream, "appendDurable")
    kind, batch, seq = kind_of(headers.media_type(said)), headers.batch(said), headers.writer_seq(said)
    limits = request.gateway.limits.entries

    def reader(body: bytes) -> AppendDurable:
        if body and not kind:
            raise malformed("Content-Type", "it says what the body is")
        stored = bodies.read(kind, body, limits) if body else ()
        if not stored and not closes:
            raise malformed("", "there is nothing to append")
        return AppendDurable(
            stream=stream, bodies=stored, kind=kind, writer_seq=seq, batch=batch, closes=closes
        )

    return BodyReading(reader)


def append(request: Request, _: str, command: AppendDurable) -> Ask:
    """POST: append, or close, or both."""
    request.take_more(len(command.bodies))

    def answered(reply: Reply) -> Response:
        status, shown = _answer(reply, has_entries=bool(command.bodies))
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


def delete(request: Request, stream: str, _: None) -> Ask:
    """DELETE: remove the stream."""

    def answer(_: Reply, removed: Reply) -> Response:
        if not removed:
            raise errors.no_such_key(stream)
        return Response(204)

    # A description refuses where the stream was removed before.
    commands = [DescribeDurable(stream=stream), Delete(streams=[stream])]
    return Ask(commands, answer, request.preferences.synced)
