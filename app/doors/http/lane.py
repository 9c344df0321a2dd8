"""Lanes: what a connection publishes again is not looked at again, and is stored with what others publish.

Knows: which requests are like the one before, which bodies may be stored together, how each is answered.
Must never know: how bytes arrive and wait, who a caller is.

    bytes ─► Lane.take: the same head, as long, the same stamp ─► PublishBatch ─► one write
                 └► no: the usual way, which closes the lane; a plain request that may publish opens it again

A lane is a verdict that is remembered, see `app.auth.stamp`. This is the one operation that the fast path
answers by itself, see docs/decisions/lanes.md: the route of a single entry would read, store and answer the
same, at three times the cost.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import Final, Protocol
from urllib.parse import quote

from app.auth import Action, Principal, Resource
from app.auth.certificates import ClientCertificate
from app.auth.rate_limiter import Meter
from app.doors.http.answer_heads import header_lines
from app.doors.http.fast_answers import GOODBYE, FastAnswers, entry_stored, whole
from app.doors.http.pending_request import Connection, PendingRequest
from app.doors.http.plain_requests import REMEMBERED_MAX, PlainRequest, PlainRequests, Target
from app.errors import RefusalError, to_refusal
from app.gateway import Gateway, Phase
from app.http.client_address import client_address
from app.http.entries import entry_bodies
from app.http.entries.line_bodies import ENVELOPE_STARTS
from app.http.media import NDJSON, MediaType
from app.http.middleware.request_id import RequestIds
from app.http.responses import refuse
from app.live.fair_queue import ConnectionTurn
from app.live.together import Answers, Batch, Batches, may_have_run
from engine import CommandEngine, EngineError, ids

_LINES: Final = MediaType(NDJSON, NDJSON)
# Larger entries would gain nothing.
_ENTRY_BYTES_MAX: Final = 16 << 10
_CREATED: Final = 201
# To find a member in its class takes Python 3.11 a third of a microsecond.
_DRAINING: Final = Phase.DRAINING


class LaneConnection(Connection, Protocol):
    """What a lane needs of its connection besides."""

    # The lane that the next request may take: nothing is under way, and nothing waits.
    lane: "Lane | None"
    # What waits for its answer.
    answering: "PendingRequest | Lane | None"
    is_leaving: bool
    idle_since: float | None
    turn: ConnectionTurn
    transport: asyncio.Transport
    client_certificate: ClientCertificate | None

    def may_go_on(self, data: bytes) -> bool: ...
    def leave_lane(self, lane: "Lane") -> PendingRequest: ...
    def end_lane(self, lane: "Lane") -> None: ...


class Lane:
    """What one connection publishes into one stream, one request at a time."""

    __slots__ = ("_head", "_size", "batch", "began_s", "connection", "data", "meter", "request", "stamp")

    def __init__(
        self,
        connection: LaneConnection,
        request: PlainRequest,
        batch: "LaneBatch",
        meter: Meter | None,
        stamp: int,
    ) -> None:
        self.connection = connection
        self.batch = batch
        # Counts for its caller; None without a limit.
        self.meter = meter
        self.stamp = stamp
        # All of the request that waits for its answer, and since when.
        self.data = b""
        self.began_s = 0.0
        self._be_like(request)

    def _be_like(self, request: PlainRequest) -> None:
        self.request, self._head, self._size = request, request.start, request.end

    def fits(self, request: PlainRequest) -> bool:
        """Whether the verdict is of this request too, which may have a body of another length."""
        if self.stamp != self.batch.stamp.value:
            return False
        if request is not self.request:
            before = self.request
            if request.head.kind is not before.head.kind or request.stream != before.stream:
                return False
            if request.target != before.target:
                return False
            self._be_like(request)
        return True

    def take_bytes(self, data: bytes) -> bool:
        """Take a request like the one before. False, with nothing done, if it goes the usual way."""
        if len(data) != self._size or not data.startswith(self._head):
            request = self.batch.requests.read(data, 0)
            if request is None or len(data) != request.end or not self.fits(request):
                return False
        elif self.stamp != self.batch.stamp.value:
            return False
        if self.connection.turn.is_crowded and not self.connection.may_go_on(data):
            # It comes the usual way, in its turn.
            return True
        return self.join(data)

    def join(self, data: bytes) -> bool:
        """Have the entry of a request stored with others. False, with nothing done, if only its route can."""
        body = data[self.request.body_at :]
        if not body.startswith(ENVELOPE_STARTS) or b"\n" in body or len(body) > _ENTRY_BYTES_MAX:
            return False
        if self.meter is not None and not self._take_request(len(body)):
            return False
        self._begin(data)
        self.batch.join(self, body)
        return True

    def _take_request(self, size: int) -> bool:
        assert self.meter is not None, "it counts"
        try:
            self.meter.take_requests(1, size)
        except RefusalError:
            return False
        return True

    def _begin(self, data: bytes) -> None:
        connection = self.connection
        self.data, self.began_s = data, self.batch.monotonic()
        connection.answering, connection.idle_since = self, None

    def end(self) -> None:
        """Its request is answered: nothing of it is held while the connection waits for the next one."""
        self.data = b""
        self.connection.end_lane(self)

    def _leave(self) -> PendingRequest:
        pending = self.connection.leave_lane(self)
        self.data = b""
        return pending

    def _give_back(self) -> None:
        if self.meter is not None:
            self.meter.give_back()

    def serve(self) -> None:
        """Have it served by its route, which counts it again."""
        self._give_back()
        self._leave().serve()

    def refuse(self, refusal: EngineError) -> None:
        """Answer with a refusal."""
        pending = self._leave()
        pending.finish(refuse(to_refusal(refusal), pending.request_id))


class LaneBatch(Batch[Lane]):
    """What lanes of one stream have under way. If it is refused, which changes nothing, each request is
    served by its route.
    """

    lane: type[Lane] = Lane

    def __init__(self, lanes: "Lanes", engine: CommandEngine, stream: str) -> None:
        super().__init__(engine, stream)
        gateway = lanes.gateway
        self.stamp, self.monotonic, self.requests = gateway.stamp, gateway.clock.monotonic, lanes.requests
        self.gateway = gateway
        self._lanes = lanes

    def _start(self, lane: Lane, status: int) -> bytes:
        """How answers with this status begin."""
        return self._lanes.answers.start(status, lane.connection.service.default_headers)

    def _finishing(self, first: Lane, status: int) -> Callable[[Lane, tuple[bytes, bytes]], None]:
        """What answers clients like this one with this status: with a beginning that has the operation's own
        headers, and a body.
        """
        gateway, monotonic, request_ids = self.gateway, self.monotonic, self._lanes.request_ids
        target = first.request.target
        new_id, is_logged = request_ids.new_id, request_ids.logged_from <= status
        statuses, times_s = request_ids.counting(target.route.label)

        def finish(lane: Lane, answer: tuple[bytes, bytes]) -> None:
            connection, request_id, (own, body) = lane.connection, new_id(), answer
            is_last = connection.is_leaving or gateway.phase is _DRAINING
            limits = b"" if lane.meter is None else _charge(lane.meter, len(body))
            if not connection.transport.is_closing():
                goodbye = GOODBYE if is_last else b""
                connection.transport.write(whole(own, limits, request_id, goodbye, body))
                if is_last:
                    connection.transport.close()
            if is_logged:
                request_ids.note(
                    request_id,
                    target.method,
                    target.path,
                    status=status,
                    sent_bytes=len(body),
                    began_s=lane.began_s,
                    route=target.route.label,
                )
            else:
                statuses[status] += 1
                times_s.append(monotonic() - lane.began_s)
            lane.end()

        return finish

    def _refusals(
        self, clients: Sequence[Lane], bodies: Sequence[bytes], refusal: EngineError | None
    ) -> Answers:
        if refusal is None or not may_have_run(refusal):
            return map(Lane.serve, clients)
        return map(Lane.refuse, clients, repeat(refusal))


class PublishBatch(LaneBatch):
    """Entries of lanes. Bodies are parsed together, at the end of the cycle: each is one line that begins as
    an entry does. If one turns out to be anything else than a plain entry, each request is served by its
    route.
    """

    def _entries(self, bodies: Sequence[bytes]) -> Sequence[bytes] | None:
        """Parse all as the lines of one body; None unless each is one entry without an ID."""
        gateway = self.gateway
        if gateway.phase is not Phase.READY:
            return None
        try:
            published = entry_bodies.read(b"\n".join(bodies), _LINES, gateway.limits.entries)
        except (RefusalError, EngineError):
            return None
        return published.bodies if len(published.bodies) == len(bodies) and not published.ids else None

    def _answers(self, clients: Sequence[Lane], added: Sequence[int]) -> Answers:
        before = self._start(clients[0], _CREATED) + _location(self.stream, self.engine.durability)
        answers = [entry_stored(before, entry_id) for entry_id in ids.texts(added)]
        stored = map(self._finishing(clients[0], _CREATED), clients, answers)
        rest = clients[len(added) :]
        return chain(stored, map(Lane.serve, rest)) if rest else stored


class Lanes:
    """What the lanes of one application share."""

    def __init__(
        self, gateway: Gateway, requests: PlainRequests, request_ids: RequestIds, answers: FastAnswers
    ) -> None:
        self.gateway = gateway
        self.requests = requests
        self.request_ids = request_ids
        self.answers = answers
        self._batches = Batches(partial(PublishBatch, self))

    def open(self, connection: LaneConnection, request: PlainRequest, stream: str) -> Lane | None:
        """The lane of a request, if its caller may do what it asks and has no quotas. Otherwise the
        route decides.
        """
        gateway, stamp = self.gateway, self.gateway.stamp.value
        limiter = gateway.limits.rates
        principal = gateway.access.policy.recognise(request.head.headers, connection.client_certificate)
        if principal is None or principal.quotas or principal.prefix:
            return None
        try:
            batch = self._batch(request, stream)
            if not _may(principal, request.target):
                return None
        except Exception:  # noqa: BLE001 - the route meets it again, and says what it is
            return None
        meter = None
        if limiter is not None:
            address = client_address({"client": connection.client_of(request.head)})
            meter = limiter.meter(principal, address)
        gateway.stamp.end_with(principal.expires_s)
        return batch.lane(connection, request, batch, meter, stamp)

    def _batch(self, request: PlainRequest, stream: str) -> "LaneBatch":
        """What stores the entry of this request, and of those like it."""
        return self._batches.of(self.gateway.engine, stream)


def _may(principal: Principal, target: Target) -> bool:
    """Whether this caller may do what the route does."""
    rule, names = target.route.rule, target.names.get
    resource = Resource(names("stream"), names("group"), names("consumer"))
    return isinstance(rule, Action) and principal.may(rule, resource)


def _charge(meter: Meter, size: int) -> bytes:
    """Count the bytes of an answer. Returns the lines of its head that show the caller's limits."""
    meter.charge(size)
    return header_lines(meter.headers())


@lru_cache(REMEMBERED_MAX)
def _location(stream: str, durability: str) -> bytes:
    """The headers of an entry's durability and of its location, up to its ID."""
    path = f"/v1/streams/{quote(stream, safe='')}/entries/"
    return f"weir-durability: {durability}\r\nlocation: {path}".encode()
