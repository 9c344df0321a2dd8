"""Many streams at once: reading from them, publishing into them."""

from functools import partial
from typing import Final

from app.auth import Access, Action
from app.errors import invalid
from app.http import media, members, query
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.wire import many as wire
from engine.commands import XRead, XReadGroup

routes: Final = Routes()


@routes.post("/v1/read", Access.PER_STREAM, "readStreams")
async def read_streams(call: Call) -> Answer:
    """Read from many streams, each behind its cursor, or as a consumer of a group (XREAD, XREADGROUP)."""
    given = await call.members(*wire.READ)
    fail_on_gap = wire.fails_on_gap(given)
    most = call.gateway.settings.request_streams_max
    command = wire.read(given, call.gateway.read_limits, most, call.wishes.wait_s)
    action = Action.READ if isinstance(command, XRead) else Action.CONSUME
    for stream, _ in command.streams:
        call.require(action, stream)
    (reply,) = await call.write(command)
    asked = wire.missing(command, reply)
    infos = await call.transaction(asked) if asked else []
    body = wire.answer(command, reply, asked, infos, fail_on_gap=fail_on_gap)
    if not isinstance(command, XReadGroup):
        return Answer(200, body)
    answer = call.written(200, body)
    answer.unsent = partial(call.give_back, command, reply)
    return answer


@routes.post("/v1/publish", Access.PER_STREAM, "publish")
async def publish(call: Call) -> Answer:
    """Publish into many streams: all entries are stored, or none."""
    if b"if-match" in call.headers:
        raise invalid("If-Match", "it goes with publishing into one stream")
    query.parse(call.query, ())
    members.check_is_json(call.media_type.name)
    key = media.idempotency_key(call.headers.get(b"idempotency-key"))
    chunk = media.chunk(call.headers)
    if key is not None and chunk is not None:
        raise invalid("Idempotency-Key", "it does not go with Weir-Producer, which says the same in its way")
    most = call.gateway.settings.request_streams_max
    reader = partial(
        wire.publication, limits=call.gateway.entry_limits, streams_max=most, key=key, chunk=chunk
    )
    command = await call.read(reader)
    for part in command.parts:
        call.require(Action.WRITE, part.stream)
    (reply,) = await call.write(command)
    return call.written(201, wire.published(reply))
