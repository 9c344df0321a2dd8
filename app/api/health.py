"""Whether the gateway lives, whether it can serve, and how it is."""

from typing import Final

import msgspec

from app.auth import Access, Action
from app.gateway import Gateway, Phase
from app.http import query
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.wire import status

routes: Final = Routes()

_RETRY_AFTER: Final = (b"retry-after", b"1")


@routes.get("/healthz/live", Access.OPEN, "isLive")
async def live(call: Call) -> Answer:
    """200 as long as the process answers at all."""
    return Answer(200, b'{"status":"live"}')


@routes.get("/healthz/ready", Access.OPEN, "isReady")
async def ready(call: Call) -> Answer:
    """200 once the log has been read; 503 before, with how far that is, while the engine is restarted or the
    gateway stops, and once the log cannot be written any more.

    Under a Host that is not the gateway's it says whether it is ready, and nothing else.
    """
    answer = _ready(call.gateway)
    if call.is_stranger and answer.status_code != 200:
        return Answer(503, b'{"status":"unavailable"}', [_RETRY_AFTER])
    return answer


def _ready(gateway: Gateway) -> Answer:
    progress, state = gateway.progress, gateway.state
    told: dict[str, object] = {"status": state}
    if state == Phase.READY.value:
        return Answer(200, msgspec.json.encode(told), [])
    if gateway.phase in (Phase.STARTING, Phase.RESTARTING) and progress is not None:
        told["progress"] = progress._asdict()
    return Answer(503, msgspec.json.encode(told), [_RETRY_AFTER])


@routes.get("/v1/status", Action.ADMIN, "getStatus")
async def get_status(call: Call) -> Answer:
    """Show how the gateway is: version, uptime, durability, log, memory, streams, connections, upkeep."""
    query.parse(call.query, ())
    gateway = call.gateway
    here = status.Here(
        gateway.state,
        gateway.uptime_ms,
        gateway.connections(),
        gateway.followers,
        gateway.failed_conversations,
        gateway.backups.last,
    )
    return Answer(200, status.written(call.engine, here))
