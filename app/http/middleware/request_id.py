"""What every answer carries, also when the request fails: an ID, a line in the log, headers that keep it
safe.

Knows: request IDs, security headers, how an unexpected exception is answered and logged.
Must never know: routes, commands.
"""

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import Any, Final

from app import logs
from app.auth import UNAUTHENTICATED
from app.errors import RefusalError, to_refusal
from app.gateway import Gateway, Phase, Receive
from app.http.middleware.origins import exposed
from app.http.plan import HeadPlan
from app.http.requests import Request
from app.http.responses import (
    CODE_STATE,
    OUTPUT_STATE,
    ROUTE_STATE,
    WAITED_STATE,
    WRITE_EXTENSION,
    WRITE_STATE,
    Header,
    Response,
    Scope,
    Send,
    refuse,
    release,
)
from app.live.budgets import FREE_BYTES, Reservation
from app.metrics.counters import TIMES_MAX
from engine import EngineError

_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_POLICY: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
# On every answer; a page brings a content security policy of its own, live events their word to caches.
SAFETY: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    _POLICY,
)
CLOSING: Final = (b"connection", b"close")
CLIENT_LEFT_STATUS: Final = 499
SWITCHED_STATUS: Final = 101
_BODY: Final = "http.response.body"
# The label of requests that no operation answered.
NO_ROUTE: Final = "other"


# Serves one request of HTTP, or one handshake, whose head has this plan.
Serve = Callable[[HeadPlan, Scope, Receive, Send], Awaitable[None]]


class RequestIds:
    """Outermost. Lets no exception out, and none of its words."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        # The ID of a request that brought none: unique over processes without asking the system for each, and
        # made without a call of Python.
        self.new_id: Callable[[], str] = map(f"{os.urandom(6).hex()}-%x".__mod__, count(1)).__next__
        settings = gateway.settings
        # Looked up once: they are used for each request.
        self._monotonic = gateway.clock.monotonic
        self._requests, self._times = gateway.reports.counters.requests, gateway.reports.counters.times
        self._lines = logs.RequestLog(settings.log_requests, settings.log_level, settings.log_format)
        # Looked up once, as above: from this status on a request gets a line.
        self.logged_from = self._lines.least_status

    async def serve(self, plan: HeadPlan, scope: Scope, receive: Receive, send: Send, serve: Serve) -> None:
        """Have a request served, with what every answer carries."""
        request_id = self.id_of(scope["headers"])
        scope["state"]["request_id"] = request_id
        write = scope.get("extensions", {}).get(WRITE_EXTENSION)
        sending = _Sending(send, write, scope["state"], self._gateway, plan)
        if write is not None:
            scope["state"][WRITE_STATE] = sending.write
        began_s = self._gateway.clock.monotonic()
        try:
            await serve(plan, scope, receive, sending)
        except Exception as error:
            if sending.status:
                raise
            refusal = as_refusal(error, request_id)
            response = refuse(refusal, request_id)
            if ROUTE_STATE not in scope["state"]:
                response = counted(Request(self._gateway, scope, receive, plan), response)
            await response(scope, receive, sending)
        finally:
            release(scope["state"])
        if not sending.status:
            sending.status = CLIENT_LEFT_STATUS
        path, state = scope["raw_path"].decode("latin-1"), scope["state"]
        # How long it waited for entries, or stayed open, says nothing of the gateway.
        waited = WAITED_STATE in state or sending.status == SWITCHED_STATUS
        self.note(
            request_id,
            scope["method"],
            path,
            status=sending.status,
            sent_bytes=sending.bytes,
            began_s=began_s,
            route=state.get(ROUTE_STATE, NO_ROUTE),
            code=state.get(CODE_STATE, ""),
            waited=waited,
        )

    def flush(self) -> None:
        """Write the lines of requests that are not written yet."""
        self._lines.flush()

    def id_of(self, headers: Iterable[Header]) -> str:
        """The ID of a request: the one that it brings, or a new one."""
        for name, value in headers:
            if name == b"weir-request-id" and _SANE_ID.fullmatch(value):
                return str(value, "ascii")
        return self.new_id()

    def refuse(self, refusal: RefusalError) -> Response:
        """The answer to what is no request yet, and that goes no further than the parser."""
        request_id = self.new_id()
        response = refuse(refusal, request_id)
        response.raw_headers += [(b"weir-request-id", request_id.encode()), *SAFETY]
        now_s, length = self._gateway.clock.monotonic(), len(response.body)
        self.note(
            request_id,
            "-",
            "-",
            status=response.status_code,
            sent_bytes=length,
            began_s=now_s,
            route=NO_ROUTE,
            code=refusal.code,
        )
        return response

    def count(self, route: str, status: int, began_s: float | None) -> None:
        """Count how a request ended that began then; None for one whose time says nothing."""
        self._requests[route][status] += 1
        if began_s is not None:
            times = self._times.noted
            times.append(self._monotonic() - began_s)
            if len(times) >= TIMES_MAX:
                self._times.count()

    def note(  # noqa: PLR0913 - what there is to say of a request
        self,
        request_id: str,
        method: str,
        path: str,
        *,
        status: int,
        sent_bytes: int,
        began_s: float,
        route: str,
        code: str = "",
        waited: bool = False,
    ) -> None:
        """Count how a request ended, and log it if that is wanted. `code` is that of its refusal."""
        self.count(route, status, None if waited else began_s)
        if code:
            self._gateway.reports.counters.refuse(code)
        if status < self.logged_from:
            return
        clock = self._gateway.clock
        self._lines.note(
            logs.RequestLine(
                request_id=request_id,
                method=method,
                path=path,
                status=status,
                ms=round((clock.monotonic() - began_s) * 1000, 2),
                bytes=sent_bytes,
                timestamp=_iso(clock.wall_ms()),
            )
        )


class _Sending:
    """Adds the headers to the answer's head; knows afterwards what was sent."""

    __slots__ = ("_gateway", "_plan", "_send", "_state", "_write", "bytes", "status")

    def __init__(
        self,
        send: Send,
        write: Callable[[bytes], bool] | None,
        state: Mapping[str, Any],
        gateway: Gateway,
        plan: HeadPlan,
    ) -> None:
        self._plan = plan
        self._send = send
        self._write = write
        self._state = state
        self._gateway = gateway
        self.status = 0
        self.bytes = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._headers(list(message["headers"]))
        else:
            body = message.get("body", b"")
            self.bytes += len(body)
            if len(body) > FREE_BYTES:
                await self._send_slices(body, more=message.get("more_body", False))
                return
        await self._send(message)

    def write(self, piece: bytes) -> bool:
        """Write a short piece at once, if the client has taken everything before. Returns whether it did."""
        if self._write is None or not self._write(piece):
            return False
        self.bytes += len(piece)
        return True

    async def _send_slices(self, body: bytes, *, more: bool) -> None:
        """Send a long body so that no more than a slice of it waits in the transport: each is written once
        the client has taken most of the one before.
        """
        view = memoryview(body)
        held: Reservation | None = self._state.get(OUTPUT_STATE)
        if held is not None:
            held.note_sliced(len(body))
        for at in range(0, len(body), FREE_BYTES):
            end = at + FREE_BYTES
            piece = bytes(view[at:end])
            await self._send({"type": _BODY, "body": piece, "more_body": more or end < len(body)})
        if held is not None:
            held.note_sliced(0)

    def _headers(self, headers: Sequence[Header]) -> list[Header]:
        origin = self._plan.origin.exposed_to
        if origin is not None:
            headers = exposed(headers, origin)
        return with_safety(headers, self._state["request_id"], is_last=self._gateway.phase is Phase.DRAINING)


def with_safety(headers: Sequence[Header], request_id: str, *, is_last: bool) -> list[Header]:
    """The headers of an answer, with those that every one has; after the last one the connection closes."""
    given = {name for name, _ in headers}
    every = [header for header in SAFETY if header[0] not in given]
    closing = [CLOSING] if is_last and b"connection" not in given else []
    return [*headers, (b"weir-request-id", request_id.encode()), *every, *closing]


@lru_cache(maxsize=2)
def _iso(wall_ms: int) -> str:
    """The time of a line. Lines that are written in the same millisecond share it."""
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return moment.removesuffix("+00:00") + "Z"


def counted(request: Request, response: Response) -> Response:
    """A refusal that no operation gives, counted against its caller's rate as any other answer; beyond the
    rate, the refusal for that.
    """
    known = request.gateway.access.policy.recognise(request.headers, request.certificate)
    request.principal = known or UNAUTHENTICATED
    try:
        request.take_request()
    except RefusalError as refusal:
        response = refuse(refusal, request.request_id)
    if request.meter is not None:
        response.raw_headers += request.meter.headers()
    return response


def as_refusal(error: Exception, request_id: str) -> RefusalError:
    """Turn any exception into a refusal. An unexpected one is logged with its trace, and not shown."""
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, EngineError):
        return to_refusal(error)
    logs.note_fault(error, request_id)
    return RefusalError("internal", "something went wrong; the gateway's log has more under this request_id")
