"""Whether the gateway lives, and whether it can serve."""

from typing import Final

import msgspec

from app.auth import Access
from app.calls import Answer, Call
from app.gateway import Phase
from app.routing import Routes

routes: Final = Routes()


@routes.get("/healthz/live", Access.OPEN, "isLive")
async def live(call: Call) -> Answer:
    """200 as long as the process answers at all."""
    return Answer(200, b'{"status":"live"}')


@routes.get("/healthz/ready", Access.OPEN, "isReady")
async def ready(call: Call) -> Answer:
    """200 once the log has been read; 503 before, with how far that is, and while the gateway stops."""
    phase, progress = call.gateway.phase, call.gateway.progress
    if phase is Phase.READY:
        return Answer(200, msgspec.json.encode({"status": phase.value}), [])
    told: dict[str, object] = {"status": phase.value}
    if phase is Phase.STARTING and progress is not None:
        told["progress"] = progress._asdict()
    return Answer(503, msgspec.json.encode(told), [(b"retry-after", b"1")])
