"""The commands of schedules: entries that are appended at a time of their own.

Knows: the arguments of each. Must never know: HTTP, how rules are written by clients, what a command does.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec

from engine import rows
from engine.commands.base import Command, MemoryNeed, StreamCommand
from engine.commands.types import XAdd
from engine.keyspace import Keyspace
from engine.name_marks import Body
from engine.recurrence import Rule

# What a schedule takes, and the rarest times of a cron expression.
_SET_US: Final = 30
_CRON_US: Final = 1_000


class NewSchedule(msgspec.Struct, frozen=True):
    """An entry, as its body, and when it is to be appended."""

    name: str
    body: Body
    rule: Rule


class Pause(msgspec.Struct, frozen=True):
    """Whether a schedule is paused: until a time, or until that is lifted."""

    on: bool = True
    until_ms: int | None = None


class SetSchedule(StreamCommand, frozen=True, kw_only=True):
    """Schedule an entry; a stream that is missing is made. Reply: `ScheduleSet`.

    One of that name with the same definition stays, with its next time; another one is replaced, unless
    `only_new`. Without `recurring` it neither makes nor replaces what recurs. A `pause` that is not given
    stays as it is.
    """

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    schedule: NewSchedule
    only_new: bool = False
    recurring: bool = True
    pause: Pause | None = None

    def entry_bytes(self) -> int:
        return len(self.schedule.body)

    def work_us(self, keyspace: Keyspace) -> int:
        return _CRON_US if self.schedule.rule.cron is not None else _SET_US


class AddScheduled(StreamCommand, frozen=True, kw_only=True):
    """Append the entries of `add`, schedule others, and cancel a schedule: all or nothing. Reply:
    `AddedScheduled`, or None where the stream is missing and not to be made.

    A schedule with the name of an earlier one replaces it. Without `recurring` none that recurs is touched.
    With `cancel_required` a schedule that is not there any more refuses everything.
    """

    add: XAdd | None = None
    later: Sequence[NewSchedule] = ()
    cancel: str | None = None
    cancel_required: bool = False
    mkstream: bool = True
    recurring: bool = True

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        return MemoryNeed.NONE if self.add is None and not self.later else MemoryNeed.ADDS

    def entry_bytes(self) -> int:
        added_bytes = 0 if self.add is None else self.add.entry_bytes()
        return added_bytes + rows.size([one.body for one in self.later])


class CancelSchedule(StreamCommand, frozen=True, kw_only=True):
    """Forget a schedule. Reply: True; one that is not there is refused."""

    makes_room: ClassVar[bool] = True

    name: str
    recurring: bool = True


class PauseSchedule(StreamCommand, frozen=True, kw_only=True):
    """Pause a schedule, or go on with it. Reply: `ScheduleSet`."""

    long_reply: ClassVar[bool] = True

    name: str
    pause: Pause
    recurring: bool = True

    def work_us(self, keyspace: Keyspace) -> int:
        return _CRON_US


class FireSchedule(StreamCommand, frozen=True, kw_only=True):
    """Append the entry of a schedule now. One that recurs keeps its next time. Reply: `Added`."""

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    name: str
    recurring: bool = True


class DescribeSchedule(StreamCommand, frozen=True, kw_only=True):
    """Reply: `ScheduleInfo`."""

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    name: str


class ListSchedules(StreamCommand, frozen=True, kw_only=True):
    """Reply: `SchedulePage`, at most `limit` and 8 MiB: behind a time and a name, before a time. With
    `by_name`: those whose names are between two names.
    """

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    by_name: bool = False
    after: tuple[int, str] = (0, "")
    before_ms: int | None = None
    before: str | None = None
    limit: int = 100


class FireDueSchedules(Command, frozen=True, kw_only=True):
    """The gateway runs it when the time of a schedule has come: append what is due, a bounded part of it in
    one turn, as long as it `has_time`. A stream that takes no entries is tried again a second later. Reply:
    whether there is more.
    """

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS
    is_internal: ClassVar[bool] = True

    has_time: Callable[[], bool] = lambda: True
