"""`weir pipeline latency`: how long entries took.

Knows: its options, how findings look. Must never know: how anything is found out.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli import options, output, plots

if TYPE_CHECKING:
    from pathlib import Path

    from pipeline.jobs.latency import Delay, Measure

_COLUMNS: Final = (
    *("stream", "what", "count", "negative", "unknown", "mean"),
    *("p50", "p90", "p95", "p99", "p99.9", "max"),
)


def latency(  # noqa: PLR0913 - a command's options are its parameters
    *,
    gateways: options.Gateways = None,
    streams: options.Streams = None,
    pattern: options.Pattern = None,
    produced_at: Annotated[
        str | None,
        typer.Option(
            "--produced-at",
            metavar="FIELD[:UNIT]",
            help="field with the time at which an entry was made; units ns, us, ms (the default), s, iso",
        ),
    ] = None,
    read_at: Annotated[
        str | None,
        typer.Option("--read-at", metavar="FIELD[:UNIT]", help="field with the time at which it was read"),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(
            "--id-field",
            metavar="FIELD",
            help="field with the ID of the entry that was read, where a consumer wrote this one",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            parser=options.duration_ms, metavar="DURATION", help="count in windows of this length, by the ID"
        ),
    ] = None,
    source: options.SourceOptions = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="go on from the last run; without: all that is there, each time"),
    ] = None,
    once: options.Once = False,
    every: options.Every = None,
    plot: plots.Plot = None,
    master: options.Master = None,
    conf: options.Conf = None,
    token_file: options.TokenFile = None,
    token_env: options.TokenEnv = None,
    as_json: options.Json = False,
) -> None:
    """Tell how long entries took, from where they were made to the stream, and from there to who read them.

    Counts are kept in buckets that add up over windows, batches and streams: a quantile is wrong by 1/16 of
    itself at most. --json tells the bounds of each.
    """
    from pipeline.jobs import latency as job
    from pipeline.jobs.fields import TimeField

    measure = job.Measure(
        None if produced_at is None else TimeField.of(produced_at),
        None if read_at is None else TimeField.of(read_at),
        id_field,
        window,
    )
    where = options.connection(gateways, token_file, token_env)
    reading = options.source(where, streams, pattern, source)
    session = options.session("latency", master, conf)
    pace = options.pace(once=once, every_ms=every)
    if checkpoint is None:
        from pipeline.errors import OptionError
        from pipeline.session import open_session

        if every is not None:
            raise OptionError("--every goes on from somewhere: give --checkpoint")
        _show(job.once(open_session(session), reading, measure), measure, plot, as_json=as_json)
        return

    from pipeline.running import Run, run

    def show(found: "list[Delay]") -> None:
        # The end is told once; on the way there only of a run that goes on.
        if every is not None:
            _show(found, measure, plot, as_json=as_json)

    summary = run(
        Run(checkpoint, pace, session, options.accesses(where)),
        lambda spark: job.query(spark, reading, checkpoint, measure, show),
        output.teller(as_json=as_json),
        output.say,
    )
    if every is None:
        _show(job.kept(job.tally(checkpoint, measure)), measure, plot, as_json=as_json)
    output.ended(summary, as_json=as_json)


def _show(found: "list[Delay]", measure: "Measure", plot: "Path | None", *, as_json: bool) -> None:
    from pipeline.jobs import latency as job

    if as_json:
        output.rows([one.row() for one in found], (), as_json=True)
    else:
        rows: list[dict[str, Any]] = [job.line(one) for one in job.over_windows(found)]
        output.rows(rows, _COLUMNS, as_json=False)
    if plot is not None:
        from pipeline import charts

        charts.spreads(plot, job.spreads(found), title="How long entries took", value="delay")
