"""`weir pipeline archive`: streams into Parquet files.

Knows: its options. Must never know: how a batch becomes files.
"""

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_weir.cli import options, output

if TYPE_CHECKING:
    from pyspark_weir.place import Place
    from pyspark_weir.progress import Progress

Root = Annotated[
    str, typer.Argument(metavar="ROOT", show_default=False, help="the archive: a folder, or an address")
]


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


def archive(  # noqa: PLR0913 - a command's options are its parameters
    root: Root,
    *,
    checkpoint: options.Checkpoint,
    form: Annotated[
        Form,
        typer.Option("--format", help="Parquet files with manifests, or a Delta table besides"),
    ] = Form.PARQUET,
    gateways: options.Gateways = None,
    streams: options.Streams = None,
    pattern: options.Pattern = None,
    source: options.SourceOptions = None,
    token_file: options.TokenFile = None,
    token_env: options.TokenEnv = None,
    once: options.Once = False,
    every: options.Every = None,
    mirror_group: options.MirrorGroup = None,
    master: options.Master = None,
    conf: options.Conf = None,
    as_json: options.Json = False,
) -> None:
    """Write all entries of streams into Parquet files by stream and day, each once, through any crash.

    It begins with the earliest entry. What a manifest under ROOT/_manifest names is safe; the gateway is told
    how far that goes, and `weir pipeline trim` removes it there. One checkpoint belongs to one root.
    """
    from pyspark_weir.errors import Unavailable
    from pyspark_weir.jobs.archive import Archiver, Archiving
    from pyspark_weir.running import Run, run

    connection = options.connection(gateways, token_file, token_env)
    archiver = Archiver(
        Archiving(
            root=root,
            checkpoint=checkpoint,
            source=options.source(connection, streams, pattern, source),
            format=form.value,
            follow=follower(form, root),
        )
    )
    archiver.check()  # before Spark has started, which takes a while
    what = Run(
        checkpoint=checkpoint,
        pace=options.pace(once=once, every_ms=every),
        session=options.session("archive", master, conf),
        gateways=options.accesses(connection),
        mirror_group=options.mirrored(mirror_group, source),
    )
    told = output.teller(as_json=as_json)

    def tell(progress: "Progress") -> None:
        # A gateway that is away is told with the next batch.
        with suppress(Unavailable):
            archiver.settle()
        told(progress)

    summary = run(what, archiver.query, tell, output.say)
    archiver.settle()
    output.ended(summary, as_json=as_json)
