"""Where a gateway's processor time goes, by step, of one entry published, delivered and acknowledged.

The gateway samples itself: each millisecond of its processor time it notes which line of Weir's runs, so a
step that calls into C counts for the line that called. What runs between the lines, epoll and system calls
of the event loop, is `loop`. Steps are folders and modules of the tree, see `STEPS`.

    publish   one client, one small entry at a time
    weir      10 000 a second through one group, over WebSockets       (as in bench.push)
    longpoll  the same over HTTP

    python -m bench.profile [--seconds 8] [--lines 0] [--json FILE] [way …]
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from types import FrameType
from typing import Final

from bench import push
from bench.peers import cpu_s_of
from tests.server import Server
from weir.cli import main as weir

ROOT: Final = Path(__file__).parent.parent
INTERVAL_S: Final = 0.001
SAMPLES_VARIABLE: Final = "PROFILE_SAMPLES"
WAYS: Final = ("publish", "weir", "longpoll")
# The first prefix that fits a file's path counts.
STEPS: Final = {
    "parse HTTP": (
        "app/doors/http/heads",
        "app/doors/http/http_connection",
        "app/doors/http/request_parser",
    ),
    "WebSocket": ("app/doors/websocket",),
    "serve and send": ("app/doors/http", "app/transport", "app/http/common", "app/http/responses"),
    "authorise": ("app/auth", "app/live/shares"),
    "bind and validate": ("app/http", "app/api", "app/openapi"),
    "follow and give back": ("app/live", "app/gateway", "app/metrics"),
    "admit and run a turn": (
        "engine/runtime/turns",
        "engine/runtime/engine",
        "engine/quotas",
        "engine/memory",
    ),
    "execute": ("engine/commands",),
    "apply records": (
        "engine/records",
        "engine/groups",
        "engine/pending_states",
        "engine/stream",
        "engine/keyspace",
        "engine/live_entries",
    ),
    "wait and wake": ("engine/runtime/waits", "engine/waiters"),
    "frame and write the log": ("engine/runtime/writer", "engine/log", "engine/codec", "engine/storage"),
    "engine, other": ("engine",),
    "app, other": ("app",),
}


# ---- in the gateway's process


def serve() -> None:
    """Run `weir` with these arguments, and note what runs; SIGUSR1 has the counts written and begun anew."""
    samples: Counter[str] = Counter()

    def note(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(_PACKAGES):
                samples[f"{path[len(str(ROOT)) + 1 :]}:{frame.f_code.co_qualname}"] += 1
                return
            frame = frame.f_back
        samples["loop"] += 1

    def write(_: int, __: FrameType | None) -> None:
        target = Path(os.environ[SAMPLES_VARIABLE])
        target.with_suffix(".new").write_text(json.dumps(samples))
        target.with_suffix(".new").rename(target)
        samples.clear()

    signal.signal(signal.SIGPROF, note)
    signal.signal(signal.SIGUSR1, write)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    weir.main()


_PACKAGES: Final = (f"{ROOT}/app/", f"{ROOT}/engine/")


class ProfiledServer(Server):
    """A gateway that samples itself."""

    program = "bench.profile"


# ---- beside it


def publish(port: int, seconds: float) -> int:
    """Publish one entry after the other; how many they were."""
    connection = HTTPConnection("127.0.0.1", port)
    headers = {"content-type": "application/json"}
    count, ends_s = 0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        connection.request("POST", f"/v1/streams/{push.STREAM}/entries", b'{"fields":{"t":"0"}}', headers)
        with connection.getresponse() as answer:
            answer.read()
            assert answer.status == 201
        count += 1
    return count


def profile(way: str, seconds: float, lines: int) -> dict[str, float]:
    """Microseconds an entry by step, the largest first; `all` is what the system counts. Prints the functions
    in which most of it went.
    """
    with tempfile.TemporaryDirectory() as directory:
        samples = Path(directory) / "samples"
        os.environ[SAMPLES_VARIABLE] = str(samples)
        with ProfiledServer(Path(directory) / "data") as server:
            push.stand(server.port, 0)
            _take(server, samples)
            before_s = cpu_s_of(server.pid)
            if way == "publish":
                entries = publish(server.port, seconds)
            else:
                plan = push.PushPlan(server.port, seconds, 10_000)
                entries = push.one_round(way, plan, server.pid).entries
                entries = round(entries * (seconds + push.WARM_UP_S) / seconds)
            used_us = (cpu_s_of(server.pid) - before_s) * 1e6
            counted = _take(server, samples)
    steps: Counter[str] = Counter()
    for where, count in counted.items():
        steps[_step(where)] += count
    scale = used_us / entries / max(1, steps.total())
    for where, count in Counter(counted).most_common(lines):
        print(f"{way:10}{count * scale:7.1f} {where}")
    return {"all": used_us / entries, **{step: count * scale for step, count in steps.most_common()}}


def _step(where: str) -> str:
    if where == "loop":
        return where
    return next(step for step, prefixes in STEPS.items() if where.startswith(prefixes))


def _take(server: Server, samples: Path) -> dict[str, int]:
    """What was sampled since the last time."""
    server.signal(signal.SIGUSR1)
    while not samples.exists():
        time.sleep(0.01)
    counted: dict[str, int] = json.loads(samples.read_text())
    samples.unlink()
    return counted


def main() -> None:
    """Print a table a way."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile")
    parser.add_argument("ways", nargs="*", default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--lines", type=int, default=0, help="number of functions to print for each way")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {way: profile(way, options.seconds, options.lines) for way in options.ways}
    for way, steps in found.items():
        print(f"\n{way}: us of processor time an entry")
        for step, spent_us in steps.items():
            print(f"  {step:26}{spent_us:8.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve()
    else:
        main()
