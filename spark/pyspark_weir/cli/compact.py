"""`weir pipeline compact`: few large files for many small ones.

Knows: its options, how steps look. Must never know: how files are joined.
"""

from dataclasses import asdict
from typing import Annotated, Final

import typer

from pyspark_weir.cli import options, output
from pyspark_weir.cli.archive import Root, follower

_mb: Final = 1 << 20
_target_mb_default: Final = 128
_grace_default: Final = 3_600_000


def compact(
    root: Root,
    *,
    target_mb: Annotated[
        int, typer.Option("--target-mb", min=1, help="how large files are to become, in MiB")
    ] = _target_mb_default,
    grace: Annotated[
        int,
        typer.Option(
            "--grace",
            parser=options.duration_ms,
            metavar="DURATION",
            show_default="1h",
            help="how long files that were replaced stay, for readers that have begun",
        ),
    ] = _grace_default,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be joined")] = False,
    as_json: options.Json = False,
) -> None:
    """Join small files of one stream and day; readers see all entries at any time, each once.

    It may run beside the archive job, and may be stopped at any time.
    """
    from pyspark_weir import clock
    from pyspark_weir.jobs import compact as job
    from pyspark_weir.manifest import Archive
    from pyspark_weir.place import Place

    place = Place.of(root)
    archive = Archive.read(place)
    if dry_run:
        found = job.bins(archive.files(), target_mb * _mb)
        rows = [
            {
                "stream": one.files[0].stream,
                "date": one.files[0].date,
                "files": len(one.files),
                "bytes": one.bytes,
            }
            for one in found
        ]
        output.rows(rows, ("stream", "date", "files", "bytes"), as_json=as_json)
        return
    rules = job.Rules(target_mb * _mb, grace, follower(archive.about.format, root))
    joined = deleted = 0
    for step in job.compact(place, rules, clock.wall_ms()):
        if as_json:
            output.line(asdict(step))
        joined += step.files if step.what == "wrote" else 0
        deleted += step.files if step.what == "deleted" else 0
    if not as_json:
        output.say(f"{joined:,} files joined, {deleted:,} replaced ones deleted")
