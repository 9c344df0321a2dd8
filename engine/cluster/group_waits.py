"""Group reads that wait: one lane for each stream and group, served in order of arrival.

Knows: who waits in which lane, since when and until when; that one read at a time runs for a lane.
Must never know: how a read is sent, what its entries are.

    stream s, group g    waiter 1 ◄── a change of s: one XREADGROUP without BLOCK, for the first waiter alone
                         waiter 2     then for the next one, as long as something was found
                         waiter 3

No waiter has a connection of its own, so no entry goes to a client that has left: what a read brings for a
waiter that is gone is taken back at once, and the next waiter gets it.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from engine import errors
from engine.cluster.wakeups import Wakeups, Watch
from engine.commands.base import Command, StreamCommand
from engine.commands.group_reading import pauses_anew
from engine.commands.reading import may_end
from engine.commands.types import XAck, XAckDel, XGroupDelConsumer, XReadGroup
from engine.commands.weir_commands import Acknowledge, DeadLetterEntries, DeleteConsumer
from engine.errors import EngineError
from engine.read_handle import taking_back
from engine.replies import GroupRead

Result = GroupRead | EngineError
Done = Callable[[Result], None]
# Runs a read that does not wait, and calls back once.
Run = Callable[[XReadGroup, Done], None]
# Runs a command that takes back what a read brought, and wakes its lane.
TakeBack = Callable[[StreamCommand], None]

_LaneKey = tuple[str, str]
# A claiming read looks again no sooner, and no later while it waits.
_CLAIM_S_MIN: Final = 0.1
_CLAIM_S_MAX: Final = 5.0
# What may leave nothing pending in a group.
_SETTLING: Final = (Acknowledge, XAck, XAckDel, XGroupDelConsumer, DeleteConsumer, DeadLetterEntries)


class GroupWaiter:
    """A read that waits; `cancel` it when its client has gone."""

    __slots__ = ("_lanes", "_timers", "command", "done", "is_over", "is_reading", "is_timed_out")

    def __init__(self, lanes: "GroupWaits", command: XReadGroup, done: Done) -> None:
        self.command = command
        self.done = done
        self.is_reading = self.is_over = self.is_timed_out = False
        self._lanes = lanes
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def keys(self) -> list[_LaneKey]:
        """Its lanes."""
        return [(stream, self.command.group) for stream in dict.fromkeys(self.command.named_streams())]

    def cancel(self) -> None:
        """Wait no longer, and take nothing: what is on its way is taken back when it has come."""
        self.is_over = True
        self._lanes.leave(self)

    def end(self) -> None:
        """End the wait as its time would."""
        self.is_timed_out = True
        # What is on its way is taken still.
        if not self.is_reading:
            self.answer(self._lanes.nothing_for(self))

    def answer(self, result: Result) -> None:
        """Call back with the result, once."""
        if not self.is_over:
            self.is_over = True
            self._lanes.leave(self)
            self.done(result)

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back unless it is over by then."""
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, callback))

    def stop_timers(self) -> None:
        """Nothing more happens for it by the clock."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


class _Lane:
    """The waiters of one stream and group, first come first served; `busy` while a read for one runs."""

    __slots__ = ("again", "busy", "is_closed", "is_paused", "waiters", "watch")

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.waiters: dict[GroupWaiter, None] = {}
        self.busy = False
        # The stream has changed while a read ran.
        self.again = False
        # The stream is closed, and the group has read all of it.
        self.is_closed = False
        # Whether the group is paused, as the last read has found it; None before the first one.
        self.is_paused: bool | None = None


class GroupWaits:
    """All group reads of this process that wait. Belongs to one event loop."""

    def __init__(self, wakeups: Wakeups, run: Run, take_back: TakeBack) -> None:
        self._wakeups = wakeups
        self._run = run
        self._take_back = take_back
        self._lanes: dict[_LaneKey, _Lane] = {}
        self._waiters: set[GroupWaiter] = set()
        self._ended: EngineError | None = None

    def __len__(self) -> int:
        """How many reads wait."""
        return len(self._waiters)

    def waiting(self, stream: str) -> set[tuple[str, str]]:
        """The (group, consumer) pairs that wait for entries of the stream."""
        return {
            (waiter.command.group, waiter.command.consumer)
            for key, lane in self._lanes.items()
            if key[0] == stream
            for waiter in lane.waiters
        }

    def begin_read(self, command: XReadGroup, done: Done) -> GroupWaiter:
        """Read behind those that wait already, and wait for `block_ms`. `done` is called once, never before
        this returns; not at all for a waiter that is cancelled.
        """
        waiter = GroupWaiter(self, command, done)
        loop = asyncio.get_running_loop()
        if self._ended is not None:
            loop.call_soon(waiter.answer, self._ended)
            return waiter
        self._waiters.add(waiter)
        for key in waiter.keys:
            lane = self._lanes.get(key)
            if lane is None:
                watch = self._wakeups.watch(key[0], partial(self._pump, key))
                lane = self._lanes[key] = _Lane(watch)
            lane.waiters[waiter] = None
            loop.call_soon(self._pump, key)
        # Behind others it does not read.
        loop.call_soon(self._tell_of_pause, waiter)
        if command.block_ms is not None:
            waiter.after(command.block_ms / 1000, waiter.end)
        if command.claim_min_idle_ms is not None:
            self._claim_later(waiter)
        return waiter

    def wake(self, keys: Iterable[_LaneKey]) -> None:
        """Something was released, or a group removed: which sends no notification."""
        for key in keys:
            self._pump(key)

    def note_run(self, command: Command) -> None:
        """What it settled may have been the last that was pending of a closed stream, which nothing says."""
        if isinstance(command, _SETTLING):
            key = (command.stream, command.group)
            lane = self._lanes.get(key)
            if lane is not None and lane.is_closed:
                self._pump(key)

    def readers(self) -> tuple[dict[str, set[tuple[str, str]]], dict[str, set[tuple[str, str]]]]:
        """By stream, group and consumer of each that waits: the first ones, for which a read looks now and
        then, and those behind them.
        """
        first: dict[str, set[tuple[str, str]]] = {}
        behind: dict[str, set[tuple[str, str]]] = {}
        for (stream, group), lane in self._lanes.items():
            for place, waiter in enumerate(lane.waiters):
                readers = behind if place else first
                readers.setdefault(stream, set()).add((group, waiter.command.consumer))
        return first, behind

    def nothing_for(self, waiter: GroupWaiter) -> GroupRead:
        """What a read is answered that was given nothing."""
        lanes = [(key[0], self._lanes.get(key)) for key in waiter.keys]
        paused = tuple(stream for stream, lane in lanes if lane is not None and lane.is_paused)
        return GroupRead([], paused=paused)

    def end(self) -> None:
        """Answer every read that waits, now and from now on, with `draining`."""
        self._ended = errors.closing()
        for waiter in list(self._waiters):
            waiter.answer(self._ended)

    def leave(self, waiter: GroupWaiter) -> None:
        """Take a waiter off its lanes."""
        waiter.stop_timers()
        self._waiters.discard(waiter)
        for key in waiter.keys:
            lane = self._lanes.get(key)
            if lane is not None:
                lane.waiters.pop(waiter, None)
                self._drop_if_empty(key, lane)

    def _drop_if_empty(self, key: _LaneKey, lane: _Lane) -> None:
        if not lane.waiters and not lane.busy and self._lanes.get(key) is lane:
            del self._lanes[key]
            lane.watch.close()

    def _claim_later(self, waiter: GroupWaiter) -> None:
        """Entries become idle without any change of the stream."""
        idle_s = (waiter.command.claim_min_idle_ms or 0) / 1000

        def look() -> None:
            for key in waiter.keys:
                self._pump(key)
            self._claim_later(waiter)

        waiter.after(min(max(idle_s, _CLAIM_S_MIN), _CLAIM_S_MAX), look)

    # --- serving a lane

    def _pump(self, key: _LaneKey) -> None:
        """Let the first waiter read, unless a read for the lane runs."""
        lane = self._lanes.get(key)
        if lane is None:
            return
        if lane.busy:
            lane.again = True
            return
        waiter = next(iter(lane.waiters), None)
        if waiter is None or waiter.is_reading:
            # It reads for another lane of its own, and looks here again after that.
            lane.again = True
            return
        lane.busy = waiter.is_reading = True
        lane.again = False
        self._run(waiter.command.to_nonblocking(), partial(self._take, key, lane, waiter))

    def _take(self, key: _LaneKey, lane: _Lane, waiter: GroupWaiter, result: Result) -> None:
        lane.busy = waiter.is_reading = False
        has_entries = isinstance(result, GroupRead) and bool(result.streams)
        if isinstance(result, GroupRead):
            self._note_paused(waiter, result)
        if waiter.is_over and isinstance(result, GroupRead):
            for back in taking_back(waiter.command, result):
                self._take_back(back)
        elif has_entries or isinstance(result, EngineError) or waiter.is_timed_out:
            waiter.answer(result)
        else:
            lane.is_closed = any(end.stream == key[0] for end in result.closed)
            may_wait = not may_end(waiter.command.until, result.closed, len(waiter.command.streams))
            if not may_wait or pauses_anew(waiter.command, result.paused):
                waiter.answer(result)
            elif result.unfinished:
                # It has passed over what is too old, and had to end before it came to the rest.
                lane.again = True
        self._drop_if_empty(key, lane)
        for place in waiter.keys:
            beside = self._lanes.get(place)
            # Where something was found there may be more, for the next one.
            if beside is not None and (beside.again or waiter.is_over):
                asyncio.get_running_loop().call_soon(self._pump, place)

    def _note_paused(self, waiter: GroupWaiter, result: GroupRead) -> None:
        """What a read has found of its group holds for those behind it."""
        for key in waiter.keys:
            lane, is_paused = self._lanes.get(key), key[0] in result.paused
            if lane is not None and lane.is_paused is not is_paused:
                lane.is_paused = is_paused
                for other in list(lane.waiters):
                    if other is not waiter:
                        self._tell_of_pause(other)

    def _tell_of_pause(self, waiter: GroupWaiter) -> None:
        """Answer a reader that is to hear that its group is paused, or is not any more."""
        lanes = [self._lanes.get(key) for key in waiter.keys]
        is_known = all(lane is not None and lane.is_paused is not None for lane in lanes)
        nothing = self.nothing_for(waiter)
        if is_known and not waiter.is_reading and pauses_anew(waiter.command, nothing.paused):
            waiter.answer(nothing)
