"""What happens to entries of a group that are not acknowledged: time-outs, and how often they are delivered.

Must never know: what time it is, what a dead letter holds.
"""

from typing import Any, Final

from engine.groups import Group, GroupPart
from engine.parts.part import Streams, counted
from engine.record import Record

# What it takes, about, with the name of a stream.
_REDELIVERY_BYTES: Final = 200


class Redelivery(GroupPart):
    """None is nothing of each. A delivery beyond `max_deliveries` goes to the stream `dead_letter_stream`
    instead. Entries idle for `ack_timeout_ms` are released for the next reader, and so are those of consumers
    not seen for `consumer_timeout_ms`, which are then removed.
    """

    __slots__ = ("ack_timeout_ms", "consumer_timeout_ms", "dead_letter_stream", "max_deliveries")
    rank = 10
    settings = dict.fromkeys(
        ("dead_letter_stream", "max_deliveries", "ack_timeout_ms", "consumer_timeout_ms")
    )

    def __init__(
        self,
        dead_letter_stream: str | None = None,
        max_deliveries: int | None = None,
        ack_timeout_ms: int | None = None,
        consumer_timeout_ms: int | None = None,
    ) -> None:
        self.dead_letter_stream, self.max_deliveries = dead_letter_stream, max_deliveries
        self.ack_timeout_ms, self.consumer_timeout_ms = ack_timeout_ms, consumer_timeout_ms

    @classmethod
    def change(cls, stream: str, group: str, values: Any) -> Record:  # noqa: ANN401 - its settings
        """All four."""
        return SetPolicy(stream, group, **values)

    @property
    def has_timeout(self) -> bool:
        """Whether time changes something in the group."""
        return self.ack_timeout_ms is not None or self.consumer_timeout_ms is not None

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return _REDELIVERY_BYTES


_NOTHING_SET: Final = Redelivery()


def redelivery_of(group: Group) -> Redelivery:
    """What the group has of it, or what all others have."""
    for part in group.parts:
        if type(part) is Redelivery:
            return part
    return _NOTHING_SET


class SetPolicy(Record, frozen=True):
    """What happens to a group's entries that are not acknowledged."""

    number = 24
    stream: str
    group: str
    dead_letter_stream: str | None
    max_deliveries: int | None
    ack_timeout_ms: int | None
    consumer_timeout_ms: int | None

    def apply(self, keyspace: Streams) -> None:
        times_ms = self.ack_timeout_ms, self.consumer_timeout_ms
        with counted(keyspace, self.stream, self.group) as group:
            group.put_part(Redelivery(self.dead_letter_stream, self.max_deliveries, *times_ms))
        keyspace.maintained[self.stream] = None
