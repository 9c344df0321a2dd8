"""Random histories over the wire: a gateway and a server give the same replies, in RESP2 and RESP3.

The histories, and what they leave out with its reason, are those of `tests/engine/test_beside_redis.py`;
crashes of the gateway are not among them. By hand, for long:
`.venv/bin/python -m tests.app.resp.differential --server valkey --protocol 3 --steps 1000000`.

Knows: how the servers are started. Must never know: what a command should answer.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.app.resp.long_histories import compare
from tests.engine.real_redis import BLOCK_S_MAX, PROGRAMS, RealRedis, RedisPeer
from tests.engine.steps import ModelStep
from tests.engine.test_beside_redis import BesideRedis
from tests.server import Server

# Different commands, of which the long histories are made.
DRAWN: Final = 20_000


class GatewayPeer(RedisPeer):
    """The gateway's port, with the methods that the histories want of an engine."""

    def run(self, *steps: ModelStep) -> list[object]:
        """One command, or several as a transaction."""
        if len(steps) == 1:
            return [self.call(*steps[0].words)]
        return self.transaction(*(step.words for step in steps))

    def look(self, step: ModelStep) -> object:
        """The reply of a command that changes nothing."""
        return self.call(*step.words)

    def block(self, name: str, *words: Any) -> bool:
        """Start a read that may wait."""
        return self.block_words(name, *words[0].blocking_words())

    def block_words(self, name: str, *words: str) -> bool:
        """The same by its words."""
        return super().block(name, *words)

    def served(self) -> dict[str, object]:
        """The readers that have their reply, once each."""
        if not self._readers:
            return {}
        # A reply leaves when its record is in the log, and a reader is blocked until then.
        self.call("WAITAOF", "1", "0", "0")
        deadline = time.monotonic() + BLOCK_S_MAX
        while self._ready() + self._blocked() < len(self._readers):
            assert time.monotonic() < deadline, "a reader neither waits nor has a reply"
        return super().served()

    @property
    def readers_waiting(self) -> int:
        """The number of readers that wait in the gateway."""
        return self._blocked()

    def _ready(self) -> int:
        return sum(bool(reader.can_read(timeout=0)) for reader in self._readers.values())

    def check(self) -> None:
        """Every reader that waits here waits there."""
        assert self._blocked() == len(self._readers)

    def end(self) -> None:
        """Leave it empty: the gateway serves the next history as well."""
        self.empty()


class OverTheWire(BesideRedis):
    """The gateway and the server, command by command."""

    def __init__(self, server: RealRedis, gateway: GatewayPeer) -> None:
        self._gateway = gateway
        super().__init__(server)

    def begin_ours(self) -> GatewayPeer:
        """The gateway, empty."""
        self._gateway.empty()
        return self._gateway

    def crash(self) -> None:
        """Not over the wire."""

    def rewrite(self) -> None:
        """Not over the wire."""


@contextmanager
def peers(directory: Path, program: str, protocol: int) -> Iterator[tuple[RealRedis, GatewayPeer]]:
    """A server and a gateway, started here."""
    server = RealRedis(directory, program, protocol)
    path = directory / "weir.sock"
    try:
        with Server(directory / "data", "--resp-listen", f"unix:{path}"):
            gateway = GatewayPeer(path, protocol)
            yield server, gateway
            RedisPeer.end(gateway)
    finally:
        server.end()


@contextmanager
def side_by_side(directory: Path, program: str, protocol: int) -> Iterator[Any]:
    """Begins histories of a server and a gateway that were started here."""
    with peers(directory, program, protocol) as (server, gateway):
        yield partial(OverTheWire, server, gateway)


def main() -> None:
    """Play long histories until there were enough commands; a difference ends it with an error."""
    parser = argparse.ArgumentParser(description="Compare the port with a server, in random histories.")
    parser.add_argument("--server", choices=PROGRAMS, default="redis")
    parser.add_argument("--protocol", type=int, choices=(2, 3), default=3)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, help="the same seed gives the same histories")
    given = parser.parse_args()
    number = random.getrandbits(32) if given.seed is None else given.seed
    with (
        tempfile.TemporaryDirectory() as directory,
        peers(Path(directory), given.server, given.protocol) as (server, gateway),
    ):
        histories, played = compare(server, gateway, steps=given.steps, drawn=DRAWN, seed_number=number)
    print(f"seed {number}: {histories} histories, {played} commands: no difference")  # noqa: T201


if __name__ == "__main__":
    main()
