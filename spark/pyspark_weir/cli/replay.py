"""`weir-spark replay`: entries of an archive, or of a gateway, sent to a gateway once more.

Knows: its parameters, how its progress looks. Must never know: how entries are read and sent.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pyspark_weir.cli import arguments, output
from pyspark_weir.errors import OptionError

if TYPE_CHECKING:
    from pyspark_weir.jobs.replay import Step
    from pyspark_weir.jobs.replay_plan import Form, Plan
    from pyspark_weir.jobs.replay_read import FromArchive, FromGateway

_WHAT: Final = "What is replayed"
_HOW: Final = "How it is sent"
_tasks_default: Final = 2
_tasks_max: Final = 10_000
_rate_max: Final = 10_000_000
_chunk_rows_max: Final = 5_000
_slice_s: Final = 600


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(arguments.SparkArguments):
    """Which entries are sent, where to, how fast."""

    archive: Annotated[
        str | None,
        typer.Option("--from", metavar="ARCHIVE", rich_help_panel=_WHAT, help="root of an archive"),
    ] = None
    from_gateway: Annotated[
        str | None,
        typer.Option(metavar="[NAME=]URL", rich_help_panel=_WHAT, help="instead: a gateway to read from"),
    ] = None
    from_token_file: Annotated[
        str | None, typer.Option(rich_help_panel=_WHAT, help="file with the token for --from-gateway")
    ] = None
    streams: arguments.Streams = None
    pattern: arguments.Pattern = None
    after: Annotated[
        str | None, typer.Option(metavar="ID", rich_help_panel=_WHAT, help="entries after this ID")
    ] = None
    end: Annotated[
        str | None, typer.Option(metavar="ID", rich_help_panel=_WHAT, help="entries up to this ID, inclusive")
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", rich_help_panel=_WHAT, help="entries from this time on: 2026-01-31T12:00"
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option(metavar="TIME", rich_help_panel=_WHAT, help="entries before this time")
    ] = None
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            show_default="{stream}",
            rich_help_panel=_HOW,
            help="target streams: source=target for one, a name or copy.{stream} for the others; repeatable",
        ),
    ] = None
    keep_ids: Annotated[
        bool,
        typer.Option("--keep-ids", rich_help_panel=_HOW, help="keep IDs; targets must be empty or behind"),
    ] = False
    orig_field: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_HOW,
            help="field for the original ID; empty: none. Not with --keep-ids",
        ),
    ] = "_orig_id"
    rate: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=_rate_max, rich_help_panel=_HOW, help="maximum entries per second"
        ),
    ] = None
    tasks: Annotated[
        int, typer.Option(min=1, max=_tasks_max, rich_help_panel=_HOW, help="streams sent side by side")
    ] = _tasks_default
    job_id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_HOW,
            show_default=False,
            help="name of this replay; started again with the same name, it resumes and repeats nothing",
        ),
    ] = None
    state: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            rich_help_panel=_HOW,
            show_default="ARCHIVE/_replay/NAME",
            help="directory for the plan and the progress",
        ),
    ] = None
    slice_rows: Annotated[
        int | None,
        typer.Option(
            "--slice",
            metavar="N",
            min=1,
            rich_help_panel=_HOW,
            show_default="100000, or ten minutes of --rate",
            help="entries between two notes of the progress; fixed at the first start",
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=_HOW, help="show what would be sent; send nothing")
    ] = False
    gateways: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway",
            envvar="WEIR_URL",
            metavar="[NAME=]URL",
            show_default=arguments.DEFAULT_URL,
            rich_help_panel=_HOW,
            help="the gateway to send to",
        ),
    ] = None
    token_file: arguments.TokenFile = None
    token_env: arguments.TokenEnv = None

    def form(self, source: str) -> "Form":
        """What must not change when the replay is started again. Raises OptionError."""
        from pyspark_weir.jobs.replay_plan import Form, slice_rows_default

        rate, slice_rows = self.rate, slice_rows_default
        if rate is not None:
            # A killed replay sends its slice again: ten minutes' worth at most.
            slice_rows = min(slice_rows, rate * _slice_s)
        return Form(
            job=_checked_job(self.job_id, needed=not self.dry_run),
            source=source,
            keep_ids=self.keep_ids,
            orig_field="" if self.keep_ids else self.orig_field,
            # A second's worth at most, so that a slow replay is not one of bursts.
            chunk_rows=_chunk_rows_max if rate is None else max(1, min(_chunk_rows_max, rate // self.tasks)),
            tasks=self.tasks,
            slice_rows=self.slice_rows or slice_rows,
        )


def replay(options: ReplayArguments) -> None:
    """Send entries of an archive, or of a gateway, to a gateway: none lost, none twice.

    What is sent is settled at the first start. Killed and begun again with the same --job-id, it goes on.
    """
    from pyspark_weir.jobs import replay as job
    from pyspark_weir.jobs.replay_plan import Targets, Wanted
    from pyspark_weir.place import Place
    from pyspark_weir.running import locked
    from pyspark_weir.session import open_session

    first, last_id = _range(options.after, options.end, options.since, options.until)
    wanted = Wanted(arguments.names(options.streams), options.pattern, first, last_id)
    source = _source(options.archive, options.from_gateway, options.from_token_file)
    target = arguments.one_access(
        arguments.connection(options.gateways, options.token_file, options.token_env)
    )
    form = options.form(source.address)
    targets = Targets.parse(options.to or [])
    if options.dry_run:
        _show(job.planned(source, wanted, targets, form), as_json=options.as_json)
        return
    address = _state(options.state, options.archive, form.job)
    with locked(address):
        place = Place.of(address)
        plan = job.begun(place, source, job.Asked(target, wanted, targets), form)
        spark = open_session(options.session("replay"))
        last = None
        for last in job.run(spark, plan, source=source, target=target, state=place, per_s=options.rate):
            _tell(last, as_json=options.as_json)
    _ended(plan, last, as_json=options.as_json)


def _range(
    after: str | None, end: str | None, since: str | None, until: str | None
) -> tuple[str, str | None]:
    """`(after, end]` as IDs. Raises OptionError."""
    from pyspark_weir import ids

    if (after and since) or (end and until):
        raise OptionError("--after and --since, --end and --until: only one of each")
    first = ids.canonical(after) if after else ids.BEGINNING
    if since:
        first = str(ids.previous_id(ids.EntryId(_ms(since, "--since"), 0)))
    last = str(ids.parse(end, missing_seq=ids.HALF_MAX)) if end else None
    if until:
        last = str(ids.previous_id(ids.EntryId(_ms(until, "--until"), 0)))
    return first, last


def _ms(text: str, option: str) -> int:
    """Milliseconds since 1970 as they are, or a time as ISO 8601 writes it; UTC where it names no zone."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{option} {text}: write a time like 2026-01-31T12:00:00Z, or milliseconds"
        ) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, round(zoned.timestamp() * 1_000))


def _source(
    archive: str | None, from_gateway: str | None, token_file: str | None
) -> "FromArchive | FromGateway":
    from pyspark_weir.jobs.replay_read import FromArchive, FromGateway
    from pyspark_weir.table.root import ArchiveRoot

    if (archive is None) == (from_gateway is None):
        raise OptionError("where from? give --from ARCHIVE or --from-gateway URL")
    if archive is not None:
        return FromArchive(ArchiveRoot.of(archive))
    return FromGateway(arguments.one_access(arguments.connection([from_gateway or ""], token_file)))


def _checked_job(job_id: str | None, *, needed: bool) -> str:
    if job_id is None:
        if needed:
            raise OptionError(
                "--job-id is missing: a name for this replay, under which it can be begun again"
            )
        return "dry-run"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", job_id):
        raise OptionError(f"--job-id {job_id}: up to 128 letters, digits, '.', '_' and '-', a letter first")
    return job_id


def _state(state: str | None, archive: str | None, job: str) -> str:
    if state is not None:
        return state
    if archive is None:
        raise OptionError("--state is missing: a folder where the replay keeps how far it has come")
    return f"{archive.rstrip('/')}/_replay/{job}"


def _show(plan: "Plan", *, as_json: bool) -> None:
    """What would be sent, by stream."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for part in plan.slices:
        for span in part:
            row = rows.setdefault(
                ("/".join(span.key), span.target),
                {"stream": "/".join(span.key), "target": span.target, "entries": 0, "after": span.after},
            )
            row["entries"] = int(str(row["entries"])) + span.rows
            row["end"] = span.end
    output.rows(rows.values(), ("stream", "target", "entries", "after", "end"), as_json=as_json)
    if not as_json:
        output.say(f"would send {plan.rows:,} entries in {len(plan.slices)} slices; nothing was sent")


def _tell(step: "Step", *, as_json: bool) -> None:
    if as_json:
        output.line(
            {"slice": step.slices, "slices": step.slices_all, "rows": step.rows, "all": step.rows_all}
        )
    else:
        output.say(
            f"slice {step.slices} of {step.slices_all}: {step.rows:,} of {step.rows_all:,} entries are there"
        )


def _ended(plan: "Plan", last: "Step | None", *, as_json: bool) -> None:
    if as_json:
        output.line({"done": True, "job": plan.job, "rows": plan.rows, "slices": len(plan.slices)})
    elif last is None:
        output.say(f"nothing left to do: all {plan.rows:,} entries of {plan.job} had been sent")
    else:
        output.say(f"done: all {plan.rows:,} entries of {plan.job} are there")
