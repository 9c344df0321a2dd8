"""What the service counts. Must never know: how a page is made."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from history.cache import FileCache


class Metrics:
    """The figures of one service, and their text for Prometheus."""

    def __init__(self, cache: FileCache) -> None:
        self._registry = CollectorRegistry()
        own = self._registry
        self.requests = Counter(
            "weir_history_requests", "Pages asked for, by status", ["status"], registry=own
        )
        self.entries = Counter("weir_history_entries", "Entries sent", registry=own)
        self.seconds = Histogram("weir_history_request_seconds", "Time to answer a page", registry=own)
        self.version = Gauge("weir_history_table_version", "Version of the table that is read", registry=own)
        own.register(_Cached(cache))

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)


class _Cached:
    """What the cache counts itself."""

    def __init__(self, cache: FileCache) -> None:
        self._groups = cache.groups

    def collect(self) -> Iterator[Metric]:
        """The figures of row groups; the registry calls it."""
        found, read = "Row groups that were encoded already", "Row groups that were read and encoded"
        yield CounterMetricFamily("weir_history_groups_found", found, self._groups.hits)
        yield CounterMetricFamily("weir_history_groups_read", read, self._groups.misses)
        ahead = "Those of them that were read before a reader asked for them"
        yield CounterMetricFamily("weir_history_groups_read_ahead", ahead, self._groups.ahead)
        size = "Bytes of encoded row groups that are kept"
        yield GaugeMetricFamily("weir_history_cache_bytes", size, self._groups.bytes)
