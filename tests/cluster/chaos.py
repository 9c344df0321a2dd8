"""Kills servers and gateways, and moves slots, under load; counts what was lost, and what came twice.

Knows: gateways over it in processes of their own, clients that publish, follow and work over a fail-over, and
what each of them must have seen. Must never know: how a gateway talks to its servers.

    publishers, now, ──┐                ┌─ three primaries, a replica each, or one with two and a Sentinel:
    for later, and of  ├─ two gateways ─┤  a replica is stopped, its primary killed, and the replica takes
    schedules that are │  (one of them  │  over; or slots go to another primary and come back
    fired or cancelled │   is killed)   └─
    tails (SSE)        │
    workers (WebSocket)┘

By hand, with a table at the end: python -m tests.cluster.chaos --minutes 30
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from redis.exceptions import ClusterDownError

from engine.cluster.keys import SLOTS, auxiliary_key, slot_of
from tests.cluster.clusters import ShardServers, cluster, move_slot
from tests.cluster.sentinels import watched
from tests.cluster.servers import BackendServer
from tests.engine.real_redis import PROGRAMS
from tests.server import Server
from tests.waiting import until
from weir import AsyncClient, Delivery, Gap, WeirError, Worker

GATEWAYS: Final = 2
GROUP: Final = "g"
BATCH: Final = 8
LATER_MS: Final = 100
# Until it is fired or cancelled: longer than any round.
NEVER_MS: Final = 3_600_000
# What the system holds for a stalled replica reaches it later all the same, up to its buffers of some 32 MiB:
# with so much written before, none of what follows does.
BALLAST: Final = b"x" * (1 << 20)
BALLASTS: Final = 64
LOAD_S: Final = 0.6
STALL_S: Final = 0.8
AGAIN_S: Final = 0.05
# Sentinel has the second replica follow the new primary within its `failover-timeout`.
REJOIN_S_MAX: Final = 60.0
# Nothing more comes when nothing has come for this long; an entry that is lost never does. A tail whose
# notification is lost looks again about every five seconds.
SETTLE_S: Final = 15.0
IDLE_MS: Final = 1_000
TIMEOUT_MS: Final = 2_000


class Report(msgspec.Struct):
    """What the rounds did. `lost` were acknowledged and are not stored; `undelivered` and `unseen` are stored
    and came to no worker of the group, and not to each tail; `uncancelled` were added though their schedules
    were cancelled; `redelivered` came to workers more than once;
    `gaps` are those of all tails, `repeated_gaps` those above one a takeover for each tail of a round, and
    `repeated_takeovers` the marks above one for each takeover;
    `refused` are batches whose outcome their publisher does not know; `silence_s_max` is how long one of them
    waited for an answer.
    """

    what: str
    durability: str
    rounds: int = 0
    acknowledged: int = 0
    cancelled: int = 0
    lost: int = 0
    uncancelled: int = 0
    duplicates: int = 0
    repeated_ids: int = 0
    undelivered: int = 0
    unseen: int = 0
    gaps: int = 0
    repeated_gaps: int = 0
    repeated_takeovers: int = 0
    redelivered: int = 0
    refused: int = 0
    takeover_s_max: float = 0.0
    silence_s_max: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong that a client could see; redeliveries and refusals are promised."""
        wrong = (self.lost, self.uncancelled, self.duplicates, self.repeated_ids)
        missing = (self.undelivered, self.unseen)
        repeated = (self.repeated_gaps, self.repeated_takeovers)
        return self.rounds > 0 and self.acknowledged > 0 and not any((*wrong, *missing, *repeated))

    @property
    def is_followed(self) -> bool:
        """Whether each tail got all that is stored, and no gap again and again: with `memory` too."""
        return not self.unseen and not self.repeated_gaps

    def note_gaps(self, by_tail: Sequence[int], takeovers: int) -> None:
        """The gaps of a round; a tail has at most one for each takeover of a stream."""
        self.gaps += sum(by_tail)
        self.repeated_gaps += sum(max(0, gaps - takeovers) for gaps in by_tail)


class Load:
    """Clients of one round, on a stream in each shard: at each gateway publishers, a tail and workers."""

    def __init__(self, streams: Sequence[str], clients: Sequence[AsyncClient]) -> None:
        self.streams = streams
        # By stream.
        self.acknowledged: dict[str, list[str]] = {stream: [] for stream in streams}
        self.cancelled: dict[str, list[str]] = {stream: [] for stream in streams}
        # The values of each ID, by stream, as acknowledged and as seen.
        self.values: dict[tuple[str, str], set[str]] = {}
        self.seen: list[set[str]] = [set() for _ in clients]
        # By tail.
        self.gaps = [0] * len(clients)
        self.delivered: Counter[str] = Counter()
        self.refused = 0
        self.silence_s = 0.0
        self._clients = clients
        self._is_over = False
        self._publishers: list[asyncio.Task[None]] = []
        self._tails: list[asyncio.Task[None]] = []
        self._workers = [
            Worker(client.url, stream, group=GROUP, consumer=f"c{n}", credit=100, claim_min_idle_ms=IDLE_MS)
            for stream in streams
            for n, client in enumerate(clients)
        ]
        self._working: list[asyncio.Task[None]] = []

    async def make(self, shards: Sequence[ShardServers]) -> None:
        """The streams and their groups. They are there once each replica has them: a request that is
        repeated, since its first try was not confirmed, finds them and writes nothing that is waited for.
        """
        await replicated(self.streams, shards)
        for stream, shard in zip(self.streams, shards, strict=True):
            is_made = False
            while not is_made:
                await self._clients[0].group(stream, GROUP).ensure(start="0")
                await replicated([stream], [shard])
                is_made = bool(shard.primary.call("EXISTS", stream))

    async def start(self) -> None:
        """Begin all of it."""
        run = asyncio.create_task
        self._working = [run(one.run(self._handle, concurrency=8, stop_on=())) for one in self._workers]
        self._tails = [run(self._tail(n, client)) for n, client in enumerate(self._clients)]
        self._publishers = [
            run(publish(stream, client, f"{stream}/{n}"))
            for publish in (self._publish, self._publish_later, self._schedule)
            for stream in self.streams
            for n, client in enumerate(self._clients)
        ]

    async def stop(self) -> None:
        """Publish no more, and let what is on its way arrive."""
        self._is_over = True
        await asyncio.gather(*self._publishers)
        progress, since_s = -1, time.monotonic()
        while not self._is_settled() and time.monotonic() - since_s < SETTLE_S:
            found = len(self.delivered) + sum(map(len, self.seen))
            if found != progress:
                progress, since_s = found, time.monotonic()
            await asyncio.sleep(AGAIN_S)
        for worker in self._workers:
            worker.stop()
        await asyncio.gather(*self._working)
        for tail in self._tails:
            tail.cancel()
            with suppress(asyncio.CancelledError):
                await tail

    def _is_settled(self) -> bool:
        """Whether all that was acknowledged came to the group and to each tail."""
        wanted = {value for values in self.acknowledged.values() for value in values}
        return all(wanted <= found for found in (self.delivered.keys(), *self.seen))

    async def _publish(self, stream: str, client: AsyncClient, name: str) -> None:
        heard_s = time.monotonic()
        for number in count():
            if self._is_over:
                return
            values = [f"{name}/{number}/{place}" for place in range(BATCH)]
            try:
                done = await client.publish_batch(stream, [{"n": value} for value in values])
            except WeirError:
                self.refused += 1
                await asyncio.sleep(AGAIN_S)
                continue
            self.acknowledged[stream] += values
            for value, entry_id in zip(values, done.ids, strict=True):
                self._note(stream, entry_id, value)
            now_s = time.monotonic()
            self.silence_s, heard_s = max(self.silence_s, now_s - heard_s), now_s

    async def _publish_later(self, stream: str, client: AsyncClient, name: str) -> None:
        for number in count():
            if self._is_over:
                return
            values = [f"{name}/later/{number}/{place}" for place in range(BATCH)]
            try:
                await client.publish_timed(
                    stream, [{"fields": {"n": value}, "delay_ms": LATER_MS} for value in values]
                )
            except WeirError:
                self.refused += 1
            else:
                self.acknowledged[stream] += values
            await asyncio.sleep(AGAIN_S)

    async def _schedule(self, stream: str, client: AsyncClient, name: str) -> None:
        """Entries for much later, each fired or cancelled at once."""
        for number in count():
            if self._is_over:
                return
            value = f"{name}/schedule/{number}"
            try:
                await client.schedule(stream, value, {"n": value}, in_ms=NEVER_MS)
                if number % 2:
                    await client.cancel_schedule(stream, value)
                else:
                    await client.fire_schedule(stream, value)
            except WeirError:
                self.refused += 1
            else:
                (self.cancelled if number % 2 else self.acknowledged)[stream].append(value)
            await asyncio.sleep(AGAIN_S)

    async def _tail(self, number: int, client: AsyncClient) -> None:
        def note_gap(_: Gap) -> None:
            self.gaps[number] += 1

        async for entry in client.tail(*self.streams, after="0", on_gap=note_gap):
            value = entry.fields["n"]
            self.seen[number].add(value)
            self._note(entry.stream, entry.id, value)

    async def _handle(self, delivery: Delivery) -> None:
        self.delivered[delivery.entry.fields["n"]] += 1

    def _note(self, stream: str, entry_id: str, value: str) -> None:
        self.values.setdefault((stream, entry_id), set()).add(value)


class Round(NamedTuple):
    """What there is to disturb: the streams, one in each shard, and what serves them."""

    number: int
    streams: Sequence[str]
    shards: Sequence[ShardServers]
    gateways: Sequence[Server]


@asynccontextmanager
async def clients_of(gateways: Sequence[Server]) -> AsyncIterator[list[AsyncClient]]:
    """Gateways that run, and clients of them."""
    async with AsyncExitStack() as stack:
        for gateway in gateways:
            stack.enter_context(gateway)
        yield [
            await stack.enter_async_context(AsyncClient(gateway.url, retry_s=30.0)) for gateway in gateways
        ]


async def run_rounds(
    directory: Path,
    shards: Sequence[ShardServers],
    durability: str,
    rounds: int,
    seconds: float,
    disturbance: "Disturbance | None" = None,
    url: str | None = None,
) -> Report:
    """Kill one primary after the other, or disturb otherwise, for a number of rounds or a time. `url` is that
    of the backend, None for a cluster.
    """
    what, disturb, takeovers = disturbance or FAIL_OVER
    report = Report(what, durability)
    deadline = time.monotonic() + seconds
    seeds = ",".join(str(server.address) for shard in shards for server in shard.servers)
    words = ["--backend", url or f"redis+cluster://{seeds}", "--set", "log_requests=none"]
    for setting in (f"durability={durability}", f"timeout_ms={TIMEOUT_MS}"):
        words += ["--set", f"backend_{setting}"]
    gateways = [Server(directory / str(n), *words) for n in range(GATEWAYS)]
    async with clients_of(gateways) as clients:
        while report.rounds < rounds and time.monotonic() < deadline:
            load = Load(streams(report.rounds, shards), clients)
            await load.make(shards)
            await load.start()
            await asyncio.sleep(LOAD_S)
            took_s = await disturb(Round(report.rounds, load.streams, shards, gateways))
            await asyncio.sleep(LOAD_S)
            await load.stop()
            report.takeover_s_max = max(report.takeover_s_max, took_s)
            for stream, shard in zip(load.streams, shards, strict=True):
                check(report, load, stream, shard, takeovers)
            report.rounds += 1
            report.note_gaps(load.gaps, takeovers * len(load.streams))
            report.refused += load.refused
            report.silence_s_max = max(report.silence_s_max, load.silence_s)
    return report


def streams(number: int, shards: Sequence[ShardServers]) -> list[str]:
    """The streams of a round: one in each shard, as the cluster was formed."""
    found: dict[int, str] = {}
    for place in count():
        name = f"chaos-{number}-{place}"
        found.setdefault(slot_of(name.encode()) * len(shards) // SLOTS, name)
        if len(found) == len(shards):
            return [found[shard] for shard in range(len(shards))]
    raise AssertionError("there are names for every slot")


async def replicated(streams: Sequence[str], shards: Sequence[ShardServers]) -> None:
    """Wait until the replicas have all that was written: one that follows may still lack it."""
    for stream, shard in zip(streams, shards, strict=True):
        ballast, count = ballast_of(stream), len(shard.servers) - 1

        def have_all(shard: ShardServers = shard, ballast: str = ballast, count: int = count) -> bool:
            is_written = shard.is_replicated() and is_set(shard.primary, ballast, b"")
            return is_written and shard.primary.call("WAIT", count, TIMEOUT_MS) == count

        await asyncio.to_thread(until, have_all, "the replicas have all that was written")


async def kill_primary(current: Round) -> float:
    """Kill the primary while a replica of it hangs. Returns how long it took until there was another one."""
    victim = current.number % len(current.shards)
    shard, ballast = current.shards[victim], ballast_of(current.streams[victim])
    await asyncio.to_thread(until, shard.is_replicated, "the replicas follow")
    primary, replicas = shard.primary, shard.replicas
    replicas[0].pause()
    for _ in range(BALLASTS):
        await asyncio.to_thread(until, lambda: is_set(primary, ballast), "the primary takes writes")
    await asyncio.sleep(STALL_S)
    primary.kill()
    killed_s = time.monotonic()
    replicas[0].resume()
    await asyncio.to_thread(until, lambda: any(map(shard.names, replicas)), "a replica takes over")
    took_s = time.monotonic() - killed_s
    await asyncio.to_thread(shard.rejoin, primary)
    await asyncio.to_thread(until, shard.is_replicated, "the old primary follows", REJOIN_S_MAX)
    return took_s


async def move_slots(current: Round) -> float:
    """Let the slot of each stream go to the next primary, and come back."""
    primaries = [shard.primary for shard in current.shards]
    began_s = time.monotonic()
    for place, stream in enumerate(current.streams):
        there, back = primaries[place], primaries[(place + 1) % len(primaries)]
        for source, target in ((there, back), (back, there)):
            await asyncio.to_thread(move_slot, primaries, slot_of(stream.encode()), source, target)
            await asyncio.sleep(AGAIN_S)
    return time.monotonic() - began_s


async def kill_gateway(current: Round) -> float:
    """Kill one of the gateways, and start it anew."""
    gateway = current.gateways[current.number % len(current.gateways)]
    await asyncio.to_thread(gateway.kill)
    killed_s = time.monotonic()
    await asyncio.sleep(STALL_S)
    await asyncio.to_thread(gateway.start)
    return time.monotonic() - killed_s


class Disturbance(NamedTuple):
    """What it is, what does it and returns for how many seconds something was not there, and how often in a
    round another primary takes a stream over.
    """

    what: str
    disturb: Callable[[Round], Awaitable[float]]
    takeovers: int


FAIL_OVER: Final = Disturbance("fail-over", kill_primary, 1)
SLOT_MOVES: Final = Disturbance("slots move", move_slots, 2)
GATEWAY_KILLED: Final = Disturbance("gateway killed", kill_gateway, 0)


def ballast_of(stream: str) -> str:
    """The key of what is written beside a stream."""
    return f"{{{stream}}}:ballast"


def is_set(primary: BackendServer, ballast: str, value: bytes = BALLAST) -> bool:
    """Write once, where the cluster is well: on a busy machine its servers may not hear of one another."""
    try:
        return bool(primary.call("SET", ballast, value, "EX", 60))
    except ClusterDownError:
        return False


def check(report: Report, load: Load, stream: str, shard: ShardServers, takeovers: int) -> None:
    """Compare what the clients of a stream know with what is there, and delete it."""
    stored: Counter[str] = Counter()
    for entry_id, (_, word) in shard.primary.call("XRANGE", stream, "-", "+"):
        stored[word.decode()] += 1
        load.values.setdefault((stream, entry_id.decode()), set()).add(word.decode())
    marks = shard.primary.call("HGET", auxiliary_key(stream, "m"), "t") or b""
    report.repeated_takeovers += max(0, len(marks.split()) // 2 - takeovers)
    shard.primary.call("DEL", stream)
    acknowledged, cancelled = load.acknowledged[stream], load.cancelled[stream]
    kept = [value for value in acknowledged if value in stored]
    report.acknowledged += len(acknowledged)
    report.cancelled += len(cancelled)
    report.uncancelled += sum(value in stored for value in cancelled)
    report.lost += len(acknowledged) - len(kept)
    report.duplicates += sum(number - 1 for number in stored.values())
    report.repeated_ids += sum(len(values) - 1 for (name, _), values in load.values.items() if name == stream)
    report.undelivered += sum(value not in load.delivered for value in kept)
    report.unseen += sum(value not in seen for value in kept for seen in load.seen)
    report.redelivered += sum(load.delivered[value] > 1 for value in kept)


def table(reports: Sequence[Report]) -> str:
    """A row for each figure, a column for each report."""
    columns = [msgspec.structs.asdict(one) for one in reports]
    lines = []
    for name in columns[0]:
        cells = [f"{one[name]:.1f}" if isinstance(one[name], float) else str(one[name]) for one in columns]
        lines.append(f"{name.replace('_', ' '):<20}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    """Run it with replicas and without, and print a table; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description="Kill and move under load, and count what was lost.")
    parser.add_argument("--minutes", type=float, default=30, help="of each row")
    parser.add_argument("--rounds", type=int, default=1_000_000, help="fail-overs of a cluster")
    parser.add_argument("--move-rounds", type=int, default=10, help="in each, six slots move")
    parser.add_argument("--gateway-rounds", type=int, default=10)
    parser.add_argument("--sentinel-rounds", type=int, default=10, help="a primary with two replicas")
    parser.add_argument("--memory-rounds", type=int, default=3, help="with durability memory, to compare")
    parser.add_argument("--server", choices=sorted(PROGRAMS), default="valkey")
    given = parser.parse_args()
    reports = []
    for durability, rounds, disturbance in (
        ("replicated:1", given.rounds, FAIL_OVER),
        ("replicated:1", given.move_rounds, SLOT_MOVES),
        ("replicated:1", given.gateway_rounds, GATEWAY_KILLED),
        ("memory", given.memory_rounds, FAIL_OVER),
    ):
        if not rounds:
            continue
        with tempfile.TemporaryDirectory() as name, cluster(Path(name), given.server) as shards:
            running = run_rounds(Path(name), shards, durability, rounds, given.minutes * 60, disturbance)
            reports.append(_said(asyncio.run(running)))
    if given.sentinel_rounds:
        with tempfile.TemporaryDirectory() as name, watched(Path(name), given.server, replicas=2) as shard:
            running = run_rounds(
                Path(name), [shard], "replicated:2", given.sentinel_rounds, given.minutes * 60, url=shard.url
            )
            reports.append(_said(asyncio.run(running)))
    print(table(reports))  # noqa: T201
    promised = [report for report in reports if report.durability != "memory"]
    return 0 if all(report.is_sound for report in promised) and all(one.is_followed for one in reports) else 1


def _said(report: Report) -> Report:
    """Say what was found at once: the whole takes an hour."""
    print(report, file=sys.stderr)  # noqa: T201
    return report


if __name__ == "__main__":
    sys.exit(main())
