"""The capabilities of streams and groups, in the order of their records in a snapshot and of their refusals.

Knows: all of them. Must never know: what any of them does.
"""

from collections.abc import Mapping
from typing import Any, Final

from engine.groups import Group, GroupPart
from engine.parts.ages import MaxAge
from engine.parts.closing import Closed
from engine.parts.deferrals import Deferrals
from engine.parts.durable import DurableStream
from engine.parts.idempotence import Idempotence
from engine.parts.keeping import Kept
from engine.parts.ordering import Ordering
from engine.parts.part import StreamPart
from engine.parts.pauses import Paused
from engine.parts.redelivery import Redelivery
from engine.parts.schedules import StreamSchedules
from engine.record import Record

PARTS: Final[tuple[type[StreamPart], ...]] = (Idempotence, Closed, Kept, DurableStream, StreamSchedules)
GROUP_PARTS: Final[tuple[type[GroupPart], ...]] = (Redelivery, MaxAge, Paused, Deferrals, Ordering)
assert all(
    [kind.rank for kind in kinds] == sorted(kind.rank for kind in kinds) for kinds in (PARTS, GROUP_PARTS)
), "each is behind those before it"

# What a group does that nothing was set of.
POLICY_DEFAULT: Final[Mapping[str, Any]] = {
    name: value for kind in GROUP_PARTS for name, value in kind.settings.items()
}


def policy_of(group: Group) -> dict[str, Any]:
    """What is set of a group, by name."""
    return {**POLICY_DEFAULT, **{name: value for part in group.parts for name, value in part.values.items()}}


def policy_changes(
    stream: str, group: str, before: Mapping[str, Any], given: Mapping[str, Any]
) -> list[Record]:
    """The records that change what was set of a group to what is `given`."""
    assert given.keys() <= POLICY_DEFAULT.keys(), "each setting is one of a part"
    changed = {name for name, value in given.items() if value != before[name]}
    return [
        kind.change(stream, group, {name: {**before, **given}[name] for name in kind.settings})
        for kind in GROUP_PARTS
        if not changed.isdisjoint(kind.settings)
    ]
