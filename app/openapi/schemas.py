"""The shapes of bodies, for the API's description alone: the doors read and write bytes, see `wire`.

Knows: each JSON object of the contract by name. Must never know: how any of them is made.

A member has a default only where sending it means the same as leaving it out, for generated clients send
defaults; what may be absent and has none is `UNSET`. Bodies of requests are closed (unknown members are 422),
those of answers are open, so that they can grow. No shape has the name of one of its members: in generated
code the two meet.
"""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from engine.commands import TURN_LOOKUPS_MAX

NAME_CHARACTERS: Final = r"[^/\u0000-\u001f\u007f-\u009f]"
NOT_DOTS: Final = r"(?!\.{1,2}$)"

EntryId = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,20}(-[0-9]{1,20})?$",
        description="`<ms>-<seq>`, two unsigned 64-bit numbers",
        examples=["1526919030474-55"],
        extra_json_schema={"format": "entry-id"},
    ),
]
Cursor = Annotated[
    str,
    Meta(
        pattern=r"^(\$|[0-9]{1,20}(-[0-9]{1,20})?)$",
        description="`$` (what is there now), `0` or an ID: read what comes after it",
        extra_json_schema={"format": "entry-cursor"},
    ),
]
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        pattern=f"^{NOT_DOTS}{NAME_CHARACTERS}+$",
        description="1 to 512 bytes of UTF-8 without `/` and control characters, not `.` or `..`",
    ),
]
# Above JavaScript's largest safe integer, neighbouring numbers become one.
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Milliseconds = Count
Limit = Count | None
Ids = Annotated[list[EntryId], Meta(min_length=1, max_length=10_000)]
# Of entries that are looked up one by one.
LookedUpIds = Annotated[list[EntryId], Meta(min_length=1, max_length=TURN_LOOKUPS_MAX)]
Base64 = Annotated[Literal["base64"], Meta(description="`base64`: all values are base64")]
Pairs = Annotated[list[list[str]], Meta(description="[name, value], in order, where a name stands twice")]
Refs = Annotated[
    Literal["keep", "delete", "acked"],
    Meta(description="what becomes of references in pending lists: they stay, go too, or forbid the removal"),
]


class NewEntry(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """An entry to publish. Values are strings; numbers and booleans are stored as their JSON text.

    `fields` may also be a list of [name, value] pairs, so that a name can stand twice.
    """

    fields: Annotated[dict[str, str], Meta(min_length=1)]
    id: Annotated[
        str,
        Meta(
            pattern=r"^(\*|[0-9]{1,20}(-(\*|[0-9]{1,20}))?)$",
            description="`*` (the default), `<ms>-*` or `<ms>-<seq>`",
            extra_json_schema={"format": "new-entry-id"},
        ),
    ] = "*"
    encoding: Base64 | UnsetType = UNSET


class Entry(Struct, omit_defaults=True):
    """An entry as it is stored. `pairs` is there where a name stands twice, `encoding` where values are
    base64.
    """

    id: EntryId
    fields: dict[str, str]
    encoding: Base64 | UnsetType = UNSET
    pairs: Pairs | UnsetType = UNSET


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
    gap: Gap | UnsetType = UNSET


class Place(Struct):
    """Where a value is wrong: in the body, by a JSON pointer (RFC 6901), in a parameter or in a header."""

    detail: str
    pointer: str | UnsetType = UNSET
    parameter: str | UnsetType = UNSET
    header: str | UnsetType = UNSET
