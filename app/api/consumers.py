"""Consumers of one group: listing, making, removing them, and reading as one of them."""

from functools import partial
from typing import Final
from urllib.parse import quote

from app.api import group_calls
from app.auth import Action
from app.http import query
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.wire import groups as wire
from engine.commands import DescribeGroup, XGroupCreateConsumer, XInfoConsumers
from engine.replies import GroupRead

routes: Final = Routes()

_CONSUMERS: Final = "/v1/streams/{stream}/groups/{group}/consumers"
_CONSUMER: Final = _CONSUMERS + "/{consumer}"


@routes.get(_CONSUMERS, Action.READ, "listConsumers")
async def list_consumers(call: Call) -> Answer:
    """List the consumers of a group by name (XINFO CONSUMERS)."""
    infos = await group_calls.look(call, XInfoConsumers(**call.names))
    return Answer(200, wire.consumers(infos, call.query, call.gateway.settings.count_max))


@routes.get(_CONSUMER, Action.READ, "getConsumer")
async def get_consumer(call: Call) -> Answer:
    """Show one consumer: what it holds, when it was last seen, when it last got something."""
    query.parse(call.query, ())
    infos = await group_calls.look(call, _all_of(call))
    return Answer(200, wire.consumer(infos, *call.names.values()))


def _all_of(call: Call) -> XInfoConsumers:
    return XInfoConsumers(stream=call.names["stream"], group=call.names["group"])


@routes.put(_CONSUMER, Action.CONSUME, "createConsumer")
async def create_consumer(call: Call) -> Answer:
    """Make a consumer where it is missing; reading makes it too (XGROUP CREATECONSUMER)."""
    await call.members()
    created, infos = await group_calls.write(call, XGroupCreateConsumer(**call.names), _all_of(call))
    content = wire.consumer(infos, *call.names.values())
    where = [(b"location", _place(call).encode())] if created else []
    return call.written(201 if created else 200, content, where)


def _place(call: Call) -> str:
    stream, group, consumer = (quote(name, safe="") for name in call.names.values())
    return f"/v1/streams/{stream}/groups/{group}/consumers/{consumer}"


@routes.delete(_CONSUMER, Action.CONSUME, "deleteConsumer")
async def delete_consumer(call: Call) -> Answer:
    """Remove a consumer; refused while it holds pending entries, unless these may be dropped or go to
    another (XGROUP DELCONSUMER).
    """
    command = wire.remove_consumer(**call.names, query_string=call.query)
    (held,) = await group_calls.write(call, command)
    return call.written(200, wire.removed_consumer(held))


@routes.post(_CONSUMER + "/read", Action.CONSUME, "readGroup", hot=True)
async def read_group(call: Call) -> Answer:
    """Read as a consumer of a group: new entries, or again what it has not acknowledged (XREADGROUP)."""
    given = await call.members(*wire.READ)
    command = wire.read(**call.names, given=given, limits=call.gateway.read_limits, wait_s=call.wishes.wait_s)
    (reply,) = await call.write(command)
    if isinstance(reply, GroupRead) and reply.streams:
        answer = call.written(200, wire.deliveries(reply.streams[0]))
        answer.unsent = partial(call.give_back, command, reply)
        return answer
    info = await call.execute(DescribeGroup(stream=call.names["stream"], group=command.group))
    more = isinstance(reply, GroupRead) and bool(reply.unfinished)
    return call.written(200, wire.nothing_delivered(info, more=more))
