"""Ranges of entries as parameters, and pages of entries as answers, for several operations.

Knows: how bounds, cursors, gaps and pages are written. Must never know: statuses, sockets, where a stream is
kept.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple, Self

import orjson
from pydantic import Field, model_validator

from app.errors import RefusalError, invalid
from app.http import cursors, projection
from app.http.models import (
    ABSENT,
    After,
    Bound,
    CursorFormat,
    CursorText,
    FieldNames,
    Flag,
    Gap,
    IdText,
    QueryModel,
    ResponseModel,
    TimeBound,
    UpperBound,
    UpperTimeBound,
    wrong,
)
from app.limits import ReadLimits
from engine import ids, replies
from engine.replies import Edges, Entries

Base64 = Annotated[Literal["base64"], Field(description="`base64`: all values are base64")]
Pairs = Annotated[list[list[str]], Field(description="[name, value], in order, where a name occurs twice")]
OnGap = Literal["report", "fail"]

_EXCLUSIVE: Final = (
    ("start", "since"),
    ("end", "until"),
    ("after", "start"),
    ("after", "since"),
    ("after", "reverse"),
    ("wait", "end"),
    ("wait", "until"),
    *(("last", other) for other in ("start", "end", "since", "until", "after", "reverse", "count", "wait")),
)


# ---- what is asked for


class EntryRange(QueryModel):
    """A range of entries. No parameter has a default that does not go with all others: generated clients
    send defaults.
    """

    start: Annotated[
        Bound | None, Field(description="`-` (the default), an ID, or `(` and an ID to exclude")
    ] = None
    end: Annotated[
        UpperBound | None, Field(description="`+` (the default), an ID, or `(` and an ID to exclude")
    ] = None
    since: Annotated[TimeBound | None, Field(description="`start` as a time (RFC 3339) or a date (UTC)")] = (
        None
    )
    until: Annotated[
        UpperTimeBound | None, Field(description="`end` as a time (RFC 3339) or a date, to its end (UTC)")
    ] = None
    after: Annotated[
        After | None,
        Field(description="a cursor: an ID, `0`, `$` (what comes from now on) or one that was given"),
    ] = None
    cursor: CursorFormat | None = None
    on_gap: Annotated[OnGap, Field(description="`fail`: 410 if entries after the cursor were removed")] = (
        "report"
    )
    fields: Annotated[FieldNames | None, Field(description="only these fields, names between commas")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        asked = self.effective()
        for one, other in _EXCLUSIVE:
            if one in asked and other in asked:
                raise wrong(f"it does not go with {other}", at=one)
        return self

    def effective(self) -> set[str]:
        """The parameters that have an effect: `wait=0` and `reverse=false` go with everything."""
        given = self.model_fields_set
        return {name for name in given if name not in ("wait", "reverse") or getattr(self, name)}

    @property
    def shows_generations(self) -> bool:
        """Whether cursors in the answer have generations."""
        return cursors.asks(self.cursor, () if self.after is None else (self.after,))

    @property
    def fails_on_gap(self) -> bool:
        """Whether a gap is a refusal."""
        return self.on_gap == "fail"

    def first(self) -> int:
        """The smallest ID that is meant."""
        if self.since is not None:
            return self.since
        if self.after is not None and isinstance(self.after.id, int):
            return self.after.id + 1
        return ids.ID_MIN if self.start is None else self.start

    def last_id(self) -> int:
        """The largest ID that is meant."""
        if self.until is not None:
            return self.until
        return ids.ID_MAX if self.end is None else self.end


class DirectedRange(EntryRange):
    """A range that may be read backwards."""

    reverse: Annotated[Flag | None, Field(description="from the end to the start")] = None


def preferred_wait_ms(prefer_wait_s: int | None, limits: ReadLimits) -> int | None:
    """What Prefer asks for."""
    if prefer_wait_s is not None and prefer_wait_s * 1000 > limits.wait_ms_max:
        unit = "second" if limits.wait_ms_max == 1000 else "seconds"
        raise invalid("Prefer", f"wait is at most {limits.wait_ms_max / 1000:.7g} {unit}")
    return None if prefer_wait_s is None else prefer_wait_s * 1000


# ---- what is answered


class Meta(ResponseModel):
    """What an entry keeps beside its fields. `traceparent` is the context of the span that published it, if
    the gateway traces.
    """

    traceparent: str = ABSENT


class Entry(ResponseModel):
    """An entry as it is stored. `pairs` is there where a name occurs twice, `encoding` where values are
    base64.
    """

    id: IdText
    fields: dict[str, str]
    encoding: Base64 = ABSENT
    pairs: Pairs = ABSENT
    meta: Meta = ABSENT


class Page(ResponseModel):
    """Entries, and where to go on: `after=<next>`, in reverse `end=(<next>`."""

    entries: list[Entry]
    next: CursorText | None
    more: bool
    gap: Gap = ABSENT
    closed: Annotated[bool, Field(description="the stream is closed, and has nothing behind `next`")] = ABSENT


# Fewer parts are as quickly joined first.
_PARTS_MIN: Final = 3


class GapReport(NamedTuple):
    """A gap as its reader gets it. `generation` is the one in which reading goes on, empty where cursors
    are IDs; `in_full` with everything that there is to say, for who asks for generations.
    """

    gap: replies.Gap
    generation: str = ""
    in_full: bool = False

    @property
    def next(self) -> str:
        """The cursor to go on from."""
        return cursors.written(self.gap.goes_on_after, self.generation)

    @property
    def has_next(self) -> bool:
        """Whether the cursor is part of it: a gap in the middle of a stream needs none."""
        return self.in_full or self.gap.next is not None

    def members(self) -> dict[str, str | int | None]:
        """As JSON has it."""
        gap = self.gap
        members: dict[str, str | int | None] = {
            "requested": ids.format(gap.requested),
            "first_available": ids.format(gap.first_available),
            "lost": gap.lost,
        }
        if gap.reason is not None or self.in_full:
            members["reason"] = gap.reason or "trimmed"
        if self.has_next:
            members["next"] = self.next
        return members

    def text(self) -> bytes:
        """As JSON text."""
        return orjson.dumps(self.members())

    def refused(self) -> RefusalError:
        """410."""
        detail = (
            "entries after the cursor were removed before they were read"
            if self.gap.next is None
            else "the cursor is of another stream than there is now, or beyond its end"
        )
        return RefusalError("gap", detail, members=self.members())


def page(
    found: Entries,
    following: int | None,
    gap: GapReport | None,
    fields: Sequence[str] | None,
    generation: str = "",
    *,
    closed: bool = False,
) -> bytes:
    """The bytes of `Page`: entries as they are stored, not encoded again. `following` is its `next`, with the
    generation where there is one.
    """
    if following is None:
        after = b"null"
    else:
        after = b'"%d-%d' % (ids.ms_of(following), ids.sequence_of(following))
        after += b'.%b"' % generation.encode() if generation else b'"'
    more = b"true" if found.more else b"false"
    tail = b',"gap":' + gap.text() if gap is not None else b""
    if closed:
        tail += b',"closed":true'
    end = b'],"next":%b,"more":%b%b}' % (after, more, tail)
    parts = found.parts if fields is None else [projection.project(found.json(), fields)]
    if len(parts) < _PARTS_MIN:
        return b'{"entries":[%b%b' % (b",".join(parts), end)
    # Most of a long page is copied once.
    first, *between, last = parts
    return b",".join([b'{"entries":[' + first, *between, last + end])


WHERE: Final = {
    "Weir-Next-Id": "where to go on: `after=<next>`, in reverse `end=(<next>`",
    "Weir-First-Available": "the first entry",
    "Weir-Generation": "new each time the stream is created",
}
IS_CLOSED: Final = {"Weir-Closed": "`true`: the stream is closed, and has nothing behind `next`"}
CLOSED_HEADER: Final = (b"weir-closed", b"true")
IS_ARCHIVED: Final = {"Weir-Source": "`history`: the stream has these entries no more, its archive has"}
ARCHIVED_HEADER: Final = (b"weir-source", b"history")


def where(
    following: int | None, edges: Edges | None, gap: replies.Gap | None, generation: str = ""
) -> list[tuple[bytes, bytes]]:
    """The headers that programs need to go on, and to notice what they lost."""
    headers = []
    if following is not None:
        headers.append((b"weir-next-id", cursors.written(following, generation).encode()))
    # What the archive has comes before the stream.
    first = gap.first_available if gap is not None else edges.first_id if edges is not None else None
    if first is not None:
        headers.append((b"weir-first-available", ids.format(first).encode()))
    if edges is not None:
        headers.append((b"weir-generation", edges.generation.encode()))
    return headers
