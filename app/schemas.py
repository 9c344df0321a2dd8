"""The shapes of bodies, for the API's description alone: the doors read and write bytes, see `wire`.

Knows: each JSON object of the contract by name. Must never know: how any of them is made.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

EntryId = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]+(-[0-9]+)?$",
        description="`<ms>-<seq>`, two unsigned 64-bit numbers",
        examples=["1526919030474-55"],
    ),
]
Count = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=0)] | None
Refs = Annotated[
    Literal["keep", "delete", "acked"],
    Meta(description="what becomes of references in pending lists: they stay, go too, or forbid the removal"),
]


class NewEntry(Struct, omit_defaults=True):
    """An entry to publish. Values are strings; numbers and booleans are stored as their JSON text.

    `fields` may also be a list of [name, value] pairs, so that a name can stand twice.
    """

    fields: dict[str, str]
    id: Annotated[str, Meta(description="`*` (the default), `<ms>-*` or `<ms>-<seq>`")] = "*"
    encoding: Annotated[str, Meta(description="`base64`: all values are base64")] = ""


class NewEntries(Struct):
    """A batch: stored whole or not at all."""

    entries: list[NewEntry]


class Entry(Struct, omit_defaults=True):
    """An entry as it is stored. `pairs` is there where a name stands twice, `encoding` where values are
    base64.
    """

    id: EntryId
    fields: dict[str, str]
    encoding: Annotated[str, Meta(description="`base64`")] = ""
    pairs: list[list[str]] = field(default_factory=list)


class Added(Struct, omit_defaults=True):
    """What was stored: `id` for one entry, the others for a batch."""

    duplicate: Annotated[bool, Meta(description="the entries were stored already, by an earlier request")]
    id: EntryId = ""
    first_id: EntryId = ""
    last_id: EntryId = ""
    count: Count = 0
    ids: list[EntryId] = field(default_factory=list)
    trimmed: Annotated[int, Meta(description="entries that were trimmed away")] = 0
    pending_affected: Annotated[
        int, Meta(description="trimmed entries that are still pending in a group")
    ] = 0


class Gap(Struct):
    """Entries after the cursor were removed before they were read; `lost` is null where it is unknown."""

    requested: EntryId
    first_available: EntryId
    lost: int | None


class Page(Struct, omit_defaults=True):
    """Entries, and where to go on: `after=<next>`, in reverse `end=(<next>`."""

    entries: list[Entry]
    next: EntryId | None
    more: bool
    gap: Gap | None = None


class GroupRead(Struct, omit_defaults=True):
    """What a consumer wants. With `after` it reads again what it has not acknowledged."""

    count: Annotated[int, Meta(ge=1)] = 100
    wait: Milliseconds = 0
    noack: bool = False
    after: EntryId = ""
    claim_min_idle_ms: Milliseconds | None = None


class DeliveredEntry(Struct, omit_defaults=True):
    """An entry handed to a consumer. `fields` is null where a pending entry was deleted from the stream."""

    id: EntryId
    fields: dict[str, str] | None
    encoding: str = ""
    pairs: list[list[str]] = field(default_factory=list)
    delivery_count: Count | None = None
    idle_ms: Milliseconds | None = None


class Deliveries(Struct, omit_defaults=True):
    """New entries come with `last_delivered_id`, those of a history read with `next`."""

    entries: list[DeliveredEntry]
    last_delivered_id: EntryId | None = None
    next: EntryId | None = None
    gap: Gap | None = None


class Acknowledgement(Struct, omit_defaults=True):
    """Entries that are done. With `delete` they are deleted too, their references kept, deleted or
    awaited.
    """

    ids: Annotated[list[EntryId], Meta(min_length=1)]
    delete: Literal["keep", "delete", "acked"] | None = None


class Acknowledged(Struct):
    """How many were pending, and what became of each: acknowledged, deleted, kept or absent."""

    acknowledged: Count
    results: dict[str, Literal["acknowledged", "deleted", "kept", "absent"]]


class Links(Struct):
    """What this is, and where the rest is."""

    name: str
    version: str
    links: dict[str, str]


class Health(Struct):
    """How the gateway is."""

    status: Literal["live", "starting", "ready", "draining"]


class Place(Struct):
    """Where a value is wrong: a JSON pointer, or a parameter's or header's name."""

    pointer: str
    detail: str
