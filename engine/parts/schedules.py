"""The entries of a stream that are appended at a time of their own: by name, and the earliest first.

Knows: of each schedule its name, its entry's body, when it is due, the text of its rule.
Must never know: what a rule says, what time it is, what happens when a schedule is due.

    name  → schedule
    at_ms → name or names    an ordered map; names with the same time stand in the order of their schedules
    names                    in order, for pages of them
    at_ms → names in order   where many have the same time: no page may walk over all of these

A million takes 300 bytes each, so nothing is kept twice: the time in the map is the schedule's, and a time
that one schedule has alone leads to its name without a dict.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, ClassVar, Final

import msgspec

from engine import errors
from engine.blocks import SortedMap
from engine.errors import EngineError
from engine.memory import SCHEDULE_BYTES
from engine.names import SortedNames
from engine.parts.part import PartIndex, StreamPart, Streams
from engine.record import Record

# With this many at one time their names are kept in order until all but one have gone: fewer are put in order
# for each page, which takes less than a millisecond.
_CROWD_MIN: Final = 1_000


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """An entry for later: its body, and the text of the rule that gives its times; empty for `at_ms` alone.

    `left` is how many runs are left where they are counted.
    """

    text: bytes
    rule: str
    at_ms: int
    left: int | None = None


class StreamSchedules(StreamPart):
    """The schedules of one stream."""

    __slots__ = ("_by_name", "_crowds", "_names", "_times", "bytes", "others")
    rank = 60
    ends_with_stream = True
    falls_due = True
    refusals: ClassVar = {
        "has_schedules": lambda stream, count, *end: errors.has_schedules(stream, int(count), *end)
    }

    @classmethod
    def new_index(cls) -> "ScheduleIndex":
        return ScheduleIndex()

    def __init__(self) -> None:
        self._by_name: dict[str, Schedule] = {}
        self._times: SortedMap[str | dict[str, None]] = SortedMap()
        self._names = SortedNames()
        self._crowds: dict[int, SortedNames] = {}
        # How much memory they take.
        self.bytes = 0
        # Those that a backend has beside these.
        self.others = 0

    def __len__(self) -> int:
        return len(self._by_name) + self.others

    def get(self, name: str) -> Schedule | None:
        """The schedule of that name."""
        return self._by_name.get(name)

    def put(self, name: str, schedule: Schedule) -> None:
        """Enter a schedule, behind all that were entered before; one of that name goes."""
        if name in self._by_name:
            self.drop(name)
        self.bytes += _footprint_bytes(name, schedule)
        self._by_name[name] = schedule
        self._names.add(name)
        known = self._times.get(schedule.at_ms)
        if known is None:
            self._times.set(schedule.at_ms, name)
        elif isinstance(known, str):
            self._times.set(schedule.at_ms, {known: None, name: None})
        else:
            known[name] = None
            self._crowd(schedule.at_ms, name, known)

    def _crowd(self, at_ms: int, name: str, known: dict[str, None]) -> None:
        crowd = self._crowds.get(at_ms)
        if crowd is not None:
            crowd.add(name)
        elif len(known) >= _CROWD_MIN:
            self._crowds[at_ms] = crowd = SortedNames()
            crowd.replace(sorted(known))

    def drop(self, name: str) -> None:
        """Take out a schedule, which exists."""
        schedule = self._by_name.pop(name)
        self.bytes -= _footprint_bytes(name, schedule)
        self._names.remove(name)
        known = self._times.get(schedule.at_ms)
        if not isinstance(known, dict):
            self._times.pop(schedule.at_ms)
            return
        del known[name]
        crowd = self._crowds.get(schedule.at_ms)
        if crowd is not None:
            crowd.remove(name)
        if len(known) == 1:
            self._times.set(schedule.at_ms, *known)
            self._crowds.pop(schedule.at_ms, None)

    @property
    def due_ms(self) -> int | None:
        """When the first one is due."""
        first = self._times.first()
        return None if first is None else first[0]

    def due(self, now_ms: int, limit: int) -> list[tuple[str, Schedule]]:
        """Those that are due, the earliest first, at most `limit`."""
        return list(islice(self._between(0, now_ms), limit))

    def page_by_time(self, after: tuple[int, str], before_ms: int, limit: int) -> list[tuple[str, Schedule]]:
        """Those behind a time and a name, and before a time; those with the same time by name."""
        page: list[tuple[str, Schedule]] = []
        for at_ms, known in self._times.items(after[0]):
            if at_ms >= before_ms or len(page) >= limit:
                break
            behind = after[1] if at_ms == after[0] else ""
            names = self._names_at(at_ms, known, behind, limit - len(page))
            page += [(name, self._by_name[name]) for name in names]
        return page

    def _names_at(self, at_ms: int, known: str | dict[str, None], behind: str, limit: int) -> list[str]:
        """At most `limit` of the names with this time behind a name, in order."""
        crowd = self._crowds.get(at_ms)
        if crowd is not None:
            return crowd.page(after=behind, limit=limit)
        return nsmallest(
            limit, [one for one in ((known,) if isinstance(known, str) else known) if one > behind]
        )

    def page_by_name(self, after: str, before: str | None, limit: int) -> list[tuple[str, Schedule]]:
        """Those whose names are between these two, by name."""
        names = self._names.page(after=after, limit=limit)
        return [(name, self._by_name[name]) for name in names if before is None or name < before]

    def garbage(self) -> list[object]:
        """What is large in it, once the stream was removed."""
        return [self._by_name, self._times] if self._by_name else []

    @property
    def kept_bytes(self) -> int:
        """How much memory they take, kept."""
        return self.bytes

    @property
    def footprint_bytes(self) -> int:
        """How much memory they take, counted anew."""
        return sum(_footprint_bytes(name, schedule) for name, schedule in self._by_name.items())

    def behind(self, stream: str) -> Iterable[Record]:
        """In the order in which they were entered."""
        held = self._by_name.copy()
        return (
            PutSchedule(stream, name, one.text, one.rule, one.at_ms, one.left) for name, one in held.items()
        )

    def may_end(self, name: str, end: str) -> EngineError:
        """They would never run."""
        return errors.has_schedules(name, len(self), end)

    def check(self) -> None:
        """Assert that the orders hold each schedule once."""
        self._times.check()
        timed = [(name, schedule.at_ms) for name, schedule in self._between(0, 1 << 63)]
        assert sorted(timed) == [(name, one.at_ms) for name, one in sorted(self._by_name.items())], (
            "each schedule is due once, at its time"
        )
        assert self._names.page() == sorted(self._by_name), "the order of names holds each schedule once"
        for at_ms, crowd in self._crowds.items():
            assert crowd.page() == sorted(name for name, one_ms in timed if one_ms == at_ms), (
                "a crowd is those with its time"
            )

    def _between(self, low_ms: int, high_ms: int) -> Iterator[tuple[str, Schedule]]:
        for at_ms, known in self._times.items(low_ms):
            if at_ms > high_ms:
                return
            for name in (known,) if isinstance(known, str) else known:
                yield name, self._by_name[name]


def _footprint_bytes(name: str, schedule: Schedule) -> int:
    return SCHEDULE_BYTES + len(name.encode()) + len(schedule.text) + len(schedule.rule)


class ScheduleIndex(PartIndex):
    """How many schedules all streams have, which streams these are, and how many schedules have gone with
    streams that ended.
    """

    __slots__ = ("count", "dropped", "names")

    def __init__(self) -> None:
        super().__init__()
        self.count = self.dropped = 0
        self.names = SortedNames()

    @staticmethod
    def of(keyspace: Streams) -> "ScheduleIndex":
        """That of a keyspace."""
        index: ScheduleIndex = keyspace.indexes[StreamSchedules]
        return index

    def enter(self, name: str, part: StreamSchedules) -> None:
        super().enter(name, part)
        self.names.add(name)
        self.count += len(part)

    def leave(self, name: str, part: StreamSchedules) -> None:
        super().leave(name, part)
        self.names.remove(name)
        self.count -= len(part)

    def lose(self, part: StreamSchedules) -> None:
        self.dropped += len(part)

    def clear(self) -> None:
        super().clear()
        self.dropped += self.count
        self.count = 0
        self.names = SortedNames()

    def check(self, parts: Mapping[str, Any]) -> None:
        super().check(parts)
        assert self.count == sum(map(len, parts.values())), "the schedules are those of the streams"
        assert self.names.page() == sorted(parts), "the streams with schedules are in order"


class PutSchedule(Record, frozen=True):
    """An entry for later, of which `left` runs are left where they are counted; one of that name goes."""

    number = 40
    stream: str
    name: str
    text: bytes
    rule: str
    at_ms: int
    left: int | None

    def apply(self, keyspace: Streams) -> None:
        key, index = keyspace.keys[self.stream], ScheduleIndex.of(keyspace)
        schedules = StreamSchedules.of(key) or keyspace.put_part(self.stream, StreamSchedules())
        count, size = len(schedules), schedules.bytes
        schedules.put(self.name, Schedule(self.text, self.rule, self.at_ms, self.left))
        index.count += len(schedules) - count
        key.footprint.add(schedules.bytes - size)
        keyspace.due_times[StreamSchedules].hasten(self.stream, self.at_ms)


class DropSchedule(Record, frozen=True):
    """An entry for later was cancelled, or has run for the last time."""

    number = 41
    stream: str
    name: str

    def apply(self, keyspace: Streams) -> None:
        key = keyspace.keys[self.stream]
        schedules = StreamSchedules.of(key)
        assert schedules is not None, "the command has looked"
        size = schedules.bytes
        schedules.drop(self.name)
        ScheduleIndex.of(keyspace).count -= 1
        key.footprint.add(schedules.bytes - size)
        if not schedules:
            keyspace.drop_part(self.stream, StreamSchedules)
