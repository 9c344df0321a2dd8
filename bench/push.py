"""From publish to push: 10 000 entries a second through one group, over the socket and through Redis.

Two producers stamp the time in a field, ten consumers read batches of up to 10 000 and acknowledge them; all
clients and the server share the machine. Weir: a socket for each, `publish` and `consume`. Redis: the asyncio
client of redis-py, a pipeline of XADD a tick, XREADGROUP and XACK. Rounds alternate; with `--standing N`
entries that a consumer of the same group had been given before and never acknowledged.

    python -m bench push [--rounds 3] [--seconds 8] [--rate 10000] [--standing 0]
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import redis.asyncio as aioredis
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from bench.peers import redis_server
from tests.server import Server

PRODUCERS = 2
CONSUMERS = 10
STREAM, GROUP = "bench", "workers"
BATCH = 10_000
TICK_S = 0.001
# The classical figures of such a test: shares within 1, 2, 3, 4 ms and beyond.
CLASSICAL = (74.11, 25.80, 0.06, 0.01, 0.02)

Produce = Callable[[list[str]], Awaitable[None]]


class Plan(NamedTuple):
    """What one round does."""

    port: int
    seconds: float
    rate: int
    standing: int


class Entry(msgspec.Struct):
    """As it is pushed."""

    id: str
    fields: dict[str, str]


class Frame(msgspec.Struct):
    """What of a frame counts here."""

    op: str
    entries: list[Entry] = []


decode = msgspec.json.Decoder(Frame).decode
encode = msgspec.json.Encoder().encode


async def pace(plan: Plan, produce: Produce) -> None:
    """Publish what is due, a tick at a time, each entry with the time of its tick."""
    rate = plan.rate / PRODUCERS
    began, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < plan.seconds:
        due = int(passed * rate) - sent
        if due:
            sent += due
            await produce([str(time.time_ns())] * due)
        await asyncio.sleep(TICK_S)


def note(latencies: list[float], stamps: list[str]) -> None:
    """Enter how old these are, in milliseconds."""
    now = time.time_ns()
    latencies.extend((now - int(stamp)) / 1e6 for stamp in stamps)


# ---- over the socket


def socket_of(plan: Plan) -> connect:
    """A socket, about to be opened."""
    url = f"ws://127.0.0.1:{plan.port}/v1/ws"
    return connect(url, compression=None, max_size=None, max_queue=None)


async def weir_producer(plan: Plan) -> None:
    """Publish a frame a tick."""
    async with socket_of(plan) as socket:

        async def drop_answers() -> None:
            async for _ in socket:
                pass

        dropping = asyncio.create_task(drop_answers())

        async def produce(stamps: list[str]) -> None:
            entries = [{"fields": {"t": stamp}} for stamp in stamps]
            await socket.send(encode({"op": "publish", "stream": STREAM, "entries": entries}), text=True)

        await pace(plan, produce)
        dropping.cancel()


async def weir_consumer(plan: Plan, name: str, latencies: list[float]) -> None:
    """Consume until a while after the last."""
    async with socket_of(plan) as socket:
        where = {"stream": STREAM, "group": GROUP, "consumer": name, "create": "0"}
        frame = {"op": "consume", "sub": "w", "credit": BATCH, "batch_max": BATCH, **where}
        await socket.send(encode(frame), text=True)
        await asyncio.wait_for(take(socket, latencies), plan.seconds + 3)


async def take(socket: ClientConnection, latencies: list[float]) -> None:
    """Acknowledge what comes."""
    async for message in socket:
        frame = decode(message)
        if frame.op == "entries":
            note(latencies, [entry.fields["t"] for entry in frame.entries])
            ids = [entry.id for entry in frame.entries]
            await socket.send(encode({"op": "ack", "sub": "w", "ids": ids}), text=True)


# ---- through Redis


async def redis_producer(plan: Plan) -> None:
    """Publish a pipeline a tick."""
    client = aioredis.Redis(port=plan.port)

    async def produce(stamps: list[str]) -> None:
        pipeline = client.pipeline(transaction=False)
        for stamp in stamps:
            pipeline.xadd(STREAM, {"t": stamp})
        await pipeline.execute()

    await pace(plan, produce)
    await client.aclose()


async def redis_consumer(plan: Plan, name: str, latencies: list[float]) -> None:
    """Read and acknowledge until a while after the last."""
    client = aioredis.Redis(port=plan.port)
    deadline = time.perf_counter() + plan.seconds + 3
    while time.perf_counter() < deadline:
        found: Any = await client.xreadgroup(GROUP, name, {STREAM: ">"}, count=BATCH, block=1_000)
        if found:
            entries = found[0][1]
            note(latencies, [fields[b"t"].decode() for _, fields in entries])
            await client.xack(STREAM, GROUP, *[entry_id for entry_id, _ in entries])
    await client.aclose()


# ---- rounds

PARTS = {
    "weir": (weir_producer, weir_consumer),
    "redis": (redis_producer, redis_consumer),
}


def produce_all(kind: str, plan: Plan) -> None:
    """A process of producers."""

    async def run() -> None:
        await asyncio.gather(*[PARTS[kind][0](plan) for _ in range(PRODUCERS)])

    uvloop.run(run())


def consume_all(kind: str, plan: Plan, results: "Queue[list[float]]") -> None:
    """A process of consumers; it answers the latencies in milliseconds."""
    latencies: list[float] = []

    async def run() -> None:
        names = [f"c{number}" for number in range(CONSUMERS)]
        works = [PARTS[kind][1](plan, name, latencies) for name in names]
        await asyncio.gather(*works, return_exceptions=True)

    uvloop.run(run())
    results.put(latencies)


def one_round(kind: str, plan: Plan) -> list[float]:
    """The latencies of a round, in milliseconds."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    consuming = context.Process(target=consume_all, args=(kind, plan, results))
    producing = context.Process(target=produce_all, args=(kind, plan))
    consuming.start()
    time.sleep(1.5)
    producing.start()
    latencies: list[float] = results.get(timeout=plan.seconds + 60)
    producing.join()
    consuming.join()
    return latencies


def stand(kind: str, plan: Plan) -> None:
    """Make the group, and give so many entries to a consumer that never acknowledges."""
    body = [["XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM"]]
    for _ in range(plan.standing // 1_000):
        body += [["XADD", STREAM, "*", "t", "0"]] * 1_000
        body += [["XREADGROUP", "GROUP", GROUP, "gone", "COUNT", "1000", "STREAMS", STREAM, ">"]]
    if kind == "weir":
        import httpx  # noqa: PLC0415 - for this alone

        with httpx.Client(base_url=f"http://127.0.0.1:{plan.port}", timeout=120) as http:
            for start in range(0, len(body), 5_005):
                http.post("/v1/commands/pipeline", json=body[start : start + 5_005]).raise_for_status()
        return
    import redis as blocking  # noqa: PLC0415 - the same

    client = blocking.Redis(port=plan.port)
    for start in range(0, len(body), 5_005):
        pipeline = client.pipeline(transaction=False)
        for words in body[start : start + 5_005]:
            pipeline.execute_command(*words)  # type: ignore[no-untyped-call]
        pipeline.execute()


class Outcome(NamedTuple):
    """Of one round, in milliseconds and shares."""

    entries: int
    p50: float
    p99: float
    p999: float
    shares: tuple[float, ...]


def outcome(latencies: list[float]) -> Outcome:
    """What they come to."""
    ordered = sorted(latencies)
    shares = [0] * 5
    for latency in ordered:
        shares[min(4, int(latency))] += 1
    count = len(ordered)
    return Outcome(
        count,
        ordered[count // 2],
        ordered[count * 99 // 100],
        ordered[count * 999 // 1000],
        tuple(100 * share / count for share in shares),
    )


def run(kind: str, options: argparse.Namespace) -> Outcome:
    """A round on a fresh server."""
    if kind == "redis":
        with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as (port, _):
            plan = Plan(port, options.seconds, options.rate, options.standing)
            stand(kind, plan)
            return outcome(one_round(kind, plan))
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory) / "data", "--set", "pipeline_commands_max=20000")
        with server:
            plan = Plan(server.port, options.seconds, options.rate, options.standing)
            stand(kind, plan)
            return outcome(one_round(kind, plan))


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--standing", type=int, default=0)
    options = parser.parse_args(sys.argv[1:])
    found: dict[str, list[Outcome]] = {"weir": [], "redis": []}
    for number in range(options.rounds):
        for kind in ("weir", "redis") if number % 2 == 0 else ("redis", "weir"):
            found[kind].append(run(kind, options))
            told = found[kind][-1]
            shares = " / ".join(f"{share:.2f}" for share in told.shares)
            print(
                f"{kind:6} {told.entries:7} entries  p50 {told.p50:6.2f}  p99 {told.p99:6.2f}  "
                f"p99.9 {told.p999:7.2f} ms   within 1, 2, 3, 4 ms, beyond: {shares} %",
                flush=True,
            )
    ratios = {
        name: statistics.median(getattr(one, name) for one in found["weir"])
        / statistics.median(getattr(one, name) for one in found["redis"])
        for name in ("p50", "p99", "p999")
    }
    print("ours ÷ theirs, medians:", "  ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    print("the classical figures:", " / ".join(map(str, CLASSICAL)), "%")
    rounds = {kind: [one._asdict() for one in every] for kind, every in found.items()}
    print(json.dumps({"bench": "push", "standing": options.standing, "ratios": ratios, "rounds": rounds}))


if __name__ == "__main__":
    main()
