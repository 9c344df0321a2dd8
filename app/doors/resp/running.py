"""What a client's commands need from the gateway: limits, permissions, transactions, replies as bytes.

Knows: in which order a command or a transaction is parsed, checked, authorised and run; when a reply is
written in a thread.
Must never know: sockets, what belongs to a connection.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from app import logs, redis
from app.doors.resp.accounting import Account, in_words_of_redis
from app.doors.resp.client import RespClient
from app.doors.resp.requests import Words
from app.errors import RefusalError
from app.gateway import Gateway
from app.live.turns import slice_of
from app.redis import EXECABORT, CommandRequest, transactions, wire
from app.redis.runs import Parsed, RunResult
from app.tenants import Tenant
from engine import EngineError, errors
from engine.commands import Command, Watch, XReadGroup
from engine.replies import Reply


class Runner:
    """One client's way to the engine."""

    def __init__(
        self, gateway: Gateway, client: RespClient, account: Account, reserve: transactions.Reserve
    ) -> None:
        self.gateway = gateway
        self._client = client
        self.account = account
        # Holds bytes for a reply before it is made.
        self.reserve = reserve
        # What its last command was run by.
        self._tenant: Tenant | None = None

    @property
    def tenant(self) -> Tenant:
        """What the client has of the engine. Raises EngineError while there is none."""
        try:
            self._tenant = self.gateway.tenant(self._client.prefix)
        except RefusalError as refusal:
            raise in_words_of_redis(refusal) from None
        return self._tenant

    def parse(self, words: Words) -> Parsed:
        """The command within its limits, or why it may not run."""
        parsed = self.parse_unbounded(words)
        if isinstance(parsed, EngineError):
            return parsed
        principal = self._client.principal
        principal = self._client.principal
        if principal is not None and principal.may_see_all:
            parsed = redis.seeing_all(parsed)
        return redis.within(parsed, self.gateway.settings.answer_bytes_max, self.gateway.command_limits)

    def reserve_for(self, commands: Sequence[Command]) -> None:
        """Hold what these commands may answer. Raises EngineError `overloaded`."""
        self.reserve(self.gateway.budgets.before_run(self.gateway.command_limits.answer_bound(commands)))

    def parse_unbounded(self, words: Words) -> Parsed:
        """The same, without a limit of its reply."""
        try:
            parsed = redis.checked(redis.parse(words), self.gateway.command_limits)
        except EngineError as invalid:
            return invalid
        refusal = self._client.refusal_of(parsed)
        if refusal is not None:
            self.account.note_audited(parsed, refusal)
        return refusal or parsed

    async def write_in_thread(self, outcomes: Iterable[RunResult]) -> bytes:
        """The replies of a run of which some are long."""
        found = [*outcomes]
        written = await asyncio.to_thread(lambda: [*map(self._write, found)])
        return b"".join(map(self._note, found, written))

    def write_some(self, outcomes: Iterable[RunResult]) -> tuple[bytes, bool]:
        """The next replies of a run, as many as a slice of time takes; and whether these were all."""
        has_time = slice_of(self.gateway.clock.monotonic)
        written: list[bytes] = []
        for outcome in outcomes:
            written.append(self.write(outcome))
            if not has_time():
                return b"".join(written), False
        return b"".join(written), True

    def write(self, outcome: RunResult) -> bytes:
        """The reply of one command."""
        return self._note(outcome, self._write(outcome))

    def write_ids(self, ids: Sequence[int]) -> bytes:
        """The replies of plain XADDs."""
        written = wire.each_id(ids)
        self.account.count("xadd", number=len(ids), sent_bytes=len(written))
        return written

    def _note(self, outcome: RunResult, written: "bytes | EngineError") -> bytes:
        refusal = None
        if isinstance(written, EngineError):
            refusal, written = written, wire.refusal(written)
        self.account.note(outcome, refusal, len(written))
        return written

    def _write(self, outcome: RunResult) -> bytes | EngineError:
        """The reply, or why there is none; nothing of it is kept, so that a thread may write it."""
        if type(outcome) is int:
            return wire.each_id((outcome,))
        if isinstance(outcome, EngineError):
            return outcome
        assert isinstance(outcome, tuple), "there are three kinds"
        parsed, reply = outcome
        protocol = self._client.protocol
        try:
            if parsed.command is None:
                now_us = self.gateway.clock.wall_ms() * 1000
                return wire.encode(parsed.immediate(now_us), protocol)
            written = wire.answer(parsed, reply, self._client.may_see, protocol)
            redis.check_written(parsed, len(written), self.gateway.settings.answer_bytes_max)
        except EngineError as refusal:
            return refusal
        except Exception as error:  # noqa: BLE001 - the other commands of the run have replies of their own
            logs.note_fault(error, self.account.request_id)
            return errors.internal()
        return written

    async def run_alone(self, parsed: CommandRequest) -> bytes:
        """Run a command that takes two steps, or waits for the disk."""
        try:
            settings, limits = self.gateway.settings, self.gateway.command_limits
            engine = self.tenant.engine
            assert parsed.command is not None, "it runs in the engine"
            self.reserve_for([parsed.command])
            await transactions.probe(engine, limits, parsed, settings.answer_bytes_max)
            reply: Reply | EngineError = await engine.execute(
                parsed.command, synced=parsed.synced, quotas=self._client.quotas
            )
        except EngineError as refusal:
            reply = refusal
        return self.write((parsed, reply))

    def take_back_all(self, outcomes: Iterable[RunResult]) -> None:
        """Undo what was delivered to a client that has left: the last delivery first."""
        for outcome in reversed([*outcomes]):
            if isinstance(outcome, tuple) and isinstance(outcome[0].command, XReadGroup):
                assert self._tenant is not None, "it has run a command"
                self._tenant.take_back(outcome[0].command, outcome[1])


# ---- transactions


async def watch(client: RespClient, runner: Runner, streams: list[str]) -> bytes:
    """Watch streams; those that are watched already stay as they were."""
    new = [stream for stream in dict.fromkeys(streams) if stream not in client.watched.streams]
    most = runner.gateway.settings.request_streams_max
    if len(client.watched.streams) + len(new) > most:
        raise errors.invalid(f"ERR too many watched streams: at most {most} (request_streams_max)")
    if not new:
        return wire.OK
    # One was taken for the command.
    runner.account.take(len(new) - 1, 0)
    found = await runner.tenant.engine.transaction([Watch(stream=stream) for stream in new])
    for stream, version in zip(new, found, strict=True):
        if isinstance(version, EngineError):
            raise version
        assert isinstance(version, int), "watching gives a version"
        client.watched.streams[stream] = version
    return wire.OK


async def execute(
    client: RespClient, runner: Runner, note_unsent: Callable[[Callable[[], None]], None]
) -> bytes:
    """Run what was queued, unless it was discarded or a watched stream has changed. Notes what to call if the
    reply does not leave.
    """
    transaction, condition = client.transaction, client.watched.condition()
    assert transaction is not None, "it has begun"
    client.end_transaction()
    if transaction.is_discarded:
        raise errors.invalid(EXECABORT)
    if len(transaction.requests) == 0 and condition is None:
        return b"*0\r\n"
    found = await transactions.run_if(
        runner.gateway, runner.tenant.engine, transaction.requests, client.quotas, runner.reserve, condition
    )
    if found is None:
        return wire.null(client.protocol, is_list=True)
    outcomes = [
        one.parsed if isinstance(one.parsed, EngineError) else (one.parsed, one.reply) for one in found
    ]
    note_unsent(partial(runner.take_back_all, outcomes))
    if redis.is_laborious([one.reply for one in found]):
        written = await runner.write_in_thread(outcomes)
    else:
        written = b"".join(map(runner.write, outcomes))
    return b"*%d\r\n%b" % (len(found), written)
