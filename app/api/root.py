"""Where everything is."""

from typing import Final

import msgspec

from app.auth import Access
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.version import VERSION

routes: Final = Routes()

_LINKS: Final = msgspec.json.encode(
    {
        "name": "weir",
        "version": VERSION,
        "links": {
            "api": "/v1",
            "streams": "/v1/streams",
            "commands": "/v1/commands",
            "console": "/console",
            "docs": "/docs",
            "openapi": "/openapi.json",
            "asyncapi": "/asyncapi.json",
            "live": "/healthz/live",
            "ready": "/healthz/ready",
            "status": "/v1/status",
        },
    }
)


@routes.get("/", Access.OPEN, "getRoot")
async def root(call: Call) -> Answer:
    """Name, version, links."""
    return Answer(200, _LINKS)


@routes.get("/v1", Access.OPEN, "getVersion")
async def version(call: Call) -> Answer:
    """The same as the root."""
    return Answer(200, _LINKS)
