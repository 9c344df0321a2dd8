"""A rewrite under load, and starts from what it left, beside Redis doing the same.

Knows: how to fill a stream and a group, how long others wait meanwhile, when a server is ready.
Must never know: the engine's insides.

    python -m bench.rewrite [--entries 1000000] [--pending 1000000]
"""

import argparse
import http.client
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import redis

from bench.peers import redis_server
from bench.versus import Weir

BATCH: Final = 10_000
_PAUSE_S: Final = 0.002


class Prober(threading.Thread):
    """A client that publishes, and one that asks for health, over and over; how long each answer took."""

    def __init__(self, port: int, method: str, path: str, body: bytes | None) -> None:
        super().__init__()
        self._ask = (method, path, body, {"content-type": "application/json"} if body else {})
        self._port = port
        self._stopping = threading.Event()
        self.took_ms: list[float] = []

    def run(self) -> None:
        """Ask until `stop` is set."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._stopping.is_set():
            began = time.perf_counter()
            connection.request(*self._ask)
            connection.getresponse().read()
            self.took_ms.append((time.perf_counter() - began) * 1000)
            time.sleep(_PAUSE_S)
        connection.close()

    def end(self) -> str:
        """Stop; p50, p99 and the longest, in ms."""
        self._stopping.set()
        self.join()
        took = sorted(self.took_ms)
        return f"p50 {took[len(took) // 2]:.2f}  p99 {took[int(len(took) * 0.99)]:.2f}  max {took[-1]:.1f} ms"


def probers(port: int) -> list[Prober]:
    """The clients, at work."""
    publish = Prober(port, "POST", "/v1/streams/other/entries", b'{"fields":{"a":"1"}}')
    health = Prober(port, "GET", "/healthz/live", None)
    for each in (publish, health):
        each.start()
    return [publish, health]


def fill(weir: Weir, entries: int, pending: int) -> None:
    """One stream, one group, ten consumers."""
    lines = b"\n".join(
        b'{"sensor-id":"%d","temperature":"%.1f"}' % (n % 9000, n % 400 / 10) for n in range(BATCH)
    )
    for _ in range(entries // BATCH):
        weir.call("POST", "/v1/streams/s/entries", lines, "application/x-ndjson")
    weir.call("POST", "/v1/streams/s/groups", b'{"name":"g","start":"0"}')
    for number in range(pending // BATCH):
        path = f"/v1/streams/s/groups/g/consumers/c{number % 10}/read"
        weir.call("POST", path, b'{"count":10000}')


def rewrite_and_wait(weir: Weir) -> float:
    """Seconds until the rewrite has ended."""
    began = time.perf_counter()
    weir.call("POST", "/v1/admin/rewrite", b"{}")
    while json.loads(weir.call("GET", "/v1/admin/rewrite"))["state"] == "running":
        time.sleep(0.02)
    return time.perf_counter() - began


def ours(entries: int, pending: int) -> dict[str, float]:
    """Rewrite under load, then the starts from the log as it was and as it is."""
    weir = Weir()
    weir.start()
    fill(weir, entries, pending)
    weir.stop()
    plain = weir.start()
    before = quiet(weir)
    during_probers = probers(weir.port)
    took = rewrite_and_wait(weir)
    during = [one.end() for one in during_probers]
    for name, without, within in zip(("publish", "health"), before, during, strict=True):
        print(f"  {name:8} without  {without}\n  {'':8} during   {within}")
    weir.stop()
    rewritten = weir.start()
    weir.stop()
    shutil.rmtree(weir.data, ignore_errors=True)
    return {"rewrite": took, "start from the log": plain, "start from the base": rewritten}


def quiet(weir: Weir) -> list[str]:
    """The same clients for three seconds with nothing else going on."""
    asking = probers(weir.port)
    time.sleep(3)
    return [one.end() for one in asking]


def theirs(entries: int, pending: int) -> dict[str, float]:
    """Redis: BGREWRITEAOF, and the loading time that it reports itself, process start included."""
    with redis_server("--appendonly", "yes") as (port, data):
        client = redis.Redis(port=port)
        for start in range(0, entries, BATCH):
            pipeline = client.pipeline(transaction=False)
            for n in range(start, start + BATCH):
                pipeline.xadd("s", {"sensor-id": n % 9000, "temperature": n % 400 / 10})
            pipeline.execute()
        client.xgroup_create("s", "g", "0")
        for number in range(pending // BATCH):
            client.xreadgroup("g", f"c{number % 10}", {"s": ">"}, count=BATCH)
        plain = kept(data)
        began = time.perf_counter()
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"] or time.perf_counter() - began < 0.1:
            time.sleep(0.02)
        took = time.perf_counter() - began
        rewritten = kept(data)
    return {
        "rewrite": took,
        "start from the log": start_of(plain, entries),
        "start from the base": start_of(rewritten, entries),
    }


def kept(data: Path) -> Path:
    """A copy of a data directory."""
    time.sleep(2)
    copy = Path(tempfile.mkdtemp(prefix="weir-bench-redis-"))
    shutil.copytree(data, copy, dirs_exist_ok=True)
    return copy


def start_of(data: Path, entries: int) -> float:
    """Seconds from the start of a process until it answers."""
    began = time.perf_counter()
    with redis_server("--appendonly", "yes", "--dir", str(data), poll_s=0.002) as (port, _):
        assert redis.Redis(port=port).xlen("s") == entries, "all are loaded"
        took = time.perf_counter() - began
    shutil.rmtree(data, ignore_errors=True)
    return took


def main() -> None:
    """Measure, and print side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--pending", type=int, default=100_000)
    options = parser.parse_args()
    mine, their = ours(options.entries, options.pending), theirs(options.entries, options.pending)
    print(f"{options.entries} entries, {options.pending} pending{'':8}{'weir':>8}{'redis':>8}  seconds")
    for name, seconds in mine.items():
        print(f"{name:35}{seconds:8.2f}{their[name]:8.2f}")


if __name__ == "__main__":
    main()
