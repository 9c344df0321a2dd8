"""`weir read`: a range of a stream, from either end, page by page.

Knows: how pages follow each other. Must never know: HTTP, how an entry looks.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output
from weir.cli.failure import Failure

if TYPE_CHECKING:
    from weir.cli.client import Gateway

Entry = dict[str, Any]

# Far below what one answer may hold: the first entries are shown before the last are read.
page_entries_max: Final = 1_000
_count_default: Final = 100


def read(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    *,
    start: Annotated[str, typer.Option(help="first ID, `-` for the oldest, `(ID` for beyond it")] = "-",
    end: Annotated[str, typer.Option(help="last ID, `+` for the newest, `(ID` for before it")] = "+",
    since: Annotated[str | None, typer.Option(help="in place of --start: a time, as RFC 3339 has it")] = None,
    until: Annotated[str | None, typer.Option(help="in place of --end: a time, as RFC 3339 has it")] = None,
    count: Annotated[int, typer.Option(min=1, help="how many entries")] = _count_default,
    everything: Annotated[bool, typer.Option("--all", help="all of them, however many")] = False,
    reverse: Annotated[bool, typer.Option("--reverse", help="from the newest to the oldest")] = False,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
) -> None:
    """Print a range of entries, one a line."""
    from weir.cli.client import Gateway

    bounds = {
        "start": None if since else start,
        "since": since,
        "end": None if until else end,
        "until": until,
    }
    if (since and start != "-") or (until and end != "+"):
        raise typer.BadParameter("--since stands in place of --start, --until in place of --end")
    with Gateway(url, token_file) as gateway:
        found = False
        for page in pages(gateway, stream, bounds, count=None if everything else count, reverse=reverse):
            found = found or bool(page)
            output.entries(page, as_json=as_json)
        if not found and not _exists(gateway, stream):
            output.say(f"there is no stream {output.word(stream)}")


def _exists(gateway: "Gateway", stream: str) -> bool:
    from weir.cli.client import of_stream

    try:
        gateway.get(of_stream(stream))
    except Failure as failure:
        if failure.code != "no_stream":
            raise
        return False
    return True


def pages(
    gateway: "Gateway", stream: str, bounds: dict[str, str | None], *, count: int | None, reverse: bool
) -> Iterator[list[Entry]]:
    """The entries of a range, at most `count` of them, None for all; newest first if `reverse`."""
    from weir.cli.client import of_stream

    path, left = f"{of_stream(stream)}/entries", count
    while left is None or left > 0:
        asked = page_entries_max if left is None else min(left, page_entries_max)
        answer = gateway.get(path, {**bounds, "count": asked, "reverse": reverse or None})
        found: list[Entry] = answer["entries"]
        yield found
        if not found or not answer["more"]:
            return
        if left is not None:
            left -= len(found)
        beyond = f"({answer['next']}"
        bounds = (
            {**bounds, "end": beyond, "until": None}
            if reverse
            else {**bounds, "start": beyond, "since": None}
        )
