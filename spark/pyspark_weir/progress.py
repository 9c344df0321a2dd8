"""What finished batches tell, brought from Spark's listener to whoever follows a query.

Knows: Spark's progress events. Must never know: gateways, terminals, why anybody follows.
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
    """A batch that is done: `rows` entries in `duration_ms`. `ends` is how far each stream is read, by
    `gateway/stream`; `left` how many entries come after, None where that is not known. `late` rows came after
    what they belong to was over, as far as Spark counts them: once for what a partition has of a window.
    """

    query: str
    batch: int
    rows: int
    duration_ms: int
    time: str
    ends: Offsets = field(default_factory=dict)
    left: int | None = None
    observed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    late: int = 0

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
            "duration_ms": self.duration_ms,
            "rows_per_second": round(self.rows_per_second, 1),
            "left": self.left,
            "time": self.time,
            "ends": {name: place.id for name, place in self.ends.items()},
            **({"late": self.late} if self.late else {}),
            **({"observed": self.observed} if self.observed else {}),
        }


class Told:
    """What queries told and nobody has followed yet; and whether a signal asked for an end.

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
        """What a run tells until it ends; None now and then, when there is nothing."""
        while True:
            try:
                name, event = self._events.get(timeout=_look_s)
            except queue.Empty:
                yield None
                continue
            if name == run and event is None:
                return
            # What an earlier run told late is told all the same: its batch is done.
            yield event


@contextlib.contextmanager
def listening(spark: SparkSession) -> Iterator[Told]:
    """What the session's queries tell, while it lasts."""
    told = Told()
    listener = _Listener(told)
    spark.streams.addListener(listener)
    try:
        yield told
    finally:
        spark.streams.removeListener(listener)


class _Listener(StreamingQueryListener):
    """Called by Spark in a thread of its own, which everything else that is listened to waits for."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self._told.put(str(event.progress.runId), of_spark(json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self._told.put(str(event.runId), None)


def of_spark(told: Mapping[str, Any]) -> Progress:
    """Spark's progress, as it stands in its JSON."""
    ends: Offsets = {}
    for source in told.get("sources", ()):
        ends |= _ends(source.get("endOffset"))
    return Progress(
        query=told.get("name") or told["id"],
        batch=told["batchId"],
        rows=told["numInputRows"],
        duration_ms=told.get("batchDuration", 0),
        time=told["timestamp"],
        ends=ends,
        observed=told.get("observedMetrics") or {},
        late=sum(one.get("numRowsDroppedByWatermark", 0) for one in told.get("stateOperators", ())),
    )


def _ends(offset: object) -> Offsets:
    """A source's end, as an object or as its text; nothing for a source that is not ours."""
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
