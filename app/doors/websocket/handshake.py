"""The opening of a WebSocket: a request of HTTP, which the application accepts or refuses.

Knows: heads of requests and answers, ASGI's messages for them. Must never know: frames, what is said later.

    bytes of the head ─► the library checks them ─► the application ─┬► 101: frames follow
                              └► refused by the library              └► an answer with a body, and the end
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import unquote

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from app.doors.client import place_of
from app.http.responses import Receive, Scope, Send
from app.live.waiting import ClientLeftError
from app.metrics.faults import Faults

Message = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_SWITCHED: Final = 101
# As the library says it.
_FAILURE: Final = "Failed to open a WebSocket connection: {}.\n"
# The standard library's, as asyncio's own faults are logged.
_log: Final = logging.getLogger(__name__)


class Service(Protocol):
    """The port: what serves its requests, and what is under way."""

    app: AsgiApp
    tasks: set[asyncio.Task[None]]
    connections: set[Any]
    faults: Faults

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of every answer."""


class Opening(Protocol):
    """A connection whose handshake is under way."""

    transport: asyncio.Transport
    is_lost: bool

    @property
    def is_ending(self) -> bool:
        """Whether a time is set for its end."""


class Handshake:
    """One handshake. `is_over` once it was answered."""

    def __init__(self, connection: Opening, service: Service, protocol: ServerProtocol) -> None:
        self._connection = connection
        self._service = service
        self._protocol = protocol
        self._request: Request | None = None
        # The library's, with which it is accepted; and the application's, with which it is refused.
        self._acceptance: Response | None = None
        self._refusal: Response | None = None
        self._has_connected = False
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_begun = self.is_over = False

    def begin(self, head: bytes, extensions: Mapping[str, Any]) -> None:
        """Have the application answer the request; the library refuses what is no handshake."""
        self.has_begun = True
        self._protocol.receive_data(head)
        (request,) = self._protocol.events_received() or (None,)
        if not isinstance(request, Request):
            # The library answers what is too long, and nothing else.
            self._end(
                self._protocol.reject(HTTPStatus.BAD_REQUEST, _FAILURE.format(self._protocol.handshake_exc))
            )
            return
        response = self._protocol.accept(request)
        if response.status_code != _SWITCHED:
            self._refuse(response)
            return
        self._request, self._acceptance = request, response
        scope = _scope(request, self._connection.transport, extensions)
        task = asyncio.get_running_loop().create_task(self._run(scope))
        task.add_done_callback(self._service.tasks.discard)
        self._service.tasks.add(task)

    def release(self) -> None:
        """Free some kilobytes of the request: the library's parser keeps it."""
        if self._request is not None:
            self._request.headers.clear()
        self._request = self._acceptance = None

    def leave(self) -> None:
        """The connection is gone."""
        if not self._left.done():
            self._left.set_result(None)

    def fail(self) -> None:
        """Answer that there is no answer, if none has begun."""
        if not self.is_over and self._refusal is None:
            self._refuse(self._protocol.reject(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal Server Error"))

    async def _run(self, scope: Scope) -> None:
        try:
            await self._service.app(scope, self._receive, self._send)
        except ClientLeftError:
            pass
        except BaseException as error:  # noqa: BLE001 - also a cancellation, at the end of a stop
            _log.error("Exception in ASGI application", exc_info=error)
            self.fail()
        else:
            if not self.is_over and not self._connection.is_lost:
                _log.error("ASGI callable returned without completing handshake.")
                self.fail()
        if not self._connection.is_ending:
            self._connection.transport.close()

    async def _receive(self) -> Message:
        if not self._has_connected:
            self._has_connected = True
            return {"type": "websocket.connect"}
        await self._left
        return {"type": "websocket.disconnect", "code": 1006}

    async def _send(self, message: Message) -> None:
        if self._connection.is_lost:
            raise ClientLeftError
        kind = message["type"]
        if not self.is_over and self._refusal is None and kind == "websocket.accept":
            self._accept(message)
        elif not self.is_over and self._refusal is None and kind == "websocket.http.response.start":
            headers = [
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]
            ]
            status = message["status"]
            self._refusal = Response(status, HTTPStatus(status).phrase, Headers(headers))
        elif not self.is_over and self._refusal is not None and kind == "websocket.http.response.body":
            self._add_body(self._refusal, message)
        else:
            raise RuntimeError(
                f"a handshake is accepted, or refused with a start and a body: not {kind} here"
            )

    def _accept(self, message: Message) -> None:
        response, given = self._acceptance, [*self._service.default_headers, *message.get("headers", ())]
        assert response is not None, "the library has checked the request"
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in given]
        if message.get("subprotocol"):
            headers.append(("Sec-WebSocket-Protocol", message["subprotocol"]))
        del response.headers["Date"]
        response.headers.update(headers)
        if not self._connection.transport.is_closing():
            self.is_over = True
            self._protocol.send_response(response)
            self._connection.transport.write(b"".join(self._protocol.data_to_send()))

    def _add_body(self, response: Response, message: Message) -> None:
        body = response.body = bytes(response.body or b"") + message["body"]
        if not message.get("more_body", False):
            response.headers.setdefault("Date", formatdate(usegmt=True))
            response.headers.setdefault("Connection", "close")
            response.headers.setdefault("Content-Length", str(len(body)))
            response.headers.setdefault("Content-Type", "text/plain; charset=utf-8")
            self._refuse(response)

    def _refuse(self, response: Response) -> None:
        self._protocol.send_response(response)
        self._end(response)

    def _end(self, response: Response) -> None:
        self.is_over = True
        written = b"".join(self._protocol.data_to_send())
        self._connection.transport.write(written or response.serialize())
        self._connection.transport.close()


def _scope(request: Request, transport: asyncio.Transport, extensions: Mapping[str, Any]) -> Scope:
    path, _, query = request.path.partition("?")
    offered = request.headers.get_all("Sec-WebSocket-Protocol")
    accepted = transport.get_extra_info("socket")
    return {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "wss" if transport.get_extra_info("sslcontext") else "ws",
        "server": place_of(accepted.getsockname),
        "client": place_of(accepted.getpeername),
        "root_path": "",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "headers": [
            (name.encode("ascii"), value.encode("latin-1")) for name, value in request.headers.raw_items()
        ],
        "subprotocols": [word.strip() for header in offered for word in header.split(",")],
        "extensions": {"websocket.http.response": {}, **extensions},
    }
