"""A task's entries on their way: cut into chunks, sent in order or a few at once, each answer looked at.

Knows: the gateway's connection, the keys of the task, a pace.
Must never know: Spark, where the entries come from.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from pyspark_weir.clock import monotonic_s
from pyspark_weir.errors import PipelineError, Refused
from pyspark_weir.gateway import Gateway
from pyspark_weir.gateway.client import of_stream
from pyspark_weir.sink.chunks import Chunk, cut
from pyspark_weir.sink.keys import Fenced, Json, Keys, Request, Stored, pairs_of
from pyspark_weir.sink.pace import Pace
from pyspark_weir.sink.rows import Entry

_MISSING: Final = "ERR no such key"
# Gone since, or a token that may write and not read.
_TELLS_NOTHING: Final = frozenset(("no_stream", "no_entry", "forbidden"))


@dataclass
class Sent:
    """What a task has stored: entries by stream, chunks, and how many chunks had been there before."""

    streams: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    repeated: int = 0

    @property
    def rows(self) -> int:
        """Entries in all."""
        return sum(self.streams.values())

    def add(self, counts: dict[str, int], *, repeated: bool) -> None:
        """Count a chunk."""
        self.chunks += 1
        self.repeated += repeated
        for name, count in counts.items():
            self.streams[name] = self.streams.get(name, 0) + count


class Sender:
    """Sends chunks through an open gateway. `wait` takes seconds."""

    def __init__(
        self,
        gateway: Gateway,
        keys: Keys[Any],
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

    def send(self, entries: Iterable[Entry]) -> Sent:
        """Store all of them. Raises Fenced, Changed, RowError, Refused, Unavailable."""
        sent = Sent()
        chunks = cut(entries, self._keys.write, self._rows_max)
        if self._in_flight == 1:
            for chunk in chunks:
                self._before(chunk)
                sent.add(chunk.counts(), repeated=self._store(chunk))
            return sent
        # Leaving the block waits for what is under way, also where one chunk has failed.
        with ThreadPoolExecutor(self._in_flight) as pool:
            under_way: deque[tuple[Chunk[Any], Future[bool]]] = deque()
            for chunk in chunks:
                self._before(chunk)
                if len(under_way) == self._in_flight:
                    _settle(under_way, sent)
                under_way.append((chunk, pool.submit(self._store, chunk)))
            while under_way:
                _settle(under_way, sent)
        return sent

    def _before(self, chunk: Chunk[Any]) -> None:
        new = chunk.streams.keys() - self._prepared
        request = self._keys.prepare(sorted(new)) if new else None
        if request is not None:
            self._prepare(sorted(new), request)
        self._prepared |= new
        if self._pace is not None:
            pause_s = self._pace.pause_s(chunk.rows)
            if pause_s > 0:
                self._wait(pause_s)

    def _prepare(self, streams: list[str], request: Request) -> None:
        """A stream's memory for keys is given before its first entry: later, it would forget what it has."""
        missing = [name for name, error in self._refused(streams, request) if error == _MISSING]
        for name in missing:
            self._gateway.put(of_stream(name), {}, about=f"stream {name}")
        for name, error in self._refused(streams, request) if missing else ():
            raise PipelineError("WEIR_REFUSED", f"stream {name}: {error}")

    def _refused(self, streams: list[str], request: Request) -> list[tuple[str, str]]:
        results = self._ask(request, "preparing for keys")
        return [(name, one["error"]) for name, one in zip(streams, results, strict=True) if "error" in one]

    def _store(self, chunk: Chunk[Any]) -> bool:
        names = sorted(chunk.streams)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        about = f"publishing chunk {chunk.number} to {names[0]}{more}"
        try:
            answer = self._ask(self._keys.request(chunk), about)
        except Refused as refused:
            if refused.problem != "idempotency_mismatch":
                raise
            raise self._keys.changed(chunk) from None
        had = self._keys.repeated(chunk, answer)
        for one in had:
            if self._is_other(one):
                raise self._keys.changed(chunk)
        return bool(had)

    def _is_other(self, one: Stored) -> bool:
        """Whether an entry is there and is not what it should be; what was deleted since tells nothing."""
        try:
            entry = self._gateway.get(f"{of_stream(one.stream)}/entries/{one.id}", about=f"entry {one.id}")
        except Refused as refused:
            if refused.problem in _TELLS_NOTHING:
                return False
            raise
        return pairs_of(entry) != one.pairs

    def _ask(self, request: Request, about: str) -> Json:
        try:
            response = self._gateway.send(
                "POST",
                request.path,
                content=request.content,
                headers=request.headers,
                repeatable=request.repeatable,
                about=about,
            )
        except Refused as refused:
            if refused.problem != "stale_epoch":
                raise
            raise Fenced(
                f"{about}: epoch {request.headers.get('weir-epoch')} of "
                f"{request.headers.get('weir-producer')} is over, the gateway has seen epoch "
                f"{refused.members.get('epoch')}: another run of the same query or job has gone on"
            ) from None
        return orjson.loads(response.content)


def _settle(under_way: deque[tuple[Chunk[Any], Future[bool]]], sent: Sent) -> None:
    chunk, future = under_way.popleft()
    sent.add(chunk.counts(), repeated=future.result())
