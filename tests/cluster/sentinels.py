"""A primary and its replica, watched by Sentinels: real servers on loopback.

Knows: how to form it, and that Sentinel makes the replica the primary. Must never know: the gateway.
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
    """A primary and its replica, and the one Sentinel that may replace it."""

    def __init__(self, first: BackendServer, second: BackendServer, sentinel: Sentinel) -> None:
        super().__init__(first, second)
        self.sentinel: Final = sentinel

    def topology(self, timeout_s: float, durability: BackendDurability) -> Topology:
        """It, as a gateway finds it."""
        return SentinelTopology([self.sentinel.address], NAME, ServerAccess(), timeout_s, durability)

    def names(self, server: BackendServer) -> bool:
        """Whether Sentinel names the server as the primary, and it is."""
        _, port = self.sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(port) == server.port and server.call("ROLE")[0] == b"master"

    def may_fail_over(self) -> bool:
        """Whether Sentinel would take the replica: it must have had an answer from the replica itself, not
        only its name from the primary.
        """
        replicas = self.sentinel.call("SENTINEL", "REPLICAS", NAME)
        states = [dict(zip(row[::2], row[1::2], strict=True)) for row in replicas]
        return [state[b"master-link-status"] for state in states] == [b"ok"]

    @property
    def url(self) -> str:
        """As the setting `backend` has it; nothing listens at the first address."""
        return f"redis+sentinel://127.0.0.1:1,{self.sentinel.address}/{NAME}"


@contextmanager
def watched(directory: Path, kind: str) -> Iterator[Watched]:
    """A primary and its replica, as Sentinel has seen them."""
    with ExitStack() as stack:
        quick = ["--repl-diskless-sync-delay", "0"]
        first, second = (stack.enter_context(WatchedServer(directory, kind, quick)) for _ in range(2))
        second.call("REPLICAOF", "127.0.0.1", first.port)
        sentinel = stack.enter_context(Sentinel(directory, kind, first.port))
        found = Watched(first, second, sentinel)
        until(found.is_replicated, "the replica follows")
        until(found.may_fail_over, "Sentinel would take the replica")
        yield found
