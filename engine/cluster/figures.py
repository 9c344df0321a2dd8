"""What is counted of the servers: requests, connections, waits, wakes.

Knows: what is counted, by which words. Must never know: who shows it.
"""

from typing import Final

from engine.errors import EngineError
from engine.histogram import Histogram

# From an answer of a server on the same machine to one that comes at its time limit.
BOUNDS_S: Final = (
    *(0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
# As `routing.Lane` has them.
LANES: Final = ("write", "group", "read")
# Those that say that the backend is not as it should be; any other refusal is about the request.
_OUTAGES: Final = ("backend_unavailable", "backend_error", "not_replicated")
OUTCOMES: Final = ("ok", "refused", *_OUTAGES)
# Why a request is sent again: the slot is elsewhere, or moves; no server takes it now; its connection is
# lost; the server has not loaded its script.
REPEATS: Final = ("moved", "ask", "not_served", "connection_lost", "script_unknown")
# Why a read that waits looks: something has happened; its subscription is new; it was time to.
WAKES: Final = ("notification", "subscription", "poll")


class BackendFigures:
    """The counts of one backend, since the start. Belongs to one event loop."""

    def __init__(self) -> None:
        # All from the start: Prometheus does not see the first increase of a series that begins with it.
        self.requests: Final = {lane: dict.fromkeys(OUTCOMES, 0) for lane in LANES}
        # From the request to its reply, with all repeats and the wait for replicas.
        self.seconds: Final = {lane: Histogram(BOUNDS_S) for lane in LANES}
        self.in_flight: Final = dict.fromkeys(LANES, 0)
        self.repeats: Final = dict.fromkeys(REPEATS, 0)
        # How long WAIT and WAITAOF took, each for many writes.
        self.wait_seconds: Final = Histogram(BOUNDS_S)
        self.connections_wanted = self.connections_up = 0
        # Those that were lost, and those that could not be made.
        self.connections_lost = 0
        self.wakes: Final = dict.fromkeys(WAKES, 0)

    def count_request(self, lane: str) -> None:
        """Count a request."""
        self.in_flight[lane] += 1

    def count_reply(self, lane: str, reply: object, took_s: float) -> None:
        """Count its reply, which may be a refusal."""
        self.in_flight[lane] -= 1
        self.seconds[lane].observe(took_s)
        self.requests[lane][_outcome(reply)] += 1


def _outcome(reply: object) -> str:
    if not isinstance(reply, EngineError):
        return "ok"
    return reply.code if reply.code in _OUTAGES else "refused"
