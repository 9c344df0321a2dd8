"""All WebSocket connections of a gateway.

Knows: what concerns all of them, as a stop of the gateway. Must never know: sockets, frames.
"""

from typing import Final, Protocol

from app.gateway import Gateway
from app.live.fair_queue import FRAMES_A_CYCLE_MAX, FairQueue
from app.live.turns import CycleBudget
from engine import errors

# Time to acknowledge after `goaway`; at most half of the time for a shutdown.
_GOAWAY_MS_MAX: Final = 2_000


class OpenConnection(Protocol):
    """A connection, as `app.doors.websocket.connection` has it."""

    def drain(self, after_ms: int) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def begin_outage(self) -> None: ...
    def end_outage(self) -> None: ...


class Hub:
    """All connections of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        # A dict keeps the order: the oldest connection is notified first.
        self.open: dict[OpenConnection, None] = {}
        # Callers take turns with their frames.
        self.frames = FairQueue(CycleBudget(gateway.clock.monotonic), FRAMES_A_CYCLE_MAX)
        # Whether the backend cannot be used, for longer than a moment.
        self.is_backend_away = False
        gateway.on_drain.append(self.drain)
        gateway.on_restart.append(self.restart)
        gateway.on_outage.append(self.change_outage)

    def drain(self) -> None:
        """Notify every connection that the gateway stops."""
        after_ms = min(_GOAWAY_MS_MAX, int(self.gateway.settings.drain_s_max * 500))
        for connection in list(self.open):
            connection.drain(after_ms)

    def restart(self) -> None:
        """End every connection: its engine is replaced."""
        for connection in list(self.open):
            connection.fail(errors.restarting())

    def change_outage(self, is_away: bool) -> None:  # noqa: FBT001 - a callback
        """Notify every connection that the backend cannot be used, or can again."""
        self.is_backend_away = is_away
        for connection in list(self.open):
            if is_away:
                connection.begin_outage()
            else:
                connection.end_outage()
