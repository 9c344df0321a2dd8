"""`weir tail`: what is published, as it is published; as a member of a group with --group.

Knows: where to begin, where to go on, what was missed. Must never know: HTTP, how an entry looks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output
from weir.cli.read import pages
from weir.errors import NoAnswerError, NotFoundError

if TYPE_CHECKING:
    from weir import Client

_WAIT_MS: Final = 20_000
_PAGE_ENTRIES_MAX: Final = 1_000
# Acknowledged together once they are printed; what a crash leaves unacknowledged is shown again.
_DELIVERED_ENTRIES_MAX: Final = 100
_LAST_DEFAULT: Final = 10
_LAST_MAX: Final = 10_000


def tail(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    *,
    last: Annotated[
        int | None,
        typer.Option("-n", "--last", min=0, max=_LAST_MAX, help="begin this number of entries back [10]"),
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="begin after this ID; 0: at the oldest; $: with the next")
    ] = None,
    group: Annotated[str | None, typer.Option(help="as a consumer of this group; acknowledges")] = None,
    consumer: Annotated[str | None, typer.Option(help="the consumer's name, with --group")] = None,
    as_json: options.Json = False,
    patience_ms: options.Patience = 60_000,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Print entries as they come, one a line, until Ctrl-C or the end of a closed stream.

    With --group and --consumer it shares the stream with the group's other consumers: first what this
    consumer has not acknowledged yet, then new entries; each is acknowledged once it is printed.
    """
    if (group is None) != (consumer is None):
        raise typer.BadParameter("--group and --consumer go together")
    if last is not None and after is not None:
        raise typer.BadParameter("-n and --after are two places to begin")
    if group is not None and (last is not None or after is not None):
        raise typer.BadParameter("a group knows where to begin: -n and --after do not go with --group")
    with _until_interrupted():
        from weir.cli.gateway import connect

        with connect(url, token_file, ca, patience_ms=patience_ms) as client:
            if group is not None and consumer is not None:
                _consume(client, stream, group, consumer, as_json=as_json)
            else:
                begin = _LAST_DEFAULT if last is None else last
                cursor = after if after is not None else show_last(client, stream, begin, as_json=as_json)
                _follow(client, stream, cursor, as_json=as_json)


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """Ctrl-C is how this ends, so it is no failure."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def show_last(client: "Client", stream: str, count: int, *, as_json: bool) -> str:
    """Print the newest `count` entries; where to go on."""
    if count == 0:
        return "$"
    from weir._cursors import bare

    # First of all, so that it is a cursor of the stream whose entries are shown.
    cursor = _end_of(client, stream)
    bounds: dict[str, str | None] = {"end": bare(cursor)}
    found = [
        entry for page in pages(client, stream, bounds, count=count, reverse=True) for entry in page.entries
    ]
    found.reverse()
    output.entries(found, as_json=as_json)
    return cursor


def _end_of(client: "Client", stream: str) -> str:
    """The cursor after all that there is; of an empty stream, before its first entry."""
    return str(_read_after(client, stream, "$")["next"])


def _read_after(client: "Client", stream: str, cursor: str, wait_ms: int | None = None) -> dict[str, Any]:
    from weir.paths import stream_path

    query = {"after": cursor, "count": _PAGE_ENTRIES_MAX, "cursor": "generation", "wait": wait_ms}
    answer: dict[str, Any] = client.call(
        "GET", f"{stream_path(stream)}/entries", query=query, wait_ms=wait_ms or 0
    )
    return answer


def _follow(client: "Client", stream: str, cursor: str, *, as_json: bool) -> None:
    if cursor == "$":
        # Resolved once: sent twice, it would skip what came between.
        cursor = _end_of(client, stream)
    if "." not in cursor:
        # Without a generation: there is no stream, or the user has named the place.
        _say_if_absent(client, stream)
    while True:
        answer = _read_after(client, stream, cursor, _WAIT_MS)
        _show(stream, answer, as_json=as_json)
        if answer.get("closed"):
            return
        cursor = answer["next"]


def _say_if_absent(client: "Client", stream: str) -> None:
    """Say that it waits for a stream that does not exist: the name may be wrong."""
    from weir.paths import stream_path

    try:
        client.call("GET", stream_path(stream))
    except NotFoundError:
        output.say(f"there is no stream {stream!r} yet: waiting for its first entry (weir streams lists all)")


def _consume(client: "Client", stream: str, group: str, consumer: str, *, as_json: bool) -> None:
    from weir.paths import consumer_path

    read = partial(client.call, "POST", f"{consumer_path(stream, group, consumer)}/read")
    owed = True
    while True:
        try:
            if owed:
                answer = read(body={"count": _DELIVERED_ENTRIES_MAX, "after": "0-0"}, repeatable=True)
            else:
                answer = read(body={"count": _DELIVERED_ENTRIES_MAX, "wait": _WAIT_MS}, wait_ms=_WAIT_MS)
        except NoAnswerError:
            if owed:
                raise
            # An answer that was lost has delivered its entries all the same: they are in the history.
            owed = True
            continue
        _show(stream, answer, as_json=as_json)
        ids = [entry["id"] for entry in answer["entries"]]
        if ids:
            client.group(stream, group).ack(*ids)
        if answer.get("closed") and not owed:
            return
        owed = owed and bool(ids)


def _show(stream: str, answer: dict[str, Any], *, as_json: bool) -> None:
    gap = answer.get("gap")
    if gap is not None and as_json:
        # Where to go on is this command's to know.
        output.lines([output.json_line({"gap": {name: gap[name] for name in gap if name != "next"}})])
    elif gap is not None:
        output.say(output.gap_line(stream, gap))
    output.entries(answer["entries"], as_json=as_json)
