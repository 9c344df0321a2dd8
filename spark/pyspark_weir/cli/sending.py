"""`weir-spark mirror` and `weir-spark replay`: what streams get, or an archive holds, sent to other streams.

Knows: their parameters, how progress looks. Must never know: how entries are read and sent.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pyspark_weir.cli import arguments, output
from pyspark_weir.errors import OptionError
from pyspark_weir.raw_options import names

if TYPE_CHECKING:
    from pyspark_weir.jobs.replay import FromArchive, FromGateway, Replay, ReplayPlan

_SENT: Final = "What is sent on"
_sent = arguments.panel(_SENT)
_TASKS_MAX: Final = 10_000


class Start(StrEnum):
    """Where a mirror begins."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class MirrorArguments(arguments.QueryArguments):
    """Where entries are sent, and what is done to them before."""

    start: Annotated[
        Start | None,
        typer.Option(
            "--from",
            show_default="earliest",
            rich_help_panel="What is read",
            help="where it begins without a checkpoint; --source startingOffsets=… for other places",
        ),
    ] = None
    to_gateway: Annotated[
        str | None, _sent(metavar="[NAME=]URL", show_default="--gateway", help="the target gateway")
    ] = None
    to_token_file: Annotated[str | None, _sent(help="file with the token for --to-gateway")] = None
    to: Annotated[list[str] | None, arguments.to_option(_SENT)] = None
    where: Annotated[
        str | None, _sent(metavar="SQL", help="only matching entries: fields['level'] = 'error'")
    ] = None
    route: Annotated[
        str | None, _sent(metavar="SQL", help="target stream of an entry; null drops the entry")
    ] = None
    set_fields: Annotated[
        list[str] | None, _sent("--set", metavar="NAME=SQL", help="a field to set; repeatable")
    ] = None
    drop: Annotated[str | None, _sent(metavar="A,B", help="fields to leave out")] = None
    keep_ids: Annotated[bool, _sent("--keep-ids", help="keep IDs; nothing else may write to the targets")] = (
        False
    )
    orig_field: Annotated[str, _sent(metavar="NAME", help="field for the original ID")] = ""


def mirror(options: MirrorArguments) -> None:
    """Send what streams hold and get to other streams, here or at another gateway: each entry once, in order.

    It begins with the earliest entry, or where its checkpoint ends. SQL sees stream, id, ms, seq,
    ts and fields, a map of text.
    """
    from pyspark_weir import checkpoint
    from pyspark_weir.checkpoint import StateFolder
    from pyspark_weir.gateway import reach
    from pyspark_weir.jobs.mirror import Mirror, Targets, check, query
    from pyspark_weir.options import source_options
    from pyspark_weir.running import run

    to = options.to_gateway
    source = options.source()
    given = source_options(source).starting
    if given is not None and options.start is not None:
        raise OptionError(f"--from and --source {given.option}=… both say where it begins: give one")
    asked = Mirror(
        checkpoint=options.checkpoint,
        source=source,
        target=arguments.one_access(
            options.connection() if to is None else arguments.connection([to], options.to_token_file)
        ),
        targets=Targets.parse(options.to or []),
        where=options.where,
        route=options.route,
        set_fields=arguments.pairs(options.set_fields, "--set"),
        drop_fields=names(options.drop),
        keep_ids=options.keep_ids,
        orig_field=options.orig_field,
        start=options.start,
    )
    begins = (
        given.option if given is not None else f"the {options.start or Start.EARLIEST} entry of each stream"
    )
    if checkpoint.query_id(StateFolder.of(options.checkpoint)) is not None:
        begins = "where the checkpoint ends"
    what = options.query("mirror")
    options.look()
    reach([asked.target])
    check(asked)  # before Spark has started, which takes a while
    report = output.batch_reporter(as_json=options.as_json, begins=begins)
    summary = run(what, lambda spark: query(spark, asked), report)
    output.ended(summary, as_json=options.as_json)


_HOW: Final = "How it is sent"
_what, _how = arguments.panel("What is replayed"), arguments.panel(_HOW)
_TASKS_DEFAULT: Final = 2
_RATE_MAX: Final = 10_000_000


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(arguments.SparkArguments):
    """Which entries are sent, where to, how fast."""

    archive: Annotated[str | None, _what("--from", metavar="ARCHIVE", help="root of an archive")] = None
    storage: arguments.Storage = None
    from_gateway: Annotated[
        str | None, _what(metavar="[NAME=]URL", help="instead: a gateway to read from")
    ] = None
    from_token_file: Annotated[str | None, _what(help="file with the token for --from-gateway")] = None
    streams: arguments.Streams = None
    pattern: arguments.Pattern = None
    after: Annotated[str | None, _what(metavar="ID", help="entries after this ID")] = None
    end: Annotated[str | None, _what(metavar="ID", help="entries up to this ID, inclusive")] = None
    since: Annotated[
        str | None, _what(metavar="TIME", help="entries from this time on: 2026-01-31T12:00")
    ] = None
    until: Annotated[str | None, _what(metavar="TIME", help="entries before this time")] = None
    to: Annotated[list[str] | None, arguments.to_option(_HOW)] = None
    keep_ids: Annotated[bool, _how("--keep-ids", help="keep IDs; targets must be empty or behind")] = False
    orig_field: Annotated[
        str, _how(metavar="NAME", help="field for the original ID; empty: none. Not with --keep-ids")
    ] = "_orig_id"
    rate: Annotated[
        int | None, _how(metavar="N", min=1, max=_RATE_MAX, help="maximum entries per second")
    ] = None
    tasks: Annotated[int, _how(min=1, max=_TASKS_MAX, help="streams sent side by side")] = _TASKS_DEFAULT
    job_id: Annotated[
        str | None,
        _how(
            metavar="NAME",
            show_default=False,
            help="name of this replay; started again with the same name, it stores nothing twice",
        ),
    ] = None
    state: Annotated[
        str | None,
        _how(metavar="DIR", show_default="ARCHIVE/_replay/NAME", help="directory for what is settled"),
    ] = None
    dry_run: Annotated[bool, _how("--dry-run", help="show what would be sent; send nothing")] = False
    gateways: Annotated[list[str] | None, arguments.gateway_option("the gateway to send to", _HOW)] = None
    token_file: arguments.TokenFile = None
    token_env: arguments.TokenEnv = None

    def replay_of(self, source: str, gateway: str) -> "Replay":
        """What must not change when the replay is started again. Raises OptionError."""
        from pyspark_weir.jobs.mirror import Targets
        from pyspark_weir.jobs.replay import CHUNK_ROWS_MAX, EntrySelection, Replay

        first, last = _range(self.after, self.end, self.since, self.until)
        # A second's worth at most, so that a slow replay is not one of bursts.
        chunk_rows = CHUNK_ROWS_MAX if self.rate is None else self.rate // self.tasks
        return Replay(
            job=_check_job(self.job_id, needed=not self.dry_run),
            source=source,
            gateway=gateway,
            wanted=EntrySelection(names(self.streams), self.pattern, first, last),
            to=Targets.parse(self.to or []),
            keep_ids=self.keep_ids,
            orig_field="" if self.keep_ids else self.orig_field,
            chunk_rows=max(1, min(CHUNK_ROWS_MAX, chunk_rows)),
            tasks=self.tasks,
        )


def replay(options: ReplayArguments) -> None:
    """Send entries of an archive, or of a gateway, to a gateway: none lost, none twice.

    What is sent is settled at the first start. Killed and begun again with the same --job-id, it sends all of
    that again, and the gateway stores what it does not have.
    """
    from pyspark_weir.checkpoint import StateFolder
    from pyspark_weir.gateway import reach
    from pyspark_weir.jobs import replay as job
    from pyspark_weir.running import locked
    from pyspark_weir.session import open_session

    source = _source(options)
    target = arguments.one_access(
        arguments.connection(options.gateways, options.token_file, options.token_env)
    )
    asked = options.replay_of(source.address, target.url)
    if options.dry_run:
        _show(job.plan_of(source, asked), as_json=options.as_json)
        return
    address = _state(options.state, options.archive, asked.job)
    session = options.session("replay")
    with locked(address):
        place = StateFolder.of(address)
        look = partial(reach, [*source.accesses, target])
        plan = job.begin(place, source, target, asked, look)
        if plan.done:
            _say_end(plan, "nothing left to do", as_json=options.as_json)
            return
        if not options.as_json:
            output.say(f"sending {plan.rows:,} entries of {len(plan.ranges):,} streams")
        spark = open_session(session)
        job.run(spark, plan, source=source, target=target, state=place, per_s=options.rate)
    _say_end(plan, "done", as_json=options.as_json)


def _range(
    after: str | None, end: str | None, since: str | None, until: str | None
) -> tuple[str, str | None]:
    from pyspark_weir import ids
    from pyspark_weir.options import id_of_time

    if (after and since) or (end and until):
        raise OptionError("--after and --since, --end and --until: only one of each")
    first = ids.canonical(after) if after else ids.BEGINNING
    if since:
        first = id_of_time("--since", since)
    last = str(ids.parse(end, missing_seq=ids.HALF_MAX)) if end else None
    if until:
        last = id_of_time("--until", until)
    return first, last


def _source(options: ReplayArguments) -> "FromArchive | FromGateway":
    from pyspark_weir.jobs.replay import FromArchive, FromGateway

    if (options.archive is None) == (options.from_gateway is None):
        raise OptionError("no source: give --from ARCHIVE or --from-gateway URL")
    if options.archive is not None:
        return FromArchive(arguments.archive_root(options.archive, options.storage))
    given = arguments.connection([options.from_gateway or ""], options.from_token_file)
    return FromGateway(arguments.one_access(given))


def _check_job(job_id: str | None, *, needed: bool) -> str:
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
        raise OptionError("--state is missing: a directory for the plan and the progress")
    return f"{archive.rstrip('/')}/_replay/{job}"


def _show(plan: "ReplayPlan", *, as_json: bool) -> None:
    rows = [
        {
            "stream": f"{one.gateway}/{one.stream}",
            "generation": one.generation,
            "target": one.target,
            "entries": one.rows,
            "after": one.after,
            "end": one.end,
        }
        for one in plan.ranges
    ]
    output.rows(rows, ("stream", "target", "entries", "after", "end"), as_json=as_json)
    if not as_json:
        output.say(f"would send {plan.rows:,} entries; nothing was sent")


def _say_end(plan: "ReplayPlan", how: str, *, as_json: bool) -> None:
    if as_json:
        output.line({"done": True, "job": plan.replay.job, "rows": plan.rows})
    else:
        output.say(f"{how}: all {plan.rows:,} entries of {plan.replay.job} are there")
