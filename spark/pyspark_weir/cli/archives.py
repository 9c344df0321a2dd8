"""`weir-spark archive`, and what keeps an archive: `trim`, `verify`, `compact`, `vacuum`, `erase`.

Knows: their parameters, how results look. Must never know: how a job does its work.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pyspark_weir.cli import arguments, output
from pyspark_weir.errors import OptionError
from pyspark_weir.raw_options import names
from weir.cli.options import duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark_weir.gateway import GatewayAccess, GatewayClient
    from pyspark_weir.jobs.trim import TrimProposal, TrimRules
    from pyspark_weir.jobs.verify import VerifyReport
    from pyspark_weir.progress import BatchProgress
    from pyspark_weir.running import QueryRun
    from pyspark_weir.table.erasure import Erasure
    from pyspark_weir.table.ranges import StreamKey
    from pyspark_weir.table.root import ArchiveRoot

_EVERY_MS_DEFAULT: Final = 1_000
_TRIM_COLUMNS: Final = ("stream", "entries", "upto", "because", "outcome")
_MB: Final = 1 << 20
_TARGET_MB_DEFAULT: Final = 128
_AGE_MS_DEFAULT: Final = 7 * 24 * 3_600_000


class Step(StrEnum):
    """What keeps an archive."""

    COMPACT = "compact"
    VACUUM = "vacuum"
    TRIM = "trim"


@dataclass(frozen=True, kw_only=True)
class KeepArguments:
    """What a trim keeps."""

    keep_ms: Annotated[
        int,
        typer.Option(
            "--keep",
            parser=duration_ms,
            metavar="DURATION",
            show_default="0",
            help="a trim keeps what is younger, by the time in its ID",
        ),
    ] = 0
    keep_last: Annotated[int, typer.Option(min=0, help="a trim keeps this many entries of each stream")] = 0

    def rules(self) -> "TrimRules":
        from pyspark_weir.jobs.trim import TrimRules

        return TrimRules(keep_ms=self.keep_ms, keep_last=self.keep_last)


@dataclass(frozen=True, kw_only=True)
class ArchiveArguments(arguments.RootArguments, arguments.QueryArguments, KeepArguments):
    """Where the archive is, and what goes there."""

    then: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS",
            help="upkeep of the whole archive when the job has ended: of compact, vacuum and trim, "
            "with commas, in the order to be done; trim removes",
        ),
    ] = None

    until_closed: Annotated[
        bool,
        typer.Option(
            "--until-closed",
            help="run until all streams are closed and archived to their ends; a batch a second, or --every",
        ),
    ] = False

    def steps(self) -> "tuple[Step, ...]":
        """What is done in the end. Raises OptionError."""
        try:
            found = tuple(Step(name) for name in names(self.then))
        except ValueError:
            raise OptionError(f"--then {self.then}: write some of {', '.join(Step)}, with commas") from None
        if found and self.every_ms is not None and not self.until_closed:
            raise OptionError("--then is for a job that ends: leave --every out, or add --until-closed")
        if Step.TRIM not in found and (self.keep_ms or self.keep_last):
            raise OptionError("--keep and --keep-last are for a trim: add --then trim")
        return found

    def run_of(self, is_over: "Callable[[], bool]") -> "QueryRun":
        """The run of the query. Raises OptionError."""
        run = replace(self.query("archive"), is_over=is_over)
        if not self.until_closed:
            return run
        if self.once:
            raise OptionError("--once and --until-closed exclude each other")
        return replace(run, every_ms=_EVERY_MS_DEFAULT if run.every_ms is None else run.every_ms)


def archive(options: ArchiveArguments) -> None:
    """Archive all entries of streams in a Delta table, each once, through any crash.

    It begins with the earliest entry, or where the table ends. The gateway learns how far the archive goes,
    and `weir-spark trim` removes it there. Several checkpoints may share a table, but no stream.
    """
    steps = options.steps()
    from pyspark_weir.errors import Unavailable
    from pyspark_weir.jobs.archive import Archiver
    from pyspark_weir.running import run

    archiver = Archiver(options.archive(), options.checkpoint, options.source())
    report = output.batch_reporter(as_json=options.as_json)

    def settle_and_report(progress: "BatchProgress") -> None:
        # A gateway that is away learns of it with the next batch.
        with suppress(Unavailable):
            archiver.settle()
        report(progress)

    def is_over() -> bool:
        # A gateway that is away is asked again.
        with suppress(Unavailable):
            archiver.mark_closed()
            return options.until_closed and archiver.is_over()
        return False

    what = options.run_of(is_over)
    archiver.check()  # before Spark has started, which takes a while
    options.look()
    summary = run(what, archiver.query, settle_and_report)
    archiver.settle()
    archiver.mark_closed()
    output.ended(summary, as_json=options.as_json)
    if not summary.stopped:
        keep(options, steps, archiver.accesses)


def keep(options: ArchiveArguments, steps: "Iterable[Step]", accesses: "Iterable[GatewayAccess]") -> None:
    """Do these steps; one that fails is the last."""
    shared: dict[str, Any] = {"root": options.root, "storage": options.storage, "as_json": options.as_json}
    for step in steps:
        if step is Step.COMPACT:
            compact(CompactArguments(**shared))
        elif step is Step.VACUUM:
            vacuum(VacuumArguments(**shared))
        else:
            with arguments.connected(accesses) as opened:
                _trim(options.archive(), opened, options.rules(), yes=True, as_json=options.as_json)


@dataclass(frozen=True, kw_only=True)
class TrimArguments(arguments.RootArguments, arguments.GatewayArguments, KeepArguments):
    """What is kept, and whether anything is removed."""

    yes: Annotated[bool, typer.Option("--yes", help="do it; without it nothing is removed")] = False


def trim(options: TrimArguments) -> None:
    """Show what may be trimmed: what an archive surely holds, and every group has finished. Do it with --yes.

    Before a stream is trimmed, the table, its files and the gateway's own count are compared. Exit code 1
    where one was refused.
    """
    with options.opened() as opened:
        _trim(options.archive(), opened, options.rules(), yes=options.yes, as_json=options.as_json)


def _trim(
    root: "ArchiveRoot", opened: "dict[str, GatewayClient]", rules: "TrimRules", *, yes: bool, as_json: bool
) -> None:
    from pyspark_weir import clock
    from pyspark_weir.jobs.trim import plan, run
    from pyspark_weir.table.cleaning import open_repaired

    table = open_repaired(root)
    planned = plan(table, opened, rules, clock.wall_ms())
    outcomes: dict[Any, str | int] = {}
    if yes:
        for done in run(table, opened, planned):
            outcomes[done.planned.key] = done.deleted if done.refused is None else done.refused
    rows = [_row(one, outcomes.get(one.key), done=yes) for one in planned]
    output.rows(rows, _TRIM_COLUMNS, as_json=as_json)
    pending = any(one.entries and one.refused is None for one in planned)
    if pending and not yes and not as_json:
        output.say("nothing was removed; --yes does it")
    refused = [one for one in planned if one.refused is not None]
    if refused or any(isinstance(outcome, str) for outcome in outcomes.values()):
        raise typer.Exit(1)


def _row(planned: "TrimProposal", outcome: str | int | None, *, done: bool) -> dict[str, Any]:
    refused = planned.refused or (outcome if isinstance(outcome, str) else None)
    removed = outcome if isinstance(outcome, int) else 0
    said = f"would remove {planned.entries:,}" if planned.entries else "nothing to remove"
    if refused is not None:
        said = f"refused: {refused}"
    elif done:
        said = f"removed {removed:,}"
    about = {"because": planned.why, "outcome": said, "refused": refused, "removed": removed}
    return {**asdict(planned), "key": None, **planned.key._asdict(), **about}


@dataclass(frozen=True, kw_only=True)
class VerifyArguments(arguments.RootArguments, arguments.GatewayArguments):
    """What is compared."""

    deep: Annotated[
        bool,
        typer.Option("--deep", help="read every byte; compare entries with their digests and the gateway's"),
    ] = False


def verify(options: VerifyArguments) -> None:
    """Compare the table, its files and the gateway: what is missing, double, damaged or out of order.

    Exit code 1 where anything is found. Nothing is changed.
    """
    from pyspark_weir.jobs.verify import verify as compared
    from pyspark_weir.table.table import ArchiveTable

    table = ArchiveTable.open(options.archive())
    with options.opened() as opened:
        report = compared(table, opened, deep=options.deep)
    if options.as_json:
        output.line(asdict(report))
    else:
        shown = [asdict(one) for one in (*report.lost, *report.findings)]
        output.rows(shown, ("about", "what"), as_json=False)
        output.say(_summary(report, deep=options.deep))
    if report.findings:
        raise typer.Exit(1)


def _summary(report: "VerifyReport", *, deep: bool) -> str:
    anew = "`compact --add-checksums` writes them anew"
    alone = "could not be compared: only the archive has them, and no commit has their digest"
    said = {
        f"{report.deleted:,} were deleted in the gateway since": report.deleted,
        f"{report.unproven:,} {alone}": report.unproven,
        f"{report.unchecked:,} files of an older version have no checksums: {anew}": report.unchecked,
        f"another program has rewritten {report.foreign:,} files: `compact` sorts them": report.foreign,
        f"in {len(report.lost):,} places entries were lost before they were archived": report.lost,
    }
    summary = f"{report.rows:,} entries in {report.files:,} files at version {report.version:,}"
    if deep:
        summary += f", {report.proven:,} compared with their digests, {report.compared:,} with the gateway's"
    faults = f"{len(report.findings):,} findings" if report.findings else "nothing is wrong"
    return "; ".join([summary, *(sentence for sentence, holds in said.items() if holds)]) + f": {faults}"


@dataclass(frozen=True, kw_only=True)
class CompactArguments(arguments.RootArguments):
    """Which files are merged."""

    target_mb: Annotated[int, typer.Option("--target-mb", min=1, help="target size of files, in MiB")] = (
        _TARGET_MB_DEFAULT
    )
    add_checksums: Annotated[
        bool, typer.Option("--add-checksums", help="write files of an older version anew, which have none")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be merged")] = False


@dataclass(frozen=True, kw_only=True)
class VacuumArguments(arguments.RootArguments):
    """Which files are deleted."""

    age_ms: Annotated[
        int,
        typer.Option(
            "--older-than",
            parser=duration_ms,
            metavar="DURATION",
            show_default="7d",
            help="age from which files are deleted; at least 7d",
        ),
    ] = _AGE_MS_DEFAULT
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be deleted")] = False


def compact(options: CompactArguments) -> None:
    """Merge small files of a day into large ones; readers see all entries at any time, each once.

    It may run beside the archive job, and may be killed at any time. Replaced files stay until `vacuum`.
    """
    from pyspark_weir import clock
    from pyspark_weir.errors import ArchiveLockedError
    from pyspark_weir.table.cleaning import clean_log, open_repaired
    from pyspark_weir.table.compaction import CompactionRules, merges, unchecked
    from pyspark_weir.table.compaction import compact as merged

    table = open_repaired(options.archive())
    anew = unchecked(table) if options.add_checksums else frozenset()
    rules = CompactionRules(target_bytes=options.target_mb * _MB, anew=anew)
    if options.dry_run:
        found = merges(table.files(), rules, table.columns)
        rows = [{"date": one.day, "files": len(one.files), "bytes": one.size} for one in found]
        output.rows(rows, ("date", "files", "bytes"), as_json=options.as_json)
        return
    removed = added = 0
    for done in merged(table, rules):
        removed += len(done.removed)
        added += len(done.added)
        if options.as_json:
            output.line({"date": done.added[0].date, "removed": len(done.removed), "added": len(done.added)})
    commits = 0
    with suppress(ArchiveLockedError):  # another one cleans
        commits = clean_log(table, clock.wall_ms())
    if not options.as_json:
        cleaned = f", {commits:,} old files of the log deleted" if commits else ""
        output.say(f"{removed:,} files merged into {added:,}{cleaned}")


def vacuum(options: VacuumArguments) -> None:
    """Delete old files that do not count: those that were merged, and those of batches that failed."""
    from pyspark_weir.table.cleaning import open_repaired
    from pyspark_weir.table.cleaning import vacuum as deleted

    table = open_repaired(options.archive())
    paths = deleted(table, options.age_ms, dry_run=options.dry_run)
    output.rows([{"path": path} for path in paths], ("path",), as_json=options.as_json)
    if not options.as_json:
        output.say(f"{len(paths):,} files {'would be ' if options.dry_run else ''}deleted")


@dataclass(frozen=True, kw_only=True)
class EraseArguments(arguments.RootArguments):
    """Which entries are erased."""

    stream: Annotated[str | None, typer.Option(metavar="NAME", help="the stream, in all its generations")] = (
        None
    )
    generation: Annotated[str | None, typer.Option(help="only of this generation of the stream")] = None
    ids: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="entries with these IDs; @FILE has one a line; repeatable"),
    ] = None
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="entries with this field; repeatable: with all of them"),
    ] = None
    accept_foreign: Annotated[
        bool,
        typer.Option("--accept-foreign", help="accept, once, what another program has deleted or changed"),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be erased")] = False

    def erasure(self) -> "Erasure":
        """Which entries are meant. Raises OptionError."""
        from pyspark_weir import ids
        from pyspark_weir.table.erasure import Erasure

        if self.stream is None:
            raise OptionError("no stream is named: --stream NAME, with --ids or --where")
        if bool(self.ids) == bool(self.where):
            raise OptionError("name entries with --ids A,B or with --where NAME=VALUE, and not with both")
        texts = [text for given in self.ids or () for text in _ids_in(given)]
        fields = [one.partition("=") for one in self.where or ()]
        for name, equals, value in fields:
            if not equals:
                raise OptionError(f"--where {name}{value}: write it as --where name=value")
        return Erasure(
            stream=self.stream,
            generation=self.generation,
            ids=frozenset(ids.parse(text) for text in texts),
            fields=tuple((name, value.encode()) for name, _, value in fields),
        )


def _ids_in(given: str) -> "tuple[str, ...]":
    if not given.startswith("@"):
        return names(given)
    from pathlib import Path

    return names(Path(given[1:]).read_text().replace("\n", ","))


def erase(options: EraseArguments) -> None:
    """Erase entries for good, as somebody may ask for: files that hold them are written anew without them.

    The files before hold them until `vacuum`, and are named. What the gateway still has stays there. With
    --accept-foreign, what another program has deleted or changed in the table counts as erased from then on.
    """
    from pyspark_weir.table.cleaning import open_repaired
    from pyspark_weir.table.erasure import accept_foreign, find
    from pyspark_weir.table.erasure import erase as erased_from

    if options.accept_foreign:
        if options.stream or options.ids or options.where:
            raise OptionError("--accept-foreign is about the whole archive: name neither stream nor entries")
        changed = accept_foreign(open_repaired(options.archive()), dry_run=options.dry_run)
        _say_erased(options, {key: one.rows for key, one in changed.items()}, "accepted as erased")
        return
    wanted = options.erasure()
    table = open_repaired(options.archive())
    done = find(table, wanted) if options.dry_run else erased_from(table, wanted)
    counts = {key: one.rows for key, one in done.tallies.items()}
    _say_erased(options, counts, "erased", [file.path for file in done.files])


def _say_erased(
    options: EraseArguments, counts: "Mapping[StreamKey, int]", what: str, paths: "Sequence[str]" = ()
) -> None:
    would = "would be " if options.dry_run else ""
    rows = [{**key._asdict(), "entries": count} for key, count in sorted(counts.items())]
    output.rows(rows, ("gateway", "stream", "generation", "entries"), as_json=options.as_json)
    output.rows([{"path": path} for path in paths], ("path",), as_json=options.as_json)
    if options.as_json:
        return
    output.say(f"{sum(counts.values()):,} entries {would}{what}")
    if paths and not options.dry_run:
        output.say(
            f"{len(paths):,} files hold them until `weir-spark vacuum` deletes these, seven days from now"
        )
