"""What is counted, timed and traced in one process, and of which streams, which a setting names by patterns;
and dead letters, which operators find in the log.

Knows: where each is kept, patterns, and what was matched before; of which group a dead letter is, and why.
Must never know: who counts, how it is shown, what entries contain.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

from app import logs
from app.glob import Glob
from app.metrics.counters import Counters
from app.metrics.faults import Faults
from app.metrics.slow_turns import SlowTurns
from app.metrics.tracing import Tracer
from app.settings import Settings
from engine import Clock, ids
from engine.commands.types import XReadGroup
from engine.replies import GroupRead

# IDs in one line of the log; all of them are in the dead-letter stream.
_IDS_MAX: Final = 10
# Groups that dead letters are counted for: more than a scrape shows.
_GROUPS_MAX: Final = 10_000

# A group whose entries cannot be moved has one line in this time: they are tried again at each delivery.
_QUIET_S: Final = 60.0
_REMEDY: Final = "make room for the dead-letter stream, or name another one in the group's dead_letter"

# Stream, group, ID and reason.
MovedEntry = tuple[str, str, int, str]
# Stream, group, dead-letter stream and why it takes none.
RefusedEntry = tuple[str, str, str, str]


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


class DeadLetterLog:
    """Logs the dead letters of each turn. `total` and `by_group` count them since the start, `refused_total`
    the attempts that failed.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.total = 0
        # Entries that were too old to be delivered, with a dead letter or without.
        self.expired_total = 0
        self.refused_total = 0
        self._monotonic = monotonic
        # Until when nothing is logged of entries of a stream and group that cannot be moved.
        self._quiet_until_s: dict[tuple[str, str], float] = {}
        # By stream and group, of the groups that were the first to have some.
        self.by_group: dict[tuple[str, str], int] = {}

    def note(self, letters: Sequence[MovedEntry]) -> None:
        """Count dead letters and log one warning for each group and reason."""
        self.total += len(letters)
        for (stream, group, reason), run in groupby(letters, lambda one: (one[0], one[1], one[3])):
            some = list(run)
            known = self.by_group.get((stream, group))
            if known is not None or len(self.by_group) < _GROUPS_MAX:
                self.by_group[stream, group] = (known or 0) + len(some)
            moved = [ids.format(entry_id) for _, _, entry_id, _ in some]
            logs.get().warning(
                "dead letters",
                stream=logs.escape(stream),
                group=logs.escape(group),
                reason=logs.escape(reason),
                count=len(moved),
                ids=moved[:_IDS_MAX],
            )

    def note_expired(self, expired: Sequence[tuple[str, str, int]]) -> None:
        """Count entries that were too old to be delivered, by stream and group."""
        self.expired_total += sum(count for _, _, count in expired)

    def note_refused(self, refused: Sequence[RefusedEntry]) -> None:
        """Count entries that could not be moved, and log them once a minute for each group."""
        self.refused_total += len(refused)
        now_s = self._monotonic()
        for (stream, group, letters, why), count in Counter(refused).items():
            if now_s < self._quiet_until_s.get((stream, group), now_s):
                continue
            if len(self._quiet_until_s) >= _GROUPS_MAX:
                self._quiet_until_s.clear()
            self._quiet_until_s[stream, group] = now_s + _QUIET_S
            logs.get().error(
                "dead letters cannot be moved",
                stream=logs.escape(stream),
                group=logs.escape(group),
                dead_letter_stream=logs.escape(letters),
                reason=logs.escape(why),
                count=count,
                remedy=_REMEDY,
            )


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
