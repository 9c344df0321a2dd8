"""Runs commands, one way for all callers, and lets long work go on one piece a cycle of the event loop.

Knows: when the log has no room for a command, that a turn is one frame, and on which frame a reply depends:
the last one that touched a stream.
Must never know: callers, waiting reads, what a command means.

    run → admit: memory, room in the log │ nothing has changed
        → select, emit, apply            │ `engine.commands.execution`
        → stage: one frame of the turn's records

A piece of long work takes some milliseconds. If each of many went on in each cycle, all others would wait for
all of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from engine import errors
from engine.clock import Clock
from engine.commands.base import Command
from engine.commands.execution import (
    DirtyTurnError,
    Turn,
    check_memory,
    check_quotas,
    execute,
    execute_all,
    execute_each,
)
from engine.commands.retention import name_kept_whole
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.protocol import Events
from engine.quotas import Quota
from engine.record import Record
from engine.records.changes import RemoveAll, RenameStream
from engine.records.payload import encode
from engine.runs import HeldRuns
from engine.runtime.loading import PACK_TEXTS_MIN
from engine.runtime.packing import Packer
from engine.runtime.unsynced import UnsyncedPositions
from engine.runtime.writer import Writer

T = TypeVar("T")

# Work with waits in it: it yields what calls back when it may go on.
FurtherWork: TypeAlias = Generator[Callable[[Callable[[], None]], None], None, T]

# Positions are forgotten, once safe, when there are more than this.
_POSITIONS_MAX: Final = 1024


class Touched:
    """The position of the last frame of each stream. Records that name no stream belong to ""."""

    __slots__ = ("_by_stream", "_else", "_many")

    def __init__(self) -> None:
        self._by_stream: dict[str, int] = {}
        # The position of streams without one of their own: that of the last frame that removed all streams.
        self._else = 0
        self._many = _POSITIONS_MAX

    def note(self, records: Sequence[Record], position: int) -> None:
        """A frame of these records ends at `position`."""
        for record in records:
            self._by_stream[getattr(record, "stream", "")] = position
            if type(record) is RenameStream:
                self._by_stream[record.target] = position
            elif type(record) is RemoveAll:
                self._by_stream, self._else = {"": position}, position

    @property
    def are_many(self) -> bool:
        """Whether `forget` is due."""
        return len(self._by_stream) > self._many

    def forget(self, safe_upto: int) -> None:
        """Forget positions that are safe."""
        self._by_stream = {name: upto for name, upto in self._by_stream.items() if upto > safe_upto}
        self._many = max(_POSITIONS_MAX, 2 * len(self._by_stream))

    def upto(self, streams: Iterable[str] | None) -> int:
        """The position on which an answer about these streams depends; None means all streams.

        Forgotten positions are safe, and no answer shows what is in a frame that touches no stream.
        """
        if streams is None:
            return max(self._by_stream.values(), default=0)
        return max(map(self._by_stream.get, streams, repeat(self._else)), default=0)


# A frame's bytes beyond those of its entries; commands that log more (a claim of thousands) draw on the
# reserve.
_FRAME_OVERHEAD_BYTES: Final = 64 << 10
# Longer turns are reported; as Redis's slowlog-log-slower-than by default.
SLOW_TURN_S: Final = 0.010


class TurnResult(msgspec.Struct, frozen=True):
    """One turn: a reply or a refusal for each command, and the log position on which they depend.

    The reply of a single command may be `Blocked` or `Unfinished`.
    """

    replies: Sequence[Any]
    position: int
    turn: Turn


class Turns:
    """Runs commands on a keyspace, turn after turn, until `shut` refuses them all."""

    def __init__(
        self,
        keyspace: Keyspace,
        writer: Writer,
        clock: Clock,
        packer: Packer,
        volatile: UnsyncedPositions | None,
        events: Events,
    ) -> None:
        # The refusal of all commands, once there is one.
        self.shut: Callable[[], EngineError] | None = None
        # Called with the error of a turn that failed after it had changed something.
        self.on_broken: Callable[[BaseException], None] = lambda _: None
        self._events = events
        self._keyspace = keyspace
        self._writer = writer
        self._clock = clock
        self._packer = packer
        self._unsynced = volatile
        self._touched = Touched()
        # Whether a call of `_free` is scheduled.
        self._freeing = False

    def run_commands(
        self,
        commands: Sequence[Command],
        *,
        so_far: Any = None,  # noqa: ANN401 - each command has its own
        held: HeldRuns | None = None,
        together: bool = False,
        quotas: Sequence[Quota] = (),
    ) -> TurnResult:
        """Run one command, which may wait or be `Unfinished`, or several together, which may not. It may be
        `Missing` where runs that it `held` before are given.

        Raises EngineError if everything is refused: with nothing changed, or as `internal` if the turn failed
        half-way, and the engine with it.
        """

        def execute_now(now_ms: int) -> tuple[Sequence[Any], Turn]:
            if together:
                return execute_all(self._keyspace, commands, now_ms, held, looked=so_far is True)
            outcome = execute(self._keyspace, commands[0], now_ms, so_far, held)
            return [outcome.reply], outcome.turn

        return self._run(commands, execute_now, quotas)

    def run_each(
        self,
        commands: Sequence[Command],
        wakes: Callable[[Mapping[str, object]], bool],
        has_time: Callable[[], bool],
        quotas: Sequence[Quota],
        *,
        admit: bool,
    ) -> TurnResult:
        """Run the first of these commands as `execute_each` does, with one frame for all of them. Raises as
        `run`.

        With `admit` false, they were admitted before. The last reply may be `Unfinished`.
        """
        return self._run(
            commands,
            lambda now_ms: execute_each(self._keyspace, commands, now_ms, wakes, has_time),
            quotas,
            admit=admit,
        )

    def admits(self, commands: Sequence[Command], quotas: Sequence[Quota]) -> bool:
        """Whether there is room for all of these commands."""
        try:
            self.admit(commands, quotas)
        except EngineError:
            return False
        return True

    def _run(
        self,
        commands: Sequence[Command],
        execute_now: Callable[[int], tuple[Sequence[Any], Turn]],
        quotas: Sequence[Quota],
        *,
        admit: bool = True,
    ) -> TurnResult:
        self.admit(commands if admit else (), quotas)
        self._keyspace.notifies = self._events.changed is not None
        start, began_s = self._writer.staged_upto, self._clock.monotonic()
        try:
            replies, turn = execute_now(self._clock.wall_ms())
            # Its own frame is the last one that touched its streams: the replies depend on nothing later.
            position = self._stage(turn, start) or self.position_of(commands[: len(replies)])
        except DirtyTurnError as error:
            self._break_down(error)
            raise errors.internal() from None
        if turn.letters_refused:
            self._events.letters_refused(turn.letters_refused)
        took_s = self._clock.monotonic() - began_s
        if took_s > SLOW_TURN_S:
            self._events.slow_turn(commands[: len(replies)], took_s)
        return TurnResult(replies, position, turn)

    def _break_down(self, error: DirtyTurnError) -> None:
        """Memory is ahead of the log: refuse all further commands."""
        if self.shut is None:
            self.shut = errors.restarting
            self.on_broken(error.__cause__ or error)

    def admit(self, commands: Sequence[Command], quotas: Sequence[Quota] = ()) -> None:
        """Refuse commands before anything changes: no room in memory, in the caller's quotas or in the
        log.
        """
        if self.shut is not None:
            raise self.shut()
        try:
            check_memory(self._keyspace, commands)
            if quotas:
                check_quotas(self._keyspace, commands, quotas)
            changing = [command for command in commands if command.changes or self._expires(command)]
            if changing:
                wanted = sum([command.entry_bytes() for command in changing])
                makes_room = all(command.makes_room for command in changing)
                self._writer.ensure_room(2 * wanted + _FRAME_OVERHEAD_BYTES, makes_room=makes_room)
        except EngineError as refusal:
            raise name_kept_whole(refusal, self._keyspace, commands) from None

    def _expires(self, command: Command) -> bool:
        """Whether the command may find an expired stream: its removal is logged first."""
        if self._keyspace.lifetimes.next_ms is None:
            return False
        now_ms = self._clock.wall_ms()
        keys = map(self._keyspace.find, command.depends_on() or ())
        return any(key is not None and key.is_due(now_ms) for key in keys)

    def position_of(self, commands: Sequence[Command]) -> int:
        """The position of the last frame that these commands' replies may show."""
        if len(commands) == 1:
            return self._touched.upto(commands[0].depends_on())
        # Commands of a run mostly depend on the same streams.
        named = {command.depends_on() for command in commands}
        return max(map(self._touched.upto, named), default=0)

    def _stage(self, turn: Turn, start: int) -> int:
        """Put the turn's records into a frame. Returns its position, 0 if there are none."""
        if not turn.records:
            return 0
        try:
            position = self._writer.stage(encode(turn.records))
        except Exception as error:
            raise DirtyTurnError from error
        if self._unsynced is not None:
            self._unsynced.note_staged(turn.records, position)
        if turn.dead_lettered:
            self._events.dead_lettered(turn.dead_lettered)
        if turn.expired:
            self._events.expired(turn.expired)
        if turn.events:
            self._writer.call_when_safe(position, partial(self._announce, position, turn.events))
        self._touched.note(turn.records, position)
        if turn.auto_ms >= 0:
            self._writer.reserve(turn.auto_ms, turn.now_ms, start)
        if self._touched.are_many:
            self._touched.forget(self._writer.safe_upto)
        self._packer.begin_packing(texts_min=PACK_TEXTS_MIN)
        if self._keyspace.garbage and not self._freeing:
            self._freeing = True
            asyncio.get_running_loop().call_soon(self._free)
        return position

    def _announce(self, position: int, events: Sequence[tuple[str, str]]) -> None:
        # After the log has failed, nothing becomes safe any more.
        if self._events.changed is not None and self._writer.is_safe(position):
            self._events.changed(events)

    def _free(self) -> None:
        """Free removed data, a part in each loop cycle: until then its memory counts as used."""
        self._freeing = self.shut is None and self._keyspace.free_some()
        if self._freeing:
            asyncio.get_running_loop().call_soon(self._free)


class FurtherTurns:
    """In each cycle one of those that wait goes on: the one that has waited for longest."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call back in a cycle in which nothing else goes on."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._pass)
        self._waiting.append(go_on)

    def _pass(self) -> None:
        go_on = self._waiting.popleft()
        # It may wait again, behind the others.
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._pass)
        go_on()
