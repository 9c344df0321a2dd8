"""A cluster of real servers on loopback: primaries, with one replica each or none.

Knows: how to form one, which server is whose replica, when all of it is up.
Must never know: the gateway, and what is tested.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from redis.exceptions import ResponseError

from engine.cluster import ClusterTopology, ServerAccess
from engine.cluster.keys import SLOTS, slot_of
from engine.cluster.replication import BackendDurability
from engine.cluster.topology import Topology
from tests.cluster.servers import Backend, BackendServer
from tests.engine.real_redis import PROGRAMS
from tests.server import free_port
from tests.waiting import until

# A primary that says nothing for that long has failed, and where it has a replica, that takes over.
NODE_TIMEOUT_MS: Final = 1_000
# Without replicas nothing does: servers that a busy machine holds up are to stay a cluster.
NODE_TIMEOUT_ALONE_MS: Final = 5_000
# Where a command's stream stands, if not after its name.
_KEY_PLACES: Final = {"EVAL": 3, "EVALSHA": 3, "MEMORY": 2, "XGROUP": 2, "XINFO": 2}
_FOR_ALL: Final = {"FLUSHALL", "CONFIG", "SCRIPT", "CLIENT"}
_POLL_S: Final = 0.02


class BackendCluster:
    """Servers that have all slots between them, none of them a replica, seen as one."""

    kind = "cluster"

    def __init__(self, servers: Sequence[BackendServer]) -> None:
        self.servers: Final = servers

    @property
    def url(self) -> str:
        """As the setting `backend` has it."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def call(self, *words: object) -> Any:
        """The reply of the server of the command's stream; of one of them for a command that is for all.
        Raises ResponseError.
        """
        name = str(words[0]).upper()
        if name in _FOR_ALL:
            replies = [server.call(*words) for server in self.servers]
            return replies[0]
        if name in {"XREAD", "XREADGROUP"}:
            place = [str(word).upper() for word in words].index("STREAMS") + 1
        else:
            place = _KEY_PLACES.get(name, 1)
        return self.owner(str(words[place])).call(*words)

    def owner(self, stream: str) -> BackendServer:
        """The server that has a stream, in the cluster as it was formed."""
        return self.servers[slot_of(stream.encode()) * len(self.servers) // SLOTS]

    def topology(self, timeout_s: float, durability: BackendDurability) -> Topology:
        """It, as a gateway finds it."""
        return ClusterTopology([self.servers[0].address], ServerAccess(), timeout_s, durability)

    def pause(self) -> None:
        """Let all of them hang."""
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        """Let them go on."""
        for server in self.servers:
            server.resume()


class ShardServers:
    """A primary and its replicas, which change their places when the primary fails."""

    def __init__(self, *servers: BackendServer) -> None:
        self.servers: Final = servers

    @property
    def primary(self) -> BackendServer:
        """The one that is a primary now. For a moment several may say so, or none."""
        until(lambda: len(self._primaries()) == 1, "one of them is the primary")
        return self._primaries()[0]

    def names(self, server: BackendServer) -> bool:
        """Whether who asks for the primary is sent to the server, and it is one."""
        return bool(server.call("ROLE")[0] == b"master")

    def _primaries(self) -> list[BackendServer]:
        return [server for server in self.servers if ShardServers.names(self, server)]

    @property
    def replicas(self) -> list[BackendServer]:
        """The others."""
        primary = self.primary
        return [server for server in self.servers if server is not primary]

    @property
    def replica(self) -> BackendServer:
        """The other one of two."""
        (found,) = self.replicas
        return found

    def rejoin(self, server: BackendServer) -> None:
        """Start a server that was the primary. In a cluster it follows the new one by itself."""
        server.start()

    def is_replicated(self) -> bool:
        """Whether the replicas follow the primary."""
        roles = [server.call("ROLE") for server in self.servers]
        followed = [role[2] for role in roles if role[0] == b"master"]
        follow = [role[3] for role in roles if role[0] == b"slave"]
        count = len(self.servers) - 1
        return follow == [b"connected"] * count and [*map(len, followed)] == [count]


@contextmanager
def cluster(directory: Path, kind: str = "valkey", primaries: int = 3) -> Iterator[list[ShardServers]]:
    """Servers that have all slots between them."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_server(directory / str(number), kind, NODE_TIMEOUT_MS))
            for number in range(2 * primaries)
        ]
        shards = [ShardServers(*servers[2 * number : 2 * number + 2]) for number in range(primaries)]
        _join(servers, shards)
        yield shards


@contextmanager
def primaries(directory: Path, kind: str = "valkey", count: int = 3) -> Iterator[BackendCluster]:
    """A cluster without replicas."""
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(directory / str(number), kind)) for number in range(count)]
        _give_slots(servers)
        _meet(servers)
        until(lambda: all(map(_is_ok, servers)), "the cluster is up")
        yield BackendCluster(servers)


@contextmanager
def added_primary(directory: Path, cluster: BackendCluster) -> Iterator[BackendServer]:
    """Another server of the cluster, which has no slots."""
    with _server(directory, cluster.servers[0].kind) as server:
        meet(cluster.servers[0], server)
        every = [*cluster.servers, server]
        until(lambda: all(_known(one) == len(every) for one in every), "the servers know the new one")
        until(lambda: _is_ok(server), "the new one is part of the cluster")
        yield server


# What a gateway may have as its engine.
BACKENDS: Final = (*sorted(PROGRAMS), "cluster")


def opened_backend(directory: Path, kind: str) -> AbstractContextManager[Backend]:
    """A server or a cluster of them; `kind` is one of `BACKENDS`."""
    return primaries(directory) if kind == "cluster" else BackendServer(directory, kind)


@contextmanager
def backend_of_tests(directory: Path, kind: str | None) -> Iterator[Backend | None]:
    """What the option `--backend` of the tests names, None where the engine is embedded."""
    if kind is None:
        yield None
        return
    directory.mkdir(exist_ok=True)
    with opened_backend(directory, kind) as backend:
        yield backend


def server_words(backend: Backend | None) -> tuple[str, ...]:
    """How a gateway over it is started."""
    if backend is None:
        return ()
    return ("--backend", backend.url, "--set", "backend_durability=memory")


def _server(directory: Path, kind: str, node_timeout_ms: int = NODE_TIMEOUT_ALONE_MS) -> BackendServer:
    directory.mkdir()
    options = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(node_timeout_ms),
        # The bus is 10,000 above the port by default, where there may be no port.
        "cluster-port": str(free_port()),
        # A replica that was stalled for long may take over: what it lacks is what is tested.
        "cluster-replica-validity-factor": "0",
        "repl-diskless-sync-delay": "0",
        # A primary whose last slot goes stays one, and is no replica of the server that gets the slot.
        "cluster-allow-replica-migration": "no",
    }
    return BackendServer(
        directory, kind, [word for key, value in options.items() for word in (f"--{key}", value)]
    )


def _join(servers: list[BackendServer], shards: list[ShardServers]) -> None:
    _give_slots([shard.servers[0] for shard in shards])
    _meet(servers)
    for shard in shards:
        primary, replica = shard.servers
        name = primary.call("CLUSTER", "MYID")
        until(lambda replica=replica, name=name: _replicates(replica, name), "a replica follows its primary")
    until(lambda: all(shard.is_replicated() for shard in shards), "the replicas are up")
    until(lambda: all(map(_is_ok, servers)), "the cluster is up")


def _give_slots(servers: Sequence[BackendServer]) -> None:
    for number, server in enumerate(servers):
        # The first slot of the next one is the first that `BackendCluster.owner` finds there.
        first, beyond = (-(-SLOTS * place // len(servers)) for place in (number, number + 1))
        server.call("CLUSTER", "ADDSLOTSRANGE", first, beyond - 1)


def _meet(servers: Sequence[BackendServer]) -> None:
    for number, server in enumerate(servers):
        server.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        meet(servers[0], server)
    until(lambda: all(_known(server) == len(servers) for server in servers), "the servers know one another")


def meet(one: BackendServer, other: BackendServer) -> None:
    """Let a server of a cluster know another one."""
    bus = other.call("CONFIG", "GET", "cluster-port")[1].decode()
    one.call("CLUSTER", "MEET", "127.0.0.1", other.port, bus)


def move_slot(
    servers: Sequence[BackendServer], slot: int, source: BackendServer, target: BackendServer
) -> None:
    """Move a slot with all its keys from one of the servers to another, as redis-cli does."""
    names = {server: server.call("CLUSTER", "MYID") for server in (source, target)}
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        for key in keys:
            source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5_000)
            # Requests come between one key and the next.
            time.sleep(_POLL_S)
    for server in (target, source, *servers):
        server.call("CLUSTER", "SETSLOT", slot, "NODE", names[target])


def _known(server: BackendServer) -> int:
    return len(server.call("CLUSTER", "NODES").splitlines())


def _replicates(replica: BackendServer, name: bytes) -> bool:
    try:
        return bool(replica.call("CLUSTER", "REPLICATE", name) == b"OK")
    except ResponseError:
        # It does not know that server yet.
        return False


def _is_ok(server: BackendServer) -> bool:
    return b"cluster_state:ok" in server.call("CLUSTER", "INFO")
