"""What an import reads of a stream, from a Redis of any version and from Weir alike, page by page.

Knows: the replies of XINFO, XRANGE and XPENDING from Redis 5.0 on.
Must never know: which server is asked, what is done with what is read.
"""

import heapq
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple, NoReturn, TypeVar

from app.cli.migration.peers import Peer, RefusedReply, Reply, SourceRedis
from engine import ids
from weir.cli.failure import Failure

PAGE_ENTRIES_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 8 << 20
# The first page of a stream whose entries may be of any size.
PAGE_ENTRIES_FIRST: Final = 16
# An idle time is exact when the clock shows the same millisecond before and after; this often it is tried.
_READINGS_MAX: Final = 20

_Thing = TypeVar("_Thing")
_Listed = TypeVar("_Listed", bound="SourceEntry | Pending")


class SourceEntry(NamedTuple):
    """An entry; `flat` are names and values in turn, in order, repeated ones too."""

    id: int
    flat: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.flat))


class Pending(NamedTuple):
    """A pending entry; `consumer` is None where it was released (XNACK): then its time is 0."""

    id: int
    consumer: bytes | None
    time_ms: int
    deliveries: int


class SourceGroup(NamedTuple):
    """A group; `entries_read` is None where the server does not know it."""

    name: bytes
    last_delivered_id: int
    entries_read: int | None
    pending: int


class View(NamedTuple):
    """A stream at one moment, with a page of its entries. `first_id` is 0 where it is empty.

    `entries_added` and `max_deleted_id` are None before Redis 7.0, `idmp` (seconds, entries) before 8.6 and
    where a Weir has a backend without it.
    """

    length: int
    first_id: int
    last_id: int
    entries_added: int | None
    max_deleted_id: int | None
    idmp: tuple[int, int] | None
    groups: list[SourceGroup]
    page: list[SourceEntry]


def streams(peer: Peer, match: bytes) -> set[bytes]:
    """The names of all streams like `match`; keys of other types are passed over."""
    streams, cursor = set[bytes](), b"0"
    while True:
        command = ("SCAN", cursor, "MATCH", match, "COUNT", PAGE_ENTRIES_MAX)
        after, keys = _list(peer.together([command])[0])
        names = [_bytes(key) for key in _list(keys)]
        types = peer.together([("TYPE", name) for name in names])
        streams.update(name for name, of in zip(names, types, strict=True) if of == b"stream")
        cursor = _bytes(after)
        if cursor == b"0":
            return streams


def grown(origin: SourceRedis, positions: Mapping[bytes, int], wait_ms: int) -> list[bytes]:
    """The streams with entries beyond these IDs; waits for one."""
    after = [ids.format(position) for position in positions.values()]
    reply = origin.alone(("XREAD", "COUNT", 1, "BLOCK", wait_ms, "STREAMS", *positions, *after))
    return [] if reply is None else [_bytes(_list(row)[0]) for row in _list(reply)]


def view(peer: Peer, stream: bytes, after: int, count: int) -> View | None:
    """The stream with its first `count` entries beyond `after`; None where there is none of this name."""
    # `+ -` is a range with nothing in it.
    first, last = ("+", "-") if after == ids.ID_MAX else (ids.format(after + 1), "+")
    info, groups, page = peer.together(
        [
            ("XINFO", "STREAM", stream),
            ("XINFO", "GROUPS", stream),
            ("XRANGE", stream, first, last, "COUNT", count),
        ]
    )
    if isinstance(info, RefusedReply) and "no such key" in info.text:
        return None
    members = _members(info)
    entry = members["first-entry"]
    duration_s = _number(members.get("idmp-duration", 0))
    return View(
        length=_number(members["length"]),
        first_id=_entry(entry).id if entry else 0,
        last_id=_id(members["last-generated-id"]),
        entries_added=_number(members["entries-added"]) if "entries-added" in members else None,
        max_deleted_id=_id(members["max-deleted-entry-id"]) if "max-deleted-entry-id" in members else None,
        idmp=(duration_s, _number(members["idmp-maxsize"])) if duration_s else None,
        groups=[_group(group) for group in _list(groups)],
        page=[_entry(entry) for entry in _list(page)],
    )


def fitting(count: int, page: list[SourceEntry]) -> int:
    """How many entries to ask for next, so that pages of long entries fit in memory too."""
    size = sum(entry.size for entry in page)
    return max(1, count // 2) if size > PAGE_BYTES_MAX // 2 else min(count * 2, PAGE_ENTRIES_MAX)


def entries(peer: Peer, stream: bytes, first: int, last: int) -> Iterator[SourceEntry]:
    """The entries of a range, both ends included."""
    count = PAGE_ENTRIES_FIRST
    while first <= last:
        command = ("XRANGE", stream, ids.format(first), ids.format(last), "COUNT", count)
        page = [_entry(entry) for entry in _list(peer.together([command])[0])]
        yield from page
        if len(page) < count:
            return
        first, count = page[-1].id + 1, fitting(count, page)


def newest(peer: Peer, stream: bytes, count: int) -> list[SourceEntry]:
    """The last entries, in order."""
    reply = peer.together([("XREVRANGE", stream, "+", "-", "COUNT", count)])[0]
    return [_entry(entry) for entry in reversed(_list(reply))]


def consumers(peer: Peer, stream: bytes, group: bytes) -> list[bytes]:
    """The names of a group's consumers; none where there is no such group any more."""
    reply = peer.together([("XINFO", "CONSUMERS", stream, group)])[0]
    return (
        []
        if isinstance(reply, RefusedReply)
        else [_bytes(_members(members)["name"]) for members in _list(reply)]
    )


def pending(peer: Peer, stream: bytes, group: bytes, first: int, last: int) -> Iterator[Pending]:
    """The pending entries of a group in a range of IDs, both ends included."""
    while first <= last:
        page = _pending_page(peer, stream, group, first, last)
        yield from page
        if len(page) < PAGE_ENTRIES_MAX:
            return
        first = page[-1].id + 1


def _pending_page(peer: Peer, stream: bytes, group: bytes, first: int, last: int) -> list[Pending]:
    """Redis reports idle times only, so the clock is read on both sides of them."""
    listing = ("XPENDING", stream, group, ids.format(first), ids.format(last), PAGE_ENTRIES_MAX)
    now_ms, listed = 0, list[Reply]()
    for _ in range(_READINGS_MAX):
        before, reply, after = peer.together([("TIME",), listing, ("TIME",)])
        if isinstance(reply, RefusedReply):
            # The group has gone meanwhile.
            return []
        now_ms, listed = _ms(after), _list(reply)
        if not listed or _ms(before) == now_ms:
            break
    return [_pending(row, now_ms) for row in listed]


def expires_at_ms(peer: Peer, stream: bytes) -> int | None:
    """When the stream expires; None for never. PEXPIRETIME is Redis 7's: the clock is read on both sides."""
    at_ms: int | None = None
    for _ in range(_READINGS_MAX):
        before, left, after = peer.together([("TIME",), ("PTTL", stream), ("TIME",)])
        at_ms = None if _number(left) < 0 else _ms(after) + _number(left)
        if at_ms is None or _ms(before) == _ms(after):
            break
    return at_ms


def merged(*runs: Iterator[tuple[int, _Thing]]) -> Iterator[tuple[int, list[_Thing]]]:
    """Runs in ascending order of their IDs → each ID with what has it, in the order of the runs."""
    for entry_id, alike in groupby(heapq.merge(*runs, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        yield entry_id, [thing for _, thing in alike]


def joined(
    left: Iterator[_Listed], right: Iterator[_Listed]
) -> Iterator[tuple[int, _Listed | None, _Listed | None]]:
    """Two runs in ascending order of their IDs, side by side; None where one has nothing of that ID."""
    mine, theirs = next(left, None), next(right, None)
    while mine is not None or theirs is not None:
        if theirs is None or (mine is not None and mine.id < theirs.id):
            assert mine is not None, "one of them has something"
            yield mine.id, mine, None
            mine = next(left, None)
        elif mine is None or theirs.id < mine.id:
            yield theirs.id, None, theirs
            theirs = next(right, None)
        else:
            yield mine.id, mine, theirs
            mine, theirs = next(left, None), next(right, None)


def _group(reply: Reply) -> SourceGroup:
    members = _members(reply)
    read = members.get("entries-read")
    return SourceGroup(
        name=_bytes(members["name"]),
        last_delivered_id=_id(members["last-delivered-id"]),
        entries_read=None if read is None else _number(read),
        pending=_number(members["pending"]),
    )


def _entry(reply: Reply) -> SourceEntry:
    entry_id, flat = _list(reply)
    return SourceEntry(_id(entry_id), [_bytes(word) for word in _list(flat)])


def _pending(reply: Reply, now_ms: int) -> Pending:
    entry_id, consumer, idle_ms, deliveries = _list(reply)
    if _number(idle_ms) < 0:
        return Pending(_id(entry_id), None, 0, _number(deliveries))
    return Pending(_id(entry_id), _bytes(consumer), now_ms - _number(idle_ms), _number(deliveries))


def _members(reply: Reply) -> dict[str, Reply]:
    flat = _list(reply)
    return {_bytes(name).decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _ms(reply: Reply) -> int:
    seconds, micros = _list(reply)
    return _number(seconds) * 1_000 + _number(micros) // 1_000


def _id(reply: Reply) -> int:
    return ids.parse_canonical(_bytes(reply))


def _number(reply: Reply) -> int:
    # Weir gives integers beyond 2^53 as text.
    return int(reply) if isinstance(reply, bytes) else reply if isinstance(reply, int) else _unexpected(reply)


def _bytes(reply: Reply) -> bytes:
    return reply if isinstance(reply, bytes) else _unexpected(reply)


def _list(reply: Reply) -> list[Reply]:
    return reply if isinstance(reply, list) else _unexpected(reply)


def _unexpected(reply: Reply) -> NoReturn:
    raise Failure(reply.text if isinstance(reply, RefusedReply) else f"an unexpected reply: {reply!r}")
