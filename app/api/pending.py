"""What was delivered and is not done: looking at it, acknowledging, giving back, taking over, burying."""

from typing import Final

from app.api import group_calls
from app.auth import Action
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.wire import claims
from app.wire import pending as wire
from engine.commands import XPending
from engine.replies import AutoClaimed, Claimed

routes: Final = Routes()

_GROUP: Final = "/v1/streams/{stream}/groups/{group}"


@routes.get(_GROUP + "/pending", Action.READ, "listPending")
async def list_pending(call: Call) -> Answer:
    """Tell what is pending: in sum, or with any parameter entry by entry (XPENDING)."""
    command = wire.look(**call.names, query_string=call.query, limits=call.gateway.read_limits)
    return Answer(200, wire.seen(command, await group_calls.look(call, command)))


@routes.post(_GROUP + "/ack", Action.CONSUME, "ackEntries", hot=True)
async def ack_entries(call: Call) -> Answer:
    """Acknowledge entries, and delete them if told to (XACK, XACKDEL)."""
    given = await call.members(*wire.ACK)
    settings = call.gateway.settings
    commands = wire.acknowledge(
        **call.names, given=given, ids_max=settings.ids_max, lookups_max=settings.lookups_max
    )
    count, content = wire.acknowledged(commands, await call.write(*commands))
    if not count:
        # Redis does not tell an unknown group from one with nothing pending; this does.
        await group_calls.look(call, XPending(**call.names))
    return call.written(200, content)


@routes.post(_GROUP + "/nack", Action.CONSUME, "nackEntries")
async def nack_entries(call: Call) -> Answer:
    """Give entries back: they are nobody's, and the next reader that claims gets them first (XNACK)."""
    given = await call.members(*wire.NACK)
    commands = wire.give_back(**call.names, given=given, lookups_max=call.gateway.settings.lookups_max)
    replies = await group_calls.write(call, *commands)
    return call.written(200, wire.given_back(commands, replies))


@routes.post(_GROUP + "/claim", Action.CONSUME, "claimEntries")
async def claim_entries(call: Call) -> Answer:
    """Take over these pending entries, as far as they have been idle for long enough (XCLAIM)."""
    given = await call.members(*claims.CLAIM)
    gateway = call.gateway
    command = claims.claim(
        **call.names,
        given=given,
        lookups_max=gateway.settings.lookups_max,
        bytes_max=gateway.read_limits.bytes_max,
    )
    (reply,) = await group_calls.write(call, command)
    assert isinstance(reply, Claimed), "XCLAIM answers what was claimed"
    content = claims.claimed(reply, just_ids=given.get("just_ids") is True)
    return call.written(200, content)


@routes.post(_GROUP + "/autoclaim", Action.CONSUME, "autoclaimEntries")
async def autoclaim_entries(call: Call) -> Answer:
    """Take over whatever has been idle for long enough, some at a time (XAUTOCLAIM)."""
    given = await call.members(*claims.AUTOCLAIM)
    command = claims.autoclaim(**call.names, given=given, limits=call.gateway.read_limits)
    (reply,) = await group_calls.write(call, command)
    assert isinstance(reply, AutoClaimed), "XAUTOCLAIM answers what was claimed"
    content = claims.autoclaimed(reply, just_ids=command.just_ids)
    return call.written(200, content)


@routes.post(_GROUP + "/dead-letter", Action.CONSUME, "buryEntries")
async def bury_entries(call: Call) -> Answer:
    """Move pending entries to the group's dead-letter stream, as many as one turn takes."""
    given = await call.members(*wire.BURY)
    command = wire.bury(**call.names, given=given, ids_max=call.gateway.settings.ids_max)
    (reply,) = await group_calls.write(call, command)
    return call.written(200, wire.buried(reply))
