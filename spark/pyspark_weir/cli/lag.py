"""`weir pipeline lag`: how far behind groups are.

Knows: its options, how findings look. Must never know: how anything is found out.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pyspark_weir import clock
from pyspark_weir.cli import options, output, plots

if TYPE_CHECKING:
    from pyspark_weir.gateway import Gateway
    from pyspark_weir.jobs.lag import Lag, Wanted, Watch

_over_ms_default: Final = 5_000
_COLUMNS: Final = (
    *("gateway", "stream", "group", "behind", "unread", "pending", "oldest_pending"),
    *("published/s", "settled/s", "caught_up_in", "trend"),
)


def lag(  # noqa: PLR0913 - a command's options are its parameters
    *,
    gateways: options.Gateways = None,
    streams: options.Streams = None,
    pattern: options.Pattern = None,
    groups: Annotated[
        str | None, typer.Option("--groups", metavar="A,B", help="these groups; without: all of them")
    ] = None,
    over: Annotated[
        int,
        typer.Option(
            parser=options.duration_ms,
            metavar="DURATION",
            show_default="5s",
            help="how far apart the looks are that rates come from; 0: one look, no rates",
        ),
    ] = _over_ms_default,
    once: options.Once = False,
    every: options.Every = None,
    publish: Annotated[
        str | None, typer.Option(metavar="STREAM", help="keep the findings as entries of a stream")
    ] = None,
    plot: plots.Plot = None,
    token_file: options.TokenFile = None,
    token_env: options.TokenEnv = None,
    as_json: options.Json = False,
) -> None:
    """Tell how far behind consumer groups are, how fast they are, and when they will have caught up.

    Behind is what was not delivered yet and what was delivered and not acknowledged. No Spark is started.
    With --every the rates are over the last --over, or since the last look.
    """
    from pyspark_weir.errors import OptionError
    from pyspark_weir.gateway import Gateway
    from pyspark_weir.jobs.lag import Wanted, Watch

    if once and every is not None:
        raise OptionError("--once and --every: only one of them")
    if streams is not None and pattern is not None:
        raise OptionError("--streams and --pattern: only one of them")
    wanted = Wanted(_names(streams), pattern or ".*", _names(groups))
    accesses = options.accesses(options.connection(gateways, token_file, token_env))
    with ExitStack() as stack:
        opened = [stack.enter_context(Gateway(access)) for access in accesses]
        watch = Watch(over)
        if every is None:
            if over:
                watch.note(_looks(opened, wanted))
                time.sleep(over / 1_000)
            _tell(opened[0], watch, watch.note(_looks(opened, wanted)), publish, plot, as_json=as_json)
        else:
            _go_on(opened, wanted, watch, every, publish, plot, as_json=as_json)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _looks(gateways: "list[Gateway]", wanted: "Wanted") -> list[Any]:
    from pyspark_weir.jobs.lag import look

    return [one for gateway in gateways for one in look(gateway, wanted, clock.wall_ms)]


def _go_on(
    gateways: "list[Gateway]",
    wanted: "Wanted",
    watch: "Watch",
    every_ms: int,
    publish: str | None,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Until Ctrl-C, which is no failure; a gateway that is away is told and looked for again."""
    from pyspark_weir.errors import Unavailable

    due_s = clock.monotonic_s()
    try:
        while True:
            try:
                _tell(
                    gateways[0], watch, watch.note(_looks(gateways, wanted)), publish, plot, as_json=as_json
                )
            except Unavailable as error:
                output.say(str(error))
            # What took longer than a round takes is not caught up with.
            due_s = max(due_s + every_ms / 1_000, clock.monotonic_s())
            time.sleep(max(due_s - clock.monotonic_s(), 0))
    except KeyboardInterrupt:
        return


def _tell(
    gateway: "Gateway",
    watch: "Watch",
    found: "list[Lag]",
    publish: str | None,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    from pyspark_weir.jobs import lag as job

    rows = [one.row() for one in found] if as_json else [_row(one) for one in found]
    output.rows(rows, _COLUMNS if len({one.gateway for one in found}) > 1 else _COLUMNS[1:], as_json=as_json)
    if publish is not None:
        job.publish(gateway, publish, found)
    if plot is not None:
        from pyspark_weir import charts

        lines = watch.lines()
        # Two looks are no line over time.
        if any(len(line.values) > 2 for line in lines):
            charts.lines(plot, lines, title="Entries behind", value="unread and pending (entries)")
        else:
            charts.bars(plot, job.bars(found), title="Entries behind", value="entries")


def _row(found: "Lag") -> dict[str, Any]:
    from weir.durations import format_ms

    age, left = found.oldest_pending_age_ms, found.catch_up_ms
    return {
        **found.row(),
        "oldest_pending": None if age is None else f"{format_ms(age)} ago",
        "published/s": found.published_per_s,
        "settled/s": found.settled_per_s,
        "caught_up_in": None if not left else format_ms(left),
        "trend": (found.trend or "not known").replace("_", " "),
    }
