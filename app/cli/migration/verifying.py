"""Whether a stream in Weir is the one in Redis: every entry, group and pending entry.

Knows: what has to be equal. Must never know: how a stream was copied, what is done about a difference.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from app.cli.migration import reading
from app.cli.migration.peers import Peer
from app.cli.migration.reading import SourceGroup, View
from engine import ids
from weir.cli.failure import Failure
from weir.cli.output import plain

# Beyond that a stream is another one, and the rest of it says nothing more.
DIFFERENCES_MAX: Final = 10


class Verified(NamedTuple):
    """How much was compared, and a sentence for each difference, of which there may be more."""

    entries: int
    pending: int
    differences: list[str]


class Verification:
    """A stream of Redis beside that in Weir. `own_group` is not Redis's."""

    def __init__(self, origin: Peer, target: Peer, stream: bytes, own_group: bytes) -> None:
        self._origin = origin
        self._target = target
        self._stream = stream
        self._own_group = own_group
        self._entries = 0
        self._pending = 0

    def run(self) -> Verified:
        """Compare both, up to `DIFFERENCES_MAX` differences. Raises Away, Failure."""
        found = [one for one, _ in zip(self._differences(), range(DIFFERENCES_MAX), strict=False)]
        return Verified(self._entries, self._pending, found)

    def _differences(self) -> Iterator[str]:
        source, copy = self._view(self._origin, "Redis"), self._view(self._target, "Weir")
        if source.length != copy.length:
            yield f"the length is {source.length} in Redis and {copy.length} in Weir"
        if source.last_id != copy.last_id:
            mine, theirs = ids.format(source.last_id), ids.format(copy.last_id)
            yield f"the last ID is {mine} in Redis and {theirs} in Weir"
        yield from self._entries_apart(source.last_id)
        groups = {group.name: group for group in copy.groups if group.name != self._own_group}
        for group in source.groups:
            yield from self._group_apart(group, groups.pop(group.name, None))
        for left in groups:
            yield f"group {_shown(left)} is in Weir alone"

    def _view(self, peer: Peer, where: str) -> View:
        found = reading.view(peer, self._stream, ids.ID_MAX, 1)
        if found is None:
            raise Failure(f"there is no such stream in {where}")
        return found

    def _entries_apart(self, last_id: int) -> Iterator[str]:
        mine = reading.entries(self._origin, self._stream, 0, last_id)
        theirs = reading.entries(self._target, self._stream, 0, last_id)
        for entry_id, entry, copy in reading.joined(mine, theirs):
            self._entries += 1
            if entry != copy:
                yield f"entry {ids.format(entry_id)} {_how(entry, copy)}"

    def _group_apart(self, group: SourceGroup, copy: SourceGroup | None) -> Iterator[str]:
        shown = _shown(group.name)
        if copy is None:
            yield f"group {shown} is in Redis alone"
            return
        if group.last_delivered_id != copy.last_delivered_id:
            mine, theirs = ids.format(group.last_delivered_id), ids.format(copy.last_delivered_id)
            yield f"the last-delivered ID of group {shown} is {mine} in Redis and {theirs} in Weir"
        rows = (
            reading.pending(peer, self._stream, group.name, 0, ids.ID_MAX)
            for peer in (self._origin, self._target)
        )
        for entry_id, pending, held in reading.joined(*rows):
            self._pending += 1
            # Clocks differ by some milliseconds; owners and counts must not.
            if pending is None or held is None or pending._replace(time_ms=held.time_ms) != held:
                yield f"pending entry {ids.format(entry_id)} of group {shown} {_how(pending, held)}"


def _how(mine: object, theirs: object) -> str:
    if mine is None:
        return "is in Weir alone"
    return "is in Redis alone" if theirs is None else "differs"


def _shown(name: bytes) -> str:
    return repr(plain(name.decode(errors="backslashreplace")))
