"""`weir pipeline dlq --requeue`: dead letters put back, or what would be put back.

Knows: how that is asked for and how it looks. Must never know: how letters are found and put back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pyspark_weir.cli import options, output
from pyspark_weir.errors import OptionError

if TYPE_CHECKING:
    from pyspark_weir.session import SessionOptions

_BACK: Final = "Putting back"

Requeue = Annotated[
    bool,
    typer.Option(
        "--requeue", rich_help_panel=_BACK, help="put entries back where they came from; shows them only"
    ),
]
Yes = Annotated[bool, typer.Option("--yes", rich_help_panel=_BACK, help="really put them back")]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        rich_help_panel=_BACK,
        help="only letters for which this is true: \"reason = 'timeout' and fields['user'] = 'ann'\"",
    ),
]
Remove = Annotated[
    bool, typer.Option("--remove", rich_help_panel=_BACK, help="delete the letters that were put back")
]


@dataclass(frozen=True)
class Choice:
    """What is to be put back, and whether it is meant."""

    where: str | None
    yes: bool
    remove: bool

    def expect_alone(self) -> None:
        """Refuse what has a meaning with --requeue only. Raises OptionError."""
        if self.where is not None or self.yes or self.remove:
            raise OptionError("--where, --yes and --remove go with --requeue")


def requeue(
    connection: Mapping[str, str],
    streams: str | None,
    choice: Choice,
    session: "SessionOptions",
    *,
    as_json: bool,
) -> None:
    """Show which letters there are, and put them back if that is meant. Raises PipelineError."""
    from pyspark_weir.jobs import requeue as job
    from pyspark_weir.session import open_session

    names = tuple(name.strip() for name in (streams or "").split(",") if name.strip())
    if not names:
        raise OptionError("which letters? name their streams with --streams a,b")
    access = options.one_access(dict(connection))
    letters = job.chosen(open_session(session), job.Requeue(access, names, where=choice.where))
    found = job.counted(letters)
    count = sum(one.count for one in found)
    rows = [one.members() for one in found]
    output.rows(rows, ("letters", "source", "reason", "entries"), as_json=as_json)
    if not choice.yes:
        output.say(f"would put back {count:,} entries; nothing was done: --yes does it")
        return
    job.put_back(letters, access)
    output.say(f"put back {count:,} entries; those that had been put back within a day are not there twice")
    if choice.remove:
        output.say(f"removed {job.remove(letters, access):,} letters")
