"""`weir-spark compact`: few large files for many small ones.

Knows: its parameters, how steps look. Must never know: how files are joined.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pyspark_weir.cli import arguments, output
from weir.cli.options import duration_ms

if TYPE_CHECKING:
    from pyspark_weir.place import Place

_mb: Final = 1 << 20
_target_mb_default: Final = 128
_grace_ms_default: Final = 3_600_000


def follower(form: str, root: str) -> "Callable[[Place], object] | None":
    """What brings another log up to an archive's manifests, where its form has one."""
    if form != "delta":
        return None
    from pyspark_weir.delta import check_root, follow

    check_root(root)
    return follow


@dataclass(frozen=True, kw_only=True)
class CompactArguments(arguments.OutputArguments):
    """What is joined, and how long replaced files stay."""

    root: arguments.Root
    target_mb: Annotated[int, typer.Option("--target-mb", min=1, help="target size of files, in MiB")] = (
        _target_mb_default
    )
    grace_ms: Annotated[
        int,
        typer.Option(
            "--grace",
            parser=duration_ms,
            metavar="DURATION",
            show_default="1h",
            help="how long replaced files stay, for readers that have begun",
        ),
    ] = _grace_ms_default
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be joined")] = False


def compact(options: CompactArguments) -> None:
    """Join small files of one stream and day; readers see all entries at any time, each once.

    It may run beside the archive job, and may be stopped at any time.
    """
    from pyspark_weir import clock
    from pyspark_weir.jobs import compact as job
    from pyspark_weir.manifest import Archive
    from pyspark_weir.place import Place

    place = Place.of(options.root)
    archive = Archive.read(place)
    if options.dry_run:
        found = job.bins(archive.files(), options.target_mb * _mb)
        rows = [
            {
                "stream": one.files[0].stream,
                "date": one.files[0].date,
                "files": len(one.files),
                "bytes": one.bytes,
            }
            for one in found
        ]
        output.rows(rows, ("stream", "date", "files", "bytes"), as_json=options.as_json)
        return
    rules = job.Rules(options.target_mb * _mb, options.grace_ms, follower(archive.about.format, options.root))
    joined = deleted = 0
    for step in job.compact(place, rules, clock.wall_ms()):
        if options.as_json:
            output.line(asdict(step))
        joined += step.files if step.what == "wrote" else 0
        deleted += step.files if step.what == "deleted" else 0
    if not options.as_json:
        output.say(f"{joined:,} files joined, {deleted:,} replaced ones deleted")
