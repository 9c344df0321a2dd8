"""`weir pipeline dlq`: what became dead letters, and why.

Knows: its options, how findings look. Must never know: how anything is found out.
"""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from pyspark_weir.cli import counting, options, output, plots
from pyspark_weir.cli import requeue as back
from pyspark_weir.cli.counting import Counting

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark_weir.jobs.dlq import Letters

_top_default: Final = 20


def dlq(  # noqa: PLR0913 - a command's options are its parameters
    *,
    gateways: options.Gateways = None,
    streams: options.Streams = None,
    pattern: options.Pattern = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="what to count by: letters (the stream they lie in), source, group, consumer, reason, "
            "field:NAME for a field of the entry",
        ),
    ] = "source,group,consumer,reason",
    top: Annotated[
        int, typer.Option(min=1, help="show so many, those of which there are most")
    ] = _top_default,
    source: options.SourceOptions = None,
    checkpoint: options.LastCheckpoint = None,
    once: options.Once = False,
    every: options.Every = None,
    plot: plots.Plot = None,
    requeue: back.Requeue = False,
    where: back.Where = None,
    yes: back.Yes = False,
    remove: back.Remove = False,
    master: options.Master = None,
    conf: options.Conf = None,
    token_file: options.TokenFile = None,
    token_env: options.TokenEnv = None,
    as_json: options.Json = False,
) -> None:
    """Count dead letters: of which stream, group and consumer, why, since when, after how many deliveries.

    --streams or --pattern name the streams that the letters lie in. With --requeue their entries go back.
    """
    from pyspark_weir.jobs import dlq as job

    keys = job.checked([part.strip() for part in by.split(",")])
    connection = options.connection(gateways, token_file, token_env)
    reading = options.source(connection, streams, pattern, source)
    session = options.session("dlq", master, conf)
    choice = back.Choice(where, yes, remove)
    if requeue:
        back.requeue(connection, streams, choice, session, as_json=as_json)
        return
    choice.expect_alone()
    counting.run(
        Counting(
            once=lambda spark: job.once(spark, reading, keys),
            query=lambda spark, place, show: job.query(spark, reading, place, keys, show),
            kept=lambda place: job.kept(job.tally(place, keys), keys),
            show=lambda found: _show(found, top, plot, as_json=as_json),
        ),
        checkpoint,
        options.pace(once=once, every_ms=every),
        session,
        options.accesses(connection),
        as_json=as_json,
    )


def _show(found: "list[Letters]", top: int, plot: "Path | None", *, as_json: bool) -> None:
    from pyspark_weir.jobs import dlq as job

    shown = found[:top]
    rows = [one.row() if as_json else job.line(one) for one in shown]
    output.rows(rows, list(rows[0]) if rows else ["count"], as_json=as_json)
    if len(found) > top:
        rest = sum(one.count for one in found[top:])
        output.say(f"{len(found) - top:,} more, {rest:,} letters in all: --top shows them")
    if plot is not None:
        from pyspark_weir import charts

        charts.bars(plot, job.bars(found), title="Dead letters", value="letters")
