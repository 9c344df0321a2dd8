"""Which function runs which command.

Knows: one function for each type of command, and how those that wait are looked at meanwhile.
Must never know: what any of them does.

    @runs(types.XLen)
    def xlen(turn: Turn, command: types.XLen) -> int: …

    @runs(types.XDel)
    def xdel(turn: Turn, command: types.XDel) -> Steps[int]:
        …  selects what it does, which takes its cost of the turn: looks into nodes, and changes nothing
        yield
        …  emits it, and looks into none
"""

from collections.abc import Callable, Generator
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from engine.capability import Capability
from engine.commands.base import BlockingCommand, Command
from engine.commands.turn import Look, Turn
from engine.parts.schedules import ScheduleIndex
from engine.replies import Closed, Dropped, Reply

C = TypeVar("C", bound=Command)
B = TypeVar("B", bound=BlockingCommand)
R = TypeVar("R")
E = TypeVar("E", bound=Closed | bool | int)

# A command that looks into nodes and changes something; one that ends before it yields changes nothing.
Steps: TypeAlias = Generator[None, None, R]


class Waiting(NamedTuple, Generic[B]):
    """How one kind of command waits.

    `is_ready` returns whether running it again may find something, in the queue that was signalled (None: in
    any): cheap, changes nothing. `end` gives its reply when its time is over. `retry_at_ms` is when (wall
    clock) it may find something without any write, None for never.
    """

    is_ready: Callable[[Look, B, str | None], bool]
    end: Callable[[Turn, B], Reply]
    retry_at_ms: Callable[[Look, B], int | None]


RUN: Final[dict[type[Command], Callable[[Turn, Any], Any]]] = {}
# Those that run in steps.
STEPS: Final[set[type[Command]]] = set()
# Of parts in which something falls due, the command that does it as long as it has time.
DUE: Final[dict[type[Capability], Callable[[Callable[[], bool]], Command]]] = {}
WAIT: Final[dict[type[Command], Waiting[Any]]] = {}


def runs(kind: type[C]) -> Callable[[Callable[[Turn, C], R]], Callable[[Turn, C], R]]:
    """Enter the function that runs commands of this type."""

    def enter(function: Callable[[Turn, C], R]) -> Callable[[Turn, C], R]:
        assert kind not in RUN, "one function a command"
        RUN[kind] = function
        if isgeneratorfunction(function):
            STEPS.add(kind)
        return function

    return enter


def ends_streams(function: Callable[[Turn, C], E]) -> Callable[[Turn, C], E | Dropped]:
    """Have the reply of a command that may end streams say how many schedules went with them, if any did."""

    @wraps(function)
    def counted(turn: Turn, command: C) -> E | Dropped:
        before = dropped_of(turn)
        return count_dropped(turn, before, function(turn, command))

    return counted


def dropped_of(turn: Turn) -> int:
    """How many schedules have gone with their streams by now."""
    return ScheduleIndex.of(turn.keyspace).dropped


def count_dropped(turn: Turn, before: int, reply: E) -> E | Dropped:
    """The same of a reply; `before`, so many had gone."""
    dropped = dropped_of(turn) - before
    return Dropped(reply, dropped) if dropped else reply


def waits(kind: type[B], waiting: Waiting[B]) -> None:
    """Enter how commands of this type wait."""
    WAIT[kind] = waiting
