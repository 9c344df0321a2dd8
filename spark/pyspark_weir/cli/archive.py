"""`weir-spark archive`: streams into a Delta table.

Knows: its parameters. Must never know: how a batch becomes a commit.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_weir.cli import arguments, output

if TYPE_CHECKING:
    from pyspark_weir.progress import Progress


@dataclass(frozen=True, kw_only=True)
class ArchiveArguments(arguments.QueryArguments):
    """Where the archive is."""

    root: arguments.Root


def archive(options: ArchiveArguments) -> None:
    """Archive all entries of streams in a Delta table, each once, through any crash.

    It begins with the earliest entry, or where the table ends. The gateway learns how far the archive goes,
    and `weir-spark trim` removes it there. Several checkpoints may share a table, but no stream.
    """
    from pyspark_weir.errors import Unavailable
    from pyspark_weir.jobs.archive import Archiver, Archiving
    from pyspark_weir.running import run

    archiver = Archiver(
        Archiving(
            root=options.root,
            checkpoint=options.checkpoint,
            source=options.source(),
        )
    )
    archiver.check()  # before Spark has started, which takes a while
    told = output.teller(as_json=options.as_json)

    def tell(progress: "Progress") -> None:
        # A gateway that is away is told with the next batch.
        with suppress(Unavailable):
            archiver.settle()
        told(progress)

    summary = run(options.query("archive"), archiver.query, tell)
    archiver.settle()
    output.ended(summary, as_json=options.as_json)
