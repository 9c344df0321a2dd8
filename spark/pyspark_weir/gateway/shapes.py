"""What the gateway's calls for bulk readers and writers take and answer, as plain values.

Knows: the members of the public contract. Must never know: HTTP, Spark, what anybody does with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class PlanQuery:
    """What is to be planned: `streams` from given IDs (exclusive), and those that the glob `pattern` names
    besides, from the beginning; up to `end` where a stream stands in it.

    At most `max_entries` and `max_bytes` in all, shared in proportion to what there is; each range cut into
    at most `parts`. `wait_ms`: how long to wait until anything is there.
    """

    streams: Mapping[str, str] = field(default_factory=dict)
    pattern: str | None = None
    end: Mapping[str, str] = field(default_factory=dict)
    max_entries: int | None = None
    max_bytes: int | None = None
    parts: int | None = None
    durable_only: bool = False
    wait_ms: int = 0

    def body(self) -> dict[str, object]:
        """The request's body, without what was not asked for."""
        given: dict[str, object] = {
            "streams": dict(self.streams) or None,
            "pattern": self.pattern,
            "end": dict(self.end) or None,
            "max_entries": self.max_entries,
            "max_bytes": self.max_bytes,
            "parts": self.parts,
            "durable_only": self.durable_only or None,
            "wait": self.wait_ms or None,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class StreamPlan:
    """One stream's planned range `(after, end]`; IDs as text.

    `count` and `bytes`: what lies in it. `first`: the stream's first entry, None if empty. `last`: its last.
    `removed_upto`: the highest ID removed from its front. `durable`: the highest ID that no crash takes back,
    None where the gateway never syncs. `lag`: entries after `after`, whatever the budget. `cuts`: inner IDs
    that part the range.
    """

    after: str
    end: str
    count: int
    bytes: int
    first: str | None
    last: str
    removed_upto: str
    generation: str
    durable: str | None
    lag: int
    max_deleted_id: str = "0-0"
    cuts: tuple[str, ...] = ()

    @classmethod
    def of(cls, member: Mapping[str, Any]) -> Self:
        """From the answer's member."""
        return cls(
            after=member["after"],
            end=member["end"],
            count=member["count"],
            bytes=member["bytes"],
            first=member["first"],
            last=member["last"],
            removed_upto=member["removed_upto"],
            generation=member["generation"],
            durable=member["durable"],
            lag=member["lag"],
            max_deleted_id=member.get("max_deleted_id") or "0-0",
            cuts=tuple(member.get("cuts") or ()),
        )


@dataclass(frozen=True)
class Plan:
    """The answer to a plan: by stream, and the names that do not exist."""

    streams: dict[str, StreamPlan]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnsPage:
    """Entries in columns. `ms` and `seq`: their IDs' halves. `n`: fields of each. `names`: the dictionary of
    field names, `name_index` which of them each field has, `values` each field's value; all three run through
    all entries. Where `base64` is set, names and values are base64 of their bytes, because one is not UTF-8.

    The next page is what comes after `next_id`; `more`: whether there is one. `removed_upto`: the highest ID
    that was gone from the stream's front when the page was begun.
    """

    ms: Sequence[int]
    seq: Sequence[int]
    n: Sequence[int]
    names: Sequence[str]
    name_index: Sequence[int]
    values: Sequence[str]
    base64: bool
    next_id: str
    more: bool
    generation: str = ""
    removed_upto: str = "0-0"

    def __len__(self) -> int:
        return len(self.ms)


@dataclass(frozen=True)
class Published:
    """What was stored: by stream first and last ID and how many; `duplicate` when it had been before."""

    first: dict[str, str]
    last: dict[str, str]
    count: dict[str, int]
    duplicate: bool
