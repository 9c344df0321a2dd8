"""The parameters that commands share, and how durations are written.

Knows: names, help texts and checks of parameters. Must never know: what a command does with them.
"""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_DURATION: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str | int) -> int:
    """`250ms`, `30s`, `5m`, `2h`, `7d` → milliseconds; 0 needs no unit. A default comes as what it is.

    A number without a unit is refused: it would be seconds to some and milliseconds to others.
    """
    if isinstance(text, int):
        return text
    if text == "0":
        return 0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration such as 250ms, 30s, 5m, 2h or 7d")
    return int(found[1]) * _UNIT_MS[found[2]]


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
