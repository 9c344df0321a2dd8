"""Turns of the naive model: commands one after the other, who waits meanwhile, and who is served first.

Knows: the two clocks, first come first served, original deadlines (docs/semantics.md).
Must never know: the engine's code, and what any command does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.engine.model_state import Refusal

Reply = object
# Takes the model.
Play = Callable[[Any], Reply]

BLOCK_MS: Final = 60_000


class WouldBlock(Exception):  # noqa: N818 - not an error
    """A read found nothing and waits: what to play again, and when at the latest without any write."""

    def __init__(
        self,
        key: str,
        again: Play,
        ready: Callable[[Any], bool],
        wait_key: object,
        due: Callable[[Any], int | None],
    ) -> None:
        super().__init__()
        self.key, self.again, self.ready = key, again, ready
        # Reads with one wait key come due together: `due` says when (wall clock), None for never.
        self.wait_key, self.due = wait_key, due


@dataclass
class ModelWaiter:
    """A reader that waits; the deadline is of the monotonic clock."""

    name: str
    blocked: WouldBlock
    deadline: int


class ModelTurns:
    """`run` plays commands as one turn. `served` is who was answered since, with what."""

    def __init__(self, now: int = 1) -> None:
        self.now = now
        self.monotonic = 0
        self.waiters: list[ModelWaiter] = []
        self.served: dict[str, Reply] = {}
        self._signals: list[str] = []
        # When (monotonic clock) reads with a wait key come due.
        self._retries: dict[object, int] = {}

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
        except WouldBlock as blocked:
            self._block(name, blocked, self.monotonic + BLOCK_MS)
            return True
        return False

    def read_in_vain(self, play: Play, words: Sequence[str]) -> None:
        """Play a read whose reader leaves before it is answered: new entries are as if nobody had read them,
        and who waits for them is served.
        """
        before = self.positions(words)
        self._play(play)
        self._serve()
        for key, undo in before.items():
            if undo():
                self._signals.append(key)
        self._serve()

    def positions(self, words: Sequence[str]) -> dict[str, Callable[[], bool]]:
        """For each stream that a group reads new entries of: what undoes that. It returns whether there was
        anything to undo.
        """
        raise NotImplementedError

    def cancel(self, name: str) -> None:
        self.waiters = [waiter for waiter in self.waiters if waiter.name != name]
        kins = {waiter.blocked.wait_key for waiter in self.waiters}
        self._retries = {wait_key: at for wait_key, at in self._retries.items() if wait_key in kins}

    def pass_ms(self, wall: int, monotonic: int) -> None:
        """Let time pass; whose time is over is answered null, whose claim is due tries again."""
        self.now += wall
        self.monotonic += monotonic
        self.end_lifetimes()
        self.release_deferred()
        for waiter in [each for each in self.waiters if each.deadline <= self.monotonic]:
            self.cancel(waiter.name)
            self.served[waiter.name] = None
        due = sorted((at, wait_key) for wait_key, at in self._retries.items() if at <= self.monotonic)
        for _, wait_key in due:
            del self._retries[wait_key]
            self._signals += [each.blocked.key for each in self.waiters if each.blocked.wait_key == wait_key][
                :1
            ]
        self._serve()

    def release_deferred(self) -> None:
        """Give back what was deferred until now."""
        raise NotImplementedError

    def end_lifetimes(self) -> None:
        """Remove what has expired by now."""
        raise NotImplementedError

    def _play(self, play: Play) -> Reply:
        try:
            return play(self)
        except Refusal as refusal:
            return f"-{refusal}"
        except WouldBlock:
            return None

    def _block(self, name: str, blocked: WouldBlock, deadline: int) -> None:
        self.waiters.append(ModelWaiter(name, blocked, deadline))
        self._look_again(blocked)

    def _look_again(self, blocked: WouldBlock) -> None:
        due = blocked.due(self)
        if due is not None:
            at = self.monotonic + max(0, due - self.now)
            self._retries[blocked.wait_key] = min(at, self._retries.get(blocked.wait_key, at))

    def _serve(self) -> None:
        signals, self._signals = self._signals, []
        for key in dict.fromkeys(signals):
            for waiter in [each for each in self.waiters if each.blocked.key == key]:
                # Weir's own: a reader that can't find anything is not run again.
                if waiter.blocked.ready(self):
                    self._again(waiter)
            for waiter in self.waiters:
                if waiter.blocked.key == key:
                    self._look_again(waiter.blocked)

    def _again(self, waiter: ModelWaiter) -> None:
        self.cancel(waiter.name)
        try:
            self.served[waiter.name] = waiter.blocked.again(self)
        except Refusal as refusal:
            self.served[waiter.name] = f"-{refusal}"
        except WouldBlock as blocked:
            self._block(waiter.name, blocked, waiter.deadline)

    def signal(self, key: str) -> None:
        self._signals.append(key)
