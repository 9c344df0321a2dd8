"""The shapes of bodies about groups, consumers and pending entries, for the API's description alone.

Knows: each JSON object of the contract by name. Must never know: how any of them is made.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from app.openapi.schemas import (
    NAME_CHARACTERS,
    NOT_DOTS,
    Count,
    EntryId,
    Ids,
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


DeadLetterBound = Annotated[
    str,
    Meta(
        pattern=r"^([-+]|\(?[0-9]{1,20}(-[0-9]{1,20})?)$",
        extra_json_schema={"format": "entry-bound"},
    ),
]


class DeadLetterFilter(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Which dead letters of the group are meant: all that each given member fits."""

    start: (
        Annotated[
            DeadLetterBound,
            Meta(description="first ID in the dead-letter stream; `(` and an answer's `next` goes on"),
        ]
        | UnsetType
        | None
    ) = UNSET
    end: (
        Annotated[DeadLetterBound, Meta(description="last ID in the dead-letter stream")] | UnsetType | None
    ) = UNSET
    consumer: (
        Annotated[
            str,
            Meta(
                max_length=512,
                pattern=f"^({NOT_DOTS}{NAME_CHARACTERS}+)?$",
                description="who held the entry last; empty: it had been given back",
            ),
        ]
        | UnsetType
        | None
    ) = UNSET
    reason: (
        Annotated[
            str, Meta(max_length=1000, description="`max_deliveries`, or the words of who moved it by hand")
        ]
        | UnsetType
        | None
    ) = UNSET


class Redrive(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Dead letters to put back: `ids` of entries in the group's dead-letter stream, or at most `count` that a
    filter fits; without both the first `count` of the group.
    """

    ids: Ids | UnsetType = UNSET
    filter: DeadLetterFilter | UnsetType | None = UNSET
    count: (
        Annotated[int, Meta(ge=1, le=10_000, description="100 by default; not with `ids`")] | UnsetType | None
    ) = UNSET
    dry_run: Annotated[bool, Meta(description="change nothing, and answer what would be done")] = False


class RedrivenEntry(Struct):
    """A dead letter that was, and the entry that it has become; of a dry run null."""

    dead_letter_id: EntryId
    id: EntryId | None


class Redriven(Struct):
    """What was put back from the dead-letter stream `stream`. As much as one turn takes: `next` is the last
    dead letter that was looked at, null where there are no others.
    """

    stream: Name
    redriven: Count
    entries: list[RedrivenEntry]
    next: EntryId | None
    duplicate: Annotated[bool, Meta(description="answered as the first time under this key")]
