"""One client: who it is, what it has said and begun, what it may, and what is kept of its commands.

Knows: what counts as what against its rate, in metrics and logs; which of its commands go together and which
are by themselves; NOPERM, MULTI, WATCH and EXEC.
Must never know: sockets, bytes that arrive.

    words ─► taken: one request, bytes of its words ─► together, or by itself ─► the queue ─► noted, charged
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from app import logs
from app.auth import UNAUTHENTICATED, AccessPolicy, Action, Principal, Resource
from app.auth.principal import NAME_CONSUMER
from app.auth.rate_limiter import caller_of
from app.doors.client import ClientAccess
from app.doors.resp.codec import RespCodec, Words
from app.doors.resp.port import Port
from app.doors.resp.subscriptions import EventSubscriber, Subscriptions
from app.errors import CODES, RefusalError
from app.live.budgets import Reservation
from app.live.fair_queue import ConnectionTurn
from app.live.sessions import AccessEnd
from app.live.turns import slice_of
from app.live.waiting import Wait
from app.metrics.slow_turns import SlowTurns
from app.redis import EXECABORT, CommandRequest, wire
from app.redis.parsers import help as help_texts
from app.redis.parsers.table import look_up
from app.redis.parsers.words import echo, wrong_arity
from app.redis.queue import CommandQueue, CommandRun, Host, Parsed, in_words_of_redis, stream_of
from app.redis.rights import needed
from app.tenants import Tenant
from app.work import Work
from engine import EngineError, How, ask, errors
from engine.commands.base import BlockingCommand
from engine.commands.weir_commands import Unchanged, Watch

# The operations of this port, as `weir_requests_total` names them, begin with it.
ROUTE: Final = "redis"
NOAUTH: Final = "NOAUTH Authentication required."
NOT_IN_SUBSCRIPTION: Final = (
    "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in "
    "this context"
)
_DISCARDED: Final = "EXECABORT Transaction discarded because of: "
# Refusals of a client that is not known: more than one needs that finds out what is spoken here.
REFUSALS_MAX: Final = 16
# Of one run: running its commands and writing their replies takes several times as long.
_PARSING_S_MAX: Final = 0.002
# Fewer commands gain nothing by being looked at together.
_ALIKE_MIN: Final = 4
# More at once are no faster, and the clock is looked at behind them.
_ALIKE_MAX: Final = 250
# What ends something gives the gateway less to do.
_ENDING: Final = frozenset({b"discard", b"quit", b"reset", b"unwatch"})
# What brings a token.
_WITH_TOKEN: Final = frozenset({"auth", "hello"})
# What these do to the port and its clients is in the audit log.
_AUDITED: Final = frozenset({b"client|kill", b"client|unblock", b"slowlog|reset"})
_WITH_HELP: Final = frozenset({b"acl", b"client", b"command"})

# A command's reply: at once, by `Connection.end`, or when the work is done.
Written = bytes | None | Coroutine[Any, Any, bytes]


class Connection(Host, Protocol):
    """What a session has of its connection."""

    # Held for the reply that is made, or that the client has not taken.
    output: Reservation | None

    @property
    def descriptor(self) -> int:
        """The socket's number."""

    @property
    def input_bytes(self) -> int:
        """Bytes that were received and not run."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken."""

    def reserve_output(self, size: int) -> None:
        """Hold this many bytes for a reply, before it is made. Raises EngineError `overloaded`."""

    def hold_commands(self, more: int = 0) -> None:
        """Hold what commands that arrive and those that are queued take. Raises EngineError `overloaded`."""

    def deliver(self, written: bytes) -> None:
        """Let a message leave; a client that does not take them is closed."""

    def await_token(self) -> None:
        """Close soon unless the client is known by then."""

    def end_deadline(self) -> None:
        """What was waited for has come."""

    def end(self, written: bytes = b"") -> None:
        """Send this after all earlier answers, then close."""

    def abort(self, reason: str) -> None:
        """Close at once, and log why."""

    def end_browser(self) -> None:
        """Close at once: the client speaks HTTP."""

    def end_if_idle(self) -> None:
        """Close if no work is under way and the gateway stops."""


Handler = Callable[["RespSession", Words], Written]


class SessionCommand(NamedTuple):
    """A command of the session. `arity` as in the table of commands.

    `open`: it needs no AUTH. `in_multi`: it is run inside a transaction. `in_subscription`: a subscriber of
    RESP2 may send it.
    """

    arity: int
    handle: Handler
    open: bool = False
    in_multi: bool = False
    in_subscription: bool = False


class Transaction:
    """The commands since MULTI. One that cannot be queued discards all of them."""

    __slots__ = ("_bytes_left", "_bytes_max", "_commands_max", "is_discarded", "requests")

    def __init__(self, commands_max: int, bytes_max: int) -> None:
        self.requests: list[Parsed] = []
        self.is_discarded = False
        self._commands_max = commands_max
        self._bytes_left = self._bytes_max = bytes_max

    @property
    def queued_bytes(self) -> int:
        """The words of all commands."""
        return self._bytes_max - self._bytes_left

    def queue(self, words: Words, parse: Callable[[Words], Parsed]) -> None:
        """Queue a command. Raises EngineError where Redis refuses it at once."""
        try:
            self._check(words)
            if self.is_discarded:
                return
            parsed = parse(words)
            if isinstance(parsed, EngineError) and parsed.code == "forbidden":
                raise parsed
        except EngineError:
            self.discard()
            raise
        self.requests.append(parsed)

    def discard(self) -> None:
        """Have EXEC run nothing."""
        self.is_discarded = True
        self.requests.clear()

    def _check(self, words: Words) -> None:
        look_up(words)
        self._bytes_left -= sum(map(len, words))
        if len(self.requests) >= self._commands_max:
            raise errors.invalid(f"ERR too many commands: a transaction has at most {self._commands_max}")
        if self._bytes_left < 0:
            raise errors.invalid("ERR the transaction is too long (body_bytes_max)")


class RespSession(Work):
    """The work of one client. `known` is None until AUTH, where tokens are needed; `own` are the commands
    that it runs without an engine.
    """

    __slots__ = (
        *("_access", "_added_by", "_added_key", "_added_to", "_monotonic", "_own", "_port", "address"),
        *("caller", "codec", "connection", "created_s", "host", "id", "is_mixed", "known", "last_command"),
        *("last_used_s", "library", "library_version", "local_address", "name", "principal", "queue"),
        *("refusals", "subscriber", "transaction", "turn", "watched"),
    )

    def __init__(
        self,
        port: "Port[RespSession]",
        connection: Connection,
        own: Mapping[bytes, SessionCommand],
        addresses: tuple[str, str],
        go_on: Callable[[], None],
    ) -> None:
        super().__init__(port.gateway, "resp")
        self.connection = connection
        self.codec = RespCodec()
        self._port = port
        self._own = own
        self._monotonic = port.gateway.clock.monotonic
        self.address, self.local_address = addresses
        # The address without the port; the path of a Unix socket.
        self.host: str = self.address.rpartition(":")[0].strip("[]")
        self.created_s = self.last_used_s = self._monotonic()
        # How often it was refused while it was not known.
        self.refusals = 0
        self.name = b""
        self.library = b""
        self.library_version = b""
        self.last_command = b"NULL"
        # What was queued since MULTI, None outside of a transaction; what it watches, with the versions.
        self.transaction: Transaction | None = None
        self.watched: dict[str, int] = {}
        # The last name under which it could add, as whom, and the stream.
        self._added_key = b""
        self._added_by: Principal | None = None
        self._added_to: str | None = None
        # Whether what was read last is known to be different commands.
        self.is_mixed = False
        self.subscriber = EventSubscriber(self._deliver, self.may_see)
        self.id = port.enter(self)
        self._become(self.policy.recognise({}))
        self.turn = ConnectionTurn(port.gateway.limits.requests, self.caller, go_on)
        self._access = ClientAccess(port.gateway, self._lose_access, turn=self.turn)
        self.queue = CommandQueue(self, self.codec, connection, self.codec.commands)

    # ---- who it is

    def _become(self, principal: Principal | None) -> None:
        self.known = principal
        self.principal: Principal = principal or UNAUTHENTICATED
        # For whom its shares are counted: its address until it is known.
        self.caller: str = caller_of(self.principal, self.host)
        self.meter = None
        if principal is not None:
            self.begin_metering()

    def count_for_caller(self) -> None:
        """Count as the caller's connection, or end if that one has too many."""
        try:
            self._access.count_for(self.caller)
        except RefusalError as refusal:
            self.connection.end(self.refuse(in_words_of_redis(refusal)))

    def log_in(self, principal: Principal) -> None:
        """Go on as this caller, until the token ends. What was begun as a caller of another tenant ends."""
        if self.connection.is_gone:
            # While the token was looked at.
            return
        if principal.prefix != self.prefix:
            self.subscriptions.leave(self.subscriber)
            self.end_transaction()
        self._become(principal)
        self.refusals = 0
        self.connection.end_deadline()
        self.count_for_caller()
        self._access.follow(principal)

    def log_out(self) -> None:
        """Forget everything that the client has said and begun."""
        if self.known is not None:
            self.connection.end_deadline()
        self._access.forget()
        self.subscriptions.leave(self.subscriber)
        self.codec.protocol, self.name = 2, b""
        self.end_transaction()
        self._become(self.policy.recognise({}))
        self.count_for_caller()
        self.connection.await_token()

    def leave(self) -> None:
        """The connection is gone."""
        self._access.leave()
        self.queue.abandon()
        self.codec.commands.clear()
        self.end_transaction()
        self.subscriptions.leave(self.subscriber)
        self._port.leave(self.id)

    def _lose_access(self, end: AccessEnd) -> None:
        self.connection.abort(end.refusal.detail.partition(":")[0])

    @property
    def request_id(self) -> str:
        """How the client is named in logs."""
        return f"resp-{self.id}"

    @property
    def user(self) -> str:
        """What ACL WHOAMI answers."""
        return "default" if self.known is None else user_of(self.known)

    @property
    def prefix(self) -> str:
        """What its names of streams begin with in the engine."""
        return self.principal.prefix

    @property
    def tenant(self) -> Tenant:
        """What the client has of the engine. Raises EngineError while there is none."""
        try:
            self._tenant = self.gateway.tenant(self.principal.prefix)
        except RefusalError as refusal:
            raise in_words_of_redis(refusal) from None
        return self._tenant

    # ---- what it may

    def refusal_of(self, parsed: CommandRequest) -> EngineError | None:
        """NOPERM, or None where the client may run the command."""
        found = (
            self._refusal(action, resource, parsed.name)
            for action, resource in needed(parsed, self.principal)
        )
        return next((refusal for refusal in found if refusal is not None), None)

    def stream_to_add_to(self, key: bytes) -> str | None:
        """The stream of this name, remembered for the next XADD; None where the client may not add to it."""
        if key != self._added_key or self.known is not self._added_by:
            stream = stream_of(key)
            if stream is None or self._refusal(Action.WRITE, Resource(stream), "xadd") is not None:
                return None
            self._added_key, self._added_by, self._added_to = key, self.known, stream
        return self._added_to

    def _refusal(self, action: Action, resource: Resource, command: str) -> EngineError | None:
        principal = self.known
        if principal is None:
            return EngineError("unauthenticated", NOAUTH)
        if principal.may(action, resource):
            return None
        if principal.has_to_name_consumer(action, resource):
            return EngineError("forbidden", f"NOPERM {NAME_CONSUMER}")
        if resource.stream is not None and principal.may_somewhere(action):
            return EngineError("forbidden", "NOPERM No permissions to access a key")
        return self.forbidden(command)

    def forbidden(self, command: str) -> EngineError:
        """NOPERM for a command as a whole."""
        sentence = f"NOPERM User {self.user} has no permissions to run the '{command}' command"
        return EngineError("forbidden", sentence)

    @property
    def may_see_everything(self) -> bool:
        """Whether facts about all streams may be shown."""
        return self.may(Action.READ, Resource())

    def may(self, action: Action, resource: Resource) -> bool:
        """Whether it may do this."""
        return self.known is not None and self.known.may(action, resource)

    def may_see(self, stream: str) -> bool:
        """Whether the stream's name may be shown."""
        return self.known is not None and self.known.may_see(stream)

    def counting_failures(self) -> AbstractContextManager[None]:
        """Count wrong credentials against the client's address. Raises `rate_limited`."""
        limiter = self.gateway.limits.rates
        return nullcontext() if limiter is None else limiter.counting_failures(self.host)

    # ---- what its commands see of the gateway and of others

    @property
    def policy(self) -> AccessPolicy:
        """Whom the gateway lets in."""
        return self.gateway.access.policy

    @property
    def port(self) -> "Port[RespSession]":
        """Where it is connected."""
        return self._port

    @property
    def others(self) -> "dict[int, RespSession]":
        """All sessions by their numbers, this one too."""
        return self._port.sessions

    @property
    def slow_turns(self) -> SlowTurns:
        """The turns that took long."""
        return self.gateway.reports.slow_turns

    @property
    def subscriptions(self) -> Subscriptions:
        """The subscriptions of all clients of its tenant."""
        return self._port.subscriptions(self.prefix)

    @property
    def is_subscriber(self) -> bool:
        """Whether it has subscriptions."""
        return len(self.subscriber) > 0

    @property
    def blocked(self) -> Wait | None:
        """The read that it waits for."""
        return self.queue.blocked

    def now_s(self) -> float:
        """The monotonic clock."""
        return self._monotonic()

    def end_if_idle(self) -> None:
        """Close if no work is under way and the gateway stops."""
        self.connection.end_if_idle()

    def abort(self, reason: str) -> None:
        """Close at once, and log why."""
        self.connection.abort(reason)

    def _deliver(self, pattern: bytes | None, channel: bytes, message: bytes) -> None:
        parts = (
            (b"message", channel, message) if pattern is None else (b"pmessage", pattern, channel, message)
        )
        self.connection.deliver(wire.push(self.codec.protocol, parts))

    # ---- its commands: together

    def begin(self) -> None:
        """Begin the next run, or the next command that is by itself."""
        commands = self.codec.commands
        self.last_used_s = self._monotonic()
        if self.known is None or self.transaction is not None or len(self.subscriber):
            self._begin_alone(commands.popleft())
            return
        run = CommandRun(self.queue.limits, self.stream_to_add_to)
        has_time = slice_of(self._monotonic, _PARSING_S_MAX)
        self._take_alike(run, has_time)
        while commands and not run.is_full():
            if not run.add_plain(commands[0]) and not self._add(run, commands[0]):
                break
            self.last_command = commands.popleft()[0].lower()
            if not has_time():
                break
        if not run.count:
            self._begin_alone(commands.popleft())
            return
        self._port.commands_run += run.count
        try:
            self.take_commands(run.count, run.words_bytes)
        except EngineError as refusal:
            self.connection.put(self.refuse(refusal, number=run.count))
        else:
            self.queue.submit(run)

    def _take_alike(self, run: CommandRun, has_time: Callable[[], bool]) -> None:
        """Put many commands into the run at once, as long as they are alike: most pipelines are."""
        commands = self.codec.commands
        while len(commands) >= _ALIKE_MIN and not (self.is_mixed or run.is_full()):
            first = [*islice(commands, _ALIKE_MAX)]
            if not run.add_alike(first):
                # Looked at once a read, however many runs it takes.
                self.is_mixed = not run.count
                return
            self.last_command = first[0][0].lower()
            for _ in first:
                commands.popleft()
            if not has_time():
                return

    def _add(self, run: CommandRun, words: Words) -> bool:
        """Add a command to the run; False if it is by itself, or for the next run."""
        if self.find(words) is not None:
            return False
        return run.take(self.parse(words), self.queue.bound, sum(map(len, words)))

    def parse(self, words: Words) -> Parsed:
        """The command within the limits of what it carries, or why it may not run."""
        parsed = self.queue.parse(words)
        if isinstance(parsed, EngineError):
            return parsed
        refusal = self.refusal_of(parsed)
        if refusal is not None:
            self.queue.audit(parsed, refusal)
        return refusal or parsed

    # ---- by themselves

    def find(self, words: Words) -> SessionCommand | None:
        """The command of the session of that name."""
        return self._own.get(words[0].lower())

    def _begin_alone(self, words: Words) -> None:
        self._port.commands_run += 1
        self.last_command = words[0].lower()
        found = self.find(words)
        name = "" if found is None else self.last_command.decode()
        try:
            self._take(words)
            written = self._run_alone(words, found)
        except (EngineError, RefusalError) as refusal:
            self.connection.put(self.refuse_command(refusal, name))
            return
        if written is not None and not isinstance(written, bytes):
            self.queue.begin(written, name=name)
            return
        if name:
            self.note_end(name, sent_bytes=len(written or b""))
        if written:
            self.connection.put(written)

    def _take(self, words: Words) -> None:
        """Take a command from what the rate allows; what ends something is never refused. Raises EngineError,
        which discards a transaction, as in Redis.
        """
        name = words[0].lower()
        try:
            self.take_commands(1, sum(map(len, words)))
        except EngineError:
            if name in _ENDING:
                return
            if name == b"exec":
                self.end_transaction()
            elif self.transaction is not None:
                self.transaction.discard()
            raise

    def _run_alone(self, words: Words, found: SessionCommand | None) -> Written:
        if self.known is None and (found is None or not found.open):
            raise EngineError("unauthenticated", NOAUTH)
        if self.is_subscriber and self.codec.protocol == 2:
            if words[0].lower() == b"ping":
                return wire.encode([b"pong", words[1] if len(words) > 1 else b""], 2)
            if found is None or not found.in_subscription:
                raise errors.invalid(NOT_IN_SUBSCRIPTION.format(words[0].lower().decode("latin-1")))
        if self.transaction is not None and (found is None or not found.in_multi):
            return self._queue(words, found, self.transaction)
        if found is not None:
            return self._run_own(words, found)
        parsed = self.parse(words)
        if isinstance(parsed, EngineError):
            raise parsed
        run = CommandRun(self.queue.limits)
        if run.take(parsed, self.queue.bound):
            # A subscriber's: others are part of a run.
            self.queue.submit(run)
            return None
        parsed = self.queue.bound(parsed)
        if not isinstance(parsed.command, BlockingCommand) or parsed.command.block_ms is None:
            return self.queue.run_alone(parsed)
        self.queue.block(parsed, parsed.command)
        return None

    def _run_own(self, words: Words, command: SessionCommand) -> Written:
        operation = b"|".join(words[:2]).lower()
        if operation not in _AUDITED:
            return self._handle(words, command)
        arguments = echo(b" ".join(words[2:]))
        try:
            written = self._handle(words, command)
        except EngineError as refusal:
            self._note_own(operation.decode(), arguments, refusal)
            raise
        self._note_own(operation.decode(), arguments, None)
        return written

    def _handle(self, words: Words, command: SessionCommand) -> Written:
        name = words[0].lower()
        if len(words) != command.arity and not len(words) >= -command.arity > 0:
            # It discards a transaction, and EXEC ends it.
            refusal = wrong_arity(name.decode("latin-1"))
            if name == b"exec":
                self.end_transaction()
                refusal = errors.invalid(f"{_DISCARDED}{refusal.redis.removeprefix('ERR ')}")
            elif self.transaction is not None:
                self.transaction.discard()
            raise refusal
        if len(words) == 2 and words[1].upper() == b"HELP" and name in _WITH_HELP:
            return wire.encode(list(help_texts.lines(name.decode())), self.codec.protocol)
        return command.handle(self, words)

    def _note_own(self, operation: str, arguments: str, refusal: EngineError | None) -> None:
        """Have the audit log say what was done to the port and its clients."""
        if self.gateway.access.audit.is_on:
            code = "" if refusal is None else refusal.code
            facts = {"action": "admin", "operation": operation, "arguments": arguments}
            self.audit(facts, status=CODES[code].status if code else 200, code=code)

    # ---- transactions

    def multi(self) -> None:
        """Begin a transaction, within the gateway's limits."""
        settings = self.gateway.settings
        self.transaction = Transaction(settings.transaction_commands_max, settings.body_bytes_max)

    def end_transaction(self) -> None:
        """Nothing is queued and watched any more."""
        self.transaction = None
        self.watched.clear()

    def _queue(self, words: Words, found: SessionCommand | None, transaction: Transaction) -> bytes:
        if found is not None:
            # Not as an unknown command, whose words are repeated: those of AUTH are secret.
            transaction.discard()
            raise errors.invalid("ERR Command not allowed inside a transaction")
        try:
            self.connection.hold_commands(sum(map(len, words)))
        except EngineError:
            transaction.discard()
            raise
        transaction.queue(words, self.parse)
        return wire.QUEUED

    async def watch(self, streams: list[str]) -> bytes:
        """Watch streams; those that are watched already stay as they were. Raises EngineError."""
        new = [stream for stream in dict.fromkeys(streams) if stream not in self.watched]
        most = self.gateway.settings.request_streams_max
        if len(self.watched) + len(new) > most:
            raise errors.invalid(f"ERR too many watched streams: at most {most} (request_streams_max)")
        for stream in streams:
            refusal = self._refusal(Action.READ, Resource(stream), "watch")
            if refusal is not None:
                raise refusal
        if not new:
            return wire.OK
        # One was taken for the command.
        self.take_commands(len(new) - 1, 0)
        watching = [Watch(stream=stream) for stream in new]
        for stream, version in zip(
            new, await ask(self.engine, self.call(watching, How.TOGETHER)), strict=True
        ):
            if isinstance(version, EngineError):
                raise version
            assert isinstance(version, int), "watching gives a version"
            self.watched[stream] = version
        return wire.OK

    async def execute(self) -> bytes:
        """Run what was queued, unless it was discarded or what it watches has changed. Raises EngineError."""
        transaction, watched = self.transaction, dict(self.watched)
        assert transaction is not None, "it has begun"
        self.end_transaction()
        if transaction.is_discarded:
            raise errors.invalid(EXECABORT)
        if not (transaction.requests or watched):
            return b"*0\r\n"
        condition = Unchanged(versions=watched) if watched else None
        written = await self.queue.transact(transaction.requests, condition)
        if written is None:
            return wire.null(self.codec.protocol, is_list=True)
        return b"*%d\r\n%b" % (len(written), b"".join(written))

    # ---- what is kept of its commands

    def reserve(self, size: int) -> None:
        """Hold this many bytes for a reply, before it is made. Raises EngineError `overloaded`."""
        self.connection.reserve_output(size)

    @property
    def held(self) -> Reservation | None:
        """What is held for the reply that is being made."""
        return self.connection.output

    def take_commands(self, requests: int, size: int) -> None:
        """Take commands, and the bytes of their words, from what the rate allows. Raises EngineError."""
        if self.meter is None:
            return
        try:
            self.meter.take_requests(requests, size)
        except RefusalError as refusal:
            raise in_words_of_redis(refusal) from None

    def refuse_command(self, refusal: EngineError | RefusalError, name: str = "") -> bytes:
        """Refuse one of its commands. Those of a client that is not known count as wrong tokens do."""
        if isinstance(refusal, RefusalError):
            refusal = in_words_of_redis(refusal)
        limiter = self.gateway.limits.rates
        if self.known is None:
            self.refusals += 1
            # A wrong token was counted when it was looked at.
            if limiter is not None and not (name in _WITH_TOKEN and refusal.code == "unauthenticated"):
                limiter.count_failure(self.host)
        return self.refuse(self.queue.told(refusal), name)

    def refuse(self, refusal: EngineError, name: str = "", number: int = 1) -> bytes:
        """Note that commands were refused, or the client is, and write what that answers."""
        written = wire.refusal(refusal) * number
        if refusal.code == "rate_limited":
            # It costs nothing: what is charged for the reply is given back.
            self.charge(-len(written))
        self.note_end(name, refusal, number, sent_bytes=len(written))
        return written

    def note_end(
        self, name: str, refusal: EngineError | None = None, number: int = 1, *, sent_bytes: int
    ) -> None:
        """Count commands of this name that have ended together, and log them if that is wanted."""
        status, log = 200, self._port.log
        if refusal is not None:
            super().note_end(name, refusal, number, sent_bytes=sent_bytes)
            status = CODES[refusal.code].status
            word = refusal.redis.partition(" ")[0]
            log.errors[word] = log.errors.get(word, 0) + number
        self.gateway.reports.counters.requests[f"{ROUTE} {name}" if name else ROUTE][status] += number
        if status >= log.lines.least_status:
            self._write_line(name, status, sent_bytes)

    def _write_line(self, name: str, status: int, sent_bytes: int) -> None:
        clock = self.gateway.clock
        moment = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        self._port.log.lines.note(
            logs.RequestLine(
                request_id=self.request_id,
                method=name.upper() or "-",
                path=ROUTE,
                status=status,
                ms=round((clock.monotonic() - self.last_used_s) * 1000, 2),
                bytes=sent_bytes,
                timestamp=moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z",
            )
        )


def user_of(principal: Principal) -> str:
    """The name of a caller as a user of Redis: a token's ID, a JWT's subject."""
    kind, colon, name = principal.name.partition(":")
    return name if colon else "default" if kind == "anonymous" else kind
