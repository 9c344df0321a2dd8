"""One connection: bytes in, commands in order, bytes out.

Knows: that replies leave in the order of their commands, what stops the reading of a socket, when it ends.
Must never know: the meaning of a command, which form the bytes have.

    data_received ─► reader: words ─► CommandRun ─► engine.submit_each ─► replies, one write
                                  └─► one by itself: a session command, a read that waits, a transaction

There is one piece of work at a time. While it is under way, bytes are kept unread, up to a limit; then the
socket is not read either. A client that does not take its replies is not served until it does.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Final, cast

import msgspec

from app import logs, redis
from app.auth import AccessPolicy, Principal
from app.doors.resp import server_info
from app.doors.resp.accounting import Account, in_words_of_redis
from app.doors.resp.client import NOAUTH, RespClient
from app.doors.resp.commands import session_commands
from app.doors.resp.commands.server_commands import NOT_IN_SUBSCRIPTION
from app.doors.resp.link import Link, Work, Written
from app.doors.resp.port import Port
from app.doors.resp.requests import UNAUTHENTICATED, RequestReader, Words
from app.doors.resp.running import Runner
from app.doors.resp.subscriptions import EventSubscriber, Subscriptions
from app.doors.resp.transaction import Transaction
from app.errors import RefusalError
from app.limits import text_bytes
from app.live.budgets import BODY_COPIES, FREE_BYTES, Reader, Reservation, Sender
from app.live.fair_queue import ConnectionTurn
from app.live.sessions import AccessEnd, OpenSession
from app.live.shares import Share
from app.live.stalls import StallTimer
from app.live.turns import slice_of
from app.live.waiting import Wait
from app.metrics.slow_turns import SlowTurns
from app.redis import CommandRequest, wire
from app.redis.runs import RUN_COMMANDS_MAX, CommandRun, RunResult, runs_alone
from engine import EngineError, errors
from engine.commands import BlockingCommand
from engine.replies import Added, Reply

# Bytes that arrive while a command is under way; beyond, the socket is not read.
_WAITING_BYTES_MAX: Final = 256 << 10
# Bytes that are read at once: a command may have six, and takes a microsecond.
_READ_BYTES_MAX: Final = 32 << 10
# Clients send a pipeline before they read: as much may wait for one, where memory is not short.
_OUTPUT_BYTES_MAX: Final = 1 << 20

# Commands after which other connections have their turn: less than a millisecond, if they are small.
_COMMANDS_AT_ONCE_MAX: Final = 100
# Of one run: running its commands and writing their replies takes several times as long.
_PARSING_S_MAX: Final = 0.002
# Fewer commands gain nothing by being looked at together.
_ALIKE_MIN: Final = 4
# What ends something gives the gateway less to do.
_ENDING: Final = frozenset({b"discard", b"quit", b"reset", b"unwatch"})
_FAULT: Final = wire.error("ERR something went wrong in the gateway")
# A web page or a health check may connect again and again: one line in the log in this time.
_BROWSERS_QUIET_S: Final = 60.0
# Messages that a subscriber has not taken: as Redis, which closes it then.
_MESSAGES_BYTES_MAX: Final = 32 << 20
# BLOCK 0 waits as long as the client does.
_FOREVER_MS: Final = 10 * 365 * 24 * 3_600_000


class RespConnection(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._monotonic = port.gateway.clock.monotonic
        self._reader = RequestReader()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        # Whether what was read last is known to be different commands.
        self._mixed = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        # Held for the reply that is made, or that the client has not taken.
        self._held: Reservation | None = None
        # Held for a long command that arrives, and for those that are queued.
        self._input: Reservation | None = None
        self._received_bytes = 0
        # Whether work is under way, and whether `_go_on` is on the stack.
        self._busy = self._going = False
        self._writing_stopped = self._reading_stopped = False
        self._output_bytes_max = 0
        self._ended = self._at_end = False
        self._stall: StallTimer | None = None
        self._unknown: asyncio.TimerHandle | None = None
        self._session: OpenSession | None = None
        self._share: Share | None = None
        self.blocked: Wait | None = None
        # What to call if the client has left when the work under way is done.
        self._unsent: Callable[[], None] = lambda: None

    # --- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._limit_output(_OUTPUT_BYTES_MAX)
        self.client: RespClient = self._port.enter(self, transport)
        self._turn = ConnectionTurn(self._port.gateway.requests, self.client.caller, self._go_on)
        self.account = Account(self._port.gateway, self.client, self._port.log)
        self.runner = Runner(self._port.gateway, self.client, self.account, self._reserve)
        self.subscriber = EventSubscriber(self._deliver, self.client.may_see)
        self.client.subscriptions = self.subscriber.__len__
        refusal = self._port.refusal_of_connection()
        if refusal is not None:
            self.end(self.account.refuse(refusal))
        else:
            self._take_share()
        self._await_token()

    def _take_share(self) -> None:
        """Count as the caller's connection, or end if that one has too many."""
        try:
            if self._share is None:
                self._share = self._port.gateway.open_connections.enter(self.client.caller)
            else:
                self._share.pass_to(self.client.caller)
                self._turn.pass_to(self.client.caller)
        except RefusalError as refusal:
            self.end(self.account.refuse(in_words_of_redis(refusal)))

    def _await_token(self) -> None:
        """Close soon unless the client is known by then."""
        if self._unknown is not None:
            self._unknown.cancel()
        self._unknown = self._loop.call_later(self._port.auth_s_max, self._check_known)

    def _check_known(self) -> None:
        if self.client.principal is None and self._turn.is_waiting:
            # Its token may be among the bytes that wait for their turn.
            self._await_token()
        elif self.client.principal is None:
            sentence = f"NOAUTH no token came within {self._port.auth_s_max:g} s"
            self.end(self.account.refuse(EngineError("unauthenticated", sentence)))

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._ended:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._received_bytes += len(data)
        is_behind = self._busy or self._writing_stopped or self._turn.is_waiting
        if self._waiting_bytes > _WAITING_BYTES_MAX and is_behind:
            self._stop_reading()
        self._go_on()

    def eof_received(self) -> bool:
        """The client sends nothing more. What it has sent is answered first, unless that would wait."""
        self._at_end = True
        if self.blocked is not None:
            self._cut()
        self.end_if_idle()
        # TLS has no half-closed connections.
        return not self._ended and self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._ended = True
        self._turn.leave()
        for timer in (self._stall, self._unknown):
            if timer is not None:
                timer.cancel()
        if self._session is not None:
            self._session.leave()
        if self._share is not None:
            self._share.leave()
        for held in (self._held, self._input):
            if held is not None:
                held.release()
        self._abandon()
        self._reader.commands.clear()
        self._waiting.clear()
        self.client.end_transaction()
        self.subscriptions.leave(self.subscriber)
        self._port.leave(self.client)

    def pause_writing(self) -> None:
        """The client does not take its replies."""
        self._writing_stopped = True
        self._stall = StallTimer(self._transport, self._port.stall_s_max, self._stalled)

    def _stalled(self) -> None:
        self.abort(f"it took no replies for {self._port.stall_s_max:g} s")

    def resume_writing(self) -> None:
        """It takes them again."""
        self._writing_stopped = False
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._settle()
        self._go_on()

    def _stop_reading(self) -> None:
        if not self._reading_stopped:
            self._reading_stopped = True
            self._transport.pause_reading()

    def _take_waiting(self) -> bytes:
        """The first of what was received and not read; go on receiving."""
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        if len(data) > _READ_BYTES_MAX:
            # Best between two commands: whole ones that are alike are read at once.
            start = data.rfind(b"\r\n*", 0, _READ_BYTES_MAX)
            stop = start + 2 if start >= 0 else _READ_BYTES_MAX
            self._waiting.append(data[stop:])
            data = data[:stop]
        self._waiting_bytes -= len(data)
        if self._reading_stopped and self._waiting_bytes <= _WAITING_BYTES_MAX:
            self._reading_stopped = False
            self._transport.resume_reading()
        return data

    # --- what commands about connections ask

    @property
    def policy(self) -> AccessPolicy:
        """Whom the gateway lets in."""
        return self._port.gateway.policy

    @property
    def others(self) -> dict[int, Link]:
        """All connections by the numbers of their clients, this one too."""
        return self._port.connections

    @property
    def descriptor(self) -> int:
        """The socket's number."""
        found: int = self._transport.get_extra_info("socket").fileno()
        return found

    @property
    def input_bytes(self) -> int:
        """Bytes that were received and not run."""
        return self._waiting_bytes + self._reader.waiting_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes that the client has not taken."""
        return self._transport.get_write_buffer_size()

    @property
    def slow_turns(self) -> SlowTurns:
        """The turns that took long."""
        return self._port.gateway.slow_turns

    @property
    def subscriptions(self) -> Subscriptions:
        """The subscriptions of all clients of its tenant."""
        return self._port.subscriptions(self.client.prefix)

    def info(self, sections: Sequence[bytes]) -> bytes:
        """The text of INFO."""
        return server_info.text_of(self._port, sections, is_narrow=not self.client.may_see_everything)

    def new_transaction(self) -> Transaction:
        """An empty one, within the gateway's limits."""
        settings = self._port.gateway.settings
        return Transaction(settings.transaction_commands_max, settings.body_bytes_max)

    def _deliver(self, pattern: bytes | None, channel: bytes, message: bytes) -> None:
        """Send a message; a client that does not take them is closed."""
        if self._ended:
            return
        parts = (
            (b"message", channel, message) if pattern is None else (b"pmessage", pattern, channel, message)
        )
        self._transport.write(wire.push(self.client.protocol, parts))
        if self._writing_stopped:
            self._settle()
        if self.output_bytes > _MESSAGES_BYTES_MAX:
            self.abort(f"it left more than {_MESSAGES_BYTES_MAX} bytes of messages")

    def counting_failures(self) -> AbstractContextManager[None]:
        """Count wrong credentials against the client's address. Raises `rate_limited`."""
        limiter = self._port.gateway.rate_limiter
        return nullcontext() if limiter is None else limiter.counting_failures(self.client.host)

    def now_s(self) -> float:
        """The monotonic clock."""
        return self._monotonic()

    def log_in(self, principal: Principal) -> None:
        """Go on as this caller, until the token ends. What was begun as a caller of another tenant ends."""
        if self._ended:
            # While the token was looked at.
            return
        if principal.prefix != self.client.prefix:
            self.subscriptions.leave(self.subscriber)
            self.client.end_transaction()
        self.client.principal = principal
        self._take_share()
        if self._session is None:
            self._session = self._port.gateway.sessions.enter(principal, self._lose_access)
        else:
            self._session.renew(principal)

    def log_out(self) -> None:
        """Forget everything that the client has said and begun."""
        if self._session is not None:
            self._session.leave()
            self._session = None
        self.subscriptions.leave(self.subscriber)
        self.client.forget()
        self.client.principal = self.policy.recognise({})
        self._take_share()
        self._await_token()

    def _lose_access(self, end: AccessEnd) -> None:
        self.abort(end.refusal.detail.partition(":")[0])

    def note_unsent(self, unsent: Callable[[], None]) -> None:
        """Call this if the client has left when the work under way is done."""
        self._unsent = unsent

    def end(self, written: bytes = b"") -> None:
        """Send this after all earlier answers, then close."""
        if not self._ended:
            self._out.append(written)
            self._flush()
            self._ended = True
            self._abandon()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once, and log why: the client cannot tell this from a disconnect that it caused."""
        if not self._ended:
            client = self.client
            logs.get().info(
                "a Redis client was disconnected", reason=reason, client=client.id, address=client.address
            )
        self._cut()

    def end_browser(self) -> None:
        """Close at once, and log it once a minute: it needs no token to connect again and again."""
        now_s = self.now_s()
        if now_s < self._port.browsers_quiet_until_s:
            self._cut()
        else:
            self._port.browsers_quiet_until_s = now_s + _BROWSERS_QUIET_S
            self.abort("it speaks HTTP")

    def _cut(self) -> None:
        self._ended = True
        # Now: what another client publishes next is not for this one any more.
        self._abandon()
        self._transport.abort()

    def _abandon(self) -> None:
        """Take nothing for a read that waits."""
        blocked, self.blocked = self.blocked, None
        if blocked is not None:
            blocked.cancel()

    def end_if_idle(self) -> None:
        """Close if no work is under way and no more of it will come."""
        is_idle = not (self._busy or self._turn.is_waiting)
        if is_idle and not self._ended and (self._at_end or self._port.draining):
            self.end()

    # --- the work

    def _go_on(self) -> None:
        """Run what has arrived until something has to be waited for."""
        if self._going:
            return
        self._going = True
        before = self._port.commands_run
        has_time = slice_of(self._monotonic)
        try:
            while self._is_free() and self._has_input() and self._turn.may_go_on() and self._has_command():
                self._begin()
                many = self._port.commands_run - before >= _COMMANDS_AT_ONCE_MAX or not has_time()
                if many and self._is_free() and (self._reader.commands or self._waiting):
                    # Others have their turn.
                    self._busy = True
                    self._loop.call_soon(self._finish, b"")
        except Exception as error:  # noqa: BLE001 - the client would take it for a disconnect that it caused
            self._fail(error)
        finally:
            self._going = False
        if self._input is not None and self._reader.announced_bytes <= FREE_BYTES:
            self._hold_input()
        self._flush()
        self.end_if_idle()

    def _is_free(self) -> bool:
        return not (self._busy or self._writing_stopped or self._ended)

    def _has_input(self) -> bool:
        reader = self._reader
        return bool(reader.commands or self._waiting or reader.waiting_bytes or reader.error)

    def _has_command(self) -> bool:
        """Whether a whole command is there; reads what has arrived."""
        reader = self._reader
        is_known = self.client.principal is not None
        limits = self._port.request_limits if is_known else UNAUTHENTICATED
        while not reader.commands and reader.error is None and (self._waiting or reader.waiting_bytes):
            self._mixed = False
            reader.feed(self._take_waiting(), limits)
            if not self._waiting:
                break
        if reader.announced_bytes > FREE_BYTES:
            try:
                self._hold_input()
            except EngineError as refusal:
                # The rest is never read.
                self.end(self.account.refuse(refusal))
                return False
        if reader.commands:
            return True
        if self._reader.error is not None:
            sentence = f"ERR Protocol error: {self._reader.error}"
            self.end(self.account.refuse(EngineError("malformed_request", sentence)))
        return False

    def _flush(self) -> None:
        if self._out and not self._ended:
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0
        self._settle()

    def _put(self, written: bytes) -> None:
        """Let this leave: at the latest before more than each connection may have waits for it."""
        self._out.append(written)
        self._out_bytes += len(written)
        self.account.charge(len(written))
        if self._held is not None or self._out_bytes > FREE_BYTES:
            self._flush()

    def _reserve(self, size: int) -> None:
        """Hold this many bytes for a reply, before it is made. Raises EngineError `overloaded`."""
        if self._held is not None:
            self._held.grow(size)
        elif size > FREE_BYTES:
            pool = self._port.gateway.budgets.output
            self._held = pool.reserve(self.client.caller, size, Reader(self._transport))

    def _note_run(self, replies: Sequence[Reply | EngineError]) -> None:
        """Hold what the replies take, while they wait for the log, and not what they might have taken."""
        if self._held is not None:
            self._held.shrink(sum(map(text_bytes, replies)))

    def _hold_input(self, more: int = 0) -> None:
        """Hold what a command that arrives and those that are queued take, if that is more than each
        connection may have. Raises EngineError `overloaded`.
        """
        queued = self.client.transaction
        size = self._reader.announced_bytes + (0 if queued is None else queued.queued_bytes) + more
        if size <= FREE_BYTES:
            if self._input is not None and not (self._busy or self._reader.commands):
                self._input.release()
                self._input = None
            return
        size *= BODY_COPIES
        if self._input is None:
            pool = self._port.gateway.budgets.bodies
            self._input = pool.reserve(self.client.caller, size, Sender(self._transport))
        elif size > self._input.size:
            self._input.grow(size)
        self._input.received(self._received_bytes)
        if self._reader.announced_bytes > FREE_BYTES:
            # Its sender's turn.
            self._input.keep_waiting()

    def _settle(self) -> None:
        """Hold what the client has not taken, if that is more than each connection may have."""
        if self._busy:
            return
        size = 0 if self._ended else self.output_bytes
        pool = self._port.gateway.budgets.output
        if size > FREE_BYTES:
            # Others may need the memory.
            self._limit_output(pool.piece_bytes(_OUTPUT_BYTES_MAX))
            if self._held is None:
                self._held = pool.hold(self.client.caller, size, Reader(self._transport))
            else:
                self._held.keep(size)
        elif self._held is not None:
            self._held.release()
            self._held = None

    def _limit_output(self, size: int) -> None:
        """Run nothing more for the client while more than this waits for it."""
        if size != self._output_bytes_max:
            self._output_bytes_max = size
            self._transport.set_write_buffer_limits(high=size)

    def _finish(self, written: bytes) -> None:
        """The work that was under way is done; `written` is what it answers."""
        self._busy = False
        self._put(written)
        self._go_on()

    def _begin(self) -> None:
        """Begin the next run, or the next command that is by itself."""
        commands, client = self._reader.commands, self.client
        client.last_used_s = self._monotonic()
        if client.principal is None or client.transaction is not None or len(self.subscriber):
            self._begin_alone(commands.popleft())
            return
        run = CommandRun(self._port.gateway.command_limits, client.stream_to_add_to)
        if len(commands) >= _ALIKE_MIN and not self._mixed:
            self._take_alike(run)
        has_time = slice_of(self._monotonic, _PARSING_S_MAX)
        while commands and not run.long and not run.is_full():
            if not run.add_plain(commands[0]) and not self._add(run, commands[0]):
                break
            client.last_command = commands.popleft()[0].lower()
            if not has_time():
                break
        if not run.count:
            self._begin_alone(commands.popleft())
            return
        try:
            self.account.take(run.count, run.words_bytes)
        except EngineError as refusal:
            self._port.commands_run += run.count
            self._put(self.account.refuse(refusal, number=run.count))
        else:
            self._submit(run)

    def _take_alike(self, run: CommandRun) -> None:
        """Put the commands into the run at once, if they are alike: most pipelines are."""
        commands = self._reader.commands
        first = [*islice(commands, RUN_COMMANDS_MAX)]
        if not run.add_alike(first):
            # Looked at once a read, however many runs it takes.
            self._mixed = True
            return
        self.client.last_command = first[0][0].lower()
        for _ in first:
            commands.popleft()

    def _add(self, run: CommandRun, words: Words) -> bool:
        """Add a command to the run; False if it is by itself, or for the next run."""
        if session_commands.find(words) is not None:
            return False
        parsed = self.runner.parse(words)
        if isinstance(parsed, CommandRequest):
            is_long = redis.is_long(parsed)
            # A long reply leaves before the next is made.
            if runs_alone(parsed) or (is_long and run.count):
                return False
            run.long = is_long
        run.add(parsed, sum(map(len, words)))
        return True

    def _submit(self, run: CommandRun) -> None:
        self._busy = True
        self._port.commands_run += run.count
        try:
            engine = self.runner.tenant.engine
            if run.long:
                self.runner.reserve_for(run.commands())
        except EngineError as refusal:
            self._finish(self.account.refuse(refusal, number=run.count))
            return
        adds, quotas = run.only_adds, self.client.quotas
        if adds is None or quotas or not self._port.shares_adds:
            engine.submit_each(run.commands(), partial(self._answer, run), quotas, self._note_run)
        else:
            self._port.shared_adds.add(engine, adds.stream, adds.bodies, partial(self._answer, run))

    def _answer(self, run: CommandRun, replies: Sequence[Reply | EngineError]) -> None:
        unsent = partial(self.runner.take_back_all, run.outcomes(replies))
        if self._held is not None:
            self._held.extend(sum(map(text_bytes, replies)))
        if self._is_gone():
            unsent()
        elif run.only_adds and isinstance(added := replies[0], Added) and len(added.ids) == run.count:
            self._finish_with(self.runner.write_ids, added.ids)
        elif redis.is_laborious(replies):
            self._await(self.runner.write_in_thread(run.outcomes(replies)), unsent)
        else:
            self._write_on(run.outcomes(replies))

    def _write_on(self, outcomes: Iterator[RunResult]) -> None:
        """Write replies, for a while; the others in the next cycle."""
        if self._is_gone():
            self.runner.take_back_all(outcomes)
            return
        try:
            written, is_done = self.runner.write_some(outcomes)
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail(error)
            return
        if is_done:
            self._finish(written)
        else:
            self._put(written)
            self._loop.call_soon(self._write_on, outcomes)

    def _finish_with(self, write: Callable[..., bytes], *replies: object) -> None:
        try:
            written = write(*replies)
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail(error)
        else:
            self._finish(written)

    def _fail(self, error: BaseException) -> None:
        """End with an error: which commands of a run have changed something is not known."""
        self._loop.call_exception_handler({"message": "a command failed", "exception": error})
        self.account.refuse(errors.internal())
        self.end(_FAULT)

    def _is_gone(self) -> bool:
        """Whether nothing more reaches the client."""
        return self._ended or self._transport.is_closing()

    def _await(self, work: Work, unsent: Callable[[], None] = lambda: None, name: str = "") -> None:
        """Finish with what this comes to, or call `unsent` if the client has left by then. `name` is a
        session command's.
        """
        self._busy, self._unsent = True, unsent
        asyncio.ensure_future(work).add_done_callback(partial(self._finish_awaited, name))

    def _finish_awaited(self, name: str, done: "asyncio.Future[bytes]") -> None:
        unsent, self._unsent = self._unsent, lambda: None
        if done.cancelled() or self._is_gone():
            unsent()
            return
        error = done.exception()
        if error is None:
            written = done.result()
            if name:
                self.account.count(name, sent_bytes=len(written))
            self._finish(written)
        elif isinstance(error, EngineError):
            self._finish(self.account.refuse(error, name))
        elif isinstance(error, RefusalError):
            self._finish(self.account.refuse(in_words_of_redis(error), name))
        else:
            self._fail(error)

    # --- commands by themselves

    def _begin_alone(self, words: Words) -> None:
        client = self.client
        self._port.commands_run += 1
        client.last_command = words[0].lower()
        name = session_commands.name_of(words)
        try:
            self._take(words)
            written = self._run_alone(words)
        except EngineError as refusal:
            self._put(self.account.refuse(refusal, name))
            return
        except RefusalError as refusal:
            self._put(self.account.refuse(in_words_of_redis(refusal), name))
            return
        if written is not None and not isinstance(written, bytes):
            self._await(written, name=name)
            return
        if name:
            self.account.count(name, sent_bytes=len(written or b""))
        if written:
            self._put(written)

    def _take(self, words: Words) -> None:
        """Take a command from what the rate allows; what ends something is never refused. Raises EngineError,
        which discards a transaction, as in Redis.
        """
        name = words[0].lower()
        try:
            self.account.take(1, sum(map(len, words)))
        except EngineError:
            if name in _ENDING:
                return
            if name == b"exec":
                self.client.end_transaction()
            elif self.client.transaction is not None:
                self.client.transaction.discard()
            raise

    def _run_alone(self, words: Words) -> Written:
        found = session_commands.find(words)
        if self.client.principal is None and (found is None or not found.open):
            raise EngineError("unauthenticated", NOAUTH)
        if self.client.is_subscriber and self.client.protocol == 2:
            if words[0].lower() == b"ping":
                return wire.encode([b"pong", words[1] if len(words) > 1 else b""], 2)
            if found is None or not found.in_subscription:
                raise errors.invalid(NOT_IN_SUBSCRIPTION.format(words[0].lower().decode("latin-1")))
        transaction = self.client.transaction
        if transaction is not None and (found is None or not found.in_multi):
            if found is not None:
                # Not as an unknown command, whose words are repeated: those of AUTH are secret.
                transaction.discard()
                raise errors.invalid("ERR Command not allowed inside a transaction")
            try:
                self._hold_input(sum(map(len, words)))
            except EngineError:
                transaction.discard()
                raise
            transaction.queue(words, self.runner.parse_unbounded)
            return wire.QUEUED
        if found is not None:
            return session_commands.run(self, words)
        parsed = self.runner.parse(words)
        if isinstance(parsed, EngineError):
            raise parsed
        if not runs_alone(parsed):
            # A subscriber's: others are part of a run.
            run = CommandRun(self._port.gateway.command_limits)
            run.add(parsed)
            run.long = redis.is_long(parsed)
            self._submit(run)
            return None
        if not isinstance(parsed.command, BlockingCommand) or parsed.command.block_ms is None:
            return self.runner.run_alone(parsed)
        self._block(parsed, parsed.command)
        return None

    def _block(self, parsed: CommandRequest, command: BlockingCommand) -> None:
        def served(reply: Reply | EngineError | RefusalError) -> None:
            blocked, self.blocked = self.blocked, None
            assert blocked is not None, "it is answered once, if it was not abandoned"
            if self._is_gone():
                blocked.cancel()
            elif (refusal := self._refusal_of(reply)) is not None:
                blocked.cancel()
                self._finish(self.account.refuse(refusal, parsed.name))
            elif isinstance(reply, RefusalError):
                self._finish(self.account.refuse(in_words_of_redis(reply), parsed.name))
            elif redis.is_laborious([reply]):
                self._await(self.runner.write_in_thread([(parsed, reply)]), blocked.cancel)
            else:
                self._finish_with(self.runner.write, (parsed, reply))

        if not 0 < (command.block_ms or 0) < _FOREVER_MS:
            command = msgspec.structs.replace(command, block_ms=_FOREVER_MS)
        engine, waits = self.runner.tenant.engine, self._port.gateway.waits
        self._busy = True
        self.blocked = waits.read(engine, command, self.client.caller, served)

    def _refusal_of(self, reply: Reply | EngineError | RefusalError) -> EngineError | None:
        """Hold what a read that has waited answers; without room, the refusal."""
        if isinstance(reply, EngineError | RefusalError):
            return None
        try:
            self._reserve(text_bytes(reply))
        except EngineError as refusal:
            return refusal
        return None
