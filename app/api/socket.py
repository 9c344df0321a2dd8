"""WebSocket, `GET /v1/ws`: the handshake, and the conversation for as long as the socket is open."""

from collections.abc import MutableMapping, Sequence
from typing import Any, Final

from app.auth import Access
from app.doors.websocket import frames
from app.doors.websocket.asgi_socket import AsgiSocket
from app.doors.websocket.connection import Connection, Hub
from app.doors.websocket.subscription_table import SessionLimits
from app.doors.websocket.websocket_connection import EXTENSION, WebSocketConnection
from app.errors import RefusalError
from app.gateway import Gateway
from app.http import query
from app.http.common.paths import decoded
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Exchange, Receive, Response, Send
from app.live.shares import Share
from app.openapi import asyncapi

Message = MutableMapping[str, Any]

router: Final = Router("gateway")

# What a frame has beside an entry of the largest size.
FRAME_OVERHEAD_BYTES: Final = 4 << 10
SUBSCRIPTIONS_MAX: Final = 128
_TICKET: Final = "weir.ticket."
_PATH: Final = ("v1", "ws")
_LABEL: Final = "GET /v1/ws"


@router.get("/v1/ws", Access.OPEN, hidden=True)
def open_socket() -> Response:
    """Say what is missing."""
    raise RefusalError("upgrade_required", "this is a WebSocket: see /asyncapi.json")


@router.get("/asyncapi.json", Access.OPEN, hidden=True)
def get_async_api(request: RequestParameter) -> Response:
    """The description of the socket, AsyncAPI 3."""
    return Response(200, asyncapi.document(request.gateway.settings))


class Sockets:
    """Answers handshakes, behind the checks that every request has behind it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.hub = Hub(gateway)

    async def answer(self, request: Request) -> Response:
        """The conversation that is accepted. Raises RefusalError."""
        scope = request.scope
        if decoded(request.plan.path) != _PATH:
            raise RefusalError("no_route", "sockets are at /v1/ws")
        request.exchange.route = _LABEL
        query.parse(request.query, ("ticket",))
        request.check_ready()
        tickets = [*request.query_tickets, *_tickets(scope["subprotocols"])]
        is_open = self._gateway.access.policy.recognise({}) is not None
        has_credentials = b"authorization" in request.headers or request.certificate is not None
        if tickets or is_open or has_credentials:
            await request.authenticate(tickets=() if is_open else tickets)
        request.take_request()
        if len(self.hub.open) >= self._gateway.settings.sockets_max:
            raise RefusalError("too_many_sockets", "too many sockets are open: see the setting sockets_max")
        return _Conversation(self, request, self._gateway.limits.connections.enter(request.caller))

    async def converse(self, request: Request, share: Share, send: Send, accept: Message) -> None:
        """Accept with this message, and stay until the connection is gone."""
        own = request.exchange.extensions.get(EXTENSION)
        link = own if isinstance(own, WebSocketConnection) else AsgiSocket(request.receive, send)
        push = Connection(self.hub, link, request, share, self._limits())
        await send(accept)
        push.begin(self._hello())
        if isinstance(link, AsgiSocket):
            await link.serve(push)
            return
        link.listen(push, self._gateway.limits.budgets)
        await push.closed

    def _limits(self) -> SessionLimits:
        settings = self._gateway.settings
        return SessionLimits(
            subscriptions_max=SUBSCRIPTIONS_MAX,
            streams_max=settings.request_streams_max,
            ids_max=settings.ids_max,
            lookups_max=settings.lookups_max,
            batch_max=settings.count_max,
            publications=self._gateway.limits.publications,
        )

    def _hello(self) -> frames.HelloFrame:
        settings = self._gateway.settings
        return frames.HelloFrame(
            version=frames.VERSION,
            limits=frames.HelloLimits(
                frame_bytes_max=settings.entry_bytes_max + FRAME_OVERHEAD_BYTES,
                entry_bytes_max=settings.entry_bytes_max,
                batch_entries_max=settings.batch_entries_max,
                subscriptions_max=SUBSCRIPTIONS_MAX,
                streams_max=settings.request_streams_max,
                ids_max=settings.ids_max,
                lookups_max=settings.lookups_max,
                credit_max=frames.CREDIT_MAX,
            ),
            heartbeat_ms=settings.heartbeat_ms,
        )


class _Conversation(Response):
    """The answer to a handshake, which has left when the connection is gone."""

    def __init__(self, sockets: Sockets, request: Request, share: Share) -> None:
        super().__init__(204)
        self.status_code = 101
        self._sockets = sockets
        self._request = request
        self._share = share

    async def send(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Accept, and stay."""
        exchange.status = self.status_code
        chosen = frames.SUBPROTOCOL if frames.SUBPROTOCOL in self._request.scope["subprotocols"] else None
        accept = {"type": "websocket.accept", "headers": self.raw_headers, "subprotocol": chosen}
        try:
            await self._sockets.converse(self._request, self._share, send, accept)
        finally:
            self._share.leave()


def _tickets(subprotocols: Sequence[str]) -> Sequence[str]:
    """The tickets among the subprotocols: a browser can send nothing else of its own choice."""
    return [word.removeprefix(_TICKET) for word in subprotocols if word.startswith(_TICKET)]


def upgrading(send: Send) -> Send:
    """The answers of HTTP as those of a handshake."""

    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "http.response.body"):
            message = {**message, "type": f"websocket.{message['type']}"}
        await send(message)

    return sending
