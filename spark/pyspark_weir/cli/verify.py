"""`weir-spark verify`: whether an archive is whole.

Knows: its parameters, how findings look. Must never know: what is compared.
"""

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from pyspark_weir.cli import arguments, output


@dataclass(frozen=True, kw_only=True)
class VerifyArguments(arguments.GatewayArguments):
    """What is compared."""

    root: arguments.Root
    deep: Annotated[
        bool, typer.Option("--deep", help="compare every entry that the gateway still has, byte by byte")
    ] = False


def verify(options: VerifyArguments) -> None:
    """Compare the table, its files and the gateway: what is missing, double, damaged or out of order.

    Exit code 1 where anything is found. Nothing is changed.
    """
    from pyspark_weir.gateway import Gateway
    from pyspark_weir.jobs.verify import verify as compared
    from pyspark_weir.table.root import ArchiveRoot
    from pyspark_weir.table.table import ArchiveTable

    table = ArchiveTable.open(ArchiveRoot.of(options.root))
    with ExitStack() as stack:
        opened = {access.name: stack.enter_context(Gateway(access)) for access in options.accesses()}
        report = compared(table, opened, deep=options.deep)
    if options.as_json:
        output.line(asdict(report))
    else:
        if report.findings:
            output.rows([asdict(one) for one in report.findings], ("about", "what"), as_json=False)
        summary = f"{report.rows:,} entries in {report.files:,} files at version {report.version:,}"
        if options.deep:
            summary += f", {report.compared:,} compared with the gateway's"
        if report.deleted:
            summary += f"; {report.deleted:,} were deleted in the gateway since"
        faults = f"{len(report.findings):,} findings" if report.findings else "nothing is wrong"
        output.say(f"{summary}: {faults}")
    if report.findings:
        raise typer.Exit(1)
