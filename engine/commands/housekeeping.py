"""What time brings: retention, overdue entries, silent consumers, idempotency keys and answers that expire.

Knows: which streams need looking after, and how much of it is for one turn.
Must never know: when turns come.
"""

from collections.abc import Collection, Sequence
from itertools import islice, takewhile
from typing import Final

from engine import ids
from engine.commands import weir_commands
from engine.commands.dead_letters import Dead, fit_letters, move_to_dead_letters, why_dead
from engine.commands.registry import Steps, runs
from engine.commands.retention import TURN_ENTRIES_MAX, select_retention
from engine.commands.turn import Turn
from engine.dedup import PUBLISHED
from engine.groups import Group
from engine.keyspace import Key
from engine.parts.ages import MaxAge
from engine.parts.idempotence import ANSWERS, ForgetAnswers, ForgetProducerKeys, idempotence_of
from engine.parts.keeping import RETENTION_DEFAULT, kept_of
from engine.parts.redelivery import redelivery_of
from engine.pending_states import Consumer, PendingState
from engine.records.changes import Release, RemoveConsumer
from engine.runs import Run
from engine.stream import Stream

# What one turn does at most, so that others have theirs: entries released, keys and answers
# forgotten, streams, groups and consumers looked at. A turn at its limit takes some 10 ms.
TURN_RELEASES_MAX: Final = 400
TURN_KEYS_MAX: Final = 4_000
TURN_LOOKS_MAX: Final = 500
# Consumers that a look at a group goes through at the price of one more look.
LOOK_CONSUMERS: Final = 20
# A stream with released entries counts as this many looks.
_LOOKS_A_CHANGE: Final = 4
# Runs that the streams of one turn wait for, about, and that one step of a stream looks into.
_MISSING_MAX: Final = 32
_STEP_RUNS_MAX: Final = 16


class TurnBudget:
    """What one turn may still do, over all streams together."""

    __slots__ = ("entries_left", "keys_left", "looks_left", "releases_left")

    def __init__(self) -> None:
        self.entries_left = TURN_ENTRIES_MAX
        self.releases_left = TURN_RELEASES_MAX
        self.keys_left = TURN_KEYS_MAX
        self.looks_left = TURN_LOOKS_MAX

    def spent(self) -> bool:
        """Whether a stream may have got less than it needs."""
        return self.entries_left <= 0 or self.releases_left <= 0 or self.keys_left <= 0


@runs(weir_commands.EnforceRetention)
@runs(weir_commands.Maintain)
def maintain(turn: Turn, command: weir_commands.Maintain) -> bool:
    """Look after the streams that have waited longest for it; whether the round goes on in another turn.

    A round looks at each maintained stream once, and again at those that needed more than was left of a turn.
    """
    keyspace, budget = turn.keyspace, TurnBudget()
    if command.again:
        keyspace.round.extendleft(command.again)
    elif not keyspace.round:
        keyspace.round.extend(keyspace.maintained)
        if not command.makes_room:
            old = PUBLISHED.count_old(keyspace.answers, turn.now_ms, budget.keys_left)
            _forget_answers(turn, "", old, budget)
    while keyspace.round and not budget.spent() and budget.looks_left > 0 and not waits_for_much(turn):
        name = keyspace.round.popleft()
        if name not in keyspace.maintained:
            continue
        budget.looks_left -= 1
        turn.expire(name)
        key = keyspace.find(name)
        if key is None:
            continue
        _maintain(turn, command, name, key, budget)
        if not _needs_maintenance(key):
            del keyspace.maintained[name]
        elif budget.spent():
            keyspace.round.append(name)
    return bool(keyspace.round)


def waits_for_much(turn: Turn) -> bool:
    """Whether what the turn has to wait for is enough for the disk."""
    return turn.missing is not None and sum(map(len, turn.missing.values())) >= _MISSING_MAX


def _needs_maintenance(key: Key) -> bool:
    """Whether time may change something in the stream."""
    return (
        kept_of(key).retention != RETENTION_DEFAULT
        or bool(idempotence_of(key).producers or idempotence_of(key).answers)
        or any(redelivery_of(group).has_timeout for group in key.groups.values())
    )


def _maintain(turn: Turn, command: weir_commands.Maintain, name: str, key: Key, budget: TurnBudget) -> None:
    # Most looks find nothing: what a stream does not have is not asked.
    if kept_of(key).retention != RETENTION_DEFAULT:
        turn.step(name, _enforce(turn, name, key, budget))
    if command.makes_room:
        return
    kept = idempotence_of(key)
    for producer, count in kept.find_expired(turn.now_ms, budget.keys_left) if kept.producers else ():
        turn.emit(ForgetProducerKeys(name, producer, count))
        budget.keys_left -= count
    if kept.answers:
        _forget_answers(turn, name, ANSWERS.count_old(kept.answers, turn.now_ms, budget.keys_left), budget)
    for group_name, group in sorted(key.groups.items()):
        budget.looks_left -= 1
        redelivery = redelivery_of(group)
        if redelivery.ack_timeout_ms is not None:
            turn.step(name, _release_overdue(turn, name, group_name, redelivery.ack_timeout_ms, budget))
        if redelivery.consumer_timeout_ms is not None:
            _remove_silent(turn, command, name, group_name, budget)


def _enforce(turn: Turn, name: str, key: Key, budget: TurnBudget) -> Steps[None]:
    cut, before = select_retention(turn, name, exact=True, limit=budget.entries_left), key.stream.length
    yield
    if cut is not None:
        turn.emit(cut)
    budget.entries_left -= before - key.stream.length


def _forget_answers(turn: Turn, name: str, old: int, budget: TurnBudget) -> None:
    """Forget what no repeated request is compared with any more."""
    if old:
        turn.emit(ForgetAnswers(name, old))
        budget.keys_left -= old


def _release_overdue(turn: Turn, name: str, group: str, timeout_ms: int, budget: TurnBudget) -> Steps[None]:
    """Give back what has been idle for too long."""
    owned = turn.keyspace.keys[name].groups[group].owned_longest_first()
    overdue = takewhile(lambda row: row[1].idle_ms(turn.now_ms) >= timeout_ms, owned)
    return give_back(turn, name, group, list(islice(overdue, budget.releases_left)), budget)


def _remove_silent(
    turn: Turn, command: weir_commands.Maintain, name: str, group_name: str, budget: TurnBudget
) -> None:
    """Remove consumers that have not been seen for too long; what they held is given back first."""
    for consumer in _silent(turn, command, name, group_name, budget):
        turn.step(name, _remove_consumer(turn, name, group_name, consumer, budget))


def _remove_consumer(
    turn: Turn, name: str, group_name: str, consumer: Consumer, budget: TurnBudget
) -> Steps[None]:
    group = turn.keyspace.keys[name].groups[group_name]
    held = [
        (entry_id, state)
        for entry_id, _ in consumer.pending.page(0, budget.releases_left)
        if (state := group.pending.get(entry_id))
    ]
    yield from give_back(turn, name, group_name, held, budget)
    if not consumer.pending:
        turn.emit(RemoveConsumer(name, group_name, consumer.name))


def _silent(
    turn: Turn, command: weir_commands.Maintain, name: str, group_name: str, budget: TurnBudget
) -> Sequence[Consumer]:
    """Consumers that were idle for too long and do not wait for entries now."""
    group = turn.keyspace.keys[name].groups[group_name]
    last_ms = turn.now_ms - (redelivery_of(group).consumer_timeout_ms or 0)
    if last_ms < command.since_ms:
        return ()
    budget.looks_left -= len(group.consumers) // LOOK_CONSUMERS
    silent = [consumer for consumer in group.consumers.values() if consumer.seen_time_ms <= last_ms]
    waiting = command.waiting(name) if silent else ()
    return [consumer for consumer in silent if (group_name, consumer.name) not in waiting]


def give_back(
    turn: Turn, name: str, group_name: str, rows: Sequence[tuple[int, PendingState]], budget: TurnBudget
) -> Steps[None]:
    """Release entries for the next reader. Those delivered often enough, or too old, become dead letters.
    Those whose entry was deleted are settled, since no reader can get them.
    """
    key = turn.keyspace.keys[name]
    group, stream = key.groups[group_name], key.stream
    rows, is_all = _within_runs(stream, group, rows)
    names = (name, group_name)
    ends = {
        entry_id: why
        for entry_id, state in rows
        if (why := why_dead(turn, group, entry_id, state.delivery_count + 1, names))
    }
    there, gone = _texts_of(stream, [entry_id for entry_id, _ in rows], ends)
    letters = [
        Dead(entry_id, there[entry_id], state, ends[entry_id])
        for entry_id, state in rows
        if entry_id in ends and entry_id in there
    ]
    dead = fit_letters(turn, name, group_name, letters)
    yield
    budget.releases_left = budget.releases_left - len(rows) if is_all else 0
    if rows:
        # A stream that changes has to be held first by a rewrite that has still to read it.
        budget.looks_left -= _LOOKS_A_CHANGE
    turn.settle(name, group_name, gone)
    move_to_dead_letters(turn, name, group_name, dead)
    counts = {entry_id: state.delivery_count for entry_id, state in rows if entry_id in group.pending}
    if counts:
        turn.emit(Release(name, group_name, list(counts), list(counts.values())))
        turn.signal(name)


def _within_runs(
    stream: Stream, group: Group, rows: Sequence[tuple[int, PendingState]]
) -> tuple[Sequence[tuple[int, PendingState]], bool]:
    """The first rows, of no more runs than one step looks into; whether these are all."""
    if not stream.nodes.runs or len(rows) <= _STEP_RUNS_MAX:
        return rows, True
    may_end = redelivery_of(group).max_deliveries is not None or MaxAge.of(group) is not None
    upto = ids.ID_MAX if may_end else stream.gone_upto
    runs = set[Run]()
    for place, (entry_id, _) in enumerate(rows):
        part = stream.part_of(entry_id) if entry_id <= upto else None
        if isinstance(part, Run):
            runs.add(part)
        if len(runs) > _STEP_RUNS_MAX:
            return rows[:place], False
    return rows, True


def _texts_of(
    stream: Stream, pending: Sequence[int], wanted: Collection[int]
) -> tuple[dict[int, bytes], list[int]]:
    """The `wanted` ones of pending entries, and those that are not in the stream any more.
    Looks into a node only for these, and where it may have a hole. What the disk does not give is in neither:
    it is delivered once more.
    """
    inside = [each for each in pending if stream.first_id <= each <= stream.last_live_id]
    looked_for = [each for each in inside if each in wanted or each <= stream.gone_upto]
    passed = stream.unreadable(looked_for)
    texts = stream.find_each(each for each in looked_for if each not in passed)
    there = {*inside}.difference(each for each in looked_for if each not in passed and each not in texts)
    return texts, [each for each in pending if each not in there]


@runs(weir_commands.EndWait)
def end_wait(turn: Turn, command: weir_commands.EndWait) -> bool:
    for name in command.streams:
        key = turn.keyspace.find(name)
        group = key.groups.get(command.group) if key is not None else None
        if (
            group is not None
            and redelivery_of(group).consumer_timeout_ms is not None
            and command.consumer in group.consumers
        ):
            turn.see_consumer(name, command.group, command.consumer)
    return True
