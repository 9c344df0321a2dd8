"""`weir apply`: make streams, groups and schedules what a file says.

Knows: what is asked before, and printed after. Must never know: the file's form, requests.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.cli import options, output

if TYPE_CHECKING:
    from weir.cli.declared import Declared


@dataclass(frozen=True, kw_only=True)
class ApplyOptions(options.GatewayOptions):
    """A file, and how it is taken."""

    file: Annotated[Path, typer.Argument(help="a file of streams in TOML", show_default=False)]
    only_diff: Annotated[
        bool, typer.Option("--diff", help="only show what would change; exit code 1 if anything would")
    ] = False
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="also delete what the file does not name: streams under its prefix, groups, schedules",
        ),
    ] = False
    is_agreed: options.Yes = False


def apply(given: ApplyOptions) -> None:
    """Make streams, their retention, groups and schedules what a file says. A second time changes nothing.

    What would remove entries or anything else is asked for first, unless --yes is there.
    """
    from weir.cli import declared

    wanted = _read(given.file)
    with given.connect() as client:
        pruned = declared.surplus(client, wanted) if given.prune else ()
        changes = list(chain(declared.missing(client, wanted, datetime.now(UTC)), pruned))
        lost = [one.lost for one in changes if one.lost]
        if lost and not given.only_diff:
            options.agree(f"this removes: {'; '.join(lost)}. Go on?", is_agreed=given.is_agreed)
        for one in changes:
            if not given.only_diff:
                one.carry_out(client)
            line = {"change": one.what, "lost": one.lost or None, "done": not given.only_diff}
            output.lines([output.json_line(line) if given.as_json else one.what])
    if not changes and not given.as_json:
        output.lines(["nothing to change"])
    if changes and given.only_diff:
        raise typer.Exit(1)


def _read(path: Path) -> "Declared":
    from weir.cli import declared

    try:
        with path.open("rb") as file:
            text = file.read(declared.FILE_BYTES_MAX + 1)
        if len(text) > declared.FILE_BYTES_MAX:
            raise typer.BadParameter(
                f"{path} has more than {declared.FILE_BYTES_MAX} bytes", param_hint="FILE"
            )
        return declared.read(text)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="FILE") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="FILE") from None
