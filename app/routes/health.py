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
    """200 once the log has been read; 503 before, and while the gateway stops."""
    phase = call.gateway.phase
    headers = [] if phase is Phase.READY else [(b"retry-after", b"1")]
    return Answer(200 if phase is Phase.READY else 503, msgspec.json.encode({"status": phase.value}), headers)
