"""The order of a group by key: no more entries with the same value of a field are in flight than is set.

Knows: of each pending entry its key, and the entries that were read and wait for theirs.
Must never know: what time it is, who reads, what an entry holds beside its key.

    in_flight     ID → key            pending entries with a key: one that is deleted holds its key until it
                                      is settled
    passed_over   ID → key            read, and not delivered yet; None is a key of the entry's own
    queues        key → IDs           the same of each key, ascending
    busy          key → number        how many of it are in flight
    ready         first ID → key      of those that wait, the keys that have room, so that no search is needed

A record says the keys of what was read: a replay looks into no entry.
"""

import base64
import hashlib
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import msgspec

from engine.blocks import Snapshot, SortedMap
from engine.groups import Group, GroupPart
from engine.parts.part import Streams, counted
from engine.pending_states import PendingState
from engine.record import IdList, Record

# Entries of a group that may wait for their keys: beyond it nothing new is read, so that neither memory nor a
# turn grows with the length of what stands behind one key.
ORDERED_WAITING_MAX: Final = 10_000
# Of a longer value the digest is the key.
_KEY_BYTES_MAX: Final = 256
# What it takes, about: with the name of a field; and of each entry beside its key.
_ORDERING_BYTES: Final = 900
_ROW_BYTES: Final = 330
# Rows in one record of a snapshot.
_ROWS_MAX: Final = 512
# Readers of keys that are kept: making one takes 0.1 ms.
_READERS_MAX: Final = 256

# In the place of a field: all entries have one key.
WHOLE: Final = "*"

Key = bytes | int


class Ordering(GroupPart):
    """A group without `ordered_by` has nothing of it."""

    __slots__ = (
        "_key_bytes",
        "_passed_over",
        "busy",
        "in_flight",
        "in_flight_per_key",
        "ordered_by",
        "queues",
        "ready",
    )
    rank = 50
    settings = MappingProxyType({"ordered_by": None, "in_flight_per_key": 1})
    follows_pending = True

    def __init__(self, ordered_by: str | None = None, in_flight_per_key: int = 1) -> None:
        self.ordered_by, self.in_flight_per_key = ordered_by, in_flight_per_key
        self.in_flight: SortedMap[bytes] = SortedMap()
        self._passed_over: SortedMap[bytes | None] = SortedMap()
        self.queues: dict[Key, list[int]] = {}
        self.busy: dict[bytes, int] = {}
        self.ready: SortedMap[Key] = SortedMap()
        self._key_bytes = 0

    @classmethod
    def change(cls, stream: str, group: str, values: Any) -> Record:  # noqa: ANN401 - its settings
        """Both."""
        return OrderByKey(stream, group, **values)

    @property
    def is_over(self) -> bool:
        """Without a field there is nothing to order by."""
        return self.ordered_by is None

    @property
    def passed_over(self) -> SortedMap[Any]:
        """What was read, and waits for its key."""
        return self._passed_over

    @property
    def has_room(self) -> bool:
        """Whether more may wait."""
        return len(self._passed_over) < ORDERED_WAITING_MAX

    def heads(self, count: int) -> list[int]:
        """The first entries that wait and whose keys have room, at most `count`, ascending."""
        found: list[int] = []
        for key in self.ready.values():
            found += self.queues[key][: self._room_of(key)]
            if len(found) >= count:
                break
        return sorted(found[:count])

    def key_of(self, entry_id: int) -> bytes | None:
        """The key of an entry that is in flight or waits; None for one that has none."""
        key = self.in_flight.get(entry_id)
        return self._passed_over.get(entry_id) if key is None else key

    def busiest(self) -> tuple[bytes, int] | None:
        """Of the keys that have no room the one that most entries wait for, and how many do."""
        waiting = [(len(queue), key) for key, queue in self.queues.items() if self._room_of(key) <= 0]
        count, key = max(waiting, default=(0, b""), key=lambda row: row[0])
        return (key, count) if count and isinstance(key, bytes) else None

    def _room_of(self, key: Key) -> int:
        return self.in_flight_per_key - self.busy.get(key, 0) if isinstance(key, bytes) else 1

    # --- what happens to entries

    def note_keys(self, group: Group, entry_ids: Sequence[int], keys: Sequence[bytes | None]) -> None:
        """Ascending entries with their keys: those that are pending are in flight, others wait."""
        known = {*self.in_flight.held_of(entry_ids), *self._passed_over.held_of(entry_ids)}
        pending = set(group.pending.held_of(entry_ids))
        begun: dict[int, bytes] = {}
        for entry_id, key in zip(entry_ids, keys, strict=True):
            if entry_id in known:
                continue
            if entry_id not in pending:
                self._wait(entry_id, key)
            elif key is not None:
                begun[entry_id] = key
        self._begin(begun)

    def note_pending(self, entry_ids: Sequence[int]) -> None:
        """Those of them that have waited are in flight."""
        last = self._passed_over.last()
        if last is None:
            return
        rows = self._leave(sorted({each for each in entry_ids if each <= last[0]}))
        self._begin({entry_id: key for entry_id, key in rows.items() if key is not None})

    def note_settled(self, entry_ids: Sequence[int]) -> None:
        """They are neither in flight, nor do they wait."""
        ascending, busy = sorted(set(entry_ids)), self.busy
        for key in self.in_flight.pop_each(ascending).values():
            self._key_bytes -= len(key)
            left = busy[key] - 1
            if left:
                busy[key] = left
            else:
                del busy[key]
            if key in self.queues:
                self._show(key)
        self._leave(ascending)

    def _begin(self, rows: Mapping[int, bytes]) -> None:
        """Ascending entries are in flight."""
        busy, queues = self.busy, self.queues
        self.in_flight.update(list(rows), list(rows.values()))
        for key in rows.values():
            self._key_bytes += len(key)
            if key in queues:
                self._hide(key)
                busy[key] = busy.get(key, 0) + 1
                self._show(key)
            else:
                busy[key] = busy.get(key, 0) + 1

    def _wait(self, entry_id: int, key: bytes | None) -> None:
        name = entry_id if key is None else key
        self._passed_over.set(entry_id, key)
        self._key_bytes += len(key or b"")
        queue = self.queues.setdefault(name, [])
        if queue and queue[-1] < entry_id:
            queue.append(entry_id)
            return
        self._hide(name)
        insort(queue, entry_id)
        self._show(name)

    def _leave(self, entry_ids: Sequence[int]) -> Mapping[int, bytes | None]:
        """Those of ascending entries that wait do so no more; they, with their keys."""
        rows = self._passed_over.pop_each(entry_ids) if self._passed_over else {}
        gone: dict[Key, list[int]] = {}
        for entry_id, key in rows.items():
            gone.setdefault(entry_id if key is None else key, []).append(entry_id)
            self._key_bytes -= len(key or b"")
        for name, leaving in gone.items():
            queue = self.queues[name]
            self._hide(name)
            if queue[: len(leaving)] == leaving:
                del queue[: len(leaving)]
            else:
                queue[:] = sorted({*queue}.difference(leaving))
            if not queue:
                del self.queues[name]
            self._show(name)
        return rows

    def _hide(self, key: Key) -> None:
        queue = self.queues.get(key)
        if queue:
            self.ready.pop(queue[0])

    def _show(self, key: Key) -> None:
        queue = self.queues.get(key)
        if queue and self._room_of(key) > 0:
            self.ready.set(queue[0], key)

    # --- what all parts have

    @property
    def kept_bytes(self) -> int:
        """How much memory it takes, about, as it is kept."""
        rows = len(self.in_flight) + len(self._passed_over)
        return _ORDERING_BYTES + rows * _ROW_BYTES + self._key_bytes

    @property
    def footprint_bytes(self) -> int:
        """The same, counted anew."""
        keys = [*self.in_flight.values(), *self._passed_over.values()]
        return _ORDERING_BYTES + len(keys) * _ROW_BYTES + sum(len(key or b"") for key in keys)

    def garbage(self) -> list[object]:
        """All of it."""
        return [self.in_flight, self._passed_over, self.queues, self.busy, self.ready]

    def copy_to(self, copy: Group, group: Group) -> None:
        """What waits here waits there."""
        ordering = Ordering(self.ordered_by, self.in_flight_per_key)
        for rows in (self.in_flight, self._passed_over):
            ordering.note_keys(copy, [row[0] for row in rows.items()], list(rows.values()))
        copy.put_part(ordering)

    def behind(self, stream: str, group: str, pending: Snapshot[PendingState]) -> Iterable[Record]:
        """The keys of what is in flight, and of what waits."""
        return _records(stream, group, [self.in_flight.snapshot(), self._passed_over.snapshot()])

    def check(self, group: Group) -> None:
        """Assert that all views hold the same entries."""
        for rows in (self.in_flight, self._passed_over, self.ready):
            rows.check()
        in_flight, waiting = dict(self.in_flight.items()), dict(self._passed_over.items())
        assert all(entry_id in group.pending for entry_id in in_flight), "what is in flight is pending"
        assert all(entry_id not in group.pending for entry_id in waiting), "what is pending waits no more"
        keys = list(in_flight.values())
        assert self.busy == {key: keys.count(key) for key in set(keys)}, "each key knows its entries"
        queues: dict[Key, list[int]] = {}
        for entry_id, key in waiting.items():
            queues.setdefault(entry_id if key is None else key, []).append(entry_id)
        assert self.queues == queues, "each that waits stands behind those of its key"
        ready = {queue[0]: key for key, queue in queues.items() if self._room_of(key) > 0}
        assert dict(self.ready.items()) == ready, "a key that has room is ready"


def _records(stream: str, group: str, held: Sequence[Snapshot[Any]]) -> Iterator[Record]:
    for rows in held:
        items = rows.items()
        while some := list(islice(items, _ROWS_MAX)):
            yield NoteKeys(stream, group, [row[0] for row in some], [row[1] for row in some])


@lru_cache(_READERS_MAX)
def key_reader(field: str) -> Callable[[bytes], bytes | None]:
    """What reads the key of a stored entry, the value of this field; None where it has none. Of a field that
    occurs twice it is the last value. All entries have the same key of `*`.
    """
    if field == WHOLE:
        return lambda _: WHOLE.encode()
    fields = msgspec.defstruct("_Fields", [("key", str | None, None)], rename={"key": field})
    entry = msgspec.defstruct("_Entry", [("fields", fields), ("encoding", str | None, None)])
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(entry).decode

    def read(text: bytes) -> bytes | None:
        found = decode(text)
        value = found.fields.key
        if value is None:
            return None
        key: bytes = value.encode() if found.encoding is None else base64.b64decode(value)
        return key if len(key) <= _KEY_BYTES_MAX else hashlib.sha256(key).digest()

    return read


class OrderByKey(Record, frozen=True):
    """A group delivers entries with the same value of a field one after the other, or some at a time; None
    for any order. Nothing of it is pending or waits.
    """

    number = 52
    stream: str
    group: str
    ordered_by: str | None
    in_flight_per_key: int

    def apply(self, keyspace: Streams) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            group.put_part(Ordering(self.ordered_by, self.in_flight_per_key))


class NoteKeys(Record, frozen=True):
    """The keys of entries that were read: those that are pending by now are in flight, others wait for their
    keys; None is a key of the entry's own. Of a snapshot too.
    """

    number = 53
    is_of_consumers = True
    stream: str
    group: str
    ids: IdList
    keys: Sequence[bytes | None]

    def apply(self, keyspace: Streams) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            ordering = Ordering.of(group)
            assert ordering is not None, "only groups with an order have keys"
            ordering.note_keys(group, self.ids, self.keys)
            group.put_part(ordering)
