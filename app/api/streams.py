"""Streams: what there is, how much of each is kept, trimming, removing."""

from typing import Final
from urllib.parse import quote

from app.auth import Action
from app.errors import RefusalError
from app.http import media, query
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.wire import removals
from app.wire import streams as wire
from engine.commands import Command, Delete, Exists, XInfoStream
from engine.replies import Reply

routes: Final = Routes()

_STREAM: Final = "/v1/streams/{stream}"


@routes.get("/v1/streams", Action.READ, "listStreams")
async def list_streams(call: Call) -> Answer:
    """List streams by name."""
    media.check_accepts_json(call.headers.get(b"accept", b""))
    found = await call.execute(wire.listing(call.query))
    return Answer(200, wire.page(found, call.gateway.settings.answer_bytes_max))


@routes.get(_STREAM, Action.READ, "getStream")
async def get_stream(call: Call) -> Answer:
    """Show one stream: its edges, counts, retention; in full with entries and groups (XINFO STREAM)."""
    media.check_accepts_json(call.headers.get(b"accept", b""))
    name = call.names["stream"]
    found = await call.transaction(wire.look(name, call.query, call.gateway.settings.answer_bytes_max))
    return Answer(200, wire.stream(name, *found) if len(found) == 1 else wire.detail(name, *found))


@routes.put(_STREAM, Action.MANAGE, "putStream")
async def put_stream(call: Call) -> Answer:
    """Create a stream, or set the retention of the one there is."""
    name = call.names["stream"]
    command = wire.ensure(name, await call.members(*wire.PUT))
    created, info = await call.write(command, XInfoStream(stream=name))
    place = [(b"location", f"/v1/streams/{quote(name, safe='')}".encode())] if created else []
    return call.written(201 if created else 200, wire.stream(name, info), place)


@routes.patch(_STREAM, Action.MANAGE, "updateStream")
async def update_stream(call: Call) -> Answer:
    """Change parts of a stream's retention, or tell up to where it is archived."""
    name = call.names["stream"]
    command = wire.update(name, await call.members(*wire.PATCH))
    _, info = await call.write(command, XInfoStream(stream=name))
    return call.written(200, wire.stream(name, info))


@routes.delete(_STREAM, Action.MANAGE, "deleteStream")
async def delete_stream(call: Call) -> Answer:
    """Remove a stream with its groups and all that hangs on it (DEL)."""
    query.parse(call.query, ())
    (removed,) = await call.write(Delete(streams=[call.names["stream"]]))
    if not removed:
        raise _missing(call.names["stream"])
    return call.written(204)


@routes.post(_STREAM + "/last-id", Action.MANAGE, "setLastId")
async def set_last_id(call: Call) -> Answer:
    """Set a stream's last ID, as after a move from elsewhere (XSETID)."""
    name = call.names["stream"]
    command = wire.set_last_id(name, await call.members(*wire.LAST_ID))
    _, info = await call.write(command, XInfoStream(stream=name))
    return call.written(200, wire.stream(name, info))


@routes.post(_STREAM + "/trim", Action.MANAGE, "trimStream")
async def trim_stream(call: Call) -> Answer:
    """Remove the oldest entries, or tell how many would go (XTRIM)."""
    reply = await change(call, removals.trim(call.names["stream"], await call.members(*removals.TRIM)))
    return call.written(200, removals.trimmed(reply))


async def change(call: Call, command: Command) -> Reply:
    """Run a command on a stream that has to be there."""
    there, reply = await call.write(Exists(streams=[call.names["stream"]]), command)
    if not there:
        raise _missing(call.names["stream"])
    return reply


def _missing(name: str) -> RefusalError:
    return RefusalError("no_stream", f"there is no stream {name!r}", members={"stream": name})
