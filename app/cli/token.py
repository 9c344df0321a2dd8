"""`weir token`: make static tokens, with a running gateway or as lines for its file; list and revoke them.

Knows: how to ask for a token. Must never know: how a gateway keeps tokens.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output
from weir.cli.options import duration_ms

if TYPE_CHECKING:
    from app.auth import Grant

commands: Final = typer.Typer(
    name="token",
    help="Make, list and revoke tokens.",
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
Out = Annotated[
    Path | None,
    typer.Option("--out", help="a new file for the token, which only its owner may read"),
]
Label = Annotated[str, typer.Option("--label", help="what it is for", show_default=False)]


def create(  # noqa: PLR0913 - a command's options are its parameters
    context: typer.Context,
    grant: Grants,
    *,
    expires: Expires = None,
    label: Label = "",
    file: File = None,
    out: Out = None,
    url: options.Url = options.DEFAULT_URL,
    with_token: options.TokenFile = None,
) -> None:
    """Make a token. Its text goes to --out or to standard output, once.

    With --token-file a running gateway makes and keeps it; the token in that file needs `admin` or `issue`.
    Without it no gateway is asked: the table for its tokens_file goes to --file, else to standard error.
    Actions: read, write, consume, close, manage, admin, issue; `*:*` allows everything.
    """
    if with_token is not None:
        if file is not None:
            raise typer.BadParameter("--file is for tokens that no gateway keeps: leave out --token-file")
        grants = [one.model_dump(mode="json", exclude_none=True) for one in _grants(grant)]
        body = {"grants": grants, "label": label, "expires_in_ms": expires}
        with _written_to(out) as write:
            write(_call(url, with_token, "POST", "", body)["token"])
        return
    source = context.get_parameter_source("url")
    # WEIR_URL is in the environment for other commands as well.
    if source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(
            "a gateway makes tokens for those who have one: name the file that holds yours with "
            "--token-file, or leave out --url and put the table into the gateway's tokens_file"
        )
    from pydantic import ValidationError

    from app.auth import token_file, tokens

    try:
        made = tokens.create(_grants(grant), label=label, expires_at=_end(expires))
    except ValidationError as error:
        raise typer.BadParameter(error.errors()[0]["msg"]) from None
    table = token_file.write(made.token)
    with _written_to(out) as write:
        if file is None:
            output.say("this is the only copy; the gateway needs this in its tokens_file:")
            print(table, end="", file=sys.stderr)
        else:
            _append(file, table)
        write(made.text)


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


def list_tokens(
    *,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
) -> None:
    """List the tokens of a running gateway that are good now: all, or with `issue` those that it has made."""
    from app.auth import Grant

    for token in _call(url, token_file, "GET", "", None)["tokens"]:
        if as_json:
            output.lines([output.json_line(token)])
            continue
        grants = " ".join(str(Grant.from_value(one).describe()) for one in token["grants"])
        end = f"until {token['expires_at']}" if token["expires_at"] else "for ever"
        output.lines([f"{token['id']}  {token['label'] or '-'}  {end}  {grants}"])


def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="as `weir token list` shows it", show_default=False)
    ],
    *,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
) -> None:
    """Revoke a token of a running gateway. What is open with it ends within a second."""
    from app.auth import tokens
    from weir.paths import segment

    if not re.fullmatch(tokens.ID_PATTERN, token_id):
        raise typer.BadParameter("it is 12 letters and digits, as `weir token list` shows", param_hint="ID")
    _call(url, token_file, "DELETE", "/" + segment(token_id, "token"), None)
    output.say(f"{token_id} is revoked")


def _call(url: str, token_file: Path | None, method: str, path: str, body: object) -> Any:  # noqa: ANN401 - JSON
    """Call the tokens of a gateway. Making one twice makes two, so it is not repeated."""
    from weir import NotFoundError
    from weir.cli.failure import Failure
    from weir.cli.gateway import connect

    with connect(url, token_file) as client:
        try:
            return client.call(method, f"/v1/admin/tokens{path}", body=body, repeatable=method != "POST")
        except NotFoundError as error:
            if "admin_listen" not in error.detail:
                raise
            raise Failure(f"{error.detail}, and name that address in --url", code=error.code) from None


@contextmanager
def _written_to(path: Path | None) -> Iterator[Callable[[str], None]]:
    """What writes the token. The file is made before the token is, and is gone again if none is made."""
    if path is None:
        yield print
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise typer.BadParameter(f"{path} exists: a token needs a new file", param_hint="--out") from None
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--out") from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            yield lambda text: print(text, file=file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


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
commands.command("list")(list_tokens)
commands.command("revoke")(revoke)
commands.command("hash")(hash_token)
