"""A figure of the table: what was measured, beside which peer, how, and the goal.

Knows: how rounds become one figure, and how a figure reads. Must never know: how anything is measured.
"""

import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final, ParamSpec, TypeVar

import msgspec

P = ParamSpec("P")
T = TypeVar("T")

# Ours and theirs, of rounds that were neighbours.
Pairs = Sequence[tuple[float, float]]

HEAD: Final = (
    "| | work | Weir | peer | Weir ÷ peer | goal | | method |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)


class Method(msgspec.Struct):
    """What decides what a figure means; printed with it."""

    rounds: int
    seconds: float
    standing_entries: int
    tails: int
    entries: int

    @property
    def short_rounds(self) -> int:
        """Rounds of those loads that take two seconds: many, for neighbours come and go."""
        return 3 * self.rounds

    @property
    def short_seconds(self) -> int:
        """How long one of them takes; wrk counts whole seconds."""
        return max(1, round(self.seconds / 4))


# What is published is at least this.
FULL: Final = Method(rounds=3, seconds=8, standing_entries=2_000_000, tails=1_000, entries=1_000_000)
# To see that everything runs.
QUICK: Final = Method(rounds=1, seconds=2, standing_entries=50_000, tails=100, entries=50_000)


class Goal(msgspec.Struct):
    """What a figure is to be: `least` is where less misses it, otherwise more does."""

    limit: float
    least: bool

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.limit:g}"

    def is_met(self, value: float) -> bool:
        """Whether the figure is as good as that."""
        return value >= self.limit if self.least else value <= self.limit


def at_least(limit: float) -> Goal:
    """No less than this."""
    return Goal(limit, least=True)


def at_most(limit: float) -> Goal:
    """No more than this."""
    return Goal(limit, least=False)


class Figure(msgspec.Struct):
    """One line of the table. The goal is for `ratio`, or for `ours` where there is no peer."""

    part: str
    work: str
    unit: str
    ours: float
    goal: Goal
    method: str
    peer: str = ""
    theirs: float | None = None
    ratio: float | None = None
    # Of the rounds, the one that neighbours on the machine disturbed least: ours, theirs and their ratio.
    best: float | None = None
    their_best: float | None = None
    best_ratio: float | None = None

    @property
    def value(self) -> float:
        """What the goal is for."""
        return self.ours if self.ratio is None else self.ratio

    def line(self) -> str:
        """The line, in Markdown."""
        ours = f"{_short(self.ours)} {self.unit}{self._in_brackets(self.best)}"
        theirs = ""
        if self.theirs is not None:
            theirs = f"{self.peer} {_short(self.theirs)}{self._in_brackets(self.their_best)}"
        ratio = "" if self.ratio is None else f"**{self.ratio:.2f}**{self._in_brackets(self.best_ratio)}"
        met = "met" if self.goal.is_met(self.value) else "missed"
        cells = (self.part, self.work, ours, theirs, ratio, str(self.goal), met, self.method)
        return f"| {' | '.join(cells)} |"

    @staticmethod
    def _in_brackets(best: float | None) -> str:
        return "" if best is None else f" ({_short(best)})"


def _short(number: float) -> str:
    if number >= 1_000:
        return f"{number:,.0f}"
    return f"{number:.0f}" if number >= 100 else f"{number:.2f}"


def beside(part: str, work: str, unit: str, pairs: Pairs, peer: str, goal: Goal, method: str) -> Figure:
    """Medians, and the median of the ratios of neighbouring rounds; of several rounds also the best of each
    side.
    """
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(our / their for our, their in pairs)
    figure = Figure(part, work, unit, ours, goal, method, peer, theirs, ratio)
    if len(pairs) > 1:
        figure.best, figure.their_best = (_best(column, unit) for column in zip(*pairs, strict=True))
        figure.best_ratio = figure.best / figure.their_best
    return figure


def alone(part: str, work: str, unit: str, values: Sequence[float], goal: Goal, method: str) -> Figure:
    """The median of the rounds, and the best of several; the goal is absolute."""
    figure = Figure(part, work, unit, statistics.median(values), goal, method)
    if len(values) > 1:
        figure.best = _best(values, unit)
    return figure


def _best(values: Sequence[float], unit: str) -> float:
    """The highest rate, or the least of what is taken."""
    return max(values) if unit.endswith(("/s", "a second")) else min(values)


def apart(run: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it in a process of its own, which holds nothing yet."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, *args, **kwargs).result()
