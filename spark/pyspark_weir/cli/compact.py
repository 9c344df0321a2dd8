"""`weir-spark compact` and `weir-spark vacuum`: few large files for many small ones, and no old ones.

Knows: their parameters, how steps look. Must never know: how files are merged.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pyspark_weir.cli import arguments, output
from weir.cli.options import duration_ms

_mb: Final = 1 << 20
_target_mb_default: Final = 128
_age_ms_default: Final = 7 * 24 * 3_600_000


@dataclass(frozen=True, kw_only=True)
class CompactArguments(arguments.OutputArguments):
    """Which files are merged."""

    root: arguments.Root
    target_mb: Annotated[int, typer.Option("--target-mb", min=1, help="target size of files, in MiB")] = (
        _target_mb_default
    )
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be merged")] = False


@dataclass(frozen=True, kw_only=True)
class VacuumArguments(arguments.OutputArguments):
    """Which files are deleted."""

    root: arguments.Root
    age_ms: Annotated[
        int,
        typer.Option(
            "--older-than",
            parser=duration_ms,
            metavar="DURATION",
            show_default="7d",
            help="age from which files are deleted; at least 7d",
        ),
    ] = _age_ms_default
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be deleted")] = False


def compact(options: CompactArguments) -> None:
    """Merge small files of a day into large ones; readers see all entries at any time, each once.

    It may run beside the archive job, and may be killed at any time. Replaced files stay until `vacuum`.
    """
    from pyspark_weir import clock
    from pyspark_weir.table.cleaning import clean_log
    from pyspark_weir.table.compaction import Rules, merges
    from pyspark_weir.table.compaction import compact as merged
    from pyspark_weir.table.errors import ArchiveLockedError
    from pyspark_weir.table.root import ArchiveRoot
    from pyspark_weir.table.table import ArchiveTable

    table = ArchiveTable.open(ArchiveRoot.of(options.root))
    rules = Rules(target_bytes=options.target_mb * _mb)
    if options.dry_run:
        found = merges(table.files(), rules)
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
    from pyspark_weir.table.cleaning import vacuum as deleted
    from pyspark_weir.table.root import ArchiveRoot
    from pyspark_weir.table.table import ArchiveTable

    table = ArchiveTable.open(ArchiveRoot.of(options.root))
    paths = deleted(table, options.age_ms, dry_run=options.dry_run)
    output.rows([{"path": path} for path in paths], ("path",), as_json=options.as_json)
    if not options.as_json:
        output.say(f"{len(paths):,} files {'would be ' if options.dry_run else ''}deleted")
