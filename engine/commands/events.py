"""What happened to a stream, as Redis names it in keyspace notifications.

Knows: the event of each kind of record that has one.
Must never know: which clients are notified, channels, flags.

A record that several commands make has no event here: the command notes it.
"""

from typing import Final

from engine.records import (
    Append,
    CreateConsumer,
    CreateGroup,
    CreateStream,
    Cut,
    Record,
    Remove,
    RemoveConsumer,
    RemoveGroup,
    SetCounters,
    SetLifetime,
)

_EVENTS: Final[dict[type[Record], str]] = {
    Append: "xadd",
    CreateConsumer: "xgroup-createconsumer",
    CreateGroup: "xgroup-create",
    CreateStream: "new",
    Cut: "xtrim",
    RemoveConsumer: "xgroup-delconsumer",
    RemoveGroup: "xgroup-destroy",
    SetCounters: "xsetid",
}


def event_of(record: Record) -> str | None:
    """The event that the change is, None for a change that is none."""
    if isinstance(record, Remove):
        return "xdel" if record.tombstone else "xtrim"
    if isinstance(record, SetLifetime):
        return "persist" if record.expires_at_ms is None else "expire"
    return _EVENTS.get(type(record))
