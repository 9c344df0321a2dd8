"""The metrics: each with its name, labels and meaning; and their text, as Prometheus and OpenMetrics have it.

Knows: `FAMILIES`, the one table of them. Must never know: where the figures are, who asks for them.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from engine import Histogram

Value = float | Histogram
# The values of a metric's labels, and its value under them.
Rows = list[tuple[Sequence[str], Value]]


class Family(NamedTuple):
    """A metric: `name` as it is queried, its type, its labels, and what it says."""

    name: str
    kind: type[Metric]
    labels: Sequence[str]
    help: str


_C, _G, _H = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
_GROUP: Final = ("stream", "group")
FAMILIES: Final = {
    family.name: family
    for family in (
        Family("weir_requests_total", _C, ("route", "code"), "Answers, by operation and status"),
        Family(
            "weir_request_seconds", _H, (), "Time to answer, without reads that wait and live connections"
        ),
        Family("weir_rejected_total", _C, ("code",), "Refusals, by the code of the problem"),
        Family("weir_hooks_total", _C, ("name", "result"), "Webhooks that came in, by hook and result"),
        Family(
            "weir_faults_total",
            _C,
            ("door",),
            "Errors of the gateway itself that a connection has met, by protocol",
        ),
        Family("weir_entries_published_total", _C, (), "Entries appended to streams, dead letters included"),
        Family("weir_entries_delivered_total", _C, ("door",), "Entries sent to readers, by API"),
        Family("weir_dead_letters_total", _C, (), "Entries moved to dead-letter streams"),
        Family("weir_expired_total", _C, (), "Entries acknowledged as too old for their group (max_age_ms)"),
        Family("weir_dead_letters_refused_total", _C, (), "Moves to dead-letter streams that were refused"),
        Family("weir_streams", _G, (), "Streams"),
        Family("weir_streams_closed", _G, (), "Streams that have ended"),
        Family("weir_streams_hidden", _G, (), "Names of removed streams that have forks"),
        Family("weir_groups", _G, ("state",), "Groups by their state; none over a backend"),
        Family("weir_schedules", _G, (), "Entries for later"),
        Family("weir_schedules_late_seconds", _G, (), "For how long the first of them has been due"),
        Family("weir_schedules_dropped_total", _C, (), "Schedules that have gone with streams that ended"),
        Family("weir_connections", _G, ("door",), "Open connections, by API"),
        Family("weir_blocked_reads", _G, (), "Reads that wait for entries"),
        Family("weir_fronts", _G, ("state",), "Fronts: wanted, and up; none without `fronts`"),
        Family("weir_log_bytes", _G, (), "Size of the log"),
        Family("weir_stored_bytes", _G, (), "What cold entries take on the disk, beside the log"),
        Family("weir_stored_reads_in_turns_total", _C, (), "Reads of cold entries for which all else waited"),
        Family("weir_log_sync_seconds", _H, (), "Time that a sync of the log takes"),
        Family("weir_log_answers_waiting", _G, (), "Answers that wait for a write or a sync of the log"),
        Family("weir_log_failed", _G, (), "1 once the log takes no writes until a restart"),
        Family("weir_failing", _G, ("what",), "1 while something needs an operator"),
        Family("weir_disk_free_bytes", _G, (), "Free room on the disk of the log"),
        Family("weir_disk_size_bytes", _G, (), "Size of the disk of the log"),
        Family("weir_memory_bytes", _G, ("kind",), "Memory: used as the limit counts, of data, resident"),
        Family("weir_memory_soft_bytes", _G, (), "Memory use above which cold entries leave it for files"),
        Family("weir_memory_limit_bytes", _G, (), "Memory use at which writes are refused"),
        Family("weir_buffer_bytes", _G, ("pool",), "Bytes of answers on their way, and of bodies"),
        Family("weir_buffer_limit_bytes", _G, ("pool",), "Bytes from which more is refused: overloaded"),
        Family("weir_buffer_refused_total", _C, ("pool",), "What a pool of bytes had no room for"),
        Family(
            "weir_buffer_closed_total",
            _C,
            ("pool",),
            "Connections closed since they held bytes and took none",
        ),
        Family("weir_loop_lag_seconds", _H, (), "How late the event loop runs a timer, four times a second"),
        Family(
            "weir_history_fetches_total",
            _C,
            ("outcome",),
            "Pages asked of the service of history, by outcome",
        ),
        Family(
            "weir_history_fetch_seconds",
            _H,
            (),
            "Time until a page of history came, with the wait for the caller's turn",
        ),
        Family("weir_build_info", _G, ("version", "python"), "Always 1"),
        Family(
            "weir_backend_requests_total",
            _C,
            ("lane", "outcome"),
            "Requests to the servers of a backend, and how they ended",
        ),
        Family(
            "weir_backend_request_seconds",
            _H,
            ("lane",),
            "Time from a request to its reply, with repeats and the wait for replicas",
        ),
        Family("weir_backend_requests_in_flight", _G, ("lane",), "Requests without a reply yet"),
        Family(
            "weir_backend_repeats_total",
            _C,
            ("reason",),
            "Requests that were sent again, or wait for a server to take them",
        ),
        Family(
            "weir_backend_wait_seconds",
            _H,
            (),
            "Time that replicas or disks take to confirm writes (WAIT, WAITAOF)",
        ),
        Family("weir_backend_connections", _G, ("state",), "Connections to the servers: wanted, and up"),
        Family(
            "weir_backend_connections_lost_total", _C, (), "Connections that were lost, or could not be made"
        ),
        Family(
            "weir_backend_wakes_total",
            _C,
            ("reason",),
            "Reasons for waiting reads to look: notification, subscription, poll",
        ),
        Family("weir_stream_length", _G, ("stream",), "Entries of a stream"),
        Family("weir_stream_bytes", _G, ("stream",), "Memory of a stream's entries"),
        Family("weir_group_lag", _G, _GROUP, "Entries that a group has not read yet; absent where unknown"),
        Family("weir_group_pending", _G, _GROUP, "Entries delivered and not acknowledged"),
        Family(
            "weir_group_oldest_pending_seconds",
            _G,
            _GROUP,
            "Longest time since the last delivery of an entry that a consumer holds",
        ),
        Family("weir_group_dead_letters_total", _C, _GROUP, "Entries of a group moved to its dead letters"),
        Family("weir_group_paused", _G, _GROUP, "1 for a group that an operator has paused, else 0"),
        Family(
            "weir_metrics_streams_left_out",
            _G,
            (),
            "Streams of metrics_streams of which not all is shown: more than 1,000 series",
        ),
    )
}


class Figures:
    """The figures of one moment, by metric. Built on the loop, written in a thread."""

    def __init__(self) -> None:
        self.rows: dict[str, Rows] = {}

    def add(self, name: str, value: Value, *labels: str) -> None:
        """Add a value of a metric, under the values of its labels."""
        rows = self.rows.setdefault(name, [])
        assert len(labels) == len(FAMILIES[name].labels), "a metric has its labels"
        rows.append((labels, value))

    def collect(self) -> Iterator[Metric]:
        """As a collector of `prometheus_client`, in the order of `FAMILIES`."""
        for family in FAMILIES.values():
            if family.name in self.rows:
                yield _metric(family, self.rows[family.name])

    def text(self, *, openmetrics: bool) -> bytes:
        """As text. Takes milliseconds: run it in a thread."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        write = generate_openmetrics if openmetrics else generate_latest
        written: bytes = write(registry)
        return written


def _metric(family: Family, rows: Rows) -> Metric:
    if family.kind is HistogramMetricFamily:
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in rows:
            assert isinstance(value, Histogram), "a histogram's value is one"
            histogram.add_metric(labels, _buckets(value), value.total)
        return histogram
    plain = family.kind(family.name, family.help, labels=family.labels)  # type: ignore[call-arg]
    for labels, value in rows:
        plain.add_metric(labels, value)  # type: ignore[attr-defined]
    return plain


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus has them."""
    found, count = [], 0
    for bound, more in zip((*histogram.bounds, inf), histogram.counts, strict=True):
        count += more
        found.append(("+Inf" if bound == inf else repr(bound), float(count)))
    return found
