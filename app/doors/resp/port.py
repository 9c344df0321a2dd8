"""The port: which clients are connected, and what holds for all of them.

Knows: limits of connections, numbers of clients, counters for INFO.
Must never know: what a connection does with its bytes.
"""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Final

from app import logs
from app.doors.resp.accounting import PortLog
from app.doors.resp.client import RespClient
from app.doors.resp.link import Link
from app.doors.resp.requests import RequestLimits
from app.doors.resp.subscriptions import Subscriptions
from app.gateway import Gateway
from app.live.stalls import STALL_S_MAX
from app.tenants import TenantNames
from engine import EngineError

# A client that has not shown a token by then ends, where tokens are needed: others want its place.
AUTH_S_MAX: Final = 10.0


class Port:
    """All connections of Redis clients."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self.gateway = gateway
        self.request_limits = RequestLimits(gateway.limits.commands.words_max, settings.body_bytes_max)
        self.is_embedded = settings.is_embedded
        self.auth_s_max = AUTH_S_MAX
        self.request_s_max = settings.request_s_max
        self.stall_s_max = min(STALL_S_MAX, settings.stall_s_max)
        self.connections: dict[int, Link] = {}
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
        gateway.on_drain.append(self.drain)

    def subscriptions(self, prefix: str) -> Subscriptions:
        """The subscriptions of all clients of a tenant, to the channels of its own streams."""
        subscriptions = self._subscriptions.get(prefix)
        if subscriptions is None:
            subscriptions = self._subscriptions[prefix] = Subscriptions(self._follow_events)
        return subscriptions

    @property
    def joins(self) -> bool:
        """Whether clients may ask together: there are several, and the streams are here."""
        return len(self.connections) > 1 and self.is_embedded

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

    def now_s(self) -> float:
        """The monotonic clock."""
        return self.gateway.clock.monotonic()

    def refusal_of_connection(self) -> EngineError | None:
        """Why the connection that came last is refused."""
        if len(self.connections) <= self.gateway.settings.sockets_max:
            return None
        self.rejected += 1
        return EngineError("too_many_sockets", "ERR max number of clients reached")

    def enter(self, connection: Link, transport: asyncio.BaseTransport) -> RespClient:
        """Count a connection, and make its client."""
        self._last_id += 1
        self.accepted += 1
        address, local = (_address(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        client = RespClient(self._last_id, address, local, self.now_s())
        # None where a token is needed.
        client.principal = self.gateway.access.policy.recognise({})
        self.connections[client.id] = connection
        self.empty.clear()
        self.gateway.reports.counters.connections["resp"] = len(self.connections)
        return client

    def leave(self, client: RespClient) -> None:
        """The connection is gone."""
        self.connections.pop(client.id, None)
        self.gateway.reports.counters.connections["resp"] = len(self.connections)
        if not self.connections:
            self.empty.set()

    def drain(self) -> None:
        """Close each connection as soon as its work is done."""
        if self.connections and not self.draining:
            logs.get().info(
                "the gateway stops: Redis clients are disconnected behind their replies",
                clients=len(self.connections),
            )
        self.draining = True
        for connection in list(self.connections.values()):
            connection.end_if_idle()


def _address(name: object) -> str:
    """As CLIENT LIST shows it; a Unix socket has a path."""
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return f"{name.decode(errors='replace') if isinstance(name, bytes) else name or ''}:0"
