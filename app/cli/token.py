"""`weir token`: make static tokens, and the lines that a gateway needs to recognise them.

Knows: how to ask for a token. Must never know: where a gateway keeps tokens.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli import output
from weir.cli.options import duration_ms

if TYPE_CHECKING:
    from app.auth import Grant

commands: Final = typer.Typer(
    name="token",
    help="Make tokens, and the lines that a gateway needs to recognise them.",
    no_args_is_help=True,
)

Grants = Annotated[
    list[str],
    typer.Option(
        "--grant",
        metavar="GRANT",
        show_default=False,
        help="ACTIONS:STREAMS, for example read,write:orders.*, or JSON; may be repeated",
    ),
]
Expires = Annotated[
    int | None,
    typer.Option("--expires", parser=duration_ms, metavar="DURATION", help="when it ends, for example 30d"),
]
File = Annotated[
    Path | None, typer.Option("--file", help="the gateway's tokens_file, to which the table is appended")
]
Label = Annotated[str, typer.Option("--label", help="what it is for", show_default=False)]


def create(grant: Grants, expires: Expires = None, label: Label = "", file: File = None) -> None:
    """Make a token. Its text goes to standard output, once; its table to --file, else to standard error.

    Actions: read, write, consume, manage, admin; `*:*` allows everything.
    """
    from pydantic import ValidationError

    from app.auth import token_file, tokens

    try:
        made = tokens.create(_grants(grant), label=label, expires_at=_end(expires))
    except ValidationError as error:
        raise typer.BadParameter(error.errors()[0]["msg"]) from None
    table = token_file.write(made.token)
    if file is None:
        output.say("this is the only copy; the gateway needs this in its tokens_file:")
        print(table, end="", file=sys.stderr)
    else:
        _append(file, table)
    print(made.text)


def hash_token(grant: Grants, expires: Expires = None, label: Label = "") -> None:
    """Print the table for `tokens_file` of a token that is read from standard input."""
    from pydantic import ValidationError

    from app.auth import token_file, tokens

    text = sys.stdin.readline().strip()
    token_id = tokens.id_of(text)
    if token_id is None:
        raise typer.BadParameter("standard input holds no token: make one with `weir token create`")
    try:
        token = tokens.Token(
            id=token_id,
            hash=tokens.hash_of(text),
            grants=_grants(grant),
            label=label,
            expires_at=_end(expires),
        )
    except ValidationError as error:
        raise typer.BadParameter(error.errors()[0]["msg"]) from None
    print(token_file.write(token), end="")


def _append(path: Path, table: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(table)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--file") from None


def _grants(texts: list[str]) -> "tuple[Grant, ...]":
    from app.auth import Grant

    try:
        return tuple(map(Grant.parse, texts))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--grant") from None


def _end(expires_ms: int | None) -> datetime | None:
    if expires_ms is None:
        return None
    return (datetime.now(UTC) + timedelta(milliseconds=expires_ms)).replace(microsecond=0)


commands.command("create")(create)
commands.command("hash")(hash_token)
