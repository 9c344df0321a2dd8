"""What every answer carries, whatever becomes of the request: an ID, a line in the log, headers that keep it
safe.

Knows: request IDs, security headers, what to do with an exception nobody expected.
Must never know: routes, commands.
"""

import os
import re
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from app import logs
from app.calls import Scope, Send, refused
from app.errors import Refusal, of_engine
from app.gateway import Gateway, Phase, Receive
from engine import EngineError

ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]

_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_SAFETY: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_POLICY: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
client_left_status: Final = 499


class Envelope:
    """Outermost. Lets no exception out, and none of its words."""

    def __init__(self, app: ASGI, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        # Unique over processes without asking the system for each request.
        self._prefix = os.urandom(6).hex()
        self._serials = count(1)
        settings = gateway.settings
        self._lines = logs.RequestLog(settings.log_requests, settings.log_level, settings.log_format)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        sending = _Sending(send, request_id, closing=self._gateway.phase is Phase.DRAINING)
        began_s = self._gateway.clock.monotonic()
        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if sending.status:
                raise
            await refused(as_refusal(error, request_id), request_id)(scope, receive, sending)
        if not sending.status:
            sending.status = client_left_status
        if self._lines.wants(sending.status):
            self._log(scope, request_id, sending, began_s)

    def flush(self) -> None:
        """Write the lines of requests that are not written yet."""
        self._lines.flush()

    def _request_id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"weir-request-id" and _SANE_ID.fullmatch(value):
                return str(value, "ascii")
        return f"{self._prefix}-{next(self._serials):x}"

    def _log(self, scope: Scope, request_id: str, sending: "_Sending", began_s: float) -> None:
        clock = self._gateway.clock
        self._lines.note(
            logs.RequestLine(
                request_id=request_id,
                method=scope["method"],
                path=scope["raw_path"].decode("latin-1"),
                status=sending.status,
                ms=round((clock.monotonic() - began_s) * 1000, 2),
                bytes=sending.bytes,
                timestamp=_iso(clock.wall_ms()),
            )
        )


class _Sending:
    """Adds the headers to the answer's head; knows afterwards what was sent."""

    __slots__ = ("_closing", "_request_id", "_send", "bytes", "status")

    def __init__(self, send: Send, request_id: str, *, closing: bool) -> None:
        self._send = send
        self._request_id = request_id
        self._closing = closing
        self.status = 0
        self.bytes = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._headers(list(message["headers"]))
        else:
            self.bytes += len(message.get("body", b""))
        await self._send(message)

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        given = {name for name, _ in headers}
        headers += [(b"weir-request-id", self._request_id.encode()), *_SAFETY]
        if b"content-security-policy" not in given:
            headers.append(_POLICY)
        if self._closing and b"connection" not in given:
            headers.append((b"connection", b"close"))
        return headers


def _iso(wall_ms: int) -> str:
    return (
        datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def as_refusal(error: Exception, request_id: str) -> Refusal:
    """Any exception as what a client may know of it. What nobody expected is logged, with its trace."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, EngineError):
        return of_engine(error)
    logs.get().error("unexpected", request_id=request_id, error=repr(error), trace=logs.trace(error))
    return Refusal("internal", "something went wrong; the gateway's log has more under this request_id")
