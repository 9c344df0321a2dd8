"""What a client's commands need from the gateway: limits, permissions, transactions, replies as bytes.

Knows: what of Redis's steps is this port's own: NOPERM, WATCH and EXEC, its replies.
Must never know: sockets, what belongs to a connection.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from app.doors.resp.accounting import Account
from app.doors.resp.client import RespClient
from app.doors.resp.requests import Words
from app.redis import EXECABORT, CommandRequest, transactions, wire
from app.redis.request import Visible
from app.redis.resp import Resp
from app.redis.runs import Parsed
from app.redis.steps import CommandSteps
from engine import EngineError, How, ask, errors
from engine.commands import Watch
from engine.replies import Reply


class WireCodec:
    """Replies as bytes of the client's protocol."""

    frame_bytes: ClassVar = 0

    def __init__(self, client: RespClient) -> None:
        self._client = client

    def refusal(self, refusal: EngineError) -> bytes:
        """Encode a refusal, in Redis's words."""
        return wire.refusal(refusal)

    def immediate(self, answer: Resp) -> bytes:
        """Encode the answer of a command that needs no engine."""
        return wire.encode(answer, self._client.protocol)

    def reply(self, parsed: CommandRequest, reply: Reply | EngineError, visible: Visible) -> bytes:
        """Encode the engine's reply. Raises EngineError."""
        return wire.answer(parsed, reply, visible, self._client.protocol)

    def entry_id(self, entry_id: int) -> bytes:
        """Encode the ID of an entry."""
        return wire.each_id((entry_id,))


class Runner(CommandSteps):
    """The steps of one client's commands."""

    def __init__(self, client: RespClient, account: Account) -> None:
        super().__init__(account, WireCodec(client))
        self._client = client
        self.account = account

    def parse_for(self, words: Words) -> Parsed:
        """The command within all its limits, or why it may not run."""
        parsed = self.parse_unbounded(words)
        return parsed if isinstance(parsed, EngineError) else self.bound(parsed)

    def parse_unbounded(self, words: Words) -> Parsed:
        """The same, without a limit of its reply."""
        parsed = self.parse(words)
        if isinstance(parsed, EngineError):
            return parsed
        refusal = self._client.refusal_of(parsed)
        if refusal is not None:
            self.audit(parsed, refusal)
        return refusal or parsed

    def write_ids(self, ids: Sequence[int]) -> bytes:
        """The replies of plain XADDs."""
        written = wire.each_id(ids)
        self.account.note_end("xadd", number=len(ids), sent_bytes=len(written))
        return written

    async def run_alone(self, parsed: CommandRequest, told: Callable[[EngineError], EngineError]) -> bytes:
        """Run a command that takes two steps, or waits for the disk; `told` has the words of its refusal."""
        assert parsed.command is not None, "it runs in the engine"
        try:
            await self.probe(parsed)
            reply: Reply | EngineError = await self.account.run_now(parsed.command, synced=parsed.synced)
        except EngineError as refusal:
            reply = told(refusal)
        return self.write((parsed, reply))


# ---- transactions


async def watch(client: RespClient, runner: Runner, streams: list[str]) -> bytes:
    """Watch streams; those that are watched already stay as they were."""
    new = [stream for stream in dict.fromkeys(streams) if stream not in client.watched.streams]
    most = runner.account.gateway.settings.request_streams_max
    if len(client.watched.streams) + len(new) > most:
        raise errors.invalid(f"ERR too many watched streams: at most {most} (request_streams_max)")
    if not new:
        return wire.OK
    # One was taken for the command.
    runner.account.take_commands(len(new) - 1, 0)
    watching = [Watch(stream=stream) for stream in new]
    found = await ask(runner.account.engine, runner.account.call(watching, How.TOGETHER))
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
    found = await transactions.run(runner, transaction.requests, condition)
    if found is None:
        return wire.null(client.protocol, is_list=True)
    outcomes, room = found
    note_unsent(partial(runner.account.take_back, outcomes))
    written = await runner.write_each(outcomes, runner.account.take_turn, room)
    return b"*%d\r\n%b" % (len(outcomes), b"".join(written))
