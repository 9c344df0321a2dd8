"""Fan-out (P7): one publisher to 1 000 live tails, beside nats-server's WebSocket in the same run.

Both servers are driven by the same lean sockets (bench/lean.py): a process of subscribers that count what
arrives, a process with the publisher. Weir: `publish` frames over a socket, `subscribe` at `$`. NATS: PUB
lines of the same payload, as many in a message, SUB. The servers do different work: core NATS stores nothing
and answers nothing, Weir stores every entry, logs it (everysec) and answers.

    lone      one entry every fifth of a second; the time from its stamp until the last tail has it
    flood     the publisher sends as fast as the server reads, for some seconds, with 100 entries a frame and
              again with one entry a frame. The window begins with the publisher's first entry; entries that
              arrive within it, over all tails, count.

A round fails if a tail misses an entry: after a flood every tail must have received all of it.

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
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import uvloop

from bench.lean import Socket
from bench.peers import cpu_s_of, free_port
from bench.push import gateway, own_cpu_s

STREAM: Final = "bench"
# Entries a frame in the floods.
FRAMES: Final = (100, 1)
# A publisher of small frames writes this many before it lets the loop send them.
BURST: Final = 32
# After a flood all of it has arrived at all tails within this time, or the round fails.
ARRIVAL_S_MAX: Final = 120.0
# As many bytes on both sides, beside what each protocol puts around them.
PAYLOAD: Final = "x" * 32
LONE: Final = 20
LONE_EVERY_S: Final = 0.2


class FanoutPlan(NamedTuple):
    """What one round does."""

    way: str
    port: int
    tails: int
    seconds: float


# ---- messages


def greeting(way: str) -> list[bytes]:
    """What a subscriber sends first."""
    if way == "weir":
        return [b'{"op":"subscribe","sub":"t","streams":{"%b":"$"}}' % STREAM.encode()]
    return [b'CONNECT {"verbose":false}\r\n', b"SUB %b 1\r\n" % STREAM.encode()]


def entries(way: str, stamp: int, count: int) -> bytes:
    """A message that publishes `count` entries, each with the time."""
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

    def __init__(self, plan: FanoutPlan) -> None:
        self.plan = plan
        self.count = 0
        self.last: dict[bytes, tuple[int, int]] = {}
        self.lone = True

    def receive(self, socket: Socket, payload: bytes) -> None:
        """Count a message for one tail."""
        if payload.startswith(b"PING"):
            socket.send(b"PONG\r\n")
        found = payload.count(MARK)
        self.count += found
        if self.lone and found:
            at = payload.find(MARK) + len(MARK)
            stamp = payload[at : at + 19]
            earlier, _ = self.last.get(stamp, (0, 0))
            self.last[stamp] = (earlier + 1, time.time_ns())

    async def run(self, requests: Any, answers: Any) -> None:  # noqa: ANN401 - ends of pipes
        """Join, then answer what the pipe asks."""
        sockets: list[Socket] = []
        for _ in range(self.plan.tails):
            socket = await Socket.connect(self.plan.port, path_of(self.plan.way), self.receive)
            for line in greeting(self.plan.way):
                socket.send(line)
            sockets.append(socket)
        await asyncio.sleep(1.0)
        answers.send("joined")
        while (request := await asyncio.to_thread(requests.recv)) != "end":
            if request == "count":
                answers.send((self.count, time.perf_counter(), own_cpu_s()))
            else:
                self.lone = False
        assert all(count == self.plan.tails for count, _ in self.last.values()), "a tail missed a lone entry"
        answers.send([(at - int(stamp)) / 1e6 for stamp, (_, at) in self.last.items()])
        for socket in sockets:
            socket.close()


def path_of(way: str) -> str:
    """Where sockets are."""
    return "/v1/ws" if way == "weir" else "/"


def subscribe(plan: FanoutPlan, requests: Any, answers: Any) -> None:  # noqa: ANN401 - ends of pipes
    """A process of subscribers."""
    uvloop.run(Tails(plan).run(requests, answers))


# ---- the publisher


class FanoutPublisher:
    """One socket. `finish` returns when the server has taken everything that was sent."""

    def __init__(self, plan: FanoutPlan) -> None:
        self._plan = plan
        self._finished = asyncio.Event()

    async def connect(self) -> Socket:
        """The open socket."""
        self._socket = await Socket.connect(self._plan.port, path_of(self._plan.way), self._receive)
        if self._plan.way == "nats":
            self._socket.send(greeting("nats")[0])
        return self._socket

    def _receive(self, _: Socket, payload: bytes) -> None:
        assert b'"op":"error"' not in payload, payload
        if payload.startswith(b"PONG") or (b'"op":"pong"' in payload):
            self._finished.set()

    async def finish(self) -> None:
        """Both servers answer a ping after what came before it."""
        self._socket.send(b'{"op":"ping"}' if self._plan.way == "weir" else b"PING\r\n")
        await asyncio.wait_for(self._finished.wait(), ARRIVAL_S_MAX)
        self._socket.close()


async def lone(plan: FanoutPlan) -> None:
    """Some entries, each alone."""
    publisher = FanoutPublisher(plan)
    socket = await publisher.connect()
    for _ in range(LONE):
        await asyncio.sleep(LONE_EVERY_S)
        socket.send(entries(plan.way, time.time_ns(), 1))
    await asyncio.sleep(LONE_EVERY_S)
    await publisher.finish()


async def flood(plan: FanoutPlan, frame: int, begun: Event) -> int:
    """Publish as fast as the server reads; returns how many entries. At most a socket's buffer waits."""
    publisher = FanoutPublisher(plan)
    socket = await publisher.connect()
    message = entries(plan.way, time.time_ns(), frame)
    messages, burst = 0, BURST if frame == 1 else 1
    begun.set()
    ends = time.perf_counter() + plan.seconds
    while time.perf_counter() < ends:
        for _ in range(burst):
            socket.send(message)
        messages += burst
        await socket.drained()
        await asyncio.sleep(0)
    await publisher.finish()
    return messages * frame


def publish_lone(plan: FanoutPlan) -> None:
    """A process that publishes lone entries."""
    uvloop.run(lone(plan))


def publish_flood(plan: FanoutPlan, frame: int, begun: Event, published: "Queue[int]") -> None:
    """A process that floods; it reports how many entries it published."""
    published.put(uvloop.run(flood(plan, frame, begun)))


# ---- rounds


class Flood(msgspec.Struct):
    """Delivered entries a second over all tails; processor seconds per million deliveries."""

    delivered: float
    server_cpu: float
    tails_cpu: float


class FanoutRound(msgspec.Struct):
    """Floods by entries a frame; milliseconds until the last tail had a lone entry."""

    floods: dict[int, Flood]
    lone_ms: float
    lone_max_ms: float

    def line(self) -> str:
        """For the terminal."""
        floods = "   ".join(
            f"{frame} a frame: {one.delivered:,.0f} delivered/s, server {one.server_cpu:.2f} CPU s/million"
            for frame, one in self.floods.items()
        )
        return f"{floods}   lone: median {self.lone_ms:.1f} ms, max {self.lone_max_ms:.1f} ms"


def one_round(plan: FanoutPlan, pid: int) -> FanoutRound:
    """Lone entries, then the floods."""
    context = multiprocessing.get_context("spawn")
    say, requests = context.Pipe()
    answers, hear = context.Pipe()
    tails = context.Process(target=subscribe, args=(plan, requests, answers))
    tails.start()
    pipes = Pipes(say, hear)
    try:
        assert hear.poll(120), "the tails join within two minutes"
        hear.recv()
        process = context.Process(target=publish_lone, args=(plan,))
        process.start()
        process.join(120)
        arrived(pipes, LONE * plan.tails)
        say.send("flood")
        floods = {frame: one_flood(context, plan, frame, pid, pipes) for frame in FRAMES}
        say.send("end")
        assert hear.poll(60), "the tails end"
        waits: list[float] = hear.recv()
    finally:
        tails.kill()
        tails.join()
    return FanoutRound(floods, statistics.median(waits), max(waits))


class Pipes(NamedTuple):
    """Two ends of pipes to the tails: requests go in, answers come out."""

    say: Any
    hear: Any


def one_flood(context: Any, plan: FanoutPlan, frame: int, pid: int, pipes: Pipes) -> Flood:  # noqa: ANN401 - multiprocessing's
    """Flood, and wait until every tail has all of it."""
    published: Queue[int] = context.Queue()
    begun = context.Event()
    flooding = context.Process(target=publish_flood, args=(plan, frame, begun, published))
    count_before, _, tails_cpu_before = ask(pipes)
    server_cpu_before = cpu_s_of(pid)
    flooding.start()
    assert begun.wait(60), "the publisher begins"
    began = time.perf_counter()
    time.sleep(plan.seconds)
    count, ended, _ = ask(pipes)
    expected = published.get(timeout=ARRIVAL_S_MAX) * plan.tails
    flooding.join(60)
    tails_cpu = arrived(pipes, count_before + expected)
    return Flood(
        (count - count_before) / (ended - began),
        (cpu_s_of(pid) - server_cpu_before) / expected * 1e6,
        (tails_cpu - tails_cpu_before) / expected * 1e6,
    )


def arrived(pipes: Pipes, expected: int) -> float:
    """Wait until the tails have exactly `expected` entries; the processor time that they have used."""
    deadline = time.perf_counter() + ARRIVAL_S_MAX
    while True:
        count, now, cpu_s = ask(pipes)
        assert count <= expected, f"{count - expected} entries too many arrived"
        if count == expected:
            return cpu_s
        assert now < deadline, f"{count} of {expected} entries arrived: a round counts whole or not at all"
        time.sleep(0.2)


def ask(pipes: Pipes) -> tuple[int, float, float]:
    """How many entries have arrived, when that was, and the tails' processor time."""
    pipes.say.send("count")
    assert pipes.hear.poll(60), "the tails answer"
    answer: tuple[int, float, float] = pipes.hear.recv()
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


Rounds = dict[str, list[FanoutRound]]


def beside_nats(tails: int, rounds: int, seconds: float) -> Rounds:
    """Alternating rounds, each on a fresh server."""
    found: Rounds = {"weir": [], "nats": []}
    for number in range(rounds):
        for way in ("weir", "nats") if number % 2 == 0 else ("nats", "weir"):
            with gateway() if way == "weir" else nats() as (port, pid):
                found[way].append(one_round(FanoutPlan(way, port, tails, seconds), pid))
            print(f"  {way:6}{found[way][-1].line()}", flush=True)
    return found


def ratio(found: Rounds, figure: Callable[[FanoutRound], float]) -> float:
    """Ours ÷ theirs: the median over rounds that were neighbours."""
    pairs = zip(found["weir"], found["nats"], strict=True)
    return statistics.median(figure(ours) / figure(theirs) for ours, theirs in pairs)


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tails", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(sys.argv[1:])
    found = beside_nats(options.tails, options.rounds, options.seconds)
    for frame in FRAMES:
        value = ratio(found, lambda one, frame=frame: one.floods[frame].delivered)  # type: ignore[misc]
        print(f"  delivered with {frame} a frame, ours ÷ theirs: {value:.2f}")
    print(f"  lone entry at the last tail, ours ÷ theirs: {ratio(found, lambda one: one.lone_ms):.2f}")
    if options.json:
        rounds = {way: [msgspec.to_builtins(one) for one in rounds] for way, rounds in found.items()}
        options.json.write_text(json.dumps({"rounds": rounds}))


if __name__ == "__main__":
    main()
