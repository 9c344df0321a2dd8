"""The shapes of bodies about groups, consumers and pending entries, for the API's description alone.

Knows: each JSON object of the contract by name. Must never know: how any of them is made.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from app.openapi.schemas import (
    Count,
    EntryId,
    Milliseconds,
    Name,
)

Most = (1 << 53) - 1
Timeout = Annotated[int, Meta(ge=1, le=Most)]


class DeadLetter(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Where entries go that were delivered too often; without `max_deliveries` they go by hand alone."""

    stream: Name
    max_deliveries: Timeout | UnsetType | None = UNSET


class Group(Struct):
    """A group of a stream: where it is, what is pending, how far it is behind (`lag`), and its policy.

    `entries_read` and `lag` are null where they are unknown.
    """

    name: Name
    consumers: Count
    pending: Count
    last_delivered_id: EntryId
    entries_read: Count | None
    lag: Count | None
    dead_letter: DeadLetter | None
    ack_timeout_ms: Milliseconds | None
    consumer_timeout_ms: Milliseconds | None
