"""`weir-spark adopt`: an archive of the old form becomes a table.

Knows: its parameters, how progress looks. Must never know: how entries are converted.
"""

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from pyspark_weir.cli import arguments, output


@dataclass(frozen=True, kw_only=True)
class AdoptArguments(arguments.OutputArguments):
    """Which archive, and where to."""

    old: Annotated[
        str, typer.Argument(metavar="OLD", show_default=False, help="the archive of the old form: a folder")
    ]
    root: arguments.Root
    delete_old: Annotated[
        bool, typer.Option("--delete-old", help="delete the old archive, once all of it is counted")
    ] = False


def adopt(options: AdoptArguments) -> None:
    """Convert an archive that was made of manifests and folders, each entry once, and count all of it.

    It may be killed at any time and run again. The archive job goes on with its checkpoint.
    """
    from pyspark_weir.jobs import adopt as job
    from pyspark_weir.table.root import ArchiveRoot
    from pyspark_weir.table.table import ArchiveTable

    old, new = ArchiveRoot.of(options.old), ArchiveRoot.of(options.root)
    rows = 0
    for done in job.adopt(old, new):
        rows += done.rows
        if options.as_json:
            output.line(asdict(done))
        else:
            output.say(f"{rows:,} entries converted")
    table = ArchiveTable.open(new)
    if options.delete_old:
        job.delete_old(old, table)
    if not options.as_json:
        held = sum(one.rows for one in table.ranges())
        gone = "; the old archive is deleted" if options.delete_old else ""
        output.say(f"the table holds {held:,} entries, as the manifests say{gone}")
