"""Reads of entries: parameters → XRANGE or XREAD, and what they answer → a page.

Knows: how bounds, cursors, waits and pages are written. Must never know: statuses, sockets, where a stream
is kept.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from app.errors import Refusal, invalid, not_implemented
from app.wire import query
from app.wire.query import Parameters
from engine import Cursor, Entries, Gap, Reply, StreamsRead, XRange, XRead, ids

PARAMETERS: Final = (
    *("start", "end", "since", "until", "reverse", "count", "max_bytes"),
    *("after", "wait", "on_gap", "last", "fields"),
)
NOT_BUILT: Final = ("last", "fields")


class ReadLimits(msgspec.Struct, frozen=True):
    """What one answer may hold and how long it may be waited for."""

    count_default: int
    count_max: int
    bytes_max: int
    wait_ms_max: int


class Wanted(msgspec.Struct, frozen=True):
    """A read and how to tell its outcome.

    Two commands are one turn: a look for a gap, then a range. `fallback` is the answer's `next` where
    nothing was
    found, None for null.
    """

    commands: Sequence[XRange | XRead]
    fallback: int | None
    fail_on_gap: bool = False


class Page(msgspec.Struct, frozen=True):
    """The answer: `next` is where to go on, None where there is nothing to go on from."""

    body: bytes
    next: int | None
    more: bool


def parse(stream: str, query_string: bytes, prefer_wait_s: int | None, limits: ReadLimits) -> Wanted:
    """What GET …/entries asks for."""
    given = query.parse(query_string, PARAMETERS)
    for name in NOT_BUILT:
        if name in given:
            raise not_implemented(f"the parameter {name}")
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            raise invalid(one, f"it does not go with {other}")
    count = query.integer(given, "count", least=1, most=limits.count_max, default=limits.count_default)
    bytes_max = query.integer(given, "max_bytes", least=1, most=limits.bytes_max, default=limits.bytes_max)
    fail_on_gap = query.word(given, "on_gap", ("report", "fail"), "report") == "fail"
    wait_ms = _wait_ms(given, prefer_wait_s, limits)
    if "after" in given and "end" not in given and "until" not in given:
        cursor = _cursor(given["after"])
        read = XRead(streams=[(stream, cursor)], count=count, block_ms=wait_ms, bytes_max=bytes_max)
        return Wanted([read], None, fail_on_gap)
    wanted = _range(stream, given, count, bytes_max)
    if "after" not in given:
        return Wanted([wanted], None if wanted.reverse else max(wanted.start - 1, ids.ID_MIN))
    after = query.entry_id(given["after"], "after")
    look = XRead(streams=[(stream, after)], count=1)
    return Wanted([look, msgspec.structs.replace(wanted, start=after + 1)], after, fail_on_gap)


def _range(stream: str, given: Parameters, count: int | None, bytes_max: int | None) -> XRange:
    reverse = query.boolean(given, "reverse", default=False)
    if "since" in given:
        start = query.time_bound(given["since"], "since", upper=False)
    else:
        start = query.bound(given.get("start", "-"), "start", upper=False)
    if "until" in given:
        end = query.time_bound(given["until"], "until", upper=True)
    else:
        end = query.bound(given.get("end", "+"), "end", upper=True)
    return XRange(stream=stream, start=start, end=end, count=count, reverse=reverse, bytes_max=bytes_max)


def _cursor(text: str) -> int | Cursor:
    return Cursor.LATEST if text == "$" else query.entry_id(text, "after")


def _wait_ms(given: Parameters, prefer_wait_s: int | None, limits: ReadLimits) -> int | None:
    """How long to wait, None for not at all; the parameter wins over the preference."""
    wait_ms = query.integer(given, "wait", least=0, most=limits.wait_ms_max)
    if wait_ms is None and prefer_wait_s is not None:
        wait_ms = prefer_wait_s * 1000
        if wait_ms > limits.wait_ms_max:
            raise invalid("Prefer", f"wait is at most {limits.wait_ms_max // 1000} seconds")
    if wait_ms and "after" not in given:
        raise invalid("wait", "only a read with `after` can wait")
    return wait_ms or None


_EXCLUSIVE: Final = (
    ("start", "since"),
    ("end", "until"),
    ("after", "start"),
    ("after", "since"),
    ("after", "reverse"),
    ("wait", "end"),
    ("wait", "until"),
)


def page(wanted: Wanted, replies: Sequence[Reply]) -> Page:
    """The answer's bytes: entries as they are stored, not encoded again. Raises `gap` where that was asked
    for.
    """
    found, following, gap = Entries(), wanted.fallback, None
    for reply in replies:
        if isinstance(reply, StreamsRead):
            following = reply.cursors[0][1]
            found, gap = (reply.streams[0].entries, reply.streams[0].gap) if reply.streams else (found, None)
        elif isinstance(reply, Entries):
            found = reply
    if gap is not None and wanted.fail_on_gap:
        detail = "entries after the cursor were removed before they were read"
        raise Refusal("gap", detail, members=gap_members(gap))
    return _assemble(found, found.last if found.count else following, gap)


def _assemble(found: Entries, following: int | None, gap: Gap | None) -> Page:
    after = b"null" if following is None else b'"%d-%d"' % (ids.ms_of(following), ids.sequence_of(following))
    more = b"true" if found.more else b"false"
    tail = b',"gap":' + msgspec.json.encode(gap_members(gap)) if gap is not None else b""
    return Page(
        b'{"entries":[%b],"next":%b,"more":%b%b}' % (found.json(), after, more, tail), following, found.more
    )


def gap_members(gap: Gap) -> dict[str, str | int | None]:
    """A gap as JSON has it."""
    return {
        "requested": ids.text(gap.requested),
        "first_available": ids.text(gap.first_available),
        "lost": gap.lost,
    }
