"""Where everything is."""

from typing import Final

from app.auth import Access
from app.http.models import ResponseModel
from app.http.operations.router import Router
from app.version import VERSION

router: Final = Router("gateway")


class About(ResponseModel):
    """What this is, and where the rest is."""

    name: str
    version: str
    links: dict[str, str]


_ABOUT: Final = About(
    name="weir",
    version=VERSION,
    links={
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
)


@router.get("/", Access.OPEN, model=About)
async def get_root() -> About:
    """Name, version, links."""
    return _ABOUT


@router.get("/v1", Access.OPEN, model=About)
async def get_version() -> About:
    """The same as the root."""
    return _ABOUT
