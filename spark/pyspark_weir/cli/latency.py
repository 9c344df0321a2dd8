"""`weir pipeline latency`: how long entries took.

Knows: its options, how findings look. Must never know: how anything is found out.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pyspark_weir.cli import counting, options, output, plots
from pyspark_weir.cli.counting import Counting

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark_weir.jobs.latency import Delay, Measure

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
    checkpoint: options.LastCheckpoint = None,
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
    from pyspark_weir.jobs import latency as job
    from pyspark_weir.jobs.fields import TimeField

    measure = job.Measure(
        None if produced_at is None else TimeField.of(produced_at),
        None if read_at is None else TimeField.of(read_at),
        id_field,
        window,
    )
    where = options.connection(gateways, token_file, token_env)
    reading = options.source(where, streams, pattern, source)
    session = options.session("latency", master, conf)
    counting.run(
        Counting(
            once=lambda spark: job.once(spark, reading, measure),
            query=lambda spark, place, show: job.query(spark, reading, place, measure, show),
            kept=lambda place: job.kept(job.tally(place, measure)),
            show=lambda found: _show(found, measure, plot, as_json=as_json),
        ),
        checkpoint,
        options.pace(once=once, every_ms=every),
        session,
        options.accesses(where),
        as_json=as_json,
    )


def _show(found: "list[Delay]", measure: "Measure", plot: "Path | None", *, as_json: bool) -> None:
    from pyspark_weir.jobs import latency as job

    if as_json:
        output.rows([one.row() for one in found], (), as_json=True)
    else:
        rows: list[dict[str, Any]] = [job.line(one) for one in job.over_windows(found)]
        output.rows(rows, _COLUMNS, as_json=False)
    if plot is not None:
        from pyspark_weir import charts

        charts.spreads(plot, job.spreads(found), title="How long entries took", value="delay")
