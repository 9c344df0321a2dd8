"""A connection to the gateway: requests whose heads were seen before are served where their bytes arrive.

Knows: when a connection is between two requests, what a request shares with others, how an answer becomes
one write, who the caller is, and that a request of a caller with many connections begins in its connection's
turn.
Must never know: what an operation does. It knows no operation by name.

    bytes ─► head seen before, all of it here, in turn? ─ no ─► the parser ─► Plan ─► a task; the head is kept
                └► yes: Plan + body ─► endpoint ─► Ask ─┬─► engine ──────────► answer ─► one write
                                         │              └─► joined with others ─┘
                                         └─► waits for something else: a task
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from types import CoroutineType
from typing import Any, Final, cast

from app.auth import UNAUTHENTICATED
from app.auth.rate_limiter import Meter, address_key, caller_of
from app.doors.http.answer_heads import CLOSE, HEADER_LINE
from app.doors.http.heads import Seen
from app.doors.http.http_connection import HttpConnection
from app.doors.http.request_parser import RequestHead
from app.doors.http.service import HttpService
from app.doors.http.serving import Serving
from app.errors import RefusalError
from app.http.asks import Ask, Result
from app.http.client_address import FORWARDED_FOR, Client, client_address
from app.http.common import codings
from app.http.common.exchanges import complete
from app.http.plan import Coding, HeadPlan
from app.http.requests import NeedsTaskError, Request
from app.http.responses import EXCHANGE_EXTENSION, Exchange, NoResponse, Response, Scope
from app.live.budgets import FREE_BYTES
from app.live.fair_queue import TASK_COST, ConnectionTurn
from app.live.waiting import ClientLeftError
from app.operating import Phase
from engine import EngineError, Replies

# Bytes that one client may send ahead of its answers before reading is paused.
_AHEAD_BYTES_MAX: Final = 64 << 10
# Requests that are served on one connection before others have their turn.
_AT_ONCE_MAX: Final = 16
# Large bodies are not copied behind their heads.
_JOINED_BYTES_MAX: Final = 16 << 10
# To find a member in its class takes Python 3.11 a third of a microsecond.
_DRAINING: Final = Phase.DRAINING


class PlannedExchange(Exchange, kw_only=True):
    """A request of which all is there, and its answer."""

    connection: "PlannedConnection"
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


class PlannedConnection(HttpConnection):
    """One connection of the gateway's application."""

    def __init__(self, service: HttpService, serving: Serving) -> None:
        super().__init__(service)
        self.serving = serving
        self._heads = serving.heads
        # Bytes not looked at yet: behind a request that waits for its answer, behind many in a row, or of a
        # request of which `_missing_bytes` are still to come.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._missing_bytes = 0
        self._awaits_body = False
        # Whether it goes on with them by itself, soon or in its turn.
        self._catching_up = False
        # Begins what the parser has read, once it is the connection's turn.
        self._due: Callable[[], None] | None = None
        self.answering: PlannedExchange | None = None
        # The head that the parser reads next, how it has read it, and its plan if it has one.
        self._unseen: bytes | None = None
        self._head_read: tuple[RequestHead | None, bytes | None] = (None, None)
        self._known: HeadPlan | None = None
        # The plan of the request before, whose caller's turn it is; whose it is, and from which address.
        self._plan: HeadPlan | None = None
        self.request_caller = ""
        self.address: Client | None = None
        # Nothing is under way or waits, and the next bytes begin a request.
        self._is_clear = False
        # Both pools; and for whom what is not taken of the last answer is counted, if it is long.
        self.budgets = serving.gateway.limits.budgets
        self._payer: Client | None = None
        self.is_leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.client_certificate is not None:
            self._heads = self.serving.new_heads(self.client_certificate)
        address, requests = client_address({"client": self.client}), self.serving.gateway.limits.requests
        self.turn = ConnectionTurn(requests, address_key(address), self._take_turn)
        # Of a caller with fewer connections, what costs next to nothing need not ask for its turn.
        self._requests = requests

    async def receive(self) -> MutableMapping[str, Any]:
        """Wait until the client has left: its whole request has arrived."""
        gone: asyncio.Future[None] = self.loop.create_future()
        stop = self.departure.follow(lambda: None if gone.done() else gone.set_result(None))
        try:
            await gone
        finally:
            stop()
        return {"type": "http.disconnect"}

    def data_received(self, data: bytes) -> None:
        is_clear, self._is_clear = self._is_clear, False
        seen = None
        try:
            if is_clear:
                seen = self._heads.find(data, 0)
                if seen is not None and seen.end == len(data):
                    # One whole request, with nothing else under way or waiting, as nearly all are.
                    if seen.plan is not self._plan:
                        self._find_caller(seen.plan)
                    flow = self.turn.flow
                    is_crowded = flow is not None and flow.connections > self._requests.a_cycle_max
                    if not is_crowded and seen.end - seen.body_at <= FREE_BYTES:
                        self._begin(seen, data)
                        return
            if self._held or self.answering is not None:
                self._hold(data)
                if self.answering is not None or self._catching_up or self._missing_bytes > 0:
                    return
                data = self._release()
            rest = self._serve(data, seen)
        except Exception as error:  # noqa: BLE001 - the transport would cut the connection, and say nothing
            rest = self._rest_behind(error, data)
        try:
            if rest:
                self._parse_rest(rest)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)

    def _parse_rest(self, data: bytes) -> None:
        self._is_clear = False
        if self.is_between_requests:
            self._unseen = self._heads.whole_of(data)
        super().data_received(data)

    def _rest_behind(self, error: Exception, data: bytes) -> bytes:
        """What is left for the parser where a request has met an error of the gateway: all of it, unless
        the request has begun, and may have been done.
        """
        if self.answering is None:
            self.service.faults.note("http", error)
            return data
        self.fail(error)
        return b""

    def _serve(self, data: bytes, first: Seen | None) -> bytes:
        """Serve requests whose heads were seen before; the first one is this, if it is known. Returns the
        bytes that are for the parser.
        """
        at = 0
        try:
            for number in range(_AT_ONCE_MAX):
                if number and (at == len(data) or not self.serving.gateway.limits.cycle.has_time()):
                    break
                end = self._serve_one(data, at, None if number else first)
                if end is None:
                    return b""
                if end == at:
                    return data[at:]
                at = end
                if self.answering is not None:
                    break
        except Exception as error:  # noqa: BLE001 - as above
            return self._rest_behind(error, data[at:])
        if at < len(data):
            self._hold(data[at:])
            if self.answering is None:
                self._catch_up_soon()
        return b""

    def _serve_one(self, data: bytes, at: int, seen: Seen | None) -> int | None:
        """Serve the request that begins there. Returns where the next one does; the same place, where it is
        for the parser; None where it waits, with all that is behind it.
        """
        if seen is None and at < len(data) and self.is_between_requests:
            seen = self._heads.find(data, at)
        # Before a long body is there, the parser's way holds memory for it.
        if seen is None or seen.end - seen.body_at > FREE_BYTES:
            return at
        end = at + seen.end
        if end > len(data):
            self._await_body(data[at:], end - len(data))
            return None
        if seen.plan is not self._plan:
            self._find_caller(seen.plan)
        if not self._may_go_on(data[at:]):
            return None
        self.end_deadline()
        self._begin(seen, data[at:end])
        return end

    def _find_caller(self, plan: HeadPlan) -> None:
        """Take turns with the connections of the request's caller."""
        before, self._plan = self._plan, plan
        proxies, forwarded = self.serving.proxies, plan.headers.get(FORWARDED_FOR)
        if before is not None and before.principal is plan.principal and proxies is None:
            return
        self.address = self.client
        if proxies is not None and forwarded is not None:
            # The one that a trusted proxy has sent.
            self.address = proxies.find(self.client, (forwarded,))
        address = client_address({"client": self.address})
        self.request_caller = caller_of(plan.principal or UNAUTHENTICATED, address)
        self.turn.pass_to(self.request_caller)

    def _may_go_on(self, data: bytes) -> bool:
        """Whether this may be served now. Otherwise it waits for the connection's turn."""
        if self.turn.may_go_on():
            return True
        self.request_taken()
        self._catching_up = True
        self._hold(data)
        return False

    def begin_request(self, head: RequestHead) -> None:
        self._unseen, whole = None, self._unseen
        self._head_read = head, whole
        super().begin_request(head)

    def begin_scope(self, scope: Scope) -> None:
        """Put what there is of a request that the parser has read into its scope; keep the head."""
        (head, whole), self._head_read = self._head_read, (None, None)
        known, self._known = self._known, None
        plan = known or self.serving.plans.make(scope)
        exchange = self.serving.exchanges.begin(plan, scope)
        scope["extensions"] = {**self.extensions, EXCHANGE_EXTENSION: exchange}
        if whole is not None and head is not None and known is None:
            self._heads.keep(whole, head, plan)

    def begin_parsed(self, scope: Mapping[str, Any], begin: Callable[[], None]) -> None:
        """Begin a request that the parser has read, in the connection's turn.

        Its caller is its address, since its token is not known yet. A request that had its turn in front of
        the parser keeps it.
        """
        if not self.turn.has_turn:
            self._plan = None
            proxies = self.serving.proxies
            client = self.client if proxies is None else proxies.resolve(scope)
            self.turn.pass_to(address_key(client_address({"client": client})))
        self._begin_in_turn(begin)

    def _begin_in_turn(self, begin: Callable[[], None]) -> None:
        if self.turn.may_go_on(TASK_COST):
            if self.is_upgraded:
                self.turn.leave()
            begin()
        else:
            self._due = begin
            if self.is_upgraded:
                # Further bytes are for the protocol that takes over.
                self.pause_reading()

    def _take_turn(self) -> None:
        begin, self._due = self._due, None
        try:
            if begin is None:
                self._catch_up()
            elif not self.transport.is_closing():
                self._begin_in_turn(begin)
        except Exception as error:  # noqa: BLE001 - others wait behind it
            self.service.faults.note("http", error)
            self.transport.abort()

    # --- one request and its answer -------------------------------------------------------------------------

    def _begin(self, seen: Seen, data: bytes) -> None:
        self.idle_since = None
        # One that was answered in its own step may have come before it in these bytes.
        self._is_clear = False
        plan, passing, serving = seen.plan, seen.passing, self.serving
        if plan.operation is not None and plan.operation.is_plain and plan.form is None:
            exchange = self.answering = PlannedExchange(
                plan,
                serving.id_of(passing.items()) if passing else serving.new_id(),
                self.extensions,
                plan.operation.label,
                serving.monotonic(),
                connection=self,
                seen=seen,
                data=data,
                body=data[seen.body_at :],
            )
            if exchange.begin():
                return
            self.answering = None
        self.turn.has_turn = True
        self._begin_task(seen, data)

    def _begin_task(self, seen: Seen, data: bytes) -> None:
        """Serve a request in a task, as one that the parser has read."""
        plan, body = seen.plan, data[seen.body_at :]
        length = (b"content-length", b"%d" % len(body))
        headers = [*plan.headers.items(), *seen.passing.items(), length]
        head = RequestHead(
            plan.method.encode(), plan.path, "1.1", headers, expects_continue=False, keeps_alive=True
        )
        self._head_read, self._known = (head, None), plan
        self.begin(head, plan.path, plan.query)
        self.receive_body(body)
        self.end_request()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with a request in a task, for which a stopping server waits."""
        self.turn.note(TASK_COST - 1)
        task, tasks = self.loop.create_task(work), self.service.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def hand_over(self, exchange: PlannedExchange) -> None:
        """Serve a request, that has not begun, in a task."""
        self.answering = None
        if not self.transport.is_closing():
            self.turn.has_turn = True
            self._begin_task(exchange.seen, exchange.data)
            if self.is_leaving:
                super().shutdown()
            self._catch_up_soon()

    def finish(self, exchange: PlannedExchange, response: Response) -> None:
        """Send the answer; a large one is compressed if its client accepts that."""
        try:
            if len(response.body) >= codings.CODED_BYTES_MIN:
                chosen = codings.choose(exchange.plan, response)
                if chosen is not None:
                    self.run(self._finish_coded(exchange, response, chosen))
                    return
            complete(exchange, response, is_last=self.is_leaving or self.serving.gateway.phase is _DRAINING)
            transport = self.transport
            if not transport.is_closing():
                status, headers = response.status_code, self.service.headers
                start = headers.starts.get(status) or headers.start(status)
                head = b"%b%b\r\n" % (start, b"".join(map(HEADER_LINE, response.raw_headers)))
                if len(response.body) <= _JOINED_BYTES_MAX:
                    transport.write(head + response.body)
                else:
                    transport.writelines((head, response.body))
                if CLOSE in response.raw_headers:
                    transport.close()
            elif response.unsent is not None:
                response.unsent()
            if self.has_unsent or exchange.held_answer is not None:
                self._hold_unsent(exchange)
            self._end(exchange, response)
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self.fail(error)

    async def _finish_coded(self, exchange: PlannedExchange, response: Response, chosen: Coding) -> None:
        try:
            await codings.encode(response, chosen)
        except Exception as error:  # noqa: BLE001 - as above
            self.fail(error)
        else:
            self.finish(exchange, response)

    def _end(self, exchange: PlannedExchange, response: Response) -> None:
        """Count the request, and be idle or go on with what has come behind it."""
        self.answering = exchange.request = exchange.ask = None
        exchange.status, exchange.sent_bytes = response.status_code, len(response.body)
        # A client that has left is refused nothing.
        exchange.code = "" if isinstance(response, NoResponse) else response.code
        self.serving.exchanges.note_end(exchange)
        if self._idle is None:
            self.begin_idle()
        elif not self.transport.is_closing():
            # Its timer runs.
            self.idle_since = self.loop.time()
        if self._held:
            self._catch_up_soon()
        elif not (self.has_unsent or self.backlog or self.transport.is_closing()):
            self._is_clear = True

    def _hold_unsent(self, exchange: PlannedExchange) -> None:
        """Count what the client has not taken until it has, and nothing of what it has."""
        held = exchange.held_answer
        if self.has_unsent and not self.transport.is_closing():
            self._payer, self.output = self.address, held
            self.settle_output()
        elif held is not None:
            held.release()

    @property
    def caller(self) -> str:
        """The address to which the last long answer went."""
        return address_key(client_address({"client": self._payer}))

    # --- bytes that wait ------------------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self._is_clear = False
        self._held.append(data)
        self._held_bytes += len(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes <= 0 and self._held_bytes > _AHEAD_BYTES_MAX:
            self.pause_reading()

    def _release(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = self._missing_bytes = 0
        if self._awaits_body:
            self._awaits_body = False
            self.request_arrived()
        self.resume_reading()
        return data

    def _await_body(self, data: bytes, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes + len(data)
        self._awaits_body = True
        self._hold(data)
        self.request_arrives()

    def _catch_up_soon(self) -> None:
        if self._held and not self._catching_up:
            # Others come first, and the turn that brought an answer.
            self._catching_up = True
            self.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        if self._held and not self.transport.is_closing():
            self.data_received(b"")

    # --- the connection's life ------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._is_clear = False
        super().pause_writing()

    def shutdown(self) -> None:
        self._is_clear = False
        if self.answering is not None:
            self.is_leaving = True
            return
        if self._held:
            self._parse_rest(self._release())
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self.turn.leave()
        self._held.clear()
        super().connection_lost(exc)
