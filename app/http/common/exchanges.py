"""Exchanges begin and end: what every answer carries, also when the request fails: an ID, a line in the log,
headers that keep it safe.

Knows: request IDs, security headers, how an unexpected exception is answered and logged.
Must never know: routes, commands.
"""

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import count
from operator import itemgetter
from typing import Final

from app import logs
from app.auth import UNAUTHENTICATED
from app.errors import RefusalError, to_refusal
from app.gateway import Gateway
from app.http.common import codings
from app.http.common.origins import exposed
from app.http.plan import HeadPlan
from app.http.requests import Request
from app.http.responses import NO_ROUTE, Exchange, Header, Response, Scope, Send, refuse
from app.metrics.counters import TIMES_MAX
from app.operating import Phase
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
_NAME: Final = itemgetter(0)
_EVERY_NAMES: Final = frozenset(map(_NAME, (*SAFETY, CLOSING)))

# Answers one request of HTTP, or one handshake.
Answer = Callable[[Request], Awaitable[Response]]


class Exchanges:
    """Those of one gateway, outside of all else. Lets no exception out, and none of its words."""

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
        self._logged_from = self._lines.least_status

    def begin(self, plan: HeadPlan, scope: Scope) -> Exchange:
        """What there is of a request with this head."""
        return Exchange(plan, self.id_of(scope["headers"]), scope.get("extensions", {}))

    async def serve(self, request: Request, send: Send, answer: Answer) -> None:
        """Have a request served over ASGI, with what every answer carries."""
        exchange = request.exchange
        exchange.began_s = self._monotonic()
        try:
            await self._send(await answer(request), request, send)
        except Exception as error:
            if exchange.status:
                raise
            response = refuse(as_refusal(error, exchange.request_id), exchange.request_id)
            if exchange.route == NO_ROUTE:
                response = counted(request, response)
            await self._send(response, request, send)
        finally:
            exchange.release()
        self.note_end(exchange)

    async def _send(self, response: Response, request: Request, send: Send) -> None:
        exchange = request.exchange
        chosen = codings.choose(exchange.plan, response)
        if chosen is not None:
            await codings.encode(response, chosen, is_head=exchange.plan.method == "HEAD")
        complete(exchange, response, is_last=self._gateway.phase is Phase.DRAINING)
        await response.send(exchange, request.receive, send)

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
        exchange = Exchange(HeadPlan("-", b"-", b"", {}), self.new_id(), began_s=self._monotonic())
        response = refuse(refusal, exchange.request_id)
        complete(exchange, response, is_last=False)
        exchange.status, exchange.code = response.status_code, response.code
        exchange.sent_bytes = len(response.body)
        self.note_end(exchange)
        return response

    def note_end(self, exchange: Exchange) -> None:
        """Count how a request ended, and log it if that is wanted."""
        status, code = exchange.status or CLIENT_LEFT_STATUS, exchange.code
        self._requests[exchange.route][status] += 1
        # How long it waited for entries, or stayed open, says nothing of the gateway.
        if not exchange.has_waited and status != SWITCHED_STATUS:
            times = self._times.noted
            times.append(self._monotonic() - exchange.began_s)
            if len(times) >= TIMES_MAX:
                self._times.count()
        if code:
            self._gateway.reports.counters.refuse(code)
        if status >= self._logged_from:
            self._log(exchange, status)

    def _log(self, exchange: Exchange, status: int) -> None:
        self._lines.note(
            logs.RequestLine(
                request_id=exchange.request_id,
                method=exchange.plan.method,
                path=exchange.plan.path.decode("latin-1"),
                status=status,
                ms=round((self._monotonic() - exchange.began_s) * 1000, 2),
                bytes=exchange.sent_bytes,
                timestamp=_iso(self._gateway.clock.wall_ms()),
            )
        )


def complete(exchange: Exchange, response: Response, *, is_last: bool) -> None:
    """Give an answer what every one has in its head; after the last one the connection closes."""
    headers, origin = response.raw_headers, exchange.plan.origin.exposed_to
    if origin is not None:
        headers = exposed(headers, origin)
    given = _EVERY_NAMES.intersection(map(_NAME, headers))
    own = (b"weir-request-id", exchange.request_id.encode())
    response.raw_headers = [*headers, own, *_missing(given, is_last)]


@cache
def _missing(given: frozenset[bytes], is_last: bool) -> Sequence[Header]:  # noqa: FBT001 - private
    return [header for header in ((*SAFETY, CLOSING) if is_last else SAFETY) if header[0] not in given]


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


def as_refusal(error: Exception, request_id: str, *, of_command: bool = False) -> RefusalError:
    """Turn any exception into a refusal. An unexpected one is logged with its trace, and not shown."""
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, EngineError):
        return to_refusal(error, of_command=of_command)
    logs.note_fault(error, request_id)
    return RefusalError("internal", "something went wrong; the gateway's log has more under this request_id")
