"""What an order by key costs: a million entries read with a hot key among them, and the wait of an idle key.

Knows: a gateway, groups with an order and without. Must never know: how the engine finds what is free.

    python -m bench.ordering [--entries 1000000] [--page 100] [--rounds 5] [--seconds 5]

Reading: pages over one connection, each acknowledged before the next one, of a group with an order and one
without in turns; what counts is the gateway's processor time. One entry of each page is of the hot key, which
is as many as can go on one after the other, either spread among the others or at first, at once; the others
have one of 100,000 keys.

Waiting: 9,000 entries of the hot key are published, then 200 a second, which a consumer over WebSocket
acknowledges 20 ms after it got them; beside them comes an entry of another key each 10 ms. What counts is the
time from its publish until it is there.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import uvloop

from bench.lean import Http, Socket
from bench.peers import cpu_s_of
from bench.push import gateway
from tests.server import Server

KEYS: Final = 100_000
BATCH: Final = 1_000
# Pages of one group, before the other one has its turn.
TURN: Final = 200
STANDING: Final = 9_000
HOT_PAUSE_S: Final = 0.005
IDLE_PAUSE_S: Final = 0.01
WORK_S: Final = 0.02
CREDIT: Final = 10_000
ORDERS: Final[dict[str, dict[str, str]]] = {"without": {}, "with": {"ordered_by": "user"}}


# ---- reading


def _keys(entries: int, page: int, *, at_once: bool) -> Iterator[str]:
    dice = random.Random(1)
    for place in range(entries):
        is_hot = place < entries // page if at_once else place % page == 0
        yield "hot" if is_hot else f"user-{dice.randrange(KEYS)}"


def _fill(port: int, entries: int, page: int, *, at_once: bool) -> None:
    keys = _keys(entries, page, at_once=at_once)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1/streams/s", timeout=120) as http:
        for name, order in ORDERS.items():
            http.put(f"groups/{name}", json={"start": "0", **order}).raise_for_status()
        headers = {"content-type": "application/x-ndjson", "prefer": "return=minimal"}
        for _ in range(entries // BATCH):
            some = [next(keys) for _ in range(BATCH)]
            lines = "\n".join([f'{{"fields":{{"user":"{key}","celsius":"19.8"}}}}' for key in some])
            http.post("entries", content=lines, headers=headers).raise_for_status()


async def _read(port: int, pid: int, entries: int, page: int) -> dict[str, float]:
    """All of it by both groups, in turns."""
    answered: asyncio.Queue[bytes] = asyncio.Queue()
    http = await Http.connect(port, lambda _, body: answered.put_nowait(body))
    left, used_s = dict.fromkeys(ORDERS, entries), dict.fromkeys(ORDERS, 0.0)
    while any(left.values()):
        for name in ORDERS:
            group, begun_s = f"/v1/streams/s/groups/{name}", cpu_s_of(pid)
            for _ in range(TURN):
                http.post(f"{group}/consumers/c/read", b'{"count":%d}' % page)
                given = [one["id"] for one in json.loads(await answered.get())["entries"]]
                left[name] -= len(given)
                if given:
                    http.post(f"{group}/ack", json.dumps({"ids": given}).encode())
                    await answered.get()
                if not left[name]:
                    break
            used_s[name] += cpu_s_of(pid) - begun_s
    http.close()
    return used_s


def reading(entries: int, page: int, *, at_once: bool) -> dict[str, float]:
    """The gateway's processor time, in seconds, by whether the group has an order."""
    with TemporaryDirectory() as folder:
        # A rewrite would count for the group that is read meanwhile.
        server = Server(Path(folder) / "data", "--set", "rewrite_growth_percent=0")
        with server:
            _fill(server.port, entries, page, at_once=at_once)
            return uvloop.run(_read(server.port, server.pid, entries, page))


# ---- waiting


async def _waits_ms(port: int, stream: str, seconds: float) -> list[float]:
    """How long each entry of an idle key took."""
    loop, waits, is_over = asyncio.get_running_loop(), list[float](), False

    def acknowledge(socket: Socket, ack: bytes) -> None:
        if not is_over:
            socket.send(ack)

    def heard(socket: Socket, message: bytes) -> None:
        frame: dict[str, Any] = json.loads(message)
        assert frame["op"] != "error", message
        for entry in frame.get("entries", ()):
            ack = b'{"op":"ack","sub":"w","ids":["%b"]}' % entry["id"].encode()
            if entry["fields"]["user"] == "hot":
                loop.call_later(WORK_S, acknowledge, socket, ack)
            else:
                waits.append((time.perf_counter() - float(entry["fields"]["at"])) * 1_000)
                socket.send(ack)

    consumer = await Socket.connect(port, "/v1/ws", heard)
    producer = await Socket.connect(port, "/v1/ws", lambda _, __: None)

    def publish(key: str, count: int = 1) -> None:
        entry = {"fields": {"user": key, "at": str(time.perf_counter())}}
        producer.send(json.dumps({"op": "publish", "stream": stream, "entries": [entry] * count}).encode())

    async def keep_publishing(key: str, pause_s: float) -> None:
        until_s, number = loop.time() + seconds, 0
        while loop.time() < until_s:
            publish(key if key == "hot" else f"{key}-{number}")
            number += 1
            await asyncio.sleep(pause_s)

    where = {"sub": "w", "stream": stream, "group": "g", "consumer": "c"}
    consumer.send(json.dumps({"op": "consume", **where, "credit": CREDIT}).encode())
    for _ in range(STANDING // BATCH):
        publish("hot", BATCH)
    await asyncio.sleep(2)
    await asyncio.gather(keep_publishing("hot", HOT_PAUSE_S), keep_publishing("idle", IDLE_PAUSE_S))
    await asyncio.sleep(1)
    assert len(waits) > seconds / IDLE_PAUSE_S / 2, "they came"
    is_over = True
    consumer.close()
    producer.close()
    return waits


def waiting(number: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Median and p99 in milliseconds, by whether the group has an order."""
    found = {}
    for name in sorted(ORDERS, reverse=bool(number % 2)):
        with gateway() as (port, _):
            group = f"http://127.0.0.1:{port}/v1/streams/s/groups/g"
            httpx.put(group, json={"start": "0", **ORDERS[name]}).raise_for_status()
            waits = statistics.quantiles(uvloop.run(_waits_ms(port, "s", seconds)), n=100)
            found[name] = waits[49], waits[98]
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--page", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    given = parser.parse_args()
    for number in range(given.rounds):
        shown = [
            f"{name} {p50:.2f} (p99 {p99:.2f})" for name, (p50, p99) in waiting(number, given.seconds).items()
        ]
        print(f"an idle key waits, ms: {', '.join(sorted(shown))}", flush=True)
    for at_once in (False, True):
        took = reading(given.entries, given.page, at_once=at_once)
        shown = [f"{name} {seconds:.1f}" for name, seconds in took.items()]
        where = "at first, at once" if at_once else "spread"
        print(
            f"reading, s, the hot key {where}: {', '.join(shown)}, x {took['with'] / took['without']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
