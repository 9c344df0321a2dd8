"""`weir schedules`, `weir schedule`: entries for later.

Knows: which members of a schedule people look at, and how fields and times are typed.
Must never know: HTTP, how a table is drawn.
"""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli import options, output
from weir.cli.failure import Failure

if TYPE_CHECKING:
    from weir import ScheduleRule

_COLUMNS: Final = ("name", "next_at", "when", "left")


def schedules(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    *,
    by: Annotated[str, typer.Option(help="time | name", metavar="ORDER")] = "time",
    cancel: Annotated[str | None, typer.Option(help="cancel the schedule of this name")] = None,
    fire: Annotated[str | None, typer.Option(help="append the entry of this schedule now")] = None,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """List what is scheduled for a stream, the next one first; cancel or fire one."""
    from weir.cli.gateway import connect

    if by not in ("time", "name"):
        raise typer.BadParameter("it is time or name", param_hint="--by")
    with connect(url, token_file, ca) as client:
        if cancel is not None:
            if not client.cancel_schedule(stream, cancel):
                raise Failure(
                    f"the stream {stream!r} has no schedule {cancel!r}: it has run, or was cancelled"
                )
            return
        if fire is not None:
            output.lines(client.fire_schedule(stream, fire).ids)
            return
        found = [
            {**one, "when": _when(one)}
            for one in client.list_schedules(stream, by="name" if by == "name" else "time")
        ]
    output.rows(found, _COLUMNS, as_json=as_json)


def _when(schedule: object) -> str:
    """The rule of a schedule in a few words."""
    rule = dict(schedule)  # type: ignore[call-overload]  # a TypedDict
    if "cron" in rule:
        return f"{rule['cron']} {rule['tz']}"
    return f"every {rule['every_ms']} ms" if "every_ms" in rule else "once"


def schedule(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    name: Annotated[str, typer.Argument(help="the schedule's name", show_default=False)],
    fields: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE…", help="the fields of the entry", show_default=False)
    ],
    *,
    at: Annotated[str | None, typer.Option(help="once, at this time (RFC 3339)")] = None,
    in_: Annotated[
        int | None,
        typer.Option("--in", parser=options.duration_ms, metavar="DURATION", help="once, after this time"),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(parser=options.duration_ms, metavar="DURATION", help="again and again, such as 5m"),
    ] = None,
    cron: Annotated[str | None, typer.Option(help="again and again: five fields, as in crontab(5)")] = None,
    tz: Annotated[str | None, typer.Option(help="the time zone of --cron")] = None,
    until: Annotated[str | None, typer.Option(help="no run is later (RFC 3339)")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="this many runs")] = None,
    skip_missed: Annotated[bool, typer.Option("--skip-missed", help="make up for no missed run")] = False,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Append an entry at a time, or again and again. The same command again changes nothing."""
    from weir.cli.gateway import connect

    pairs = [word.partition("=") for word in fields]
    if not all(separator for _, separator, _ in pairs):
        raise typer.BadParameter("a field is NAME=VALUE", param_hint="fields")
    if sum(one is not None for one in (at, in_, every, cron)) != 1:
        raise typer.BadParameter("give one of them", param_hint="--at, --in, --every, --cron")
    if tz is not None and cron is None:
        raise typer.BadParameter("it is for --cron alone", param_hint="--tz")
    given = {
        "at": at, "in_ms": in_, "every_ms": every, "cron": cron, "tz": tz, "until": until, "count": count,
        "missed": "skip" if skip_missed else None,
    }  # fmt: skip
    rule: ScheduleRule = {key: value for key, value in given.items() if value is not None}  # type: ignore[assignment]
    with connect(url, token_file, ca) as client:
        found = client.schedule(stream, name, {key: value for key, _, value in pairs}, **rule)
    output.lines([output.json_line(found) if as_json else f"next at {found['next_at']}"])
