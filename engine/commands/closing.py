"""WEIR.CLOSE: a stream ends, for good.

Knows: what closes with which entries, and what a repetition answers.
Must never know: who waits for the end, wire formats.

The entries and the end are in the same frame: after a crash there are both or neither. No command opens a
stream again: a copy is open, and so is a stream that is created anew.
"""

from engine import errors, replies
from engine.commands import weir_commands
from engine.commands.entries import PreparedEntries, Repeated, expect_last_id, prepare, store
from engine.commands.reading import end_of
from engine.commands.registry import Steps, count_dropped, dropped_of, runs
from engine.commands.turn import Turn
from engine.ids import ID_MAX
from engine.parts.closing import REASON_BYTES_MAX, Closed, CloseStream


@runs(weir_commands.Close)
def close(turn: Turn, command: weir_commands.Close) -> Steps[replies.Closed | replies.Dropped]:
    check_reason(command.reason)
    if not command.drops_schedules:
        turn.expect_may_end(command.stream)
    stream, prepared = command.stream, _prepare(turn, command)
    yield
    before, added = dropped_of(turn), None if prepared is None else store(turn, prepared)
    key = turn.key(stream)
    repeated = Closed.of(key) is not None
    if not repeated:
        turn.emit(CloseStream(stream, turn.now_ms, command.reason))
        turn.signal(stream)
    end = end_of(stream, key, ID_MAX)
    assert end is not None, "it is closed by now"
    duplicate = repeated if added is None else added.duplicate
    return count_dropped(turn, before, replies.Closed(end, added, duplicate=duplicate))


def check_reason(reason: str) -> None:
    """Raises the refusal of a reason that is too long."""
    if len(reason.encode()) > REASON_BYTES_MAX:
        raise errors.invalid(f"ERR the reason of an end has at most {REASON_BYTES_MAX} bytes")


def _prepare(turn: Turn, command: weir_commands.Close) -> PreparedEntries | Repeated | None:
    if command.add is None:
        expect_last_id(turn.key(command.stream), command.expected_last_id)
        return None
    prepared = prepare(turn, command.add)
    if prepared is None:
        raise errors.no_such_key(command.stream)
    return prepared
