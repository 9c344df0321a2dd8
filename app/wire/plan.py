"""Plans on the wire: what readers of many streams ask for, and what there is for them.

Knows: the shapes of api.md for both. Must never know: statuses, sockets, how anything is counted.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from app import names
from app.errors import invalid, step
from app.http import members, strict_json
from app.http.members import Members, capped
from app.http.strict_json import Number, Object
from app.redis.glob import Glob
from engine import ids
from engine.commands import Plan
from engine.replies import Planned, StreamPlan
from engine.shares import shares

PLAN: Final = (
    *("streams", "pattern", "end", "max_entries", "max_bytes"),
    *("parts", "durable_only", "wait"),
)

# Streams planned in one turn: a look into each costs some hundredths of a millisecond.
streams_a_turn: Final = 50
# More pieces than anybody has hands for; each costs a look.
parts_max: Final = 256
# As long as the longest name: a pattern is held against every name, at the cost of both their lengths.
_pattern_bytes_max: Final = 512
# A thread costs less than writing so many streams and cuts.
_inline_rows_max: Final = 200
# Cutting a range into so many pieces costs what counting it does.
_cuts_a_count: Final = 8


class Wanted(msgspec.Struct, frozen=True):
    """A plan asked for; `pattern` stands for streams that have still to be looked for. `wait_ms` is how long
    it waits where there is nothing, 0 not at all.
    """

    streams: Mapping[str, int]
    pattern: Glob | None
    wait_ms: int
    rest: Mapping[str, Any]

    def command(self, found: Sequence[str]) -> Plan:
        """The command, with the streams that the pattern stands for: these are read from the beginning."""
        return Plan(streams=[*self.streams.items(), *((name, ids.ID_MIN) for name in found)], **self.rest)

    def waiting(self, found: Sequence[str], wait_ms: int) -> Plan:
        """The command that waits until there is something, and makes of it as little as can be."""
        return msgspec.structs.replace(
            self.command(found), max_entries=None, max_bytes=None, parts=1, block_ms=wait_ms
        )


def parse(given: Members, streams_max: int, wait_ms_max: int, prefer_wait_ms: int | None) -> Wanted:
    """POST /v1/plan."""
    streams = _cursors(given, "streams", streams_max)
    ends = _cursors(given, "end", streams_max)
    pattern = _pattern(given)
    if not streams and pattern is None:
        raise invalid("/streams", "a plan needs streams, with their cursors, or a pattern")
    if pattern is None:
        for name in ends:
            if name not in streams:
                raise invalid(f"/end/{step(name)}", "the stream is not one of the plan's")
    wait_ms = members.integer(given, "wait", least=0, most=wait_ms_max, nullable=False)
    if wait_ms is None:
        wait_ms = prefer_wait_ms
    return Wanted(
        streams,
        pattern,
        wait_ms or 0,
        {
            "ends": ends,
            "max_entries": members.integer(given, "max_entries", least=1, nullable=False),
            "max_bytes": members.integer(given, "max_bytes", least=1, nullable=False),
            "parts": members.integer(given, "parts", least=1, most=parts_max, nullable=False) or 1,
            "durable_only": members.boolean(given, "durable_only"),
        },
    )


def _cursors(given: Members, member: str, streams_max: int) -> Mapping[str, int]:
    if member not in given:
        return {}
    value = given[member]
    if not isinstance(value, Object):
        raise invalid(f"/{member}", "it is an object: the name of each stream with an ID")
    twice = strict_json.repeated_name(value)
    if twice is not None:
        raise invalid(f"/{member}/{step(twice)}", "the stream stands twice")
    if len(value) > streams_max:
        raise too_many(member, streams_max)
    for name, _ in value:
        names.checked_text(name, "stream name")
    return {name: members.entry_id(after, f"/{member}/{step(name)}") for name, after in value}


def _pattern(given: Members) -> Glob | None:
    if "pattern" not in given:
        return None
    value = given["pattern"]
    if not isinstance(value, str) or isinstance(value, Number) or not value:
        raise invalid("/pattern", "it is a pattern such as `orders:*`")
    pattern = value.encode()
    if len(pattern) > _pattern_bytes_max:
        raise invalid("/pattern", f"a pattern has at most {_pattern_bytes_max} bytes, as a name")
    return Glob(pattern)


def too_many(member: str, streams_max: int) -> Exception:
    """More streams than one plan may be of."""
    return invalid(f"/{member}", f"one plan is of at most {streams_max} streams: share them between several")


class Several:
    """One plan as several of a few streams each."""

    def __init__(self, command: Plan) -> None:
        self._whole = command
        size = max(1, streams_a_turn * _cuts_a_count // (_cuts_a_count - 1 + command.parts))
        self._pieces = [command.streams[at : at + size] for at in range(0, len(command.streams), size)]
        self.is_one = len(self._pieces) <= 1
        # Whether counting is all there is to do.
        self.is_counting = command.max_entries is command.max_bytes is None and command.parts == 1

    def counting(self) -> Sequence[Plan]:
        """Plans of everything that there is."""
        return [
            msgspec.structs.replace(self._whole, streams=piece, max_entries=None, max_bytes=None, parts=1)
            for piece in self._pieces
        ]

    def sharing(self, counted: Sequence[Planned]) -> Sequence[Plan]:
        """Plans that have their parts of the budget, so that all streams share it."""
        entries = _parts(self._whole.max_entries, [[one.count for one in each.streams] for each in counted])
        sizes = _parts(self._whole.max_bytes, [[one.bytes for one in each.streams] for each in counted])
        return [
            msgspec.structs.replace(self._whole, streams=piece, max_entries=most, max_bytes=size)
            for piece, most, size in zip(self._pieces, entries, sizes, strict=True)
        ]

    def together(self, planned: Sequence[Planned]) -> Planned:
        """The answer of the whole."""
        return Planned(
            [one for each in planned for one in each.streams],
            [name for each in planned for name in each.missing],
        )


def _parts(budget: int | None, wanted: Sequence[Sequence[int]]) -> Sequence[int | None]:
    if budget is None:
        return [None] * len(wanted)
    given = iter(shares([one for each in wanted for one in each], budget))
    return [max(1, sum(islice(given, len(each)))) for each in wanted]


def has_any(planned: Planned) -> bool:
    """Whether there is anything to read."""
    return any(one.count for one in planned.streams)


def is_laborious(planned: Planned) -> bool:
    """Whether writing the answer takes long."""
    return sum(1 + len(one.cuts) for one in planned.streams) > _inline_rows_max


def answer(planned: Planned) -> bytes:
    """What there is."""
    streams = {one.stream: _stream(one) for one in planned.streams}
    return msgspec.json.encode({"streams": streams, "missing": planned.missing})


def _stream(one: StreamPlan) -> dict[str, Any]:
    return {
        "after": ids.text(one.after),
        "end": ids.text(one.end),
        "count": one.count,
        "bytes": capped(one.bytes),
        "first": ids.text(one.first_id) if one.first_id else None,
        "last": ids.text(one.last_id),
        "removed_upto": ids.text(one.removed_upto),
        "max_deleted_id": ids.text(one.max_deleted_id),
        "generation": one.generation,
        "durable": ids.text(one.durable) if one.durable is not None else None,
        "lag": one.lag,
        "cuts": [ids.text(cut) for cut in one.cuts],
    }
