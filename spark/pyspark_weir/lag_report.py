"""How much is left to read after a batch, and the group that is moved along with what is done.

Knows: the gateway's calls for both. Must never know: Spark, terminals.

Both only inform: a gateway that does not answer fails no run.
"""

import contextlib
from collections import defaultdict
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from pyspark_weir import clock, offsets
from pyspark_weir import gateway as calls
from pyspark_weir.errors import PipelineError
from pyspark_weir.gateway import Access, Gateway, PlanQuery
from pyspark_weir.progress import Progress

_request_ms_max: Final = 5_000
# How often gateways are asked while nothing comes.
_idle_s: Final = 5.0


class LagReporter:
    """Asks the gateways of a run after a batch how much is left, and moves the mirror group along."""

    def __init__(self, gateways: tuple[Access, ...], mirror_group: str | None = None) -> None:
        quick = (
            replace(access, retry_timeout_ms=0, request_timeout_ms=_request_ms_max) for access in gateways
        )
        self._gateways = {access.name: Gateway(access) for access in quick}
        self._mirror_group = mirror_group
        self._asked_s = 0.0
        self._mirrored: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for gateway in self._gateways.values():
            gateway.close()

    def report(self, progress: Progress) -> Progress:
        """The progress with the number of entries left; the mirror group has been moved to its end."""
        now_s = clock.monotonic_s()
        if not progress.ends or (not progress.rows and now_s < self._asked_s + _idle_s):
            return progress
        self._asked_s = now_s
        by_gateway: dict[str, dict[str, str]] = defaultdict(dict)
        for name, place in progress.ends.items():
            gateway, stream = offsets.parts(name)
            by_gateway[gateway][stream] = place.id
        if self._mirror_group is not None:
            for gateway, ends in by_gateway.items():
                self._move_group(gateway, ends, self._mirror_group)
        return progress.with_left(self._count(by_gateway))

    def _count(self, by_gateway: dict[str, dict[str, str]]) -> int | None:
        left = 0
        for name, ends in by_gateway.items():
            gateway = self._gateways.get(name)
            if gateway is None:
                return None
            try:
                planned = calls.plan_of_each(gateway, PlanQuery(streams=ends, max_entries=1))
            except PipelineError:
                return None
            left += sum(stream.lag for stream in planned.streams.values())
        return left

    def _move_group(self, name: str, ends: dict[str, str], group: str) -> None:
        gateway = self._gateways.get(name)
        if gateway is None:
            return
        for stream, last in ends.items():
            if self._mirrored.get(f"{name}/{stream}") == last:
                continue
            # A group that could not be moved is moved after the next batch.
            with contextlib.suppress(PipelineError):
                if _move(gateway, stream, group, last):
                    self._mirrored[f"{name}/{stream}"] = last


def _move(gateway: Gateway, stream: str, group: str, last: str) -> bool:
    seen = calls.stream(gateway, stream)
    if seen is None:
        return False
    # Up to the last ID that belongs to `entries_added`: entries that come meanwhile are in neither.
    query = PlanQuery(streams={stream: last}, end={stream: seen["last_id"]})
    left = calls.plan(gateway, query).streams.get(stream)
    if left is None or left.generation != seen["generation"]:
        # Deleted in between; what is made anew has another beginning.
        return False
    calls.move_group(gateway, stream, group, last, entries_read=max(0, seen["entries_added"] - left.count))
    return True
