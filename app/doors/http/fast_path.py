"""The fast path: plain requests are answered where their bytes arrive, by the endpoints of their routes.

Knows: when a connection is between two requests, how an answer becomes one write, who the caller is, and that
a request of a caller with many connections begins in its connection's turn, on either way.
Must never know: what an operation does. It knows no operation by name.

    bytes ─► like the publish before? ── yes ─► its lane (`lane`) ─┬─► with others ─┐
                 │ no                                              │                ├─► one write
                 └► plain, whole, in turn? ─ yes ─► a single entry ┘                │
                        │ no                └─────► its endpoint (`inline`) ────────┘
                        └► untouched to the parser, then task, scope, middleware: the ordinary way

The tests in tests/app/test_fast_path.py compare the answers of both ways byte by byte.
"""

import asyncio
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, Final

from app.auth import UNAUTHENTICATED
from app.auth.rate_limiter import address_key, caller_of
from app.doors.http.answer_heads import CLOSE
from app.doors.http.append_lane import AllLanes
from app.doors.http.fast_answers import FastAnswers
from app.doors.http.http_connection import HttpConnection
from app.doors.http.lane import Lane
from app.doors.http.pending_request import PendingRequest
from app.doors.http.plain_requests import Head, PlainRequest, PlainRequests
from app.doors.http.service import HttpService
from app.gateway import Gateway, Phase
from app.http.client_address import FORWARDED_FOR, Client, TrustedProxies, client_address
from app.http.middleware import codings
from app.http.middleware.origins import OriginCheck
from app.http.middleware.request_id import RequestIds
from app.http.operations.table import RouteTable
from app.http.responses import OUTPUT_STATE, WAITED_STATE, NoResponse, Response
from app.live.budgets import FREE_BYTES, Reservation
from app.live.fair_queue import TASK_COST, ConnectionTurn

# Bytes that one client may send ahead of its answers before reading is paused.
_AHEAD_BYTES_MAX: Final = 64 << 10
# Requests that are served on one connection before others have their turn.
_AT_ONCE_MAX: Final = 16
# Large bodies are not copied behind their heads.
_JOINED_BYTES_MAX: Final = 16 << 10


class FastPath(FastAnswers):
    """What the connections of one application share."""

    def __init__(
        self,
        gateway: Gateway,
        routes: RouteTable,
        origins: OriginCheck,
        request_ids: RequestIds,
        proxies: TrustedProxies | None,
    ) -> None:
        super().__init__()
        self.gateway = gateway
        self.request_ids = request_ids
        self.proxies = proxies
        self.requests = PlainRequests(gateway.settings, routes, origins)
        self.lanes = AllLanes(gateway, self.requests, request_ids, self)


class FastPathConnection(HttpConnection):
    """One connection of an application with a fast path."""

    def __init__(self, service: HttpService, shared: FastPath) -> None:
        super().__init__(service)
        self.shared = shared
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
        self.answering: PendingRequest | Lane | None = None
        # The one that the next request may take: nothing is under way, nothing waits; and the one of the last
        # request that could.
        self.lane: Lane | None = None
        self._last_lane: Lane | None = None
        # Both pools; and for whom what is not taken of the last answer is counted, if it is long.
        self.budgets = shared.gateway.limits.budgets
        self._payer: Client | None = None
        self.is_leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        address, requests = client_address({"client": self.client}), self.shared.gateway.limits.requests
        self.turn = ConnectionTurn(requests, address_key(address), self._take_turn)
        # The kind of head of the request before, if its caller is known.
        self._kind: object = None

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
        lane, self.lane = self.lane, None
        try:
            if lane is not None and lane.take_bytes(data):
                return
            if self._held or self.answering is not None:
                self._hold(data)
                if self.answering is not None or self._catching_up or self._missing_bytes > 0:
                    return
                data, lane = self._release(), self._last_lane
                if lane is not None and self.is_between_requests and lane.take_bytes(data):
                    # Its body came later than its head.
                    self.end_deadline()
                    return
            rest = self._serve(data)
        except Exception as error:  # noqa: BLE001 - the transport would cut the connection, and say nothing
            rest = self._rest_behind(error, data)
        if rest:
            super().data_received(rest)

    def _rest_behind(self, error: Exception, data: bytes) -> bytes:
        """What is left for the parser where a request has met an error of the gateway: all of it, unless
        the request has begun, and may have been done.
        """
        if self.answering is None:
            self.service.faults.note("http", error)
            return data
        self.fail(error)
        return b""

    def _serve(self, data: bytes) -> bytes:
        """Serve plain requests. Returns the bytes that are for the parser."""
        at = 0
        try:
            for number in range(_AT_ONCE_MAX):
                if number and (at == len(data) or not self.shared.gateway.limits.cycle.has_time()):
                    break
                # What comes next goes first: a request before it may have been answered at once.
                self.lane = None
                is_in_turn = at < len(data) and self.is_between_requests
                request = self.shared.requests.read(data, at) if is_in_turn else None
                if request is None:
                    return data[at:]
                end = at + request.end
                if request.end - request.body_at > FREE_BYTES:
                    # The ordinary way holds memory for it first.
                    return data[at:]
                if end > len(data):
                    self._await_body(data[at:], end - len(data))
                    return b""
                self._find_caller(request.head)
                if not self.may_go_on(data[at:]):
                    return b""
                if not self._begin(request, data[at:end]):
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

    def _find_caller(self, head: Head) -> None:
        """Take turns with the connections of the request's caller, who is looked up once."""
        if head.kind is not self._kind:
            principal = self.shared.gateway.access.policy.recognise(head.headers, self.client_certificate)
            self._kind = head.kind if principal else None
            address = client_address({"client": self.client_of(head)})
            self.turn.pass_to(caller_of(principal or UNAUTHENTICATED, address))

    def may_go_on(self, data: bytes) -> bool:
        """Whether this may be served now. Otherwise it waits for the connection's turn."""
        if self.turn.may_go_on():
            return True
        self.request_taken()
        self._catching_up = True
        self._hold(data)
        return False

    def begin_parsed(self, scope: Mapping[str, Any], begin: Callable[[], None]) -> None:
        """Begin a request that the parser has read, in the connection's turn.

        Its caller is its address, since its token is not known yet. A request that had its turn in front of
        the parser keeps it.
        """
        if not self.turn.has_turn:
            self._kind = None
            proxies = self.shared.proxies
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

    def client_of(self, head: Head) -> Client | None:
        """The address of a request's client: the peer's, or the one that a trusted proxy has sent."""
        proxies, forwarded = self.shared.proxies, head.headers.get(FORWARDED_FOR)
        return (
            self.client if proxies is None or forwarded is None else proxies.find(self.client, (forwarded,))
        )

    # --- one request and its answer -------------------------------------------------------------------------

    def _begin(self, request: PlainRequest, data: bytes) -> bool:
        self.request_taken()
        lane = self._last_lane
        if request.stream is not None and (lane is None or not lane.fits(request)):
            lane = self._last_lane = self.shared.lanes.open(self, request, request.stream)
        if request.stream is not None and lane is not None and lane.join(data):
            return True
        pending = self.answering = PendingRequest(self, request, data)
        if pending.begin():
            return True
        self.answering = None
        self.turn.has_turn = True
        return False

    def end_lane(self, lane: Lane) -> None:
        """The request of the lane is answered: the next one may take it, unless it has arrived."""
        self.answering = None
        self.begin_idle()
        if self._held:
            self._catch_up_soon()
        elif not (self.has_unsent or self.transport.is_closing()):
            self.lane = lane

    def leave_lane(self, lane: Lane) -> PendingRequest:
        """Go on with the request of a lane as with any other."""
        pending = self.answering = PendingRequest(self, lane.request, lane.data)
        pending.began_s = lane.began_s
        return pending

    def hand_to_parser(self, pending: PendingRequest) -> None:
        """Serve a request, that has not begun, the ordinary way."""
        self.answering = None
        if not self.transport.is_closing():
            self.turn.has_turn = True
            super().data_received(pending.data)
            if self.is_leaving:
                super().shutdown()
            self._catch_up_soon()

    @property
    def _is_last(self) -> bool:
        """Whether the next answer is the connection's last one: the server or the gateway stops."""
        return self.is_leaving or self.shared.gateway.phase is Phase.DRAINING

    def finish(self, response: Response) -> None:
        """Send the answer to the pending request; a large one is compressed if its client accepts that."""
        pending = self.answering
        assert isinstance(pending, PendingRequest), "an exchange ends once"
        if len(response.body) >= codings.CODED_BYTES_MIN and codings.gains(response.raw_headers):
            chosen = codings.accepted(pending.request.head.headers.get(b"accept-encoding", b""))
            if chosen is not None:
                held = self._hold_made(pending, len(response.body))
                making = self.loop.run_in_executor(None, codings.compressed, bytes(response.body), chosen)
                making.add_done_callback(partial(self._finish_coded, pending, response, chosen, held))
                return
            response.raw_headers = codings.varied(response.raw_headers)
        self._finish(pending, response)

    def _finish_coded(
        self,
        pending: PendingRequest,
        response: Response,
        chosen: codings.Coding,
        held: Reservation | None,
        made: asyncio.Future[bytes],
    ) -> None:
        if held is not None:
            held.release()
        if made.exception() is None:
            response.body = made.result()
            response.raw_headers = codings.coded(response.raw_headers, chosen, len(response.body))
        self._finish(pending, response)

    def _finish(self, pending: PendingRequest, response: Response) -> None:
        if not self.transport.is_closing():
            self._write(response, pending.request_id)
        elif response.unsent is not None:
            response.unsent()
        self._hold_unsent(pending)
        # The ordinary way refuses nothing to a client that has left.
        code = "" if isinstance(response, NoResponse) else response.code
        self._ended(pending, response.status_code, len(response.body), code)

    def _ended(self, pending: PendingRequest, status: int, sent_bytes: int, code: str = "") -> None:
        self.answering = None
        target, request_ids = pending.request.target, self.shared.request_ids
        waited = WAITED_STATE in pending.state
        if not code and status < request_ids.logged_from:
            request_ids.count(target.route.label, status, None if waited else pending.began_s)
        else:
            request_ids.note(
                pending.request_id,
                target.method,
                target.path,
                status=status,
                sent_bytes=sent_bytes,
                began_s=pending.began_s,
                route=target.route.label,
                code=code,
                waited=waited,
            )
        self.begin_idle()
        self._catch_up_soon()

    def _write(self, response: Response, request_id: str) -> None:
        defaults, is_last = self.service.default_headers, self._is_last
        head = self.shared.head(response, defaults, request_id, is_last=is_last)
        if len(response.body) <= _JOINED_BYTES_MAX:
            self.transport.write(head + response.body)
        else:
            self.transport.writelines((head, response.body))
        if is_last or CLOSE in response.raw_headers:
            self.transport.close()

    def _hold_made(self, pending: PendingRequest, size: int) -> Reservation | None:
        """Count an answer that is made and does not leave at once."""
        if OUTPUT_STATE in pending.state or size <= FREE_BYTES:
            return None
        caller = address_key(client_address({"client": pending.client}))
        return self.shared.gateway.limits.budgets.output.hold(caller, size)

    def _hold_unsent(self, pending: PendingRequest) -> None:
        """Count what the client has not taken until it has, and nothing of what it has."""
        held: Reservation | None = pending.state.get(OUTPUT_STATE)
        if self.has_unsent and not self.transport.is_closing():
            self._payer, self.output = pending.client, held
            self.settle_output()
        elif held is not None:
            held.release()

    @property
    def caller(self) -> str:
        """The address to which the last long answer went."""
        return address_key(client_address({"client": self._payer}))

    # --- bytes that wait ------------------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self.lane = None
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
        self.lane = None
        super().pause_writing()

    def shutdown(self) -> None:
        self.lane = None
        if self.answering is not None:
            self.is_leaving = True
            return
        if self._held:
            super().data_received(self._release())
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self.turn.leave()
        self._held.clear()
        self.lane = self._last_lane = None
        super().connection_lost(exc)
