"""`weir ack`, `weir nack`, `weir delete`: entries that are done, given back, or to be gone.

Knows: what is said of each. Must never know: HTTP, how a line is printed.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer

from weir.cli import options, output
from weir.cli.failure import Failure

# Of one request: as many as a gateway looks up.
_CALL_IDS_MAX: Final = 500

# The gateway's limit, and a week.
_DELAY_S_MAX: Final = 7 * 24 * 3600

# As in `weir`, which a command's help must not import: HTTP comes with it.
References = Literal["keep", "delete", "acked"]
NackMode = Literal["silent", "fail", "fatal"]

Ids = Annotated[list[str], typer.Argument(help="IDs of entries", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class AckOptions(options.GatewayOptions):
    """Which pending entries are done."""

    stream: options.Stream
    group: options.Group
    ids: Ids
    delete: Annotated[
        References | None,
        typer.Option(help="delete them too: `acked` once every group has acknowledged them"),
    ] = None


def ack(given: AckOptions) -> None:
    """Acknowledge pending entries of a group."""
    with given.connect() as client:
        group = client.group(given.stream, given.group)
        done = sum(group.ack(*some, delete=given.delete) for some in _runs(given.ids))
    _say_counted("acknowledged", done, given)


@dataclass(frozen=True, kw_only=True)
class NackOptions(options.GatewayOptions):
    """Which pending entries are given back, and what that counts for."""

    stream: options.Stream
    group: options.Group
    ids: Ids
    mode: Annotated[
        NackMode,
        typer.Option(help="fail counts the delivery, silent does not, fatal makes a dead letter of it"),
    ] = "fail"
    delay: Annotated[
        float, typer.Option(min=0, max=_DELAY_S_MAX, help="seconds until they come back, seven days at most")
    ] = 0
    consumer: Annotated[
        str | None, typer.Option(help="those that this consumer holds; without: whoever holds them")
    ] = None


def nack(given: NackOptions) -> None:
    """Give pending entries back to their group, for other consumers."""
    from weir.paths import group_path

    path = f"{group_path(given.stream, given.group)}/nack"
    body: dict[str, object] = {"mode": given.mode}
    if given.delay:
        body["delay_ms"] = round(given.delay * 1000)
    if given.consumer is not None:
        body["consumer"] = given.consumer
    with given.connect() as client:
        done = sum(
            client.call("POST", path, body=body | {"ids": some})["released"] for some in _runs(given.ids)
        )
    others = "" if given.consumer is None else f", or not held by {output.word(given.consumer)}"
    _say_counted("given back", done, given, others)


@dataclass(frozen=True, kw_only=True)
class DeleteOptions(options.GatewayOptions):
    """Which entries are deleted; without any, the stream."""

    stream: options.Stream
    ids: Annotated[
        list[str] | None, typer.Argument(help="IDs of entries; without: the stream, with its groups")
    ] = None
    refs: Annotated[
        References | None,
        typer.Option(
            help="what groups hold of them: keep leaves it, delete drops it, acked deletes what all have "
            "acknowledged [keep]"
        ),
    ] = None
    drop_schedules: Annotated[
        bool,
        typer.Option("--drop-schedules", help="drop what is scheduled for the stream; it stays otherwise"),
    ] = False
    is_agreed: options.Yes = False


def delete(given: DeleteOptions) -> None:
    """Delete entries, or a stream with its groups: that is asked for first, unless --yes is there."""
    if not given.ids:
        _delete_stream(given)
        return
    if given.drop_schedules:
        raise typer.BadParameter("--drop-schedules is for a stream: name no IDs")
    with given.connect() as client:
        results: dict[str, str] = {}
        for some in _runs(given.ids):
            results |= client.delete_entries(given.stream, some, refs=given.refs or "keep")
    if given.as_json:
        output.lines([output.json_line(results)])
        return
    found = Counter(results.values())
    done = found.pop("deleted", 0)
    others = ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in found.items())
    output.lines([f"deleted {done} of {len(results)}{f': {others}' if others else ''}"])


def _delete_stream(given: DeleteOptions) -> None:
    if given.refs is not None:
        raise typer.BadParameter("--refs is for entries: name their IDs")
    with given.connect() as client:
        found = client.get_stream(given.stream)
        if found is None:
            raise Failure(f"there is no stream {output.word(given.stream)}")
        what = output.counted(found["length"], "entry", "entries")
        what += f", {output.counted(found['groups'], 'group', 'groups')}"
        if count := found.get("schedules", 0):
            schedules = output.counted(count, "schedule", "schedules")
            if not given.drop_schedules:
                raise Failure(
                    f"{output.word(given.stream)} has {schedules}, which would never run: cancel them with "
                    "`weir schedules STREAM --cancel NAME`, or drop them with --drop-schedules",
                    code="has_schedules",
                )
            what += f", {schedules}"
        options.agree(f"delete {output.word(given.stream)}, {what}?", is_agreed=given.is_agreed)
        # An older gateway does not say how many there are, and drops them unasked.
        drops = given.drop_schedules and "schedules" in found
        client.delete_stream(given.stream, drop_schedules=drops)
    output.lines([output.json_line({"deleted": True}) if given.as_json else f"deleted {what}"])


def _runs(ids: list[str]) -> list[list[str]]:
    unique = list(dict.fromkeys(ids))
    return [unique[start : start + _CALL_IDS_MAX] for start in range(0, len(unique), _CALL_IDS_MAX)]


def _say_counted(what: str, done: int, given: AckOptions | NackOptions, or_what: str = "") -> None:
    asked = len(set(given.ids))
    others = "" if done == asked else f": others were not pending{or_what}"
    in_json = output.json_line({what.replace(" ", "_"): done})
    output.lines([in_json if given.as_json else f"{what} {done} of {asked}{others}"])
