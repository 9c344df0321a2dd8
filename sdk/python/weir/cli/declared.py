"""A file of streams as they are to be, and what separates a gateway from it.

Knows: the file's form, what a gateway says of streams, groups and schedules, which request changes what.
Must never know: who is asked before, what is printed.

    prefix = "shop/"                              # of all names in the file; --prune looks at no others
    [streams."shop/orders"]
    retention = {max_age = "7d", max_bytes = "2g"}
    [streams."shop/orders".groups.billing]
    ack_timeout = "30s"
    dead_letter = {stream = "shop/orders:dead", max_deliveries = 5}
    [streams."shop/orders".schedules.nightly]
    cron = "30 2 * * *"
    fields = {job = "report"}
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from weir.cli import output, removal
from weir.durations import in_units, parse_bytes, parse_ms
from weir.paths import group_path, schedule_path, stream_path

if TYPE_CHECKING:
    from weir import Client

FILE_BYTES_MAX: Final = 4 << 20
Reader = Callable[[object], Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One request that brings a gateway nearer to the file; `lost` is what goes with it, if anything."""

    what: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] = field(default_factory=dict)
    lost: str = ""

    def carry_out(self, client: "Client") -> None:
        """Send it. Raises ApiError, NoAnswerError. What is gone already is fine."""
        from weir.errors import NotFoundError

        try:
            client.call(self.method, self.path, body=self.body, query=self.query, repeatable=True)
        except NotFoundError:
            if self.method != "DELETE":
                raise


@dataclass(frozen=True)
class DeclaredStream:
    """One stream of the file, as the API has it. No `retention`: it is left as it is."""

    retention: dict[str, Any] | None
    # `start` beside the policy.
    groups: dict[str, dict[str, Any]]
    # `fields`, and the rule.
    schedules: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Declared:
    """The whole file."""

    prefix: str
    streams: dict[str, DeclaredStream]


# --- reading ---------------------------------------------------------------------------------------------


def read(text: bytes) -> Declared:
    """The file. Raises ValueError that names the place, and what is wanted there."""
    try:
        members = tomllib.loads(text.decode())
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8") from None
    top = _table(members, {"prefix": _text, "streams": _tables(_stream)})
    prefix, streams = top.get("prefix", ""), top.get("streams", {})
    for name in streams:
        stream_path(name)
        if not name.startswith(prefix):
            raise ValueError(f"streams.{name}: its name does not begin with the file's prefix {prefix!r}")
    return Declared(prefix, streams)


class _WrongError(ValueError):
    """What a place has is not what is wanted there: a sentence."""


class _WithinError(ValueError):
    """The same of a place within: its name stands before the sentence."""


def _table(given: object, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """A table's members, each as its reader has it."""
    found = {}
    for name, value in _checked(given, dict, "a table is wanted").items():
        if name not in readers:
            raise _WithinError(f"{name}: unknown; there are {', '.join(readers)}")
        found[name] = _read_at(name, readers[name], value)
    return found


def _tables(reader: Reader) -> Reader:
    """A table of tables, each by its name."""

    def read_all(given: object) -> dict[str, Any]:
        tables = _checked(given, dict, "a table is wanted")
        return {name: _read_at(name, reader, value) for name, value in tables.items()}

    return read_all


def _read_at(name: str, reader: Reader, value: object) -> Any:  # noqa: ANN401 - as the reader has it
    try:
        return reader(value)
    except _WithinError as error:
        raise _WithinError(f"{name}.{error}") from None
    except ValueError as error:
        raise _WithinError(f"{name}: {error}") from None


def _checked(value: object, kind: type[T], sentence: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _WrongError(sentence)
    return value


def _text(value: object) -> str:
    return _checked(value, str, "a text is wanted")


def _flag(value: object) -> bool:
    return _checked(value, bool, "true or false is wanted")


def _whole(value: object) -> int:
    number = _checked(value, int, "a whole number is wanted")
    if number < 0:
        raise _WrongError("it is at least 0")
    return number


def _duration(value: object) -> int:
    return parse_ms(_text(value))


def _size(value: object) -> int:
    return parse_bytes(value) if isinstance(value, str) else _whole(value)


def _moment(value: object) -> datetime:
    found = value if isinstance(value, datetime) else datetime.fromisoformat(_text(value))
    if found.tzinfo is None:
        raise _WrongError("a time has a zone, such as 2035-01-31T12:00:00Z")
    return found


def _retention(given: object) -> dict[str, Any]:
    found = _table(
        given,
        {
            "max_len": _whole,
            "max_age": _duration,
            "max_bytes": _size,
            "acknowledged": _flag,
            "keep_unacknowledged": _flag,
            "keep_unarchived": _flag,
        },
    )
    acknowledged = found.get("acknowledged", False)
    if acknowledged and found.get("keep_unacknowledged") is False:
        raise _WrongError("acknowledged keeps what is unacknowledged")
    max_len, max_age_ms = found.get("max_len"), found.get("max_age")
    if acknowledged and max_len is None and max_age_ms is None:
        max_len = 0
    return {
        "max_len": max_len,
        "max_age_ms": max_age_ms,
        "max_bytes": found.get("max_bytes"),
        "keep_unacknowledged": acknowledged or found.get("keep_unacknowledged", False),
        "keep_unarchived": found.get("keep_unarchived", False),
    }


def _dead_letter(given: object) -> dict[str, Any]:
    found = _table(given, {"stream": _text, "max_deliveries": _whole})
    if "stream" not in found:
        raise _WrongError("it names a stream")
    return {"max_deliveries": None, **found}


def _group(given: object) -> dict[str, Any]:
    durations = ("ack_timeout", "consumer_timeout", "max_age")
    readers = {"start": _text, "dead_letter": _dead_letter, **dict.fromkeys(durations, _duration)}
    found = _table(given, readers | {"ordered_by": _text, "in_flight_per_key": _whole})
    if "in_flight_per_key" in found and "ordered_by" not in found:
        raise _WrongError("in_flight_per_key needs ordered_by")
    order = {"in_flight_per_key": found.get("in_flight_per_key", 1)} if "ordered_by" in found else {}
    policy = {f"{name}_ms": found.get(name) for name in durations}
    policy |= {name: found.get(name) for name in ("dead_letter", "ordered_by")}
    return {"start": found.get("start", "0"), **policy, **order}


def _schedule(given: object) -> dict[str, Any]:
    """An entry and its rule. What counts from now, or counts runs, would begin again each time."""
    found = _table(
        given,
        {
            "fields": _fields,
            "at": _moment,
            "every": _duration,
            "cron": _text,
            "tz": _text,
            "until": _moment,
            "missed": _text,
            "expires_in": _duration,
        },
    )
    if sum(name in found for name in ("at", "every", "cron")) != 1:
        raise _WrongError("one of at, every and cron is wanted")
    if "tz" in found and "cron" not in found:
        raise _WrongError("tz is for cron alone")
    if "fields" not in found:
        raise _WrongError("fields are wanted")
    if "cron" in found:
        found.setdefault("tz", "UTC")
    if found.get("missed") == "once":
        del found["missed"]
    for name in ("every", "expires_in"):
        if name in found:
            found[f"{name}_ms"] = found.pop(name)
    return found


def _fields(given: object) -> dict[str, str]:
    wanted = 'a table of at least one field is wanted, such as {job = "report"}'
    found = _checked(given, dict, wanted)
    if not found:
        raise _WrongError(wanted)
    return {name: _read_at(name, _text, value) for name, value in found.items()}


def _stream(given: object) -> DeclaredStream:
    readers = {"retention": _retention, "groups": _tables(_group), "schedules": _tables(_schedule)}
    found = _table(given, readers)
    return DeclaredStream(found.get("retention"), found.get("groups", {}), found.get("schedules", {}))


# --- comparing -------------------------------------------------------------------------------------------


def missing(client: "Client", declared: Declared, now: datetime) -> Iterator[Change]:
    """What the gateway lacks, or has otherwise. Nothing, where it is as the file says."""
    for stream, wanted in declared.streams.items():
        found = client.get_stream(stream)
        yield from _stream_changes(client, stream, wanted, found)
        groups = {} if found is None else {one["name"]: one for one in client.list_groups(stream)}
        for group, policy in wanted.groups.items():
            yield from _group_changes(stream, group, policy, groups.get(group))
        for schedule, rule in wanted.schedules.items():
            there = None if found is None else client.get_schedule(stream, schedule)
            yield from _schedule_changes(stream, schedule, rule, there, now)


def _stream_changes(
    client: "Client", stream: str, wanted: DeclaredStream, found: Mapping[str, Any] | None
) -> Iterator[Change]:
    name, path = output.word(stream), stream_path(stream)
    if found is None:
        given = {key: value for key, value in (wanted.retention or {}).items() if value is not None}
        body = {"retention": given} if given else {}
        yield Change(what=f"create the stream {name}", method="PUT", path=path, body=body)
        return
    changed, said = _differences(wanted.retention or {}, found["retention"])
    if changed:
        lost = removal.by_retention(client, stream, changed)
        what, body = f"set the retention of {name}: {said}", {"retention": changed}
        yield Change(what=what, method="PATCH", path=path, body=body, lost=lost)


def _group_changes(
    stream: str, group: str, wanted: Mapping[str, Any], found: Mapping[str, Any] | None
) -> Iterator[Change]:
    what, path = f"{output.word(group)} of {output.word(stream)}", group_path(stream, group)
    if found is None:
        body = {name: value for name, value in wanted.items() if value is not None}
        yield Change(what=f"create the group {what}", method="PUT", path=path, body=body)
        return
    policy = {name: value for name, value in wanted.items() if name != "start"}
    changed, said = _differences(policy, found)
    if changed:
        yield Change(what=f"set the group {what}: {said}", method="PATCH", path=path, body=changed)


def _schedule_changes(
    stream: str, schedule: str, wanted: Mapping[str, Any], found: Mapping[str, Any] | None, now: datetime
) -> Iterator[Change]:
    moments = {name: wanted[name] for name in ("at", "until") if name in wanted}
    if any(moment <= now for moment in moments.values()):
        # It has run, or runs no more.
        return
    rule = {**wanted, **{name: _rfc3339(moment) for name, moment in moments.items()}}
    fields = rule.pop("fields")
    if found is not None:
        own = {"name", "next_at", "entry"}
        there = {name: value for name, value in found.items() if name not in own}
        if there == rule and found["entry"] == {"fields": fields}:
            return
    verb = "create" if found is None else "set"
    what = f"{verb} the schedule {output.word(schedule)} of {output.word(stream)}"
    body = {"entry": {"fields": fields}, **rule}
    yield Change(what=what, method="PUT", path=schedule_path(stream, schedule), body=body)


def _differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The members that differ, and a few words on them. What an older gateway does not name is not set."""
    changed = {name: value for name, value in wanted.items() if value != found.get(name)}
    before, after = in_units({name: found.get(name) for name in changed}), in_units(changed)
    said = (f"{name} {output.cell(before[name])} → {output.cell(value)}" for name, value in after.items())
    return changed, ", ".join(said)


def surplus(client: "Client", declared: Declared) -> Iterator[Change]:
    """What the gateway has under the file's prefix and the file does not name. Streams of dead letters are
    named by their groups.
    """
    dead = {
        policy["dead_letter"]["stream"]
        for wanted in declared.streams.values()
        for policy in wanted.groups.values()
        if policy["dead_letter"] is not None
    }
    for found in client.list_streams(prefix=declared.prefix or None):
        stream = found["name"]
        name = output.word(stream)
        wanted = declared.streams.get(stream)
        if wanted is not None:
            yield from _surplus_of(client, stream, wanted)
        elif stream not in dead:
            held = output.counted(found["length"], "entry", "entries")
            yield Change(
                what=f"delete the stream {name}",
                method="DELETE",
                path=stream_path(stream),
                query={"schedules": "drop"},
                lost=f"{name} with {held}, {output.counted(found['groups'], 'group', 'groups')}",
            )


def _surplus_of(client: "Client", stream: str, wanted: DeclaredStream) -> Iterator[Change]:
    for one in client.list_groups(stream):
        if one["name"] not in wanted.groups:
            what = f"the group {output.word(one['name'])} of {output.word(stream)}"
            pending = output.counted(one["pending"], "pending entry", "pending entries")
            yield Change(
                what=f"delete {what}",
                method="DELETE",
                path=group_path(stream, one["name"]),
                query={"pending": "drop"},
                lost=f"{what} with {pending}",
            )
    for schedule in client.list_schedules(stream, by="name"):
        if schedule["name"] not in wanted.schedules:
            what = f"the schedule {output.word(schedule['name'])} of {output.word(stream)}"
            path = schedule_path(stream, schedule["name"])
            yield Change(what=f"cancel {what}", method="DELETE", path=path, lost=what)


def _rfc3339(moment: datetime) -> str:
    """As a gateway writes a time."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
