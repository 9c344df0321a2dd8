"""One request whose head was seen before and whose whole body is there, up to its answer.

Knows: that an endpoint asks the engine and is answered, now or later, and what it shares with others.
Must never know: bytes on the wire, what an operation does.

    Plan + body ─► endpoint ─► Ask ─┬─► engine ──────────► answer ─► one write
                     │              └─► joined with others ─┘
                     └─► waits for something else: a task, or the parser's way if nothing was done
"""

import asyncio
from collections.abc import Mapping, MutableMapping
from types import CoroutineType
from typing import Any, Final, Protocol, cast

from app.auth.rate_limiter import Meter
from app.doors.http.heads import Seen
from app.doors.http.serving import Serving
from app.errors import RefusalError
from app.gateway import Phase
from app.http.asks import Ask, Result
from app.http.client_address import Client, client_address
from app.http.operations.operation import Operation
from app.http.plan import Plan, Shared
from app.http.requests import NeedsTaskError, Request
from app.http.responses import NoResponse, Response, release
from app.live.waiting import ClientLeftError
from engine import EngineError, Replies

# To find a member in its class takes Python 3.11 a third of a microsecond.
_READY: Final = Phase.READY


class ExchangeConnection(Protocol):
    """What an exchange needs of its connection."""

    state: Mapping[str, Any]

    @property
    def serving(self) -> Serving: ...
    @property
    def extensions(self) -> Mapping[str, Any]: ...
    @property
    def tasks(self) -> set[asyncio.Task[None]]: ...
    async def receive(self) -> MutableMapping[str, Any]: ...
    def client_of(self, plan: Plan) -> Client | None: ...
    def caller_of(self, plan: Plan) -> str: ...
    def finish(self, exchange: "Exchange", response: Response) -> None: ...
    def finish_shared(self, exchange: "Exchange", lines: bytes, body: bytes) -> None: ...
    def note_task(self) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def hand_over(self, exchange: "Exchange") -> None: ...


class Exchange:
    """One request and its answer."""

    __slots__ = (
        "_ask",
        "_connection",
        "_request",
        "_shared",
        "began_s",
        "body",
        "data",
        "meter",
        "operation",
        "plan",
        "request_id",
        "seen",
        "state",
    )

    def __init__(self, connection: ExchangeConnection, seen: Seen, operation: Operation, data: bytes) -> None:
        self._connection = connection
        self.seen = seen
        self.plan = seen.plan
        self.operation = operation
        # All of it: for the parser, if only that can go on.
        self.data = data
        self.body = data[seen.body_at :]
        serving = connection.serving
        self.request_id = serving.id_of(seen.passing) if seen.passing else serving.new_id()
        self.began_s = serving.monotonic()
        # As in the scope of any request.
        self.state: dict[str, Any] = _NO_STATE
        self._request: Request | None = None
        self._ask: Ask | None = None
        # Of what is shared: what it has in common with others, and the rate that has counted it.
        self._shared: Shared | None = None
        self.meter: Meter | None = None

    def begin(self) -> bool:
        """Begin. False, with nothing done, where it waits for more than the engine before it asks that."""
        shared = self.plan.shared
        if shared is not None and not self.seen.passing and shared.takes(self.body) and self._share(shared):
            return True
        return self._begin()

    # ---- with others

    def _share(self, shared: Shared) -> bool:
        gateway, principal = self._connection.serving.gateway, self.plan.principal
        if gateway.phase is not _READY or principal is None:
            return False
        limiter = gateway.limits.rates
        if limiter is not None:
            meter = limiter.meter(principal, client_address({"client": self.client}))
            try:
                if meter is not None:
                    meter.take_requests(1, len(self.body))
            except RefusalError:
                # It is refused by its operation.
                return False
            self.meter = meter
        self._shared = shared
        gateway.joiner.send_unread(gateway.engine, shared.stream, self, shared.read)
        return True

    def ask_alone(self) -> None:
        """Have it served by its operation, which counts it again."""
        if self.meter is not None:
            self.meter.give_back()
            self.meter = None
        if not self._begin():
            self._connection.hand_over(self)

    def answer_added(self, entry_id: int) -> None:
        """It is stored, with this ID."""
        assert self._shared is not None, "it was shared"
        try:
            lines, body = self._shared.answer(entry_id)
            self._connection.finish_shared(self, lines, body)
        except Exception as error:  # noqa: BLE001 - as in `_finish`
            self._connection.fail(error)

    def answer_refused(self, refusal: EngineError) -> None:
        """It may have been stored, and is not tried again."""
        request = self._make_request()
        request.meter = self.meter
        self._finish(self.operation.refuse(request, refusal))

    # ---- alone

    def _make_request(self) -> Request:
        plan, connection = self.plan, self._connection
        self.state = {**connection.state, "request_id": self.request_id}
        length = (b"content-length", b"%d" % len(self.body))
        scope = {
            "type": "http",
            "method": plan.method,
            "raw_path": plan.path,
            "query_string": plan.query,
            "headers": [*plan.headers.items(), length, *self.seen.passing.items()],
            "state": self.state,
            "client": self.client,
            "extensions": connection.extensions,
        }
        self._request = request = Request(connection.serving.gateway, scope, connection.receive, plan)
        if plan.principal is not None:
            request.be_of(plan.principal, connection.caller_of(plan))
        return request

    @property
    def client(self) -> Client | None:
        """The client's address."""
        return self._connection.client_of(self.plan)

    def _begin(self) -> bool:
        if self.plan.stamp != self._connection.serving.gateway.stamp.value:
            # It waited for others: its caller is asked for again.
            return False
        request = self._make_request()
        try:
            result = self.operation.begin(request, self.body)
        except NeedsTaskError:
            release(self.state)
            request.give_back()
            return False
        except Exception as error:  # noqa: BLE001 - every exception has an answer
            self._finish(self.operation.refuse(request, error))
            return True
        self._go_on(request, result)
        return True

    def _go_on(self, request: Request, result: Result) -> None:
        """Ask until there is an answer, or something to wait for."""
        try:
            while isinstance(result, Ask):
                self._ask = result
                try:
                    replies = request.send(result, self._replied)
                except NeedsTaskError:
                    self._in_task(request, result)
                    return
                if replies is None:
                    return
                result = request.answered(result, replies)
            if type(result) is CoroutineType:
                self._in_task(request, result)
                return
            response = self.operation.finish(request, cast("Response", result))
        except Exception as error:  # noqa: BLE001 - as above
            response = self.operation.refuse(request, error)
        self._finish(response)

    def _replied(self, replies: Replies) -> None:
        request, ask = self._request, self._ask
        assert request is not None, "it has asked"
        assert ask is not None, "this is the answer to it"
        try:
            result = request.answered(ask, replies)
        except Exception as error:  # noqa: BLE001 - as above
            self._finish(self.operation.refuse(request, error))
        else:
            self._go_on(request, result)

    def _in_task(self, request: Request, result: Result) -> None:
        self._connection.note_task()
        task = asyncio.ensure_future(self._settle(request, result))
        tasks = self._connection.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _settle(self, request: Request, result: Result) -> None:
        try:
            response = self.operation.finish(request, await request.settle(result))
        except ClientLeftError:
            request.take_back()
            response = NoResponse()
        except Exception as error:  # noqa: BLE001 - as above
            response = self.operation.refuse(request, error)
        self._finish(response)

    def _finish(self, response: Response) -> None:
        try:
            self._connection.finish(self, response)
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._connection.fail(error)


# Shared by requests that hold nothing.
_NO_STATE: Final[dict[str, Any]] = {}
