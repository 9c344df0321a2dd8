"""The shapes of what bulk readers and writers send and get; like `schemas` for the description alone.

Knows: each JSON object of columns by name. Must never know: how any of them is made.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from app.openapi.schemas import Count, EntryId, Name


class Columns(Struct, omit_defaults=True):
    """Entries as flat lists: both halves of each ID, unsigned 64-bit; `n` fields of each entry; and of every
    field in order its name's place in `kd` and its value. With `b64` all of `kd` and `v` is base64.
    """

    ms: list[int]
    seq: list[int]
    n: list[Count]
    kd: list[str]
    k: list[Count]
    v: list[str]
    b64: Annotated[bool, Meta(description="some value is not UTF-8")] | UnsetType = UNSET


class PlanWanted(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Which streams, each with the ID behind which it is read, and how much of them.

    `pattern` stands for streams that `streams` does not name: these are read from the beginning. There is at
    least one of the two. `end` bounds single streams; the budget is shared by all of them in proportion to
    what they have, but one entry of each.
    """

    streams: Annotated[dict[Name, EntryId], Meta(max_length=1_000)] | UnsetType = UNSET
    pattern: (
        Annotated[str, Meta(min_length=1, max_length=512, description="`*`, `?`, `[a-c]`, as in Redis")]
        | UnsetType
    ) = UNSET
    end: (
        Annotated[
            dict[Name, EntryId],
            Meta(max_length=1_000, description="the last ID that may be planned, of some of the streams"),
        ]
        | UnsetType
    ) = UNSET
    max_entries: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)] | UnsetType = UNSET
    max_bytes: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)] | UnsetType = UNSET
    parts: (
        Annotated[int, Meta(ge=1, le=256, description="pieces that each range is cut into, at most")]
        | UnsetType
    ) = UNSET
    durable_only: bool = False
    wait: (
        Annotated[int, Meta(ge=0, le=60_000, description="milliseconds to wait where there is nothing")]
        | UnsetType
    ) = UNSET


class StreamPlan(Struct):
    """`(after, end]` is to be read: `count` entries, whose stored texts take about `bytes`; `end` is `after`
    where that is none. `lag` entries lie behind `after` in all.

    `first` is the first entry's ID, `last` the last one given. A cursor other than 0-0 below `removed_upto`
    has missed entries, and so has one with another `generation`. `durable` is the highest ID that a crash
    cannot take back, null where that is not known (fsync=no). `cuts` are the IDs that end all pieces but the
    last.
    """

    after: EntryId
    end: EntryId
    count: Count
    bytes: Count
    first: EntryId | None
    last: EntryId
    removed_upto: EntryId
    max_deleted_id: EntryId
    generation: str
    durable: EntryId | None
    lag: Count
    cuts: list[EntryId]


class Plans(Struct):
    """What there is of each stream, and which of the streams do not exist."""

    streams: dict[str, StreamPlan]
    missing: list[str]
