"""What is counted, timed and traced in one process.

Knows: where each is kept. Must never know: who counts, how it is shown.
"""

from app.metrics.counters import Counters
from app.metrics.dead_letter_log import DeadLetterLog
from app.metrics.slow_turns import SlowTurns
from app.metrics.stream_selection import StreamSelection
from app.metrics.tracing import Tracer
from app.settings import Settings
from engine import Clock
from engine.replies import GroupRead


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

    def trace_read(self, group: str, consumer: str, reply: GroupRead) -> None:
        """Trace what a group is given, if traces are wanted."""
        if self.tracer is not None:
            for one in reply.streams:
                self.tracer.note_read(one.stream, group, consumer, [entry.text for entry in one.entries])
