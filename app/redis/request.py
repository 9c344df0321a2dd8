"""One parsed command: the engine command to run, the shape of its reply, the permissions that it needs.

Knows: that some commands need no engine, that blocking has a limit, which streams a command uses.
Must never know: the syntax of any command, the internals of the engine, HTTP.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from app.redis import replies, written
from app.redis.resp import Resp
from engine import EngineError, errors
from engine.commands.base import BlockingCommand, Command
from engine.commands.schedule_commands import CancelSchedule, PauseSchedule, SetSchedule
from engine.commands.types import Exists, FindGroup, ListStreams, XAutoClaim, XClaim
from engine.replies import Dropped, Presence, Reply, ScheduleSet

Action = Literal["read", "write", "consume", "close", "manage", "admin"]
Visible = Callable[[str], bool]
# Those that take another right where the schedule recurs.
_OF_SCHEDULES: Final = CancelSchedule, PauseSchedule, SetSchedule
_AUDITED: Final = ("close", "manage", "admin")


def _everything(_: str) -> bool:
    return True


def _anything(_: Reply) -> None:
    pass


def _not_immediate(_: int) -> Resp:
    raise AssertionError("a command of the engine has no immediate answer")


def _not_shaped(_: Reply) -> Resp:
    raise AssertionError("an immediate answer comes without a reply of the engine")


class CommandRequest(msgspec.Struct, frozen=True):
    """A parsed command.

    `command` is the engine command, None if the reply needs no engine: `immediate` makes it, from the time
    in microseconds. `name` is in lower case, with a bar before a subcommand. Each of `actions` must be
    allowed on each of `streams`, on every stream if `streams` is None; an empty tuple means that the command
    names no stream (its reply shows only visible names, as KEYS and SCAN do). With `target_actions` they must
    be allowed on the command's `stream`, and those on its `target`. `synced`: reply once every earlier change
    is on disk. `check` raises `EngineError` for a reply beyond a limit.
    """

    name: str
    actions: tuple[Action, ...] = ()
    target_actions: tuple[Action, ...] = ()
    streams: tuple[str, ...] | None = ()
    command: Command | None = None
    shape: Callable[[Reply], Resp] = _not_shaped
    # In its place where the reply lists names of streams.
    shape_names: Callable[[Reply, Visible], Resp] | None = None
    immediate: Callable[[int], Resp] = _not_immediate
    synced: bool = False
    check: Callable[[Reply], None] = _anything
    # Of names of streams, how many that are visible are enough; None for all.
    names_max: int | None = None

    def answer(
        self,
        reply: Reply | EngineError,
        visible: Visible = _everything,
        form: replies.Form = replies.SHAPED,
    ) -> Resp:
        """Shape the engine's reply as RESP2; only stream names for which `visible` is true are shown.

        Raises `EngineError`: the reply itself, or an error that Redis reports after it has found the key
        (the options of XINFO STREAM).
        """
        if isinstance(reply, EngineError):
            raise reply
        if isinstance(reply, Dropped):
            reply = reply.reply
        self.check(reply)
        of_entries = replies.entry_shape(reply)
        if of_entries is not None and not self._ids_alone:
            return of_entries(reply, form)
        return self.shape(reply) if self.shape_names is None else self.shape_names(reply, visible)

    def written(
        self, reply: Reply | EngineError, visible: Visible = _everything, *, base64: bool = False
    ) -> bytes:
        """Write `answer` as JSON text."""
        form = written.JSON_BASE64 if base64 else written.JSON
        return written.written(self.answer(reply, visible, form), base64=base64)

    @property
    def audited(self) -> tuple[str, dict[str, object]] | None:
        """For the audit log, of commands that change streams, groups or the gateway: action and names."""
        actions = [action for action in (*self.actions, *self.target_actions) if action in _AUDITED]
        if self.command is None or not self.command.changes or not actions:
            return None
        found: dict[str, object] = {"streams": self.streams} if self.streams else {}
        for name in ("group", "consumer"):
            value = getattr(self.command, name, None)
            if value is not None:
                found[name] = value
        return actions[0], found

    def audited_by(self, reply: Reply | EngineError | None) -> tuple[str, dict[str, object]] | None:
        """The same, once there is a reply: it may say that the schedule that was named recurs, which takes as
        much as to manage the stream.
        """
        recurs = (
            reply.code == "forbidden" and isinstance(self.command, _OF_SCHEDULES)
            if isinstance(reply, EngineError)
            else isinstance(reply, ScheduleSet) and reply.replaced_recurring
        )
        return self.audited or (("manage", {"streams": self.streams}) if recurs else None)

    @property
    def _ids_alone(self) -> bool:
        """Whether the reply of a claim has IDs only."""
        command = self.command
        if isinstance(command, XClaim):
            return command.claim.just_ids
        return isinstance(command, XAutoClaim) and command.just_ids

    def bounded(self, block_ms_max: int) -> "CommandRequest":
        """Return the request with BLOCK at most `block_ms_max`; BLOCK 0 is without limit."""
        command = self.command
        if not isinstance(command, BlockingCommand) or command.block_ms is None:
            return self
        if 0 < command.block_ms <= block_ms_max:
            return self
        return msgspec.structs.replace(self, command=msgspec.structs.replace(command, block_ms=block_ms_max))


def for_engine(command: Command, shape: Callable[[Reply], Resp] = replies.resp) -> CommandRequest:
    """Make a request for the engine. The table adds name and actions."""
    streams = command.named_streams()
    if streams is not None and len(streams) > 1:
        streams = tuple(dict.fromkeys(streams))
    return CommandRequest("", streams=streams, command=command, shape=shape)


def refused_behind_key(stream: str, refusal: EngineError, missing: "EngineError | Resp") -> CommandRequest:
    """Make the request for a command with an error that Redis reports only after it has found the key.

    The engine looks up the stream in the turn of the command. The reply is `missing` if there is no such
    stream, else `refusal`. Nothing else runs.
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
    """Like `refused_behind_key`, for errors that Redis reports after it has found the groups."""

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


def for_names(
    command: ListStreams, shape: Callable[[Reply, Visible], Resp], names_max: int | None = None
) -> CommandRequest:
    """Make a request whose reply lists stream names; names that are not visible are left out. `names_max`: it
    needs no more of those that are.
    """
    return CommandRequest("", command=command, shape_names=shape, names_max=names_max)


def seeing_all(request: CommandRequest) -> CommandRequest:
    """The request of a caller to whom all names are visible: fewer are enough."""
    if request.names_max is None:
        return request
    assert isinstance(request.command, ListStreams), "it lists names"
    limited = msgspec.structs.replace(request.command, limit=request.names_max)
    return msgspec.structs.replace(request, command=limited, names_max=None)


def at_once(immediate: Callable[[int], Resp]) -> CommandRequest:
    """Make a request that needs no engine."""
    return CommandRequest("", immediate=immediate)


EXECABORT: Final = "EXECABORT Transaction discarded because of previous errors."


def discarded(refusal: EngineError, place: int) -> EngineError:
    """The reply of a whole transaction whose command number `place` is invalid."""
    return errors.invalid(EXECABORT, f"command {place} of the transaction: {refusal.redis}")
