"""The port: which clients are connected, and what holds for all of them.

Knows: limits of connections, numbers of clients, counters for INFO.
Must never know: what a connection does with its bytes.
"""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Final, Generic, TypeVar

from app import logs
from app.doors.resp.codec import RequestLimits
from app.doors.resp.subscriptions import Subscriptions
from app.gateway import Gateway
from app.live.stalls import STALL_S_MAX
from app.tenants import TenantNames
from engine import EngineError

# A client that has not shown a token by then ends, where tokens are needed: others want its place.
AUTH_S_MAX: Final = 10.0


S = TypeVar("S")


class PortLog:
    """What all clients have in common: lines of requests, and errors by their first words."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self.lines = logs.RequestLog(settings.log_requests, settings.log_level, settings.log_format)
        self.errors: dict[str, int] = {}


class Port(Generic[S]):
    """All sessions of Redis clients, by their numbers."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self.gateway = gateway
        self.request_limits = RequestLimits(gateway.limits.commands.words_max, settings.body_bytes_max)
        self.is_embedded = settings.is_embedded
        self.auth_s_max = AUTH_S_MAX
        self.request_s_max = settings.request_s_max
        self.stall_s_max = min(STALL_S_MAX, settings.stall_s_max)
        self.sessions: dict[int, S] = {}
        self.draining = False
        # Set while no client is connected.
        self.empty = asyncio.Event()
        self.empty.set()
        # Until then, clients that speak HTTP are closed without a line in the log.
        self.browsers_quiet_until_s = -inf
        self.log = PortLog(gateway)
        self.commands_run = 0
        self.accepted = 0
        self.rejected = 0
        self._last_id = 0
        # By the prefixes of their tenants: those of clients without one have "".
        self._subscriptions: dict[str, Subscriptions] = {}

    def subscriptions(self, prefix: str) -> Subscriptions:
        """The subscriptions of all clients of a tenant, to the channels of its own streams."""
        subscriptions = self._subscriptions.get(prefix)
        if subscriptions is None:
            subscriptions = self._subscriptions[prefix] = Subscriptions(self._follow_events)
        return subscriptions

    @property
    def channels(self) -> int:
        """How many channels are followed."""
        return sum(len(subscriptions.channels) for subscriptions in self._subscriptions.values())

    @property
    def patterns(self) -> int:
        """How many patterns are followed."""
        return sum(len(subscriptions.patterns) for subscriptions in self._subscriptions.values())

    def _follow_events(self, _: bool) -> None:  # noqa: FBT001 - the only argument
        followed = {
            prefix: subscriptions
            for prefix, subscriptions in self._subscriptions.items()
            if len(subscriptions)
        }
        self._subscriptions = followed
        self.gateway.follow_events(self._publish if followed else None)

    def _publish(self, events: Sequence[tuple[str, str]]) -> None:
        for prefix, subscriptions in list(self._subscriptions.items()):
            names = TenantNames(prefix)
            own = [(event, names.strip(stream)) for event, stream in events if names.has(stream)]
            subscriptions.publish(own if prefix else events)

    def refusal_of_connection(self) -> EngineError | None:
        """Why the connection that came last is refused."""
        if len(self.sessions) <= self.gateway.settings.sockets_max:
            return None
        self.rejected += 1
        return EngineError("too_many_sockets", "ERR max number of clients reached")

    def enter(self, session: S) -> int:
        """Count a session. Returns its number."""
        self._last_id += 1
        self.accepted += 1
        self.sessions[self._last_id] = session
        self.empty.clear()
        self.gateway.reports.counters.connections["resp"] = len(self.sessions)
        return self._last_id

    def leave(self, number: int) -> None:
        """The session is over."""
        self.sessions.pop(number, None)
        self.gateway.reports.counters.connections["resp"] = len(self.sessions)
        if not self.sessions:
            self.empty.set()
