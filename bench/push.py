"""From publish to push (P5, P6): 10 000 entries a second through one group, beside Redis in the same run.

Two producers stamp the time in a field, ten consumers read batches of up to 10 000 and acknowledge them.
Producers are one process, consumers another, and the server shares the machine with them.

    weir      a socket for each: `publish` and `consume` frames                   (bench/lean.py)
    longpoll  a keep-alive connection for each: POST …/entries, …/read, …/ack     (bench/lean.py)
    redis     redis-py's asyncio client with hiredis for each: a pipeline of XADD a tick, XREADGROUP BLOCK,
              XACK

All run on uvloop, do no more than that, and let go of the first second. Rounds alternate; a round's figures
are those of its entries, a table's the median of its rounds. `--standing N` entries were given before to
another consumer of the group that never acknowledges; with it `weir` runs beside itself without them.

    python -m bench.push [--rounds 3] [--seconds 8] [--rate 10000] [--standing 0] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import redis as blocking
import redis.asyncio as aioredis
import uvloop
from redis.utils import HIREDIS_AVAILABLE

from bench.lean import Http, Socket
from bench.peers import cpu_s_of, redis_server
from tests.server import Server

PRODUCERS: Final = 2
CONSUMERS: Final = 10
STREAM, GROUP = "bench", "workers"
BATCH: Final = 10_000
TICK_S: Final = 0.001
WARM_UP_S: Final = 1.0
# A server that uses less of a second has nothing to do.
IDLE_CPU_S: Final = 0.05
SETTLE_S_MAX: Final = 60
LINGER_S: Final = 1.0
# Consumers have connected and wait before the first entry is published.
STARTING_S: Final = 1.0
# The classical figures of such a test: shares within 1, 2, 3, 4 ms and beyond.
CLASSICAL: Final = (74.11, 25.80, 0.06, 0.01, 0.02)
NAMES: Final = {
    "weir": "Weir, WebSocket",
    "longpoll": "Weir, long-poll",
    "redis": "Redis, redis-py asyncio with hiredis",
    "with": "with them",
    "without": "without",
    "nats": "nats-server, WebSocket",
}
# Where the curve of a round's latencies is drawn.
QUANTILES: Final = tuple(
    sorted({*(n / 100 for n in range(0, 100, 2)), *(1 - 10 ** (-n / 10) for n in range(10, 46))})
)

Produce = Callable[[str, int], Awaitable[None] | None]
# When a batch came, in nanoseconds, and the stamps of its entries.
Seen = list[tuple[int, list[int]]]


class PushPlan(NamedTuple):
    """What one round does."""

    port: int
    seconds: float
    rate: int


def is_over(over: Event, seen: Seen) -> bool:
    """Whether nothing more is published, and all that was has come: nothing did for a while."""
    return over.is_set() and not (seen and time.time_ns() - seen[-1][0] < LINGER_S * 1e9)


async def until_over(over: Event, seen: Seen) -> None:
    """Wait for that, seldom looking."""
    while not is_over(over, seen):  # noqa: ASYNC110 - another process sets it
        await asyncio.sleep(0.1)


class PushedEntry(msgspec.Struct):
    """As it is pushed, or read."""

    id: str
    fields: dict[str, str]


class PushedFrame(msgspec.Struct):
    """What of a frame, or an answer, counts here."""

    op: str = ""
    entries: list[PushedEntry] = []


decode = msgspec.json.Decoder(PushedFrame).decode


async def pace(plan: PushPlan, produce: Produce) -> int:
    """Publish what is due, a tick at a time, each entry with the time of its tick; how many they were."""
    rate = plan.rate / PRODUCERS
    began, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < plan.seconds + WARM_UP_S:
        due = int(passed * rate) - sent
        if due:
            sent += due
            sending = produce(str(time.time_ns()), due)
            if sending is not None:
                await sending
        await asyncio.sleep(TICK_S)
    return sent


def record(frame: PushedFrame, seen: Seen) -> bytes:
    """Record what came; returns the IDs to acknowledge, as the members of a JSON array."""
    seen.append((time.time_ns(), [int(entry.fields["t"]) for entry in frame.entries]))
    return '","'.join([entry.id for entry in frame.entries]).encode()


# ---- over the socket


async def socket_producer(plan: PushPlan) -> int:
    """Publish a frame a tick; the answers are not looked at."""
    socket = await Socket.connect(plan.port, "/v1/ws", lambda _, __: None)

    def produce(stamp: str, count: int) -> None:
        entries = b",".join([b'{"fields":{"t":"%b"}}' % stamp.encode()] * count)
        socket.send(b'{"op":"publish","stream":"%b","entries":[%b]}' % (STREAM.encode(), entries))

    sent = await pace(plan, produce)
    # Closing would take back what the server has not read.
    await asyncio.sleep(LINGER_S)
    socket.close()
    return sent


async def socket_consumer(plan: PushPlan, name: str, seen: Seen, over: Event) -> None:
    """Acknowledge what is pushed."""

    def heard(socket: Socket, message: bytes) -> None:
        frame = decode(message)
        if frame.op == "entries":
            socket.send(b'{"op":"ack","sub":"w","ids":["%b"]}' % record(frame, seen))
        assert frame.op != "error", message

    socket = await Socket.connect(plan.port, "/v1/ws", heard)
    where = {"stream": STREAM, "group": GROUP, "consumer": name, "create": "0"}
    socket.send(
        msgspec.json.encode({"op": "consume", "sub": "w", "credit": BATCH, "batch_max": BATCH, **where})
    )
    await until_over(over, seen)
    socket.close()


# ---- by long-poll


async def http_producer(plan: PushPlan) -> int:
    """Publish a request a tick."""
    answered = asyncio.Event()
    http = await Http.connect(plan.port, lambda _, __: answered.set())

    async def produce(stamp: str, count: int) -> None:
        answered.clear()
        body = b"\n".join([b'{"fields":{"t":"%b"}}' % stamp.encode()] * count)
        http.post(f"/v1/streams/{STREAM}/entries", body, "application/x-ndjson")
        await answered.wait()

    sent = await pace(plan, produce)
    http.close()
    return sent


async def http_consumer(plan: PushPlan, name: str, seen: Seen, over: Event) -> None:
    """Read and acknowledge in turns, on one connection."""
    group = f"/v1/streams/{STREAM}/groups/{GROUP}"
    read = f"{group}/consumers/{name}/read", b'{"count":%d,"wait":20000}' % BATCH
    reading = True

    def heard(http: Http, body: bytes) -> None:
        nonlocal reading
        frame = decode(body) if reading else None
        reading = frame is None or not frame.entries
        if frame is not None and frame.entries:
            http.post(f"{group}/ack", b'{"ids":["%b"]}' % record(frame, seen))
        else:
            http.post(*read)

    http = await Http.connect(plan.port, heard)
    http.post(*read)
    await until_over(over, seen)
    http.close()


# ---- through Redis


def fast_client(port: int) -> "aioredis.Redis":
    """A client whose parser is the one in C, as anybody has who measures redis-py."""
    assert HIREDIS_AVAILABLE, "hiredis is installed beside redis-py (make dev)"
    return aioredis.Redis(port=port)


async def redis_producer(plan: PushPlan) -> int:
    """Publish a pipeline a tick."""
    client = fast_client(plan.port)

    async def produce(stamp: str, count: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for _ in range(count):
            pipeline.xadd(STREAM, {"t": stamp})
        await pipeline.execute()

    sent = await pace(plan, produce)
    await client.aclose()
    return sent


async def redis_consumer(plan: PushPlan, name: str, seen: Seen, over: Event) -> None:
    """Read and acknowledge in turns."""
    client = fast_client(plan.port)
    while not is_over(over, seen):
        found: Any = await client.xreadgroup(GROUP, name, {STREAM: ">"}, count=BATCH, block=500)
        if found:
            entries = found[0][1]
            seen.append((time.time_ns(), [int(fields[b"t"]) for _, fields in entries]))
            await client.xack(STREAM, GROUP, *[entry_id for entry_id, _ in entries])
    await client.aclose()


# ---- one round

WAYS: Final = {
    "weir": (socket_producer, socket_consumer),
    "longpoll": (http_producer, http_consumer),
    "redis": (redis_producer, redis_consumer),
}


class Signals(NamedTuple):
    """Between the processes of a round: what is ready, when to begin, when to end."""

    ready: Event
    begin: Event
    over: Event


def produce_all(way: str, plan: PushPlan, signals: Signals, used: "Queue[tuple[int, float]]") -> None:
    """A process of producers; it returns how many entries it published, and its processor time in seconds."""

    async def run() -> int:
        return sum(await asyncio.gather(*[WAYS[way][0](plan) for _ in range(PRODUCERS)]))

    signals.ready.set()
    signals.begin.wait()
    before_s = own_cpu_s()
    sent = uvloop.run(run())
    used.put((sent, own_cpu_s() - before_s))


def consume_all(way: str, plan: PushPlan, signals: Signals, found: "Queue[tuple[Seen, float]]") -> None:
    """A process of consumers; it returns what came when, and the processor time that it used."""
    seen: Seen = []

    async def run() -> None:
        names = [f"c{number}" for number in range(CONSUMERS)]
        works = [WAYS[way][1](plan, name, seen, signals.over) for name in names]
        await asyncio.gather(*works)

    signals.ready.set()
    before_s = own_cpu_s()
    uvloop.run(run())
    found.put((seen, own_cpu_s() - before_s))


def own_cpu_s() -> float:
    """The processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class PushRound(msgspec.Struct):
    """Latencies in milliseconds, shares in percent, processor time in seconds a million entries."""

    entries: int
    p50: float
    p99: float
    p999: float
    shares: list[float]
    curve: list[float]
    server_cpu: float
    client_cpu: float

    def line(self) -> str:
        """For the terminal."""
        shares = " / ".join(f"{share:.2f}" for share in self.shares)
        return (
            f"{self.entries:7} entries  p50 {self.p50:6.2f}  p99 {self.p99:6.2f}  p99.9 {self.p999:7.2f} ms  "
            f"within 1, 2, 3, 4 ms, beyond: {shares} %  "
            f"CPU s/million: server {self.server_cpu:.1f}, clients {self.client_cpu:.1f}"
        )


def measured(seen: Seen, server_cpu_s: float, client_cpu_s: float) -> PushRound:
    """What a round comes to, without its first second."""
    count = sum(len(stamps) for _, stamps in seen)
    assert count, "something was consumed"
    warm_ns = min(min(stamps) for _, stamps in seen) + int(WARM_UP_S * 1e9)
    late = sorted((now - stamp) / 1e6 for now, stamps in seen for stamp in stamps if stamp >= warm_ns)
    shares = [0] * 5
    for latency in late:
        shares[min(4, int(latency))] += 1

    def at(quantile: float) -> float:
        return late[min(len(late) - 1, int(len(late) * quantile))]

    return PushRound(
        entries=len(late),
        p50=at(0.5),
        p99=at(0.99),
        p999=at(0.999),
        shares=[100 * share / len(late) for share in shares],
        curve=[round(at(quantile), 4) for quantile in QUANTILES],
        server_cpu=server_cpu_s / count * 1e6,
        client_cpu=client_cpu_s / count * 1e6,
    )


def one_round(way: str, plan: PushPlan, server_pid: int) -> PushRound:
    """Run producers and consumers against a server that is there."""
    context = multiprocessing.get_context("spawn")
    found: Queue[tuple[Seen, float]] = context.Queue()
    used: Queue[tuple[int, float]] = context.Queue()
    begin, over = context.Event(), context.Event()
    signals = [Signals(context.Event(), begin, over) for _ in range(2)]
    consuming = context.Process(target=consume_all, args=(way, plan, signals[0], found))
    producing = context.Process(target=produce_all, args=(way, plan, signals[1], used))
    for process in (consuming, producing):
        process.start()
    try:
        assert all(one.ready.wait(60) for one in signals), "both processes are there"
        time.sleep(STARTING_S)
        before_s = cpu_s_of(server_pid)
        begin.set()
        sent, producers_s = used.get(timeout=plan.seconds + 60)
        over.set()
        seen, consumers_s = found.get(timeout=120)
        server_s = cpu_s_of(server_pid) - before_s
    finally:
        for process in (consuming, producing):
            process.join(10)
            process.kill()
    came = sum(len(stamps) for _, stamps in seen)
    assert came == sent, f"{came} of {sent} entries came: the latency of all counts, or of none"
    return measured(seen, server_s, consumers_s + producers_s)


# ---- servers


@contextlib.contextmanager
def gateway() -> Iterator[tuple[int, int]]:
    """A gateway of its own: port and process."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        with Server(data) as server:
            yield server.port, server.pid


@contextlib.contextmanager
def served(way: str) -> Iterator[tuple[int, int]]:
    """A fresh server for a way, with the group: port and process."""
    if way == "redis":
        with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as (port, _):
            client = blocking.Redis(port=port)
            client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
            yield port, client.info("server")["process_id"]
        return
    with gateway() as (port, pid):
        stand(port, 0)
        yield port, pid


def stand(port: int, standing: int) -> None:
    """Make the gateway's group, and deliver that number of entries to a consumer that never acknowledges."""
    stream = f"/v1/streams/{STREAM}"
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
        http.put(f"{stream}/groups/{GROUP}", json={"start": "0"}).raise_for_status()
        lines = "\n".join(['{"fields":{"t":"0"}}'] * BATCH)
        headers = {"content-type": "application/x-ndjson", "prefer": "return=minimal"}
        for _ in range(standing // BATCH):
            http.post(f"{stream}/entries", content=lines, headers=headers).raise_for_status()
            read = http.post(f"{stream}/groups/{GROUP}/consumers/gone/read", json={"count": BATCH})
            assert len(read.raise_for_status().json()["entries"]) == BATCH, "it was given all of them"


def settle(pid: int) -> None:
    """Let the server pack and rewrite what it was just filled with."""
    for _ in range(SETTLE_S_MAX):
        before_s = cpu_s_of(pid)
        time.sleep(1)
        if cpu_s_of(pid) - before_s < IDLE_CPU_S:
            return


# ---- runs

Rounds = dict[str, list[PushRound]]


def beside_redis(ways: list[str], rounds: int, seconds: float, rate: int) -> Rounds:
    """Alternating rounds, each on a fresh server (P5)."""
    found: Rounds = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            with served(way) as (port, pid):
                found[way].append(one_round(way, PushPlan(port, seconds, rate), pid))
            print(f"  {way:9}{found[way][-1].line()}", flush=True)
    return found


def beside_standing(standing: int, rounds: int, seconds: float, rate: int) -> Rounds:
    """Rounds with and without unacknowledged entries standing in the group, in turns (P6)."""
    found: Rounds = {"with": [], "without": []}
    with gateway() as full, gateway() as empty:
        stand(full[0], standing)
        stand(empty[0], 0)
        settle(full[1])
        for number in range(rounds):
            for which in ("with", "without") if number % 2 == 0 else ("without", "with"):
                port, pid = full if which == "with" else empty
                found[which].append(one_round("weir", PushPlan(port, seconds, rate), pid))
                print(f"  {which:9}{found[which][-1].line()}", flush=True)
    return found


def median(rounds: list[PushRound]) -> PushRound:
    """Of each figure."""
    values = [msgspec.structs.asdict(one) for one in rounds]
    middle: dict[str, Any] = {}
    for name, first in values[0].items():
        column = [one[name] for one in values]
        if isinstance(first, list):
            middle[name] = [statistics.median(row) for row in zip(*column, strict=True)]
        else:
            middle[name] = statistics.median(column)
    return msgspec.convert(middle, PushRound, strict=False)


def ratios(found: Rounds, ours: str, theirs: str) -> dict[str, float]:
    """Ours ÷ theirs: medians of rounds that were neighbours."""
    names = ("p50", "p99", "p999")
    return {
        name: statistics.median(
            getattr(one, name) / getattr(other, name)
            for one, other in zip(found[ours], found[theirs], strict=True)
        )
        for name in names
    }


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--standing", type=int, default=0)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(sys.argv[1:])
    if options.standing:
        found = beside_standing(options.standing, options.rounds, options.seconds, options.rate)
        compared = {"with": ratios(found, "with", "without")}
    else:
        ways = options.ways.split(",")
        found = beside_redis(ways, options.rounds, options.seconds, options.rate)
        compared = {way: ratios(found, way, "redis") for way in ways if "redis" in ways and way != "redis"}
    for which, ratio in compared.items():
        print(f"  {which} ÷ its peer:", "  ".join(f"{name} {value:.2f}" for name, value in ratio.items()))
    print("  the classical figures:", " / ".join(map(str, CLASSICAL)), "%")
    if options.json:
        by_way = {way: [msgspec.structs.asdict(one) for one in rounds] for way, rounds in found.items()}
        options.json.write_text(json.dumps({"rounds": by_way, "ratios": compared}))


if __name__ == "__main__":
    main()
