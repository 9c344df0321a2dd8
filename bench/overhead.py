"""What counting requests and knowing tokens cost a publish: processor time on the fast path, in this process.

Three gateways take the same requests in alternating rounds, each over 32 connections without sockets: one
that counts nothing, one as it is, one with tokens. The least of the short rounds counts: what else the
machine does only adds to them. A real request costs several times as much, by its system calls: these are the
highest shares there can be.

    python -m bench.overhead [--rounds 201] [--requests 960]
"""

import argparse
import asyncio
import gc
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvloop

from app.auth import Grant, token_file, tokens
from app.http.middleware.request_id import RequestIds
from app.main import create_app
from app.server import http_server
from app.settings import Settings
from engine import Engine, SystemClock

CONNECTIONS: Final = 32
GOAL_PERCENT: Final = 2.0
_BODY: Final = b'{"fields":{"temperature":"19.8"}}'
# A world takes a few rounds until its connections know their callers.
_WARM_UP_ROUNDS: Final = 2
_SETTLE_S: Final = 0.005


class Uncounted(RequestIds):
    """Counts nothing, and writes no line."""

    def count(self, route: str, status: int, began_s: float | None) -> None:
        """Leave it at that."""


class Written(asyncio.Transport):
    """A transport that counts answers, and whose peer has taken them."""

    def __init__(self, peer: socket.socket) -> None:
        super().__init__()
        self._peer = peer
        self.answers = 0
        self.last = b""

    def write(self, data: Any) -> None:  # noqa: ANN401 - any buffer
        """One answer."""
        self.answers += 1
        self.last = bytes(data)

    def is_closing(self) -> bool:
        """Never."""
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - of asyncio
        """As a socket on loopback has it."""
        found = {"socket": self._peer, "peername": ("127.0.0.1", 5_000), "sockname": ("127.0.0.1", 8_080)}
        return found.get(name, default)


class World:
    """A gateway in memory, and its connections."""

    def __init__(self, place: Path, *, has_token: bool, counts: bool) -> None:
        options: dict[str, Any] = {"port": 8_080, "log_requests": "none"}
        authorization = ""
        if has_token:
            made = tokens.create((Grant.parse("read,write:*"),))
            (place / "tokens.toml").write_text(token_file.write(made.token))
            options["tokens_file"] = str(place / "tokens.toml")
            authorization = f"Authorization: Bearer {made.text}\r\n"
        self._settings = Settings(**options)
        self._app = create_app(self._settings, SystemClock())
        assert self._app.fast_path is not None, "it is on"
        if not counts:
            self._app.fast_path.request_ids.__class__ = Uncounted
        head = f"Content-Type: application/json\r\n{authorization}Content-Length: {len(_BODY)}\r\n\r\n"
        self._sent = f"POST /v1/streams/s/entries HTTP/1.1\r\nHost: localhost\r\n{head}".encode() + _BODY
        self._lines: list[tuple[Any, Written]] = []

    async def open(self, peer: socket.socket) -> None:
        """Start the engine, and connect."""
        engine = Engine.open(None, clock=SystemClock())
        await engine.start()
        self._app.gateway.open(engine)
        server = http_server(self._settings, self._app)
        for _ in range(CONNECTIONS):
            connection: Any = server.connect()
            self._lines.append((connection, Written(peer)))
            connection.connection_made(self._lines[-1][1])

    async def publish_us(self, requests: int) -> float:
        """Processor time of one request, in microseconds."""
        # An answer that is still under way from before would be counted as one of this round.
        await asyncio.sleep(_SETTLE_S)
        wanted = sum(written.answers for _, written in self._lines)
        before_s = time.thread_time()
        for _ in range(requests // CONNECTIONS):
            for connection, _ in self._lines:
                connection.data_received(self._sent)
            wanted += CONNECTIONS
            # Answers leave in the next cycles.
            while sum([written.answers for _, written in self._lines]) < wanted:  # noqa: ASYNC110 - bounded
                await asyncio.sleep(0)
        spent_s = time.thread_time() - before_s
        for _, written in self._lines:
            assert written.last.startswith(b"HTTP/1.1 201 "), written.last
        return spent_s / (requests // CONNECTIONS * CONNECTIONS) * 1e6


async def measure(place: Path, rounds: int, requests: int) -> dict[str, list[float]]:
    """Microseconds of each round, by world."""
    worlds = {
        "uncounted": World(place, has_token=False, counts=False),
        "counted": World(place, has_token=False, counts=True),
        "with a token": World(place, has_token=True, counts=True),
    }
    found: dict[str, list[float]] = {name: [] for name in worlds}
    gc.disable()
    with socket.socket() as peer:
        for world in worlds.values():
            await world.open(peer)
        for number in range(rounds + _WARM_UP_ROUNDS):
            for name in list(worlds)[:: 1 if number % 2 else -1]:
                took_us = await worlds[name].publish_us(requests)
                if number >= _WARM_UP_ROUNDS:
                    found[name].append(took_us)
    return found


def main() -> None:
    """Print what each costs beside the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=201)
    parser.add_argument("--requests", type=int, default=960)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = uvloop.run(measure(Path(place), options.rounds, options.requests))
    base = found["uncounted"]
    for name, took_us in found.items():
        percent = 100 * (min(took_us) / min(base) - 1)
        print(f"{name:14}{min(took_us):7.2f} us   {percent:+.1f} %   goal <= {GOAL_PERCENT} %")


if __name__ == "__main__":
    main()
