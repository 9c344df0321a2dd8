"""One request, as the operations see it, and what it asks the engine.

Knows: headers, who asks, what its replies take of memory. Must never know: what an operation does, bodies.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qs

from app.auth import UNAUTHENTICATED, Action, Principal, Resource
from app.auth.audit import Facts
from app.auth.certificates import ClientCertificate
from app.auth.policy import unauthenticated
from app.auth.rate_limiter import caller_of
from app.errors import invalid
from app.gateway import Gateway
from app.http import media
from app.http.asks import Ask, Result
from app.http.client_address import client_address
from app.http.media import NO_PREFERENCES, MediaType, Preferences
from app.http.models import ResponseModel
from app.http.plan import CONDITIONS
from app.http.responses import CERTIFICATE_EXTENSION, Exchange, Header, Receive, Response, Scope
from app.limits import text_bytes
from app.live.budgets import FREE_BYTES, Reservation
from app.live.sessions import AccessEnd
from app.live.waiting import Begin, ClientLeftError
from app.metrics import tracing
from app.work import Work, dropped
from engine import Call, CommandEngine, Done, EngineError, How, ReadHandle, Refused, Replies, ask
from engine.commands.base import BlockingCommand, Command
from engine.commands.types import XReadGroup
from engine.replies import Dropped, GroupRead, Reply

T = TypeVar("T")

_SYNCED: Final = (b"weir-durability", b"fsync")
_APPLIED: Final = (b"preference-applied", b"durability=fsync")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
TICKET: Final = b"ticket="
# Each has one value: of two a proxy may have looked at the other. Lists go on from line to line.
_SINGLE: Final = {
    name.lower().encode(): name
    for name in (
        "Content-Type",
        "Idempotency-Key",
        "Last-Event-ID",
        "Producer-Epoch",
        "Producer-Id",
        "Producer-Seq",
        "Stream-Closed",
        "Stream-Expires-At",
        "Stream-Seq",
        "Stream-TTL",
        "Upstash-Encoding",
        "Weir-Chunk",
        "Weir-Encoding",
        "Weir-Epoch",
        "Weir-Producer",
    )
}


def join(lines: Sequence[Header]) -> Mapping[bytes, bytes]:
    """The headers by name; those of several lines are one list (RFC 9110, 5.3)."""
    joined: dict[bytes, bytes] = {}
    for name, value in lines:
        joined[name] = b"%b, %b" % (joined[name], value) if name in joined else value
    return joined


def is_own(origin: str, host: str) -> bool:
    """Whether an origin is this host: the same name and port, under either scheme (TLS may end before us).
    Both are in lower case.
    """
    scheme, _, rest = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    if default is None or not rest:
        return False
    return rest.removesuffix(f":{default}") == host.removesuffix(f":{default}")


def shown_certificate(
    headers: Mapping[bytes, bytes], found: ClientCertificate | None
) -> ClientCertificate | None:
    """The client's certificate, if it counts: a token goes before it. A browser shows one with each request
    that a page causes, so there it needs an Origin, which was checked.
    """
    if found is None or b"authorization" in headers:
        return None
    if b"origin" in headers:
        return found
    return None if any(name.startswith(b"sec-fetch-") for name in headers) else found


class NeedsTaskError(Exception):
    """Raised where a request has to wait for something else than the engine. Nothing of it was done."""


class Request(Work):
    """One request. `plan` is what is known by its head; `names` are the path's decoded segments by their
    names in the route.
    """

    __slots__ = (
        "_in_pieces",
        "actions",
        "delivered",
        "dropped",
        "exchange",
        "has_conditions",
        "headers",
        "known_caller",
        "names",
        "plan",
        "principal",
        "receive",
        "request_id",
        "scope",
    )

    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        # As `Work.__init__`, which costs a call.
        self.gateway = gateway
        self.door = "rest"
        self.meter = self._tenant = None
        self._put_off_bytes = 0
        self.scope = scope
        self.receive = receive
        self.exchange = exchange
        self.request_id: str = exchange.request_id
        self.plan = plan = exchange.plan
        self.names = plan.names
        # Whose it is, once that was asked.
        self.known_caller = ""
        lines = scope["headers"]
        self.headers: Mapping[bytes, bytes] = dict(lines)
        if len(self.headers) < len(lines):
            self.headers = join(lines)
        # Whether it asks for something that its plan does not know.
        self.has_conditions = not CONDITIONS.isdisjoint(self.headers)
        self.principal: Principal = UNAUTHENTICATED
        # Whether its answer holds what it takes by `reserve_some`, piece by piece.
        self._in_pieces = False
        # What groups have given it, to be taken back if the answer does not leave.
        self.delivered: list[tuple[XReadGroup, GroupRead]] = []
        # For the audit log, until it is known how they end.
        self.actions: list[Facts] = []
        self.dropped: Facts = {}

    def take_back(self) -> None:
        """Undo what was delivered in answer to it: its client has left. The last delivery first."""
        delivered, self.delivered = self.delivered, []
        for command, reply in reversed(delivered):
            self.undo_read(command, reply)

    def note_action(self, action: str, operation: str, **facts: object) -> None:
        """Have the audit log say what is about to be done. Facts name things, and never hold contents."""
        if self.gateway.access.audit.is_on:
            self.actions.append({"action": action, "operation": operation, **facts})

    def end_actions(self, status: int, code: str) -> None:
        """Write what was noted: it ended with this status, and with this code where it was refused."""
        actions, self.actions = self.actions, []
        for facts in actions:
            self.audit({**facts, **self.dropped}, status=status, code=code)

    def check_ready(self) -> None:
        """Raise `starting` or `draining` before anything is read."""
        self._tenant = self.gateway.tenant(self.principal.prefix)

    @property
    def query(self) -> bytes:
        """The query string as it was sent."""
        query: bytes = self.scope["query_string"]
        return query

    @property
    def is_stranger(self) -> bool:
        """Whether it came under a Host that is not served here, as probes may."""
        return self.plan.origin.is_stranger

    @property
    def media_type(self) -> MediaType:
        """The body's. Raises `unsupported_media_type`."""
        return media.content_type(self.headers.get(b"content-type", b""))

    def asks_for_events(self, offered: Sequence[str]) -> bool:
        """Whether it is an EventSource that asks, of a route with these media types."""
        return bool(offered) and media.asks_for_events(self.headers.get(b"accept", b""), offered)

    @property
    def certificate(self) -> ClientCertificate | None:
        """The client's, if it counts."""
        return shown_certificate(self.headers, self.exchange.extensions.get(CERTIFICATE_EXTENSION))

    async def authenticate(self, *, tickets: Sequence[str] = ()) -> None:
        """Recognise the caller, by a ticket if there is one. Raises `unauthenticated`, `rate_limited`."""
        if len(self.headers) < len(self.scope["headers"]):
            self._check_single()
        known = None if tickets else self.gateway.access.policy.recognise(self.headers, self.certificate)
        if known is None:
            await self._authenticate_anew(tickets)
        else:
            self.principal = known

    async def _authenticate_anew(self, tickets: Sequence[str]) -> None:
        """Recognise a caller that nothing is remembered of."""
        policy = self.gateway.access.policy
        if tickets:
            with self.counting_failures():
                self.principal = await self._redeem(tickets[0])
            self.check_access()
        elif b"authorization" in self.headers:
            with self.counting_failures():
                self.principal = await policy.authenticate(self.headers)
        else:
            self.principal = await policy.authenticate(self.headers, self.certificate)

    def _check_single(self) -> None:
        """Raise `unauthenticated` for credentials that come twice, `invalid` for others of one value."""
        names = [name for name, _ in self.scope["headers"]]
        if names.count(b"authorization") > 1:
            raise unauthenticated("a request has one header Authorization", "invalid_request")
        for name, title in _SINGLE.items():
            if names.count(name) > 1:
                raise invalid(title, "it is given once")

    async def identify(self, text: str) -> Principal:
        """Whose token this is. Raises `unauthenticated`, `rate_limited`."""
        with self.counting_failures():
            return await self.gateway.access.policy.identify(text)

    def counting_failures(self) -> AbstractContextManager[None]:
        """Count wrong credentials against its address. Raises `rate_limited` where there were too many."""
        limiter = self.gateway.limits.rates
        return nullcontext() if limiter is None else limiter.counting_failures(client_address(self.scope))

    async def _redeem(self, ticket: str) -> Principal:
        principal = await self.gateway.access.redeem(ticket, self.page)
        if principal is None:
            raise unauthenticated(
                "the ticket is unknown, was used, has expired or is for another origin", "invalid_token"
            )
        return principal

    def check_access(self) -> None:
        """Raise `unauthenticated` if the caller's token has come to its end since it was recognised."""
        gateway = self.gateway
        if gateway.access.policy.is_revoked(self.principal):
            raise AccessEnd.REVOKED.refusal
        if self.principal.is_expired(gateway.access.sessions.wall_s()):
            raise AccessEnd.EXPIRED.refusal

    @property
    def page(self) -> str:
        """The origin of the page that it is from, empty for a program. So it is for a page of this host: with
        a request that only reads, as that of an EventSource, a browser sends no Origin then.
        """
        origin = self.headers.get(b"origin", b"").decode("latin-1")
        host = self.headers.get(b"host", b"").decode("latin-1")
        return "" if is_own(origin.lower(), host.lower()) else origin

    @property
    def engine(self) -> CommandEngine:
        """The engine, with the caller's names of streams; found once for a caller."""
        tenant = self._tenant
        if tenant is None or tenant.prefix != self.principal.prefix:
            tenant = self.tenant
        return tenant.engine

    @property
    def caller(self) -> str:
        """Whose it is, for what counts by caller."""
        return self.known_caller or caller_of(self.principal, self.host)

    @property
    def host(self) -> str:
        """From which network address it comes."""
        return client_address(self.scope)

    def take_request(self) -> None:
        """Count it, and the bytes of its body, against its caller's rate. Raises `rate_limited`."""
        self.begin_metering()
        if self.meter is not None:
            announced = self.headers.get(b"content-length", b"0")
            self.take_requests(1, int(announced) if announced.isdigit() else 0)

    def take_more(self, requests: int) -> None:
        """Count it as this many requests. Raises `rate_limited`, before anything is changed."""
        if self.meter is not None:
            self.meter.take_more(requests)

    @property
    def query_tickets(self) -> Sequence[str]:
        """The tickets in the query."""
        if TICKET not in self.query:
            return ()
        return parse_qs(self.query.decode("latin-1")).get("ticket", ())

    def require(
        self, action: Action, stream: str | None, group: str | None = None, consumer: str | None = None
    ) -> None:
        """Raise `forbidden` unless the caller may do this."""
        self.principal.require(action, Resource(stream, group, consumer))

    def may_read(self, stream: str) -> bool:
        """Whether the caller may see the stream."""
        return self.principal.may_see(stream)

    @property
    def preferences(self) -> Preferences:
        """What Prefer asks for."""
        header = self.headers.get(b"prefer")
        return NO_PREFERENCES if header is None else media.preferences(header)

    def respond(
        self, status: int, body: bytes | ResponseModel = b"", headers: Sequence[Header] = ()
    ) -> Response:
        """Make the response of a change: it says how safe the change is."""
        if isinstance(body, ResponseModel):
            body = body.json()
        if self.preferences.synced:
            headers = [_SYNCED, _APPLIED, *headers]
        else:
            headers = [(b"weir-durability", self.engine.durability.encode()), *headers]
        return Response(status, body, headers)

    def respond_delivered(self, body: bytes) -> Response:
        """Make the response of a group's read."""
        safe = self.engine.delivery_durability.encode()
        headers = [_SYNCED, _APPLIED] if self.preferences.synced else [(b"weir-durability", safe)]
        return Response(200, body, headers)

    @staticmethod
    def respond_accepted(body: ResponseModel, path: str) -> Response:
        """Make the response of a request that began something: its state is at `path`."""
        return Response(202, body.json(), [(b"location", path.encode())])

    # ---- asks

    async def settle(self, result: Result) -> Response | ResponseModel:
        """The answer that a result comes to, once all that it asks is answered."""
        while True:
            if isinstance(result, Ask):
                result = self.answered(result, await self._replies_to(result))
            elif isinstance(result, Coroutine):
                result = await result
            else:
                return result

    async def _replies_to(self, ask: Ask) -> Sequence[Reply | EngineError]:
        """The replies to what is asked. Raises EngineError, a refusal of the whole; ClientLeftError."""
        if ask.in_turn:
            await self.take_turn()
        first = ask.commands[0]
        if isinstance(first, BlockingCommand) and first.block_ms is not None:
            try:
                return [await self.reply_to(first, synced=ask.synced)]
            except EngineError as refusal:
                return [refusal]
        with self._traced(ask) as commands:
            self.reserve_for(*commands)
            later: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()

            def done(found: Replies) -> None:
                if not later.done():
                    later.set_result(found)

            how = How.ALONE if len(commands) == 1 else How.TOGETHER
            replies, call = None, self.call(commands, how, synced=ask.synced)
            if not (ask.joins and self.gateway.joiner.join(self.engine, call, done)):
                replies = self.engine.send(call, done)
            return await later if replies is None else replies

    @contextmanager
    def _traced(self, ask: Ask) -> Iterator[Sequence[Command]]:
        """Its commands; those that publish keep the trace that the request belongs to."""
        tracer, traceparent = self.gateway.reports.tracer, self.traceparent
        if not ask.publishes or tracer is None or traceparent is None:
            yield ask.commands
            return
        (command,) = ask.commands
        with tracer.publishing(cast("tracing.Publishing", command), traceparent) as traced:
            yield [traced]

    def send(self, ask: Ask, done: Done) -> Replies | None:
        """Ask it. The replies if they are there; None where `done` gets them, or has got them. Raises
        NeedsTaskError where the answer needs more than the engine.
        """
        first = ask.commands[0]
        waits = isinstance(first, BlockingCommand) and first.block_ms is not None
        if waits or ask.in_turn or (ask.publishes and self._is_traced):
            raise NeedsTaskError
        # The replies to what joins are short.
        bound = 0 if ask.joins else ask.bound
        if bound is None:
            bound = self.gateway.limits.commands.answer_bound(ask.commands)
        if bound > FREE_BYTES and (bound := self.gateway.limits.budgets.before_run(bound)) > FREE_BYTES:
            self._put_off(bound)
        how = How.ALONE if len(ask.commands) == 1 else How.TOGETHER
        call = self.call(ask.commands, how, synced=ask.synced)
        engine = (self._tenant or self.tenant).engine
        if ask.joins and self.gateway.joiner.join(engine, call, done):
            return None
        replies = engine.send(call, done)
        if replies is None and self._put_off_bytes:
            self.note_wait()
        return replies

    def answered(self, ask: Ask, replies: Sequence[Reply | EngineError]) -> Result:
        """What the replies come to. Raises a refusal among them, and what the answer refuses."""
        if isinstance(replies, Refused):
            replies = [replies.error]
        found: list[Reply] = []
        for reply in replies:
            if isinstance(reply, EngineError):
                if reply.code == "memory_full" and ask.may_be_apart:
                    return ask.apart()
                if ask.refused is not None:
                    return ask.refused(reply)
                raise reply
            found.append(self._without_dropped(reply) if isinstance(reply, Dropped) else reply)
        if self.exchange.held_answer is not None:
            self.note_arrived(*found)
        # What is raw has none.
        pairs = [*zip(ask.commands, found, strict=ask.raw is None)]
        for command, reply in pairs:
            if isinstance(reply, GroupRead):
                self.note_given(command, reply)
        made = ask.answer(*found)
        for command, reply in pairs:
            self.note_reply(command, reply)
        return made

    def _put_off(self, bound: int) -> None:
        """Reserve this for an answer, but where there is room for any caller, not before it is known that the
        replies come later: what leaves in the turn of its command takes nothing from others.
        """
        if self.exchange.held_answer is not None or not self.gateway.limits.budgets.output.has_room(bound):
            self.reserve(bound)
        else:
            self._put_off_bytes = bound

    def note_run(self, replies: Sequence[Reply | EngineError]) -> None:
        """Hold what the replies take, while they wait for the log."""
        put_off, self._put_off_bytes = self._put_off_bytes, 0
        held = self.held
        if held is not None:
            held.shrink(sum(map(text_bytes, replies)))
        elif put_off and (size := sum(map(text_bytes, replies))) > FREE_BYTES:
            # There was room for more when the turn began.
            with suppress(EngineError):
                self.reserve(size)

    def note_wait(self) -> None:
        """Reserve what was put off: the replies come later."""
        if self._put_off_bytes:
            with suppress(EngineError):
                self.reserve(self._put_off_bytes)
            self._put_off_bytes = 0

    async def execute(self, command: Command, *, synced: bool = False) -> Reply:
        """Run one command. A read that waits ends when the client leaves."""
        reply = await self.reply_to(command, synced=synced)
        self.note_given(command, reply)
        self.note_reply(command, reply)
        return reply

    async def take_turn(self) -> None:
        """The same. Raises ClientLeftError."""
        await super().take_turn()
        if self.exchange.has_left:
            raise ClientLeftError

    async def reply_to(self, command: Command, *, synced: bool = False) -> Reply:
        """The reply to one command, of which nothing is counted yet."""
        if not isinstance(command, BlockingCommand) or command.block_ms is None:
            return self._without_dropped(await self.run_now(command, synced=synced))
        self.exchange.has_waited = True
        await self.take_turn()
        engine, caller, waits = self.engine, self.caller, self.gateway.waits
        call = Call(
            (command,),
            waits=ReadHandle(),
            synced=synced,
            origin=self.request_id,
            reader=self.reader,
            caller=caller,
        )

        def begin(done: Callable[[Reply | Exception], None]) -> Callable[[], None]:
            return waits.begin_read(engine, call, caller, done).cancel

        reply = await self._until_gone(begin)
        self._reserve_waited(command, reply)
        return reply

    def answer_bound(self, commands: Sequence[Command]) -> int:
        """The same, beside what is held for the pieces of an answer."""
        return 0 if self._in_pieces else super().answer_bound(commands)

    @property
    def held(self) -> Reservation | None:
        """What is held for the answer, unless that leaves in pieces."""
        return None if self._in_pieces else self.exchange.held_answer

    def _reserve_waited(self, command: Command, reply: Reply) -> None:
        """Hold what a read that has waited answers, which was not known before. Raises EngineError
        `overloaded`: then it has read nothing.
        """
        try:
            self.reserve(text_bytes(reply))
        except EngineError:
            if isinstance(command, XReadGroup):
                self.undo_read(command, reply)
            raise

    def reserve(self, size: int) -> None:
        """Hold this many bytes for the answer, or for the next piece of it. Raises EngineError `overloaded`.

        What it does not need is given back when it is written.
        """
        exchange = self.exchange
        if exchange.held_answer is not None:
            exchange.held_answer.grow(size)
        elif size > FREE_BYTES:
            pool = self.gateway.limits.budgets.output
            exchange.held_answer = pool.reserve(self.caller, size, exchange.reader)

    def hold_answer(self, size: int) -> None:
        """Hold an answer that is made and for which nothing was reserved, beyond the limit too: where all of
        them take more than that, its connection may be closed.
        """
        exchange = self.exchange
        if size > FREE_BYTES and exchange.held_answer is None:
            pool = self.gateway.limits.budgets.output
            exchange.held_answer = pool.hold(self.caller, size, exchange.reader)

    def reserve_some(self, size: int) -> int:
        """Hold as much of this as there is room for, for the next piece of an answer that is as long as it
        may be, and return how many bytes the piece may have. Never refused: each connection has some bytes.
        """
        self._in_pieces = True
        exchange, pool = self.exchange, self.gateway.limits.budgets.output
        if exchange.held_answer is None:
            # One entry may be longer than the piece.
            exchange.held_answer = pool.hold(self.caller, 0, exchange.reader)
        size = min(size, max(FREE_BYTES, pool.room(self.caller, exchange.held_answer.size)))
        if size > FREE_BYTES:
            exchange.held_answer.grow(size)
        return size

    def release_output(self) -> None:
        """Give back what is held for an answer that a connection has which counts its own, or that waits."""
        held, self.exchange.held_answer = self.exchange.held_answer, None
        if held is not None:
            held.release()

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work that waits and changes nothing; it has ended then. Raises as `Waits.outcome`, and
        `too_many_waiters`.
        """
        begun: list[asyncio.Task[T]] = []

        def begin(done: Callable[[T | Exception], None]) -> Callable[[], object]:
            begun.append(self.gateway.waits.begin_task(work, self.caller, done))
            return begun[0].cancel

        try:
            return await self._until_gone(begin)
        finally:
            if begun:
                await asyncio.wait(begun)

    async def _until_gone(self, begin: Begin[T]) -> T:
        leaving = partial(self.exchange.when_gone, self.receive)
        return await self.gateway.waits.outcome(begin, leaving, self.principal, self.caller)

    @property
    def _is_traced(self) -> bool:
        return self.gateway.reports.tracer is not None and self.traceparent is not None

    @property
    def traceparent(self) -> bytes | None:
        """Its place in a trace, where traces are followed."""
        if self.gateway.reports.tracer is None:
            return None
        return tracing.valid(self.headers.get(tracing.HEADER))

    def note_given(self, command: Command | None, reply: Reply | EngineError | None) -> None:
        """What a group has given is taken back if the answer does not leave."""
        if isinstance(command, XReadGroup) and isinstance(reply, GroupRead):
            self.delivered.append((command, reply))

    async def transaction(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands as one turn; the first refusal among them is raised."""
        self.reserve_for(*commands)
        replies: list[Reply] = []
        for reply in await ask(self.engine, self.call(commands, How.TOGETHER)):
            if isinstance(reply, EngineError):
                raise reply
            self.note_reply(None, reply)
            replies.append(self._without_dropped(reply))
        return replies

    def _without_dropped(self, reply: Reply) -> Reply:
        """The reply; that schedules have gone with a stream is for the audit log."""
        if not isinstance(reply, Dropped):
            return reply
        self.dropped = dropped(reply)
        return reply.reply
