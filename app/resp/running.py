"""What a client's commands need from the gateway: limits, permissions, transactions, replies as bytes.

Knows: in which order a command or a transaction is parsed, checked, authorised and run; when a reply is
written in a thread.
Must never know: sockets, what belongs to a connection.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from app import redis
from app.errors import CODES, RefusalError
from app.gateway import Gateway
from app.live.turns import slice_of
from app.metrics.counters import entries_in
from app.redis import EXECABORT, CommandRequest, transactions, wire
from app.redis.runs import Parsed, RunResult
from app.resp.client import RespClient
from app.resp.requests import Words
from app.tenants import Tenant
from engine import EngineError, errors
from engine.commands import Command, Watch, XReadGroup
from engine.replies import Reply

_LOADING: Final = "LOADING Redis is loading the dataset in memory"


class Runner:
    """One client's way to the engine."""

    def __init__(self, gateway: Gateway, client: RespClient, reserve: transactions.Reserve) -> None:
        self.gateway = gateway
        self._client = client
        # Holds bytes for a reply before it is made.
        self.reserve = reserve

    @property
    def tenant(self) -> Tenant:
        """What the client has of the engine. Raises EngineError while there is none."""
        try:
            return self.gateway.tenant(self._client.prefix)
        except RefusalError as refusal:
            raise in_words_of_redis(refusal) from None

    def parse(self, words: Words) -> Parsed:
        """The command within its limits, or why it may not run."""
        parsed = self.parse_unbounded(words)
        if isinstance(parsed, EngineError):
            return parsed
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
            self._note(parsed, refusal)
        return refusal or parsed

    def _note(self, parsed: CommandRequest, reply: object) -> None:
        """Have the audit log say what was done, or was refused."""
        audited = parsed.audited if self.gateway.audit.is_on else None
        if audited is not None:
            code = reply.code if isinstance(reply, EngineError) else ""
            status = CODES[code].status if code in CODES else 200
            facts = {"action": audited[0], "operation": parsed.name, **audited[1]}
            client = self._client
            self.gateway.audit.note(
                f"resp-{client.id}", client.caller, facts, prefix=client.prefix, status=status, code=code
            )

    def take(self, commands: int, size: int) -> None:
        """Count commands against the caller's rate. Raises EngineError."""
        limiter, principal = self.gateway.rate_limiter, self._client.principal
        meter = None if limiter is None or principal is None else limiter.meter(principal, self._client.host)
        if meter is not None:
            try:
                meter.take(commands, size)
            except RefusalError as refusal:
                raise in_words_of_redis(refusal) from None

    def write_all(self, outcomes: Iterable[RunResult]) -> bytes:
        """The replies of a run."""
        return b"".join(map(self.write, outcomes))

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
        if type(outcome) is int:
            return wire.each_id((outcome,))
        if isinstance(outcome, EngineError):
            return wire.refusal(outcome)
        assert isinstance(outcome, tuple), "there are three kinds"
        parsed, reply = outcome
        self._note(parsed, reply)
        protocol = self._client.protocol
        try:
            if parsed.command is None:
                now_us = self.gateway.clock.wall_ms() * 1000
                return wire.encode(parsed.immediate(now_us), protocol)
            written = wire.answer(parsed, reply, self._client.may_see, protocol)
            redis.check_written(parsed, len(written), self.gateway.settings.answer_bytes_max)
            if not isinstance(reply, EngineError):
                self.gateway.counters.delivered["resp"] += entries_in(reply)
        except EngineError as refusal:
            return wire.refusal(refusal)
        except Exception as error:  # noqa: BLE001 - the other commands of the run have replies of their own
            return wire.refusal(transactions.failed_alone(self.gateway, error, f"resp-{self._client.id}"))
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
                self.gateway.take_back(self._client.prefix, outcome[0].command, outcome[1])


def in_words_of_redis(refusal: RefusalError) -> EngineError:
    """The gateway's refusal; while the log is read, clients of Redis wait at the word LOADING."""
    if refusal.code in {"starting", "restarting"}:
        return EngineError(refusal.code, _LOADING, refusal.detail)
    return EngineError(refusal.code, f"ERR {refusal.detail}", refusal.detail)


# ---- transactions


async def watch(client: RespClient, runner: Runner, streams: list[str]) -> bytes:
    """Watch streams; those that are watched already stay as they were."""
    new = [stream for stream in dict.fromkeys(streams) if stream not in client.watched.streams]
    most = runner.gateway.settings.request_streams_max
    if len(client.watched.streams) + len(new) > most:
        raise errors.invalid(f"ERR too many watched streams: at most {most} (request_streams_max)")
    if not new:
        return wire.OK
    found = await runner.tenant.engine.transaction([Watch(stream=stream) for stream in new])
    for stream, version in zip(new, found, strict=True):
        if isinstance(version, EngineError):
            raise version
        assert isinstance(version, int), "watching gives a version"
        client.watched.streams[stream] = version
    return wire.OK


async def execute(client: RespClient, runner: Runner) -> bytes:
    """Run what was queued, unless it was discarded or a watched stream has changed."""
    transaction, condition = client.transaction, client.watched.condition()
    assert transaction is not None, "it has begun"
    client.end_transaction()
    if transaction.is_discarded:
        raise errors.invalid(EXECABORT)
    if len(transaction.requests) == 0 and condition is None:
        return b"*0\r\n"
    runner.take(len(transaction.requests), 0)
    found = await transactions.run_if(
        runner.gateway, runner.tenant.engine, transaction.requests, client.quotas, runner.reserve, condition
    )
    if found is None:
        return wire.null(client.protocol, is_list=True)
    outcomes = [
        one.parsed if isinstance(one.parsed, EngineError) else (one.parsed, one.reply) for one in found
    ]
    if redis.is_laborious([one.reply for one in found]):
        written = await asyncio.to_thread(runner.write_all, outcomes)
    else:
        written = runner.write_all(outcomes)
    return b"*%d\r\n%b" % (len(found), written)
