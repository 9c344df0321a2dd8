"""Every operation of the API that the clients offer, as a `Call`.

Knows: paths, parameters and answers of the public contract. Must never know: how a call is sent.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, TypedDict
from uuid import uuid4

from weir._cursors import WITH_GENERATION
from weir._http import Call, as_is
from weir.entries import Entry, Fields, Page, Published, encode_entry
from weir.paths import consumer_path, group_path, schedule_path, segment, stream_path

References = Literal["keep", "delete", "acked"]
NackMode = Literal["silent", "fail", "fatal"]


class StreamInfo(TypedDict):
    """A stream as the gateway describes it; members that newer gateways add are there too."""

    name: str
    length: int
    first_id: str | None
    last_id: str
    entries_added: int
    max_deleted_id: str
    removed_upto: str
    groups: int
    generation: str
    retention: dict[str, Any]
    archived_up_to: str | None
    expires_at: str | None
    memory_bytes: int
    schedules: int
    closed: bool
    state: NotRequired[Literal["open", "ending", "closed"]]
    held_by: NotRequired[str | dict[str, str]]


class GroupInfo(TypedDict):
    """A group: how far it has read (`lag` is null where it is unknown) and what it has not acknowledged."""

    name: str
    consumers: int
    pending: int
    last_delivered_id: str
    entries_read: int | None
    lag: int | None
    dead_letter: NotRequired[dict[str, Any] | None]
    ack_timeout_ms: NotRequired[int | None]
    consumer_timeout_ms: NotRequired[int | None]
    max_age_ms: NotRequired[int | None]
    paused: NotRequired[bool]
    ordered_by: NotRequired[str]
    in_flight_per_key: NotRequired[int]
    passed_over: NotRequired[int]
    state: NotRequired[Literal["drained", "paused", "no_consumers", "failing", "running", "idle"]]


class ConsumerInfo(TypedDict):
    """A consumer; times since it last asked for something, and since it last received something."""

    name: str
    pending: int
    idle_ms: int
    inactive_ms: int


class PendingEntry(TypedDict):
    """An entry that was delivered and not acknowledged; `consumer` is null where it was given back."""

    id: str
    consumer: str | None
    idle_ms: int
    delivery_count: int


class DeadLettered(TypedDict):
    """`ids` in the source of the entries that became dead letters, and the stream that holds those.
    `not_held`: pending, and not held by the consumer that was named.
    """

    stream: str
    ids: list[str]
    not_held: NotRequired[list[str]]


class DeadLetterFilter(TypedDict, total=False):
    """Dead letters from ID `start` to `end` of the dead-letter stream, that this consumer held last (empty:
    it had been given back), with this reason.
    """

    start: str
    end: str
    consumer: str
    reason: str


class RedrivenEntry(TypedDict):
    """A dead letter, and the entry that it has become; null of a dry run."""

    dead_letter_id: str
    id: str | None


class Redriven(TypedDict):
    """What went back from the dead-letter stream `stream`. `next` is the last dead letter that was looked at,
    null where there are no others; `duplicate`: the same idempotency key had done it before.
    """

    stream: str
    redriven: int
    entries: list[RedrivenEntry]
    next: str | None
    duplicate: bool


class Trimmed(TypedDict):
    """What a trim removed, or would remove: entries, how many of them are pending, and the first one left."""

    deleted: int
    pending_affected: int
    first_id: str


class StreamEnd(TypedDict):
    """The end of a stream. `duplicate`: it was closed before, or the same idempotency key had closed it."""

    closed: bool
    closed_at: str
    last_id: str
    duplicate: bool


class ScheduledEntry(TypedDict):
    """An entry for later: the name of its schedule, and when it is appended."""

    schedule: str
    deliver_at: str


class TimedEntry(TypedDict, total=False):
    """An entry of a batch: published after `delay_ms`, or at a time (RFC 3339); at once if it has neither.
    `schedule` is the name that it has until then.
    """

    fields: Required[Fields]
    delay_ms: int
    deliver_at: str
    schedule: str


class ScheduledOfBatch(ScheduledEntry):
    """An entry for later, and its place in the batch."""

    index: int


class PublishedTimed(TypedDict):
    """The IDs of what was published at once, in order, and the others."""

    ids: list[str]
    scheduled: list[ScheduledOfBatch]


class Schedule(TypedDict):
    """A schedule: when its entry is appended next, and of its rule what was given."""

    name: str
    next_at: str | None
    entry: dict[str, Any]
    at: NotRequired[str]
    in_ms: NotRequired[int]
    every_ms: NotRequired[int]
    cron: NotRequired[str]
    tz: NotRequired[str]
    until: NotRequired[str]
    count: NotRequired[int]
    left: NotRequired[int]
    missed: NotRequired[Literal["once", "skip"]]
    expires_in_ms: NotRequired[int]
    paused: NotRequired[bool]
    paused_until: NotRequired[str]


class Reason(TypedDict):
    """Why a group delivers nothing: a word, a sentence, and what to do in the words of each door: `rest`,
    `cli`, `console` and `redis`.
    """

    code: str
    detail: str
    remedies: dict[str, str]


class StreamSchedule(Schedule):
    """A schedule, and its stream."""

    stream: str


class ScheduleRule(TypedDict, total=False):
    """When an entry is appended: one of `at` (RFC 3339), `in_ms`, `every_ms` and `cron` with `tz`.

    What recurs ends behind `until` and after `count` runs. Runs that were missed are one (`missed="once"`) or
    none ("skip"); one later than `expires_in_ms` is left out. With `paused` it waits until it is resumed, or
    `paused_until` a time; where neither is given a pause stays as it is.
    """

    at: str
    in_ms: int
    every_ms: int
    cron: str
    tz: str
    until: str
    count: int
    missed: Literal["once", "skip"]
    expires_in_ms: int
    paused: bool
    paused_until: str


class AddOptions(TypedDict, total=False):
    """What may accompany a publish.

    `maxlen` or `minid` trim, with `approx` (default true) and `limit`; `refs` says what happens to entries
    that groups still hold. `nomkstream` refuses to create the stream; `if_last_id` publishes only directly
    after that entry; `durability="fsync"` answers when the entry is on disk. `cancel_schedule` cancels an
    entry for later in the same step; with `required` nothing is published where that has run already.
    """

    maxlen: int
    minid: str
    approx: bool
    limit: int
    refs: References
    nomkstream: bool
    if_last_id: str
    cancel_schedule: str
    required: bool
    durability: Literal["fsync"]


def _nothing(_: object) -> None:
    return None


def _idempotency(key: str | None) -> dict[str, str]:
    """The header with this key, or with one that no other caller uses."""
    return {"idempotency-key": uuid4().hex if key is None else key}


# --- entries ---------------------------------------------------------------------------------------------


def publish(stream: str, body: object, key: str | None, options: AddOptions) -> Call[Published]:
    """Add one entry, or `{"entries": [...]}`, once, however often it has to be sent."""
    headers, prefer = _idempotency(key), []
    query: dict[str, object] = dict(options)
    if_last_id = query.pop("if_last_id", None)
    if if_last_id is not None:
        headers["if-match"] = f'"{if_last_id}"'
    if durability := query.pop("durability", None):
        prefer.append(f"durability={durability}")
    if prefer:
        headers["prefer"] = ", ".join(prefer)
    return Call(
        "POST",
        f"{stream_path(stream)}/entries",
        Published.parse,
        query=query,
        body=body,
        headers=headers,
    )


def publish_many(streams: Mapping[str, Iterable[Fields]], key: str | None) -> Call[dict[str, Published]]:
    """Add entries to several streams, all or none."""
    return Call(
        "POST",
        "/v1/publish",
        lambda answer: {
            name: Published.parse({**one, "duplicate": answer["duplicate"]})
            for name, one in answer["streams"].items()
        },
        body={"streams": {name: [encode_entry(one) for one in entries] for name, entries in streams.items()}},
        headers=_idempotency(key),
    )


def read(stream: str, query: Mapping[str, object], wait_ms: int = 0) -> Call[Page]:
    """A page of entries. With `after`, `next` has a generation."""
    wait = {"wait": wait_ms} if wait_ms else {}
    cursor = WITH_GENERATION if "after" in query else {}
    return Call(
        "GET",
        f"{stream_path(stream)}/entries",
        lambda answer: Page.parse(answer, stream),
        query={**query, **wait, **cursor},
        wait_ms=wait_ms,
    )


def get_entry(stream: str, entry_id: str) -> Call[Entry]:
    """One entry."""
    path = f"{stream_path(stream)}/entries/{segment(entry_id, 'entry ID')}"
    return Call("GET", path, lambda answer: Entry.parse(answer, stream))


def delete_entries(stream: str, ids: Sequence[str], refs: References) -> Call[dict[str, str]]:
    """Delete entries; what happened to each."""
    body = {"ids": list(ids), "refs": refs}
    return Call(
        "POST", f"{stream_path(stream)}/entries/delete", lambda answer: dict(answer["results"]), body=body
    )


def trim(stream: str, body: Mapping[str, object]) -> Call[Trimmed]:
    """Trim by `maxlen`, `minid` or `older_than_ms`."""
    body = {name: value for name, value in body.items() if value is not None}
    return Call("POST", f"{stream_path(stream)}/trim", as_is, body=body)


# --- streams ---------------------------------------------------------------------------------------------


def list_streams(prefix: str | None, after: str | None) -> Call[tuple[list[StreamInfo], str | None]]:
    """A page of streams, and where to go on."""
    query = {"prefix": prefix, "after": after, "limit": 1_000}
    return Call("GET", "/v1/streams", lambda answer: (answer["streams"], answer["next"]), query=query)


def get_stream(stream: str) -> Call[StreamInfo]:
    """One stream."""
    return Call("GET", stream_path(stream), as_is)


def ensure_stream(stream: str, retention: Mapping[str, int] | None) -> Call[StreamInfo]:
    """Create a stream where it is missing, and set its retention if given."""
    body = {} if retention is None else {"retention": dict(retention)}
    return Call("PUT", stream_path(stream), as_is, body=body)


def update_stream(stream: str, changes: Mapping[str, object]) -> Call[StreamInfo]:
    """Change what is named."""
    return Call("PATCH", stream_path(stream), as_is, body=dict(changes))


def close_stream(
    stream: str, entry: Fields | None, reason: str, key: str | None, *, drop_schedules: bool
) -> Call[StreamEnd]:
    """Close a stream, with a last entry or without."""
    body: dict[str, object] = {"reason": reason} if reason else {}
    if entry is not None:
        body["entry"] = encode_entry(entry)
    query = {"schedules": "drop" if drop_schedules else None}
    path = f"{stream_path(stream)}/close"
    return Call("POST", path, _stream_end, query=query, body=body, headers=_idempotency(key))


def _stream_end(answer: Any) -> StreamEnd:  # noqa: ANN401 - JSON
    return {
        "closed": answer["closed"],
        "closed_at": answer["closed_at"],
        "last_id": answer["last_id"],
        "duplicate": answer["duplicate"],
    }


def delete_stream(stream: str, *, drop_schedules: bool) -> Call[None]:
    """Delete a stream with its groups."""
    query = {"schedules": "drop" if drop_schedules else None}
    return Call("DELETE", stream_path(stream), _nothing, query=query, repeatable=False)


# --- schedules -------------------------------------------------------------------------------------------


def publish_later(
    stream: str, fields: Fields, delay_ms: int | None, deliver_at: str | None, name: str | None
) -> Call[ScheduledEntry]:
    """An entry for later. Without a name it cannot be told from another one, so it is not sent again."""
    return Call(
        "POST",
        f"{stream_path(stream)}/entries",
        lambda answer: {"schedule": answer["schedule"], "deliver_at": answer["deliver_at"]},
        query={"delay_ms": delay_ms, "deliver_at": deliver_at, "schedule": name},
        body=encode_entry(fields),
        repeatable=name is not None,
    )


def publish_timed(stream: str, entries: Iterable[TimedEntry]) -> Call[PublishedTimed]:
    """A batch, some of it for later. Names replace themselves: if all have one it is sent again."""
    rows = [{**one, **encode_entry(one["fields"])} for one in entries]
    return Call(
        "POST",
        f"{stream_path(stream)}/entries",
        lambda answer: {"ids": answer.get("ids", []), "scheduled": answer.get("scheduled", [])},
        body={"entries": rows},
        repeatable=all("schedule" in row for row in rows),
    )


def put_schedule(
    stream: str, name: str, fields: Fields, rule: ScheduleRule, *, only_new: bool
) -> Call[Schedule]:
    """Schedule an entry; the same definition changes nothing."""
    headers = {"if-none-match": "*"} if only_new else {}
    body = {"entry": encode_entry(fields), **rule}
    path = schedule_path(stream, name)
    return Call("PUT", path, as_is, body=body, headers=headers, repeatable=not only_new)


def get_schedule(stream: str, name: str) -> Call[Schedule]:
    """One schedule."""
    return Call("GET", schedule_path(stream, name), as_is)


def list_schedules(stream: str, by: str, after: str | None) -> Call[tuple[list[Schedule], str | None]]:
    """A page of schedules, and where to go on."""
    query = {"by": by, "after": after, "limit": 1_000}
    path = f"{stream_path(stream)}/schedules"
    return Call("GET", path, lambda answer: (answer["schedules"], answer["next"]), query=query)


def list_all_schedules(after: str | None) -> Call[tuple[list[StreamSchedule], str | None]]:
    """A page of the schedules of all streams, and where to go on."""
    query = {"after": after, "limit": 1_000}
    return Call("GET", "/v1/schedules", lambda answer: (answer["schedules"], answer["next"]), query=query)


def cancel_schedule(stream: str, name: str) -> Call[None]:
    """Cancel a schedule."""
    return Call("DELETE", schedule_path(stream, name), _nothing, repeatable=False)


def pause_schedule(stream: str, name: str, changes: Mapping[str, object]) -> Call[Schedule]:
    """Pause a schedule, or go on with it."""
    return Call("PATCH", schedule_path(stream, name), as_is, body=changes)


def fire_schedule(stream: str, name: str) -> Call[Published]:
    """Append the entry of a schedule now."""
    return Call("POST", f"{schedule_path(stream, name)}/fire", Published.parse, repeatable=False)


# --- groups ----------------------------------------------------------------------------------------------


def ensure_group(stream: str, group: str, start: str, policy: Mapping[str, object]) -> Call[GroupInfo]:
    """Create a group (and its stream) where it is missing; an existing group keeps its position."""
    return Call("PUT", group_path(stream, group), as_is, body={"start": start, **policy})


def explain_group(stream: str, group: str, consumer: str | None) -> Call[list[Reason]]:
    """Why a group delivers nothing."""
    path = f"{group_path(stream, group)}/why"
    return Call("GET", path, lambda answer: answer["reasons"], query={"consumer": consumer})


def update_group(stream: str, group: str, changes: Mapping[str, object]) -> Call[GroupInfo]:
    """Change what is named of a group."""
    return Call("PATCH", group_path(stream, group), as_is, body=changes)


def get_group(stream: str, group: str) -> Call[GroupInfo]:
    """One group."""
    return Call("GET", group_path(stream, group), as_is)


def list_groups(stream: str, after: str | None) -> Call[tuple[list[GroupInfo], str | None]]:
    """A page of groups, and where to go on."""
    path = f"{stream_path(stream)}/groups"
    return Call("GET", path, lambda answer: (answer["groups"], answer["next"]), query={"after": after})


def delete_group(stream: str, group: str, *, drop_pending: bool) -> Call[None]:
    """Delete a group; refused while entries are pending, unless they are dropped."""
    query = {"pending": "drop"} if drop_pending else {}
    return Call("DELETE", group_path(stream, group), _nothing, query=query, repeatable=False)


def list_consumers(stream: str, group: str, after: str | None) -> Call[tuple[list[ConsumerInfo], str | None]]:
    """A page of consumers, and where to go on."""
    path = f"{group_path(stream, group)}/consumers"
    return Call("GET", path, lambda answer: (answer["consumers"], answer["next"]), query={"after": after})


def group_read(
    stream: str,
    group: str,
    consumer: str,
    *,
    count: int,
    wait_ms: int = 0,
    after: str | None = None,
    claim_min_idle_ms: int | None = None,
) -> Call[Page]:
    """New entries for a consumer, or with `after` what it has not acknowledged.

    New entries are delivered even if the answer is lost, so only the history is safe to ask for again.
    """
    body: dict[str, object] = {"count": count}
    if after is not None:
        body["after"] = after
    elif wait_ms:
        body["wait"] = wait_ms
    if claim_min_idle_ms is not None:
        body["claim_min_idle_ms"] = claim_min_idle_ms
    return Call(
        "POST",
        f"{consumer_path(stream, group, consumer)}/read",
        lambda answer: Page.parse(answer, stream),
        body=body,
        wait_ms=wait_ms,
        repeatable=after is not None,
    )


def ack(
    stream: str, group: str, ids: Sequence[str], delete: References | None, consumer: str | None
) -> Call[int]:
    """Acknowledge what no other consumer holds; how many it were."""
    given = {"ids": list(ids), "delete": delete, "consumer": consumer}
    body = {name: value for name, value in given.items() if value is not None}
    return Call(
        "POST", f"{group_path(stream, group)}/ack", lambda answer: int(answer["acknowledged"]), body=body
    )


def nack(
    stream: str, group: str, ids: Sequence[str], mode: NackMode, delay_ms: int, consumer: str | None
) -> Call[list[str]]:
    """Give entries back to the group, at once or later; those that the consumer does not hold."""
    body: dict[str, object] = {"ids": list(ids), "mode": mode}
    if delay_ms:
        body["delay_ms"] = delay_ms
    if consumer is not None:
        body["consumer"] = consumer
    path = f"{group_path(stream, group)}/nack"
    return Call("POST", path, lambda answer: _with_result(answer, "not_held"), body=body, repeatable=False)


def claim(stream: str, group: str, body: Mapping[str, object]) -> Call[tuple[Entry, ...]]:
    """Take over entries that are idle for `min_idle_ms`: `ids` for `consumer`; those that were taken."""
    return Call(
        "POST",
        f"{group_path(stream, group)}/claim",
        lambda answer: tuple(Entry.parse(one, stream) for one in answer["entries"]),
        body=body,
        repeatable=False,
    )


def dead_letter(
    stream: str, group: str, ids: Sequence[str], reason: str | None, consumer: str | None
) -> Call[DeadLettered]:
    """Move pending entries to the group's dead-letter stream."""
    given = {"ids": list(ids), "reason": reason, "consumer": consumer}
    body = {name: value for name, value in given.items() if value is not None}
    return Call("POST", f"{group_path(stream, group)}/dead-letter", as_is, body=body)


def redrive(
    stream: str,
    group: str,
    *,
    ids: Sequence[str] | None,
    selected: DeadLetterFilter,
    count: int | None,
    dry_run: bool,
    key: str | None,
) -> Call[Redriven]:
    """Send dead letters of a group back to its stream, once; a dry run takes no idempotency key."""
    members = {
        "ids": None if ids is None else list(ids),
        "filter": selected or None,
        "count": count,
        "dry_run": dry_run or None,
    }
    body = {name: value for name, value in members.items() if value is not None}
    headers = {} if dry_run and key is None else _idempotency(key)
    path = f"{group_path(stream, group)}/dead-letters/redrive"
    return Call("POST", path, as_is, body=body, headers=headers)


def extend(stream: str, group: str, consumer: str, ids: Sequence[str]) -> Call[list[str]]:
    """Start the idle time of one's own entries anew, delivery counts as they are; the IDs that are held."""
    body = {"consumer": consumer, "ids": list(ids)}
    path = f"{group_path(stream, group)}/extend"
    return Call("POST", path, lambda answer: _with_result(answer, "extended"), body=body)


def group_read_many(
    streams: Sequence[str], group: str, consumer: str, body: Mapping[str, object], wait_ms: int
) -> Call[dict[str, Page]]:
    """New entries of several streams for a consumer of their groups of one name, those of the first first."""
    asked = {"streams": dict.fromkeys(streams, ">"), "group": group, "consumer": consumer}
    return Call(
        "POST",
        "/v1/read",
        lambda answer: {name: Page.parse(found, name) for name, found in answer["streams"].items()},
        body={**asked, **body, **({"wait": wait_ms} if wait_ms else {})},
        wait_ms=wait_ms,
        repeatable=False,
    )


def _with_result(answer: Mapping[str, Any], word: str) -> list[str]:
    return [entry_id for entry_id, result in answer["results"].items() if result == word]


def list_pending(
    stream: str, group: str, query: Mapping[str, object], start: str | None
) -> Call[tuple[list[PendingEntry], str | None]]:
    """A page of pending entries, and where to go on."""

    def parse(answer: Any) -> tuple[list[PendingEntry], str | None]:  # noqa: ANN401 - JSON
        return answer["pending"], f"({answer['next']}" if answer["more"] and answer["next"] else None

    path = f"{group_path(stream, group)}/pending"
    return Call("GET", path, parse, query={**query, "start": start or "-"})


# --- anything --------------------------------------------------------------------------------------------


def command(words: Sequence[str | int | float]) -> Call[Any]:
    """A Redis stream command; its reply as Redis shapes it."""
    return Call("POST", "/v1/commands", lambda answer: answer["result"], body=list(words), repeatable=False)


def features() -> Call[frozenset[str]]:
    """What the gateway knows that older ones refuse."""
    return Call("GET", "/v1", lambda answer: frozenset(answer.get("features", ())))


def ready() -> Call[Any]:
    """What the gateway says of its health; an UnavailableError while it is not ready."""
    return Call("GET", "/healthz/ready", as_is)
