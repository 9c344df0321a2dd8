"""`weir pipeline replay`: entries of an archive, or of a gateway, sent to a gateway once more.

Knows: its options, how its progress looks. Must never know: how entries are read and sent.
"""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pyspark_weir.cli import options, output
from pyspark_weir.errors import OptionError

if TYPE_CHECKING:
    from pyspark_weir.jobs.replay import Step
    from pyspark_weir.jobs.replay_plan import Plan
    from pyspark_weir.jobs.replay_read import FromArchive, FromGateway

_WHAT: Final = "What is replayed"
_HOW: Final = "How it is sent"
_tasks_default: Final = 2
_tasks_max: Final = 64
_rate_max: Final = 10_000_000
_chunk_rows_max: Final = 5_000
_slice_s: Final = 600


def replay(  # noqa: PLR0913 - a command's options are its parameters
    *,
    archive: Annotated[
        str | None,
        typer.Option("--from", metavar="ARCHIVE", rich_help_panel=_WHAT, help="root of an archive"),
    ] = None,
    from_gateway: Annotated[
        str | None,
        typer.Option(metavar="[NAME=]URL", rich_help_panel=_WHAT, help="instead: a gateway to read from"),
    ] = None,
    from_token_file: Annotated[
        str | None, typer.Option(rich_help_panel=_WHAT, help="file with the token for --from-gateway")
    ] = None,
    streams: options.Streams = None,
    pattern: options.Pattern = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", rich_help_panel=_WHAT, help="entries after this ID")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="ID", rich_help_panel=_WHAT, help="entries up to this ID, with it")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", rich_help_panel=_WHAT, help="entries from this time on: 2026-01-31T12:00"
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", rich_help_panel=_WHAT, help="entries before this time")
    ] = None,
    gateways: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway",
            envvar="WEIR_URL",
            metavar="[NAME=]URL",
            show_default=options.DEFAULT_URL,
            rich_help_panel=_HOW,
            help="the gateway to send to",
        ),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            show_default="{stream}",
            rich_help_panel=_HOW,
            help="where streams go: source=target for one, a name or copy.{stream} for the others; "
            "may be repeated",
        ),
    ] = None,
    keep_ids: Annotated[
        bool,
        typer.Option(
            "--keep-ids", rich_help_panel=_HOW, help="entries keep their IDs; targets are empty or behind"
        ),
    ] = False,
    orig_field: Annotated[
        str,
        typer.Option(
            rich_help_panel=_HOW,
            help="the field that gets the ID of before; empty: none. Not with --keep-ids",
        ),
    ] = "_orig_id",
    rate: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=_rate_max, rich_help_panel=_HOW, help="entries a second, at most"
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option(min=1, max=_tasks_max, rich_help_panel=_HOW, help="streams sent side by side")
    ] = _tasks_default,
    job_id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_HOW,
            show_default=False,
            help="the name of this replay: begun again under it, it goes on and sends nothing twice",
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            rich_help_panel=_HOW,
            show_default="ARCHIVE/_replay/NAME",
            help="where it keeps its plan and how far it has come",
        ),
    ] = None,
    slice_rows: Annotated[
        int | None,
        typer.Option(
            "--slice",
            metavar="N",
            min=1,
            rich_help_panel=_HOW,
            show_default="100000, or ten minutes of --rate",
            help="entries after which it notes how far it is; settled at the first start",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=_HOW, help="say what would be sent, and send nothing")
    ] = False,
    master: options.Master = None,
    conf: options.Conf = None,
    token_file: options.TokenFile = None,
    token_env: options.TokenEnv = None,
    as_json: options.Json = False,
) -> None:
    """Send entries of an archive, or of a gateway, to a gateway: none lost, none twice.

    What is sent is settled at the first start. Killed and begun again with the same --job-id, it goes on.
    """
    from pyspark_weir.jobs import replay as job
    from pyspark_weir.jobs.replay_plan import Form, Targets, Wanted
    from pyspark_weir.place import Place
    from pyspark_weir.running import locked
    from pyspark_weir.session import open_session

    wanted = Wanted(options.names(streams), pattern, *_range(after, end, since, until))
    source = _source(archive, from_gateway, from_token_file)
    target = options.one_access(options.connection(gateways, token_file, token_env))
    form = Form(
        job=_checked_job(job_id, needed=not dry_run),
        source=source.address,
        keep_ids=keep_ids,
        orig_field="" if keep_ids else orig_field,
        # A second's worth at most, so that a slow replay is not one of bursts.
        chunk_rows=_chunk_rows_max if rate is None else max(1, min(_chunk_rows_max, rate // tasks)),
        tasks=tasks,
        slice_rows=slice_rows or _slice_rows(rate),
    )
    targets = Targets.parse(to or [])
    if dry_run:
        _show(job.planned(source, wanted, targets, form), as_json=as_json)
        return
    address = _state(state, archive, form.job)
    with locked(address):
        place = Place.of(address)
        plan = job.begun(place, source, job.Asked(target, wanted, targets), form)
        spark = open_session(options.session("replay", master, conf))
        last = None
        for last in job.run(spark, plan, source=source, target=target, state=place, per_s=rate):
            _tell(last, as_json=as_json)
    _ended(plan, last, as_json=as_json)


def _slice_rows(rate: int | None) -> int:
    """Ten minutes' worth: what is killed in a slice sends it again, for the gateway to tell apart."""
    from pyspark_weir.jobs.replay_plan import slice_rows_default

    return slice_rows_default if rate is None else min(slice_rows_default, rate * _slice_s)


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

    if (archive is None) == (from_gateway is None):
        raise OptionError("where from? give --from ARCHIVE or --from-gateway URL")
    if archive is not None:
        return FromArchive(archive)
    return FromGateway(options.one_access(options.connection([from_gateway or ""], token_file)))


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
                (str(span.key), span.target),
                {"stream": str(span.key), "target": span.target, "entries": 0, "after": span.after},
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
