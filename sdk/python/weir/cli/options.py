"""The parameters that commands share.

Knows: names, help texts and checks of parameters. Must never know: what a command does with them.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo, TyperInfo

from weir.cli.failure import Failure
from weir.durations import parse_ms

if TYPE_CHECKING:
    from weir import Client

Model = TypeVar("Model")

DEFAULT_URL: Final = "http://127.0.0.1:8080"
# A shell waits for what may complete a name.
_COMPLETION_S_MAX: Final = 1.0
_COMPLETIONS_MAX: Final = 100


def as_command(run: Callable[[Model], None]) -> Callable[..., None]:
    """The function as Typer reads one: with a parameter for each member of the dataclass that it takes."""
    (hint, *_) = get_type_hints(run).values()
    members = get_type_hints(hint, include_extras=True)

    @wraps(run)
    def command(**values: Any) -> None:  # noqa: ANN401 - checked by Typer, by the members' types
        run(hint(**values))

    parameters = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=members[one.name],
        )
        for one in fields(hint)
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


def join_lines(app: typer.Typer) -> None:
    """Make one line of each paragraph of the help texts, so that the terminal's width alone wraps it."""
    commands: list[CommandInfo | TyperInfo] = [*app.registered_commands]
    if app.registered_callback is not None:
        commands.append(app.registered_callback)
    for one in commands:
        text = one.help or inspect.getdoc(one.callback)
        one.help = text and re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            join_lines(group.typer_instance)


def duration_ms(text: str | int) -> int:
    """`250ms`, `30s`, `5m`, `2h`, `7d` → milliseconds; 0 needs no unit. A default comes as what it is."""
    if isinstance(text, int):
        return text
    try:
        return parse_ms(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def duration_or_none(text: str) -> int | str:
    """The same, or `none` for no limit."""
    try:
        return text if text == "none" else parse_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or none") from None


class DefaultGroup(TyperGroup):
    """Commands of which the first one is meant where no other one is named."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - Typer's own Click, private
        """See `click.Group`."""
        if args and args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().resolve_command(ctx, args)


def agree(question: str, *, is_agreed: bool) -> None:
    """Ask, unless it is agreed already. Raises Failure for a no, and where there is no terminal to ask at."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} There is no terminal to ask at: --yes agrees")
    if not typer.confirm(question, err=True):
        raise Failure("nothing was changed")


def _stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of streams that begin so, for completion: some, soon, or none."""
    from weir import Client
    from weir.errors import WeirError

    url = context.params.get("url") or os.environ.get("WEIR_URL") or DEFAULT_URL
    token_file = context.params.get("token_file")
    try:
        token = None if token_file is None else Path(token_file).read_text(encoding="ascii").strip()
        with Client(url, token=token, retry_s=0, timeout_s=_COMPLETION_S_MAX) as client:
            return [one["name"] for one in islice(client.list_streams(prefix=incomplete), _COMPLETIONS_MAX)]
    except (WeirError, OSError, ValueError):
        return []


Stream = Annotated[str, typer.Argument(help="the stream", show_default=False, autocompletion=_stream_names)]
Group = Annotated[str, typer.Argument(help="the group", show_default=False)]
Url = Annotated[str, typer.Option("--url", envvar="WEIR_URL", help="URL of the gateway")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="file with the token to authenticate with")
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="WEIR_CA", help="file with the authorities that sign the gateway's certificate"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="for programs: JSON, one object a line")]
Yes = Annotated[bool, typer.Option("--yes", help="do it without asking")]
Patience = Annotated[
    int,
    typer.Option(
        "--retry-for",
        parser=duration_ms,
        metavar="DURATION",
        show_default="1m",
        help="how long to try again when the gateway is away or busy",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Where the gateway is."""

    url: Url = DEFAULT_URL
    token_file: TokenFile = None
    ca: Ca = None


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(ConnectionOptions):
    """What every command has that asks a gateway and prints its answer."""

    as_json: Json = False

    def connect(self) -> "AbstractContextManager[Client]":
        """A client of it. See `weir.cli.gateway`."""
        from weir.cli.gateway import connect

        return connect(self.url, self.token_file, self.ca)
