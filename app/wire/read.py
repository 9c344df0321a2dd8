"""Reads of entries: parameters → XRANGE or XREAD, and what they answer → a page.

Knows: how bounds, cursors, waits and pages are written. Must never know: statuses, sockets, where a stream
is kept.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from app.errors import RefusalError, invalid
from app.http import projection, query
from app.http.query import Parameters
from engine import entries, ids
from engine.commands import Cursor, DescribeEdges, XRange, XRead
from engine.replies import Edges, Entries, Gap, Reply, StreamsRead

PARAMETERS: Final = (
    *("start", "end", "since", "until", "reverse", "count", "max_bytes"),
    *("after", "wait", "on_gap", "last", "fields"),
)

# Projecting means decoding and encoding: this takes about ten milliseconds, and `more` tells of the rest.
_PROJECTED_BYTES_MAX: Final = 1 << 20


class ReadLimits(msgspec.Struct, frozen=True):
    """What one answer may hold and how long it may be waited for."""

    count_default: int
    count_max: int
    bytes_max: int
    wait_ms_max: int


class Wanted(msgspec.Struct, frozen=True):
    """A read and how to tell its outcome.

    Several commands are one turn: looks for a gap and for the stream's edges beside a range. `fallback` is
    the answer's `next` where nothing was found, None for null. `newest`: the range was read backwards, and
    is told forwards.
    """

    commands: Sequence[XRange | XRead | DescribeEdges]
    fallback: int | None
    fail_on_gap: bool = False
    fields: Sequence[str] | None = None
    newest: bool = False


class Page(msgspec.Struct, frozen=True):
    """The answer: `next` is where to go on, None where there is nothing to go on from."""

    body: bytes
    next: int | None
    more: bool
    gap: Gap | None = None
    edges: Edges | None = None


def parse(stream: str, query_string: bytes, prefer_wait_s: int | None, limits: ReadLimits) -> Wanted:
    """What GET …/entries asks for."""
    given = query.parse(query_string, PARAMETERS)
    check_combination(given)
    fields = projection.parse(given.get("fields"))
    fail_on_gap = fails_on_gap(given)
    count = query.integer(given, "count", least=1, most=limits.count_max, default=limits.count_default)
    bytes_max = query.integer(given, "max_bytes", least=1, most=limits.bytes_max, default=limits.bytes_max)
    wait_ms = _wait_ms(given, prefer_wait_s, limits)
    if fields is not None and bytes_max is not None:
        bytes_max = min(bytes_max, _PROJECTED_BYTES_MAX)
    if "last" in given:
        return _newest(stream, given, bytes_max, fields, limits)
    if "after" in given and "end" not in given and "until" not in given:
        read = XRead(
            streams=[(stream, cursor(given["after"], "after"))],
            count=count,
            block_ms=wait_ms,
            bytes_max=bytes_max,
        )
        return Wanted([read], None, fail_on_gap, fields)
    if given.get("after") == "$":
        raise invalid("after", "it does not go with an end where it is `$`: nothing lies between")
    wanted = bounds(stream, given)
    wanted = msgspec.structs.replace(wanted, count=count, bytes_max=bytes_max)
    if "after" not in given:
        fallback = None if wanted.reverse else max(wanted.start - 1, ids.ID_MIN)
        return Wanted([wanted], fallback, fail_on_gap, fields)
    after = wanted.start - 1
    look = XRead(streams=[(stream, after)], count=1)
    return Wanted([look, wanted, DescribeEdges(stream=stream)], after, fail_on_gap, fields)


def asked(given: Parameters) -> Collection[str]:
    """The parameters that ask for something: `wait=0` and `reverse=false` go with everything."""
    return [name for name, text in given.items() if text not in _NOTHING.get(name, ())]


def check_combination(given: Parameters) -> None:
    """Refuse parameters that do not go together."""
    wanted = asked(given)
    for one, other in _EXCLUSIVE:
        if one in wanted and other in wanted:
            raise invalid(one, f"it does not go with {other}")


def fails_on_gap(given: Parameters) -> bool:
    """Whether a gap is a refusal."""
    return query.word(given, "on_gap", ("report", "fail"), "report") == "fail"


def _newest(
    stream: str, given: Parameters, bytes_max: int | None, fields: Sequence[str] | None, limits: ReadLimits
) -> Wanted:
    """`last=N`: the newest N entries, and beside them the last ID, in case there is no entry."""
    count = query.integer(given, "last", least=1, most=limits.count_max)
    backwards = XRange(
        stream=stream, start=ids.ID_MIN, end=ids.ID_MAX, count=count, reverse=True, bytes_max=bytes_max
    )
    look = XRead(streams=[(stream, Cursor.LATEST)], count=1)
    return Wanted([look, backwards], None, fields=fields, newest=True)


def bounds(stream: str, given: Parameters) -> XRange:
    """The range between `start`, `since` or `after` and `end` or `until`, forwards or backwards."""
    reverse = query.boolean(given, "reverse", default=False)
    if "since" in given:
        start = query.time_bound(given["since"], "since", upper=False)
    elif "after" in given:
        start = query.entry_id(given["after"], "after") + 1
    else:
        start = query.bound(given.get("start", "-"), "start", upper=False)
    if "until" in given:
        end = query.time_bound(given["until"], "until", upper=True)
    else:
        end = query.bound(given.get("end", "+"), "end", upper=True)
    return XRange(stream=stream, start=start, end=end, reverse=reverse)


def cursor(text: str, place: str) -> int | Cursor:
    """`$` or an ID."""
    return Cursor.LATEST if text == "$" else query.entry_id(text, place)


def preferred_wait_ms(prefer_wait_s: int | None, limits: ReadLimits) -> int | None:
    """What Prefer asks for."""
    if prefer_wait_s is not None and prefer_wait_s * 1000 > limits.wait_ms_max:
        raise invalid("Prefer", f"wait is at most {limits.wait_ms_max // 1000} seconds")
    return None if prefer_wait_s is None else prefer_wait_s * 1000


def _wait_ms(given: Parameters, prefer_wait_s: int | None, limits: ReadLimits) -> int | None:
    """How long to wait, None for not at all; the parameter wins over the preference."""
    wait_ms = query.integer(given, "wait", least=0, most=limits.wait_ms_max)
    if wait_ms is None:
        wait_ms = preferred_wait_ms(prefer_wait_s, limits)
    if wait_ms and "after" not in given:
        raise invalid("wait", "only a read with `after` can wait")
    return wait_ms or None


_NOTHING: Final = {"wait": ("0",), "reverse": ("false", "0")}
_EXCLUSIVE: Final = (
    ("start", "since"),
    ("end", "until"),
    ("after", "start"),
    ("after", "since"),
    ("after", "reverse"),
    ("wait", "end"),
    ("wait", "until"),
    *(("last", other) for other in ("start", "end", "since", "until", "after", "reverse", "count", "wait")),
)


def page(wanted: Wanted, replies: Sequence[Reply]) -> Page:
    """The answer's bytes: entries as they are stored, not encoded again. Raises `gap` where that was asked
    for.
    """
    found, following, gap, edges = Entries(), wanted.fallback, None, None
    for reply in replies:
        if isinstance(reply, StreamsRead):
            following = reply.cursors[0][1]
            found, gap = (reply.streams[0].entries, reply.streams[0].gap) if reply.streams else (found, None)
        elif isinstance(reply, Entries):
            found = reply
        elif isinstance(reply, Edges):
            edges = reply
    if gap is not None and wanted.fail_on_gap:
        raise gap_refused(gap)
    if wanted.newest:
        found = _forwards(found)
    told = assemble(found, following, gap, wanted.fields)
    return msgspec.structs.replace(told, edges=edges)


def _forwards(found: Entries) -> Entries:
    """A run that was read backwards, told forwards: it ends where the stream ends."""
    texts = entries.texts(found.json()) if found.count else []
    return Entries(texts[::-1], found.count, found.last, found.first)


def assemble(found: Entries, fallback: int | None, gap: Gap | None, fields: Sequence[str] | None) -> Page:
    """A page of entries; `fallback` is its `next` where there is none."""
    following = found.last if found.count else fallback
    after = b"null" if following is None else b'"%d-%d"' % (ids.ms_of(following), ids.sequence_of(following))
    more = b"true" if found.more else b"false"
    tail = b',"gap":' + gap_text(gap) if gap is not None else b""
    joined = found.json() if fields is None else projection.project(found.json(), fields)
    body = b'{"entries":[%b],"next":%b,"more":%b%b}' % (joined, after, more, tail)
    return Page(body, following, found.more, gap)


def gap_refused(gap: Gap) -> RefusalError:
    """410."""
    detail = "entries after the cursor were removed before they were read"
    return RefusalError("gap", detail, members=gap_members(gap))


def gap_text(gap: Gap) -> bytes:
    """A gap as JSON text."""
    return msgspec.json.encode(gap_members(gap))


def gap_members(gap: Gap) -> dict[str, str | int | None]:
    """A gap as JSON has it."""
    return {
        "requested": ids.text(gap.requested),
        "first_available": ids.text(gap.first_available),
        "lost": gap.lost,
    }
