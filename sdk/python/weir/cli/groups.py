"""`weir groups`, `weir pending`, `weir claim`: who works on a stream, with what, and taking it over.

Knows: which members of groups and pending entries people look at.
Must never know: HTTP, how a table is drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output
from weir.durations import in_units

if TYPE_CHECKING:
    from weir import Client, GroupInfo

commands: Final = typer.Typer(
    cls=options.DefaultGroup,
    help="List the groups of a stream: how many consumers, how much is pending, how far behind; create, "
    "pause, resume and delete them.",
    no_args_is_help=True,
    # Those of `list`.
    context_settings={"ignore_unknown_options": True},
)

_GROUPS: Final = ("name", "state", "consumers", "pending", "last_delivered_id", "entries_read", "lag")
# What stands beside it where some are ordered by key.
_ORDER: Final = ("ordered_by", "in_flight_per_key", "passed_over")
_PENDING: Final = ("id", "consumer", "idle_ms", "delivery_count")
_COUNT_DEFAULT: Final = 100
_CLAIM_IDLE_MS_DEFAULT: Final = 60_000
# Of one request: as many as a gateway looks up.
_CLAIM_ENTRIES_MAX: Final = 500
_NONE_LEFT: Final = "0-0"


@commands.command("list")
def groups(
    stream: options.Stream,
    *,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """List the groups of a stream: `weir groups STREAM` does it, too."""
    from weir.cli.gateway import connect

    with connect(url, token_file, ca) as client:
        found = list(client.list_groups(stream))
    output.rows(found, _columns(found), as_json=as_json)


def _columns(found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """With the order of those that have one."""
    return (*_GROUPS, *_ORDER) if any(one.get("ordered_by") for one in found) else _GROUPS


_NONE: Final = "none"


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(options.GatewayOptions):
    """A group, and its policy: what is named of it."""

    stream: options.Stream
    group: options.Group
    ack_timeout: Annotated[
        str | None,
        typer.Option(
            parser=options.duration_or_none,
            metavar="DURATION",
            help="what is not acknowledged for so long goes to another consumer, such as 5m, or none",
        ),
    ] = None
    consumer_timeout: Annotated[
        str | None,
        typer.Option(
            parser=options.duration_or_none,
            metavar="DURATION",
            help="consumers that are away for so long are removed, such as 1h, or none",
        ),
    ] = None
    max_age: Annotated[
        str | None,
        typer.Option(
            parser=options.duration_or_none,
            metavar="DURATION",
            help="older entries are acknowledged in place of being delivered, such as 7d, or none",
        ),
    ] = None
    dead_letter: Annotated[
        str | None,
        typer.Option(metavar="STREAM", help="where entries go that were delivered too often, or none"),
    ] = None
    max_deliveries: Annotated[
        int | None, typer.Option(min=1, help="with --dead-letter: deliveries before an entry goes there")
    ] = None
    ordered_by: Annotated[
        str | None, typer.Option(help="deliver in order what has one value of this field (*: all); or none")
    ] = None
    in_flight_per_key: Annotated[
        int | None, typer.Option(min=1, help="how many of them at a time, 1 where it is not given")
    ] = None

    @property
    def policy(self) -> dict[str, Any]:
        """As the API has it."""
        if self.max_deliveries is not None and self.dead_letter in (None, _NONE):
            raise typer.BadParameter("it goes with --dead-letter STREAM", param_hint="--max-deliveries")
        times = {
            "ack_timeout_ms": self.ack_timeout,
            "consumer_timeout_ms": self.consumer_timeout,
            "max_age_ms": self.max_age,
        }
        found: dict[str, Any] = {
            name: None if value == _NONE else value for name, value in times.items() if value is not None
        }
        if self.dead_letter is not None:
            letters = {"stream": self.dead_letter, "max_deliveries": self.max_deliveries}
            found["dead_letter"] = None if self.dead_letter == _NONE else letters
        if self.ordered_by is not None:
            found["ordered_by"] = None if self.ordered_by == _NONE else self.ordered_by
        if self.in_flight_per_key is not None:
            found["in_flight_per_key"] = self.in_flight_per_key
        return found


def _show_group(found: "GroupInfo", *, as_json: bool) -> None:
    """Print a group with its policy; durations as they are typed."""
    row = in_units(found)
    target = row.pop("dead_letter", None) or {}
    row |= {"dead_letter": target.get("stream"), "max_deliveries": target.get("max_deliveries")}
    for name in ("ack_timeout", "consumer_timeout", "max_age", "dead_letter", "ordered_by"):
        row[name] = row.get(name) or _NONE
    output.members(found if as_json else row, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class CreateOptions(PolicyOptions):
    """A group that is to be there."""

    start: Annotated[
        str, typer.Option(help="the group reads what comes after this ID: `$` from now on, 0 everything")
    ] = "$"


def create(given: CreateOptions) -> None:
    """Create a group, and its stream where there is none. One that is there keeps its position and its
    policy.
    """
    with given.connect() as client:
        found = client.group(given.stream, given.group).ensure(start=given.start, **given.policy)
    _show_group(found, as_json=given.as_json)


@dataclass(frozen=True, kw_only=True)
class SetOptions(PolicyOptions):
    """What of a group changes."""

    start: Annotated[
        str | None, typer.Option(help="move it: it goes on after this ID; `$` from now on, 0 everything")
    ] = None


def change(given: SetOptions) -> None:
    """Change the policy of a group, or move it; what is not named stays. Without anything it is shown."""
    from weir.paths import group_path

    changes = given.policy | ({} if given.start is None else {"last_delivered_id": given.start})
    with given.connect() as client:
        path = group_path(given.stream, given.group)
        found: GroupInfo = (
            client.call("PATCH", path, body=changes, repeatable=True) if changes else client.call("GET", path)
        )
    _show_group(found, as_json=given.as_json)


@dataclass(frozen=True, kw_only=True)
class DeleteOptions(options.GatewayOptions):
    """A group that is to be gone."""

    stream: options.Stream
    group: options.Group
    is_agreed: options.Yes = False


def delete(given: DeleteOptions) -> None:
    """Delete a group. What it holds pending is asked for first, unless --yes is there."""
    with given.connect() as client:
        group = client.group(given.stream, given.group)
        held = group.info()["pending"]
        if held:
            what = output.counted(held, "pending entry", "pending entries")
            question = f"delete {output.word(given.group)} with {what}?"
            options.agree(question, is_agreed=given.is_agreed)
        group.delete(drop_pending=bool(held))
    output.lines([output.json_line({"deleted": True, "pending": held}) if given.as_json else "deleted"])


@dataclass(frozen=True, kw_only=True)
class PauseOptions(options.GatewayOptions):
    """Which group."""

    stream: options.Stream
    group: options.Group


def pause(given: PauseOptions) -> None:
    """Let a group deliver nothing until it is resumed. What consumers hold stays theirs; nothing is lost."""
    with given.connect() as client:
        found = client.group(given.stream, given.group).pause()
    output.lines([output.json_line(found) if given.as_json else "paused"])


def resume(given: PauseOptions) -> None:
    """Let a group that was paused deliver again, from where it was."""
    with given.connect() as client:
        found = client.group(given.stream, given.group).resume()
    output.lines([output.json_line(found) if given.as_json else "resumed"])


commands.command("set")(options.as_command(change))
commands.command("create")(options.as_command(create))
commands.command("delete")(options.as_command(delete))
commands.command("pause")(options.as_command(pause))
commands.command("resume")(options.as_command(resume))


@dataclass(frozen=True, kw_only=True)
class WhyOptions(options.GatewayOptions):
    """Which group, and perhaps which consumer."""

    stream: options.Stream
    group: options.Group
    consumer: Annotated[str | None, typer.Argument(help="why this one gets nothing")] = None


def why(given: WhyOptions) -> None:
    """Say why a group delivers nothing, and what to do about it."""
    with given.connect() as client:
        reasons = client.group(given.stream, given.group).why(given.consumer)
    if given.as_json:
        output.lines(map(output.json_line, reasons))
        return
    for one in reasons:
        output.lines([f"{output.plain(one['detail'])}", f"  → {output.plain(one['remedies']['cli'])}"])


def pending(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    group: options.Group,
    *,
    listed: Annotated[bool, typer.Option("--list", help="the entries, as any option below does too")] = False,
    consumer: Annotated[str | None, typer.Option(help="this consumer's only")] = None,
    min_idle: Annotated[
        int | None,
        typer.Option(parser=options.duration_ms, metavar="DURATION", help="idle for at least this long"),
    ] = None,
    start: Annotated[str | None, typer.Option(help="first ID")] = None,
    end: Annotated[str | None, typer.Option(help="last ID")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="how many entries [100]")] = None,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Show the entries that a group has not acknowledged: the totals, or entry by entry."""
    from weir.cli.gateway import connect
    from weir.paths import group_path

    query: dict[str, object] = {
        "consumer": consumer,
        "min_idle_ms": min_idle,
        "start": start,
        "end": end,
        "count": count,
    }
    is_list = listed or any(value is not None for value in query.values())
    if is_list:
        query["count"] = count or _COUNT_DEFAULT
    with connect(url, token_file, ca) as client:
        answer = client.call("GET", f"{group_path(stream, group)}/pending", query=query)
    if is_list:
        _show_pending(answer, as_json=as_json)
    elif as_json:
        output.lines([output.json_line(answer)])
    else:
        _summary(answer)


def _show_pending(answer: dict[str, Any], *, as_json: bool) -> None:
    deferred = any("deferred_until" in row for row in answer["pending"])
    columns = (*_PENDING, "deferred_until") if deferred else _PENDING
    output.rows(answer["pending"], columns, as_json=as_json)
    if answer.get("more") and not as_json:
        output.say(f"there are more: --start '({answer['next']}' goes on")


def _summary(answer: dict[str, Any]) -> None:
    if not answer["count"]:
        output.lines(["nothing is pending"])
        return
    what = output.counted(answer["count"], "entry", "entries")
    output.lines([f"{what} pending, {answer['first_id']} to {answer['last_id']}", ""])
    rows = [{"consumer": one["name"], "pending": one["count"]} for one in answer["consumers"]]
    output.rows(rows, ("consumer", "pending"), as_json=False)


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """Who takes over which pending entries, and what is printed of them."""

    stream: options.Stream
    group: options.Group
    consumer: Annotated[str, typer.Argument(help="who takes over", show_default=False)]
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="these pending entries; without: all that are idle long enough"),
    ] = None
    min_idle: Annotated[
        int,
        typer.Option(
            parser=options.duration_ms,
            metavar="DURATION",
            show_default="1m",
            help="leave alone what is idle for less",
        ),
    ] = _CLAIM_IDLE_MS_DEFAULT
    count: Annotated[int, typer.Option(min=1, help="without IDs: how many entries")] = _COUNT_DEFAULT
    just_ids: Annotated[bool, typer.Option("--just-ids", help="print IDs only, and count no delivery")] = (
        False
    )
    as_json: options.Json = False
    url: options.Url = options.DEFAULT_URL
    token_file: options.TokenFile = None
    ca: options.Ca = None


def claim(given: ClaimOptions) -> None:
    """Take over pending entries from consumers that have not acknowledged them for too long."""
    from weir.cli.gateway import connect

    with connect(given.url, given.token_file, given.ca) as client:
        total = 0
        for answer in _claimed(client, given) if given.ids else _autoclaimed(client, given):
            found = answer["ids"] if given.just_ids else answer["entries"]
            total += len(found)
            deleted_ids = answer.get("deleted_ids") or []
            _show(found, deleted_ids, just_ids=given.just_ids, as_json=given.as_json)
    if not total:
        output.say("nothing to claim")


def _body(given: ClaimOptions) -> dict[str, object]:
    return {"consumer": given.consumer, "min_idle_ms": given.min_idle, "just_ids": given.just_ids}


def _claimed(client: "Client", given: ClaimOptions) -> Iterator[dict[str, Any]]:
    from weir.paths import group_path

    path = f"{group_path(given.stream, given.group)}/claim"
    ids = list(dict.fromkeys(given.ids or ()))
    for start in range(0, len(ids), _CLAIM_ENTRIES_MAX):
        body = {**_body(given), "ids": ids[start : start + _CLAIM_ENTRIES_MAX]}
        yield client.call("POST", path, body=body)


def _autoclaimed(client: "Client", given: ClaimOptions) -> Iterator[dict[str, Any]]:
    """Goes through the pending list until `count` entries are claimed, or to its end."""
    from weir.paths import group_path

    path = f"{group_path(given.stream, given.group)}/autoclaim"
    start, left = _NONE_LEFT, given.count
    while left > 0:
        body = {**_body(given), "start": start, "count": min(left, _CLAIM_ENTRIES_MAX)}
        answer = client.call("POST", path, body=body)
        yield answer
        left -= len(answer.get("entries") or answer.get("ids") or ())
        start = answer["next_start"]
        if start == _NONE_LEFT:
            return


def _show(found: list[Any], deleted_ids: list[str], *, just_ids: bool, as_json: bool) -> None:
    if not just_ids:
        output.entries(found, as_json=as_json)
    elif as_json:
        output.lines(output.json_line({"id": entry_id}) for entry_id in found)
    else:
        output.lines(found)
    if deleted_ids:
        one, many = "entry is deleted and no longer", "entries are deleted and no longer"
        output.say(f"{output.counted(len(deleted_ids), one, many)} pending")
