"""What is counted, timed and traced in one process, and of which streams, which a setting names by patterns.

Knows: where each is kept, patterns, and what was matched before. Must never know: who counts, how it is
shown.
"""

from collections.abc import Iterable, Sequence

from app.glob import Glob
from app.metrics.counters import Counters
from app.metrics.dead_letter_log import DeadLetterLog
from app.metrics.faults import Faults
from app.metrics.slow_turns import SlowTurns
from app.metrics.tracing import Tracer
from app.settings import Settings
from engine import Clock
from engine.commands import XReadGroup
from engine.replies import GroupRead


class StreamSelection:
    """The streams whose names match one of some patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._globs = [Glob(pattern.encode()) for pattern in patterns]
        self._is_selected: dict[str, bool] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether there is any pattern."""
        return bool(self._globs)

    @property
    def selected(self) -> Sequence[str]:
        """Those that `select` has found last, in its order."""
        return [name for name, is_selected in self._is_selected.items() if is_selected]

    def select(self, names: Iterable[str]) -> None:
        """Select among all names. Each is matched once for as long as it is there, which takes microseconds:
        run this in a thread.
        """
        known = self._is_selected
        self._is_selected = {
            name: known[name] if name in known else self._matches(name.encode()) for name in names
        }

    def _matches(self, word: bytes) -> bool:
        return any(glob.matches(word) for glob in self._globs)


class Reports:
    """Those of one process."""

    # Without the setting `tracing` there is none.
    tracer: Tracer | None = None
    # WebSocket connections closed by an unexpected exception, since the start.
    failed_conversations = 0

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.counters = Counters()
        self.measured_streams = StreamSelection(settings.metrics_streams)
        self.dead_letters = DeadLetterLog(clock.monotonic)
        self.slow_turns = SlowTurns(clock.wall_ms)
        self.faults = Faults(clock.monotonic)

    def trace_read(self, command: XReadGroup, reply: GroupRead) -> None:
        """Trace what a group is given, if traces are wanted."""
        if self.tracer is not None:
            for stream in reply.streams:
                texts = [entry.text for entry in stream.entries]
                self.tracer.note_read(stream.stream, command.group, command.consumer, texts)
