"""What the contract names and this version has not: 501, never a silent 404."""

from collections.abc import Sequence
from typing import Final

from app.calls import Answer, Call
from app.errors import not_implemented
from app.routing import Routes

routes: Final = Routes()

_GROUP: Final = "/v1/streams/{stream}/groups/{group}"
_CONSUMER: Final = _GROUP + "/consumers/{consumer}"

_NOT_BUILT: Final[Sequence[tuple[str, Sequence[str]]]] = (
    ("/v1/streams", ("GET",)),
    ("/v1/streams/{stream}", ("GET", "PUT", "PATCH", "DELETE")),
    ("/v1/streams/{stream}/entries/{id}", ("DELETE",)),
    ("/v1/streams/{stream}/entries/delete", ("POST",)),
    ("/v1/streams/{stream}/trim", ("POST",)),
    ("/v1/streams/{stream}/tail", ("GET",)),
    ("/v1/streams/{stream}/last-id", ("POST",)),
    ("/v1/streams/{stream}/groups", ("GET",)),
    (_GROUP, ("GET", "PUT", "PATCH", "DELETE")),
    (_GROUP + "/nack", ("POST",)),
    (_GROUP + "/pending", ("GET",)),
    (_GROUP + "/claim", ("POST",)),
    (_GROUP + "/autoclaim", ("POST",)),
    (_GROUP + "/dead-letter", ("POST",)),
    (_GROUP + "/consumers", ("GET",)),
    (_CONSUMER, ("GET", "PUT", "DELETE")),
    (_CONSUMER + "/stream", ("GET",)),
    ("/v1/read", ("POST",)),
    ("/v1/tail", ("GET",)),
    ("/v1/plan", ("POST",)),
    ("/v1/publish", ("POST",)),
    ("/v1/tickets", ("POST",)),
    ("/v1/ws", ("GET",)),
    ("/v1/admin/rewrite", ("POST",)),
    ("/v1/admin/backup", ("POST",)),
    ("/metrics", ("GET",)),
    ("/asyncapi.json", ("GET",)),
    ("/console", ("GET",)),
)


async def not_built(call: Call) -> Answer:
    """Refuse."""
    raise not_implemented(f"{call.scope['method']} on this path")


for _path, _methods in _NOT_BUILT:
    routes.any(_methods, _path, not_built)
