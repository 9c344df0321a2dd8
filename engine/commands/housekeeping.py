"""What time brings: retention, overdue entries, silent consumers, productions that expire.

Knows: which streams need looking after, and how much of it is for one turn.
Must never know: when turns come.
"""

from typing import Final

from engine.commands import own
from engine.commands.deadletters import Dead, bury, is_dead, too_many
from engine.commands.retention import enforce, turn_entries_max
from engine.commands.turn import Turn
from engine.groups import Group
from engine.keyspace import Key, Retention
from engine.records import ForgetProductions, Release, RemoveConsumer

# So many entries are released, and so many streams looked at, in one turn.
turn_releases_max: Final = 1_000
turn_streams_max: Final = 1_000


def keep_house(turn: Turn, _: own.KeepHouse) -> bool:
    """Look after the streams that have waited longest for it; whether one of them needs more."""
    tended = turn.keyspace.tended
    names = list(tended)[:turn_streams_max]
    more = False
    for name in names:
        del tended[name]
        key = turn.keyspace.keys[name]
        more = _tend(turn, name, key) or more
        if _needs_tending(key):
            tended[name] = None
    return more


def _needs_tending(key: Key) -> bool:
    """Whether time may change something in the stream."""
    return (
        key.retention != Retention()
        or bool(key.productions.producers)
        or any(_has_timeout(group) for group in key.groups.values())
    )


def _has_timeout(group: Group) -> bool:
    return group.policy.ack_timeout_ms is not None or group.policy.consumer_timeout_ms is not None


def _tend(turn: Turn, name: str, key: Key) -> bool:
    for producer, count in list(key.productions.expired(turn.now_ms)):
        turn.emit(ForgetProductions(name, producer, count))
    more = enforce(turn, name, exact=True) >= turn_entries_max
    for group_name, group in sorted(key.groups.items()):
        if group.policy.ack_timeout_ms is not None:
            more = _release_overdue(turn, name, group_name, group.policy.ack_timeout_ms) or more
        if group.policy.consumer_timeout_ms is not None:
            _remove_silent(turn, name, group_name, group.policy.consumer_timeout_ms)
    return more


def _release_overdue(turn: Turn, name: str, group_name: str, timeout_ms: int) -> bool:
    """Release what has been idle for too long, so that the next reader gets it; whether there is more."""
    key = turn.keyspace.keys[name]
    group = key.groups[group_name]
    overdue: list[int] = []
    dead: list[Dead] = []
    for entry_id, pending in group.owned_longest_first():
        if pending.idle_ms(turn.now_ms) < timeout_ms or len(overdue) == turn_releases_max:
            break
        text = key.stream.get(entry_id) if is_dead(group, pending.delivery_count + 1) else None
        if text is not None:
            dead.append(Dead(entry_id, text, pending))
        overdue.append(entry_id)
    if dead:
        bury(turn, name, group_name, dead, too_many)
    _release(turn, name, group_name, [entry_id for entry_id in overdue if entry_id in group.pending])
    return len(overdue) == turn_releases_max


def _remove_silent(turn: Turn, name: str, group_name: str, timeout_ms: int) -> None:
    """Remove consumers that have not been seen for too long; what they held is released first."""
    group = turn.keyspace.keys[name].groups[group_name]
    silent = [one for one in group.consumers.values() if turn.now_ms - one.seen_time_ms >= timeout_ms]
    for consumer in silent:
        held = [entry_id for entry_id, _ in consumer.pending.page(0, turn_releases_max)]
        _release(turn, name, group_name, held)
        if not consumer.pending:
            turn.emit(RemoveConsumer(name, group_name, consumer.name))


def _release(turn: Turn, name: str, group_name: str, released: list[int]) -> None:
    if released:
        pending = turn.keyspace.keys[name].groups[group_name].pending
        counts = [one.delivery_count for entry_id in released if (one := pending.get(entry_id))]
        turn.emit(Release(name, group_name, released, counts))
        turn.signal(name)
