"""How far behind consumer groups are, whether they catch up, and when.

Knows: what two looks at a group, some time apart, say about its pace.
Must never know: Spark, which a handful of numbers does not need; how the findings are shown.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from pyspark_weir import gateway as calls
from pyspark_weir.errors import OptionError
from pyspark_weir.gateway import Gateway, PlanQuery
from pyspark_weir.ids import parse
from pyspark_weir.series import Bar, Line
from weir.durations import format_ms

# Of one group, for rates and for a chart; then the older ones go.
looks_max: Final = 2_000

CAUGHT_UP: Final = "caught_up"
CATCHING_UP: Final = "catching_up"
STEADY: Final = "steady"
FALLING_BEHIND: Final = "falling_behind"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which groups: of these streams, and of them these groups; all where there are none.

    Without streams, `pattern` is a regular expression for the whole names of those that are wanted.
    """

    streams: tuple[str, ...] = ()
    pattern: str = ".*"
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise OptionError(f"--pattern {self.pattern}: {error}") from None


class Place(NamedTuple):
    """A group: the gateway's stable name, stream, group."""

    gateway: str
    stream: str
    group: str


@dataclass(frozen=True, slots=True)
class Look:
    """One group at one moment, by the clock of who looks.

    `unread`: entries that were not delivered yet, None where the gateway cannot tell. `pending`: delivered
    and not acknowledged; of these the oldest by ID, and how long ago it was delivered. `entries_added`: to
    the stream, ever.
    """

    place: Place
    at_ms: int
    generation: str
    entries_added: int
    unread: int | None
    pending: int
    oldest_pending_id: str | None = None
    oldest_pending_idle_ms: int | None = None
    oldest_pending_deliveries: int | None = None

    @property
    def behind(self) -> int | None:
        """Entries that are not settled: unread and pending."""
        return None if self.unread is None else self.unread + self.pending


@dataclass(frozen=True, slots=True)
class Lag:
    """What is known of a group's lag. Counts are of entries, rates in entries a second, times milliseconds.

    `oldest_pending_age_ms` is how long the oldest pending entry has been in the stream. Rates are None after
    one look. `catch_up_ms` is when nothing will be behind if both rates stay: 0 when nothing is, None where
    it grows, stands still, or is not known; `trend` says which.
    """

    gateway: str
    stream: str
    group: str
    at_ms: int
    behind: int | None
    unread: int | None
    pending: int
    oldest_pending_id: str | None
    oldest_pending_age_ms: int | None
    oldest_pending_idle_ms: int | None
    oldest_pending_deliveries: int | None
    published_per_s: float | None
    settled_per_s: float | None
    catch_up_ms: int | None
    trend: str | None

    def row(self) -> dict[str, Any]:
        """The members, by name."""
        return asdict(self)


def look(gateway: Gateway, wanted: Wanted, at_ms: Callable[[], int]) -> list[Look]:
    """Each wanted group as it is now. Raises Refused, Unavailable."""
    found: list[Look] = []
    for stream in _streams(gateway, wanted):
        if not stream["groups"]:
            continue
        groups = calls.groups(gateway, stream["name"])
        chosen = [one for one in groups if not wanted.groups or one["name"] in wanted.groups]
        found += [_look(gateway, stream, group, at_ms()) for group in chosen]
    return found


def _streams(gateway: Gateway, wanted: Wanted) -> Iterable[dict[str, Any]]:
    if not wanted.streams:
        matches = re.compile(wanted.pattern).fullmatch
        return (stream for stream in calls.streams(gateway) if matches(stream["name"]))
    found = (calls.stream(gateway, name) for name in wanted.streams)
    return (stream for stream in found if stream is not None)


def _look(gateway: Gateway, stream: dict[str, Any], group: dict[str, Any], at_ms: int) -> Look:
    name = stream["name"]
    unread = group["lag"]
    if unread is None:
        # Deletions in the middle have spoiled the group's own arithmetic; counting has not.
        after = group["last_delivered_id"]
        planned = calls.plan(gateway, PlanQuery(streams={name: after})).streams.get(name)
        unread = planned.lag if planned else None
    oldest: dict[str, Any] = {}
    if group["pending"]:
        oldest = next(iter(calls.pending(gateway, name, group["name"], count=1)["pending"]), {})
    return Look(
        place=Place(gateway.access.name, name, group["name"]),
        at_ms=at_ms,
        generation=stream["generation"],
        entries_added=stream["entries_added"],
        unread=unread,
        pending=group["pending"],
        oldest_pending_id=oldest.get("id"),
        oldest_pending_idle_ms=oldest.get("idle_ms"),
        oldest_pending_deliveries=oldest.get("delivery_count"),
    )


def lag_of(looks: Sequence[Look]) -> Lag:
    """What looks at one group, oldest first and at least one, say of the last of them.

    What happened before the stream was made anew counts for nothing.
    """
    now = looks[-1]
    before = next(one for one in looks if one.generation == now.generation)
    published = settled = None
    seconds = (now.at_ms - before.at_ms) / 1_000
    added = now.entries_added - before.entries_added
    # Either can be set back by hand; no rate follows from that.
    if seconds > 0 and added >= 0:
        published = added / seconds
        if now.behind is not None and before.behind is not None:
            settled = max(published - (now.behind - before.behind) / seconds, 0.0)
    trend, catch_up_ms = _outlook(now.behind, published, settled)
    oldest = now.oldest_pending_id
    return Lag(
        *now.place,
        at_ms=now.at_ms,
        behind=now.behind,
        unread=now.unread,
        pending=now.pending,
        oldest_pending_id=oldest,
        oldest_pending_age_ms=None if oldest is None else max(now.at_ms - parse(oldest).ms, 0),
        oldest_pending_idle_ms=now.oldest_pending_idle_ms,
        oldest_pending_deliveries=now.oldest_pending_deliveries,
        published_per_s=_rounded(published),
        settled_per_s=_rounded(settled),
        catch_up_ms=catch_up_ms,
        trend=trend,
    )


def _outlook(
    behind: int | None, published: float | None, settled: float | None
) -> tuple[str | None, int | None]:
    if behind == 0:
        return CAUGHT_UP, 0
    if behind is None or published is None or settled is None:
        return None, None
    gained = settled - published
    if gained > 0:
        return CATCHING_UP, round(1_000 * behind / gained)
    return (FALLING_BEHIND if gained < 0 else STEADY), None


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


class Watch:
    """Remembers looks; rates are over the last `span_ms`, or since the last look where that is longer ago."""

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._looks: dict[Place, deque[Look]] = {}

    def note(self, looks: Iterable[Look]) -> list[Lag]:
        """Remember them; what is now known of these groups, those furthest behind first."""
        found = []
        for one in looks:
            known = self._looks.setdefault(one.place, deque(maxlen=looks_max))
            known.append(one)
            found.append(lag_of(self._recent(known)))
        # What cannot be told may be anything.
        return sorted(
            found, key=lambda lag: (lag.behind is not None, -(lag.behind or 0), lag.stream, lag.group)
        )

    def _recent(self, known: Sequence[Look]) -> list[Look]:
        since_ms = known[-1].at_ms - self._span_ms
        first = next(index for index, one in enumerate(known) if one.at_ms >= since_ms)
        return list(known)[min(first, max(len(known) - 2, 0)) :]

    def lines(self) -> list[Line]:
        """Entries behind over time, a line for each group."""
        return [
            Line(title(*place), [one.at_ms for one in looks], [one.behind for one in looks])
            for place, looks in self._looks.items()
        ]


def title(gateway: str, stream: str, group: str) -> str:
    """A group's name in a chart."""
    return f"{stream} / {group}" if gateway in ("", "g0") else f"{gateway}: {stream} / {group}"


def bars(found: Iterable[Lag]) -> list[Bar]:
    """Entries behind, a bar for each group; at its end the time until it has caught up."""
    return [
        Bar(
            title(lag.gateway, lag.stream, lag.group),
            {"unread": lag.unread or 0, "pending": lag.pending},
            "" if not lag.catch_up_ms else f"caught up in {format_ms(lag.catch_up_ms)}",
        )
        for lag in found
    ]


def publish(gateway: Gateway, stream: str, found: Sequence[Lag]) -> None:
    """Keep the findings as entries of a stream, one for each group; what is not known is left out."""
    rows = [{name: value for name, value in lag.row().items() if value is not None} for lag in found]
    for some in _chunks(rows):
        calls.publish(gateway, {stream: [{"fields": row} for row in some]})


def _chunks(rows: Sequence[dict[str, Any]], size: int = 1_000) -> Iterator[Sequence[dict[str, Any]]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))
