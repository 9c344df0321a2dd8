"""The plots of a run: how latencies are spread, and how a fan-out compares.

Knows: results as `bench.page` collects them, matplotlib. Must never know: how anything is measured.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench import fanout, push
from bench.push import NAMES

mpl.use("Agg")

COLOURS: Final = {
    "weir": "#0b7285",
    "longpoll": "#66a80f",
    "redis": "#c92a2a",
    "with": "#0b7285",
    "without": "#868e96",
    "nats": "#5f3dc4",
}


def curve(axes: Axes, found: push.Rounds, title: str) -> None:
    """Latency by quantile, the tail drawn out: each round thin, their median thick."""
    ticks = (0.5, 0.9, 0.99, 0.999, 0.9999)
    places = [1 / (1 - quantile) for quantile in push.QUANTILES]
    for way, rounds in found.items():
        for one in rounds:
            axes.plot(places, one.curve, color=COLOURS[way], alpha=0.25, linewidth=0.8)
        axes.plot(places, push.median(rounds).curve, color=COLOURS[way], linewidth=2, label=NAMES[way])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1 / (1 - tick) for tick in ticks], [f"{100 * tick:g} %" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("of the entries were received within")
    axes.set_ylabel("milliseconds")
    axes.axhline(2, color="#adb5bd", linestyle="--", linewidth=0.8)
    axes.grid(visible=True, alpha=0.25)
    axes.set_title(title)
    axes.legend(frameon=False)


def shares(axes: Axes, found: push.Rounds) -> None:
    """Five buckets of a millisecond, beside the classical figures."""
    labels = ["≤ 1 ms", "≤ 2 ms", "≤ 3 ms", "≤ 4 ms", "beyond"]
    rows = {NAMES[way]: (push.median(rounds).shares, COLOURS[way]) for way, rounds in found.items()}
    rows["classical figures"] = (list(push.CLASSICAL), "#868e96")
    width = 0.8 / len(rows)
    for number, (name, (values, colour)) in enumerate(rows.items()):
        places = [place + number * width for place in range(len(labels))]
        bars = axes.bar(places, values, width, label=name, color=colour)
        axes.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=6, rotation=90, padding=2)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(labels))], labels)
    axes.set_ylabel("% of the entries")
    axes.set_ylim(0, 119)
    axes.set_title("Shares by millisecond")
    axes.legend(frameon=False)


def latencies(beside: push.Rounds, standing: push.Rounds, path: Path) -> None:
    """P5 and P6."""
    figure, axes = plt.subplots(1, 3, figsize=(17, 5), layout="constrained")
    curve(axes[0], beside, "From publish to push, 10 000 entries/s, one group, ten consumers")
    shares(axes[1], beside)
    curve(axes[2], standing, "The same with entries standing in the group")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def fan_out(found: fanout.Rounds, path: Path) -> None:
    """P7: the floods, and a lone entry."""
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    panels: list[tuple[str, Callable[[fanout.FanoutRound], float]]] = [
        ("Delivered entries/s, 100 entries a frame", lambda one: one.floods[100].delivered),
        ("Delivered entries/s, 1 entry a frame", lambda one: one.floods[1].delivered),
        ("A lone entry at the last of the tails, ms", lambda one: one.lone_ms),
    ]
    for axis, (title, figure_of) in zip(axes, panels, strict=True):
        ways = list(found)
        values = [[figure_of(one) for one in found[way]] for way in ways]
        middles = [statistics.median(column) for column in values]
        bars = axis.bar([NAMES[way] for way in ways], middles, color=[COLOURS[way] for way in ways])
        axis.bar_label(bars, [f"{middle:,.0f}" if middle > 99 else f"{middle:.1f}" for middle in middles])
        for place, column in enumerate(values):
            axis.plot([place] * len(column), column, "o", color="black", alpha=0.4, markersize=4)
        axis.set_title(title)
        axis.margins(y=0.15)
    figure.savefig(path, dpi=110)
    plt.close(figure)
