"""Which streams expire when, or have entries that come back or are scheduled: the earliest first.

Knows: names and times (milliseconds of the wall clock).
Must never know: what a stream is, what time it is, what happens to a stream when its time comes.

    at_ms → names    an ordered map; names with the same time stand together

Each change and each look costs a bisection, however many streams expire.
"""

from collections.abc import Callable, Mapping
from itertools import islice, takewhile

from engine.blocks import SortedMap


class Lifetimes:
    """The streams that expire. It is an index: the time itself belongs to the stream."""

    __slots__ = ("_count", "_names", "_sum_ms", "next_ms", "on_earlier")

    def __init__(self) -> None:
        self._names: SortedMap[dict[str, None]] = SortedMap()
        # So that no look walks over all of them.
        self._count = self._sum_ms = 0
        # When the first stream expires; None while none does.
        self.next_ms: int | None = None
        # Called when `next_ms` has become earlier.
        self.on_earlier: Callable[[], None] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def mean_ms(self) -> int:
        """The mean of their times, 0 without any."""
        return self._sum_ms // self._count if self._count else 0

    def add(self, name: str, at_ms: int) -> None:
        """Enter a stream, which is not there."""
        self._count += 1
        self._sum_ms += at_ms
        names = self._names.get(at_ms)
        if names is None:
            self._names.set(at_ms, {name: None})
        else:
            names[name] = None
        if self.next_ms is None or at_ms < self.next_ms:
            self.next_ms = at_ms
            if self.on_earlier is not None:
                self.on_earlier()

    def discard(self, name: str, at_ms: int) -> None:
        """Take a stream out, if it is there."""
        names = self._names.get(at_ms)
        if names is None or name not in names:
            return
        self._count -= 1
        self._sum_ms -= at_ms
        names.pop(name)
        if not names:
            self._names.pop(at_ms)
            first = self._names.first()
            self.next_ms = None if first is None else first[0]

    def clear(self) -> None:
        """Take all streams out."""
        self._names = SortedMap()
        self._count = self._sum_ms = 0
        self.next_ms = None

    def is_due(self, now_ms: int) -> bool:
        """Whether any stream has reached its time."""
        return self.next_ms is not None and self.next_ms <= now_ms

    def first(self) -> tuple[str, int] | None:
        """The stream that expires first, and when."""
        first = self._names.first()
        return None if first is None else (next(iter(first[1])), first[0])

    def items(self) -> list[tuple[str, int]]:
        """Every stream with its time."""
        return [(name, at_ms) for at_ms, names in self._names.items() for name in names]


class DueTimes(Lifetimes):
    """The streams in which something is due, deferred entries or schedules, each with a time before which
    nothing is.

    It may be too early by what was acknowledged, claimed or cancelled meanwhile: then a look finds the true
    one. Streams that are put off are looked at later than something is due.
    """

    __slots__ = ("_times", "put_off")

    def __init__(self) -> None:
        super().__init__()
        self._times: dict[str, int] = {}
        # Since when something has been due in them.
        self.put_off: dict[str, int] = {}

    @property
    def first_due_ms(self) -> int | None:
        """When the first of all was or is due; None while there are none."""
        put_off_ms = min(self.put_off.values(), default=None)
        if put_off_ms is None or self.next_ms is None:
            return self.next_ms
        return min(put_off_ms, self.next_ms)

    def hasten(self, name: str, at_ms: int | None) -> None:
        """Look at the stream at that time, unless an earlier one is known; None changes nothing."""
        known = self._times.get(name)
        if at_ms is not None and (known is None or at_ms < known):
            self._set(name, at_ms)

    def replace(self, name: str, at_ms: int | None) -> None:
        """Look at the stream at that time and at no other one; None for never."""
        self.put_off.pop(name, None)
        self._set(name, at_ms)

    def delay(self, name: str, due_ms: int, until_ms: int) -> None:
        """Put a stream off: look at it again at `until_ms`, though something is due there since `due_ms`."""
        self.put_off[name] = due_ms
        self._set(name, until_ms)

    def _set(self, name: str, at_ms: int | None) -> None:
        known = self._times.pop(name, None)
        if known is not None:
            self.discard(name, known)
        if at_ms is not None:
            self._times[name] = at_ms
            self.add(name, at_ms)

    def due(self, now_ms: int, limit: int) -> list[str]:
        """The streams to look at, the earliest first, at most `limit`."""
        times = takewhile(lambda item: item[0] <= now_ms, self._names.items())
        return list(islice((name for _, names in times for name in names), limit))

    def clear(self) -> None:
        """Take all streams out."""
        super().clear()
        self._times.clear()
        self.put_off.clear()

    def check(self, found_ms: Mapping[str, int | None], names: Mapping[str, object]) -> None:
        """Assert that nothing is due before its stream is looked at; `names` are all streams."""
        times_ms = dict(self.items())
        assert self.put_off.keys() <= times_ms.keys(), "what is put off is looked at again"
        assert times_ms.keys() <= names.keys(), "what is due is of a stream"
        first_ms = {name: min(at_ms, self.put_off.get(name, at_ms)) for name, at_ms in times_ms.items()}
        assert all(first_ms[name] <= at_ms for name, at_ms in found_ms.items() if at_ms is not None), (
            "nothing is due before its stream is looked at"
        )
