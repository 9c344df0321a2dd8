"""How far behind consumer groups are, whether they catch up, and when.

Knows: what two samples of a group, some time apart, say about its rates.
Must never know: how the results are shown, what time it is.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir import Client, GroupInfo, PendingEntry, StreamInfo

# Of one group, for rates and for a chart; the oldest are dropped.
samples_max: Final = 2_000

CAUGHT_UP: Final = "caught_up"
CATCHING_UP: Final = "catching_up"
STEADY: Final = "steady"
FALLING_BEHIND: Final = "falling_behind"


@dataclass(frozen=True, slots=True)
class GroupSelection:
    """Which groups: of these streams, and of them these groups; all where there are none. Without streams,
    `pattern` is a regular expression for whole names. Raises ValueError for a pattern that is none.
    """

    streams: tuple[str, ...] = ()
    pattern: str = ".*"
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"--pattern {self.pattern}: {error}") from None


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One group at one moment, `at_ms` by the clock of this machine.

    `lag`: entries not delivered yet, None where the gateway does not know. `pending`: entries delivered
    and not acknowledged; `oldest` is the first of them as the gateway lists it. `entries_added`: to the
    stream, in total.
    """

    stream: str
    group: str
    at_ms: int
    generation: str
    entries_added: int
    lag: int | None
    pending: int
    oldest: PendingEntry | None = None
    state: str | None = None

    @property
    def behind(self) -> int | None:
        """Entries that are not settled: the lag, and what is pending."""
        return None if self.lag is None else self.lag + self.pending


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group's lag. Counts are of entries, rates in entries a second, times in milliseconds.

    `oldest_pending_age_ms` is how long the oldest pending entry has been in the stream. Rates are None after
    one sample. `catch_up_ms` is the time until nothing is behind at these rates: 0 when nothing is, None
    where it grows, stands still, or is not known; `trend` says which.
    """

    stream: str
    group: str
    at_ms: int
    behind: int | None
    lag: int | None
    pending: int
    oldest_pending_id: str | None
    oldest_pending_age_ms: int | None
    oldest_pending_idle_ms: int | None
    oldest_pending_deliveries: int | None
    published_per_s: float | None
    settled_per_s: float | None
    catch_up_ms: int | None
    trend: str | None
    state: str | None = None


def sample_groups(
    client: Client,
    selection: GroupSelection,
    at_ms: int,
    on_missing: Callable[[str], None] = lambda _: None,
) -> list[GroupSample]:
    """Each selected group as it is now; what does not exist is left out. `on_missing` is called with each
    named stream that does not exist. Raises WeirError.
    """
    return [
        _sample(client, stream, group, at_ms)
        for stream in _streams(client, selection, on_missing)
        if stream["groups"]
        for group in client.list_groups(stream["name"])
        if not selection.groups or group["name"] in selection.groups
    ]


def _streams(
    client: Client, selection: GroupSelection, on_missing: Callable[[str], None]
) -> Iterator[StreamInfo]:
    if not selection.streams:
        matches = re.compile(selection.pattern).fullmatch
        yield from (stream for stream in client.list_streams() if matches(stream["name"]))
        return
    for name in selection.streams:
        stream = client.get_stream(name)
        if stream is None:
            on_missing(name)
        else:
            yield stream


def _sample(client: Client, stream: StreamInfo, group: GroupInfo, at_ms: int) -> GroupSample:
    name, lag, oldest = stream["name"], group["lag"], None
    if lag is None:
        # Deletions in the middle have spoiled the group's own arithmetic; counting works.
        body = {"streams": {name: group["last_delivered_id"]}}
        planned: dict[str, Any] = client.call("POST", "/v1/plan", body=body, repeatable=True)
        counted = planned["streams"].get(name)
        lag = None if counted is None else counted["lag"]
    if group["pending"]:
        oldest = next(iter(client.group(name, group["name"]).pending(page_count=1)), None)
    return GroupSample(
        name,
        group["name"],
        at_ms,
        stream["generation"],
        stream["entries_added"],
        lag,
        group["pending"],
        oldest,
        group.get("state"),
    )


def lag_of(samples: Sequence[GroupSample]) -> GroupLag:
    """The lag of one group after the last of these samples, oldest first and at least one.

    Samples of an earlier generation of the stream do not count.
    """
    now = samples[-1]
    before = next(one for one in samples if one.generation == now.generation)
    published = settled = None
    seconds = (now.at_ms - before.at_ms) / 1_000
    added = now.entries_added - before.entries_added
    # Either can be set back by hand; no rate follows from that.
    if seconds > 0 and added >= 0:
        published = added / seconds
        if now.behind is not None and before.behind is not None:
            settled = max(published - (now.behind - before.behind) / seconds, 0.0)
    trend, catch_up_ms = _outlook(now.behind, published, settled)
    oldest = now.oldest
    return GroupLag(
        stream=now.stream,
        group=now.group,
        at_ms=now.at_ms,
        behind=now.behind,
        lag=now.lag,
        pending=now.pending,
        oldest_pending_id=oldest and oldest["id"],
        oldest_pending_age_ms=oldest and max(now.at_ms - int(oldest["id"].partition("-")[0]), 0),
        oldest_pending_idle_ms=oldest and oldest["idle_ms"],
        oldest_pending_deliveries=oldest and oldest["delivery_count"],
        published_per_s=None if published is None else round(published, 3),
        settled_per_s=None if settled is None else round(settled, 3),
        catch_up_ms=catch_up_ms,
        trend=trend,
        state=now.state,
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


class LagHistory:
    """Samples by (stream, group). Rates are over the last `span_ms`, or since the last sample where that is
    longer ago.
    """

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self.samples: dict[tuple[str, str], deque[GroupSample]] = {}

    def add(self, samples: Sequence[GroupSample]) -> list[GroupLag]:
        """Keep them; the lags of these groups, those furthest behind first, unknown ones before them."""
        found = []
        for one in samples:
            known = self.samples.setdefault((one.stream, one.group), deque(maxlen=samples_max))
            known.append(one)
            found.append(lag_of(self._recent(known)))
        return sorted(
            found, key=lambda lag: (lag.behind is not None, -(lag.behind or 0), lag.stream, lag.group)
        )

    def _recent(self, known: Sequence[GroupSample]) -> list[GroupSample]:
        since_ms = known[-1].at_ms - self._span_ms
        first = next(index for index, one in enumerate(known) if one.at_ms >= since_ms)
        return list(known)[min(first, max(len(known) - 2, 0)) :]
