"""Which server has a stream: one has all of them, Sentinel names it, or a cluster has their slots.

Knows: slots and their servers, how these are found and found again. Must never know: commands, requests.

    a look ── CLUSTER SLOTS ┊ SENTINEL GET-MASTER-ADDR-BY-NAME ──► nodes ──► on_change
      ▲ every 10 s, about ┊ once MOVED, READONLY, CLUSTERDOWN or a lost connection asks for it
      └ never twice within a second
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from engine.cluster.figures import BackendFigures
from engine.cluster.keys import SLOTS, slot_of
from engine.cluster.misfits import Misfit
from engine.cluster.node import MEMORY, Node
from engine.cluster.replication import BackendDurability
from engine.cluster.wire import (
    Address,
    ConnectionLostError,
    ServerAccess,
    ServerError,
    ask,
    call,
    report,
    why_not,
)

# Between two looks, and until the next one where nothing asks for it: each up to half as much again.
LOOK_S_MIN: Final = 1.0
LOOK_S_MAX: Final = 10.0
# A server that does not answer holds up the look at the others for no longer.
_ASK_S_MAX: Final = 1.0


class Topology(Protocol):
    """Where the streams are. `start` it, `close` it at the end."""

    durability: BackendDurability
    timeout_s: float
    # Which of the servers' databases has the streams.
    database: int
    # Streams may be at other servers than before.
    on_change: Callable[[], None]
    # Whether this is always the same server.
    is_fixed: bool
    # Whether slots are of several servers: then one turn is about streams of one slot.
    has_slots: bool
    # What is counted of the servers.
    figures: BackendFigures

    @property
    def nodes(self) -> Sequence[Node]:
        """All servers that have streams."""

    @property
    def failure(self) -> str | None:
        """Why it is not known where streams are; None where it is."""

    def start(self) -> None:
        """Begin to connect."""

    async def close(self) -> None:
        """End all connections."""

    def node_of(self, stream: str) -> Node | None:
        """The server of a stream; None while it has none."""

    def node_at(self, address: Address) -> Node:
        """The server that another one names."""

    def move(self, slot: int, address: Address) -> None:
        """A server says that this one has the slot now."""

    def refresh(self) -> None:
        """Look soon."""


class Standalone:
    """One server has all streams."""

    is_fixed = True
    has_slots = False
    failure = None

    def __init__(
        self, address: Address, access: ServerAccess, timeout_s: float, durability: BackendDurability = MEMORY
    ) -> None:
        self.durability = durability
        self.timeout_s = timeout_s
        self.database = access.database
        self.on_change: Callable[[], None] = lambda: None
        self.figures = BackendFigures()
        node = Node(address, access, timeout_s, durability, figures=self.figures)
        self.nodes: Sequence[Node] = [node]

    def start(self) -> None:
        """See `Topology`."""
        self.nodes[0].start()

    async def close(self) -> None:
        """See `Topology`."""
        await self.nodes[0].close()

    def node_of(self, stream: str) -> Node:
        """See `Topology`."""
        return self.nodes[0]

    def node_at(self, address: Address) -> Node:
        """See `Topology`."""
        return self.nodes[0]

    def move(self, slot: int, address: Address) -> None:
        """See `Topology`."""

    def refresh(self) -> None:
        """See `Topology`."""


class _Discovered(ABC):
    """Servers that are found by asking `seeds`, and found again when they change."""

    is_fixed = False

    def __init__(
        self,
        seeds: Sequence[Address],
        access: ServerAccess,
        timeout_s: float,
        durability: BackendDurability = MEMORY,
    ) -> None:
        self.durability = durability
        self.timeout_s = timeout_s
        self.on_change: Callable[[], None] = lambda: None
        self.figures = BackendFigures()
        self.failure: str | None = "no server has answered yet"
        self.seeds = list(seeds)
        self._access = access
        self.database = access.database
        self._known: dict[Address, Node] = {}
        self._loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """See `Topology`."""
        self._looking = self._loop.create_task(self._keep_looking())

    async def close(self) -> None:
        """See `Topology`."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        for node in list(self._known.values()):
            self._end(node)
        if self._ending:
            await asyncio.wait(self._ending)

    def node_at(self, address: Address) -> Node:
        """See `Topology`."""
        node = self._known.get(address)
        if node is None:
            node = Node(address, self._access, self.timeout_s, self.durability, self.refresh, self.figures)
            self._known[address] = node
            node.start()
        return node

    def refresh(self) -> None:
        """See `Topology`."""
        self._wanted.set()

    async def _keep_looking(self) -> None:
        while True:
            self._wanted.clear()
            self.failure = await self._look()
            self._end_unused()
            await asyncio.sleep(LOOK_S_MIN * random.uniform(1.0, 1.5))  # noqa: S311 - jitter
            if self.failure is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S_MAX * random.uniform(1.0, 1.5)):  # noqa: S311 - jitter
                        await self._wanted.wait()

    async def _look(self) -> str | None:
        """Ask one server after the other until one says where streams are. Reply: why none did, first what
        time may cure.
        """
        failures: list[str] = []
        for address in self._to_ask():
            try:
                is_changed, failure = await self._ask(address)
            except (ServerError, ConnectionLostError) as error:
                failures.append(why_not(address, error))
                continue
            except Exception as error:  # noqa: BLE001 - another one is asked, or this one again
                report("a server could not be asked where streams are", error)
                failures.append(f"{address}: {error}")
                continue
            if is_changed:
                call(self.on_change)
            if not failure:
                return None
            failures.append(failure)
        curable = [failure for failure in failures if not isinstance(failure, Misfit)]
        return (curable or failures)[-1]

    def _to_ask(self) -> list[Address]:
        """Those that answer before those that do not, so that a dead one costs no time."""
        return self.seeds

    @abstractmethod
    async def _ask(self, address: Address) -> tuple[bool, str]:
        """Ask one server, and take what it says: whether anything has changed, why it is not enough."""

    @abstractmethod
    def _serving(self) -> set[Node]:
        """The servers that have streams."""

    async def _reply(self, address: Address, access: ServerAccess, *words: Any) -> Any:  # noqa: ANN401 - as it comes
        return await ask(address, access, words, min(_ASK_S_MAX, self.timeout_s))

    def _end_unused(self) -> None:
        """End connections to servers without streams: at once where they are lost, else later."""
        serving, now = self._serving(), self._loop.time()
        for node in list(self._known.values()):
            is_used = node.failure is None and now - node.used_s < self.timeout_s
            if node not in serving and not is_used:
                self._end(node)

    def _end(self, node: Node) -> None:
        del self._known[node.address]
        self._spawn(node.close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class ClusterTopology(_Discovered):
    """The primaries of a cluster have its slots between them. `seeds` are some of its servers."""

    has_slots = True

    def __init__(
        self,
        seeds: Sequence[Address],
        access: ServerAccess,
        timeout_s: float,
        durability: BackendDurability = MEMORY,
    ) -> None:
        super().__init__(seeds, access, timeout_s, durability)
        self._owners: list[Node | None] = [None] * SLOTS
        self._has_moved = False
        self.nodes: Sequence[Node] = []

    def node_of(self, stream: str) -> Node | None:
        """See `Topology`."""
        return self._owners[slot_of(stream.encode())]

    def move(self, slot: int, address: Address) -> None:
        """See `Topology`."""
        self._owners[slot] = self.node_at(address)
        self._has_moved = True
        self.refresh()

    def _serving(self) -> set[Node]:
        return {node for node in self._owners if node is not None}

    def _to_ask(self) -> list[Address]:
        up = [node.address for node in self.nodes if node.failure is None]
        random.shuffle(up)
        return list(dict.fromkeys([*up, *self.seeds, *(node.address for node in self.nodes)]))

    async def _ask(self, address: Address) -> tuple[bool, str]:
        rows = await self._reply(address, self._access, "CLUSTER", "SLOTS")
        info = await self._reply(address, self._access, "CLUSTER", "INFO")
        owners: list[Node | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in rows:
            # A server that does not know its own name is where it was asked; `?` is known to none.
            if host != b"?":
                node = self.node_at(Address(host.decode() if host else address.host, port))
                owners[first : last + 1] = [node] * (last + 1 - first)
        if not any(owners):
            return False, f"{address} has no slots"
        is_changed = self._has_moved or owners != self._owners
        self._owners, self._has_moved = owners, False
        self.nodes = sorted(self._serving(), key=lambda node: str(node.address))
        return is_changed, "" if b"cluster_state:ok" in info else f"{address}: the cluster is down"


class SentinelTopology(_Discovered):
    """The primary that Sentinel knows under `name` has all streams. `seeds` are some of the Sentinels."""

    has_slots = False

    def __init__(
        self,
        seeds: Sequence[Address],
        name: str,
        access: ServerAccess,
        timeout_s: float,
        durability: BackendDurability = MEMORY,
    ) -> None:
        # An old primary that comes back at its address as a replica may lack anything.
        super().__init__(seeds, msgspec.structs.replace(access, primary=True), timeout_s, durability)
        self._name = name
        self.nodes: Sequence[Node] = []

    def node_of(self, stream: str) -> Node | None:
        """See `Topology`."""
        return self.nodes[0] if self.nodes else None

    def move(self, slot: int, address: Address) -> None:
        """See `Topology`."""

    def _serving(self) -> set[Node]:
        return set(self.nodes)

    async def _ask(self, address: Address) -> tuple[bool, str]:
        place = await self._ask_sentinel(address)
        if place is None:
            return False, f"{address} watches no primary {self._name!r}: `backend` ends with its name"
        host, port = place
        primary = Address(host.decode(), int(port))
        # A Sentinel that was away names the old one, whose greeting says so itself.
        await self._reply(primary, self._access, "PING")
        is_changed = self.nodes != [self.node_at(primary)]
        self.nodes = [self.node_at(primary)]
        return is_changed, ""

    async def _ask_sentinel(self, address: Address) -> Any:  # noqa: ANN401 - as it comes
        """Host and port of the primary. A Sentinel needs no password, or that of the servers."""
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        try:
            return await self._reply(address, ServerAccess(tls=self._access.tls), *words)
        except ConnectionLostError as error:
            if "NOAUTH" not in str(error):
                raise
        return await self._reply(address, msgspec.structs.replace(self._access, database=0, mode=b""), *words)
