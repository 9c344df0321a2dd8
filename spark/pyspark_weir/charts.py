"""Charts of what jobs found: lines over time, stacked bars, counts in buckets; as PNG, SVG or an HTML page.

Knows: how a chart is drawn so that it can be read: axes with units, a legend, few lines.
Must never know: which job asks, Spark.

Names of streams, groups and fields are other people's text: nothing in them is markup, mathematics or a
comment to the library, whatever it begins with.
"""

import html
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.dates as mdates
import numpy as np
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator
from matplotlib.typing import ColorType, RcKeyType

from pyspark_weir.series import Bar, Line, Spread, checked
from weir.durations import format_ms

# More cannot be told apart; those with most to show stay, and the title says how many do not.
lines_max: Final = 8
bars_max: Final = 24
_label_max: Final = 48
_title_max: Final = 110
_dots_per_inch: Final = 120
_inches: Final = (9.0, 4.8)
_inches_per_bar: Final = 0.34
# So many points are still seen one by one.
_dots_max: Final = 40
# 1 ms to a year.
_TICKS_MS: Final = (
    *(0, 1, 4, 10, 40, 100, 400, 1_000, 4_000, 10_000, 60_000, 600_000, 3_600_000),
    *(36_000_000, 86_400_000, 864_000_000, 8_640_000_000, 31_536_000_000),
)

_STYLE: Final[dict[RcKeyType, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9a9a9a",
    "axes.grid": True,
    "axes.labelcolor": "#333333",
    "axes.prop_cycle": style.library["petroff8"]["axes.prop_cycle"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    # The same numbers are the same file.
    "svg.hashsalt": "weir",
    "svg.fonttype": "none",
    # A dollar sign in a name is a dollar sign.
    "text.parse_math": False,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{margin:2rem;font-family:sans-serif;background:#fff}}svg{{max-width:100%;height:auto}}</style>
</head><body>{drawing}</body></html>
"""


def lines(path: Path, found: Sequence[Line], *, title: str, value: str) -> None:
    """Lines over time. `value` is what the upright axis measures, unit included."""

    def draw(axes: Axes) -> None:
        for line in shown_lines:
            times = np.array(line.at_ms, dtype="datetime64[ms]")
            heights = [float("nan") if one is None else one for one in line.values]
            # A point between two breaks has no line that would show it.
            marker = "o" if len(times) <= _dots_max else None
            axes.plot(times, heights, marker=marker, markersize=3.5, linewidth=1.8)
        locator = mdates.AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        formatter = mdates.ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
        axes.set_xlabel("time (UTC)")
        axes.set_ylabel(_label(value))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        if found and all(one is None or one >= 0 for line in shown_lines for one in line.values):
            axes.set_ylim(bottom=0)
        _legend(axes, axes.get_lines(), [line.name for line in shown_lines])

    shown_lines = sorted(found, key=_greatest, reverse=True)[:lines_max]
    _save(path, _titled(title, len(found), len(shown_lines)), draw, is_empty=not found)


def _greatest(line: Line) -> float:
    return max((one for one in line.values if one is not None), default=float("-inf"))


def bars(path: Path, found: Sequence[Bar], *, title: str, value: str) -> None:
    """Stacked bars that lie, the longest above. `value` is what their length measures, unit included."""
    chosen = sorted(found, key=lambda bar: sum(bar.parts.values()), reverse=True)[:bars_max]
    parts = list(dict.fromkeys(name for bar in chosen for name in bar.parts))

    def draw(axes: Axes) -> None:
        places = range(len(chosen))
        starts = [0.0] * len(chosen)
        handles = []
        for part in parts:
            widths = [bar.parts.get(part, 0) for bar in chosen]
            handles.append(axes.barh(places, widths, left=starts, height=0.7))
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        for place, start, bar in zip(places, starts, chosen, strict=True):
            axes.annotate(
                _label(bar.note), (start, place), xytext=(4, 0), textcoords="offset points", va="center"
            )
        axes.set_yticks(places, [_label(bar.name) for bar in chosen])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.15)
        axes.set_xlim(left=0)
        axes.set_xlabel(_label(value))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        _legend(axes, handles, parts)

    height = max(2.2, 1.4 + _inches_per_bar * len(chosen))
    _save(
        path, _titled(title, len(found), len(chosen)), draw, inches=(_inches[0], height), is_empty=not found
    )


def spreads(path: Path, found: Sequence[Spread], *, title: str, value: str) -> None:
    """Above, how many took how long, per power of two; below, how many took at most so long.

    `value` is what was measured. Heights are shares, so that spreads of different sizes can be compared.
    """
    chosen = sorted(found, key=lambda one: sum(count for *_, count in one.buckets), reverse=True)[:lines_max]

    def draw(upper: Axes, lower: Axes) -> None:
        greatest = 1
        for one in chosen:
            counted = sum(count for *_, count in one.buckets) or 1
            octaves = _octaves(one.buckets)
            edges = [low for low, _ in octaves] + [2 * octaves[-1][0] or 1]
            patch = upper.stairs([100 * count / counted for _, count in octaves], edges, linewidth=1.8)
            colour = patch.get_edgecolor()
            if len(chosen) == 1:
                patch.set(fill=True, alpha=0.8)
            ends = [0, *(high for _, high, _ in one.buckets)]
            shares = [0.0, *(100 * sum_ / counted for sum_ in accumulate(c for *_, c in one.buckets))]
            lower.step(ends, shares, where="post", color=colour, linewidth=1.8)
            greatest = max(greatest, edges[-1])
            _mark(lower, one.marks, colour, named=len(chosen) == 1)
        _duration_axis(lower, greatest)
        upper.set_ylabel("entries (%)")
        upper.set_ylim(bottom=0)
        lower.set_ylabel("at most so long (%)")
        lower.set_ylim(0, 102)
        lower.set_xlabel(f"{_label(value)} (logarithmic above 1 ms)")
        _legend(upper, upper.patches, [one.name for one in chosen])

    _save(
        path,
        _titled(title, len(found), len(chosen)),
        draw,
        rows=2,
        inches=(_inches[0], 6.4),
        is_empty=not found,
    )


def _octaves(buckets: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The counts from each power of two to the next: first value, count. Zero is for itself."""
    counts: dict[int, int] = {}
    for low, _, count in buckets:
        first = 1 << (low.bit_length() - 1) if low else 0
        counts[first] = counts.get(first, 0) + count
    return sorted(counts.items()) or [(0, 0)]


def _mark(axes: Axes, marks: Mapping[str, float], colour: ColorType, *, named: bool) -> None:
    for place, (name, at) in enumerate(marks.items()):
        axes.axvline(at, color=colour, linestyle=(0, (4, 2 + 2 * place)), linewidth=1)
        if named:
            text, where = _label(f"{name} {format_ms(at)}"), (at, 0.08 + 0.1 * place)
            place_of = ("data", "axes fraction")
            axes.annotate(text, where, xycoords=place_of, xytext=(4, 0), textcoords="offset points")


def _duration_axis(axes: Axes, greatest: int) -> None:
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xlim(0, greatest * 1.05)
    ticks = [ms for ms in _TICKS_MS if ms <= greatest * 1.05]
    axes.set_xticks(
        ticks, [format_ms(ms).replace(".0", "").replace(" 0s", "").replace(" 0m", "") for ms in ticks]
    )
    axes.xaxis.set_minor_locator(NullLocator())


def _titled(title: str, found: int, shown_number: int) -> str:
    """The title, with how much of what was found is not in the chart."""
    return title if found == shown_number else f"{title} (the {shown_number} largest of {found})"


def _label(text: str, longest: int = _label_max) -> str:
    """Text of others, as one short line that can be printed."""
    line = "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _legend(axes: Axes, handles: Sequence[Artist | BarContainer], names: Sequence[str]) -> None:
    """Above the axes' right end, so that it hides no data; a lone name stands there too."""
    if not names:
        return
    # Texts are set afterwards: a label that begins with `_` would be left out.
    columns = min(len(names), 4)
    numbers = [str(number) for number in range(len(names))]
    legend = axes.legend(
        handles, numbers, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, fontsize=9
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(_label(name))


def _save(
    path: Path,
    title: str,
    draw: Callable[..., None],
    *,
    rows: int = 1,
    inches: tuple[float, float] = _inches,
    is_empty: bool = False,
) -> None:
    """Draw, and put it in the place of what was there in one step: a viewer never meets half a chart."""
    suffix = checked(path).suffix.lower()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A name in a script that the font does not have is drawn as boxes; that is nobody's failure.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure = Figure(figsize=inches, dpi=_dots_per_inch)
        FigureCanvasAgg(figure)
        draw(*figure.subplots(rows, sharex=True, squeeze=False)[:, 0])
        if is_empty:
            figure.text(0.5, 0.5, "nothing to show", ha="center", va="center", color="#777777", fontsize=14)
        figure.suptitle(_label(title, _title_max), x=0.01, ha="left", fontsize=12)
        drawn = io.BytesIO()
        # Without the date the same numbers are the same file.
        kind, told = ("png", None) if suffix == ".png" else ("svg", {"Date": None})
        figure.savefig(drawn, format=kind, metadata=told)
    content = drawn.getvalue()
    if suffix == ".html":
        svg = content.decode()
        content = _PAGE.format(title=html.escape(title), drawing=svg[svg.index("<svg") :]).encode()
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_bytes(content)
    unfinished.replace(path)
