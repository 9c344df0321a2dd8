"""kill -9 among streams that expire: none dies before its time, none comes back after it."""

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.crash.harness import MODES, Client, call, working
from tests.server import Server

KILLS: Final = 4
MAKERS: Final = 2
LOAD_S: Final = (0.3, 0.8)
# Some expire under load, some while the gateway is down or starts, some later.
LIFETIME_MS: Final = (50, 8_000)
NEVER_MS: Final = 1 << 60


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Maker(Client):
    """Makes streams, prolongs and shortens lifetimes. `known` is when each stream expires, by name: the
    earliest and the latest time. They differ where no answer came.
    """

    def __init__(self, port: int, name: str, known: dict[str, tuple[int, int]]) -> None:
        super().__init__(port)
        self._name, self._number = name, 0
        self._known = known

    def turn(self) -> bool:
        name = f"{self._name}-{self._number}"
        self._number += 1
        at_ms = wall_ms() + random.randint(*LIFETIME_MS)
        if not self._run(["XADD", name, "1-0", "a", "1"], ["PEXPIREAT", name, at_ms]):
            return False
        self._known[name] = (at_ms, at_ms)
        return self._number % 3 != 0 or self._change(name, at_ms)

    def _change(self, name: str, at_ms: int) -> bool:
        """Another lifetime, for a stream that has a while to live; whether it was answered."""
        if at_ms - wall_ms() < 2_000:
            return True
        wanted_ms = random.choice((at_ms - 1_000, at_ms + 2_000, NEVER_MS))
        self._known[name] = (min(at_ms, wanted_ms), max(at_ms, wanted_ms))
        words = ["PERSIST", name] if wanted_ms == NEVER_MS else ["PEXPIREAT", name, wanted_ms]
        if not self._run(words):
            return False
        self._known[name] = (wanted_ms, wanted_ms)
        return True

    def _run(self, *commands: list[Any]) -> bool:
        return call(self.port, "POST", "/v1/commands/multi-exec", list(commands)) is not None


def check(port: int, known: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Each stream is there until its time and not after it; how many are there, and how many are not."""
    names = list(known)
    before_ms = wall_ms()
    answers = call(port, "POST", "/v1/commands/pipeline", [["EXISTS", name] for name in names])
    after_ms = wall_ms()
    there = [answer["result"] == 1 for answer in answers]
    for name, is_there in zip(names, there, strict=True):
        earliest_ms, latest_ms = known[name]
        if is_there:
            assert before_ms < latest_ms, f"{name} came back {before_ms - latest_ms} ms after its time"
        else:
            assert earliest_ms <= after_ms, f"{name} died {earliest_ms - after_ms} ms before its time"
    return sum(there), len(there) - sum(there)


@pytest.mark.halved
@pytest.mark.parametrize("options", MODES)
def test_lifetimes_outlive_kill_9(options: tuple[str, ...], tmp_path: Path) -> None:
    """Those that end while the gateway is down too; and a log that is rewritten brings none back."""
    with Server(tmp_path / "data", *options) as server:
        known: dict[str, tuple[int, int]] = {}
        makers = [Maker(server.port, f"{maker}", known) for maker in range(MAKERS)]
        found: list[tuple[int, int]] = []
        for _ in range(KILLS):
            with working(*makers):
                time.sleep(random.uniform(*LOAD_S))
                server.kill()
            server.start()
            found.append(check(server.port, known))
        assert any(alive for alive, _ in found), "some had a while to live"
        assert any(expired for _, expired in found), "some had not"
        time.sleep((LIFETIME_MS[1] + 2_000) / 1_000)
        alive, expired = check(server.port, known)
        # A PERSIST whose answer the kill has cut off may have been done.
        times = list(zip(*known.values(), strict=True))
        assert times[0].count(NEVER_MS) <= alive <= times[1].count(NEVER_MS)
        assert server.stop() == 0
        server.start()
        assert check(server.port, known) == (alive, expired)
