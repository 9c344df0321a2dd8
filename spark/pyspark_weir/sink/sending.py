"""A task's entries on their way: cut into chunks, sent in order or a few at once, each answer looked at.

Knows: the gateway's connection, the keys of the task, a pace.
Must never know: Spark, but for the message that reaches its driver; where the entries come from.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_weir.clock import monotonic_s
from pyspark_weir.errors import PipelineError, RefusedError
from pyspark_weir.gateway import GatewayClient, of_stream
from pyspark_weir.sink.keys import FencedError, Json, Keys, SinkRequest, Stored, TaskId, pairs_of
from pyspark_weir.sink.rows import SinkEntry, TaskChunk, cut

_MISSING: Final = "ERR no such key"
# Of the streams of a chunk, in an error.
_NAMED_MAX: Final = 3
# Gone since, or a token that may write and not read.
_TELLS_NOTHING: Final = frozenset(("no_stream", "no_entry", "forbidden"))


class Pace:
    """A bucket that holds what one request takes and fills at `per_s` entries a second.

    `clock` gives seconds that never go back. What was not used is not saved up, so that a pause is followed
    by no burst.
    """

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._free_at_s = clock()

    def pause_s(self, entries: int) -> float:
        """Seconds to wait before these entries may go; they count as gone then."""
        now_s = self._clock()
        start_s = max(now_s, self._free_at_s)
        self._free_at_s = start_s + entries / self._per_s
        return start_s - now_s


@dataclass
class Sent(WriterCommitMessage):
    """What a task of `place` has stored: entries by stream, chunks, and chunks that had been there before."""

    place: TaskId
    streams: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    repeated: int = 0

    @property
    def rows(self) -> int:
        return sum(self.streams.values())

    def add(self, counts: dict[str, int], *, repeated: bool) -> None:
        self.chunks += 1
        self.repeated += repeated
        for name, count in counts.items():
            self.streams[name] = self.streams.get(name, 0) + count


class SinkSender:
    """Sends chunks through an open gateway. `wait` takes seconds."""

    def __init__(
        self,
        gateway: GatewayClient,
        keys: Keys,
        *,
        rows_max: int,
        in_flight: int = 1,
        per_s: float | None = None,
        clock: Callable[[], float] = monotonic_s,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gateway = gateway
        self._keys = keys
        self._rows_max = rows_max
        self._in_flight = in_flight
        self._pace = None if per_s is None else Pace(per_s, clock)
        self._wait = wait
        self._prepared: set[str] = set()

    def send(self, entries: Iterable[SinkEntry], place: TaskId) -> Sent:
        """Store all of them, for a task.

        Raises FencedError, ChangedError, RowError, RefusedError, Unavailable.
        """
        sent = Sent(place)
        chunks = cut(entries, self._keys.write, self._rows_max)
        if self._in_flight == 1:
            for chunk in chunks:
                self._before(chunk)
                sent.add(chunk.counts(), repeated=self._store(chunk))
            return sent
        # Leaving the block waits for what is under way, also where one chunk has failed.
        with ThreadPoolExecutor(self._in_flight) as pool:
            under_way: deque[tuple[TaskChunk[Any], Future[bool]]] = deque()
            for chunk in chunks:
                self._before(chunk)
                if len(under_way) == self._in_flight:
                    _settle(under_way, sent)
                under_way.append((chunk, pool.submit(self._store, chunk)))
            while under_way:
                _settle(under_way, sent)
        return sent

    def _before(self, chunk: TaskChunk[Any]) -> None:
        new = chunk.streams.keys() - self._prepared
        request = self._keys.prepare(sorted(new)) if new else None
        if request is not None:
            self._prepare(sorted(new), request)
        self._prepared |= new
        if self._pace is not None:
            pause_s = self._pace.pause_s(chunk.rows)
            if pause_s > 0:
                self._wait(pause_s)

    def _prepare(self, streams: list[str], request: SinkRequest) -> None:
        """A stream's memory for keys is given before its first entry: later, it would forget what it has."""
        missing = [name for name, error in self._refused(streams, request) if error == _MISSING]
        for name in missing:
            self._gateway.ensure_stream(name)
        for name, error in self._refused(streams, request) if missing else ():
            raise PipelineError("WEIR_REFUSED", f"stream {name}: {error}")

    def _refused(self, streams: list[str], request: SinkRequest) -> list[tuple[str, str]]:
        results = self._ask(request)
        return [(name, one["error"]) for name, one in zip(streams, results, strict=True) if "error" in one]

    def _store(self, chunk: TaskChunk[Any]) -> bool:
        try:
            answer = self._ask(self._keys.request(chunk))
        except RefusedError as refused:
            if refused.problem == "idempotency_mismatch":
                raise self._keys.changed(chunk) from None
            names = ", ".join(sorted(chunk.streams)[:_NAMED_MAX])
            raise refused.about(f"publishing chunk {chunk.number} to {names}") from None
        had = self._keys.repeated(chunk, answer)
        for one in had:
            if self._is_other(one):
                raise self._keys.changed(chunk)
        return bool(had)

    def _is_other(self, one: Stored) -> bool:
        """Whether an entry is there and is not what it should be; a deleted one proves nothing."""
        try:
            entry = self._gateway.get(f"{of_stream(one.stream)}/entries/{one.id}")
        except RefusedError as refused:
            if refused.problem in _TELLS_NOTHING:
                return False
            raise
        return pairs_of(entry) != one.pairs

    def _ask(self, request: SinkRequest) -> Json:
        try:
            return self._gateway.post(
                request.path, request.content, headers=request.headers, repeatable=request.repeatable
            )
        except RefusedError as refused:
            if refused.problem != "stale_epoch":
                raise
            producer, epoch = (request.headers.get(f"weir-{name}") for name in ("producer", "epoch"))
            raise FencedError(
                f"epoch {epoch} of {producer} is over, the gateway has seen epoch "
                f"{refused.members.get('epoch')}: another run of the same query or job has gone on"
            ) from None


def _settle(under_way: deque[tuple[TaskChunk[Any], Future[bool]]], sent: Sent) -> None:
    chunk, future = under_way.popleft()
    sent.add(chunk.counts(), repeated=future.result())
