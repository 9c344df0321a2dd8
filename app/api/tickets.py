"""Tickets, with which browsers open what cannot carry a header: an EventSource, a WebSocket."""

from typing import Annotated, Final

from pydantic import Field

from app.auth import Access, Action
from app.auth.tickets import LIFETIME_S
from app.http.models import ResponseModel
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router

router: Final = Router("gateway")


class Ticket(ResponseModel):
    """A ticket. It can be used once, by pages of the origin that asked for it."""

    ticket: Annotated[str, Field(description="for `?ticket=`, or the subprotocol `weir.ticket.<ticket>`")]
    expires_in_ms: Annotated[int, Field(description="milliseconds for which it can be used")]


@router.post(
    "/v1/tickets",
    Access.PER_TOKEN,
    status=201,
    model=Ticket,
    refusals=("rate_limited",),
    bodiless=True,
    central=True,
)
async def create_ticket(request: RequestParameter) -> Ticket:
    """Get a ticket, which allows what the caller's token allows.

    Browsers cannot send a header with an EventSource or a WebSocket. A page gets a ticket with its token, and
    opens the connection with the ticket at once. The connection ends when the token does.
    """
    principal = request.principal
    if not principal.grants:
        request.require(Action.READ, None)
    ticket = await request.gateway.access.issue_ticket(principal, request.page)
    return Ticket(ticket=ticket, expires_in_ms=round(LIFETIME_S * 1000))
