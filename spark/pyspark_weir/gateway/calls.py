"""The gateway's calls that the pipeline needs, one function each.

Knows: paths, members and headers of the public contract.
Must never know: how an answer is got, what it is got for, Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar

from pyspark_weir.errors import Refused
from pyspark_weir.gateway.client import Answer, Gateway, decoded, of_group, of_stream
from pyspark_weir.gateway.shapes import ColumnsPage, Plan, PlanQuery, Published, StreamPlan

T = TypeVar("T")

COLUMNS: Final = "application/vnd.weir.columns+json"
_listed_max: Final = 1_000
# The gateway's own limit, `request_streams_max`.
streams_a_call_max: Final = 1_000


def plan(gateway: Gateway, query: PlanQuery) -> Plan:
    """Ranges to read. Without streams and pattern nothing is asked. Raises Refused, Unavailable."""
    if not query.streams and query.pattern is None:
        return Plan({})
    about = _few(query.streams) if query.streams else f"streams like {query.pattern}"
    answer = gateway.post(
        "/v1/plan", query.body(), wait_ms=query.wait_ms, repeatable=True, about=f"planning {about}"
    )
    planned = {name: StreamPlan.of(member) for name, member in answer["streams"].items()}
    return Plan(planned, tuple(answer["missing"]))


def plan_of_each(gateway: Gateway, query: PlanQuery) -> Plan:
    """The same for any number of named streams, in as many calls as it takes: the query's bounds are those
    of a call. Raises Refused, Unavailable.
    """
    found = Plan({})
    for some in of_one_call(query.streams):
        ends = {name: end for name, end in query.end.items() if name in some}
        part = plan(gateway, replace(query, streams=some, end=ends))
        found = Plan(found.streams | part.streams, (*found.missing, *part.missing))
    return found


def of_one_call(streams: Mapping[str, T]) -> Iterator[dict[str, T]]:
    """The streams, with what belongs to each, as many at once as a call may name."""
    every = iter(streams.items())
    while some := dict(islice(every, streams_a_call_max)):
        yield some


def page(  # noqa: PLR0913 - one page has so many bounds
    gateway: Gateway,
    stream: str,
    *,
    after: str,
    end: str | None = None,
    count: int | None = None,
    max_bytes: int | None = None,
    fields: Sequence[str] = (),
    fail_on_gap: bool = False,
) -> ColumnsPage:
    """Entries of `(after, end]` in columns, at most `count` and about `max_bytes`; `fields`: only these.

    A stream that is missing is empty. Raises Refused with status 410 where entries after `after` were trimmed
    and `fail_on_gap`; Refused, Unavailable.
    """
    query: dict[str, object] = {"after": after, "end": end, "count": count, "max_bytes": max_bytes}
    if fields and not any("," in name for name in fields):
        # A name that holds a comma cannot be asked for; then all come, and the reader takes what it wants.
        query["fields"] = ",".join(fields)
    if fail_on_gap:
        query["on_gap"] = "fail"
    response = gateway.send(
        "GET",
        f"{of_stream(stream)}/entries",
        query=query,
        headers={"accept": f"{COLUMNS}, application/problem+json"},
        about=f"stream {stream}, ({after}, {end or 'its end'}]",
    )
    columns = decoded(response)
    return ColumnsPage(
        ms=columns["ms"],
        seq=columns["seq"],
        n=columns["n"],
        names=columns["kd"],
        name_index=columns["k"],
        values=columns["v"],
        base64=bool(columns.get("b64")),
        next_id=response.headers.get("weir-next-id", after),
        more=response.headers.get("weir-more") == "true",
        generation=response.headers.get("weir-generation", ""),
        removed_upto=response.headers.get("weir-removed-upto", "0-0"),
    )


def publish(
    gateway: Gateway,
    entries: Mapping[str, Sequence[Mapping[str, object]]],
    *,
    key: str | None = None,
    producer: str | None = None,
    epoch: int = 0,
    chunk: int = 0,
) -> Published:
    """Store entries of many streams, all or none; each `{"fields", "id"?, "encoding"?}`.

    Once however often it is sent under a `key`, or as the same chunk of a `producer`'s epoch. Raises Refused
    with problem `stale_epoch` where the producer has gone on to a later epoch; Refused, Unavailable.
    """
    headers = {}
    if producer is not None:
        headers = {"weir-producer": producer, "weir-epoch": str(epoch), "weir-chunk": str(chunk)}
    elif key is not None:
        headers = {"idempotency-key": key}
    answer = gateway.post(
        "/v1/publish",
        {"streams": entries},
        headers=headers,
        repeatable=bool(headers),
        about=f"publishing to {_few(entries)}",
    )
    stored = answer["streams"]
    return Published(
        first={name: one["first_id"] for name, one in stored.items()},
        last={name: one["last_id"] for name, one in stored.items()},
        count={name: one["count"] for name, one in stored.items()},
        duplicate=answer["duplicate"],
    )


def streams(gateway: Gateway, *, prefix: str | None = None) -> list[Answer]:
    """All streams, as GET shows one."""
    return gateway.every("/v1/streams", "streams", {"prefix": prefix, "limit": _listed_max})


def stream(gateway: Gateway, name: str) -> Answer | None:
    """One stream, None where it is missing."""
    try:
        return gateway.get(of_stream(name), about=f"stream {name}")
    except Refused as refused:
        if refused.problem == "no_stream":
            return None
        raise


def groups(gateway: Gateway, name: str) -> list[Answer]:
    """The groups of a stream; none where it is missing."""
    try:
        return gateway.every(f"{of_stream(name)}/groups", "groups", about=f"groups of {name}")
    except Refused as refused:
        if refused.problem == "no_stream":
            return []
        raise


def consumers(gateway: Gateway, name: str, group: str) -> list[Answer]:
    """The consumers of a group; none where it is missing."""
    try:
        return gateway.every(
            f"{of_group(name, group)}/consumers", "consumers", about=f"consumers of {group} of {name}"
        )
    except Refused as refused:
        if refused.problem in ("no_stream", "no_group"):
            return []
        raise


def pending(gateway: Gateway, name: str, group: str, *, after: str = "0-0", count: int = 1_000) -> Answer:
    """A page of a group's pending entries after an ID: `pending`, `next`, `more`."""
    start = "-" if after == "0-0" else f"({after}"
    query = {"start": start, "count": count}
    path = f"{of_group(name, group)}/pending"
    try:
        return gateway.get(path, query, about=f"pending entries of {group} of {name}")
    except Refused as refused:
        if refused.problem in ("no_stream", "no_group"):
            return {"pending": [], "next": after, "more": False}
        raise


def trim(gateway: Gateway, name: str, *, minid: str, guard: bool = True, dry_run: bool = False) -> Answer:
    """Remove the entries before `minid`, exactly; with `guard` none that a group has not settled.

    Answers `deleted`, `first_id`, `pending_affected`. Raises Refused with problem `trim_guarded`; Refused,
    Unavailable.
    """
    body: dict[str, Any] = {"minid": minid, "approx": False, "guard": guard, "dry_run": dry_run}
    return gateway.post(
        f"{of_stream(name)}/trim", body, repeatable=True, about=f"trimming {name} below {minid}"
    )


def move_group(gateway: Gateway, name: str, group: str, entry_id: str, *, entries_read: int) -> Answer:
    """Have a group stand after `entry_id`, as if it had been given everything up to there; made if missing.

    `entries_read` is how many of all entries that is; without it nobody could say how far it is behind.
    Answers the group. Raises Refused, Unavailable.
    """
    path, about = of_group(name, group), f"group {group} of {name}"
    gateway.put(path, {"start": entry_id, "mkstream": False}, about=about)
    return gateway.patch(path, {"last_delivered_id": entry_id, "entries_read": entries_read}, about=about)


def archived_up_to(gateway: Gateway, name: str, entry_id: str) -> Answer:
    """Tell the gateway that everything up to `entry_id` lies in an archive; answers the stream."""
    return gateway.patch(
        of_stream(name), {"archived_up_to": entry_id}, about=f"stream {name}, archived up to {entry_id}"
    )


def _few(names: Mapping[str, object]) -> str:
    """Some of the names; all of them would fill a log."""
    some = sorted(names)[:3]
    return ", ".join(some) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
