"""`weir redrive`: dead letters of a group, back to the stream that they came from.

Knows: how many requests it takes, and that each has an effect once. Must never know: HTTP, tables.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from weir.cli import options, output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weir import Client, DeadLetterFilter, Redriven, RedrivenEntry

_COUNT_DEFAULT: Final = 100
# IDs of one request; far below what a gateway allows.
_CALL_IDS_MAX: Final = 100
_END: Final = "+"


@dataclass(frozen=True, kw_only=True)
class RedriveOptions:
    """Which dead letters go back, and what is printed of them."""

    stream: options.Stream
    group: options.Group
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="these dead letters, by their IDs in the dead-letter stream; without: the oldest"
        ),
    ] = None
    reason: Annotated[str | None, typer.Option(help="those with this reason only")] = None
    consumer: Annotated[str | None, typer.Option(help="those that this consumer held last")] = None
    start: Annotated[str | None, typer.Option(help="first ID in the dead-letter stream")] = None
    end: Annotated[str | None, typer.Option(help="last ID in the dead-letter stream")] = None
    count: Annotated[int | None, typer.Option(min=1, help="how many dead letters [100]")] = None
    everything: Annotated[bool, typer.Option("--all", help="all of them, however many")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show which would go back")] = False
    as_json: options.Json = False
    patience_ms: options.Patience = 60_000
    url: options.Url = options.DEFAULT_URL
    token_file: options.TokenFile = None
    ca: options.Ca = None

    @property
    def filter(self) -> "DeadLetterFilter":
        """What selects dead letters without IDs."""
        given = {"reason": self.reason, "consumer": self.consumer, "start": self.start, "end": self.end}
        return cast("DeadLetterFilter", {name: one for name, one in given.items() if one is not None})

    def __post_init__(self) -> None:
        """Raises typer.BadParameter for options that exclude each other."""
        if self.ids and (self.filter or self.everything or self.count is not None):
            raise typer.BadParameter("IDs go without --reason, --consumer, --start, --end, --count and --all")
        if self.everything and self.count is not None:
            raise typer.BadParameter("--count and --all are two numbers of dead letters")


def redrive(given: RedriveOptions) -> None:
    """Send dead letters of a group back to its stream, as new entries that every group reads.

    Prints the ID of each dead letter and of the new entry. An interrupted call is repeated, and done once.
    """
    from weir.cli.gateway import connect

    with connect(given.url, given.token_file, given.ca, patience_ms=given.patience_ms) as client:
        calls = RedriveCalls(client, given.stream, given.group, dry_run=given.dry_run)
        most = None if given.everything else given.count or _COUNT_DEFAULT
        total, answer = 0, None
        for answer in (
            calls.redrive_ids(given.ids) if given.ids else calls.redrive_matching(given.filter, most)
        ):
            total += answer["redriven"]
            output.lines(output.json_line(row) if given.as_json else _line(row) for row in answer["entries"])
    source = answer["stream"] if answer is not None else ""
    went = "would go" if given.dry_run else "went"
    shown = output.counted(total, "dead letter", "dead letters")
    output.say(f"{shown} of {source} {went} back to {given.stream}")
    if answer is not None and answer["next"] is not None and not given.ids:
        output.say(f"there may be more: --start '({answer['next']}' goes on")


def _line(row: "RedrivenEntry") -> str:
    return row["dead_letter_id"] if row["id"] is None else f"{row['dead_letter_id']} {row['id']}"


class RedriveCalls:
    """The calls of one redrive; yields the answer of each."""

    def __init__(self, client: "Client", stream: str, group: str, *, dry_run: bool) -> None:
        self._client = client
        self._group = client.group(stream, group)
        self._dry_run = dry_run

    def redrive_ids(self, ids: list[str]) -> "Iterator[Redriven]":
        """Redrive these IDs. Repeats the request for those that did not fit into one turn of the gateway."""
        left = ids
        while left:
            asked = left[:_CALL_IDS_MAX]
            answer = self._group.redrive(asked, dry_run=self._dry_run)
            yield answer
            done = {row["dead_letter_id"] for row in answer["entries"]}
            rest = [one for one in asked if one not in done] if answer["next"] is not None else []
            left = [*rest, *left[_CALL_IDS_MAX:]]

    def redrive_matching(self, wanted: "DeadLetterFilter", most: int | None) -> "Iterator[Redriven]":
        """Redrive at most `most` that match, None for all. An entry that dies again is not resent."""
        left = most
        if "end" not in wanted:
            wanted = {**wanted, "end": self._last()}
        while left is None or left > 0:
            asked = _CALL_IDS_MAX if left is None else min(left, _CALL_IDS_MAX)
            answer = self._group.redrive(**wanted, count=asked, dry_run=self._dry_run)
            yield answer
            if answer["next"] is None:
                return
            wanted = {**wanted, "start": f"({answer['next']}"}
            if left is not None:
                left -= answer["redriven"]

    def _last(self) -> str:
        """The last ID of the dead-letter stream; `+` without one: then the call itself is refused."""
        place = self._group.info().get("dead_letter")
        found = None if not place else self._client.get_stream(place["stream"])
        return _END if found is None else found["last_id"]
