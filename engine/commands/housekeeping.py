"""What time brings: retention, overdue entries, silent consumers, productions that expire.

Knows: which streams need looking after, and how much of it is for one turn.
Must never know: when turns come.
"""

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Final

from engine.commands import own
from engine.commands.deadletters import Dead, bury, is_dead, too_many
from engine.commands.retention import enforce, turn_entries_max
from engine.commands.turn import Turn
from engine.groups import Consumer, Group, Pending
from engine.keyspace import Key, Retention
from engine.records import ForgetProductions, Release, RemoveConsumer

# So many entries are released, and so many streams looked at, in one turn.
turn_releases_max: Final = 1_000
turn_streams_max: Final = 1_000


class _Share:
    """What one turn may still do, over all streams together."""

    __slots__ = ("entries_left", "releases_left")

    def __init__(self) -> None:
        self.entries_left = turn_entries_max
        self.releases_left = turn_releases_max

    @property
    def spent(self) -> bool:
        """Whether the rest is for another turn."""
        return self.entries_left <= 0 or self.releases_left <= 0


def keep_house(turn: Turn, command: own.KeepHouse) -> bool:
    """Look after the streams that have waited longest for it; whether something is left for another turn."""
    tended = turn.keyspace.tended
    share = _Share()
    for name in list(islice(tended, turn_streams_max)):
        if share.spent:
            break
        del tended[name]
        key = turn.keyspace.keys[name]
        _tend(turn, command, name, key, share)
        if _needs_tending(key):
            tended[name] = None
    return share.spent


def _needs_tending(key: Key) -> bool:
    """Whether time may change something in the stream."""
    return (
        key.retention != Retention()
        or bool(key.productions.producers)
        or any(_has_timeout(group) for group in key.groups.values())
    )


def _has_timeout(group: Group) -> bool:
    return group.policy.ack_timeout_ms is not None or group.policy.consumer_timeout_ms is not None


def _tend(turn: Turn, command: own.KeepHouse, name: str, key: Key, share: _Share) -> None:
    for producer, count in list(key.productions.expired(turn.now_ms)):
        turn.emit(ForgetProductions(name, producer, count))
    share.entries_left -= enforce(turn, name, exact=True, limit=share.entries_left)
    for group_name, group in sorted(key.groups.items()):
        if group.policy.ack_timeout_ms is not None:
            _release_overdue(turn, name, group_name, group.policy.ack_timeout_ms, share)
        if group.policy.consumer_timeout_ms is not None:
            _remove_silent(turn, command, name, group_name, share)


def _release_overdue(turn: Turn, name: str, group_name: str, timeout_ms: int, share: _Share) -> None:
    """Give back what has been idle for too long."""
    owned = turn.keyspace.keys[name].groups[group_name].owned_longest_first()
    overdue = takewhile(lambda row: row[1].idle_ms(turn.now_ms) >= timeout_ms, owned)
    _give_back(turn, name, group_name, list(islice(overdue, share.releases_left)), share)


def _remove_silent(turn: Turn, command: own.KeepHouse, name: str, group_name: str, share: _Share) -> None:
    """Remove consumers that have not been seen for too long; what they held is given back first."""
    group = turn.keyspace.keys[name].groups[group_name]
    for consumer in _silent(turn, command, name, group_name, group):
        held = [
            (entry_id, one)
            for entry_id, _ in consumer.pending.page(0, share.releases_left)
            if (one := group.pending.get(entry_id))
        ]
        _give_back(turn, name, group_name, held, share)
        if not consumer.pending:
            turn.emit(RemoveConsumer(name, group_name, consumer.name))


def _silent(
    turn: Turn, command: own.KeepHouse, name: str, group_name: str, group: Group
) -> Sequence[Consumer]:
    """Consumers that nobody has seen for too long, and that are not waiting for entries at this moment."""
    last_ms = turn.now_ms - (group.policy.consumer_timeout_ms or 0)
    if last_ms < command.since_ms:
        return ()
    silent = [one for one in group.consumers.values() if one.seen_time_ms <= last_ms]
    waiting = command.waiting(name) if silent else ()
    return [one for one in silent if (group_name, one.name) not in waiting]


def _give_back(
    turn: Turn, name: str, group_name: str, rows: Sequence[tuple[int, Pending]], share: _Share
) -> None:
    """Release entries for the next reader. Those delivered often enough are buried; those that are gone from
    the stream, which no reader would ever get, are forgotten.
    """
    share.releases_left -= len(rows)
    key = turn.keyspace.keys[name]
    group = key.groups[group_name]
    turn.settle(name, group_name, [entry_id for entry_id, _ in rows if _is_gone(key, entry_id)])
    dead = [
        Dead(entry_id, text, one)
        for entry_id, one in rows
        if is_dead(turn, group, one.delivery_count + 1) and (text := key.stream.get(entry_id))
    ]
    bury(turn, name, group_name, dead, too_many)
    counts = {entry_id: one.delivery_count for entry_id, one in rows if entry_id in group.pending}
    if counts:
        turn.emit(Release(name, group_name, list(counts), list(counts.values())))
        turn.signal(name)


def _is_gone(key: Key, entry_id: int) -> bool:
    """Whether the entry is not in the stream any more; looks into a node only where it may have a hole."""
    stream = key.stream
    return not stream.first_id <= entry_id <= stream.top_id or (
        entry_id <= stream.max_deleted_id and entry_id not in stream
    )


def end_wait(turn: Turn, command: own.EndWait) -> bool:
    for name in command.streams:
        key = turn.keyspace.find(name)
        group = key.groups.get(command.group) if key is not None else None
        if (
            group is not None
            and group.policy.consumer_timeout_ms is not None
            and command.consumer in group.consumers
        ):
            turn.seen(name, command.group, command.consumer)
    return True
