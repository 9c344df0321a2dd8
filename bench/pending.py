"""What standing pending entries cost: memory of each, and how long the collector stops everything for them.

Knows: how to leave entries pending in an engine without a server, and how to watch the collector.
Must never know: how they are kept.

Entries are published, delivered and trimmed away, so that only what is pending stays. A step is one batch.

    python -m bench.pending [--pending 2000000] [--consumers 10]
"""

import argparse
import asyncio
import gc
import time
from typing import Final

import redis

from bench.lean import Socket
from bench.peers import redis_server, resident_bytes_of
from bench.push import gateway
from engine import entries
from engine.commands.base import Command
from engine.commands.execution import execute
from engine.commands.types import Cursor, Trim, XAdd, XGroupCreate, XReadGroup, XTrim
from engine.keyspace import Keyspace
from engine.runtime.resident import resident_bytes

BATCH: Final = 1_000
BODY: Final = entries.body([("sensor-id", "1234")])
FIRST_MS: Final = 1_700_000_000_000
FULL: Final = 2


class Pauses:
    """How long each run of the collector took, in ms of processor time, by generation."""

    def __init__(self) -> None:
        self.took_ms: dict[int, list[float]] = {0: [], 1: [], FULL: []}
        self._began = 0.0
        gc.callbacks.append(self._observe)

    def _observe(self, phase: str, found: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.took_ms[found["generation"]].append((time.thread_time() - self._began) * 1000)

    def line(self) -> str:
        """For the terminal."""
        rows = [
            f"generation {number}: {len(took)} runs, longest {max(took, default=0):.1f} ms"
            for number, took in self.took_ms.items()
        ]
        return "  ".join(rows)


def stand(keyspace: Keyspace, pending: int, consumers: int) -> None:
    """Leave entries pending, of consumers in turns."""
    now_ms = FIRST_MS

    def run(command: Command) -> None:
        execute(keyspace, command, now_ms)
        keyspace.cold.clear()

    run(XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    for number in range(pending // BATCH):
        now_ms += 10
        run(XAdd(stream="s", bodies=[BODY] * BATCH))
        consumer = f"c{number % consumers}"
        run(XReadGroup(group="g", consumer=consumer, streams=(("s", Cursor.NEW),), count=BATCH))
        run(XTrim(stream="s", trim=Trim(maxlen=0)))


def bytes_each(pending: int, consumers: int) -> float:
    """Resident bytes that a pending entry takes, in a process that has none yet."""
    stand(Keyspace(), 10 * BATCH, consumers)
    gc.collect()
    keyspace, before = Keyspace(), resident_bytes() or 0
    stand(keyspace, pending, consumers)
    gc.collect()
    return ((resident_bytes() or 0) - before) / pending


def redis_bytes_each(pending: int, consumers: int) -> float:
    """By which MEMORY USAGE of a stream grows when its entries become pending."""
    with redis_server() as (port, _):
        client = redis.Redis(port=port)
        for _ in range(pending // BATCH):
            pipeline = client.pipeline(transaction=False)
            for _ in range(BATCH):
                pipeline.xadd("s", {"sensor-id": "1234"})
            pipeline.execute()
        client.xgroup_create("s", "g", "0")
        before = client.memory_usage("s", samples=0) or 0
        for number in range(pending // BATCH):
            client.xreadgroup("g", f"c{number % consumers}", {"s": ">"}, count=BATCH)
        return ((client.memory_usage("s", samples=0) or 0) - before) / pending


def tail_bytes_each(tails: int) -> float:
    """By which a gateway's resident memory grows with each idle live tail over a WebSocket."""

    async def join(port: int, pid: int) -> float:
        before = resident_bytes_of(pid)
        sockets = [await Socket.connect(port, "/v1/ws", lambda _, __: None) for _ in range(tails)]
        for socket in sockets:
            socket.send(b'{"op":"subscribe","sub":"t","streams":{"s":"$"}}')
        await asyncio.sleep(2)
        grown = resident_bytes_of(pid) - before
        for socket in sockets:
            socket.close()
        return grown / tails

    with gateway() as (port, pid):
        return asyncio.run(join(port, pid))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=2_000_000)
    parser.add_argument("--consumers", type=int, default=10)
    options = parser.parse_args()
    stand(Keyspace(), 10 * BATCH, options.consumers)
    gc.collect()
    keyspace, before, pauses = Keyspace(), resident_bytes(), Pauses()
    began = time.process_time()
    stand(keyspace, options.pending, options.consumers)
    took = time.process_time() - began
    print(f"while {options.pending} became pending:  {pauses.line()}")
    gc.collect()
    after = resident_bytes()
    assert before, "this is Linux"
    assert after, "this is Linux"
    estimated = keyspace.memory.streams.bytes
    print(f"bytes a pending entry: resident {(after - before) / options.pending:.1f}, ", end="")
    print(f"estimated {estimated / options.pending:.1f}; CPU us each {took / options.pending * 1e6:.2f}")
    whole = Pauses()
    gc.collect()
    print(f"a full collection:  {whole.took_ms[FULL][-1]:.1f} ms")


if __name__ == "__main__":
    main()
