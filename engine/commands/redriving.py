"""Redrive: dead letters go back to the stream that they came from, in one turn.

Knows: which entry is a dead letter of a group, and what its copy in the source holds.
Must never know: how dead letters were selected, wire formats.

    orders-dead   7-0 item=pear weir-source=orders weir-id=5-0 weir-group=billing …     is deleted
    orders        9-0 item=pear weir-redriven-from=5-0                                  is appended

The copy is a new entry: no group has read it, its delivery count begins at 0, and it stands in the stream for
every group. Both changes, and the answer kept under an idempotency key, are in the same frame.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from engine import entries, errors, ids
from engine.commands import types, weir_commands
from engine.commands.dead_letters import LETTER_FIELDS, TURN_LETTERS_BYTES_MAX
from engine.commands.entries import PreparedEntries, prepare, store
from engine.commands.registry import Steps, runs
from engine.commands.turn import Turn, removal_of
from engine.entries import Pairs
from engine.keyspace import Key
from engine.parts.idempotence import ANSWERS, RememberAnswer, idempotence_of
from engine.replies import DeadLettersFound, Redriven

# The field of a copy that holds the ID of the entry that died. A copy that dies again keeps the first one.
REDRIVEN_FROM: Final = "weir-redriven-from"
# What one turn looks at. Where each stands in a cold node of its own, one takes 0.1 ms and more.
TURN_REDRIVEN_MAX: Final = 100
# What one look for dead letters goes through: entries, and their bytes.
TURN_LOOKS_MAX: Final = 500
TURN_LOOKS_BYTES_MAX: Final = 1 << 20
# For each dead letter the log holds its ID in the deletion, and both IDs again under an idempotency key.
_IDS_LOGGED: Final = 3


class FoundDeadLetter(NamedTuple):
    """A dead letter taken apart: the entry's own fields, and what was noted beside them."""

    fields: Pairs
    source: bytes
    source_id: bytes
    group: bytes
    consumer: bytes
    reason: bytes
    meta: Mapping[str, str]


def parse(text: bytes) -> FoundDeadLetter | None:
    """The dead letter that a stored entry is, None for any other entry.

    A dead letter that was itself redriven, from the dead letters of a dead-letter stream, is one again.
    """
    if _MARK not in text:
        return None
    pairs = entries.pairs_of(text)
    if pairs[-1][0] == REDRIVEN_FROM:
        del pairs[-1]
    noted = pairs[-len(LETTER_FIELDS) :]
    if tuple(name for name, _ in noted) != LETTER_FIELDS:
        return None
    source, source_id, group, consumer, _, reason = (value for _, value in noted)
    own, meta = pairs[: -len(LETTER_FIELDS)], entries.meta_of(text)
    return FoundDeadLetter(own, source, source_id, group, consumer, reason, meta)


# Most entries that are no dead letters are recognised without being decoded.
_MARK: Final = b'"weir-deliveries"'


@runs(weir_commands.FindDeadLetters)
def find_dead_letters(turn: Turn, command: weir_commands.FindDeadLetters) -> DeadLettersFound:
    key = turn.keyspace.find(command.letters)
    if key is None:
        return DeadLettersFound([], None)
    letters: list[int] = []
    last = ids.ID_MAX
    for entry_id, text in key.stream.after(command.start - 1, TURN_LOOKS_MAX, TURN_LOOKS_BYTES_MAX):
        last = entry_id
        if entry_id > command.end:
            break
        letter = parse(text)
        if letter is not None and is_wanted(letter, command):
            letters.append(entry_id)
            if len(letters) == command.count:
                break
    return DeadLettersFound(letters, last if last < min(key.stream.last_live_id, command.end) else None)


def is_wanted(letter: FoundDeadLetter, wanted: weir_commands.FindDeadLetters) -> bool:
    """Whether the search is for this one."""
    return (
        is_of(letter, wanted.stream, wanted.group)
        and (wanted.consumer is None or letter.consumer == wanted.consumer.encode())
        and (wanted.reason is None or letter.reason == wanted.reason.encode())
    )


@runs(weir_commands.Redrive)
def redrive(turn: Turn, command: weir_commands.Redrive) -> Steps[Redriven]:
    key, _ = turn.group(command.stream, command.group)
    repeated = _repeated(turn, key, command)
    if repeated is not None:
        return repeated
    letters, upto = _found(turn, command)
    letter_ids = [letter_id for letter_id, _ in letters]
    if command.dry_run or not letters:
        yield
        _remember(turn, command, [], [], upto)
        return Redriven(letter_ids, [], upto)
    prepared = prepare(turn, types.XAdd(stream=command.stream, bodies=[body for _, body in letters]))
    assert isinstance(prepared, PreparedEntries), "the stream exists, and copies have no key of their own"
    turn.ask_room(_IDS_LOGGED * len(letters))
    removal = removal_of(command.letters, turn.key(command.letters).stream, letter_ids, tombstone=True)
    yield
    # Deleted first: where a stream is its own dead-letter stream, its retention may remove them otherwise.
    turn.emit(removal)
    copy_ids = list(store(turn, prepared).ids)
    _remember(turn, command, letter_ids, copy_ids, upto)
    return Redriven(letter_ids, copy_ids, upto)


def _found(turn: Turn, command: weir_commands.Redrive) -> tuple[list[tuple[int, bytes]], int | None]:
    """The dead letters of this group among the IDs, each with its copy's body, as far as one turn goes; and
    the last ID that was looked at where some were left.
    """
    key = turn.keyspace.find(command.letters)
    if key is None:
        return [], command.upto
    wanted = sorted(set(command.ids))
    find = key.stream.find_each if command.dry_run else key.stream.find_to_remove
    texts = find(wanted[:TURN_REDRIVEN_MAX])
    letters: list[tuple[int, bytes]] = []
    size = 0
    for place, letter_id in enumerate(wanted[:TURN_REDRIVEN_MAX]):
        letter = parse(texts[letter_id]) if letter_id in texts else None
        if letter is None or not is_of(letter, command.stream, command.group):
            continue
        body = copy_of(letter)
        size += len(body)
        if letters and size > TURN_LETTERS_BYTES_MAX:
            return letters, wanted[place - 1]
        letters.append((letter_id, body))
    return letters, command.upto if len(wanted) <= TURN_REDRIVEN_MAX else wanted[TURN_REDRIVEN_MAX - 1]


def is_of(letter: FoundDeadLetter, stream: str, group: str) -> bool:
    """Whether the entry died in this group of this stream."""
    return (letter.source, letter.group) == (stream.encode(), group.encode())


def copy_of(letter: FoundDeadLetter) -> bytes:
    """The body of the new entry in the source."""
    fields = letter.fields
    if all(name != REDRIVEN_FROM for name, _ in fields):
        fields = [*fields, (REDRIVEN_FROM, letter.source_id)]
    return entries.with_meta(entries.body(fields), letter.meta)


# --- idempotency: the answer is kept as one list of IDs: dead letters, copies, and `upto` (0 for None)


def _repeated(turn: Turn, key: Key, command: weir_commands.Redrive) -> Redriven | None:
    """The answer of the first time."""
    if command.idempotency is None:
        return None
    answer = ANSWERS.find(idempotence_of(key).answers, command.idempotency.key, turn.now_ms)
    if answer is None:
        return None
    if answer.digest != command.idempotency.digest:
        raise errors.idempotency_mismatch()
    *both, upto = answer.ids
    half = len(both) // 2
    return Redriven(both[:half], both[half:], upto or None, duplicate=True)


def _remember(
    turn: Turn,
    command: weir_commands.Redrive,
    letter_ids: Sequence[int],
    copy_ids: Sequence[int],
    upto: int | None,
) -> None:
    if command.idempotency is not None:
        key, kept = command.idempotency, [*letter_ids, *copy_ids, upto or ids.ID_MIN]
        turn.emit(RememberAnswer(command.stream, key.key, key.digest, kept, turn.now_ms))
