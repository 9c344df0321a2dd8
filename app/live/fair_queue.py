"""Fair queueing of frames and requests: callers take turns, and so do the connections of each.

Knows: which connections have frames that wait, how many frames of a caller are handled in one cycle of the
event loop, and what of its work is under way. Must never know: what a frame means, who a caller is.

    frame ─► may the caller go on? ─ yes ─► handled where it arrives
                 │ no
                 └► its connection waits ─► in each cycle: one frame of every caller, then another of each, …

A caller with a thousand connections has the share of a caller with one. Requests over HTTP, and commands over
Redis's protocol, are counted only for callers that have more connections than are served in a cycle; those of
any caller wait for the next cycle, all but the first one, when this one has lasted for 5 ms.
Each queue has a budget of its own: where two share one, the first to run in a cycle takes all of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from app.live.turns import CycleBudget

# Fewer than the answers that leave in one cycle (`ANSWERS_AT_ONCE_MAX` of the engine's writer): otherwise
# answers pile up, and those of other callers wait behind them.
FRAMES_A_CYCLE_MAX: Final = 32
# Work of one caller that is under way, in unanswered frames. Other callers wait for those answers at worst.
UNDER_WAY_MAX: Final = 256
# Requests cost less than frames where many are answered together, and one connection has one under way.
REQUESTS_A_CYCLE_MAX: Final = 128
# A request with a task of its own counts as this many: it takes several times as long as one without, and all
# such tasks run in the next cycle, however long that takes.
TASK_COST: Final = 4
# Subscriptions of one caller that are being opened. Each reads its streams, and waits for as long as their
# server is out of reach: they have a limit of their own, so that frames do not wait behind them.
OPENING_MAX: Final = 4


class Flow:
    """The frames of one caller, over all its connections."""

    __slots__ = (
        "__weakref__",
        "_cycle",
        "_cycle_number",
        "_handled",
        "_opening",
        "_queue",
        "_to_open",
        "_under_way",
        "_waiting",
        "connections",
    )

    def __init__(self, queue: "FairQueue", cycle: CycleBudget) -> None:
        self._queue = queue
        self._cycle = cycle
        # The cycle in which frames were handled last, and the number of them.
        self._cycle_number = -1
        self._handled = 0
        self._under_way = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._opening = 0
        # A dict keeps the order, and one that is withdrawn is found in it.
        self._to_open: dict[Callable[[], None], None] = {}
        # Connections of this caller that have a `ConnectionTurn`.
        self.connections = 0

    def may_go_on(self, *, counted: bool = True) -> bool:
        """Whether one more frame may be handled in this cycle: always the first one, unless too much work is
        under way. Those that are not `counted` are limited by time alone.
        """
        has_time = self._cycle.has_time()
        if self._cycle_number != self._cycle.number:
            self._cycle_number, self._handled = self._cycle.number, 0
        if self._under_way >= UNDER_WAY_MAX:
            return False
        is_within = not counted or self._handled < self._queue.a_cycle_max
        return not self._handled or (has_time and is_within)

    def may_pass(self, *, counted: bool = True) -> bool:
        """Whether a frame may be handled where it arrives: not before those that wait."""
        return not self._waiting and self.may_go_on(counted=counted)

    def note_handled(self, cost: int = 1) -> None:
        """Count a frame that is handled in this cycle, or what costs as much as several."""
        self._handled += cost

    def begin_work(self) -> None:
        """Count work that goes on behind its frame, until `end`."""
        self._under_way += 1

    def end_work(self) -> None:
        """Count it no longer."""
        self._under_way -= 1
        if self.is_ready:
            self._queue.add(self)

    def open(self, begin: Callable[[], None]) -> Callable[[], object]:
        """Call `begin` as soon as fewer than `OPENING_MAX` subscriptions are being opened.

        This one counts until `end_opening`. Calling what is returned withdraws a subscription that still
        waits.
        """
        self._to_open[begin] = None
        self._open_some()
        return lambda: self._to_open.pop(begin, None)

    def end_opening(self) -> None:
        """Count a subscription no longer: it is open, or will not be."""
        self._opening -= 1
        self._open_some()

    def _open_some(self) -> None:
        while self._to_open and self._opening < OPENING_MAX:
            begin = next(iter(self._to_open))
            del self._to_open[begin]
            self._opening += 1
            begin()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call back in the connection's turn, to handle one frame."""
        self._waiting.append(go_on)
        if self.is_ready:
            self._queue.add(self)

    @property
    def is_ready(self) -> bool:
        """Whether a connection waits that may go on in some cycle."""
        return bool(self._waiting) and self._under_way < UNDER_WAY_MAX

    def go_on(self) -> None:
        """Let the connection that has waited for longest handle a frame."""
        self._waiting.popleft()()


class FairQueue:
    """The flows of all callers."""

    def __init__(self, cycle: CycleBudget, a_cycle_max: int) -> None:
        self._cycle = cycle
        # Of one caller.
        self.a_cycle_max = a_cycle_max
        self._flows: WeakValueDictionary[str, Flow] = WeakValueDictionary()
        # A dict keeps the order of arrival.
        self._ready: dict[Flow, None] = {}
        self._is_due = False

    def flow(self, caller: str) -> Flow:
        """The flow of a caller, kept for as long as one of its connections has it."""
        flow = self._flows.get(caller)
        if flow is None:
            flow = self._flows[caller] = Flow(self, self._cycle)
        return flow

    def add(self, flow: Flow) -> None:
        """Let it go on in the next cycle."""
        self._ready[flow] = None
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        ready, self._ready = self._ready, {}
        in_turn = deque(ready)
        while in_turn:
            flow = in_turn.popleft()
            if not flow.is_ready:
                continue
            if flow.may_go_on():
                _isolate(flow.go_on)
                in_turn.append(flow)
            else:
                self.add(flow)


def _isolate(go_on: Callable[[], None]) -> None:
    """Let a connection go on; if that fails, those behind it have their turn all the same."""
    try:
        go_on()
    except Exception as error:  # noqa: BLE001 - others wait behind it
        failure = {"message": "a connection failed in its turn", "exception": error}
        asyncio.get_running_loop().call_exception_handler(failure)


class ConnectionTurn:
    """The place of one connection among those of its caller. `go_on` is called when it is its turn."""

    __slots__ = ("_go_on", "_queue", "flow", "has_turn", "is_waiting")

    def __init__(self, queue: FairQueue, caller: str, go_on: Callable[[], None]) -> None:
        self._queue = queue
        self._go_on = go_on
        # That of its caller; None once the connection is gone.
        self.flow: Flow | None = None
        # Whether the next request has been let begin already.
        self.has_turn = False
        self.is_waiting = False
        self.pass_to(caller)

    def pass_to(self, caller: str) -> None:
        """Be another caller's from now on."""
        self.leave()
        self.flow = self._queue.flow(caller)
        self.flow.connections += 1

    def leave(self) -> None:
        """Take part no longer: the connection is gone. May be called again."""
        if self.flow is not None:
            self.flow.connections -= 1
            self.flow = None

    def may_go_on(self, cost: int = 1) -> bool:
        """Whether the connection's next request may begin. Otherwise `go_on` is called once it may."""
        has_turn, self.has_turn = self.has_turn, False
        flow = self.flow
        # One connection alone has one piece of work under way.
        if flow is None or flow.connections <= min(1, self._queue.a_cycle_max):
            return True
        counted = flow.connections > self._queue.a_cycle_max
        if not has_turn and not flow.may_pass(counted=counted):
            if not self.is_waiting:
                self.is_waiting = True
                flow.wait(self._take_turn)
            return False
        flow.note_handled(cost)
        return True

    def note(self, cost: int) -> None:
        """What was begun costs so much more."""
        if self.flow is not None:
            self.flow.note_handled(cost)

    def _take_turn(self) -> None:
        self.is_waiting, self.has_turn = False, True
        try:
            self._go_on()
        finally:
            self.has_turn = False
