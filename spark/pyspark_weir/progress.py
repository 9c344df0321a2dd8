"""Progress of finished batches, from Spark's listener to the code that follows a query; how much is left.

Knows: Spark's progress events, the gateway's calls for what is left, and for a group that is moved along.
Must never know: terminals, what is done with it.

Both calls only inform: a gateway that does not answer fails no run.
"""

import contextlib
import json
import queue
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_weir import clock, ids, offsets
from pyspark_weir.errors import PipelineError
from pyspark_weir.gateway import GatewayAccess, GatewayClient, PlannedRange, PlanQuery
from pyspark_weir.gateways import Gateways
from pyspark_weir.offsets import Lost, Offsets
from pyspark_weir.options import SourceOptions

_LOOK_S: Final = 0.25


class StreamLag(NamedTuple):
    """How far a stream is ahead of what is read: `entries`, and the time between the first and the last."""

    entries: int
    ms: int

    @classmethod
    def of(cls, planned: PlannedRange) -> "StreamLag":
        """From a plan of one entry, which ends with the first that is left."""
        ms = ids.parse(planned.last).ms - ids.parse(planned.end).ms if planned.lag else 0
        return cls(planned.lag, ms)


@dataclass(frozen=True)
class BatchProgress:
    """A batch that is done: `rows` entries of `streams` streams in `duration_ms`. `ends` is how far each
    stream is read, `lag` what comes after, both by `gateway/stream`; `lag` is None where that is not known.
    `lost` is what was gone before it was read.
    """

    query: str
    batch: int
    rows: int
    duration_ms: int
    time: str
    streams: int = 0
    ends: Offsets = field(default_factory=dict)
    lag: Mapping[str, StreamLag] | None = None
    lost: tuple[Lost, ...] = ()

    @property
    def left(self) -> int | None:
        """How many entries of all streams come after."""
        return None if self.lag is None else sum(one.entries for one in self.lag.values())

    @property
    def rows_per_second(self) -> float:
        return self.rows * 1_000 / max(1, self.duration_ms)

    def members(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "rows": self.rows,
            "streams": self.streams,
            "duration_ms": self.duration_ms,
            "rows_per_second": round(self.rows_per_second, 1),
            "left": self.left,
            "lag": lag_members(self.lag),
            "lost": [one._asdict() for one in self.lost],
            "time": self.time,
            "ends": {name: place.id for name, place in self.ends.items()},
        }


def lag_members(lag: Mapping[str, StreamLag] | None) -> dict[str, Any] | None:
    """As programs are shown it."""
    return None if lag is None else {name: one._asdict() for name, one in lag.items()}


class QueryEvents:
    """Events of queries that were not followed yet; and whether a signal asked for an end.

    `stop` may be called from a signal handler: it only sets and puts, and neither waits for a lock.
    """

    def __init__(self) -> None:
        self.stopped = False
        # The one queue whose `put` a signal handler may call while `get` waits.
        self._events: queue.SimpleQueue[tuple[str, BatchProgress | None]] = queue.SimpleQueue()

    def stop(self) -> None:
        self.stopped = True
        self._events.put(("", None))

    def put(self, run: str, event: BatchProgress | None) -> None:
        """A batch of a run of a query; None where it has ended."""
        self._events.put((run, event))

    def of(self, run: str) -> Iterator[BatchProgress | None]:
        """A run's events until it ends; None now and then, when there is nothing."""
        while True:
            try:
                name, event = self._events.get(timeout=_LOOK_S)
            except queue.Empty:
                yield None
                continue
            if name == run and event is None:
                return
            # Another job may run in the same session: what it has done is not done here.
            yield event if name == run else None


@contextlib.contextmanager
def listen(spark: SparkSession) -> Iterator[QueryEvents]:
    """Events of the session's queries, while it lasts."""
    events = QueryEvents()
    listener = _QueryListener(events)
    spark.streams.addListener(listener)
    try:
        yield events
    finally:
        spark.streams.removeListener(listener)


class _QueryListener(StreamingQueryListener):
    """Spark calls it in its one thread for listeners, so that nothing here may wait."""

    def __init__(self, events: QueryEvents) -> None:
        self._events = events

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self._events.put(str(event.progress.runId), parse_progress(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self._events.put(str(event.runId), None)


def parse_progress(found: Mapping[str, Any]) -> BatchProgress:
    """Spark's progress, as it stands in its JSON."""
    starts: Offsets = {}
    ends: Offsets = {}
    lost: list[Lost] = []
    for source in found.get("sources", ()):
        start, end = _offset(source.get("startOffset")), _offset(source.get("endOffset"))
        starts |= _positions(start)
        ends |= _positions(end)
        if start != end:
            lost += offsets.lost(end)
    return BatchProgress(
        query=found.get("name") or found["id"],
        batch=found["batchId"],
        rows=found["numInputRows"],
        duration_ms=found.get("batchDuration", 0),
        time=found["timestamp"],
        streams=sum(name not in starts or starts[name].id != end.id for name, end in ends.items()),
        ends=ends,
        lost=tuple(lost),
    )


def _offset(offset: object) -> dict[str, Any]:
    """A source's offset, as an object or as its text; nothing for a source that is not ours."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) and "v" in offset else {}


def _positions(offset: dict[str, Any]) -> Offsets:
    try:
        return offsets.decode(offset) if offset else {}
    except PipelineError:
        return {}


_REQUEST_MS_MAX: Final = 5_000
# How often gateways are asked while nothing comes.
_IDLE_S: Final = 5.0


class LagReporter(contextlib.ExitStack):
    """Asks the gateways of a run after a batch how much is left, and moves the mirror group along. `known` is
    their last answer.
    """

    def __init__(self, gateways: tuple[GatewayAccess, ...], mirror_group: str | None = None) -> None:
        super().__init__()
        quick = (
            replace(access, retry_timeout_ms=0, request_timeout_ms=_REQUEST_MS_MAX) for access in gateways
        )
        self._gateways = Gateways(SourceOptions(gateways=tuple(quick)))
        self.callback(self._gateways.close)
        self._mirror_group = mirror_group
        self.known: Mapping[str, StreamLag] | None = None
        self._asked_s = 0.0
        self._mirrored: dict[str, str] = {}

    def report(self, progress: BatchProgress) -> BatchProgress:
        """The progress with its lag; the mirror group has been moved to its end."""
        now_s = clock.monotonic_s()
        if not progress.ends or (not progress.rows and now_s < self._asked_s + _IDLE_S):
            return progress
        self._asked_s = now_s
        ends = {name: place.id for name, place in progress.ends.items()}
        if self._mirror_group is not None:
            self._move_group(ends, self._mirror_group)
        self.known = self._ask(ends)
        return replace(progress, lag=self.known)

    def _ask(self, ends: dict[str, str]) -> dict[str, StreamLag] | None:
        try:
            planned = self._gateways.plan(PlanQuery(ends, max_entries=1))
        except PipelineError:
            return None
        return {name: StreamLag.of(plan) for name, plan in planned.streams.items()}

    def _move_group(self, ends: dict[str, str], group: str) -> None:
        for name, last in ends.items():
            if self._mirrored.get(name) == last:
                continue
            gateway, stream = offsets.parts(name)
            # A group that could not be moved is moved after the next batch.
            with contextlib.suppress(PipelineError):
                if _move(self._gateways.at(gateway), stream, group, last):
                    self._mirrored[name] = last


def _move(gateway: GatewayClient, stream: str, group: str, last: str) -> bool:
    seen = gateway.stream(stream)
    if seen is None:
        return False
    # Up to the last ID that belongs to `entries_added`: entries that come meanwhile are in neither.
    query = PlanQuery(streams={stream: last}, end={stream: seen["last_id"]})
    left = gateway.plan(query).streams.get(stream)
    if left is None or left.generation != seen["generation"]:
        # Deleted in between; what is made anew has another beginning.
        return False
    gateway.move_group(stream, group, last, entries_read=max(0, seen["entries_added"] - left.count))
    return True
