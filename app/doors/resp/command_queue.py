"""The commands of one connection in order, one piece of work at a time.

Knows: which commands run together and which by themselves, when a reply is written, what is undone if the
client has left by then.
Must never know: sockets, the form of bytes, when they are read.

    commands ─► CommandRun ─► engine.send ─► replies
            └─► one by itself: a session command, a read that waits, a transaction
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from app import redis
from app.doors.resp.client import NOAUTH
from app.doors.resp.commands import session_commands
from app.doors.resp.commands.server_commands import NOT_IN_SUBSCRIPTION
from app.doors.resp.link import ServedLink, Work, Written
from app.doors.resp.port import Port
from app.doors.resp.requests import Words
from app.errors import RefusalError
from app.limits import text_bytes
from app.live.turns import slice_of
from app.live.waiting import Wait
from app.redis import CommandRequest, wire
from app.redis.runs import CommandRun, RunResult, runs_alone, sent_together
from app.redis.steps import in_words_of_redis
from engine import Call, CommandEngine, EngineError, How, ReadHandle, errors
from engine.commands import BlockingCommand
from engine.replies import Added, Reply

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
# BLOCK 0 waits as long as the client does.
_FOREVER_MS: Final = 10 * 365 * 24 * 3_600_000
# To find a member in its class takes Python 3.11 a third of a microsecond.
_ALONE: Final = How.ALONE
_EACH: Final = How.EACH


class CommandQueue:
    """What a connection has read and not answered. `is_busy`: work is under way."""

    def __init__(self, port: Port, link: ServedLink, commands: deque[Words]) -> None:
        self._port = port
        self._link = link
        self._commands = commands
        self._client = link.client
        self._account = link.account
        self._runner = link.runner
        self._loop = asyncio.get_running_loop()
        self._monotonic = port.gateway.clock.monotonic
        self.is_busy = False
        # Whether what was read last is known to be different commands.
        self.is_mixed = False
        # Whether what was sent together with the command under way has run, or will.
        self._is_part = False
        # The read that the connection waits for.
        self.blocked: Wait | None = None
        # What to call if the client has left when the work under way is done.
        self._unsent: Callable[[], None] = lambda: None

    def note_unsent(self, unsent: Callable[[], None]) -> None:
        """Call this if the client has left when the work under way is done."""
        self._unsent = unsent

    def abandon(self) -> None:
        """Take nothing for a read that waits."""
        blocked, self.blocked = self.blocked, None
        if blocked is not None:
            blocked.cancel()

    def pause(self) -> None:
        """Go on in the next cycle."""
        self.is_busy = True
        self._loop.call_soon(self._finish, b"")

    def _finish(self, written: bytes) -> None:
        """The work that was under way is done; `written` is what it answers."""
        self.is_busy = False
        self._is_part = bool(self._commands)
        self._link.put(written)
        self._link.go_on()

    def begin(self) -> None:
        """Begin the next run, or the next command that is by itself."""
        commands, client, link = self._commands, self._client, self._link
        client.last_used_s = self._monotonic()
        if client.principal is None or client.transaction is not None or len(link.subscriber):
            self._begin_alone(commands.popleft())
            return
        run = CommandRun(self._port.gateway.limits.commands, client.stream_to_add_to)
        has_time = slice_of(self._monotonic, _PARSING_S_MAX)
        self._take_alike(run, has_time)
        while commands and not run.is_full():
            if not run.add_plain(commands[0]) and not self._add(run, commands[0]):
                break
            client.last_command = commands.popleft()[0].lower()
            if not has_time():
                break
        if not run.count:
            self._begin_alone(commands.popleft())
            return
        try:
            self._account.take_commands(run.count, run.words_bytes)
        except EngineError as refusal:
            self._port.commands_run += run.count
            self._link.put(self._account.refuse(refusal, number=run.count))
        else:
            self._submit(run)

    def _take_alike(self, run: CommandRun, has_time: Callable[[], bool]) -> None:
        """Put many commands into the run at once, as long as they are alike: most pipelines are."""
        commands = self._commands
        while len(commands) >= _ALIKE_MIN and not (self.is_mixed or run.is_full()):
            first = [*islice(commands, _ALIKE_MAX)]
            if not run.add_alike(first):
                # Looked at once a read, however many runs it takes.
                self.is_mixed = not run.count
                return
            self._client.last_command = first[0][0].lower()
            for _ in first:
                commands.popleft()
            if not has_time():
                return

    def _add(self, run: CommandRun, words: Words) -> bool:
        """Add a command to the run; False if it is by itself, or for the next run."""
        if session_commands.find(words) is not None:
            return False
        parsed = self._runner.parse_for(words)
        if isinstance(parsed, CommandRequest):
            is_long = redis.is_long(parsed)
            # A long reply leaves before the next is made; short ones leave with it.
            if runs_alone(parsed) or (is_long and run.long):
                return False
            run.long |= is_long
        run.add(parsed, sum(map(len, words)))
        return True

    def _submit(self, run: CommandRun) -> None:
        """Have a run under way."""
        self.is_busy = True
        self._port.commands_run += run.count
        try:
            engine = self._account.engine
            if run.long:
                self._account.reserve_for(*run.commands())
        except EngineError as refusal:
            self._finish(self._refuse(refusal, number=run.count))
            return
        self._send(engine, run)

    def _send(self, engine: CommandEngine, run: CommandRun) -> None:
        commands = run.commands()
        # One takes fewer steps alone; some need no engine, and are none.
        how = _ALONE if run.count == len(commands) == 1 else _EACH
        call, done = self._account.call(commands, how), partial(self._answer, run)
        if len(commands) == 1 and self._port.joins:
            self._port.gateway.joiner.send(engine, call, done)
            return
        replies = engine.send(call, done)
        if replies is not None:
            done(replies)

    def _answer(self, run: CommandRun, replies: Sequence[Reply | EngineError]) -> None:
        if run.count > 1 or self._is_part or self._commands:
            is_part = self._is_part or bool(self._commands)
            replies = sent_together(run.commands(), replies, is_part=is_part)
        unsent = partial(self._account.take_back, run.outcomes(replies))
        self._account.note_arrived(*replies)
        if self._link.is_gone:
            unsent()
        elif run.only_adds and isinstance(added := replies[0], Added) and len(added.ids) == run.count:
            self._finish_with(self._runner.write_ids, added.ids)
        elif redis.is_laborious(replies):
            self._await(self._write_in_thread(run.outcomes(replies)), unsent)
        elif run.count == 1:
            self._finish_with(self._runner.write, next(run.outcomes(replies)))
        else:
            self._write_on(run.outcomes(replies))

    def _write_on(self, outcomes: Iterator[RunResult]) -> None:
        """Write replies, for a while; the others in the next cycle."""
        if self._link.is_gone:
            self._account.take_back(outcomes)
            return
        try:
            written, is_done = self._runner.write_some(outcomes)
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._link.fail(error)
            return
        if is_done:
            self._finish(b"".join(written))
        else:
            self._link.put(b"".join(written))
            self._loop.call_soon(self._write_on, outcomes)

    async def _write_in_thread(self, outcomes: Iterable[RunResult]) -> bytes:
        return b"".join(await self._runner.write_in_thread(outcomes))

    def _finish_with(self, write: Callable[..., bytes], *replies: object) -> None:
        try:
            written = write(*replies)
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._link.fail(error)
        else:
            self._finish(written)

    def _await(self, work: Work, unsent: Callable[[], None] = lambda: None, name: str = "") -> None:
        """Finish with what this comes to, or call `unsent` if the client has left by then. `name` is a
        session command's.
        """
        self.is_busy, self._unsent = True, unsent
        asyncio.ensure_future(work).add_done_callback(partial(self._finish_awaited, name))

    def _told(self, refusal: EngineError) -> EngineError:
        """The refusal of a command: where a client that repeats it repeats others that may have been done, in
        words at which none does.
        """
        return errors.unrepeated(refusal) if self._is_part or self._commands else refusal

    def _refuse(self, refusal: EngineError | RefusalError, name: str = "", number: int = 1) -> bytes:
        """Refuse commands. Those of a client that is not known count as wrong tokens do."""
        if isinstance(refusal, RefusalError):
            refusal = in_words_of_redis(refusal)
        client, limiter = self._client, self._port.gateway.limits.rates
        if client.principal is None:
            client.refusals += 1
            # A wrong token was counted when it was looked at.
            if limiter is not None and not (name in _WITH_TOKEN and refusal.code == "unauthenticated"):
                limiter.count_failure(client.host)
        return self._account.refuse(self._told(refusal), name, number)

    def _finish_awaited(self, name: str, done: "asyncio.Future[bytes]") -> None:
        unsent, self._unsent = self._unsent, lambda: None
        if done.cancelled() or self._link.is_gone:
            unsent()
            return
        error = done.exception()
        if error is None:
            written = done.result()
            if name:
                self._account.note_end(name, sent_bytes=len(written))
            self._finish(written)
        elif isinstance(error, EngineError | RefusalError):
            self._finish(self._refuse(error, name))
        else:
            self._link.fail(error)

    # --- commands by themselves

    def _begin_alone(self, words: Words) -> None:
        client = self._client
        self._port.commands_run += 1
        client.last_command = words[0].lower()
        name = session_commands.name_of(words)
        try:
            self._take(words)
            written = self._run_alone(words)
        except (EngineError, RefusalError) as refusal:
            self._link.put(self._refuse(refusal, name))
            return
        if written is not None and not isinstance(written, bytes):
            self._await(written, name=name)
            return
        if name:
            self._account.note_end(name, sent_bytes=len(written or b""))
        if written:
            self._link.put(written)

    def _take(self, words: Words) -> None:
        """Take a command from what the rate allows; what ends something is never refused. Raises EngineError,
        which discards a transaction, as in Redis.
        """
        name = words[0].lower()
        try:
            self._account.take_commands(1, sum(map(len, words)))
        except EngineError:
            if name in _ENDING:
                return
            if name == b"exec":
                self._client.end_transaction()
            elif self._client.transaction is not None:
                self._client.transaction.discard()
            raise

    def _run_alone(self, words: Words) -> Written:
        found = session_commands.find(words)
        if self._client.principal is None and (found is None or not found.open):
            raise EngineError("unauthenticated", NOAUTH)
        if self._client.is_subscriber and self._client.protocol == 2:
            if words[0].lower() == b"ping":
                return wire.encode([b"pong", words[1] if len(words) > 1 else b""], 2)
            if found is None or not found.in_subscription:
                raise errors.invalid(NOT_IN_SUBSCRIPTION.format(words[0].lower().decode("latin-1")))
        transaction = self._client.transaction
        if transaction is not None and (found is None or not found.in_multi):
            if found is not None:
                # Not as an unknown command, whose words are repeated: those of AUTH are secret.
                transaction.discard()
                raise errors.invalid("ERR Command not allowed inside a transaction")
            try:
                self._link.hold_commands(sum(map(len, words)))
            except EngineError:
                transaction.discard()
                raise
            transaction.queue(words, self._runner.parse_unbounded)
            return wire.QUEUED
        if found is not None:
            return session_commands.run(self._link, words)
        parsed = self._runner.parse_for(words)
        if isinstance(parsed, EngineError):
            raise parsed
        if not runs_alone(parsed):
            # A subscriber's: others are part of a run.
            run = CommandRun(self._port.gateway.limits.commands)
            run.add(parsed)
            run.long = redis.is_long(parsed)
            self._submit(run)
            return None
        if not isinstance(parsed.command, BlockingCommand) or parsed.command.block_ms is None:
            return self._runner.run_alone(parsed, self._told)
        self._block(parsed, parsed.command)
        return None

    def _block(self, parsed: CommandRequest, command: BlockingCommand) -> None:
        def served(reply: Reply | EngineError | RefusalError) -> None:
            blocked, self.blocked = self.blocked, None
            assert blocked is not None, "it is answered once, if it was not abandoned"
            if self._link.is_gone:
                blocked.cancel()
            elif (refusal := self._refusal_of(reply)) is not None:
                blocked.cancel()
                self._finish(self._account.refuse(refusal, parsed.name))
            elif isinstance(reply, RefusalError):
                self._finish(self._refuse(reply, parsed.name))
            elif isinstance(reply, EngineError):
                self._finish_with(self._runner.write, (parsed, self._told(reply)))
            elif redis.is_laborious([reply]):
                self._await(self._write_in_thread([(parsed, reply)]), blocked.cancel)
            else:
                self._finish_with(self._runner.write, (parsed, reply))

        if not 0 < (command.block_ms or 0) < _FOREVER_MS:
            command = msgspec.structs.replace(command, block_ms=_FOREVER_MS)
        engine, waits, caller = self._account.engine, self._port.gateway.waits, self._client.caller
        self.is_busy = True
        call = Call((command,), waits=ReadHandle(), origin=self._account.request_id, caller=caller)
        self.blocked = waits.begin_read(engine, call, caller, served)

    def _refusal_of(self, reply: Reply | EngineError | RefusalError) -> EngineError | None:
        """Hold what a read that has waited answers; without room, the refusal."""
        if isinstance(reply, EngineError | RefusalError):
            return None
        try:
            self._link.reserve_output(text_bytes(reply))
        except EngineError as refusal:
            return refusal
        return None
