"""How many entries for later there are, as a gateway knows it.

Knows: what rounds over the streams have found, and what this gateway has added since.
Must never know: connections, rules.

    the gateway that goes round    what it has found at each server ──► figures, in its lease
    every gateway                  these figures, and what it has added since the round before

So several gateways may add more than there is room for, until the next round has counted it.
"""

from collections.abc import Collection, Hashable

from engine.commands.base import Command
from engine.commands.schedule_commands import AddScheduled, CancelSchedule, SetSchedule
from engine.errors import EngineError
from engine.keyspace import CAPS_DEFAULT
from engine.replies import AddedScheduled, Dropped, Reply, ScheduleSet

# Of one stream: how many, and for how long the first has been due.
_Row = tuple[int, int]


class ScheduleCounts:
    """What one gateway knows. Servers are named by anything."""

    def __init__(self) -> None:
        self.most = CAPS_DEFAULT.schedules_max
        # As the last round has found them: how many, for how long the first has been due, which round.
        self.figures = ""
        self.late_ms = 0
        self._counted = 0
        self._rounds = 0
        # By server and stream, of the round that goes on, and of the last one that has come to its end.
        self._found: dict[Hashable, dict[str, _Row]] = {}
        self._last: dict[Hashable, dict[str, _Row]] = {}
        # What was added behind the end of the last round, and during it, which may be counted or not.
        self._added = self._added_before = 0
        # How many have gone with streams that were ended by this gateway, or were found gone by it.
        self.dropped = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return max(0, self._counted + self._added_before + self._added)

    @property
    def room(self) -> int:
        """How many more there may be."""
        return max(0, self.most - self.count)

    def note_run(self, command: Command, reply: Reply | EngineError) -> None:
        """A command has run here."""
        if isinstance(command, SetSchedule) and isinstance(reply, ScheduleSet):
            self._added += reply.created
        elif isinstance(command, AddScheduled) and isinstance(reply, AddedScheduled):
            self._added += len(reply.scheduled) - reply.cancelled
        elif isinstance(command, CancelSchedule) and reply is True:
            self._added -= 1
        elif isinstance(reply, Dropped):
            self._added -= reply.schedules
            self.dropped += reply.schedules

    def note_found(self, server: Hashable, stream: str, count: int, due_ms: int | None) -> None:
        """The round has found this stream, whose first schedule is due after `due_ms`."""
        rows = self._found.setdefault(server, {})
        rows.pop(stream, None)
        if count:
            rows[stream] = count, max(0, -(due_ms or 0))

    def end_round(self, server: Hashable, servers: Collection[Hashable]) -> None:
        """The round has come to its end at one of the servers."""
        self._last[server] = self._found.pop(server, {})
        if not all(one in self._last for one in servers):
            return
        rows = [row for one in servers for row in self._last[one].values()]
        self._last.clear()
        self._rounds += 1
        late_ms = max((late for _, late in rows), default=0)
        self.take_figures(f"{sum(count for count, _ in rows)} {late_ms} {self._rounds}")

    def take_figures(self, figures: str) -> None:
        """What the gateway that goes round has found."""
        if figures and figures != self.figures:
            self.figures = figures
            self._counted, self.late_ms, _ = map(int, figures.split())
            self._added, self._added_before = 0, self._added
