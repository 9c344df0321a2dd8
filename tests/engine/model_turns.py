"""Turns of the naive model: commands one after the other, who waits meanwhile, and who is served first.

Knows: the two clocks, first come first served, original deadlines (semantics.md 1.10).
Must never know: the engine's code, and what any command does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.engine.model_state import Refusal

Reply = object
# Takes the model.
Play = Callable[[Any], Reply]

BLOCK_MS: Final = 60_000


class Parked(Exception):  # noqa: N818 - not an error
    """A read found nothing and waits: what to play again, and when at the latest without any write."""

    def __init__(self, key: str, again: Play, ready: Callable[[Any], bool], retry_at: int | None) -> None:
        super().__init__()
        self.key, self.again, self.ready, self.retry_at = key, again, ready, retry_at


@dataclass
class Waiter:
    """A reader that waits; times are of the monotonic clock."""

    name: str
    parked: Parked
    deadline: int
    retry_at: int | None
    serial: int

    def due(self) -> int:
        return self.deadline if self.retry_at is None else min(self.deadline, self.retry_at)


class Turns:
    """`run` plays commands as one turn. `served` is who was answered since, with what."""

    def __init__(self, now: int = 1) -> None:
        self.now = now
        self.monotonic = 0
        self.waiters: list[Waiter] = []
        self.served: dict[str, Reply] = {}
        self._signals: list[str] = []
        self._serial = 0

    # --- turns and waiting ----------------------------------------------------------------------------------

    def run(self, *plays: Play) -> list[Reply]:
        """Play commands as one turn, in which nothing waits; then serve those that wait."""
        replies = [self._play(play) for play in plays]
        self._serve()
        return replies

    def block(self, name: str, play: Play) -> bool:
        """Play a read that may wait; whether it does. Its reply comes in `served`."""
        try:
            self.served[name] = play(self)
        except Refusal as refusal:
            self.served[name] = f"-{refusal}"
        except Parked as parked:
            self._park(name, parked, self.monotonic + BLOCK_MS)
            return True
        return False

    def cancel(self, name: str) -> None:
        self.waiters = [waiter for waiter in self.waiters if waiter.name != name]

    def pass_ms(self, wall: int, monotonic: int) -> None:
        """Let time pass; whose time is over is answered null, whose claim is due tries again."""
        self.now += wall
        self.monotonic += monotonic
        while due := [waiter for waiter in self.waiters if waiter.due() <= self.monotonic]:
            waiter = min(due, key=lambda each: (each.due(), each.serial))
            if waiter.deadline <= self.monotonic:
                self.cancel(waiter.name)
                self.served[waiter.name] = None
            else:
                self._again(waiter)

    def _play(self, play: Play) -> Reply:
        try:
            return play(self)
        except Refusal as refusal:
            return f"-{refusal}"
        except Parked:
            return None

    def _park(self, name: str, parked: Parked, deadline: int) -> None:
        retry_at = None if parked.retry_at is None else self.monotonic + max(0, parked.retry_at - self.now)
        self._serial += 1
        self.waiters.append(Waiter(name, parked, deadline, retry_at, self._serial))

    def _serve(self) -> None:
        signals, self._signals = self._signals, []
        for key in dict.fromkeys(signals):
            for waiter in [each for each in self.waiters if each.parked.key == key]:
                # Weir's own: a reader that can't find anything is not run again.
                if waiter.parked.ready(self):
                    self._again(waiter)

    def _again(self, waiter: Waiter) -> None:
        self.cancel(waiter.name)
        try:
            self.served[waiter.name] = waiter.parked.again(self)
        except Refusal as refusal:
            self.served[waiter.name] = f"-{refusal}"
        except Parked as parked:
            self._park(waiter.name, parked, waiter.deadline)

    def signal(self, key: str) -> None:
        self._signals.append(key)
