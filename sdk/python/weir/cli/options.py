"""The parameters that commands share.

Knows: names, help texts and checks of parameters. Must never know: what a command does with them.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from weir.durations import parse_ms

DEFAULT_URL: Final = "http://127.0.0.1:8080"


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
Url = Annotated[str, typer.Option("--url", envvar="WEIR_URL", help="where the gateway is")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="file with the token to authenticate with")
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
