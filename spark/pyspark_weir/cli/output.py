"""What jobs print: rows as a table or as JSON lines, and progress beside it.

Knows: how values look to people and to programs; that stored text is hostile to a terminal.
Must never know: which job prints.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from weir.cli import output as shared
from weir.durations import format_ms

if TYPE_CHECKING:
    from pyspark_weir.progress import BatchProgress
    from pyspark_weir.running import Summary

_ABSENT: Final = "-"
_BAR_CELLS: Final = 20

# A line beside the output, on standard error.
say: Final = shared.say


def line(value: Mapping[str, Any]) -> None:
    """One JSON object on a line of its own, there at once."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Rows as JSON lines with all that they hold, or as a table of some columns; no rows are no table."""
    found = list(rows)
    if as_json:
        for row in found:
            line(row)
    elif found:
        body = [[_cell(row.get(column)) for column in columns] for row in found]
        shared.table([shared.heading(column) for column in columns], body)


def batch_reporter(*, as_json: bool, begins: str = "") -> "Callable[[BatchProgress], None]":
    """Reports each batch: JSON lines on standard output, or lines for people beside it, with a bar on a
    terminal. The first line says where it `begins`.
    """
    if as_json:
        return lambda progress: line(progress.members())
    say(f"starting Spark; it reads from {begins}" if begins else "starting Spark…")
    done = 0

    def report(progress: "BatchProgress") -> None:
        nonlocal done
        done += progress.rows
        bar = f"{progress_bar(done, progress.left)} " if sys.stderr.isatty() else ""
        say(f"{bar}{progress_line(progress)}")
        for one in progress.lost:
            say(f"lost: {one}")

    return report


def progress_bar(done: int, left: int | None) -> str:
    """As `━━━━━─────  50 %`, of what this run has done and what is left; empty where that is not known."""
    if left is None:
        return ""
    share = done / (done + left) if done + left else 1.0
    full = int(share * _BAR_CELLS)
    return f"{'━' * full}{'─' * (_BAR_CELLS - full)} {int(share * 100):3} %"


def progress_line(progress: "BatchProgress") -> str:
    """As `batch 12: 20,000 entries of 3 streams in 1.3 s, 15,400/s; 120,000 left, about 8 s`."""
    rate = f", {progress.rows_per_second:,.0f}/s" if progress.rows else ""
    entries = f"{progress.rows:,} entries"
    if progress.streams:
        entries += " of 1 stream" if progress.streams == 1 else f" of {progress.streams:,} streams"
    said = f"batch {progress.batch}: {entries} in {format_ms(progress.duration_ms)}{rate}"
    if progress.left is None:
        return said
    if not progress.left:
        return f"{said}; nothing left"
    if not progress.rows:
        return f"{said}; {progress.left:,} left"
    eta_ms = progress.left / progress.rows_per_second * 1_000
    return f"{said}; {progress.left:,} left, about {format_ms(eta_ms)}"


def ended(summary: "Summary", *, as_json: bool) -> None:
    """The last word of a streaming job."""
    if as_json:
        line(summary.members())
        return
    how = "stopped" if summary.stopped else "done"
    batches = "1 batch" if summary.batches == 1 else f"{summary.batches:,} batches"
    lost = f"; entries were lost in {len(summary.lost):,} places, named above" if summary.lost else ""
    say(f"{how}: {summary.rows:,} entries in {batches}, {format_ms(summary.duration_ms)}{lost}")


def _cell(value: object) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, float):
        return f"{value:,.3g}"
    # A number of entries is read, an ID is copied.
    return (
        f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else shared.plain(str(value))
    )
