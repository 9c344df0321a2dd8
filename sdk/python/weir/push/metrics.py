"""What a process that pushes counts, as Prometheus reads it.

Knows: names and labels. Must never know: when something is counted.
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from weir.push.config import Push
from weir.push.endpoint import Endpoint, Outcome

_LABELS = ("stream", "group")
_STATES = ("open", "waiting", "probing")


def _is_in(endpoint: Endpoint, state: str) -> float:
    return float(endpoint.state == state)


class PushMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._attempts = Counter(
            "weir_push_attempts",
            "Webhooks sent, by what became of them",
            (*_LABELS, "result"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "weir_push_seconds", "Time until an endpoint has answered", _LABELS, registry=self.registry
        )
        self._states = Gauge(
            "weir_push_state",
            "1 for the state that an endpoint is in",
            (*_LABELS, "state"),
            registry=self.registry,
        )

    def watch(self, push: Push, endpoint: Endpoint) -> None:
        """Show the state of an endpoint."""
        for state in _STATES:
            gauge = self._states.labels(push.stream, push.group, state)
            gauge.set_function(partial(_is_in, endpoint, state))

    def note(self, push: Push, outcome: Outcome, seconds: float) -> None:
        """Count a webhook."""
        self._attempts.labels(push.stream, push.group, outcome.kind).inc()
        self._seconds.labels(push.stream, push.group).observe(seconds)

    def serve(self, port: int) -> None:
        """Answer /metrics on loopback, in a thread. Raises OSError."""
        start_http_server(port, addr="127.0.0.1", registry=self.registry)
