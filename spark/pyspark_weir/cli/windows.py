"""`weir pipeline windows`: numbers over windows of time.

Knows: its options, how results look. Must never know: how anything is computed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pyspark_weir.cli import options, output, plots

if TYPE_CHECKING:
    from pyspark_weir.jobs.windows import Latest, Windows
    from pyspark_weir.progress import Progress

_OUTPUT: Final = "Where results go"
_COUNTING: Final = "What is computed"


def windows(  # noqa: PLR0913 - a command's options are its parameters
    *,
    gateways: options.Gateways = None,
    streams: options.Streams = None,
    pattern: options.Pattern = None,
    window: Annotated[
        int | None,
        typer.Option(
            parser=options.duration_ms,
            metavar="DURATION",
            rich_help_panel=_COUNTING,
            help="how long a window is, as 1m",
        ),
    ] = None,
    slide: Annotated[
        int | None,
        typer.Option(
            parser=options.duration_ms,
            metavar="DURATION",
            rich_help_panel=_COUNTING,
            help="how often one begins; without: when the one before ends",
        ),
    ] = None,
    session_gap: Annotated[
        int | None,
        typer.Option(
            "--session",
            parser=options.duration_ms,
            metavar="DURATION",
            rich_help_panel=_COUNTING,
            help="instead: a window lasts until nothing has come for so long",
        ),
    ] = None,
    lateness: Annotated[
        int,
        typer.Option(
            parser=options.duration_ms,
            metavar="DURATION",
            show_default="0",
            rich_help_panel=_COUNTING,
            help="how much later than the latest entry of all streams one may be and still count",
        ),
    ] = 0,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD[:UNIT]",
            rich_help_panel=_COUNTING,
            help="field with the time of what happened, in ns, us, ms (default), s or iso; without: the ID",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="A,B", rich_help_panel=_COUNTING, help="windows apart for: stream, fields; '' for nothing"
        ),
    ] = "stream",
    aggregates: Annotated[
        str,
        typer.Option(
            "--compute",
            metavar="A,B",
            rich_help_panel=_COUNTING,
            help="count, sum:FIELD, mean:, min:, max:, p99: (approximate), exact-p99:, distinct: (about)",
        ),
    ] = "count",
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="update|append",
            rich_help_panel=_OUTPUT,
            help="tell a window whenever it changed (the default), or once when it is over (sessions always)",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", rich_help_panel=_OUTPUT, help="a folder of Parquet")
    ] = None,
    to_stream: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="STREAM", rich_help_panel=_OUTPUT, help="a stream, an entry for a window"
        ),
    ] = None,
    plot: plots.Plot = None,
    source: options.SourceOptions = None,
    checkpoint: options.LastCheckpoint = None,
    once: options.Once = False,
    every: options.Every = None,
    master: options.Master = None,
    conf: options.Conf = None,
    token_file: options.TokenFile = None,
    token_env: options.TokenEnv = None,
    as_json: options.Json = False,
) -> None:
    """Compute counts, sums, means, extremes, percentiles and distinct values over windows of time.

    Without --checkpoint all entries there are count, however late. With it a run goes on where the last one
    ended, and an entry is late, and counts in no window, when its window ended --lateness before the latest
    time seen. The chart shows the first number of --compute.
    """
    from pyspark_weir.errors import OptionError
    from pyspark_weir.jobs import windows as job
    from pyspark_weir.jobs.fields import TimeField

    what = job.Windows(
        window,
        slide,
        session_gap,
        lateness,
        None if time is None else TimeField.of(time),
        options.names(by),
        tuple(map(job.Aggregate.of, options.names(aggregates))),
    )
    chosen_mode = job.checked_mode(what, mode)
    where = options.connection(gateways, token_file, token_env)
    reading = options.source(where, streams, pattern, source)
    session = options.session("windows", master, conf)
    pace = options.pace(once=once, every_ms=every)
    shown = _Shown(what, plot, job.Latest(what, job.read(out, what) if out and plot else ()), as_json=as_json)
    if checkpoint is None:
        from pyspark_weir.session import open_session

        if every is not None or out is not None or to_stream is not None:
            raise OptionError("--every, --out and --to go on from somewhere: give --checkpoint")
        job.once(open_session(session), reading, what, shown)
        return

    from pyspark_weir.running import Run, run

    output_ = job.Output(checkpoint, out, to_stream, where)
    # What goes elsewhere is not printed too.
    shown.quiet = out is not None or to_stream is not None
    summary = run(
        Run(checkpoint, pace, session, options.accesses(where)),
        lambda spark: job.query(spark, reading, what, chosen_mode, output_, shown),
        _teller(as_json=as_json),
        output.say,
    )
    output.ended(summary, as_json=as_json)


def _teller(*, as_json: bool) -> "Callable[[Progress], None]":
    """Progress, and for people what does not count."""
    from pyspark_weir.jobs.windows import OBSERVED, UNTIMED

    tell = output.teller(as_json=as_json)

    def told(progress: "Progress") -> None:
        tell(progress)
        untimed = progress.observed.get(OBSERVED, {}).get(UNTIMED)
        if untimed and not as_json:
            output.say(
                f"batch {progress.batch}: {untimed:,} entries have no such time and count in no window"
            )
        if progress.late and not as_json:
            output.say(f"batch {progress.batch}: some entries were too late; --lateness waits longer")

    return told


@dataclass
class _Shown:
    """Prints and draws the results of a batch."""

    windows: "Windows"
    plot: Path | None
    latest: "Latest"
    as_json: bool
    quiet: bool = False

    def __call__(self, results: Iterable[Mapping[str, Any]]) -> None:
        from pyspark_weir.jobs import windows as job

        columns = [job.START, job.END, *self.windows.by, *job.names(self.windows.aggregates)]
        seen = []
        for row in results:
            seen.append(job.plain(row))
            if self.plot is not None:
                self.latest.add([row])
        if seen and not self.quiet:
            output.rows(seen, columns, as_json=self.as_json)
        if self.plot is not None:
            from pyspark_weir import charts

            name = job.names(self.windows.aggregates)[0]
            charts.lines(self.plot, self.latest.lines(name), title=f"{name} per window", value=name)
