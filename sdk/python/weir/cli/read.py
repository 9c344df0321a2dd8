"""`weir read`: a range of a stream, from either end, page by page.

Knows: how pages follow each other. Must never know: HTTP, how an entry looks.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from weir.cli import options, output
from weir.cli.failure import Failure

if TYPE_CHECKING:
    from weir import Client

Entry = dict[str, Any]

# Far below what one answer may hold: the first entries are shown before the last are read.
PAGE_ENTRIES_MAX: Final = 1_000
_COUNT_DEFAULT: Final = 100


class Page(NamedTuple):
    """Some entries of a range, and the last ID of them where the range has more."""

    entries: list[Entry]
    following: str | None = None


def read(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    *,
    start: Annotated[str, typer.Option(help="first ID, `-` for the oldest, `(ID` for beyond it")] = "-",
    end: Annotated[str, typer.Option(help="last ID, `+` for the newest, `(ID` for before it")] = "+",
    since: Annotated[
        str | None, typer.Option(help="in place of --start: a time, as RFC 3339 has it, or a date")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="in place of --end: a time, as RFC 3339 has it, or a date")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help=f"how many entries [{_COUNT_DEFAULT}]")] = None,
    everything: Annotated[bool, typer.Option("--all", help="all of them, however many")] = False,
    reverse: Annotated[bool, typer.Option("--reverse", help="from the newest to the oldest")] = False,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Print a range of entries, one a line."""
    from weir.cli.gateway import connect

    bounds = {
        "start": None if since else start,
        "since": since,
        "end": None if until else end,
        "until": until,
    }
    if (since and start != "-") or (until and end != "+"):
        raise typer.BadParameter("--since stands in place of --start, --until in place of --end")
    with connect(url, token_file, ca) as client:
        most = None if everything else count or _COUNT_DEFAULT
        shown, last = 0, Page([])
        for last in pages(client, stream, bounds, count=most, reverse=reverse):
            shown += len(last.entries)
            output.entries(last.entries, as_json=as_json)
        if not shown and client.get_stream(stream) is None:
            raise Failure(f"there is no stream {output.word(stream)}")
    if last.following is not None and count is None:
        from weir._cursors import bare

        option = "--end" if reverse else "--start"
        rest = f"--all or --count shows them, {option} '({bare(last.following)}' goes on"
        output.say(f"{output.counted(shown, 'entry', 'entries')}, and there are more: {rest}")


def pages(
    client: "Client", stream: str, bounds: dict[str, str | None], *, count: int | None, reverse: bool
) -> Iterator[Page]:
    """The pages of a range, at most `count` entries, None for all; newest first if `reverse`. Those of a
    stream that has taken the place of the first one are not of it.
    """
    from weir._cursors import STILL_THE_STREAM, WITH_GENERATION
    from weir.paths import stream_path

    left = count
    while left is None or left > 0:
        asked = PAGE_ENTRIES_MAX if left is None else min(left, PAGE_ENTRIES_MAX)
        query = {**bounds, "count": asked, **({"reverse": True} if reverse else WITH_GENERATION)}
        answer = client.call("GET", f"{stream_path(stream)}/entries", query=query)
        gap = answer.get("gap")
        if gap is not None:
            output.say(output.gap_line(stream, gap))
            if gap.get("reason") not in STILL_THE_STREAM:
                return
        found: list[Entry] = answer["entries"]
        yield Page(found, answer["next"] if found and answer["more"] else None)
        if not found or not answer["more"]:
            return
        if left is not None:
            left -= len(found)
        if reverse:
            bounds = {**bounds, "end": f"({answer['next']}", "until": None}
        else:
            bounds = {**bounds, "after": answer["next"], "start": None, "since": None}
