"""A chart of how far behind groups are, drawn with matplotlib (extra `plot`).

Knows: matplotlib. Must never know: how lags are found out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from weir.cli.group_lag import LagHistory

# Matplotlib counts days since 1970.
_day_ms: Final = 86_400_000
# More bars or lines than these look alike.
groups_max: Final = 30


def draw(path: Path, history: LagHistory) -> None:
    """Entries behind: a line for each group, or a bar where there are only one or two samples of each.

    Those furthest behind, at most `groups_max`. Raises ModuleNotFoundError without matplotlib.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = sorted(history.samples.items(), key=lambda one: -(one[1][-1].behind or 0))[:groups_max]
    # Text stays text in an SVG. Names of streams are no formulas.
    with mpl.rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        figure = Figure(figsize=(10, max(3.0, 1 + 0.3 * len(shown))), layout="constrained")
        axes = figure.add_subplot(title="Entries behind")
        if any(len(samples) > 2 for _, samples in shown):
            for names, samples in shown:
                days = [one.at_ms / _day_ms for one in samples]
                axes.plot(days, [_value(one.behind) for one in samples], label=" / ".join(names))
            axes.set_ylim(bottom=0)
            axes.legend()
            axes.xaxis_date("UTC")
            figure.autofmt_xdate()
        else:
            _bars(axes, [(" / ".join(names), samples[-1]) for names, samples in shown])
        figure.savefig(path)


def _value(behind: int | None) -> float:
    # A gap in the line.
    return float("nan") if behind is None else behind


def _bars(axes: Any, groups: Sequence[tuple[str, Any]]) -> None:  # noqa: ANN401 - Axes, imported late
    names = [name for name, _ in groups]
    lag = [one.lag or 0 for _, one in groups]
    axes.barh(names, lag, label="lag")
    axes.barh(names, [one.pending for _, one in groups], left=lag, label="pending")
    axes.invert_yaxis()
    axes.legend()
