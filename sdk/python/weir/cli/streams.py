"""`weir streams`, `weir info`, `weir trim`, `weir retention`: streams as wholes.

Knows: which members of a stream people look at, its limits by name, and what a smaller one removes.
Must never know: HTTP, how a table is drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output, removal
from weir.durations import in_units, parse_bytes

if TYPE_CHECKING:
    from weir import Client

_NONE: Final = "none"
_COLUMNS: Final = ("name", "length", "groups", "first_id", "last_id", "memory_bytes", "state")


def streams(
    *,
    prefix: Annotated[str | None, typer.Option(help="only names that begin so")] = None,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """List the streams."""
    from weir.cli.gateway import connect

    with connect(url, token_file, ca) as client:
        found = list(client.list_streams(prefix=prefix))
    output.rows(found, _COLUMNS, as_json=as_json)


def info(
    stream: options.Stream,
    *,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Describe a stream."""
    from weir.cli.gateway import connect
    from weir.paths import stream_path

    with connect(url, token_file, ca) as client:
        found = client.call("GET", stream_path(stream))
    kept = found["retention"]
    output.members(found | {"retention": kept if as_json else in_units(kept)}, as_json=as_json)


def close(
    stream: options.Stream,
    *,
    reason: Annotated[str, typer.Option(help="why, for its readers")] = "",
    drop_schedules: Annotated[
        bool,
        typer.Option("--drop-schedules", help="drop what is scheduled; it keeps the stream open otherwise"),
    ] = False,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """End a stream for good: it takes no entries any more, and its readers end behind the last one."""
    from weir.cli.gateway import connect

    with connect(url, token_file, ca) as client:
        answer = client.close_stream(stream, reason=reason, drop_schedules=drop_schedules)
    said = f"closed behind {answer['last_id']}" if not answer["duplicate"] else "it was closed already"
    output.lines([output.json_line(answer) if as_json else said])


def trim(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    *,
    maxlen: Annotated[int | None, typer.Option(min=0, help="keep this number of entries, the newest")] = None,
    minid: Annotated[str | None, typer.Option(help="keep entries from this ID on")] = None,
    older_than: Annotated[
        int | None,
        typer.Option(parser=options.duration_ms, metavar="DURATION", help="remove what is older, such as 7d"),
    ] = None,
    approx: Annotated[bool, typer.Option("--approx", help="whole nodes only: faster, keeps more")] = False,
    guard: Annotated[
        bool, typer.Option("--guard", help="refuse to remove what a group has not finished")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would go")] = False,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Remove the oldest entries of a stream: by number, by ID or by age."""
    given = {"maxlen": maxlen, "minid": minid, "older_than_ms": older_than}
    body: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if len(body) != 1:
        raise typer.BadParameter("one of --maxlen, --minid and --older-than is needed, and one only")
    switches = {"approx": approx, "guard": guard, "dry_run": dry_run}
    body |= {name: True for name, is_on in switches.items() if is_on}
    from weir.cli.gateway import connect
    from weir.paths import stream_path

    with connect(url, token_file, ca) as client:
        answer = client.call("POST", f"{stream_path(stream)}/trim", body=body, repeatable=True)
    output.lines([output.json_line(answer) if as_json else _trimmed(answer, dry_run=dry_run)])


def _trimmed(answer: Mapping[str, Any], *, dry_run: bool) -> str:
    """What went, or would go."""
    verb = "would remove" if dry_run else "removed"
    line = f"{verb} {output.counted(answer['deleted'], 'entry', 'entries')}"
    if answer.get("pending_affected"):
        line += f", {answer['pending_affected']} of them pending"
    first = answer.get("first_id")
    return f"{line}; the first left is {first}" if first and first != "0-0" else f"{line}; none is left"


def _entries(text: str) -> int | str:
    if text == _NONE:
        return text
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter("a number of entries, or none")
    return int(text)


def _bytes(text: str) -> int | str:
    try:
        return text if text == _NONE else parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or none") from None


@dataclass(frozen=True, kw_only=True)
class RetentionOptions(options.GatewayOptions):
    """The limits to be set; those that are not named stay."""

    stream: options.Stream
    max_len: Annotated[
        str | None, typer.Option("--maxlen", parser=_entries, metavar="N", help="entries, or none")
    ] = None
    max_age: Annotated[
        str | None,
        typer.Option(
            parser=options.duration_or_none, metavar="DURATION", help="age of an entry, such as 7d, or none"
        ),
    ] = None
    max_bytes: Annotated[
        str | None, typer.Option(parser=_bytes, metavar="SIZE", help="size as JSON, such as 2g, or none")
    ] = None
    keep_unacknowledged: Annotated[
        bool | None,
        typer.Option(
            help="keep what a group has still to read or to acknowledge, and all until there was one"
        ),
    ] = None
    acknowledged: Annotated[
        bool,
        typer.Option(
            "--acknowledged",
            help="remove what all groups have acknowledged: at once, or by --maxlen or --max-age",
        ),
    ] = False
    keep_unarchived: Annotated[bool | None, typer.Option(help="keep what is not archived")] = None
    is_agreed: options.Yes = False

    @property
    def changes(self) -> dict[str, Any]:
        """As the API has them."""
        if self.acknowledged and self.keep_unacknowledged is False:
            raise typer.BadParameter("--acknowledged keeps what is unacknowledged")
        limits = {"max_len": self.max_len, "max_age_ms": self.max_age, "max_bytes": self.max_bytes}
        switches = {
            "keep_unacknowledged": self.acknowledged or self.keep_unacknowledged,
            "keep_unarchived": self.keep_unarchived,
        }
        given = {name: value for name, value in (limits | switches).items() if value is not None}
        changes: dict[str, Any] = {name: None if value == _NONE else value for name, value in given.items()}
        if self.acknowledged and changes.get("max_len") is None and changes.get("max_age_ms") is None:
            changes["max_len"] = 0
        return changes


def retention(given: RetentionOptions) -> None:
    """Show how much of a stream is kept, or set it. A limit that would remove entries is asked for first,
    unless --yes is there.
    """
    from weir.paths import stream_path

    changes, path = given.changes, stream_path(given.stream)
    with given.connect() as client:
        if changes:
            _agree(client, given, changes)
            answer = client.call("PATCH", path, body={"retention": changes}, repeatable=True)
        else:
            answer = client.call("GET", path)
    held = {"held_by": answer["held_by"]} if "held_by" in answer else {}
    kept: dict[str, Any] = answer["retention"] | held
    output.members(kept if given.as_json else in_units(kept), as_json=given.as_json)


def _agree(client: "Client", given: RetentionOptions, changes: dict[str, Any]) -> None:
    """Ask before entries go at once."""
    if lost := removal.by_retention(client, given.stream, changes):
        options.agree(f"set the limits: {lost}. Go on?", is_agreed=given.is_agreed)


# In the order in which they are listed.
COMMANDS: Final[Sequence[Callable[..., None]]] = (streams, info, trim, close)
