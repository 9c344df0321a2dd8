"""What the contract names and this version has not: 501, never a silent 404."""

from typing import Final

from app.auth import Access
from app.errors import not_implemented
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response

router: Final = Router("gateway")


@router.get("/metrics", Access.OPEN, hidden=True)
async def not_built(request: RequestParameter) -> Response:
    """Refuse."""
    raise not_implemented(f"{request.scope['method']} on this path")
