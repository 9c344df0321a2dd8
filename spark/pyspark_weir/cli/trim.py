"""`weir-spark trim`: what is archived, out of the gateway.

Knows: its parameters, how a plan looks. Must never know: which bounds there are.
"""

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspark_weir.cli import arguments, output
from weir.cli.options import duration_ms

if TYPE_CHECKING:
    from pyspark_weir.jobs.trim import Planned

_COLUMNS = ("stream", "entries", "upto", "because", "outcome")


@dataclass(frozen=True, kw_only=True)
class TrimArguments(arguments.GatewayArguments):
    """What is kept, and whether anything is removed."""

    root: arguments.Root
    keep_ms: Annotated[
        int,
        typer.Option(
            "--keep",
            parser=duration_ms,
            metavar="DURATION",
            show_default="0",
            help="keep what is younger, by the time in its ID",
        ),
    ] = 0
    keep_last: Annotated[int, typer.Option(min=0, help="keep this many entries of each stream")] = 0
    ignored_groups: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore-group",
            metavar="GROUP",
            help="plan without this group; the gateway still refuses what it has not finished",
        ),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", help="do it; without it nothing is removed")] = False


def trim(options: TrimArguments) -> None:
    """Show what may be trimmed: what an archive surely holds, and every group has finished. Do it with --yes.

    Before a stream is trimmed, the table, its files and the gateway's own count are compared. Exit code 1
    where one was refused.
    """
    from pyspark_weir import clock
    from pyspark_weir.gateway import Gateway
    from pyspark_weir.jobs.trim import Rules, plan, run
    from pyspark_weir.table.root import ArchiveRoot
    from pyspark_weir.table.table import ArchiveTable

    table = ArchiveTable.open(ArchiveRoot.of(options.root))
    ignored = frozenset(options.ignored_groups or ())
    rules = Rules(keep_ms=options.keep_ms, keep_last=options.keep_last, ignored_groups=ignored)
    with ExitStack() as stack:
        opened = {access.name: stack.enter_context(Gateway(access)) for access in options.accesses()}
        planned = plan(table, opened, rules, clock.wall_ms())
        outcomes: dict[Any, str | int] = {}
        if options.yes:
            for done in run(table, opened, planned):
                outcomes[done.planned.key] = done.deleted if done.refused is None else done.refused
    rows = [_row(one, outcomes.get(one.key), done=options.yes) for one in planned]
    output.rows(rows, _COLUMNS, as_json=options.as_json)
    pending = any(one.entries and one.refused is None for one in planned)
    if pending and not options.yes and not options.as_json:
        output.say("nothing was removed; --yes does it")
    refused = [one for one in planned if one.refused is not None]
    if refused or any(isinstance(outcome, str) for outcome in outcomes.values()):
        raise typer.Exit(1)


def _row(planned: "Planned", outcome: str | int | None, *, done: bool) -> dict[str, Any]:
    said = f"would remove {planned.entries:,}" if planned.entries else "nothing to remove"
    if planned.refused is not None:
        said = f"refused: {planned.refused}"
    elif isinstance(outcome, str):
        said = f"refused: {outcome}"
    elif done:
        said = f"removed {outcome or 0:,}"
    members = asdict(planned)
    refused = planned.refused or (outcome if isinstance(outcome, str) else None)
    return {
        **members,
        "key": None,
        **planned.key._asdict(),
        "because": planned.why,
        "outcome": said,
        "refused": refused,
        "removed": outcome if isinstance(outcome, int) else 0,
    }
