"""What the service counts. Must never know: how a page is made."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from app.history.cache import FileCache


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
        self._hits = Gauge("weir_history_groups_found", "Row groups that were encoded already", registry=own)
        self._misses = Gauge(
            "weir_history_groups_read", "Row groups that were read and encoded", registry=own
        )
        self._bytes = Gauge(
            "weir_history_cache_bytes", "Bytes of encoded row groups that are kept", registry=own
        )
        self._cache = cache

    def text(self) -> bytes:
        """As Prometheus reads it."""
        groups = self._cache.groups
        self._hits.set(groups.hits)
        self._misses.set(groups.misses)
        self._bytes.set(groups.bytes)
        return generate_latest(self._registry)
