"""Ranges of entries as parameters, and pages of entries as answers, for several operations.

Knows: how bounds, cursors, gaps and pages are written. Must never know: statuses, sockets, where a stream is
kept.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

import orjson
from pydantic import Field, model_validator

from app.errors import RefusalError, invalid
from app.http import projection
from app.http.models import (
    Bound,
    FieldNames,
    Flag,
    Gap,
    IdText,
    QueryModel,
    ResponseModel,
    Start,
    TimeBound,
    UpperBound,
    UpperTimeBound,
    absent,
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
    since: Annotated[TimeBound | None, Field(description="`start` as a time (RFC 3339)")] = None
    until: Annotated[UpperTimeBound | None, Field(description="`end` as a time (RFC 3339)")] = None
    after: Annotated[
        Start | None, Field(description="a cursor: an ID, `0` or `$` (what comes from now on)")
    ] = None
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
    def fails_on_gap(self) -> bool:
        """Whether a gap is a refusal."""
        return self.on_gap == "fail"

    def first(self) -> int:
        """The smallest ID that is meant."""
        if self.since is not None:
            return self.since
        if isinstance(self.after, int):
            return self.after + 1
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

    traceparent: str = absent()


class Entry(ResponseModel):
    """An entry as it is stored. `pairs` is there where a name occurs twice, `encoding` where values are
    base64.
    """

    id: IdText
    fields: dict[str, str]
    encoding: Base64 = absent()
    pairs: Pairs = absent()
    meta: Meta = absent()


class Page(ResponseModel):
    """Entries, and where to go on: `after=<next>`, in reverse `end=(<next>`."""

    entries: list[Entry]
    next: IdText | None
    more: bool
    gap: Gap = absent()


def page(
    found: Entries, following: int | None, gap: replies.Gap | None, fields: Sequence[str] | None
) -> bytes:
    """The bytes of `Page`: entries as they are stored, not encoded again. `following` is its `next`."""
    after = b"null" if following is None else b'"%d-%d"' % (ids.ms_of(following), ids.sequence_of(following))
    more = b"true" if found.more else b"false"
    tail = b',"gap":' + gap_text(gap) if gap is not None else b""
    joined = found.json() if fields is None else projection.project(found.json(), fields)
    return b'{"entries":[%b],"next":%b,"more":%b%b}' % (joined, after, more, tail)


def gap_refused(gap: replies.Gap) -> RefusalError:
    """410."""
    detail = "entries after the cursor were removed before they were read"
    return RefusalError("gap", detail, members=gap_members(gap))


def gap_text(gap: replies.Gap) -> bytes:
    """A gap as JSON text."""
    return orjson.dumps(gap_members(gap))


def gap_members(gap: replies.Gap) -> dict[str, str | int | None]:
    """A gap as JSON has it."""
    members: dict[str, str | int | None] = {
        "requested": ids.format(gap.requested),
        "first_available": ids.format(gap.first_available),
        "lost": gap.lost,
    }
    return members if gap.reason is None else {**members, "reason": gap.reason}


WHERE: Final = {
    "Weir-Next-Id": "where to go on: `after=<next>`, in reverse `end=(<next>`",
    "Weir-First-Available": "the first entry",
    "Weir-Generation": "new each time the stream is created",
}


def where(following: int | None, edges: Edges | None, gap: replies.Gap | None) -> list[tuple[bytes, bytes]]:
    """The headers that programs need to go on, and to notice what they lost."""
    headers = []
    if following is not None:
        headers.append((b"weir-next-id", ids.format(following).encode()))
    first = edges.first_id if edges is not None else gap.first_available if gap is not None else None
    if first is not None:
        headers.append((b"weir-first-available", ids.format(first).encode()))
    if edges is not None:
        headers.append((b"weir-generation", edges.generation.encode()))
    return headers
