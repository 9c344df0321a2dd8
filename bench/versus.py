"""Weir beside Redis: publish, range, memory, restart (P1, P4, P8, P10).

Both on loopback with their logs on everysec; the load from wrk and redis-benchmark; rounds alternate.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import redis

from bench.figure import Pairs
from bench.peers import cpu_s_of, free_port, redis_server, resident_bytes_of

BATCH = 1_000
RANGE_COUNT = 1_000
CONNECTIONS = 2
PRELOADED = 100_000
PENDING = 100_000
GROWN = 4

_PUBLISH_LUA = """
local lines = {}
for i = 1, %d do lines[i] = '{"temperature":"' .. (10 + i %% 90) .. '.' .. (i %% 10) .. '"}' end
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/x-ndjson"
wrk.headers["Prefer"] = "return=minimal"
wrk.body = table.concat(lines, "\\n")
"""


class Weir:
    """`weir serve` on a data directory of its own."""

    def __init__(self, *options: str) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="weir-bench-"))
        self.port = free_port()
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds from the start to ready."""
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "weir",
            "serve",
            "--port",
            str(self.port),
            "--data",
            str(self.data / "d"),
            *self._options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz/ready", timeout=5):
                    return time.perf_counter() - began
            except OSError:
                time.sleep(0.005)

    def stop(self) -> None:
        """Stop as an operator does."""
        assert self.process is not None, "it was started"
        self.process.terminate()
        self.process.wait(60)

    def call(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> bytes:
        """One request; its answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, {"content-type": kind}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def resident_bytes(self) -> int:
        """What the process holds in memory."""
        assert self.process is not None, "it was started"
        return resident_bytes_of(self.process.pid)

    def cpu_s(self) -> float:
        """The processor time of the process so far."""
        assert self.process is not None, "it was started"
        return cpu_s_of(self.process.pid)

    def wrk(self, path: str, seconds: float, script: str = "") -> float:
        """Requests a second."""
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
            lua.write(script)
            lua.flush()
            load = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "10s", "-s", lua.name]
            printed = subprocess.run(
                [*load, f"http://127.0.0.1:{self.port}{path}"], capture_output=True, text=True, check=True
            ).stdout
        assert "Non-2xx" not in printed, printed
        return float(printed.split("Requests/sec:")[1].split()[0])


def redis_benchmark(port: int, requests: int, pipeline: int, *command: str) -> float:
    """Commands a second."""
    load = ["redis-benchmark", "-p", str(port), "-n", str(requests), "-P", str(pipeline), "-c", "50", "--csv"]
    printed = subprocess.run([*load, *command], capture_output=True, text=True, check=True).stdout
    return float(printed.splitlines()[-1].split('","')[1].strip('"'))


def throughput(rounds: int, seconds: float) -> dict[str, Pairs]:
    """Entries a second, ours and Redis's: publishing, and ranges of a thousand."""
    script, ours = _PUBLISH_LUA % BATCH, Weir()
    ours.start()
    field = ("temperature", "19.8")
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as (port, _):
        client = redis.Redis(port=port)
        lines = b"\n".join(b'{"temperature":"%d.%d"}' % (10 + i % 90, i % 10) for i in range(BATCH))
        for _ in range(PRELOADED // BATCH):
            ours.call("POST", "/v1/streams/ranged/entries", lines, "application/x-ndjson")
        redis_benchmark(port, PRELOADED, 100, "XADD", "ranged", "*", *field)

        def publish() -> tuple[float, float]:
            ours.call("POST", "/v1/commands", b'["DEL","published"]')
            client.delete("published")
            mine = BATCH * ours.wrk("/v1/streams/published/entries", seconds, script)
            return mine, redis_benchmark(port, int(150_000 * seconds), 100, "XADD", "published", "*", *field)

        def read() -> tuple[float, float]:
            mine = RANGE_COUNT * ours.wrk(f"/v1/streams/ranged/entries?count={RANGE_COUNT}", seconds)
            xrange = ("XRANGE", "ranged", "-", "+", "COUNT", str(RANGE_COUNT))
            return mine, RANGE_COUNT * redis_benchmark(port, int(600 * seconds), 1, *xrange)

        pairs = [(publish(), read()) for _ in range(rounds)]
    ours.stop()
    shutil.rmtree(ours.data, ignore_errors=True)
    return {"publish": [one for one, _ in pairs], "range": [one for _, one in pairs]}


def _rows(entries: int) -> dict[str, Iterator[dict[str, str]]]:
    """Entries of each shape."""
    rnd = random.Random(1)

    def two() -> dict[str, str]:
        return {"sensor-id": str(rnd.randrange(1000, 10_000)), "temperature": f"{rnd.uniform(-20, 40):.1f}"}

    def five() -> dict[str, str]:
        return {"site": "north", "unit": "C", "state": "ok", **two()}

    return {
        "one constant field": ({"temperature": "19.8"} for _ in range(entries)),
        "two fields": (two() for _ in range(entries)),
        "five fields, two of them random": (five() for _ in range(entries)),
    }


def memory(entries: int) -> dict[str, tuple[float, float]]:
    """Bytes an entry of each shape: what the gateway's process grows by from `entries` to `GROWN` times as
    many, and Redis's MEMORY USAGE. What a process takes once, as for buffers, is no part of an entry.
    """
    found: dict[str, tuple[float, float]] = {}
    for shape, rows in _rows(GROWN * entries).items():
        texts = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
        ours = Weir()
        ours.start()
        before = _resident_with(ours, texts[:entries])
        mine = (_resident_with(ours, texts[entries:]) - before) / ((GROWN - 1) * entries)
        ours.stop()
        shutil.rmtree(ours.data, ignore_errors=True)
        with redis_server() as (port, _):
            client = redis.Redis(port=port)
            their_entries = min(entries, PRELOADED)
            add(client, texts[:their_entries])
            found[shape] = mine, (client.memory_usage("s", samples=0) or 0) / their_entries
    return found


def _resident_with(ours: Weir, texts: Sequence[bytes]) -> int:
    """Bytes of the gateway's process when it has these too, and has packed them."""
    _publish(ours, texts)
    time.sleep(3)
    return ours.resident_bytes()


def restart(entries: int, rounds: int) -> Pairs:
    """Seconds from start to ready with up to 100,000 entries pending: ours and Redis's."""
    texts = [json.dumps(row).encode() for row in _rows(entries)["two fields"]]
    pending = min(PENDING, entries)
    ours = Weir()
    ours.start()
    _publish(ours, texts)
    ours.call("POST", "/v1/streams/s/groups", b'{"name":"g","start":"0"}')
    for _ in range(pending // 10_000):
        ours.call("POST", "/v1/streams/s/groups/g/consumers/c/read", b'{"count":10000}')
    ours.stop()
    kept = _redis_data(texts, pending)
    pairs = []
    for _ in range(rounds):
        mine = ours.start()
        ours.stop()
        began = time.perf_counter()
        with redis_server("--appendonly", "yes", "--dir", str(kept), poll_s=0.005) as (port, _):
            assert redis.Redis(port=port).xlen("s") == entries, "all are loaded"
            pairs.append((mine, time.perf_counter() - began))
    for place in (ours.data, kept):
        shutil.rmtree(place, ignore_errors=True)
    return pairs


def _publish(ours: Weir, texts: Sequence[bytes]) -> None:
    """Publish all of them in batches, after what the stream has."""
    before = _length(ours)
    for start in range(0, len(texts), BATCH):
        body = b"\n".join(texts[start : start + BATCH])
        ours.call("POST", "/v1/streams/s/entries", body, "application/x-ndjson")
    assert _length(ours) - before == len(texts), "all are stored"


def _length(ours: Weir) -> int:
    return int(json.loads(ours.call("POST", "/v1/commands", b'["XLEN","s"]'))["result"])


def add(client: redis.Redis, texts: Sequence[bytes]) -> None:
    """The same."""
    for start in range(0, len(texts), BATCH):
        pipeline = client.pipeline(transaction=False)
        for text in texts[start : start + BATCH]:
            pipeline.xadd("s", json.loads(text))
        pipeline.execute()


def _redis_data(texts: Sequence[bytes], pending: int) -> Path:
    """A data directory as Redis leaves it, with its AOF as it was written."""
    with redis_server("--appendonly", "yes") as (port, data):
        client = redis.Redis(port=port)
        add(client, texts)
        client.xgroup_create("s", "g", "0")
        for _ in range(pending // BATCH):
            client.xreadgroup("g", "c", {"s": ">"}, count=BATCH)
        time.sleep(2)
        kept = Path(tempfile.mkdtemp(prefix="weir-bench-redis-"))
        shutil.copytree(data, kept, dirs_exist_ok=True)
    return kept
