"""The shapes of bodies about groups, consumers and pending entries, for the API's description alone.

Knows: each JSON object of the contract by name. Must never know: how any of them is made.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from app.openapi.schemas import (
    NAME_CHARACTERS,
    NOT_DOTS,
    Count,
    Cursor,
    DeliveredEntry,
    EntryId,
    Ids,
    LookedUpIds,
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


class GroupPage(Struct):
    """Groups by name; `next` is the name to go on `after`, null at the end."""

    groups: list[Group]
    next: Name | None


class GroupPolicy(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What becomes of entries that are not acknowledged."""

    dead_letter: DeadLetter | UnsetType | None = UNSET
    ack_timeout_ms: (
        Annotated[
            Timeout | None,
            Meta(description="entries idle for so long are released: the next reader that claims gets them"),
        ]
        | UnsetType
    ) = UNSET
    consumer_timeout_ms: (
        Annotated[
            Timeout | None,
            Meta(
                description="consumers that have not read or been connected for so long are removed, and "
                "what they hold is released"
            ),
        ]
        | UnsetType
    ) = UNSET


class EnsuredGroup(GroupPolicy, omit_defaults=True, forbid_unknown_fields=True):
    """A group that is to be there. One that is keeps its position and its policy."""

    start: Cursor = "$"
    mkstream: Annotated[bool, Meta(description="make the stream where it is missing")] = True
    entries_read: (
        Annotated[Count | None, Meta(description="keeps the lag of a new group exact")] | UnsetType
    ) = UNSET


class NewGroup(GroupPolicy, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A group to make."""

    name: Name
    start: Cursor = "$"
    mkstream: Annotated[bool, Meta(description="make the stream where it is missing")] = False
    entries_read: (
        Annotated[Count | None, Meta(description="keeps the lag of a new group exact")] | UnsetType
    ) = UNSET


class GroupChanges(GroupPolicy, omit_defaults=True, forbid_unknown_fields=True):
    """What is to change; what is not named stays. Null takes a part of the policy away."""

    last_delivered_id: Cursor | UnsetType | None = UNSET
    entries_read: Count | UnsetType | None = UNSET


class Consumer(Struct):
    """A consumer of a group: what it holds, when it last asked (`idle_ms`) and last got something
    (`inactive_ms`, null before the first time).
    """

    name: Name
    pending: Count
    idle_ms: Milliseconds
    inactive_ms: Milliseconds | None


class ConsumerPage(Struct):
    """Consumers by name; `next` is the name to go on `after`, null at the end."""

    consumers: list[Consumer]
    next: Name | None


class RemovedConsumer(Struct):
    """How many pending entries the consumer held."""

    pending: Count


class ConsumerPending(Struct):
    """How many entries are pending with a consumer."""

    name: Name
    count: Count


class PendingEntry(Struct):
    """A delivered and not acknowledged entry. One that was given back has no consumer and no idle time."""

    id: EntryId
    consumer: Name | None
    idle_ms: Milliseconds | None
    delivery_count: Count


class PendingView(Struct, omit_defaults=True):
    """Without parameters the sum: `count`, `first_id`, `last_id`, `consumers`. With any parameter the list:
    `pending`, `next` (go on with `start=(<next>`), `more`.
    """

    count: Count | UnsetType = UNSET
    first_id: EntryId | UnsetType | None = UNSET
    last_id: EntryId | UnsetType | None = UNSET
    consumers: list[ConsumerPending] | UnsetType = UNSET
    pending: list[PendingEntry] | UnsetType = UNSET
    next: EntryId | UnsetType = UNSET
    more: bool | UnsetType = UNSET


class Nack(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Entries to give back. The delivery count goes one back (`silent`), stays (`fail`) or becomes the
    largest number (`fatal`), unless `retry_count` says what it is to be. `force` takes entries that are not
    pending, too.
    """

    ids: LookedUpIds
    mode: Literal["silent", "fail", "fatal"]
    retry_count: Count | UnsetType | None = UNSET
    force: bool = False


class Released(Struct):
    """How many were given back, and what became of each."""

    released: Count
    results: dict[str, Literal["released", "absent"]]


class Claim(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Entries to take over, if they have been idle for `min_idle_ms`; what nobody owns is always taken.

    `idle_ms` or `time_ms` says since when they count as delivered, `retry_count` how often. `just_ids`
    answers IDs and counts no delivery. `last_id` moves the group on.
    """

    consumer: Name
    min_idle_ms: Milliseconds
    ids: LookedUpIds
    idle_ms: Milliseconds | UnsetType | None = UNSET
    time_ms: Milliseconds | UnsetType | None = UNSET
    retry_count: Count | UnsetType | None = UNSET
    force: bool = False
    just_ids: bool = False
    last_id: EntryId | UnsetType | None = UNSET


class Claimed(Struct, omit_defaults=True):
    """What was taken over: `entries`, or `ids` where only these were asked for. `idle_ms` is from before.
    `more` tells that the answer was full before the last ID: claim the others again.
    """

    more: bool
    entries: list[DeliveredEntry] | UnsetType = UNSET
    ids: list[EntryId] | UnsetType = UNSET


class AutoClaim(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Take over whatever has been idle for `min_idle_ms`, in order of IDs from `start` on; one answer has at
    most 500 entries.
    """

    consumer: Name
    min_idle_ms: Milliseconds
    start: Annotated[
        str,
        Meta(
            pattern=r"^(-|[0-9]{1,20}(-[0-9]{1,20})?)$",
            description="`-` or an ID; an answer's `next_start` goes on",
            extra_json_schema={"format": "entry-start"},
        ),
    ] = "-"
    count: Annotated[int, Meta(ge=1, le=10_000)] = 100
    just_ids: bool = False


class AutoClaimed(Struct, omit_defaults=True):
    """What was taken over, where to go on (`0-0` at the end), and what was pending and is deleted."""

    next_start: EntryId
    deleted_ids: list[EntryId]
    entries: list[DeliveredEntry] | UnsetType = UNSET
    ids: list[EntryId] | UnsetType = UNSET


class Burial(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Pending entries to move to the group's dead-letter stream."""

    ids: Ids
    reason: Annotated[str, Meta(max_length=1000)] = "by hand"


class Buried(Struct):
    """What was moved, and where. As much as one turn takes: what is still pending goes with the next call."""

    stream: Name
    ids: list[EntryId]


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
