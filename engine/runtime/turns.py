"""Running commands: one way for all callers.

Knows: when the log has no room for a command, that a turn is one frame, and on which frame a reply depends.
Must never know: callers, waiting reads, what a command means.

    run → admit: memory, room in the log │ nothing has changed
        → look up, emit, apply           │ `engine.commands.execution`
        → stage: one frame of the turn's records
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from engine import errors
from engine.clock import Clock
from engine.commands import Command
from engine.commands.execution import (
    DirtyTurnError,
    Turn,
    check_memory,
    execute,
    execute_all,
)
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.records import encode
from engine.runtime.loading import PACK_TEXTS_MIN
from engine.runtime.packing import Packer
from engine.runtime.touched import Touched
from engine.runtime.unsynced import UnsyncedPositions
from engine.runtime.writer import Writer

# A frame's bytes beyond those of its entries; commands that log more (a claim of thousands) draw on the
# reserve.
_FRAME_OVERHEAD_BYTES: Final = 64 << 10


class TurnResult(msgspec.Struct, frozen=True):
    """One turn: a reply or a refusal for each command, and the log position on which they depend.

    Where one command ran alone its reply may be `Blocked` or `Unfinished`.
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
    ) -> None:
        # The refusal of all commands, once there is one.
        self.shut: Callable[[], EngineError] | None = None
        # Called with the error of a turn that failed after it had changed something.
        self.on_broken: Callable[[BaseException], None] = lambda _: None
        # Called after a turn that made dead letters: stream, group, ID and reason of each.
        self.on_dead_lettered: Callable[[Sequence[tuple[str, str, int, str]]], None] | None = None
        self._keyspace = keyspace
        self._writer = writer
        self._clock = clock
        self._packer = packer
        self._unsynced = volatile
        self._touched = Touched()
        # Whether a call of `_free` is scheduled.
        self._freeing = False

    def run(
        self,
        commands: Sequence[Command],
        *,
        so_far: Any = None,  # noqa: ANN401 - each command has its own
        together: bool = False,
    ) -> TurnResult:
        """Run one command, which may wait or be `Unfinished`, or several together, which may not.

        Raises EngineError where all of it is refused: with nothing changed, or as `internal` where the turn
        failed half-way and the engine with it.
        """
        self.admit(commands)
        now_ms = self._clock.wall_ms()
        start = self._writer.staged_upto
        replies: Sequence[Any]
        try:
            if together:
                replies, turn = execute_all(self._keyspace, commands, now_ms)
            else:
                outcome = execute(self._keyspace, commands[0], now_ms, so_far)
                replies, turn = [outcome.reply], outcome.turn
            # A frame of its own is the last that touched its streams: the replies depend on nothing later.
            position = self._stage(turn, start) or self.position_of(commands)
        except DirtyTurnError as error:
            self._break_down(error)
            raise errors.internal() from None
        return TurnResult(replies, position, turn)

    def _break_down(self, error: DirtyTurnError) -> None:
        """Memory is ahead of the log: run nothing any more."""
        if self.shut is None:
            self.shut = errors.restarting
            self.on_broken(error.__cause__ or error)

    def admit(self, commands: Sequence[Command]) -> None:
        """Refuse what has no room in memory or in the log, or comes too late, before anything changes."""
        if self.shut is not None:
            raise self.shut()
        check_memory(self._keyspace, commands)
        wanted = [command.entry_bytes() for command in commands if command.changes]
        if wanted:
            self._writer.ensure_room(2 * sum(wanted) + _FRAME_OVERHEAD_BYTES)

    def position_of(self, commands: Sequence[Command]) -> int:
        """The position of the last frame that the replies of these commands may show."""
        return max([self._touched.upto(command.depends_on()) for command in commands], default=0)

    def _stage(self, turn: Turn, start: int) -> int:
        """Put the turn's records into a frame; its position, 0 where there are none."""
        if not turn.records:
            return 0
        try:
            position = self._writer.stage(encode(turn.records))
        except Exception as error:
            raise DirtyTurnError from error
        if self._unsynced is not None:
            self._unsynced.note_staged(turn.records, position)
        if turn.dead_lettered and self.on_dead_lettered is not None:
            self.on_dead_lettered(turn.dead_lettered)
        self._touched.note(turn.records, position)
        if turn.auto_ms >= 0:
            self._writer.reserve(turn.auto_ms, turn.now_ms, start)
        if self._touched.are_many:
            self._touched.forget(self._writer.safe_upto)
        self._packer.begin(texts_min=PACK_TEXTS_MIN)
        if self._keyspace.garbage and not self._freeing:
            self._freeing = True
            asyncio.get_running_loop().call_soon(self._free)
        return position

    def _free(self) -> None:
        """Free what was removed, a part in each turn of the loop: only then is there room for more."""
        self._freeing = self.shut is None and self._keyspace.free_some()
        if self._freeing:
            asyncio.get_running_loop().call_soon(self._free)
