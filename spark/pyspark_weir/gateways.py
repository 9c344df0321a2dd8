"""Several gateways as one: which streams are read at each, and calls of all of them at once.

Knows: that a stream's key is "gateway/stream"; patterns, and the part of all streams that a query has.
Must never know: offsets, what a plan is for, Spark.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from typing import Final, TypeVar

from pyspark_weir import ids, offsets
from pyspark_weir.clock import monotonic_s
from pyspark_weir.errors import PipelineError, RefusedError, Unavailable
from pyspark_weir.gateway import GatewayClient, GatewayPlan, PlanQuery, of_one_call
from pyspark_weir.options import SourceOptions

T = TypeVar("T")
U = TypeVar("U")
# A call of a gateway, and which one of several.
Call = tuple[str, int]

# Above the wait that was asked for, until the gateway that should answer by then is given up on.
_WAIT_S_SPARE: Final = 5.0
_THREADS_MAX: Final = 32
# With fsync=everysec a stream's last second is on disk after two at most.
_DURABLE_S_MAX: Final = 5.0
_DURABLE_WAIT_MS: Final = 1_000
_LOOK_MS_MAX: Final = 5_000


class Gateways:
    """The gateways of these options, opened when they are needed, in the process that needs them."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = monotonic_s) -> None:
        self._options = options
        self._clock = clock
        self._open: dict[str, GatewayClient] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._listed: dict[str, tuple[float, list[str]]] = {}

    def __getstate__(self) -> dict[str, object]:
        """What a worker gets: nothing that is open."""
        return {"_options": self._options, "_clock": self._clock, "_open": {}, "_pool": None, "_listed": {}}

    def close(self) -> None:
        for gateway in self._open.values():
            gateway.close()
        self._open.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def at(self, name: str) -> GatewayClient:
        if name not in self._open:
            self._open[name] = GatewayClient(self._options.access(name))
        return self._open[name]

    def select(self, *, fresh: bool = False) -> list[str]:
        """The streams to read by now; a pattern is looked up again after a while, or when it is to be
        `fresh`. Raises PipelineError.
        """
        found = self._each(
            {(one.name, 0): None for one in self._options.gateways},
            lambda name, _: self._names(name, fresh=fresh),
        )
        return sorted(offsets.key(gateway, name) for (gateway, _), names in found.items() for name in names)

    def may_have(self, key: str) -> bool:
        """Whether a stream is to be read with a pattern, be it there or not."""
        gateway, stream = offsets.parts(key)
        named = any(one.name == gateway for one in self._options.gateways)
        return self._options.pattern is not None and named and self.wants(stream)

    def wants(self, stream: str) -> bool:
        """Whether the pattern, or the part of all streams that is read, takes a stream of that name."""
        options = self._options
        if options.pattern is not None and re.fullmatch(options.pattern, stream) is None:
            return False
        if options.shard is None:
            return True
        part, parts = options.shard
        # The same in every process and version of Python.
        return zlib.crc32(stream.encode()) % parts == part

    def _names(self, gateway: str, *, fresh: bool) -> list[str]:
        options = self._options
        if options.pattern is None:
            return [name for name in options.named_at(gateway) if self.wants(name)]
        at_s, listed = self._listed.get(gateway, (None, []))
        now_s = self._clock()
        if fresh or at_s is None or (now_s - at_s) * 1_000 >= options.discovery_interval_ms:
            listed = [one["name"] for one in self.at(gateway).list_streams() if self.wants(one["name"])]
            self._listed[gateway] = (now_s, listed)
        return listed

    def plan(self, query: PlanQuery) -> GatewayPlan:
        """The plans of all gateways, within one budget. Raises PipelineError."""
        queries = _queries(query)
        if query.wait_ms and len(queries) > 1:
            found = self._first(queries, query.wait_ms)
        else:
            found = self._each(queries, self._one)
        planned = _join(found)
        if query.durable_only and any(one.durable is None for one in planned.streams.values()):
            raise _not_durable("the gateway does not say what is on disk (it runs with fsync=no)")
        fewer = _within(query, found)
        if fewer:
            found |= self._each(
                {
                    name: replace(queries[name], wait_ms=0, max_entries=entries, max_bytes=volume)
                    for name, (entries, volume) in fewer.items()
                },
                self._one,
            )
            planned = _join(found)
        return planned

    def heads(self, keys: Iterable[str]) -> GatewayPlan:
        """Streams from their beginning to what is in them now. With durableOnly the disk is waited for, a few
        seconds at most: what was published before is then read. Raises PipelineError.
        """
        durable_only = self._options.durable_only
        found = self.plan(PlanQuery(dict.fromkeys(keys, ids.BEGINNING), durable_only=durable_only))
        if not durable_only:
            return found
        streams = dict(found.streams)
        heads = {key: one.last for key, one in streams.items()}
        deadline_s = self._clock() + _DURABLE_S_MAX
        while True:
            behind = {
                key: one.durable
                for key, one in streams.items()
                if one.durable is not None and ids.is_after(heads[key], one.durable)
            }
            left_ms = int((deadline_s - self._clock()) * 1_000)
            if not behind or left_ms <= 0:
                return replace(found, streams=streams)
            wait_ms = min(left_ms, _DURABLE_WAIT_MS)
            later = self.plan(PlanQuery(behind, heads, durable_only=True, wait_ms=wait_ms))
            for key in behind:
                one = later.streams.get(key)
                if one is None or one.generation != streams[key].generation:
                    # Gone meanwhile: reading it raises the loss.
                    heads[key] = ids.BEGINNING
                else:
                    end = one.end if one.count else streams[key].end
                    streams[key] = replace(streams[key], end=end, durable=one.durable)

    def _one(self, name: str, query: PlanQuery) -> GatewayPlan:
        try:
            return self.at(name).plan(query)
        except RefusedError as refused:
            if query.durable_only and refused.status == 422 and "fsync" in refused.sentence:
                raise _not_durable(refused.sentence) from None
            raise

    def _first(self, queries: dict[Call, PlanQuery], wait_ms: int) -> dict[Call, GatewayPlan]:
        """Look at all at once; where there is nothing, wait for the first that has something."""
        at_once = {name: replace(query, wait_ms=0) for name, query in queries.items()}
        found = self._each(at_once, self._one)
        if _join(found).sum("count"):
            return found
        futures = {self._threads.submit(self._one, call[0], query): call for call, query in queries.items()}
        left: set[Future[GatewayPlan]] = set(futures)
        deadline_s = self._clock() + wait_ms / 1_000 + _WAIT_S_SPARE
        while left and self._clock() < deadline_s:
            done, left = wait(left, deadline_s - self._clock(), return_when=FIRST_COMPLETED)
            found |= {futures[one]: one.result() for one in done}
            if _join(found).sum("count"):
                break
        return found

    def _each(self, work: Mapping[Call, T], make: Callable[[str, T], U]) -> dict[Call, U]:
        """What the calls answer, made at once where there are several."""
        if len(work) < 2:
            return {call: make(call[0], one) for call, one in work.items()}
        for name, _ in work:
            # Of two threads that open one, the first connection would stay open.
            self.at(name)
        futures = {call: self._threads.submit(make, call[0], one) for call, one in work.items()}
        return {call: future.result() for call, future in futures.items()}

    @property
    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            # More than there are gateways: a wait that was left behind may still be going on.
            self._pool = ThreadPoolExecutor(_THREADS_MAX, "weir-gateways")
        return self._pool


def _not_durable(what: str) -> PipelineError:
    return PipelineError(
        "WEIR_NOT_DURABLE",
        f"{what}; or read with durableOnly=false, and know that a crash of the gateway may take back entries "
        "that were read",
    )


def _queries(query: PlanQuery) -> dict[Call, PlanQuery]:
    """The calls to be made, of streams by their keys: for each gateway one, or as many as it takes."""
    streams: dict[str, dict[str, str]] = {}
    ends: dict[str, dict[str, str]] = {}
    for key, after in query.streams.items():
        gateway, stream = offsets.parts(key)
        streams.setdefault(gateway, {})[stream] = after
        if key in query.end:
            ends.setdefault(gateway, {})[stream] = query.end[key]
    return {
        (gateway, number): replace(
            query,
            streams=some,
            end={name: end for name, end in ends.get(gateway, {}).items() if name in some},
        )
        for gateway, named in sorted(streams.items())
        for number, some in enumerate(of_one_call(dict(sorted(named.items()))))
    }


def _join(found: Mapping[Call, GatewayPlan]) -> GatewayPlan:
    streams = {
        offsets.key(gateway, name): one
        for (gateway, _), plan in found.items()
        for name, one in plan.streams.items()
    }
    missing = {offsets.key(gateway, name) for (gateway, _), plan in found.items() for name in plan.missing}
    previous = {
        offsets.key(gateway, name): one
        for (gateway, _), plan in found.items()
        for name, one in plan.previous.items()
    }
    return GatewayPlan(streams, frozenset(missing), previous)


def _within(query: PlanQuery, found: Mapping[Call, GatewayPlan]) -> dict[Call, tuple[int, int]]:
    """What each call gets of the budget, where together they would go beyond it: as much as it has of
    all.
    """
    if query.max_entries == 1:
        # No call can do with less.
        return {}
    whole = _join(found)
    entries, volume = whole.sum("count"), whole.sum("bytes")
    part = min((query.max_entries or entries) / max(entries, 1), (query.max_bytes or volume) / max(volume, 1))
    if len(found) < 2 or part >= 1:
        return {}
    return {
        call: (max(1, int(count * part)), max(1, int(plan.sum("bytes") * part)))
        for call, plan in found.items()
        if (count := plan.sum("count"))
    }


def plan_once(options: SourceOptions, query: PlanQuery) -> GatewayPlan:
    """The plans of all gateways, which are opened for it. Raises PipelineError."""
    with closing(Gateways(options)) as gateways:
        return gateways.plan(query)


def missing_streams(options: SourceOptions) -> list[str]:
    """The named streams that no gateway has; none where a pattern chooses, or a gateway does not answer.

    Raises RefusedError where the token may not read them.
    """
    if options.pattern is not None:
        return []
    quick = tuple(
        replace(one, retry_timeout_ms=0, request_timeout_ms=_LOOK_MS_MAX) for one in options.gateways
    )
    with closing(Gateways(replace(options, gateways=quick))) as gateways:
        try:
            found = gateways.plan(PlanQuery(dict.fromkeys(gateways.select(), ids.BEGINNING), max_entries=1))
        except Unavailable:
            # The job tells of it itself.
            return []
    there = {offsets.parts(key)[1] for key in found.streams}
    return sorted({offsets.parts(key)[1] for key in found.missing} - there)
