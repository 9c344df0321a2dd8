"""Redis's stream commands as requests to the resources of the REST API, and the answers as Redis's replies.

Knows: which request asks for what a command asks for, and which reply its answer stands for.
Must never know: what is recorded, how a request is sent.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

COUNT_MAX: Final = 10_000
ID_MAX: Final = "-".join([str((1 << 64) - 1)] * 2)
DETAILS_MAX: Final = 1_000
# For "none" in Redis's lists of numbers.
NOTHING: Final = -1
_INTEGER: Final = re.compile("-?[0-9]+")
_REFS: Final = {"KEEPREF": "keep", "DELREF": "delete", "ACKED": "acked"}
_RESULTS: Final = {"deleted": 1, "absent": -1, "kept": 2}
_NO_GROUP: Final = "no_stream", "no_group"

GRAMMAR: Final = "a refusal of Redis's grammar"
NOT_REST: Final = "a command that is not about entries, streams or groups"
IDMP: Final = "IDMP: REST has Idempotency-Key, which goes by the body"
COUNT_OF_NOTHING: Final = "COUNT 0 of a range, which finds nothing"
TWICE: Final = "a stream or an ID twice in a command"
LAST_OF_SEVERAL: Final = "the last entry of several streams"
HIGHEST_IS_NEW: Final = "the highest ID, which XREADGROUP takes for `>`"
RANGE_BOUND: Final = "`-`, `+` or an exclusive ID where REST takes a plain one"

NO_ROUTE: Final = {
    GRAMMAR, NOT_REST, IDMP, COUNT_OF_NOTHING, TWICE, LAST_OF_SEVERAL, HIGHEST_IS_NEW, RANGE_BOUND,
}  # fmt: skip
"""Why the resources of the REST API have no request for a command."""


class _NoRouteError(Exception):
    """There is no request for this command, for a reason of `NO_ROUTE`."""


class Route(NamedTuple):
    """A request. `reply` makes Redis's reply of the body, `created` is it where the status says the rest, and
    `missing` has it for codes by which REST alone says that something is missing.
    """

    method: str
    path: str
    reply: Callable[[Any], object]
    body: Mapping[str, object] | None = None
    missing: Mapping[str, object] = {}
    created: object = None


def route_of(words: Sequence[str]) -> Route | str:
    """The request for a command, or the reason that there is none."""
    name, *rest = words
    if name in ("XGROUP", "XINFO"):
        name, *rest = f"{name} {rest[0] if rest else ''}", *rest[1:]
    if name not in _ROUTES:
        return NOT_REST if name in ("XCFGSET", "XINFO HELP", "XGROUP HELP") else GRAMMAR
    try:
        _SIGNATURES[name].bind(*rest)
    except TypeError:
        # Too few words, or too many.
        return GRAMMAR
    try:
        return _ROUTES[name](*rest)
    except _NoRouteError as reason:
        return str(reason)


# ---- words


def _path(*parts: str, **query: object) -> str:
    given = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    path = "/v1/streams/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(given)}" if given else path


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise _NoRouteError(GRAMMAR)
    return int(text)


def _options(
    words: Sequence[str], valued: Sequence[str], flags: Sequence[str] = ()
) -> tuple[dict[str, str], Sequence[str]]:
    """The options that these words begin with, and what follows them."""
    found: dict[str, str] = {}
    while words and words[0] in (*valued, *flags):
        takes = 2 if words[0] in valued else 1
        if len(words) < takes or words[0] in found:
            raise _NoRouteError(GRAMMAR)
        found[words[0]] = words[takes - 1]
        words = words[takes:]
    return found, words


def _all_options(words: Sequence[str], valued: Sequence[str], flags: Sequence[str] = ()) -> dict[str, str]:
    found, rest = _options(words, valued, flags)
    if rest:
        raise _NoRouteError(GRAMMAR)
    return found


def _trim(options: Mapping[str, str]) -> dict[str, object]:
    """What options of XADD and XTRIM say about trimming."""
    limit = options.get("LIMIT")
    refs = [_REFS[word] for word in options if word in _REFS]
    if len(refs) > 1:
        raise _NoRouteError(GRAMMAR)
    return {
        "maxlen": _integer(options["MAXLEN"]) if "MAXLEN" in options else None,
        "minid": options.get("MINID"),
        "limit": None if limit is None else _integer(limit),
        "refs": refs[0] if refs else None,
    }


def _exact(words: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Whether a trim is exact, and the words without the sign that says it."""
    for way in ("MAXLEN", "MINID"):
        at = words.index(way) + 1 if way in words[:-2] else 0
        if at and words[at] in "~=":
            return words[at] == "=", [*words[:at], *words[at + 1 :]]
    return True, words


def _given(**members: object) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}


def _numbered(count: str, ids: Sequence[str]) -> Sequence[str]:
    if _integer(count) != len(ids) or not ids:
        raise _NoRouteError(GRAMMAR)
    return ids


def _distinct(ids: Sequence[str]) -> Sequence[str]:
    if len({one if "-" in one else f"{one}-0" for one in ids}) < len(ids):
        raise _NoRouteError(TWICE)
    return ids


# ---- replies


def _ok(body: object) -> str:
    return "OK"


def _member(name: str) -> Callable[[Any], object]:
    return lambda body: body[name]


def _entry(one: Any) -> list[object]:
    if one["fields"] is None:
        return [one["id"], None]
    pairs = one.get("pairs") or one["fields"].items()
    return [one["id"], [word for pair in pairs for word in pair]]


def _entries(body: Any) -> list[object]:
    return list(map(_entry, body["entries"]))


def _claimed(one: Any) -> list[object]:
    """An entry of a read with CLAIM, which says how often it was delivered before."""
    before = one["delivery_count"] - 1 if "idle_ms" in one else 0
    idle_ms = one.get("idle_ms", 0)
    return [*_entry(one), NOTHING if idle_ms is None else idle_ms, before]


def _flat(**members: object) -> list[object]:
    return [word for name, value in members.items() for word in (name.replace("_", "-"), value)]


# ---- entries


def _add(stream: str, *words: str) -> Route:
    exact, rest = _exact(words)
    valued, flags = ("MAXLEN", "MINID", "LIMIT"), ("NOMKSTREAM", *_REFS)
    options, rest = _options(rest, valued, flags)
    if rest and rest[0].startswith("IDMP"):
        raise _NoRouteError(IDMP)
    entry_id, *fields = rest or [""]
    if not fields or len(fields) % 2:
        raise _NoRouteError(GRAMMAR)
    trim = _trim(options)
    trims = trim["maxlen"] is not None or trim["minid"] is not None
    approx = ("false" if exact else "true") if trims else None
    nomkstream = "true" if "NOMKSTREAM" in options else None
    path = _path(stream, "entries", nomkstream=nomkstream, approx=approx, **trim)
    pairs = [fields[at : at + 2] for at in range(0, len(fields), 2)]
    body = {"id": entry_id, "fields": pairs}
    return Route("POST", path, _member("id"), body, {"no_stream": None})


def _range(stream: str, start: str, end: str, *words: str, reverse: bool = False) -> Route:
    options = _all_options(words, ("COUNT",))
    count = _integer(options.get("COUNT", str(COUNT_MAX)))
    if count <= 0:
        raise _NoRouteError(COUNT_OF_NOTHING)
    turned = "true" if reverse else None
    return Route("GET", _path(stream, "entries", start=start, end=end, reverse=turned, count=count), _entries)


def _reverse_range(stream: str, end: str, start: str, *words: str) -> Route:
    return _range(stream, start, end, *words, reverse=True)


def _streams(words: Sequence[str], count: str) -> tuple[Sequence[str], Sequence[str], int]:
    """Names and cursors after STREAMS, and at most how many entries."""
    if words[:1] != ["STREAMS"] or len(words) < 3 or not len(words) % 2:
        raise _NoRouteError(GRAMMAR)
    half = len(words) // 2
    names, cursors = words[1 : half + 1], words[half + 1 :]
    if len({*names}) < len(names):
        raise _NoRouteError(TWICE)
    # COUNT 0 is no limit.
    return names, cursors, max(_integer(count), 0) or COUNT_MAX


def _read(*words: str) -> Route:
    options, rest = _options(words, ("COUNT", "BLOCK"))
    names, cursors, count = _streams(list(rest), options.get("COUNT", "0"))
    if len(names) > 1:
        if "+" in cursors:
            raise _NoRouteError(LAST_OF_SEVERAL)
        body = _given(streams=dict(zip(names, cursors, strict=True)), count=count, wait=_wait(options))
        return Route("POST", "/v1/read", lambda found: _found(names, found["streams"]), body)
    if cursors[0] == "+":
        path = _path(names[0], "entries", last=1)
    else:
        path = _path(names[0], "entries", after=cursors[0], count=count, wait=_wait(options))
    return Route("GET", path, lambda found: _found(names, {names[0]: found}))


def _wait(options: Mapping[str, str]) -> int | None:
    return _integer(options["BLOCK"]) if "BLOCK" in options else None


def _found(names: Sequence[str], streams: Mapping[str, Any]) -> list[object] | None:
    return [[name, _entries(streams[name])] for name in names if streams[name]["entries"]] or None


def _delete(stream: str, *ids: str) -> Route:
    if not ids:
        raise _NoRouteError(GRAMMAR)
    body = {"ids": ids}
    return Route("POST", _path(stream, "entries", "delete"), _member("deleted"), body, {"no_stream": 0})


def _delete_with_references(stream: str, *words: str) -> Route:
    options, rest = _options(words, (), tuple(_REFS))
    ids = _ids_clause(rest)
    body = _given(ids=ids, refs=_trim(options)["refs"])
    path = _path(stream, "entries", "delete")
    return Route("POST", path, _results, body, {"no_stream": [NOTHING] * len(ids)})


def _ids_clause(words: Sequence[str]) -> Sequence[str]:
    if words[:1] != ("IDS",) or len(words) < 3:
        raise _NoRouteError(GRAMMAR)
    return _distinct(_numbered(words[1], words[2:]))


def _results(body: Any) -> list[int]:
    return [_RESULTS[word] for word in body["results"].values()]


def _trim_stream(stream: str, *words: str) -> Route:
    exact, rest = _exact(words)
    options = _all_options(rest, ("MAXLEN", "MINID", "LIMIT"), tuple(_REFS))
    body = _given(**_trim(options), approx=not exact)
    return Route("POST", _path(stream, "trim"), _member("deleted"), body, {"no_stream": 0})


# ---- streams


def _length(stream: str) -> Route:
    return Route("GET", _path(stream), _member("length"), None, {"no_stream": 0})


def _exists(stream: str) -> Route:
    return Route("GET", _path(stream), lambda _: 1, None, {"no_stream": 0})


def _type(stream: str) -> Route:
    return Route("GET", _path(stream), _member("type"), None, {"no_stream": "none"})


def _remove(stream: str) -> Route:
    return Route("DELETE", _path(stream), lambda _: 1, None, {"no_stream": 0})


def _set_id(stream: str, last_id: str, *words: str) -> Route:
    options = _all_options(words, ("ENTRIESADDED", "MAXDELETEDID"))
    added = options.get("ENTRIESADDED")
    body = _given(
        last_id=last_id,
        entries_added=None if added is None else _integer(added),
        max_deleted_id=options.get("MAXDELETEDID"),
    )
    return Route("POST", _path(stream, "last-id"), _ok, body)


def _info(stream: str, *words: str) -> Route:
    if not words:
        return Route("GET", _path(stream), _stream_info)
    options = _all_options(words, ("COUNT",), ("FULL",))
    if words[0] != "FULL":
        raise _NoRouteError(GRAMMAR)
    count = _integer(options.get("COUNT", "10")) or DETAILS_MAX
    return Route("GET", _path(stream, full="true", count=count), _stream_details)


def _edges(body: Any) -> list[object]:
    return _flat(
        length=body["length"],
        radix_tree_keys=body["nodes"],
        last_generated_id=body["last_id"],
        max_deleted_entry_id=body["max_deleted_id"],
        entries_added=body["entries_added"],
        recorded_first_entry_id=body["first_id"],
    )


def _stream_info(body: Any) -> list[object]:
    first, last = ((one and _entry(one)) for one in (body["first_entry"], body["last_entry"]))
    return [*_edges(body), *_flat(groups=body["groups"], first_entry=first, last_entry=last)]


def _stream_details(body: Any) -> list[object]:
    groups = list(map(_group_details, body["group_details"]))
    return [*_edges(body), *_flat(entries=_entries(body), groups=groups)]


def _group_details(group: Any) -> list[object]:
    return _flat(
        name=group["name"],
        last_delivered_id=group["last_delivered_id"],
        entries_read=group["entries_read"],
        lag=group["lag"],
        pel_count=group["pending"],
        nacked_count=group["nacked"],
        pending=[
            [one["id"], one["consumer"] or "", one["delivery_time_ms"], one["delivery_count"]]
            for one in group["pending_entries"]
        ],
        consumers=list(map(_consumer_details, group["consumer_details"])),
    )


def _consumer_details(one: Any) -> list[object]:
    return _flat(
        name=one["name"],
        seen_time=one["seen_time_ms"],
        active_time=one["active_time_ms"],
        pel_count=one["pending"],
        pending=[
            [row["id"], row["delivery_time_ms"], row["delivery_count"]] for row in one["pending_entries"]
        ],
    )


# ---- groups


def _group_infos(stream: str) -> Route:
    names = "name", "consumers", "pending", "last_delivered_id", "entries_read", "lag"
    return Route(
        "GET",
        _path(stream, "groups"),
        lambda body: [_flat(**{name: one[name] for name in names}) for one in body["groups"]],
    )


def _consumer_infos(stream: str, group: str) -> Route:
    return Route(
        "GET",
        _path(stream, "groups", group, "consumers"),
        lambda body: [
            _flat(
                name=one["name"],
                pending=one["pending"],
                idle=one["idle_ms"],
                inactive=NOTHING if one["inactive_ms"] is None else one["inactive_ms"],
            )
            for one in body["consumers"]
        ],
    )


def _entries_read(options: Mapping[str, str]) -> int | None:
    """How many entries a group has read; Redis writes -1 where that is not known."""
    count = _integer(options.get("ENTRIESREAD", "-1"))
    return None if count == -1 else count


def _create_group(stream: str, group: str, start: str, *words: str) -> Route:
    options = _all_options(words, ("ENTRIESREAD",), ("MKSTREAM",))
    body = _given(
        name=group, start=start, mkstream="MKSTREAM" in options, entries_read=_entries_read(options)
    )
    return Route("POST", _path(stream, "groups"), _ok, body)


def _move_group(stream: str, group: str, start: str, *words: str) -> Route:
    options = _all_options(words, ("ENTRIESREAD",))
    if start in "-+":
        raise _NoRouteError(RANGE_BOUND)
    body = _given(last_delivered_id=start, entries_read=_entries_read(options))
    return Route("PATCH", _path(stream, "groups", group), _ok, body)


def _destroy_group(stream: str, group: str) -> Route:
    path = _path(stream, "groups", group, pending="drop")
    return Route("DELETE", path, lambda _: 1, None, {"no_group": 0})


def _create_consumer(stream: str, group: str, consumer: str) -> Route:
    path = _path(stream, "groups", group, "consumers", consumer)
    return Route("PUT", path, lambda _: 0, created=1)


def _delete_consumer(stream: str, group: str, consumer: str) -> Route:
    path = _path(stream, "groups", group, "consumers", consumer, pending="drop")
    return Route("DELETE", path, _member("pending"), None, {"no_consumer": 0})


def _read_group(*words: str) -> Route:
    if words[:1] != ("GROUP",) or len(words) < 3:
        raise _NoRouteError(GRAMMAR)
    options, rest = _options(words[3:], ("COUNT", "BLOCK", "CLAIM"), ("NOACK",))
    names, cursors, count = _streams(list(rest), options.get("COUNT", "0"))
    if ID_MAX in cursors:
        raise _NoRouteError(HIGHEST_IS_NEW)
    entry = _claimed if "CLAIM" in options else _entry
    body = _given(
        count=count,
        wait=_wait(options),
        noack="NOACK" in options or None,
        claim_min_idle_ms=_integer(options["CLAIM"]) if "CLAIM" in options else None,
    )
    if len(names) > 1:
        more = {"group": words[1], "consumer": words[2], "streams": dict(zip(names, cursors, strict=True))}
        return Route("POST", "/v1/read", lambda found: _read_of(names, found["streams"], entry), body | more)
    if cursors[0] != ">":
        # These are for new entries; Redis takes and ignores them.
        body = {"count": count, "after": cursors[0]}
    path = _path(names[0], "groups", words[1], "consumers", words[2], "read")
    return Route("POST", path, lambda found: _read_of(names, {names[0]: found}, entry), body)


def _read_of(
    names: Sequence[str], streams: Mapping[str, Any], claimed: Callable[[Any], list[object]]
) -> list[object] | None:
    """A history is there even if it is empty; new entries only if there are some."""
    rows: list[object] = []
    for name in names:
        found = streams[name]
        if "next" in found:
            rows.append([name, _entries(found)])
        elif found["entries"]:
            rows.append([name, list(map(claimed, found["entries"]))])
    return rows or None


# ---- pending entries


def _acknowledge(stream: str, group: str, *ids: str) -> Route:
    if not ids:
        raise _NoRouteError(GRAMMAR)
    path = _path(stream, "groups", group, "ack")
    return Route("POST", path, _member("acknowledged"), {"ids": ids}, dict.fromkeys(_NO_GROUP, 0))


def _acknowledge_and_delete(stream: str, group: str, *words: str) -> Route:
    options, rest = _options(words, (), tuple(_REFS))
    ids = _ids_clause(rest)
    body = {"ids": ids, "delete": _trim(options)["refs"] or "keep"}
    missing = dict.fromkeys(_NO_GROUP, [NOTHING] * len(ids))
    return Route("POST", _path(stream, "groups", group, "ack"), _results, body, missing)


def _give_back(stream: str, group: str, mode: str, *words: str) -> Route:
    if words[:1] != ("IDS",) or len(words) < 3 or mode not in ("SILENT", "FAIL", "FATAL"):
        raise _NoRouteError(GRAMMAR)
    most = max(_integer(words[1]), 0) + 2
    ids = _distinct(_numbered(words[1], words[2:most]))
    options = _all_options(words[most:], ("RETRYCOUNT",), ("FORCE",))
    count = options.get("RETRYCOUNT")
    body = _given(
        ids=ids,
        mode=mode.lower(),
        retry_count=None if count is None else _integer(count),
        force="FORCE" in options,
    )
    return Route("POST", _path(stream, "groups", group, "nack"), _member("released"), body)


def _pending(stream: str, group: str, *words: str) -> Route:
    if not words:
        return Route("GET", _path(stream, "groups", group, "pending"), _pending_sum)
    options, rest = _options(words, ("IDLE",))
    if len(rest) not in (3, 4):
        raise _NoRouteError(GRAMMAR)
    if _integer(rest[2]) <= 0:
        raise _NoRouteError(COUNT_OF_NOTHING)
    path = _path(
        *(stream, "groups", group, "pending"),
        min_idle_ms=options.get("IDLE"),
        start=rest[0],
        end=rest[1],
        count=rest[2],
        consumer=rest[3] if len(rest) > 3 else None,
    )
    return Route("GET", path, _pending_rows)


def _pending_sum(body: Any) -> list[object]:
    consumers = [[one["name"], str(one["count"])] for one in body["consumers"]]
    return [body["count"], body["first_id"], body["last_id"], consumers or None]


def _pending_rows(body: Any) -> list[object]:
    """Redis writes no name and -1 for what has no owner."""
    return [
        [
            one["id"],
            one["consumer"] or "",
            NOTHING if one["idle_ms"] is None else one["idle_ms"],
            one["delivery_count"],
        ]
        for one in body["pending"]
    ]


_CLAIM_VALUES: Final = "IDLE", "TIME", "RETRYCOUNT", "LASTID"
_CLAIM_FLAGS: Final = "FORCE", "JUSTID"


def _claim(stream: str, group: str, consumer: str, min_idle: str, *words: str) -> Route:
    named = (at for at, word in enumerate(words) if word in (*_CLAIM_VALUES, *_CLAIM_FLAGS))
    at = next(named, len(words))
    if not at:
        raise _NoRouteError(GRAMMAR)
    options = _all_options(words[at:], _CLAIM_VALUES, _CLAIM_FLAGS)
    names = {"IDLE": "idle_ms", "TIME": "time_ms", "RETRYCOUNT": "retry_count"}
    body = {
        "consumer": consumer,
        "min_idle_ms": _idle(min_idle),
        "ids": _distinct(words[:at]),
        "force": "FORCE" in options,
        "just_ids": "JUSTID" in options,
        **{names[word]: _integer(value) for word, value in options.items() if word in names},
        **_given(last_id=options.get("LASTID")),
    }
    reply = _member("ids") if body["just_ids"] else _entries
    return Route("POST", _path(stream, "groups", group, "claim"), reply, body)


def _autoclaim(stream: str, group: str, consumer: str, min_idle: str, start: str, *words: str) -> Route:
    options = _all_options(words, ("COUNT",), ("JUSTID",))
    if start[:1] in "(+":
        raise _NoRouteError(RANGE_BOUND)
    body = _given(
        consumer=consumer,
        min_idle_ms=_idle(min_idle),
        start=start,
        count=_integer(options["COUNT"]) if "COUNT" in options else None,
        just_ids="JUSTID" in options,
    )
    taken = _member("ids") if body["just_ids"] else _entries
    return Route(
        "POST",
        _path(stream, "groups", group, "autoclaim"),
        lambda found: [found["next_start"], taken(found), found["deleted_ids"]],
        body,
    )


def _idle(text: str) -> object:
    """A number of milliseconds; what is none goes as it is, to be refused."""
    return int(text) if _INTEGER.fullmatch(text) else text


_ROUTES: Final[Mapping[str, Callable[..., Route]]] = {
    "XADD": _add,
    "XRANGE": _range,
    "XREVRANGE": _reverse_range,
    "XREAD": _read,
    "XDEL": _delete,
    "XDELEX": _delete_with_references,
    "XTRIM": _trim_stream,
    "XLEN": _length,
    "EXISTS": _exists,
    "TYPE": _type,
    "DEL": _remove,
    "XSETID": _set_id,
    "XINFO STREAM": _info,
    "XINFO GROUPS": _group_infos,
    "XINFO CONSUMERS": _consumer_infos,
    "XGROUP CREATE": _create_group,
    "XGROUP SETID": _move_group,
    "XGROUP DESTROY": _destroy_group,
    "XGROUP CREATECONSUMER": _create_consumer,
    "XGROUP DELCONSUMER": _delete_consumer,
    "XREADGROUP": _read_group,
    "XACK": _acknowledge,
    "XACKDEL": _acknowledge_and_delete,
    "XNACK": _give_back,
    "XPENDING": _pending,
    "XCLAIM": _claim,
    "XAUTOCLAIM": _autoclaim,
}
_SIGNATURES: Final = {name: inspect.signature(route) for name, route in _ROUTES.items()}
