"""Whether the servers are there, and what they can do.

Knows: how they are asked, when a failure is an outage, and how far the count of each one's streams has
come, since no server keeps that number. Must never know: requests of clients.

    every second   QUESTIONS, SCAN at each primary ──► level, streams; without a reply the outage begins
                   PROBE_OF_WRITES at each ──► whether it takes writes; if not, the same, or it is full
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final

from engine.clock import Clock
from engine.cluster.levels import PROBE_OF_WRITES, QUESTIONS, Level, least, level_of, run_of
from engine.cluster.misfits import Misfit, of_refusal
from engine.cluster.node import Node
from engine.cluster.refusals import reason_of
from engine.cluster.replication import BackendDurability
from engine.cluster.topology import Topology
from engine.cluster.wire import Address, Words, call, report
from engine.errors import EngineError
from engine.name_rules import is_name

# A thousandth of a second of a server's time, about.
_KEYS: Final = 1_000


class _Round:
    """Of one server: where the round is, what it has found, and what the round before it found."""

    def __init__(self) -> None:
        self.cursor = b"0"
        self.found = 0
        self.last: int | None = None


class StreamCount:
    """Streams that are made or removed during a round are counted in it or not."""

    def __init__(self) -> None:
        self._rounds: dict[Address, _Round] = {}

    @property
    def streams(self) -> int:
        """How many there are; during a server's first round those found so far."""
        return sum(count.found if count.last is None else count.last for count in self._rounds.values())

    def question(self, server: Address) -> Words:
        """The command that goes on at this server."""
        cursor = self._rounds[server].cursor if server in self._rounds else b"0"
        return ("SCAN", cursor, "COUNT", _KEYS, "TYPE", "stream")

    def note(self, replies: Sequence[tuple[Address, tuple[bytes, Sequence[bytes]]]]) -> None:
        """Take the replies of all servers that there are: others are forgotten."""
        self._rounds = {server: self._rounds.get(server) or _Round() for server, _ in replies}
        for server, (cursor, names) in replies:
            count = self._rounds[server]
            count.cursor = cursor
            count.found += sum(map(is_name, names))
            if cursor == b"0":
                count.found, count.last = 0, count.found


_LOOK_S: Final = 1.0
# Until all have answered for the first time.
_LOOK_FIRST_S: Final = 0.05
# An outage shorter than this is not worth taking the gateway out of service for.
OUTAGE_S_MAX: Final = 3.0

Ask = Callable[[Node, Sequence[Words]], Awaitable[Sequence[Any]]]


class Trouble(Enum):
    """What may be wrong: servers are away, one has no memory left, no write can be as safe as promised, a
    fail-over may lose what was acknowledged.
    """

    OUTAGE = auto()
    FULL = auto()
    UNKEPT_PROMISE = auto()
    SPARE_REPLICA = auto()


class BackendHealth:
    """What the servers say of themselves. `ask` raises EngineError; `observe` is called with the number of
    their streams whenever all have answered.
    """

    def __init__(self, topology: Topology, ask: Ask, clock: Clock, observe: Callable[[int], None]) -> None:
        self.level = Level()
        # Why the servers cannot be used for longer than `OUTAGE_S_MAX`, since a look; None where they can.
        self.outage: str | None = None
        # How a server refuses writes that has no memory left; None while all have some.
        self.full: str | None = None
        # Called after the start with each trouble and its reason, and with None in its place once it is over.
        self.on_change: Callable[[Trouble, str | None], None] = lambda *_: None
        # Called when a server has been started again, with the data that it kept.
        self.on_restart: Callable[[], None] = lambda: None
        # Of each server the run that was seen last.
        self._runs: dict[str, str] = {}
        self._told: dict[Trouble, str | None] = {}
        self._topology = topology
        self._ask = ask
        self._clock = clock
        self._observe = observe
        self._count = StreamCount()
        self._down_since: float | None = clock.monotonic()
        # Why the last look found that they cannot be used, though they are connected.
        self._refusal: str | None = None

    @property
    def failure(self) -> str | None:
        """Why a server cannot be used now, or is not known; None where all can."""
        failures = [self._topology.failure, *(node.failure for node in self._topology.nodes), self._refusal]
        return next((failure for failure in failures if failure is not None), None)

    @property
    def can_confirm(self) -> bool:
        """Whether all servers can say that a write is as safe as `backend_durability` asks."""
        return self.level.syncs or not self._topology.durability.disks

    @property
    def unkept_promise(self) -> str | None:
        """Why no write can be as safe as it asks, as the servers are now; None where it can."""
        needed = self._topology.durability.replicas_needed
        if not self.can_confirm:
            return f"{self.level.name} has no WAITAOF, or no append-only file"
        if self.level.replicas < needed:
            return (
                f"a primary has {self.level.replicas} connected replicas, and {needed} must have each write"
            )
        return None

    @property
    def spare_replica(self) -> str | None:
        """Why a replica that lacks acknowledged writes may take over; None where all have them, or where
        nothing of the kind is promised.
        """
        durability, replicas = self._topology.durability, self.level.replicas_most
        needed = durability.replicas_needed
        if durability == BackendDurability() or replicas <= needed:
            return None
        return (
            f"a primary has {replicas} connected replicas, and {durability.name} waits for {needed} of them"
        )

    async def keep_on(self, is_up: asyncio.Future[None]) -> None:
        """Ask the servers again and again, until it is cancelled; `is_up` is done once all have answered."""
        while True:
            looked_at = self._clock.monotonic()
            is_there = await self._is_there()
            if is_there and self._refusal is None:
                self._down_since = None
            elif self._down_since is None:
                self._down_since = looked_at
            down_s = 0 if self._down_since is None else self._clock.monotonic() - self._down_since
            self.outage = (self.failure or "the backend does not answer") if down_s >= OUTAGE_S_MAX else None
            if is_there and not is_up.done():
                is_up.set_result(None)
            if is_up.done():
                self._tell()
            await asyncio.sleep(_LOOK_S if is_up.done() else _LOOK_FIRST_S)

    def _tell(self) -> None:
        now = {
            Trouble.OUTAGE: self.outage,
            Trouble.FULL: self.full,
            Trouble.UNKEPT_PROMISE: self.unkept_promise,
            Trouble.SPARE_REPLICA: self.spare_replica,
        }
        for trouble, reason in now.items():
            if (reason is None) != (self._told.get(trouble) is None):
                call(self.on_change, trouble, reason)
        self._told = now

    async def _is_there(self) -> bool:
        try:
            return await self._look()
        except Exception as error:  # noqa: BLE001 - they are asked again
            report("the backend could not be asked how it is", error)
            return False

    async def _look(self) -> bool:
        """Whether all servers are there. They may take no writes, for now."""
        nodes = list(self._topology.nodes)
        asked = (self._ask(node, [*QUESTIONS, self._count.question(node.address)]) for node in nodes)
        try:
            answers = await asyncio.gather(*asked)
        except EngineError as error:
            self._refusal = of_refusal(reason_of(error))
            return False
        self._refusal = None
        if not answers or self._topology.failure is not None:
            return False
        self.level = least([level_of(*replies) for *replies, _ in answers])
        self._note_runs(
            {str(node.address): run_of(replies[0]) for node, replies in zip(nodes, answers, strict=True)}
        )
        if self._topology.is_fixed and self.level.primary:
            where = f"{nodes[0].address} is a replica of {self.level.primary}"
            self._refusal = f"{where}: name that one in `backend`, or find it by redis+sentinel://"
            return False
        self._count.note([(node.address, names) for node, (*_, names) in zip(nodes, answers, strict=True)])
        self._observe(self._count.streams)
        probes = (self._ask(node, [PROBE_OF_WRITES]) for node in nodes)
        return self._note_refusals(await asyncio.gather(*probes, return_exceptions=True))

    def _note_runs(self, runs: Mapping[str, str]) -> None:
        """Compare the runs of the servers with those before."""
        has_restarted = any(self._runs.get(address, run) != run for address, run in runs.items())
        self._runs.update(runs)
        if has_restarted:
            call(self.on_restart)

    def _note_refusals(self, results: Sequence[object]) -> bool:
        """Take in how writes are refused; False where that stays so."""
        refusals = [refusal for refusal in results if isinstance(refusal, EngineError)]
        self.full = next((refusal.redis for refusal in refusals if refusal.code == "memory_full"), None)
        others = [of_refusal(reason_of(refusal)) for refusal in refusals if refusal.code != "memory_full"]
        self._refusal = next(iter(others), None)
        return not isinstance(self._refusal, Misfit)
