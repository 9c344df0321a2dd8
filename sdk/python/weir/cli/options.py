"""The parameters that commands share.

Knows: names, help texts and checks of parameters. Must never know: what a command does with them.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer
from typer.models import CommandInfo, TyperInfo

from weir.durations import parse_ms

Model = TypeVar("Model")

DEFAULT_URL: Final = "http://127.0.0.1:8080"


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


Stream = Annotated[str, typer.Argument(help="the stream", show_default=False)]
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
