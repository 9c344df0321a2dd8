"""What the contract names and this version has not: 501, never a silent 404."""

from collections.abc import Sequence
from typing import Final

from app.errors import not_implemented
from app.http.calls import Answer, Call
from app.http.routing import Routes

routes: Final = Routes()

_NOT_BUILT: Final[Sequence[tuple[str, Sequence[str]]]] = (
    ("/v1/tickets", ("POST",)),
    ("/metrics", ("GET",)),
)


async def not_built(call: Call) -> Answer:
    """Refuse."""
    raise not_implemented(f"{call.scope['method']} on this path")


for _path, _methods in _NOT_BUILT:
    routes.any(_methods, _path, not_built)
