"""Fan-out (P7): one publisher to 1 000 live tails, beside nats-server's WebSocket in the same run.

Both are spoken to through the same lean sockets (bench/lean.py): a process of subscribers that count what
arrives, a process with the publisher. Weir: `publish` frames of 100 entries over a socket, `subscribe` at
`$`. NATS: PUB lines of the same payload, as many in a message, SUB. Nothing that is asked for is left out:
NATS keeps nothing and answers nothing, Weir stores every entry, logs it (everysec) and answers.

    flood     the publisher sends as fast as it is read, for some seconds; delivered entries a second are
              those that arrive within that time, over all tails
    lone      an entry a fifth of a second, alone; the time from its stamp until the last tail has it

    python -m bench.fanout [--tails 1000] [--rounds 3] [--seconds 4] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvloop

from bench.lean import Socket
from bench.peers import free_port
from bench.push import cpu_s_of, gateway

STREAM: Final = "bench"
BATCH: Final = 100
# As many bytes on both sides, beside what each protocol puts around them.
PAYLOAD: Final = "x" * 32
LONE: Final = 20
LONE_EVERY_S: Final = 0.2
GOALS: Final = {"delivered": 1.0, "lone_ms": 2.0}


class Plan(NamedTuple):
    """What one round does."""

    way: str
    port: int
    tails: int
    seconds: float


# ---- what is said


def joined(way: str) -> list[bytes]:
    """What a subscriber says."""
    if way == "weir":
        return [b'{"op":"subscribe","sub":"t","streams":{"%b":"$"}}' % STREAM.encode()]
    return [b'CONNECT {"verbose":false}\r\n', b"SUB %b 1\r\n" % STREAM.encode()]


def entries(way: str, stamp: int, count: int) -> bytes:
    """A message that publishes so many, each with the time."""
    if way == "weir":
        entry = '{"fields":{"t":"%d","x":"%s"}}' % (stamp, PAYLOAD)  # noqa: UP031 - braces
        return b'{"op":"publish","stream":"%b","entries":[%b]}' % (
            STREAM.encode(),
            ",".join([entry] * count).encode(),
        )
    body = f'{{"t":"{stamp}","x":"{PAYLOAD}"}}'
    return f"PUB {STREAM} {len(body)}\r\n{body}\r\n".encode() * count


MARK: Final = b'"t":"'


# ---- subscribers


class Tails:
    """Subscribers that count: all entries, and for lone ones when the last tail had each."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.count = 0
        self.last: dict[bytes, tuple[int, int]] = {}
        self.lone = True

    def heard(self, socket: Socket, payload: bytes) -> None:
        """A message for one tail."""
        if payload.startswith(b"PING"):
            socket.send(b"PONG\r\n")
        found = payload.count(MARK)
        self.count += found
        if self.lone and found:
            at = payload.find(MARK) + len(MARK)
            stamp = payload[at : at + 19]
            told, _ = self.last.get(stamp, (0, 0))
            self.last[stamp] = (told + 1, time.time_ns())

    async def run(self, said: Any, told: Any) -> None:  # noqa: ANN401 - ends of pipes
        """Join, then do as the pipe says."""
        sockets: list[Socket] = []
        for _ in range(self.plan.tails):
            socket = await Socket.connect(self.plan.port, path_of(self.plan.way), self.heard)
            for line in joined(self.plan.way):
                socket.send(line)
            sockets.append(socket)
        await asyncio.sleep(1.0)
        told.send("joined")
        while (what := await asyncio.to_thread(said.recv)) != "end":
            if what == "count":
                told.send((self.count, time.perf_counter()))
            else:
                self.lone = what == "lone"
        waits = [
            (at - int(stamp)) / 1e6 for stamp, (count, at) in self.last.items() if count == self.plan.tails
        ]
        told.send(waits)
        for socket in sockets:
            socket.close()


def path_of(way: str) -> str:
    """Where sockets are."""
    return "/v1/ws" if way == "weir" else "/"


def subscribe(plan: Plan, said: Any, told: Any) -> None:  # noqa: ANN401 - ends of pipes
    """A process of subscribers."""
    uvloop.run(Tails(plan).run(said, told))


# ---- the publisher


async def lone(plan: Plan) -> None:
    """Some entries, each alone."""
    socket = await Socket.connect(plan.port, path_of(plan.way), lambda _, __: None)
    if plan.way == "nats":
        socket.send(joined("nats")[0])
    for _ in range(LONE):
        await asyncio.sleep(LONE_EVERY_S)
        socket.send(entries(plan.way, time.time_ns(), 1))
    await asyncio.sleep(LONE_EVERY_S)
    socket.close()


async def flood(plan: Plan) -> None:
    """As fast as it is read: what waits to be written is at most what a socket holds."""
    socket = await Socket.connect(plan.port, path_of(plan.way), lambda _, __: None)
    if plan.way == "nats":
        socket.send(joined("nats")[0])
    message = entries(plan.way, time.time_ns(), BATCH)
    ends = time.perf_counter() + plan.seconds
    while time.perf_counter() < ends:
        socket.send(message)
        await socket.drained()
        await asyncio.sleep(0)
    socket.close()


def publish(what: str, plan: Plan) -> None:
    """A process that publishes."""
    uvloop.run(lone(plan) if what == "lone" else flood(plan))


# ---- rounds


class Round(msgspec.Struct):
    """Delivered entries a second over all tails; milliseconds until the last of them had a lone entry."""

    delivered: float
    lone_ms: float
    lone_max_ms: float
    server_cpu_s: float

    def told(self) -> str:
        """In a line."""
        return (
            f"{self.delivered:10,.0f} delivered/s   lone entry at the last tail: "
            f"median {self.lone_ms:.1f} ms, "
            f"max {self.lone_max_ms:.1f} ms   server CPU {self.server_cpu_s:.1f} s"
        )


def one_round(plan: Plan, pid: int) -> Round:
    """Lone entries, then a flood."""
    context = multiprocessing.get_context("spawn")
    say, said = context.Pipe()
    tell, told = context.Pipe()
    tails = context.Process(target=subscribe, args=(plan, said, tell))
    tails.start()
    try:
        assert told.poll(120), "the tails join within two minutes"
        told.recv()
        publishing(context, "lone", plan)
        say.send("flood")
        before_s = cpu_s_of(pid)
        flooding = context.Process(target=publish, args=("flood", plan))
        flooding.start()
        time.sleep(0.5 + plan.seconds / 4)
        first, began = ask(say, told)
        time.sleep(plan.seconds / 2)
        last, ended = ask(say, told)
        flooding.join(60)
        cpu_s = cpu_s_of(pid) - before_s
        say.send("end")
        assert told.poll(60), "the tails end"
        waits: list[float] = told.recv()
        assert waits, "lone entries reached all tails"
    finally:
        tails.kill()
        tails.join()
    return Round((last - first) / (ended - began), statistics.median(waits), max(waits), cpu_s)


def publishing(context: Any, what: str, plan: Plan) -> None:  # noqa: ANN401 - of multiprocessing
    """Publish, and wait for the end of it."""
    process = context.Process(target=publish, args=(what, plan))
    process.start()
    process.join(120)


def ask(say: Any, told: Any) -> tuple[int, float]:  # noqa: ANN401 - ends of pipes
    """How many entries have arrived, and when that was."""
    say.send("count")
    assert told.poll(60), "the tails answer"
    answer: tuple[int, float] = told.recv()
    return answer


@contextlib.contextmanager
def nats() -> Iterator[tuple[int, int]]:
    """A nats-server with a WebSocket: port and process."""
    with tempfile.TemporaryDirectory() as directory:
        port, plain = free_port(), free_port()
        config = Path(directory) / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{plain}"\nwebsocket {{ listen: "127.0.0.1:{port}", no_tls: true }}\n'
        )
        server = subprocess.Popen(["nats-server", "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            time.sleep(1.0)
            assert server.poll() is None, "nats-server runs (Debian: apt install nats-server)"
            yield port, server.pid
        finally:
            server.terminate()
            server.wait(30)


Rounds = dict[str, list[Round]]


def beside_nats(tails: int, rounds: int, seconds: float) -> Rounds:
    """Alternating rounds, each on a fresh server."""
    found: Rounds = {"weir": [], "nats": []}
    for number in range(rounds):
        for way in ("weir", "nats") if number % 2 == 0 else ("nats", "weir"):
            with gateway() if way == "weir" else nats() as (port, pid):
                found[way].append(one_round(Plan(way, port, tails, seconds), pid))
            print(f"  {way:6}{found[way][-1].told()}", flush=True)
    return found


def ratios(found: Rounds) -> dict[str, float]:
    """Ours ÷ theirs, medians of rounds that were neighbours."""
    return {
        name: statistics.median(
            getattr(one, name) / getattr(other, name)
            for one, other in zip(found["weir"], found["nats"], strict=True)
        )
        for name in GOALS
    }


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tails", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(sys.argv[1:])
    found = beside_nats(options.tails, options.rounds, options.seconds)
    compared = ratios(found)
    print("  ours ÷ theirs:", "  ".join(f"{name} {ratio:.2f}" for name, ratio in compared.items()))
    if options.json:
        told = {way: [msgspec.structs.asdict(one) for one in rounds] for way, rounds in found.items()}
        options.json.write_text(json.dumps({"rounds": told, "ratios": compared}))


if __name__ == "__main__":
    main()
