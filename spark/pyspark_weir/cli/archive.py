"""`weir-spark archive`: streams into Parquet files.

Knows: its parameters. Must never know: how a batch becomes files.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_weir.cli import arguments, output

if TYPE_CHECKING:
    from pyspark_weir.place import Place
    from pyspark_weir.progress import Progress


class Form(StrEnum):
    """In which form an archive lies."""

    PARQUET = "parquet"
    DELTA = "delta"


def follower(form: str, root: str) -> "Callable[[Place], object] | None":
    """What brings another log up to an archive's manifests, where its form has one. Raises OptionError for a
    root that cannot have that form.
    """
    if form != Form.DELTA:
        return None
    from pyspark_weir.delta import check_root, follow

    check_root(root)
    return follow


@dataclass(frozen=True, kw_only=True)
class ArchiveArguments(arguments.QueryArguments):
    """Where the archive is."""

    root: arguments.Root
    form: Annotated[
        Form,
        typer.Option("--format", help="Parquet files with manifests, or a Delta table besides"),
    ] = Form.PARQUET


def archive(options: ArchiveArguments) -> None:
    """Write all entries of streams into Parquet files by stream and day, each once, through any crash.

    It begins with the earliest entry. What a manifest under ROOT/_manifest names is safe; the gateway learns
    how far that goes, and `weir-spark trim` removes it there. One checkpoint belongs to one root.
    """
    from pyspark_weir.errors import Unavailable
    from pyspark_weir.jobs.archive import Archiver, Archiving
    from pyspark_weir.running import run

    archiver = Archiver(
        Archiving(
            root=options.root,
            checkpoint=options.checkpoint,
            source=options.source(),
            format=options.form.value,
            follow=follower(options.form, options.root),
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
