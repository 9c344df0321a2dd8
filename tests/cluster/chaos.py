"""Kills the primaries of a cluster under load, while their replicas are stalled, and counts what was lost.

Knows: gateways over it in processes of their own, clients that publish, follow and work over a fail-over, and
what each of them must have seen. Must never know: how a gateway talks to its servers.

    publishers, now ───┐                ┌─ three primaries, a replica each:
    and for later      ├─ two gateways ─┤  one replica is stopped, its primary killed,
    tails (SSE)        │                └─ the replica goes on and takes over
    workers (WebSocket)┘

By hand, with a table at the end: python -m tests.cluster.chaos --minutes 30
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
from redis.exceptions import ClusterDownError

from engine.cluster.keys import SLOTS, auxiliary_key, slot_of
from tests.cluster.clusters import ShardServers, cluster
from tests.cluster.servers import BackendServer
from tests.engine.real_redis import PROGRAMS
from tests.server import Server
from tests.waiting import until
from weir import AsyncClient, Delivery, Gap, WeirError, Worker

GATEWAYS: Final = 2
GROUP: Final = "g"
BATCH: Final = 8
LATER_MS: Final = 100
# What the system holds for a stalled replica reaches it later all the same, up to its buffers of some 32 MiB:
# with so much written before, none of what follows does.
BALLAST: Final = b"x" * (1 << 20)
BALLASTS: Final = 64
LOAD_S: Final = 0.6
STALL_S: Final = 0.8
AGAIN_S: Final = 0.05
# Nothing more comes when nothing has come for this long; an entry that is lost never does. A tail whose
# notification is lost looks again about every five seconds.
SETTLE_S: Final = 15.0
IDLE_MS: Final = 1_000
TIMEOUT_MS: Final = 2_000


class Report(msgspec.Struct):
    """What the rounds did. `lost` were acknowledged and are not stored; `undelivered` and `unseen` are stored
    and came to no worker of the group, and not to each tail; `redelivered` came to workers more than once;
    `gaps` are those of all tails, `repeated_gaps` those above one a stream for each tail of a round, and
    `repeated_takeovers` the marks above one for each stream;
    `refused` are batches whose outcome their publisher does not know; `silence_s_max` is how long one of them
    waited for an answer.
    """

    durability: str
    rounds: int = 0
    acknowledged: int = 0
    lost: int = 0
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
        wrong = (self.lost, self.duplicates, self.repeated_ids, self.undelivered, self.unseen)
        repeated = (self.repeated_gaps, self.repeated_takeovers)
        return self.rounds > 0 and self.acknowledged > 0 and not any((*wrong, *repeated))

    @property
    def is_followed(self) -> bool:
        """Whether each tail got all that is stored, and no gap again and again: with `memory` too."""
        return not self.unseen and not self.repeated_gaps

    def note_gaps(self, by_tail: Sequence[int], streams: int) -> None:
        """The gaps of a round; a tail of several streams has at most one of each, for its fail-over."""
        self.gaps += sum(by_tail)
        self.repeated_gaps += sum(max(0, gaps - streams) for gaps in by_tail)


class Load:
    """Clients of one round, on a stream in each shard: at each gateway publishers, a tail and workers."""

    def __init__(self, streams: Sequence[str], clients: Sequence[AsyncClient]) -> None:
        self.streams = streams
        # By stream.
        self.acknowledged: dict[str, list[str]] = {stream: [] for stream in streams}
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

    async def start(self) -> None:
        """Begin all of it."""
        for stream in self.streams:
            await self._clients[0].group(stream, GROUP).ensure(start="0")
        run = asyncio.create_task
        self._working = [run(one.run(self._handle, concurrency=8, stop_on=())) for one in self._workers]
        self._tails = [run(self._tail(n, client)) for n, client in enumerate(self._clients)]
        self._publishers = [
            run(publish(stream, client, f"{stream}/{n}"))
            for publish in (self._publish, self._publish_later)
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


@asynccontextmanager
async def gateways(
    directory: Path, shards: Sequence[ShardServers], durability: str
) -> AsyncIterator[list[AsyncClient]]:
    """Clients of gateways over the cluster."""
    seeds = ",".join(str(server.address) for shard in shards for server in shard.servers)
    words = ["--backend", f"redis+cluster://{seeds}"]
    for setting in (f"durability={durability}", f"timeout_ms={TIMEOUT_MS}"):
        words += ["--set", f"backend_{setting}"]
    async with AsyncExitStack() as stack:
        servers = [Server(directory / str(n), *words, "--set", "log_requests=none") for n in range(GATEWAYS)]
        for server in servers:
            stack.enter_context(server)
        yield [await stack.enter_async_context(AsyncClient(server.url, retry_s=30.0)) for server in servers]


async def run_rounds(
    directory: Path, shards: Sequence[ShardServers], durability: str, rounds: int, seconds: float
) -> Report:
    """Kill one primary after the other, for a number of rounds or a time."""
    report = Report(durability)
    deadline = time.monotonic() + seconds
    async with gateways(directory, shards, durability) as clients:
        while report.rounds < rounds and time.monotonic() < deadline:
            victim = report.rounds % len(shards)
            load = Load(streams(report.rounds, shards), clients)
            await load.start()
            await asyncio.sleep(LOAD_S)
            took_s = await fail_over(shards[victim], f"{{{load.streams[victim]}}}:ballast")
            await asyncio.sleep(LOAD_S)
            await load.stop()
            report.takeover_s_max = max(report.takeover_s_max, took_s)
            for stream, shard in zip(load.streams, shards, strict=True):
                check(report, load, stream, shard)
            report.rounds += 1
            report.note_gaps(load.gaps, len(load.streams))
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


async def fail_over(shard: ShardServers, ballast: str) -> float:
    """Kill the primary while its replica hangs; `ballast` is a key of theirs. Returns how long it took until
    there was another one.
    """
    await asyncio.to_thread(until, shard.is_replicated, "the replica follows")
    primary, replica = shard.primary, shard.replica
    replica.pause()
    for _ in range(BALLASTS):
        await asyncio.to_thread(until, lambda: is_set(primary, ballast), "the primary takes writes")
    await asyncio.sleep(STALL_S)
    primary.kill()
    killed_s = time.monotonic()
    replica.resume()
    await asyncio.to_thread(until, lambda: replica.call("ROLE")[0] == b"master", "the replica takes over")
    took_s = time.monotonic() - killed_s
    await asyncio.to_thread(primary.start)
    await asyncio.to_thread(until, shard.is_replicated, "the old primary follows")
    return took_s


def is_set(primary: BackendServer, ballast: str) -> bool:
    """Write once, where the cluster is well: on a busy machine its servers may not hear of one another."""
    try:
        return bool(primary.call("SET", ballast, BALLAST, "EX", 60))
    except ClusterDownError:
        return False


def check(report: Report, load: Load, stream: str, shard: ShardServers) -> None:
    """Compare what the clients of a stream know with what is there, and delete it."""
    stored: Counter[str] = Counter()
    for entry_id, (_, word) in shard.primary.call("XRANGE", stream, "-", "+"):
        stored[word.decode()] += 1
        load.values.setdefault((stream, entry_id.decode()), set()).add(word.decode())
    marks = shard.primary.call("HGET", auxiliary_key(stream, "m"), "t") or b""
    report.repeated_takeovers += max(0, len(marks.split()) // 2 - 1)
    shard.primary.call("DEL", stream)
    acknowledged = load.acknowledged[stream]
    kept = [value for value in acknowledged if value in stored]
    report.acknowledged += len(acknowledged)
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
    parser = argparse.ArgumentParser(description="Kill primaries under load, and count what was lost.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--memory-rounds", type=int, default=3, help="with durability memory, to compare")
    parser.add_argument("--server", choices=sorted(PROGRAMS), default="valkey")
    given = parser.parse_args()
    reports = []
    for durability, rounds in (("replicated:1", given.rounds), ("memory", given.memory_rounds)):
        with tempfile.TemporaryDirectory() as name, cluster(Path(name), given.server) as shards:
            running = run_rounds(Path(name), shards, durability, rounds, given.minutes * 60)
            reports.append(asyncio.run(running))
    print(table(reports))  # noqa: T201
    return 0 if reports[0].is_sound and all(report.is_followed for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
