"""What fronts take off the engine's core: its processor time for each publish and for each delivered entry.

Runs a gateway of one process and one with fronts, each with the same load over HTTP: single publishes on kept
connections, then batches that tails follow by server-sent events. The time is that of the process with the
engine, from /proc/<pid>/stat (user and system, in ticks of 10 ms), so the load must be long.

    python -m bench.fronts [--publishes 20000] [--connections 16] [--entries 2000] [--tails 50] [--rounds 3]

The ratio is what matters: with N fronts the engine's core has room for 1/ratio of the load. What a machine of
more cores has room for is a model: one core for the engine, one for each front, each used to four fifths.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.fronts.processes import Fronted
from tests.server import Server

CONNECTIONS: Final = 16
BATCH: Final = 100
BODY: Final = b'{"fields":{"sensor-id":"1234","temperature":"19.8"}}'
# Once in each entry that is delivered.
MARK: Final = b'"fields"'
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    """How much is done in one round."""

    publishes: int
    connections: int
    entries: int
    tails: int


class Cost(NamedTuple):
    """Processor time in microseconds."""

    publish: float
    delivery: float


class Costs(NamedTuple):
    """Of the process with the engine, and of the fronts together; without fronts these use nothing."""

    engine: Cost
    fronts: Cost


# Processes are planned for this part of a core: beyond it latency grows.
USED_MAX: Final = 0.8
CORES: Final = (4, 8, 16)


def room(cores: int, engine_us: float, fronts_us: float) -> float:
    """How many a second a machine has room for: one core for the engine, the others for fronts."""
    return USED_MAX * 1e6 * min(1 / engine_us, (cores - 1) / fronts_us)


def cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def request(path: str, body: bytes, kind: str = "application/json") -> bytes:
    """A POST."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read one answer, and return its body. Raises RuntimeError for a refusal."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"HTTP/1.1 2"):
        raise RuntimeError(f"{head!r} {body!r}")
    return body


async def publish(port: int, count: int, connections: int) -> None:
    """Publish single entries over `connections` connections, one request at a time on each."""

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(number):
            writer.write(request("/v1/streams/single/entries", BODY))
            await answer(reader)
        writer.close()

    await asyncio.gather(*[one(count // connections) for _ in range(connections)])


async def open_tail(port: int, stream: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Follow what is published from now on, by server-sent events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/streams/{stream}/tail?after=$ HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b"id: ")
    return reader, writer


async def follow(port: int, entries: int, tails: int, stream: str = "live") -> None:
    """Publish batches that tails follow, until each has all entries."""
    opened = asyncio.Semaphore(0)

    async def tail() -> None:
        reader, writer = await open_tail(port, stream)
        opened.release()
        left, rest = entries, b""
        while left > 0:
            read = rest + await reader.read(1 << 20)
            left -= read.count(MARK)
            # A mark may come in two pieces.
            rest = read[len(read) - len(MARK) + 1 :] if len(read) >= len(MARK) else read
        writer.close()

    following = [asyncio.create_task(tail()) for _ in range(tails)]
    for _ in range(tails):
        await opened.acquire()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (BODY + b"\n") * BATCH
    for _ in range(entries // BATCH):
        writer.write(request(f"/v1/streams/{stream}/entries", lines, "application/x-ndjson"))
        await answer(reader)
        await asyncio.sleep(0.01)
    await asyncio.gather(*following)
    writer.close()


async def measure(engine: int, fronts: Sequence[int], port: int, load: Load) -> Costs:
    """The costs of one round, by the processes' IDs."""

    async def cost(work: Callable[[], Awaitable[None]], count: int) -> tuple[float, float]:
        def used_s() -> tuple[float, float]:
            return cpu_s(engine), sum(map(cpu_s, fronts))

        before = used_s()
        await work()
        engine_s, fronts_s = (one - other for one, other in zip(used_s(), before, strict=True))
        return engine_s * 1e6 / count, fronts_s * 1e6 / count

    publishing = await cost(lambda: publish(port, load.publishes, load.connections), load.publishes)
    delivered = load.entries * load.tails
    delivering = await cost(lambda: follow(port, load.entries, load.tails), delivered)
    return Costs(*[Cost(*both) for both in zip(publishing, delivering, strict=True)])


def rounds(server: Server, load: Load, count: int) -> Costs:
    """The medians of some rounds, after one that warms up."""
    with server:
        engine, fronts = server.pid, list[int]()
        if isinstance(server, Fronted):
            engine, fronts = server.engine_pid, server.front_pids
        found = [asyncio.run(measure(engine, fronts, server.port, load)) for _ in range(count + 1)][1:]
        if isinstance(server, Fronted):
            server.kill_all()
    return Costs(*[_medians(costs) for costs in zip(*found, strict=True)])


def _medians(costs: Sequence[Cost]) -> Cost:
    return Cost(*[statistics.median(values) for values in zip(*costs, strict=True)])


def main() -> None:
    """Print the costs, and their ratio, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publishes", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--entries", type=int, default=2_000)
    parser.add_argument("--tails", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    load = Load(given.publishes, given.connections, given.entries, given.tails)
    with tempfile.TemporaryDirectory() as folder:
        alone = Server(Path(folder) / "alone")
        one = rounds(alone, load, given.rounds).engine
        fronted = Fronted(Path(folder) / "fronted")
        several = rounds(fronted, load, given.rounds)
    ratio = Cost(*[after / before for before, after in zip(one, several.engine, strict=True)])
    rooms = {
        cores: Cost(*[room(cores, engine, fronts) for engine, fronts in zip(*several, strict=True)])._asdict()
        for cores in CORES
    }
    print(
        json.dumps(
            {
                "load": load._asdict(),
                "rounds": given.rounds,
                "one_process_us": one._asdict(),
                "engine_process_us": several.engine._asdict(),
                "fronts_us": several.fronts._asdict(),
                "ratio": ratio._asdict(),
                "one_process_room_per_s": Cost(*[USED_MAX * 1e6 / cost for cost in one])._asdict(),
                "room_per_s_by_cores": rooms,
            }
        )
    )


if __name__ == "__main__":
    main()
