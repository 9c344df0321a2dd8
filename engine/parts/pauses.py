"""That a group delivers nothing for now.

Must never know: who pauses it, and who waits meanwhile.
"""

from typing import Any, Final

from engine.groups import GroupPart
from engine.parts.part import Streams, counted
from engine.record import Record

_PAUSE_BYTES: Final = 80


class Paused(GroupPart):
    """The group is paused: one that goes on has nothing of it."""

    __slots__ = ("paused",)
    rank = 30
    settings = dict.fromkeys(("paused",), False)
    pauses = True

    def __init__(self, paused: bool) -> None:  # noqa: FBT001 - as its record has it
        self.paused = paused

    @classmethod
    def change(cls, stream: str, group: str, values: Any) -> Record:  # noqa: ANN401 - its settings
        """Whether it is."""
        return PauseGroup(stream, group, **values)

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return _PAUSE_BYTES


class PauseGroup(Record, frozen=True):
    """A group delivers nothing from now on, or goes on delivering."""

    number = 42
    stream: str
    group: str
    paused: bool

    def apply(self, keyspace: Streams) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            group.put_part(Paused(self.paused))
