"""What the connections of one port share.

Knows: the application, the limits, the connections that are open, the tasks that run for them.
Must never know: bytes, what a request is.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from app.doors.http.answer_heads import Header, ServerHeaders
from app.doors.http.asgi_request import AsgiApp
from app.errors import RefusalError
from app.http.responses import Response
from app.metrics.faults import Faults
from engine import Clock

# Makes the answer to a refused request; its request ID is in the log.
Refuse = Callable[[RefusalError], Response]


class Limits(NamedTuple):
    """Bytes of a head, seconds in which a request arrives, in which a reader takes something, and for which a
    connection may be idle.
    """

    head_bytes_max: int
    request_s_max: float
    stall_s_max: float
    keep_alive_s: float


class ServedConnection(Protocol):
    """A connection of the port, whichever protocol it speaks now."""

    def shutdown(self) -> None:
        """End it once what is under way is answered."""
        ...


# Makes the protocol of a connection that has asked for WebSocket, for extensions that its scope gets. It adds
# itself to the service's connections in `connection_made`; then its first bytes are the head of the
# handshake, and what the client has sent behind it.
WebSocketFactory = Callable[["HttpService", Mapping[str, Any]], asyncio.Protocol]


class HttpService:
    """One port: what serves its requests, and what is under way."""

    def __init__(
        self,
        app: AsgiApp,
        limits: Limits,
        refuse: Refuse,
        websocket: WebSocketFactory | None,
        clock: Clock,
        faults: Faults,
    ) -> None:
        self.app = app
        self.limits = limits
        self.refuse = refuse
        # None where nothing speaks WebSocket: what asks for it is answered as HTTP/1.1.
        self.websocket = websocket
        self.faults = faults
        self.monotonic = clock.monotonic
        self.connections: set[ServedConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.headers = ServerHeaders(clock)

    @property
    def default_headers(self) -> list[Header]:
        """The headers of every answer; a new list each second."""
        return self.headers.now()

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way."""
        return not self.connections and not self.tasks
