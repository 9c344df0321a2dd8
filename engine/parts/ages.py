"""From which age on a group acknowledges entries in place of delivering them.

Must never know: what time it is, how they are acknowledged.

An entry's age is the time since the milliseconds of its ID: one with an explicit ID is as old as that says.
"""

from typing import Any, Final

from engine import ids
from engine.groups import Group, GroupPart
from engine.parts.part import Streams, counted
from engine.record import Record

_AGE_BYTES: Final = 80


class MaxAge(GroupPart):
    """The age of the oldest entries that are delivered."""

    __slots__ = ("max_age_ms",)
    rank = 20
    settings = dict.fromkeys(("max_age_ms",))

    def __init__(self, max_age_ms: int | None) -> None:
        self.max_age_ms = max_age_ms

    @classmethod
    def change(cls, stream: str, group: str, values: Any) -> Record:  # noqa: ANN401 - its settings
        """None for no age."""
        return LimitAge(stream, group, **values)

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return _AGE_BYTES


def delivers_from(group: Group, now_ms: int) -> int:
    """The lowest ID that the group delivers: those below it are too old."""
    for part in group.parts:
        if type(part) is MaxAge and part.max_age_ms is not None:
            return ids.make(max(0, now_ms - part.max_age_ms), 0)
    return 0


class LimitAge(Record, frozen=True):
    """From which age on a group acknowledges entries in place of delivering them; None for no age."""

    number = 43
    stream: str
    group: str
    max_age_ms: int | None

    def apply(self, keyspace: Streams) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            group.put_part(MaxAge(self.max_age_ms))
