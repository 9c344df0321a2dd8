"""One request whose head was seen before and whose whole body is there, up to its answer.

Knows: that an endpoint asks the engine and is answered, now or later, and what it shares with others.
Must never know: bytes on the wire, what an operation does.

    Plan + body ─► endpoint ─► Ask ─┬─► engine ──────────► answer ─► one write
                     │              └─► joined with others ─┘
                     └─► waits for something else: a task
"""

from collections.abc import Coroutine, MutableMapping
from types import CoroutineType
from typing import Any, Protocol, cast

from app.auth.rate_limiter import Meter
from app.doors.http.heads import Seen
from app.doors.http.serving import Serving
from app.errors import RefusalError
from app.http.asks import Ask, Result
from app.http.client_address import Client, client_address
from app.http.requests import NeedsTaskError, Request
from app.http.responses import Exchange, NoResponse, Response
from app.live.waiting import ClientLeftError
from engine import EngineError, Replies


class ExchangeConnection(Protocol):
    """What an exchange needs of its connection. Its request's `caller` and `address` are known."""

    address: Client | None
    request_caller: str

    @property
    def serving(self) -> Serving: ...
    async def receive(self) -> MutableMapping[str, Any]: ...
    def finish(self, exchange: "PlannedExchange", response: Response) -> None: ...
    def run(self, work: Coroutine[Any, Any, None]) -> None: ...
    def hand_over(self, exchange: "PlannedExchange") -> None: ...


class PlannedExchange(Exchange, kw_only=True):
    """A request of which all is there, and its answer."""

    connection: ExchangeConnection
    seen: Seen
    # All of it: for a task, if only that can go on.
    data: bytes
    body: bytes
    # Made where more than the plan and the body is needed; its end parts them, since each has the other.
    request: Request | None = None
    ask: Ask | None = None
    # The rate that has counted it before there is a request.
    meter: Meter | None = None

    def begin(self, *, is_alone: bool = False) -> bool:
        """Begin, with others where that may be. False, with nothing done, where it waits for more than the
        engine before it asks that.
        """
        ask = None if is_alone or self.seen.passing else self.plan.raw
        if ask is not None and ask.raw.takes(self.body) and self._join(ask):
            return True
        request = self._make_request()
        try:
            result = self.plan.operation.begin(request, self.body)
        except NeedsTaskError:
            self.release()
            self.request = None
            request.give_back()
            return False
        except Exception as error:  # noqa: BLE001 - every exception has an answer
            self.connection.finish(self, self.plan.operation.refuse(request, error))
            return True
        self._go_on(None, result)
        return True

    def _join(self, ask: Ask) -> bool:
        """Have its body read with those of others. False where it is refused, as its operation does."""
        gateway, principal = self.connection.serving.gateway, self.plan.principal
        assert principal is not None, "only those of known callers are read together"
        assert ask.raw is not None, "it says how it is read"
        limiter = gateway.limits.rates
        try:
            engine = gateway.tenant(principal.prefix).engine
            if limiter is not None:
                meter = limiter.meter(principal, client_address({"client": self.connection.address}))
                if meter is not None:
                    meter.take_requests(1, len(self.body))
                self.meter = meter
        except RefusalError:
            return False
        self.ask = ask
        gateway.joiner.join_raw(engine, ask.raw, self.body, self._go_on, self._ask_alone)
        return True

    def _ask_alone(self) -> None:
        """Have it served by its operation, which counts it again, unless it has waited for too long."""
        if self.meter is not None:
            self.meter.give_back()
            self.meter = None
        is_known = self.plan.stamp == self.connection.serving.gateway.stamp.value
        if not is_known or not self.begin(is_alone=True):
            self.connection.hand_over(self)

    def _make_request(self) -> Request:
        plan, connection = self.plan, self.connection
        length = (b"content-length", b"%d" % len(self.body))
        scope = {
            "type": "http",
            "method": plan.method,
            "raw_path": plan.path,
            "query_string": plan.query,
            "headers": [*plan.headers.items(), length, *self.seen.passing.items()],
            "client": connection.address,
        }
        self.request = request = Request(connection.serving.gateway, scope, connection.receive, self)
        request.meter = self.meter
        if plan.principal is not None:
            request.principal, request.known_caller = plan.principal, connection.request_caller
        return request

    def _go_on(self, replies: Replies | None, result: Result | None = None) -> None:
        """Go on with these replies, until there is an answer or something to wait for."""
        request, ask = self.request, self.ask
        try:
            if request is None:
                assert replies is not None, "it was asked with others"
                assert ask is not None, "as above"
                if self.meter is None and not isinstance(replies[0], EngineError):
                    # All that it needs was known by its head.
                    self.connection.finish(self, cast("Response", ask.answer(*replies)))
                    return
                request = self._make_request()
            while True:
                if replies is not None:
                    assert ask is not None, "these are the replies to it"
                    result = request.answered(ask, replies)
                if not isinstance(result, Ask):
                    break
                ask = self.ask = result
                try:
                    replies = request.send(ask, self._go_on)
                except NeedsTaskError:
                    self.connection.run(self._settle(request, ask))
                    return
                if replies is None:
                    return
            if type(result) is CoroutineType:
                self.connection.run(self._settle(request, result))
                return
            response = self.plan.operation.finish(request, cast("Response", result))
        except Exception as error:  # noqa: BLE001 - as above
            response = self.plan.operation.refuse(request or self._make_request(), error)
        self.connection.finish(self, response)

    async def _settle(self, request: Request, result: Result) -> None:
        try:
            response = self.plan.operation.finish(request, await request.settle(result))
        except ClientLeftError:
            request.take_back()
            response = NoResponse()
        except Exception as error:  # noqa: BLE001 - as above
            response = self.plan.operation.refuse(request, error)
        self.connection.finish(self, response)
