"""The last turns that held all others up: what SLOWLOG shows.

Knows: commands of the engine by their names and streams. Must never know: who sent them, how a turn runs.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from app.limits import SLOW_TURNS_MAX
from engine.commands.base import Command
from engine.commands.weir_commands import AddEach

# As Redis's SLOWLOG: words of an entry, and bytes of a word.
_WORDS_MAX: Final = 32
_WORD_BYTES_MAX: Final = 128


class SlowTurn(NamedTuple):
    """One of them: its number, when it ended (seconds of the wall clock), how long it took, its commands."""

    number: int
    at_s: int
    micros: int
    words: list[bytes]


class SlowTurns:
    """The last `SLOW_TURNS_MAX`, newest first."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.turns: deque[SlowTurn] = deque(maxlen=SLOW_TURNS_MAX)
        self._wall_ms = wall_ms
        self._total = 0

    def note(self, commands: Sequence[Command], took_s: float) -> None:
        """Remember a turn of these commands."""
        micros = round(took_s * 1_000_000)
        self.turns.appendleft(SlowTurn(self._total, self._wall_ms() // 1000, micros, _words(commands)))
        self._total += 1


def _words(commands: Sequence[Command]) -> list[bytes]:
    """Each command with its streams, equal ones once; how many there are, if several."""
    words: list[bytes] = []
    for named in dict.fromkeys(map(_named, commands)):
        if len(words) + len(named) >= _WORDS_MAX:
            words += [b"..."]
            break
        words += named
    return words if len(commands) == 1 else [*words[:_WORDS_MAX], b"(%d commands)" % len(commands)]


def _named(command: Command) -> tuple[bytes, ...]:
    name = "xadd" if isinstance(command, AddEach) else type(command).__name__.lower()
    shown = (command.named_streams() or ())[: _WORDS_MAX - 2]
    return (name.encode(), *(stream.encode()[:_WORD_BYTES_MAX] for stream in shown))
