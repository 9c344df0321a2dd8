"""Single publishes over HTTP beside two others on the same machine (P2, P3).

Weir's `POST …/entries` with one small entry, webdis with a redis-server behind it (XADD in the path), and a
raw ASGI function that answers a constant under the same uvicorn, event loop and parser. 32 connections of
wrk, one after the other in alternating rounds; the median of the rounds' ratios counts, since neighbours come
and go. Both logs are on everysec; Weir writes a line for each request, as it comes.

    python -m bench.single [--rounds 5] [--seconds 2] [--json FILE]
"""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from bench.figure import Pairs
from bench.peers import free_port, redis_server
from bench.versus import Weir

CONNECTIONS = 32
BODY = b'{"id":"1790000000000-0","duplicate":false}'

_PUBLISH_LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"fields":{"temperature":"19.8"}}'
"""


async def constant(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - raw ASGI
    """The floor: what any ASGI application under this server costs at least."""
    await receive()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


def serve_constant(port: int) -> None:
    """Run the floor until it is killed."""
    settings: MutableMapping[str, Any] = {"lifespan": "off", "access_log": False, "log_level": "warning"}
    server = uvicorn.Server(uvicorn.Config(constant, port=port, http="httptools", loop="none", **settings))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve())


@contextlib.contextmanager
def running(port: int, *command: str) -> Iterator[int]:
    """A program that listens on `port`, ended with the block."""
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield port
    finally:
        program.terminate()
        program.wait(30)


@contextlib.contextmanager
def webdis() -> Iterator[int]:
    """Webdis before a redis-server of its own, with the threads of its sample configuration; its port."""
    place = Path(tempfile.mkdtemp(prefix="weir-bench-webdis-"))
    port = free_port()
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as (redis_port, _):
        settings = {"redis_host": "127.0.0.1", "redis_port": redis_port, "http_host": "127.0.0.1"}
        settings |= {"http_port": port, "threads": 5, "pool_size": 20, "daemonize": False, "verbosity": 0}
        file = place / "webdis.json"
        file.write_text(json.dumps(settings | {"logfile": str(place / "log")}))
        with running(port, "webdis", str(file)):
            yield port
    shutil.rmtree(place, ignore_errors=True)


def wrk(port: int, path: str, seconds: float, script: str = "") -> float:
    """Requests a second, all of them answered with 2xx."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        lua.write(script)
        lua.flush()
        load = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "--timeout", "10s", "-s", lua.name]
        url = f"http://127.0.0.1:{port}{path}"
        printed = subprocess.run([*load, url], capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in printed, printed
    return float(printed.split("Requests/sec:")[1].split()[0])


def measure(rounds: int, seconds: float) -> dict[str, Pairs]:
    """Requests a second, ours and that of each peer."""
    found: dict[str, list[tuple[float, float]]] = {"webdis": [], "raw ASGI": []}
    ours = Weir()
    ours.start()
    floor_port = free_port()
    floor = (sys.executable, "-m", "bench.single", str(floor_port))
    with webdis() as webdis_port, running(floor_port, *floor):
        for round_number in range(rounds + 1):
            mine = wrk(ours.port, "/v1/streams/s/entries", seconds, _PUBLISH_LUA)
            took = {
                "webdis": wrk(webdis_port, "/XADD/s/*/temperature/19.8", seconds),
                "raw ASGI": wrk(floor_port, "/", seconds, _PUBLISH_LUA),
            }
            # The first round warms everybody up.
            for name, theirs in took.items() if round_number else ():
                found[name].append((mine, theirs))
    ours.stop()
    shutil.rmtree(ours.data, ignore_errors=True)
    return dict(found)


if __name__ == "__main__":
    serve_constant(int(sys.argv[1]))
