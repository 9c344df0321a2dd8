"""Progress of finished batches, from Spark's listener to the code that follows a query.

Knows: Spark's progress events. Must never know: gateways, terminals, what is done with it.
"""

import contextlib
import json
import queue
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_weir import offsets
from pyspark_weir.errors import PipelineError
from pyspark_weir.offsets import Offsets

_look_s: Final = 0.25


@dataclass(frozen=True)
class Progress:
    """A batch that is done: `rows` entries of `streams` streams in `duration_ms`. `ends` is how far each
    stream is read, by `gateway/stream`; `left` how many entries come after, None where that is not known.
    """

    query: str
    batch: int
    rows: int
    duration_ms: int
    time: str
    streams: int = 0
    ends: Offsets = field(default_factory=dict)
    left: int | None = None

    @property
    def rows_per_second(self) -> float:
        return self.rows * 1_000 / max(1, self.duration_ms)

    def with_left(self, left: int | None) -> "Progress":
        """The same, with what is left."""
        return replace(self, left=left)

    def members(self) -> dict[str, Any]:
        """For programs."""
        return {
            "batch": self.batch,
            "rows": self.rows,
            "streams": self.streams,
            "duration_ms": self.duration_ms,
            "rows_per_second": round(self.rows_per_second, 1),
            "left": self.left,
            "time": self.time,
            "ends": {name: place.id for name, place in self.ends.items()},
        }


class QueryEvents:
    """Events of queries that were not followed yet; and whether a signal asked for an end.

    `stop` may be called from a signal handler: it only sets and puts, and neither waits for a lock.
    """

    def __init__(self) -> None:
        self.stopped = False
        # The one queue whose `put` a signal handler may call while `get` waits.
        self._events: queue.SimpleQueue[tuple[str, Progress | None]] = queue.SimpleQueue()

    def stop(self) -> None:
        """Ask for an end."""
        self.stopped = True
        self._events.put(("", None))

    def put(self, run: str, event: Progress | None) -> None:
        """A batch of a run of a query; None where it has ended."""
        self._events.put((run, event))

    def of(self, run: str) -> Iterator[Progress | None]:
        """A run's events until it ends; None now and then, when there is nothing."""
        while True:
            try:
                name, event = self._events.get(timeout=_look_s)
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
    listener = _Listener(events)
    spark.streams.addListener(listener)
    try:
        yield events
    finally:
        spark.streams.removeListener(listener)


class _Listener(StreamingQueryListener):
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


def parse_progress(found: Mapping[str, Any]) -> Progress:
    """Spark's progress, as it stands in its JSON."""
    starts: Offsets = {}
    ends: Offsets = {}
    for source in found.get("sources", ()):
        starts |= _positions(source.get("startOffset"))
        ends |= _positions(source.get("endOffset"))
    return Progress(
        query=found.get("name") or found["id"],
        batch=found["batchId"],
        rows=found["numInputRows"],
        duration_ms=found.get("batchDuration", 0),
        time=found["timestamp"],
        streams=sum(name not in starts or starts[name].id != end.id for name, end in ends.items()),
        ends=ends,
    )


def _positions(offset: object) -> Offsets:
    """A source's offset, as an object or as its text; nothing for a source that is not ours."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, dict) or "v" not in offset:
        return {}
    try:
        return offsets.decode(offset)
    except PipelineError:
        return {}
