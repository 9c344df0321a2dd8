"""Reads that wait: blocked, woken, run again, answered or cancelled.

Knows: deadlines, and that waking a read means running it again.
Must never know: frames, when a reply may leave, callers.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from engine import errors
from engine.clock import Clock
from engine.commands.base import BlockingCommand, Command
from engine.commands.execution import Blocked, Missing, Unfinished, give_up, retry_at_ms
from engine.commands.weir_commands import EndWait
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.read_handle import ReadHandle
from engine.replies import Reply
from engine.runs import HeldRuns
from engine.runtime.fetching import Fetcher
from engine.runtime.turns import Turns
from engine.runtime.wake_queue import ANSWERED_AT_ONCE_MAX, WakeQueue
from engine.waiters import Waiter, WaiterGroup, Waiters

WAITERS_MAX: Final = 20_000
# Runs that are held for commands of the engine's own which run again.
_HELD_RUNS_MAX: Final = 64


class WaitResult(NamedTuple):
    """What a read found, and the log position on which the result depends."""

    reply: Reply | EngineError
    position: int


Ticket = Callable[[WaitResult], None]


class Waits:
    """All waiting reads, on one event loop."""

    def __init__(self, keyspace: Keyspace, turns: Turns, clock: Clock, fetcher: Fetcher) -> None:
        self._keyspace = keyspace
        self._turns = turns
        self._clock = clock
        self._fetcher = fetcher
        # Those for which the disk reads, and of which kinds there are commands of the engine's own for which
        # it does.
        self._reading: dict[Waiter[Ticket], None] = {}
        self._unasked: set[type[Command]] = set()
        self._waiters: Waiters[Ticket] = Waiters()
        self.serving: WakeQueue[Ticket] = WakeQueue(
            keyspace, self._waiters, clock, self._run_again, self._served
        )
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_at: float | None = None
        self._ending = False

    def __len__(self) -> int:
        return len(self._waiters)

    def waits_for(self, streams: Mapping[str, object]) -> bool:
        """Whether a read waits for one of the streams."""
        return self._waiters.waits_for(streams)

    # --- coming ---------------------------------------------------------------------------------------------

    def block(self, blocked: Blocked, ticket: Ticket, handle: ReadHandle) -> None:
        """Have `ticket` called when the read is served; `handle` ends the wait. Raises EngineError if it may
        not wait.
        """
        if self._ending:
            raise errors.closing()
        if len(self._waiters) >= WAITERS_MAX:
            raise errors.too_many_waiters()
        waiter = Waiter(blocked, ticket, self._clock.monotonic() + blocked.block_ms / 1000)
        self._block(waiter)
        self._set_deadline()
        handle.wait(partial(self._end_early, waiter), partial(self._leave, waiter))

    def _block(self, waiter: Waiter[Ticket]) -> None:
        waiter_group = self._waiters.add(waiter)
        if waiter_group is not None:
            self._look_again(waiter_group)

    # --- being served ---------------------------------------------------------------------------------------

    def _run_again(self, waiter: Waiter[Ticket], _: int) -> dict[str, object]:
        """Run a blocked read again, and answer it or leave it blocked. Returns the streams that it
        signals.
        """
        if waiter in self._reading:
            self._waiters.add(waiter)
            return {}
        return self._run_with(waiter, {})

    def _run_with(self, waiter: Waiter[Ticket], held: HeldRuns) -> dict[str, object]:
        try:
            ran = self._turns.run_commands((waiter.blocked.command,), held=held)
        except EngineError as refusal:
            self._answer(waiter, refusal, 0)
            return {}
        reply: Reply | Blocked | Unfinished | EngineError = ran.replies[0]
        if isinstance(reply, Missing):
            # It waits as before, until the disk has read what it needs.
            self._waiters.add(waiter)
            self._reading[waiter] = None
            self._fetcher.wait_unasked(reply, partial(self._go_on, waiter, reply.held))
            return ran.turn.signalled
        assert not isinstance(reply, Unfinished), "reads take one turn"
        if isinstance(reply, Blocked):
            waiter.blocked = reply
            self._block(waiter)
            self._set_deadline()
        else:
            self._answer(waiter, reply, ran.position)
        return ran.turn.signalled

    def _go_on(self, waiter: Waiter[Ticket], held: HeldRuns) -> None:
        del self._reading[waiter]
        if not waiter.gone:
            self.serving.serve(self._run_with(waiter, held), self._clock.wall_ms())

    def _served(self, waiter_group: WaiterGroup[Ticket] | None) -> None:
        if waiter_group is None:
            self._set_deadline()
        else:
            self._look_again(waiter_group)

    def _look_again(self, waiter_group: WaiterGroup[Ticket]) -> None:
        """Schedule the group's reads for the time when entries may become claimable."""
        now_ms = self._clock.wall_ms()
        due_ms = [retry_at_ms(self._keyspace, waiter.blocked, now_ms) for waiter in waiter_group.front()]
        at_ms = min((at_ms for at_ms in due_ms if at_ms is not None), default=None)
        if at_ms is not None:
            self._waiters.retry(waiter_group, self._clock.monotonic() + max(0, at_ms - now_ms) / 1000)

    def _answer(self, waiter: Waiter[Ticket], reply: Reply | EngineError, position: int) -> None:
        self._waiters.remove(waiter)
        waiter.ticket(WaitResult(reply, position))

    # --- going ----------------------------------------------------------------------------------------------

    def _end_early(self, waiter: Waiter[Ticket]) -> None:
        if not waiter.gone:
            self._give_up(waiter, self._clock.wall_ms())

    def _leave(self, waiter: Waiter[Ticket]) -> None:
        """Its caller has left: it gets nothing, and no answer."""
        if not waiter.gone:
            self._waiters.remove(waiter)
            self._end(waiter.blocked.command)

    def _give_up(self, waiter: Waiter[Ticket], now_ms: int, held: HeldRuns | None = None) -> None:
        """End a read whose time is over. The end of another wait may have been the turn that failed."""
        if self._turns.shut is not None:
            self._answer(waiter, self._turns.shut(), 0)
            return
        command = waiter.blocked.command
        reply = give_up(self._keyspace, waiter.blocked, now_ms, {} if held is None else held)
        if isinstance(reply, Missing):
            self._waiters.remove(waiter)
            go_on = partial(self._give_up, waiter, now_ms, reply.held)
            self._fetcher.wait_unasked(reply, go_on)
            return
        self._answer(waiter, reply, self._turns.position_of((command,)))
        self._end(command)

    def _end(self, command: BlockingCommand) -> None:
        """Where silence is counted it counts from the end of the wait."""
        reader = command.reader()
        if reader is not None:
            group, consumer = reader
            self.run_unasked(EndWait(streams=command.named_streams(), group=group, consumer=consumer))

    def run_unasked(self, command: Command) -> object:
        """Run a command of the engine's own, and serve the reads that it wakes. Returns its reply, None if it
        is refused. What it would have to wait for the disk for is done when that was read.
        """
        return self._run_unasked(command, {})

    def _run_unasked(self, command: Command, held: HeldRuns) -> object:
        try:
            ran = self._turns.run_commands((command,), held=held)
        except EngineError:
            return None
        self.serving.serve(ran.turn.signalled, ran.turn.now_ms)
        missing, reply = ran.turn.missing, ran.replies[0]
        assert not isinstance(reply, Missing), "what looks into runs does so in steps"
        if missing is not None and type(command) not in self._unasked:
            self._unasked.add(type(command))
            runs = {run.place: run for runs in missing.values() for run in runs}
            # What a step has looked into stays for the next try of it.
            waits = Missing(None, list(runs.values()), held if len(held) <= _HELD_RUNS_MAX else {})
            again = msgspec.structs.replace(command, again=tuple(missing))
            self._fetcher.wait_unasked(waits, partial(self._run_unasked_again, again, waits.held))
        return reply

    def _run_unasked_again(self, command: Command, held: HeldRuns) -> None:
        self._unasked.discard(type(command))
        self._run_unasked(command, held)

    def readers(self, stream: str) -> Collection[tuple[str, str]]:
        """The (group, consumer) pairs that wait for entries of the stream."""
        waiters = (
            waiter for waiter_group in self._waiters.waiter_groups(stream) for waiter in waiter_group.waiters
        )
        readers = {waiter.blocked.command.reader() for waiter in waiters}
        return {reader for reader in readers if reader is not None}

    def refuse_all(self, refusal: Callable[[], EngineError]) -> Sequence[BlockingCommand]:
        """Answer all waiting reads with a refusal. Returns their commands."""
        waiters = self._waiters.all_waiters()
        for waiter in waiters:
            self._answer(waiter, refusal(), 0)
        return [waiter.blocked.command for waiter in waiters]

    def end_all(self) -> None:
        """Answer all waiting reads, and later ones that would wait, with `draining`. Reads that were served
        already are answered as usual.
        """
        self.serving.answer_all_plain()
        self._ending = True
        for command in self.refuse_all(errors.closing):
            self._end(command)

    # --- deadlines ------------------------------------------------------------------------------------------

    def cancel_timer(self) -> None:
        """Let no more deadlines pass."""
        if self._deadline is not None:
            self._deadline.cancel()

    def _set_deadline(self) -> None:
        due = self._waiters.next_due()
        if due is None or (self._deadline_at is not None and self._deadline_at <= due):
            # A timer that fires early is set again: most reads are answered long before their deadline.
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline_at = due
        delay = max(0.0, due - self._clock.monotonic())
        self._deadline = asyncio.get_running_loop().call_later(delay, self._pass_deadlines)

    def _pass_deadlines(self) -> None:
        self._deadline = self._deadline_at = None
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        waiters, waiter_groups = self._waiters.due(now, ANSWERED_AT_ONCE_MAX)
        for waiter in waiters:
            self._give_up(waiter, now_ms)
        self.serving.serve(
            {stream: None for waiter_group in waiter_groups for stream in waiter_group.streams}, now_ms
        )
        for waiter_group in waiter_groups:
            self._look_again(waiter_group)
        self._set_deadline()
