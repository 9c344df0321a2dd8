"""Weir beside Redis in one run: publish, range, memory, restart (P1, P4, P8, P10).

Both on loopback with their logs on everysec; the load from wrk and redis-benchmark; rounds
alternate, medians count.

    python -m bench.versus [--rounds 5] [--seconds 3] [--entries 1000000] [--json FILE]
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import redis

from bench.peers import free_port, redis_server

BATCH = 1_000
RANGE_COUNT = 1_000
CONNECTIONS = 2
PRELOADED = 100_000
PENDING = 100_000

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

    def __init__(self) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="weir-bench-"))
        self.port = free_port()
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
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * 4096

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


def throughput(rounds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Entries a second, ours and Redis's: publishing, and ranges of a thousand."""
    ours = Weir()
    ours.start()
    script = _PUBLISH_LUA % BATCH
    measured: dict[str, list[tuple[float, float]]] = {"publish": [], "range": []}
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as (port, _):
        client = redis.Redis(port=port)
        lines = b"\n".join(b'{"temperature":"%d.%d"}' % (10 + i % 90, i % 10) for i in range(BATCH))
        for _ in range(PRELOADED // BATCH):
            ours.call("POST", "/v1/streams/ranged/entries", lines, "application/x-ndjson")
        redis_benchmark(port, PRELOADED, 100, "XADD", "ranged", "*", "temperature", "19.8")
        for _ in range(rounds):
            ours.call("POST", "/v1/commands", b'["DEL","published"]')
            client.delete("published")
            mine = BATCH * ours.wrk("/v1/streams/published/entries", seconds, script)
            theirs = redis_benchmark(
                port, int(150_000 * seconds), 100, "XADD", "published", "*", "temperature", "19.8"
            )
            measured["publish"].append((mine, theirs))
            mine = RANGE_COUNT * ours.wrk(f"/v1/streams/ranged/entries?count={RANGE_COUNT}", seconds)
            theirs = RANGE_COUNT * redis_benchmark(
                port, int(600 * seconds), 1, "XRANGE", "ranged", "-", "+", "COUNT", str(RANGE_COUNT)
            )
            measured["range"].append((mine, theirs))
    ours.stop()
    shutil.rmtree(ours.data, ignore_errors=True)
    return {
        name: (statistics.median(one[0] for one in pairs), statistics.median(one[1] for one in pairs))
        for name, pairs in measured.items()
    }


def memory_and_restart(entries: int) -> dict[str, tuple[float, float]]:
    """Bytes an entry of two short fields, and seconds from start to ready: ours and Redis's."""
    randomly = random.Random(1)
    rows = [
        (str(randomly.randrange(1000, 10_000)), f"{randomly.uniform(-20, 40):.1f}") for _ in range(entries)
    ]
    ours = Weir()
    ours.start()
    before = ours.resident_bytes()
    for start in range(0, entries, BATCH):
        lines = b"\n".join(
            b'{"sensor-id":"%b","temperature":"%b"}' % (a.encode(), b.encode())
            for a, b in rows[start : start + BATCH]
        )
        ours.call("POST", "/v1/streams/s/entries", lines, "application/x-ndjson")
    time.sleep(3)
    resident = (ours.resident_bytes() - before) / entries
    shown = json.loads(ours.call("POST", "/v1/commands", b'["XLEN","s"]'))["result"]
    assert shown == entries, "all are stored"
    ours.call("POST", "/v1/streams/s/groups", b'{"name":"g","start":"0"}')
    for _ in range(PENDING // 10_000):
        ours.call("POST", "/v1/streams/s/groups/g/consumers/c/read", b'{"count":10000}')
    ours.stop()
    restart = ours.start()
    ours.stop()
    shutil.rmtree(ours.data, ignore_errors=True)
    their_memory, their_restart = _redis_memory_and_restart(rows)
    return {"memory": (resident, their_memory), "restart": (restart, their_restart)}


def _redis_memory_and_restart(rows: list[tuple[str, str]]) -> tuple[float, float]:
    with redis_server("--appendonly", "yes") as (port, data):
        client = redis.Redis(port=port)
        for start in range(0, len(rows), BATCH):
            pipeline = client.pipeline(transaction=False)
            for sensor, temperature in rows[start : start + BATCH]:
                pipeline.xadd("s", {"sensor-id": sensor, "temperature": temperature})
            pipeline.execute()
        used = (client.memory_usage("s", samples=0) or 0) / len(rows)
        client.xgroup_create("s", "g", "0")
        for _ in range(PENDING // 1000):
            client.xreadgroup("g", "c", {"s": ">"}, count=1000)
        kept = Path(tempfile.mkdtemp(prefix="weir-bench-redis-"))
        time.sleep(2)
        shutil.copytree(data, kept, dirs_exist_ok=True)
    began = time.perf_counter()
    with redis_server("--appendonly", "yes", "--dir", str(kept)) as (port, _):
        client = redis.Redis(port=port)
        assert client.xlen("s") == len(rows), "all are loaded"
        took = time.perf_counter() - began
    shutil.rmtree(kept, ignore_errors=True)
    return used, took


GOALS = {"publish": (">=", 1.5), "range": (">=", 4.0), "memory": ("<=", 0.5), "restart": ("<=", 1.0)}
UNITS = {"publish": "entries/s", "range": "entries/s", "memory": "bytes/entry", "restart": "s to ready"}


def main() -> None:
    """Measure, and print ratios beside the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = throughput(options.rounds, options.seconds) | memory_and_restart(options.entries)
    print(f"{'':9}{'':14}{'weir':>14}{'redis':>14}{'ratio':>8}  goal")
    for name, (mine, theirs) in results.items():
        sign, goal = GOALS[name]
        print(f"{name:9}{UNITS[name]:14}{mine:14,.1f}{theirs:14,.1f}{mine / theirs:8.2f}  {sign} {goal}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
