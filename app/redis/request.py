"""One parsed command: the engine command to run, the shape of its reply, the permissions that it needs.

Knows: that some commands need no engine, that blocking has a limit, which streams a command uses.
Must never know: the syntax of any command, the internals of the engine, HTTP.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from app.redis import replies, written
from app.redis.resp import Resp
from engine import EngineError, errors
from engine.commands import BlockingCommand, Command, Exists, FindGroup, XAutoClaim, XClaim
from engine.replies import Presence, Reply

Action = Literal["read", "write", "consume", "manage", "admin"]
Visible = Callable[[str], bool]


def _everything(_: str) -> bool:
    return True


def _anything(_: Reply) -> None:
    pass


def _not_local(_: int) -> Resp:
    raise AssertionError("a command of the engine has no immediate answer")


def _not_shaped(_: Reply, __: Visible) -> Resp:
    raise AssertionError("an immediate answer comes without a reply of the engine")


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command that may be run.

    `command` is what the engine runs, None where the answer is known without it (`immediate`). `name` is in
    lower case, a subcommand behind a bar. Each of `actions` must be allowed on each of `streams`, on all
    streams where `streams` is None; an empty tuple means that no stream is named: the answer shows names as
    far as they are visible (KEYS, SCAN), or none at all. `synced`: the answer is to leave only when
    everything before it is on the disk. `check` raises `EngineError` for a reply that is beyond a limit.
    """

    name: str
    actions: tuple[Action, ...] = ()
    streams: tuple[str, ...] | None = ()
    command: Command | None = None
    shape: Callable[[Reply, Visible], Resp] = _not_shaped
    local: Callable[[int], Resp] = _not_local
    synced: bool = False
    check: Callable[[Reply], None] = _anything

    def immediate(self, now_us: int) -> Resp:
        """The answer of a command that needs no engine; `now_us` is the wall clock in microseconds (TIME)."""
        return self.local(now_us)

    def answer(self, reply: Reply | EngineError, visible: Visible = _everything) -> Resp:
        """The engine's reply in its RESP2 shape; `visible` tells which stream names may be shown.

        Raises `EngineError`: the one given as the reply, or what Redis finds wrong only after it has found
        the key (the options of XINFO STREAM).
        """
        if isinstance(reply, EngineError):
            raise reply
        self.check(reply)
        return self.shape(reply, visible)

    def written(
        self, reply: Reply | EngineError, visible: Visible = _everything, *, base64: bool = False
    ) -> bytes:
        """The JSON text of `answer`."""
        if isinstance(reply, EngineError):
            raise reply
        self.check(reply)
        text = None if self.ids_alone else written.of_entries(reply, base64=base64)
        return written.written(self.shape(reply, visible), base64=base64) if text is None else text

    @property
    def ids_alone(self) -> bool:
        """Whether a claim is answered without the entries."""
        command = self.command
        if isinstance(command, XClaim):
            return command.claim.just_ids
        return isinstance(command, XAutoClaim) and command.just_ids

    def bounded(self, block_ms_max: int) -> "CommandRequest":
        """The same with a BLOCK of 0 (for ever) or beyond the limit cut to the limit."""
        command = self.command
        if not isinstance(command, BlockingCommand) or command.block_ms is None:
            return self
        if 0 < command.block_ms <= block_ms_max:
            return self
        return replace(self, command=msgspec.structs.replace(command, block_ms=block_ms_max))


def for_engine(command: Command, shape: Callable[[Reply], Resp] = replies.resp) -> CommandRequest:
    """A request for the engine. The table adds name and actions."""
    named = command.named_streams()
    streams = None if named is None else tuple(dict.fromkeys(named))
    return CommandRequest("", (), streams, command, lambda reply, _: shape(reply))


def refused_behind_key(stream: str, refusal: EngineError, missing: "EngineError | Resp") -> CommandRequest:
    """A request that is wrong in words which Redis reads only after it has found the key.

    The engine looks for the stream, in the turn in which the command would have run: the answer is `missing`
    without it, and `refusal` with it. Nothing else runs.
    """

    def shape(reply: Reply) -> Resp:
        if reply:
            raise refusal
        return _raised(missing)

    return for_engine(Exists(streams=(stream,)), shape)


def refused_behind_group(
    streams: Sequence[str],
    group: str,
    refusal: EngineError,
    missing: Callable[[str, Presence], "EngineError | Resp"],
) -> CommandRequest:
    """The same for words which Redis reads after it has found the group on each of `streams`, in order."""

    def shape(reply: Reply) -> Resp:
        assert isinstance(reply, Sequence), "looking for a group answers a list"
        for stream, found in zip(streams, reply, strict=True):
            assert isinstance(found, Presence), "one for each stream"
            if found is not Presence.FOUND:
                return _raised(missing(stream, found))
        raise refusal

    return for_engine(FindGroup(streams=streams, group=group), shape)


def _raised(answer: "EngineError | Resp") -> Resp:
    if isinstance(answer, EngineError):
        raise answer
    return answer


def for_names(command: Command, shape: Callable[[Reply, Visible], Resp]) -> CommandRequest:
    """A request whose answer shows stream names: those that are not visible are left out of it."""
    return CommandRequest("", (), (), command, shape)


def at_once(local: Callable[[int], Resp]) -> CommandRequest:
    """A request that needs no engine."""
    return CommandRequest("", local=local)


EXECABORT: Final = "EXECABORT Transaction discarded because of previous errors."


def discarded(refusal: EngineError, place: int) -> EngineError:
    """What a transaction answers as a whole, because its command number `place` can't be one."""
    return errors.invalid(EXECABORT, f"command {place} of the transaction: {refusal.redis}")
