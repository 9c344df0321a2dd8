"""Deferred entries that come back.

Knows: in which streams some are due, and how many are for one turn.
Must never know: when turns come.
"""

from itertools import islice, takewhile
from typing import Final

from engine.commands import weir_commands
from engine.commands.housekeeping import LOOK_CONSUMERS, TurnBudget, give_back, waits_for_much
from engine.commands.registry import DUE, runs
from engine.commands.turn import Turn
from engine.parts.deferrals import Deferrals

# Those for which the disk is asked are looked at again after this time, if not before.
_RETRY_MS: Final = 1_000


@runs(weir_commands.ReleaseDeferred)
def release_deferred(turn: Turn, command: weir_commands.ReleaseDeferred) -> bool:
    """Release what was deferred until now, for the next reader."""
    times, budget = turn.keyspace.due_times[Deferrals], TurnBudget()
    for name in command.again:
        key = turn.keyspace.find(name)
        if key is not None:
            times.replace(name, key.due_ms(Deferrals))
    while (first := times.first()) is not None and first[1] <= turn.now_ms:
        if budget.spent() or budget.looks_left <= 0 or waits_for_much(turn):
            return True
        name = first[0]
        turn.expire(name)
        key = turn.keyspace.find(name)
        if key is None:
            continue
        budget.looks_left -= 1 + len(key.groups) // LOOK_CONSUMERS
        for group_name, group in sorted(key.groups.items()):
            deferrals = Deferrals.of(group)
            if deferrals is not None:
                due = takewhile(lambda row: (row[1].until_ms or 0) <= turn.now_ms, deferrals.rows(group))
                rows = list(islice(due, budget.releases_left))
                turn.step(name, give_back(turn, name, group_name, rows, budget))
        if turn.missing is not None and name in turn.missing:
            times.delay(name, first[1], turn.now_ms + _RETRY_MS)
        else:
            times.replace(name, key.due_ms(Deferrals))
    return False


DUE[Deferrals] = lambda _: weir_commands.ReleaseDeferred()
