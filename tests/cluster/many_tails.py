"""Tails of two gateways over a cluster of six servers: connections to these, times from publish to tail.

Knows: event streams over raw sockets, the sockets of a process. Must never know: what a test expects.

By hand, with as many as descriptors allow (ulimit -n): python -m tests.cluster.many_tails --tails 8000
"""

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

from tests.cluster.clusters import ShardServers, cluster
from tests.server import Server
from weir import AsyncClient
from weir._sse import RETRY_MS_DEFAULT, EventParser

GATEWAYS: Final = 2
STREAMS: Final = 300
# An entry in each of these streams, one after the other.
PUBLISHED: Final = 100
ARRIVED_S_MAX: Final = 60.0
# An entry, with all attempts.
PUBLISHED_S_MAX: Final = 120.0
# Of some tails; those that are not open by then come back meanwhile.
OPENED_S_MAX: Final = 30.0
_AT_ONCE: Final = 200


class TailsReport(msgspec.Struct):
    """`connections` are those of each gateway to all servers, `killed` those for notifications that were
    ended; times in milliseconds, from publish to tail.

    `wanted` are tails of streams with an entry, `received` those of them that got it once; `missed` names the
    others. `ended` counts the connections that were over, by reason: their tails came back.
    """

    tails: int
    connections: list[int]
    killed: int
    received: int
    wanted: int
    missed: list[str]
    ended: dict[str, int]
    median_ms: float
    p99_ms: float


class Tail:
    """One event stream, which goes on after each end, as browsers do. `seen` are the IDs of entries,
    `arrived_s` is when each came, `ends` is why a connection was over, and how long after the beginning.
    """

    def __init__(self, port: int, stream: str) -> None:
        self.stream = stream
        self.seen: list[str] = []
        self.arrived_s: list[float] = []
        self.ends: list[tuple[str, float]] = []
        self.is_open = False
        self._port = port
        self._began_s = time.perf_counter()
        self._cursor = "0"
        self._retry_ms = RETRY_MS_DEFAULT

    def __str__(self) -> str:
        ends = ", ".join(f"{reason} after {after_s:.1f} s" for reason, after_s in self.ends) or "no end"
        state = "open" if self.is_open else "not open"
        return f"{self.stream} at port {self._port}: {len(self.arrived_s)} entries, {state}, {ends}"

    async def follow(self) -> None:
        """Read, and come back after each end, until cancelled."""
        while True:
            try:
                reason = await self._read()
            except (OSError, asyncio.IncompleteReadError) as error:
                reason = type(error).__name__
            self.is_open = False
            self.ends.append((reason, time.perf_counter() - self._began_s))
            await asyncio.sleep(self._retry_ms / 1e3)

    async def _read(self) -> str:
        """Follow over one connection. Returns why it was over."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            path = f"/v1/streams/{self.stream}/tail?after=0"
            headers = f"accept: text/event-stream\r\nlast-event-id: {self._cursor}"
            head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n\r\n"
            writer.write(head.encode())
            status = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            if status != "200":
                return f"status {status}"
            return await self._read_events(reader)
        finally:
            writer.close()
            # Otherwise a loop that ends leaves the socket open.
            with suppress(OSError):
                await writer.wait_closed()

    async def _read_events(self, reader: asyncio.StreamReader) -> str:
        """The first event with an ID says that it is subscribed. Lines that frame chunks mean nothing."""
        parser = EventParser()
        while piece := await reader.read(1 << 16):
            for event in parser.feed(piece):
                if event.name == "end":
                    self._retry_ms = event.retry_ms or self._retry_ms
                    return str(json.loads(event.data)["reason"])
                if event.name == "entry":
                    self.arrived_s.append(time.perf_counter())
                    self.seen.append(str(event.id))
                if event.id is not None:
                    self._cursor, self.is_open = event.id, True
        return "closed"


async def until(is_so: Callable[[], bool], seconds: float) -> None:
    """Wait until it is, at most that long."""
    ends_s = time.perf_counter() + seconds
    while not is_so() and time.perf_counter() < ends_s:  # noqa: ASYNC110 - many
        await asyncio.sleep(0.05)


def connections_of(shards: Sequence[ShardServers], servers: Sequence[Server]) -> list[int]:
    """How many connections of each gateway the servers have, by the ends of its process."""
    ports = {int(server.address.port) for shard in shards for server in shard.servers}
    return [_connections_to(ports, server.pid) for server in servers]


def _connections_to(ports: set[int], pid: int) -> int:
    """The connections of a process to any of these ports, as the system has them."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()))
        except FileNotFoundError:
            # Closed meanwhile.
            continue
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[2].split(":")[1], 16) in ports and f"socket:[{row[9]}]" in inodes for row in rows)


async def measure(
    shards: Sequence[ShardServers], servers: Sequence[Server], tails: int, kill_ms: int = 0
) -> TailsReport:
    """Open `tails` at each gateway, publish through the other one, and see what comes when. Unless `kill_ms`
    is 0, subscriptions are killed that often from the first publish on.
    """
    opened: list[Tail] = []
    killed: list[int] = []
    async with asyncio.TaskGroup() as group:
        following: list[asyncio.Task[None]] = []
        for server in servers:
            for first in range(0, tails, _AT_ONCE):
                numbers = range(first, min(tails, first + _AT_ONCE))
                some = [Tail(server.port, f"tailed-{n % STREAMS}") for n in numbers]
                following += [group.create_task(tail.follow()) for tail in some]
                opened += some
                await until(lambda some=some: all(tail.is_open for tail in some), OPENED_S_MAX)  # type: ignore[misc]
        connections = connections_of(shards, servers)
        if kill_ms:
            following.append(group.create_task(kill_subscriptions(shards, kill_ms, killed)))
        sent_s = await publish(servers)
        waiting = [tail for tail in opened if tail.stream in sent_s]
        await until(lambda: all(tail.arrived_s for tail in waiting), ARRIVED_S_MAX)
        both = zip(connections, connections_of(shards, servers), strict=True)
        for one in following:
            one.cancel()
    return report_of(opened, sent_s, [max(pair) for pair in both], sum(killed))


async def kill_subscriptions(shards: Sequence[ShardServers], every_ms: int, killed: list[int]) -> None:
    """End the connections for notifications again and again, until cancelled; `killed` gets how many."""

    def kill() -> int:
        ends = [
            server.call("CLIENT", "KILL", "TYPE", "pubsub") for shard in shards for server in shard.servers
        ]
        return sum(ends)

    while True:
        killed.append(await asyncio.to_thread(kill))
        await asyncio.sleep(every_ms / 1e3)


async def publish(servers: Sequence[Server]) -> dict[str, float]:
    """An entry in each of some streams, once, also where a busy machine takes several attempts. Returns when
    it was sent first, by stream.
    """
    sent_s: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(server.url, retry_s=PUBLISHED_S_MAX))
            for server in servers
        ]
        for number in range(PUBLISHED):
            stream, client = f"tailed-{number % STREAMS}", clients[number % len(clients)]
            sent_s[stream] = time.perf_counter()
            await client.publish(stream, {"n": str(number)})
    return sent_s


def report_of(
    tails: Sequence[Tail], sent_s: Mapping[str, float], connections: list[int], killed: int = 0
) -> TailsReport:
    """What the tails found, of entries that were sent then."""
    waiting = [tail for tail in tails if tail.stream in sent_s]
    missed = [str(tail) for tail in waiting if len(tail.arrived_s) != 1]
    took_ms = [(one - sent_s[tail.stream]) * 1e3 for tail in waiting for one in tail.arrived_s]
    # Of fewer than two there are no quantiles.
    took_ms = took_ms if len(took_ms) > 1 else [math.nan] * 2
    return TailsReport(
        tails=len(tails),
        connections=connections,
        killed=killed,
        received=len(waiting) - len(missed),
        wanted=len(waiting),
        missed=missed,
        ended=dict(Counter(reason for tail in tails for reason, _ in tail.ends)),
        median_ms=statistics.median(took_ms),
        p99_ms=statistics.quantiles(took_ms, n=100)[98],
    )


def run(folder: Path, tails: int, kill_ms: int = 0) -> TailsReport:
    """The cluster, the gateways, and what they do."""
    with cluster(folder) as shards, ExitStack() as stack:
        seeds = ",".join(str(server.address) for shard in shards for server in shard.servers)
        words = ("--backend", f"redis+cluster://{seeds}", "--set", "log_requests=none")
        servers = [stack.enter_context(Server(folder / f"gateway-{n}", *words)) for n in range(GATEWAYS)]
        return asyncio.run(measure(shards, servers, tails, kill_ms))


def main() -> int:
    """Run it, and print what was found; 1 where a tail missed an entry."""
    parser = argparse.ArgumentParser(description="Many tails over a cluster.")
    parser.add_argument("--tails", type=int, default=1_000, help="at each gateway")
    parser.add_argument("--kill-ms", type=int, default=0, help="end subscriptions that often; 0: never")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), given.tails, given.kill_ms)
    for name, value in msgspec.structs.asdict(report).items():
        if name == "missed":
            value = "".join(f"\n    {one}" for one in report.missed) or "none"  # noqa: PLW2901
        print(f"{name.replace('_', ' '):>12}  {value}")  # noqa: T201
    return 0 if report.received == report.wanted else 1


if __name__ == "__main__":
    sys.exit(main())
