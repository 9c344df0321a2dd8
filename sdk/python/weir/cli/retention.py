"""`weir retention`: how much of a stream is kept, shown and set.

Knows: the limits by name, and what a smaller one removes. Must never know: HTTP.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output
from weir.durations import format_ms, parse_ms

if TYPE_CHECKING:
    from weir import Client

_NONE: Final = "none"
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _entries(text: str) -> int | str:
    if text == _NONE:
        return text
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter("a number of entries, or none")
    return int(text)


def _age_ms(text: str) -> int | str:
    if text == _NONE:
        return text
    try:
        return parse_ms(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or none") from None


def _bytes(text: str) -> int | str:
    match = re.fullmatch(r"([0-9]+)([kmg]?)b?", text.lower())
    if text == _NONE:
        return text
    if match is None:
        raise typer.BadParameter("bytes such as 500m or 2g, or none")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, kw_only=True)
class RetentionOptions(options.GatewayOptions):
    """The limits to be set; those that are not named stay."""

    stream: options.Stream
    max_len: Annotated[
        str | None, typer.Option("--maxlen", parser=_entries, metavar="N", help="entries, or none")
    ] = None
    max_age: Annotated[
        str | None,
        typer.Option(parser=_age_ms, metavar="DURATION", help="age of an entry, such as 7d, or none"),
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
    if not given.as_json and kept.get("max_age_ms") is not None:
        kept = {**kept, "max_age_ms": format_ms(kept["max_age_ms"])}
    output.members(kept, as_json=given.as_json)


def _agree(client: "Client", given: RetentionOptions, changes: dict[str, Any]) -> None:
    """Ask before entries go at once. How many by size is only known once they are gone."""
    from weir.paths import stream_path

    path = stream_path(given.stream)
    # What is no longer kept goes at once, too, by limits that stay.
    if all(value is None or value is True for value in changes.values()):
        return
    stream = client.call("GET", path)
    limits = {**stream["retention"], **changes}
    trims = [("maxlen", limits["max_len"]), ("older_than_ms", limits["max_age_ms"])]
    if "held_by" in stream and limits["keep_unacknowledged"]:
        trims = []
    gone = pending = 0
    for name, value in trims:
        if value is not None:
            body = {name: value, "dry_run": True}
            answer = client.call("POST", f"{path}/trim", body=body, repeatable=True)
            gone = max(gone, answer["deleted"])
            pending = max(pending, answer.get("pending_affected") or 0)
    if not gone and limits["max_bytes"] is None:
        return
    what = [f"remove {output.counted(gone, 'entry', 'entries')} at once"] if gone else []
    if limits["max_bytes"] is not None:
        what.append("remove entries beyond that size")
    if pending:
        is_kept = limits["keep_unacknowledged"]
        kept = "which stay until they are acknowledged" if is_kept else "which their groups then miss"
        what.append(f"{pending} of them pending, {kept}")
    options.agree(f"set the limits: {'; '.join(what)}. Go on?", is_agreed=given.is_agreed)
