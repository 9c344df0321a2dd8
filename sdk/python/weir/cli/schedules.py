"""`weir schedules`, `weir schedule`: entries for later.

Knows: which members of a schedule people look at, and how fields and times are typed.
Must never know: HTTP, how a table is drawn.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from weir.cli import options, output
from weir.cli.failure import Failure
from weir.durations import write_ms

if TYPE_CHECKING:
    from weir import Client, Schedule, ScheduleRule

_COLUMNS: Final = ("name", "next_at", "when", "left")


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(options.GatewayOptions):
    """Whose schedules are listed, or which one is changed and how."""

    stream: Annotated[
        str | None, typer.Argument(help="the stream; without one all of them", show_default=False)
    ] = None
    by: Annotated[str, typer.Option(help="time | name", metavar="ORDER")] = "time"
    cancel: Annotated[str | None, typer.Option(help="cancel the schedule of this name")] = None
    fire: Annotated[str | None, typer.Option(help="append the entry of this schedule now")] = None
    pause: Annotated[str | None, typer.Option(help="let the schedule of this name wait")] = None
    until: Annotated[str | None, typer.Option(help="with --pause: until this time (RFC 3339)")] = None
    resume: Annotated[str | None, typer.Option(help="go on with the schedule of this name")] = None

    def check(self) -> None:
        """Raise typer.BadParameter for what does not go together."""
        changes = (self.cancel, self.fire, self.pause, self.resume)
        if self.by not in ("time", "name"):
            raise typer.BadParameter("it is time or name", param_hint="--by")
        if sum(one is not None for one in changes) > 1:
            raise typer.BadParameter("give one of them", param_hint="--cancel, --fire, --pause, --resume")
        if self.until is not None and self.pause is None:
            raise typer.BadParameter("it goes with --pause", param_hint="--until")
        if self.stream is None and (self.by == "name" or any(one is not None for one in changes)):
            raise typer.BadParameter("name the stream", param_hint="stream")


def schedules(given: ScheduleOptions) -> None:
    """List what is scheduled for a stream, or for all, the next one first; cancel, fire, pause or resume
    one.
    """
    given.check()
    with given.connect() as client:
        if given.stream is None:
            found = [{**one, "when": _when(one)} for one in client.list_all_schedules()]
            output.rows(found, ("stream", *_COLUMNS), as_json=given.as_json)
        elif not _change(client, given.stream, given):
            order: Literal["time", "name"] = "name" if given.by == "name" else "time"
            listed = [{**one, "when": _when(one)} for one in client.list_schedules(given.stream, by=order)]
            output.rows(listed, _COLUMNS, as_json=given.as_json)


def _change(client: "Client", stream: str, given: ScheduleOptions) -> bool:
    """Do what is to be done to one schedule, and say it; False where there is nothing to do."""
    if given.cancel is not None:
        if not client.cancel_schedule(stream, given.cancel):
            raise Failure(
                f"the stream {stream!r} has no schedule {given.cancel!r}: it has run, or was cancelled"
            )
    elif given.fire is not None:
        output.lines(client.fire_schedule(stream, given.fire).ids)
    elif given.pause is not None:
        _say(client.pause_schedule(stream, given.pause, until=given.until), as_json=given.as_json)
    elif given.resume is not None:
        _say(client.resume_schedule(stream, given.resume), as_json=given.as_json)
    else:
        return False
    return True


def _say(found: "Schedule", *, as_json: bool) -> None:
    """Print when it is appended next."""
    text = "paused until it is resumed" if found["next_at"] is None else f"next at {found['next_at']}"
    output.lines([output.json_line(found) if as_json else text])


def _when(schedule: object) -> str:
    """The rule of a schedule in a few words."""
    rule = dict(schedule)  # type: ignore[call-overload]  # a TypedDict
    when = "once"
    if "cron" in rule:
        when = f"{rule['cron']} {rule['tz']}"
    elif "every_ms" in rule:
        when = f"every {write_ms(rule['every_ms'])}"
    until = f" until {rule['paused_until']}" if "paused_until" in rule else ""
    return f"{when}, paused{until}" if "paused" in rule else when


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
    _say(found, as_json=as_json)
