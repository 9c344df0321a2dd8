"""A gateway over a backend beside one with its own log: entries a second, and processor time at each hop.

The same load over HTTP for each arrangement, from one process that is not counted:

    embedded        one gateway with its own log (fsync everysec)
    server          one gateway over one Valkey, durability memory
    cluster         one gateway over three primaries with a replica each, durability replicated:1
    two gateways    two over such a cluster, each with the whole load at the same time

    batch   batches of 100 entries, each connection with a stream of its own
    single  single entries, one request at a time on each connection
    group   the entries of `batch`, read by a group 100 at a time and acknowledged
    tails   batches of 100 that tails follow by server-sent events; an entry is counted at each tail
    lone    single entries that tails follow: milliseconds from the request to the arrival at each tail
    idle    tails of streams without entries: processor time a second, less what there is without them

Processor times are user and system time from /proc/<pid>/stat, of the gateways and of all servers. They hold
on a busy machine too; entries a second do not, and are limited by the client where there are few cores. So
two gateways are compared with one only on eight cores or more.

    python -m bench.scale [--quick] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.fronts import BATCH, BODY, CONNECTIONS, MARK, answer, cpu_s, follow, open_tail, request
from tests.cluster.clusters import cluster
from tests.cluster.servers import BackendServer
from tests.server import Server

IDLE_STREAMS: Final = 100
IDLE_TAILS: Final = 1_000
# Between two lone entries: far more than one takes.
LONE_PAUSE_S: Final = 0.05
BATCH_GOAL: Final = 0.8
GATEWAYS_GOAL: Final = 1.7
CORES_MIN: Final = 8


class ScaleLoad(msgspec.Struct, frozen=True):
    """How much each gateway is given. `entries` of `batch`, as many for `group`; `tails` for `lone` too."""

    entries: int
    singles: int
    tailed: int
    tails: int
    lone: int
    idle_s: float


FULL: Final = ScaleLoad(entries=200_000, singles=20_000, tailed=4_000, tails=50, lone=400, idle_s=15.0)
QUICK: Final = ScaleLoad(entries=20_000, singles=2_000, tailed=500, tails=20, lone=40, idle_s=5.0)


class StepCost(msgspec.Struct, frozen=True):
    """Of all gateways together: entries a second, and microseconds of processor time for an entry."""

    per_s: float
    gateway_us: float
    servers_us: float


class Arrangement(msgspec.Struct):
    """What was measured; `idle_*` are milliseconds of processor time a second for 1,000 idle tails."""

    steps: dict[str, StepCost]
    lone_p50_ms: float
    lone_p99_ms: float
    idle_gateway_ms: float
    idle_servers_ms: float


class Hops(msgspec.Struct, frozen=True):
    """The processes of an arrangement."""

    ports: Sequence[int]
    gateways: Sequence[int]
    servers: Sequence[int]

    def used_s(self) -> tuple[float, float]:
        """The processor time of the gateways, and of the servers."""
        return sum(map(cpu_s, self.gateways)), sum(map(cpu_s, self.servers))


# ---- the load


def entries_path(number: int) -> str:
    """Where a connection publishes."""
    return f"/v1/streams/scale-{number}/entries"


async def post(port: int, requests: Sequence[bytes]) -> None:
    """Send requests one after the other over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for one in requests:
        writer.write(one)
        await answer(reader)
    writer.close()


async def batches(port: int, load: ScaleLoad) -> None:
    """Publish in batches."""
    lines = (BODY + b"\n") * BATCH
    each = load.entries // BATCH // CONNECTIONS
    made = [request(entries_path(number), lines, "application/x-ndjson") for number in range(CONNECTIONS)]
    await asyncio.gather(*[post(port, [one] * each) for one in made])


async def singles(port: int, load: ScaleLoad) -> None:
    """Publish one by one."""
    made = [request(entries_path(number), BODY) for number in range(CONNECTIONS)]
    await asyncio.gather(*[post(port, [one] * (load.singles // CONNECTIONS)) for one in made])


async def work(port: int, load: ScaleLoad) -> None:
    """Read what the batches brought with a group, and acknowledge it."""
    await asyncio.gather(
        *[consume(port, number, load.entries // CONNECTIONS) for number in range(CONNECTIONS)]
    )


async def consume(port: int, number: int, count: int) -> None:
    """Handle entries of one stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    group = f"/v1/streams/scale-{number}/groups/g"

    async def ask(path: str, body: object) -> Any:  # noqa: ANN401 - JSON
        writer.write(request(path, json.dumps(body).encode()))
        return json.loads(await answer(reader))

    while count > 0:
        page = await ask(f"{group}/consumers/{port}/read", {"count": BATCH})
        taken = [one["id"] for one in page["entries"]]
        count -= len(taken)
        if not taken:
            break
        await ask(f"{group}/ack", {"ids": taken})
    writer.close()


async def prepare(port: int) -> None:
    """Make the streams, with a group each, and no entries of before."""
    for number in range(CONNECTIONS):
        group = request(f"/v1/streams/scale-{number}/groups/g", b'{"start":"0"}').replace(b"POST", b"PUT", 1)
        await post(port, [group])


async def lone(port: int, load: ScaleLoad) -> list[float]:
    """Publish one entry after the other: the milliseconds after which each tail had each of them."""
    stream, sent_s, found = f"lone-{port}", list[float](), list[float]()
    opened = asyncio.Semaphore(0)

    async def tail() -> None:
        reader, writer = await open_tail(port, stream)
        opened.release()
        for number in range(load.lone):
            await reader.readuntil(MARK)
            found.append((time.perf_counter() - sent_s[number]) * 1e3)
        writer.close()

    following = [asyncio.create_task(tail()) for _ in range(load.tails)]
    for _ in following:
        await opened.acquire()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(load.lone):
        sent_s.append(time.perf_counter())
        writer.write(request(f"/v1/streams/{stream}/entries", BODY))
        await answer(reader)
        await asyncio.sleep(LONE_PAUSE_S)
    await asyncio.gather(*following)
    writer.close()
    return found


@contextmanager
def idle_tails(port: int) -> Iterator[Callable[[], Awaitable[None]]]:
    """Event streams that get nothing: the function opens them."""
    writers: list[asyncio.StreamWriter] = []

    async def begin() -> None:
        for number in range(IDLE_TAILS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            path = f"/v1/streams/idle-{number % IDLE_STREAMS}/tail?after=$"
            writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            writers.append(writer)

    try:
        yield begin
    finally:
        for writer in writers:
            writer.close()


# ---- measuring


async def cost(hops: Hops, entries: int, step: Callable[[int], Awaitable[None]]) -> StepCost:
    """The cost of one step, at all gateways at once; `entries` are those of one."""
    before, began_s = hops.used_s(), time.perf_counter()
    await asyncio.gather(*map(step, hops.ports))
    took_s, after = time.perf_counter() - began_s, hops.used_s()
    count = entries * len(hops.ports)
    gateway_s, servers_s = (one - other for one, other in zip(after, before, strict=True))
    return StepCost(count / took_s, gateway_s * 1e6 / count, servers_s * 1e6 / count)


async def idle_cost(hops: Hops, seconds: float) -> tuple[float, float]:
    """Milliseconds of processor time a second for 1,000 idle tails of the first gateway."""

    async def used() -> tuple[float, float]:
        before = hops.used_s()
        await asyncio.sleep(seconds)
        gateway_s, servers_s = (one - other for one, other in zip(hops.used_s(), before, strict=True))
        return gateway_s * 1e3 / seconds, servers_s * 1e3 / seconds

    without = await used()
    with idle_tails(hops.ports[0]) as begin:
        await begin()
        await asyncio.sleep(1.0)
        gateway_ms, servers_ms = await used()
    return gateway_ms - without[0], servers_ms - without[1]


async def measure(hops: Hops, load: ScaleLoad) -> Arrangement:
    """All steps, in the order in which they need each other."""
    await prepare(hops.ports[0])
    steps: dict[str, tuple[int, Callable[[int], Awaitable[None]]]] = {
        "batch": (load.entries, lambda port: batches(port, load)),
        "group": (load.entries, lambda port: work(port, load)),
        "single": (load.singles, lambda port: singles(port, load)),
        "tails": (
            load.tailed * load.tails,
            lambda port: follow(port, load.tailed, load.tails, f"live-{port}"),
        ),
    }
    # Scripts are loaded, and the code is warm.
    await asyncio.gather(*[singles(port, msgspec.structs.replace(load, singles=500)) for port in hops.ports])
    found = {name: await cost(hops, entries, step) for name, (entries, step) in steps.items()}
    late_ms = [ms for one in await asyncio.gather(*[lone(port, load) for port in hops.ports]) for ms in one]
    percentiles = statistics.quantiles(late_ms, n=100)
    return Arrangement(found, percentiles[49], percentiles[98], *await idle_cost(hops, load.idle_s))


def gateway_words(url: str, durability: str) -> list[str]:
    """The options of a gateway over a backend."""
    return ["--backend", url, "--set", f"backend_durability={durability}"]


def run(folder: Path, load: ScaleLoad) -> dict[str, Arrangement]:
    """Each arrangement, one after the other."""
    quiet = ["--set", "log_requests=none"]

    def measured(options: Sequence[Sequence[str]], servers: Sequence[BackendServer] = ()) -> Arrangement:
        with ExitStack() as stack:
            made = [Server(Path(tempfile.mkdtemp(dir=folder)) / "data", *quiet, *one) for one in options]
            for server in made:
                stack.enter_context(server)
            pids = [server.pid for server in made]
            hops = Hops([server.port for server in made], pids, [one.pid for one in servers])
            return asyncio.run(measure(hops, load))

    found = {"embedded": measured([[]])}
    with BackendServer(folder, "valkey") as server:
        found["server"] = measured([gateway_words(server.url, "memory")], [server])
    for name, count in (("cluster", 1), ("two gateways", 2)):
        with cluster(Path(tempfile.mkdtemp(dir=folder))) as shards:
            servers = [one for shard in shards for one in shard.servers]
            url = "redis+cluster://" + ",".join(str(one.address) for one in servers)
            found[name] = measured([gateway_words(url, "replicated:1")] * count, servers)
    return found


def goals(found: dict[str, Arrangement]) -> dict[str, float]:
    """What a gateway over a cluster does beside one with its own log; two beside one where cores allow."""
    embedded, one, two = (found[name].steps["batch"] for name in ("embedded", "cluster", "two gateways"))
    ratios = {f"batch, a gateway over the cluster / embedded (goal {BATCH_GOAL})": one.per_s / embedded.per_s}
    if (os.cpu_count() or 1) >= CORES_MIN:
        ratios[f"batch, two gateways / one (goal {GATEWAYS_GOAL})"] = two.per_s / one.per_s
    return ratios


def table(found: dict[str, Arrangement]) -> str:
    """A row for each arrangement and step."""
    lines = [f"{'':<14}{'':<8}{'entries/s':>12}{'/ embedded':>12}{'gateway us':>12}{'servers us':>12}"]
    for name, one in found.items():
        for step, cost_of in one.steps.items():
            ratio = cost_of.per_s / found["embedded"].steps[step].per_s
            lines.append(
                f"{name:<14}{step:<8}{cost_of.per_s:>12,.0f}{ratio:>12.2f}"
                f"{cost_of.gateway_us:>12.1f}{cost_of.servers_us:>12.1f}"
            )
        lines.append(
            f"{name:<14}lone entries to tails: p50 {one.lone_p50_ms:.2f} ms, p99 {one.lone_p99_ms:.2f} ms "
            f"({one.lone_p99_ms / found['embedded'].lone_p99_ms:.2f} x embedded)"
        )
        lines.append(
            f"{name:<14}1,000 idle tails: gateway {one.idle_gateway_ms:.1f} ms/s, "
            f"servers {one.idle_servers_ms:.1f} ms/s"
        )
    return "\n".join([*lines, *[f"{ratio:.2f}  {name}" for name, ratio in goals(found).items()]])


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description="A gateway over a backend beside the embedded engine.")
    parser.add_argument("--quick", action="store_true", help="to see that everything runs")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), QUICK if given.quick else FULL)
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps(msgspec.to_builtins(found), indent=1))


if __name__ == "__main__":
    main()
