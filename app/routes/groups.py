"""Groups of one stream: making them, reading as one of their consumers, acknowledging."""

from functools import partial
from typing import Final
from urllib.parse import quote

from app.auth import Action
from app.calls import Answer, Call
from app.routing import Routes
from app.wire import groups as wire
from app.wire import query
from app.wire.strict import Json
from engine import GroupInfo, GroupRead, XInfoGroups, XPending

routes: Final = Routes()

_CREATE: Final = ("name", "start", "mkstream", "entries_read")
_READ: Final = ("count", "wait", "noack", "after", "claim_min_idle_ms")
_ACK: Final = ("ids", "delete")


async def _members(call: Call, known: tuple[str, ...]) -> dict[str, Json]:
    wire.check_is_json(call.media_type.name)
    query.parse(call.query, ())
    return await call.read(partial(wire.members, known=known, depth_max=call.gateway.settings.json_depth_max))


@routes.post("/v1/streams/{stream}/groups", Action.MANAGE, "createGroup")
async def create_group(call: Call) -> Answer:
    """Make a group (XGROUP CREATE)."""
    stream = call.names["stream"]
    command = wire.create(stream, await _members(call, _CREATE))
    _, infos = await call.transaction([command, XInfoGroups(stream=stream)])
    assert isinstance(infos, list), "XINFO GROUPS answers a list"
    (made,) = [info for info in infos if isinstance(info, GroupInfo) and info.name == command.group]
    place = f"/v1/streams/{quote(stream, safe='')}/groups/{quote(command.group, safe='')}"
    return Answer(201, wire.group(made), [(b"location", place.encode())])


@routes.post(
    "/v1/streams/{stream}/groups/{group}/consumers/{consumer}/read", Action.CONSUME, "readGroup", hot=True
)
async def read_group(call: Call) -> Answer:
    """Read as a consumer of a group: new entries, or again what it has not acknowledged (XREADGROUP)."""
    given = await _members(call, _READ)
    command = wire.read(**call.names, given=given, limits=call.gateway.read_limits)
    reply = await call.execute(command)
    if isinstance(reply, GroupRead) and reply.streams:
        return Answer(200, wire.deliveries(reply.streams[0]))
    infos = await call.execute(XInfoGroups(stream=call.names["stream"]))
    return Answer(200, wire.nothing_delivered(infos, command.group))


@routes.post("/v1/streams/{stream}/groups/{group}/ack", Action.CONSUME, "ackEntries", hot=True)
async def ack_entries(call: Call) -> Answer:
    """Acknowledge entries, and delete them if told to (XACK, XACKDEL)."""
    stream, group = call.names["stream"], call.names["group"]
    given = await _members(call, _ACK)
    commands = wire.acknowledge(stream, group, given, call.gateway.settings.ids_max)
    count, body = wire.acknowledged(commands, await call.transaction(commands))
    if not count:
        # Redis does not tell an unknown group from one with nothing pending; this does.
        await call.execute(XPending(stream=stream, group=group))
    return Answer(200, body)
