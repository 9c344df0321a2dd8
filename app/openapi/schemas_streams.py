"""The shapes of bodies about streams as a whole, and about many of them, for the API's description alone.

Knows: each JSON object of the contract by name. Must never know: how any of them is made.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from app.openapi.schemas import (
    Count,
    Entry,
    EntryId,
    Limit,
    Refs,
)
from app.openapi.schemas_groups import Group


class Retention(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """How much of a stream is kept; null is no limit.

    Limits are kept to exactly about once a second, and roughly with each publish.
    """

    max_len: Annotated[Limit, Meta(description="entries")] | UnsetType = UNSET
    max_age_ms: Annotated[Limit, Meta(description="milliseconds since the entry's ID")] | UnsetType = UNSET
    max_bytes: Annotated[Limit, Meta(description="bytes of the entries as JSON")] | UnsetType = UNSET
    keep_unacknowledged: (
        Annotated[bool, Meta(description="keep what a group has still to read or to acknowledge")] | UnsetType
    ) = UNSET
    keep_unarchived: (
        Annotated[bool, Meta(description="keep what lies above `archived_up_to`")] | UnsetType
    ) = UNSET


class NewStream(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A stream to be there. What `retention` does not name has no limit."""

    retention: Retention | UnsetType = UNSET


class StreamChanges(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What is named changes, all else stays. A limit of null goes."""

    retention: Retention | UnsetType = UNSET
    archived_up_to: (
        Annotated[EntryId, Meta(description="everything up to here is kept elsewhere")] | UnsetType
    ) = UNSET


class NewLastId(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The last ID, and the counters that go with it where a stream was moved here."""

    last_id: EntryId
    entries_added: Count | UnsetType | None = UNSET
    max_deleted_id: EntryId | UnsetType | None = UNSET


class Stream(Struct):
    """A stream. `0-0` stands for no ID; `entries_added` counts all that ever were."""

    name: str
    type: Literal["stream"]
    length: Count
    first_id: EntryId
    last_id: Annotated[EntryId, Meta(description="the last ID given, whether its entry is there or not")]
    first_entry: Entry | None
    last_entry: Entry | None
    max_deleted_id: EntryId
    removed_upto: Annotated[EntryId, Meta(description="a cursor above 0-0 and below this has a gap")]
    entries_added: Count
    nodes: Count
    groups: Count
    generation: Annotated[str, Meta(description="new each time that the name is created")]
    retention: Retention
    archived_up_to: EntryId
    memory_bytes: Count


class PendingDetail(Struct, omit_defaults=True):
    """An entry that was not acknowledged; in a group's list `consumer` is null where it is nobody's."""

    id: EntryId
    delivery_time_ms: Count
    delivery_count: Count
    consumer: str | UnsetType | None = UNSET


class ConsumerDetail(Struct):
    """A consumer, with the times of its last attempt to read and of its last success (-1: never)."""

    name: str
    pending: Count
    seen_time_ms: int
    active_time_ms: int
    pending_entries: list[PendingDetail]


class GroupDetail(Group, kw_only=True):
    """A group with what is pending and its consumers; `nacked` entries were given back."""

    nacked: Count
    pending_entries: list[PendingDetail]
    consumer_details: list[ConsumerDetail]


class StreamDetails(Stream, kw_only=True, omit_defaults=True):
    """A stream; with `full=true` also its first entries and its groups."""

    entries: list[Entry] | UnsetType = UNSET
    group_details: list[GroupDetail] | UnsetType = UNSET


class StreamPage(Struct):
    """A page of streams; go on with `after=<next>` until it is null."""

    streams: list[Stream]
    next: str | None


class Trimming(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One of `maxlen`, `minid` and `older_than_ms` says what goes."""

    maxlen: Annotated[Count, Meta(description="keep so many of the newest")] | UnsetType = UNSET
    minid: Annotated[EntryId, Meta(description="remove what has a smaller ID")] | UnsetType = UNSET
    older_than_ms: Annotated[Count, Meta(description="remove what is older")] | UnsetType = UNSET
    approx: Annotated[bool, Meta(description="whole nodes only, which costs less")] = False
    limit: Annotated[Count, Meta(description="with `approx`: at most so many; 0 is no limit")] | UnsetType = (
        UNSET
    )
    refs: Refs = "keep"
    dry_run: Annotated[bool, Meta(description="only tell what would go")] = False
    guard: Annotated[bool, Meta(description="refuse to remove what a group has not finished")] = False


class Trimmed(Struct):
    """What went; `pending_affected` of them are pending in a group. `first_id` is the first one kept."""

    deleted: Count
    first_id: EntryId
    pending_affected: Count
