"""Dead letters: entries delivered too often are moved to a stream of their own, in the same turn.

Knows: what a dead letter holds beside the entry's fields.
Must never know: who looks at them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine import entries, ids
from engine.commands.turn import Turn
from engine.groups import Group, Pending
from engine.records import Append

too_many = "max_deliveries"


class Dead(NamedTuple):
    """A pending entry on its way out."""

    id: int
    text: bytes
    pending: Pending


def is_dead(group: Group, delivery_count: int) -> bool:
    """Whether one more delivery, which would be number `delivery_count`, is one too many."""
    policy = group.policy
    return (
        policy.dead_letter_stream is not None
        and policy.max_deliveries is not None
        and delivery_count > policy.max_deliveries
    )


def bury(turn: Turn, stream: str, group_name: str, dead: Sequence[Dead], reason: str) -> int:
    """Append entries, at least one, to the group's dead-letter stream and settle them; the last ID there."""
    target = turn.keyspace.keys[stream].groups[group_name].policy.dead_letter_stream
    assert target is not None, "only a group with a dead-letter stream buries"
    key = turn.keyspace.find(target) or turn.created(target)
    last_id = key.stream.last_id
    now_ms = max(turn.now_ms, turn.keyspace.floor_ms + 1)
    first = max(ids.make(now_ms, 0), last_id + 1)
    bodies = [_body(stream, group_name, one, reason) for one in dead]
    new_ids = range(first, first + len(bodies))
    turn.emit(Append(target, entries.stored_run(first, bodies), new_ids))
    turn.auto_ms = max(turn.auto_ms, ids.ms_of(new_ids[-1]))
    turn.signal(target)
    turn.settle(stream, group_name, [one.id for one in dead])
    turn.buried += [(stream, group_name, one.id, reason) for one in dead]
    return new_ids[-1]


def _body(stream: str, group: str, one: Dead, reason: str) -> bytes:
    owner = one.pending.consumer
    told = [
        ("weir-source", stream),
        ("weir-id", ids.text(one.id)),
        ("weir-group", group),
        ("weir-consumer", owner.name if owner else ""),
        ("weir-deliveries", str(one.pending.delivery_count)),
        ("weir-reason", reason),
    ]
    return entries.body([*entries.pairs_of(one.text), *told])
