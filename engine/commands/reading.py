"""XREAD: reads that go on where the last one stopped, and may wait; what those of groups share with it.

Knows: cursors and their special words (docs/semantics.md). Must never know: groups' deliveries, how waiting
is done, wire formats.
"""

from collections.abc import Iterable, Sequence

import msgspec

from engine.commands import types
from engine.commands.registry import Waiting, runs, waits
from engine.commands.turn import Blocked, Look, Turn
from engine.generations import gap_of, is_another
from engine.groups import Group
from engine.keyspace import Key
from engine.parts.closing import Closed
from engine.replies import (
    Entries,
    Gap,
    StreamEnd,
    StreamEntries,
    StreamsRead,
)
from engine.stream import Stream


def end_of(name: str, key: Key | None, read_upto: int, group: Group | None = None) -> StreamEnd | None:
    """The end of a closed stream for a reader that has read so far; None while it may be given more."""
    closed = None if key is None else Closed.of(key)
    if key is None or closed is None or key.stream.last_live_id > read_upto:
        return None
    if group is not None and group.passed_over:
        return None
    drained = group is not None and not group.pending
    return StreamEnd(name, key.stream.last_id, closed.at_ms, closed.reason, drained)


def may_end(until: types.Until, ends: Sequence[StreamEnd], streams: int) -> bool:
    """Whether a read that waits until then has nothing more to wait for."""
    if until is types.Until.TIMEOUT or len(ends) < streams:
        return False
    return until is types.Until.CLOSED or all(end.drained for end in ends)


def gap_after(stream: Stream, cursor: int) -> bool:
    """Whether entries above `cursor` were removed from the front."""
    return 0 < cursor < stream.removed_upto


class Budget:
    """What one read may still give, over all its streams: entries, bytes of them, and IDs in its frame.

    The first entry always fits, so that a read always makes progress.
    """

    __slots__ = ("_bytes_left", "_count_left", "given", "ids_left")

    def __init__(self, bytes_max: int | None, ids_max: int, count_total: int | None = None) -> None:
        self._bytes_left = bytes_max
        self._count_left = ids_max if count_total is None else count_total
        self.given = 0
        self.ids_left = ids_max

    @property
    def spent(self) -> bool:
        """Whether nothing more fits."""
        return bool(self.given) and (
            self._most <= 0 or (self._bytes_left is not None and self._bytes_left <= 0)
        )

    @property
    def _most(self) -> int:
        return min(self.ids_left, self._count_left)

    def most(self, count: int | None) -> int:
        """How many of `count` entries fit, None for any number; one always does."""
        return max(1, self._most if count is None else min(count, self._most))

    @property
    def bytes_left(self) -> int | None:
        """How many bytes still fit; None where they are not counted."""
        return self._bytes_left

    def takes(self, size: int, count: int = 1) -> bool:
        """Count an entry of this size, if it fits."""
        if self.given and (count > self._most or (self._bytes_left is not None and size > self._bytes_left)):
            return False
        self.given += count
        self.ids_left -= count
        self._count_left -= count
        if self._bytes_left is not None:
            self._bytes_left -= size
        return True


# --- XREAD --------------------------------------------------------------------------------------------------


@runs(types.XRead)
def xread(turn: Turn, command: types.XRead) -> StreamsRead | Blocked:
    cursors = [(name, _resolve(turn, name, cursor)) for name, cursor in command.streams]
    room = Budget(turn.most_bytes(command.bytes_of_all), max(1, turn.entries_left), command.count_total)
    streams: list[StreamEntries] = []
    unfinished: list[str] = []
    generations: list[str] = []
    for name, cursor in cursors:
        key = turn.keyspace.find(name)
        if command.known is not None:
            known = command.known[len(generations)]
            generations.append("" if key is None else key.generation)
            # Of nearly every read the position is in the stream.
            if key is None or cursor > key.stream.last_id or (known and known != key.generation):
                gap = _turned(turn, key, cursor, known)
                if gap is not None:
                    streams.append(_moved(name, key, gap))
                    continue
        if key is None or not key.stream.length or key.stream.last_live_id <= cursor:
            if key is not None and command.known is not None and Closed.of(key) is not None:
                streams += _rest_of(name, key, cursor)
            continue
        given = _entries_after(key.stream, name, cursor, command, room)
        if given is None:
            unfinished.append(name)
        else:
            streams.append(given)
    turn.count_entries(room.given, sum(len(part) for stream in streams for part in stream.entries.parts))
    ends = _ends(turn, cursors, streams)
    if not streams and command.block_ms is not None and not may_end(command.until, ends, len(cursors)):
        return Blocked(
            msgspec.structs.replace(command, streams=cursors, known=generations if command.known else None),
            tuple(name for name, _ in cursors),
            command.block_ms,
        )
    return StreamsRead(streams, cursors, unfinished, generations, ends)


def _ends(
    look: Look, cursors: Iterable[tuple[str, int]], given: Sequence[StreamEntries] = ()
) -> Sequence[StreamEnd]:
    keys = [(name, look.keyspace.find(name), cursor) for name, cursor in cursors]
    closed = [row for row in keys if row[1] is not None and Closed.of(row[1]) is not None]
    if not closed:
        return ()
    read_upto = {stream.stream: stream.entries.last or goes_on_after(stream) for stream in given}
    ends = [end_of(name, key, read_upto.get(name, cursor)) for name, key, cursor in closed]
    return [end for end in ends if end is not None]


def goes_on_after(read: StreamEntries) -> int:
    """Where the reader goes on that got no entries."""
    gap = read.gap
    return read.after if gap is None or gap.next is None else gap.next


def _turned(turn: Turn, key: Key | None, cursor: int, known: str) -> Gap | None:
    """The gap where the cursor is of another stream."""
    return gap_of(cursor, known, None if key is None else key.identity, turn.keyspace.generations)


def _moved(name: str, key: Key | None, gap: Gap) -> StreamEntries:
    """Such a gap alone: the entries behind it are for the next read."""
    more = key is not None and key.stream.length > 0 and key.stream.last_live_id > gap.goes_on_after
    return StreamEntries(name, Entries(more=more), gap.requested, gap)


def _rest_of(name: str, key: Key, cursor: int) -> list[StreamEntries]:
    """The gap where the last entries of a closed stream are gone: no entry comes that would show it."""
    stream = key.stream
    if not gap_after(stream, cursor):
        return []
    return [StreamEntries(name, Entries(), cursor, Gap(cursor, stream.first_id, None, None, stream.last_id))]


def _resolve(turn: Turn, name: str, cursor: int | types.Cursor) -> int:
    if isinstance(cursor, int):
        return cursor
    key = turn.keyspace.find(name)
    if key is None:
        return 0
    if cursor is types.Cursor.LATEST:
        return key.stream.last_id
    return max(0, key.stream.last_live_id - 1)


def _entries_after(
    stream: Stream, name: str, cursor: int, command: types.XRead, room: Budget
) -> StreamEntries | None:
    """The entries after the cursor, of which there are some; None if the budget has no room for any."""
    if room.spent:
        return None
    count = room.most(command.count)
    entries = stream.range(
        cursor + 1, stream.last_live_id, count=count, bytes_max=room.bytes_left, up_to_damage=True
    )
    if not room.takes(sum(map(len, entries.parts)), entries.count):
        return None
    gap = Gap(cursor, stream.first_id, None) if gap_after(stream, cursor) else None
    return StreamEntries(name, entries, cursor, gap)


def _is_ready(look: Look, command: types.XRead, _: str | None) -> bool:
    for at, (name, cursor) in enumerate(command.streams):
        key = look.keyspace.find(name)
        assert isinstance(cursor, int), "it was resolved before the read waited"
        if key is not None and key.stream.last_live_id > cursor:
            return True
        there = None if key is None else key.identity
        if command.known is not None and is_another(cursor, command.known[at], there):
            return True
    return command.until is not types.Until.TIMEOUT and may_end(
        command.until, _ends(look, _cursors(command)), len(command.streams)
    )


def _cursors(command: types.XRead) -> list[tuple[str, int]]:
    return [(name, cursor) for name, cursor in command.streams if isinstance(cursor, int)]


def _nothing(turn: Turn, command: types.XRead) -> StreamsRead:
    cursors = _cursors(command)
    return StreamsRead((), cursors, (), command.known or (), _ends(turn, cursors))


waits(types.XRead, Waiting(_is_ready, _nothing, retry_at_ms=lambda *_: None))
