"""Groups of one stream: listing, making, showing, changing, removing them."""

from typing import Final
from urllib.parse import quote

from app.api import group_calls
from app.auth import Action
from app.http import query
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.wire import groups as wire
from engine import errors
from engine.commands import DescribeGroup, EnsureGroup, UpdateGroup, XInfoGroups

routes: Final = Routes()

_GROUPS: Final = "/v1/streams/{stream}/groups"
_GROUP: Final = _GROUPS + "/{group}"


@routes.get(_GROUPS, Action.READ, "listGroups")
async def list_groups(call: Call) -> Answer:
    """List the groups of a stream by name (XINFO GROUPS)."""
    infos = await call.execute(XInfoGroups(stream=call.names["stream"]))
    return Answer(200, wire.groups(infos, call.query, call.gateway.settings.count_max))


@routes.post(_GROUPS, Action.MANAGE, "createGroup")
async def create_group(call: Call) -> Answer:
    """Make a group; refused where there is one of that name (XGROUP CREATE)."""
    command = wire.create(call.names["stream"], await call.members(*wire.CREATE))
    answer = await _ensured(call, command)
    if answer.status_code != 201:
        raise errors.group_exists(command.group)
    return answer


@routes.put(_GROUP, Action.MANAGE, "ensureGroup")
async def ensure_group(call: Call) -> Answer:
    """Make a group, and its stream, where they are missing; one that is there keeps position and policy."""
    return await _ensured(call, wire.ensure(**call.names, given=await call.members(*wire.ENSURE)))


async def _ensured(call: Call, command: EnsureGroup) -> Answer:
    _check_target(call, command)
    describe = DescribeGroup(stream=command.stream, group=command.group)
    created, info = await group_calls.write(call, command, describe)
    place = f"/v1/streams/{quote(command.stream, safe='')}/groups/{quote(command.group, safe='')}"
    where = [(b"location", place.encode())] if created else []
    return call.written(201 if created else 200, wire.group(info), where)


def _check_target(call: Call, command: EnsureGroup | UpdateGroup) -> None:
    """Who lets a group write dead letters into a stream may write there."""
    target = command.policy.get("dead_letter_stream")
    if target is not None:
        call.require(Action.WRITE, target)


@routes.get(_GROUP, Action.READ, "getGroup")
async def get_group(call: Call) -> Answer:
    """Show one group: its position, its lag, what is pending, its policy."""
    query.parse(call.query, ())
    return Answer(200, wire.group(await group_calls.look(call, DescribeGroup(**call.names))))


@routes.patch(_GROUP, Action.MANAGE, "updateGroup")
async def update_group(call: Call) -> Answer:
    """Move a group, or change what becomes of entries that are not acknowledged (XGROUP SETID)."""
    command = wire.update(**call.names, given=await call.members(*wire.UPDATE))
    _check_target(call, command)
    _, info = await group_calls.write(call, command, DescribeGroup(**call.names))
    return call.written(200, wire.group(info))


@routes.delete(_GROUP, Action.MANAGE, "deleteGroup")
async def delete_group(call: Call) -> Answer:
    """Remove a group; refused while entries are pending, unless these may be dropped (XGROUP DESTROY)."""
    command = wire.remove(**call.names, query_string=call.query)
    await group_calls.write(call, command)
    return call.written(204)
