"""The root of the API: name, version, and links to everything else."""

from contextlib import suppress
from typing import Final

from msgspec.structs import asdict

from app import VERSION
from app.auth import Access
from app.errors import RefusalError
from app.http.models import ABSENT, ResponseModel
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router

router: Final = Router("gateway")


class About(ResponseModel):
    """What this is, and where the rest is."""

    name: str
    version: str
    links: dict[str, str]


class Version(About):
    """The same; and `missing`: what clients cannot have of this backend; empty for Weir's own log. Left out
    while the gateway is not ready. And `features`: members of requests that older gateways refuse.
    `ack_consumer`: `consumer` of `ackEntries`, `nack_consumer` of `nackEntries`, `dead_letter_consumer` of
    `deadLetterEntries`.
    """

    features: list[str]
    missing: list[str] = ABSENT


# What clients cannot know of the gateway otherwise, before they send it.
FEATURES: Final = ("ack_consumer", "dead_letter_consumer", "nack_consumer")
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
def get_root() -> About:
    """Name, version, links."""
    return _ABOUT


@router.get("/v1", Access.OPEN, model=Version)
def get_version(request: RequestParameter) -> Version:
    """The same as the root, what the gateway can do, and what the backend cannot."""
    version = Version(**asdict(_ABOUT), features=list(FEATURES))
    with suppress(RefusalError):
        version.missing = list(request.gateway.engine.figures().missing)
    return version
