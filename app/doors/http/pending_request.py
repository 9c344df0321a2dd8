"""A request on the fast path, from its bytes to its answer.

Knows: the endpoint of its route. Must never know: sockets, what an operation does.
"""

import asyncio
from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any, Final, Protocol

from app.auth.certificates import ClientCertificate
from app.doors.http.inline import InlineHandler, InlineRequest
from app.doors.http.plain_requests import Head, PlainRequest, PlainRequests
from app.doors.http.repeats import Repeat, RepeatedRead
from app.doors.http.service import HttpService
from app.gateway import Gateway, Phase
from app.http.client_address import Client
from app.http.middleware.request_id import RequestIds
from app.http.responses import Response, release

# Never written.
_NO_STATE: Final[dict[str, Any]] = {}


class Shared(Protocol):
    """What connections share."""

    gateway: Gateway
    request_ids: RequestIds
    requests: PlainRequests


class Connection(Protocol):
    """What a request needs of its connection."""

    loop: asyncio.AbstractEventLoop
    service: HttpService
    state: Mapping[str, Any]
    extensions: dict[str, Any]
    client_certificate: ClientCertificate | None

    @property
    def shared(self) -> Shared: ...
    def client_of(self, head: Head) -> Client | None: ...
    async def receive(self) -> MutableMapping[str, Any]: ...
    def hand_to_parser(self, pending: "PendingRequest") -> None: ...
    def finish(self, response: Response) -> None: ...


class PendingRequest:
    """A request that waits for its answer, on its connection; `data` is all of it."""

    __slots__ = ("began_s", "body", "connection", "data", "request", "request_id", "state")

    def __init__(self, connection: Connection, request: PlainRequest, data: bytes) -> None:
        self.connection = connection
        self.request = request
        self.data = data
        self.body = data[request.body_at :]
        self.request_id = connection.shared.request_ids.new_id()
        # As in the scope of a request of the ordinary way.
        self.state: dict[str, Any] = _NO_STATE
        self.began_s = connection.shared.gateway.clock.monotonic()

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The request's, by their lower-case names."""
        return self.request.head.headers

    @property
    def extensions(self) -> Mapping[str, Any]:
        """Those of its connection."""
        return self.connection.extensions

    @property
    def client(self) -> Client | None:
        """The client's address."""
        return self.connection.client_of(self.request.head)

    def begin(self) -> bool:
        """Serve it by its route's endpoint. Returns False, and does nothing, if only the ordinary way can
        serve it.
        """
        gateway = self.connection.shared.gateway
        if gateway.phase is not Phase.READY:
            return False
        target, query, head, *_ = self.request
        stamp, repeat, verdict = gateway.stamp.value, self.request.repeat, None
        if repeat is not None and repeat.stamp == stamp and self.connection.client_certificate is None:
            verdict, self.state = repeat.verdict, {}
            if repeat.read is not None and RepeatedRead(
                gateway, self, target.route, verdict, repeat.read
            ).begin(repeat):
                return True
        self.state = {**self.connection.state, "request_id": self.request_id}
        scope = {
            "headers": head.headers,
            "query_string": query,
            "state": self.state,
            "client": self.client,
            "extensions": self.connection.extensions,
        }
        request = InlineRequest(gateway, scope, self.connection.receive, target.names, self.body)
        handler = InlineHandler(
            target.route.respond(request, verdict),
            self.finish if verdict is not None else partial(self._finish_first, request, stamp),
            self.connection.service.tasks,
        )
        has_begun = handler.begin()
        if not has_begun:
            release(self.state)
            request.give_back()
        return has_begun

    def _finish_first(self, request: InlineRequest, stamp: int, response: Response) -> None:
        """Answer it, and remember how, if it may be answered so again."""
        # A certificate belongs to its connection, not to the bytes.
        if self.connection.client_certificate is None:
            self.connection.shared.requests.note(self.request, self.data, Repeat.of(request, stamp))
        self.finish(response)

    def serve_anew(self) -> None:
        """Serve it by its route: what was read before is not there, or is refused."""
        release(self.state)
        self.request = self.connection.shared.requests.note(self.request, self.data, None)
        self.serve()

    def serve(self) -> None:
        """Serve it by its route, on either way."""
        if not self.begin():
            self.connection.hand_to_parser(self)

    def finish(self, response: Response) -> None:
        """Answer it."""
        self.connection.finish(response)
