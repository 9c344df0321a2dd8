"""A primary and its replicas, watched by Sentinels: real servers on loopback.

Knows: how to form it, and that Sentinel makes a replica the primary. Must never know: the gateway.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from redis.exceptions import ConnectionError as NotConnected

from engine.cluster import SentinelTopology, ServerAccess
from engine.cluster.replication import BackendDurability
from engine.cluster.topology import Topology
from tests.cluster.clusters import ShardServers
from tests.cluster.servers import BackendServer
from tests.waiting import until

NAME: Final = "orders"
# A primary that says nothing for that long is down. Sentinel asks each second: with less time it would take
# servers for down that are not.
DOWN_MS: Final = 2_000


class WatchedServer(BackendServer):
    """A server whose connections Sentinel ends when it changes its role."""

    def call(self, *words: object) -> Any:
        """The reply, after another connection was made if that one is lost. Raises ResponseError."""
        try:
            return super().call(*words)
        except NotConnected:
            self.connect()
            return super().call(*words)


class Sentinel(BackendServer):
    """One Sentinel, which decides by itself."""

    def __init__(self, directory: Path, kind: str, watched_port: int, options: Sequence[str] = ()) -> None:
        self._file = directory / "sentinel.conf"
        self._file.write_text(
            f"sentinel monitor {NAME} 127.0.0.1 {watched_port} 1\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\n"
            f"sentinel failover-timeout {NAME} 10000\n"
        )
        super().__init__(directory, kind, options)

    def _beginning(self) -> list[str]:
        return [str(self._file), "--sentinel"]


class Watched(ShardServers):
    """A primary and its replicas, and the one Sentinel that may replace it."""

    def __init__(self, servers: Sequence[BackendServer], sentinel: Sentinel) -> None:
        super().__init__(*servers)
        self.sentinel: Final = sentinel

    def topology(self, timeout_s: float, durability: BackendDurability) -> Topology:
        """It, as a gateway finds it."""
        return SentinelTopology([self.sentinel.address], NAME, ServerAccess(), timeout_s, durability)

    def names(self, server: BackendServer) -> bool:
        """Whether Sentinel names the server as the primary, and it is: that may be one before the other."""
        _, port = self.sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(port) == server.port and super().names(server)

    def may_fail_over(self) -> bool:
        """Whether Sentinel would take a replica: it must have had an answer from the replica itself, not
        only its name from the primary.
        """
        replicas = self.sentinel.call("SENTINEL", "REPLICAS", NAME)
        states = [dict(zip(row[::2], row[1::2], strict=True)) for row in replicas]
        return [state[b"master-link-status"] for state in states] == [b"ok"] * (len(self.servers) - 1)

    def rejoin(self, server: BackendServer) -> None:
        """As a replica from the start: until Sentinel makes it one, gateways that come to it would find a
        primary without a stream.
        """
        (primary,) = [one for one in self.servers if one is not server and self.names(one)]
        server.start("--replicaof", "127.0.0.1", str(primary.port))

    @property
    def url(self) -> str:
        """As the setting `backend` has it; nothing listens at the first address."""
        return f"redis+sentinel://127.0.0.1:1,{self.sentinel.address}/{NAME}"


@contextmanager
def watched(directory: Path, kind: str, replicas: int = 1) -> Iterator[Watched]:
    """A primary and its replicas, as Sentinel has seen them."""
    with ExitStack() as stack:
        quick = ["--repl-diskless-sync-delay", "0"]
        servers = [stack.enter_context(WatchedServer(directory, kind, quick)) for _ in range(1 + replicas)]
        for server in servers[1:]:
            server.call("REPLICAOF", "127.0.0.1", servers[0].port)
        sentinel = stack.enter_context(Sentinel(directory, kind, servers[0].port))
        found = Watched(servers, sentinel)
        until(found.is_replicated, "the replicas follow")
        until(found.may_fail_over, "Sentinel would take a replica")
        yield found
