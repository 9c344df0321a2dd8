"""`weir lag`: how far behind consumer groups are.

Knows: its options, how lags look, also drawn with matplotlib (extra `plot`), when to look again.
Must never know: how rates follow from samples.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output
from weir.durations import format_ms

if TYPE_CHECKING:
    from weir import Client
    from weir.cli.group_lag import GroupLag, GroupSelection, LagHistory

_OVER_MS_DEFAULT: Final = 5_000
_SUFFIXES: Final = (".png", ".svg")
_COLUMNS: Final = (
    *("stream", "group", "state", "behind", "lag", "pending", "oldest_pending"),
    *("published/s", "settled/s", "caught_up_in", "trend"),
)
# Matplotlib counts days since 1970.
_day_ms: Final = 86_400_000
# More bars or lines than these look alike.
groups_max: Final = 30


def _chart(text: str) -> Path:
    path = Path(text)
    if path.suffix not in _SUFFIXES:
        raise typer.BadParameter(f"the name of a chart ends in {' or '.join(_SUFFIXES)}")
    return path


@dataclass(frozen=True, kw_only=True)
class LagOptions:
    """Which groups are shown, how often, and how."""

    streams: Annotated[
        list[str] | None, typer.Argument(help="these streams; default: all that --pattern matches")
    ] = None
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="streams whose whole name matches [.*]")
    ] = None
    groups: Annotated[list[str] | None, typer.Option("--group", help="only this group; repeatable")] = None
    over_ms: Annotated[
        int,
        typer.Option(
            "--over",
            parser=options.duration_ms,
            metavar="DURATION",
            show_default="5s",
            help="time between the samples that rates come from; 0: one sample, no rates",
        ),
    ] = _OVER_MS_DEFAULT
    every_ms: Annotated[
        int | None,
        typer.Option(
            "--every",
            parser=options.duration_ms,
            metavar="DURATION",
            help="report again and again until Ctrl-C; rates are over the last --over",
        ),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(parser=_chart, metavar="FILE", help="draw a chart, .png or .svg (extra `plot`)"),
    ] = None
    as_json: options.Json = False
    url: options.Url = options.DEFAULT_URL
    token_file: options.TokenFile = None
    ca: options.Ca = None

    def select(self) -> "GroupSelection":
        """The groups that are meant. Raises typer.BadParameter."""
        from weir.cli.group_lag import GroupSelection

        if self.streams and self.pattern is not None:
            raise typer.BadParameter("streams and --pattern exclude each other")
        try:
            return GroupSelection(tuple(self.streams or ()), self.pattern or ".*", tuple(self.groups or ()))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


def lag(given: LagOptions) -> None:
    """Show how far behind consumer groups are, how fast they are, and when they will have caught up.

    Behind are entries that were not delivered yet, and those delivered and not acknowledged.
    """
    from weir.cli.gateway import connect
    from weir.cli.group_lag import LagHistory

    selection = given.select()
    with connect(given.url, given.token_file, given.ca) as client:
        report = LagReport(client, selection, LagHistory(given.over_ms), given.plot, as_json=given.as_json)
        if given.every_ms is not None:
            report.repeat(given.every_ms / 1_000)
            return
        if given.over_ms:
            report.sample()
            time.sleep(given.over_ms / 1_000)
        report.show(report.sample())


@dataclass
class LagReport:
    """Takes samples of groups, and prints and draws what they say."""

    client: "Client"
    selection: "GroupSelection"
    history: "LagHistory"
    plot: Path | None
    as_json: bool
    # One that repeats says it once.
    _is_none_said: bool = field(default=False, init=False)
    _missing: frozenset[str] = field(default=frozenset(), init=False)

    def sample(self) -> "list[GroupLag]":
        """The lags as of now. Says which streams are missing. Raises WeirError."""
        from weir.cli.group_lag import sample_groups

        missing: list[str] = []
        samples = sample_groups(self.client, self.selection, time.time_ns() // 1_000_000, missing.append)
        for name in missing:
            if name not in self._missing:
                output.say(f"there is no stream {name}")
        self._missing = frozenset(missing)
        return self.history.add(samples)

    def show(self, lags: "list[GroupLag]") -> None:
        """Print the lags, and draw all samples so far."""
        if not lags and not self._is_none_said and not self._missing:
            output.say("no group was found")
        self._is_none_said = not lags
        output.rows(
            [asdict(one) if self.as_json else _row(one) for one in lags], _COLUMNS, as_json=self.as_json
        )
        if self.plot is not None:
            try:
                draw(self.plot, self.history)
            except ModuleNotFoundError as error:
                output.say(f"{error.name} is not installed: it is in the extra `plot` of weir-client")
                raise typer.Exit(1) from None

    def repeat(self, every_s: float) -> None:
        """Report until Ctrl-C, which is no failure. A gateway that is away is said, and asked again."""
        from weir.errors import NoAnswerError

        due_s = time.monotonic()
        try:
            while True:
                try:
                    self.show(self.sample())
                except NoAnswerError as error:
                    output.say(str(error))
                # A round that took too long is not caught up with.
                due_s = max(due_s + every_s, time.monotonic())
                time.sleep(max(due_s - time.monotonic(), 0))
        except KeyboardInterrupt:
            return


def _row(lag: "GroupLag") -> dict[str, Any]:
    age, left = lag.oldest_pending_age_ms, lag.catch_up_ms
    return {
        **asdict(lag),
        "oldest_pending": None if age is None else f"{format_ms(age)} ago",
        "published/s": lag.published_per_s,
        "settled/s": lag.settled_per_s,
        "caught_up_in": None if not left else format_ms(left),
        "trend": (lag.trend or "not known").replace("_", " "),
    }


def draw(path: Path, history: "LagHistory") -> None:
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
