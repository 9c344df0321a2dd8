"""Dead letters back into their stream: each is copied under a key of its own, then deleted.

Knows: in which order, so that a failure between the two repeats a letter and copies it once.
Must never know: how dead letters were selected.
"""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, Final

from engine import ids
from engine.cluster import scripts, words
from engine.cluster.keys import auxiliary_key
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.stored import text_of
from engine.commands import redriving
from engine.commands.redriving import copy_of, is_of, is_wanted, parse
from engine.commands.types import IdempotencyKey, XAdd, XDel, XRange
from engine.commands.weir_commands import DescribeEdges, DescribeGroup, FindDeadLetters, Redrive
from engine.entries import id_of, texts
from engine.replies import Added, DeadLettersFound, Edges, Entries, Redriven

Run = Callable[[BackendRequest], Awaitable[Any]]
# No client can send it within a key.
_OWN: Final = "\0redriven/"
# How the texts begin that are kept under a call's own key.
_DOING: Final = "redriving"
_DONE: Final = "redriven"


async def find(run: Run, command: FindDeadLetters) -> DeadLettersFound:
    """See `FindDeadLetters`."""
    page = XRange(
        stream=command.letters,
        start=command.start,
        end=command.end,
        count=redriving.TURN_LOOKS_MAX,
        bytes_max=redriving.TURN_LOOKS_BYTES_MAX,
    )
    looked = await run(words.only_request(page))
    assert isinstance(looked, Entries), "a page is asked for"
    letters: list[int] = []
    for part in looked.parts:
        for text in texts(part):
            letter = parse(text)
            if letter is not None and is_wanted(letter, command):
                letters.append(id_of(text))
                if len(letters) == command.count:
                    is_last = not looked.more and letters[-1] == looked.last
                    return DeadLettersFound(letters, None if is_last else letters[-1])
    return DeadLettersFound(letters, looked.last if looked.more else None)


async def redrive(run: Run, command: Redrive) -> Redriven:
    """See `Redrive`. Raises EngineError.

    Under an idempotency key, what is to be done is kept before it is done: a repeated call goes on with the
    same dead letters. Of those that are gone by then it answers the copies, whichever call made them.
    """
    await run(words.only_request(DescribeGroup(stream=command.stream, group=command.group)))
    wanted = sorted(set(command.ids))
    turn = wanted[: redriving.TURN_REDRIVEN_MAX]
    upto = command.upto if len(wanted) <= len(turn) else turn[-1]
    own = await _own_keys(run, command)
    letters = await _copies(run, command, turn)
    if command.idempotency is not None:
        return await _redrive_once(run, command, command.idempotency, own, (letters, upto))
    if command.dry_run:
        return Redriven([letter_id for letter_id, _ in letters], [], upto)
    copies = [(letter_id, await _redrive(run, command, own, letter_id, body)) for letter_id, body in letters]
    done = [(letter_id, copy_id) for letter_id, (copy_id, is_own) in copies if is_own]
    return Redriven([letter_id for letter_id, _ in done], [copy_id for _, copy_id in done], upto)


async def _redrive_once(
    run: Run,
    command: Redrive,
    key: IdempotencyKey,
    own: str,
    wanted: tuple[Sequence[tuple[int, bytes]], int | None],
) -> Redriven:
    """Redrive the letters that are wanted, and say how far that is, under a key."""
    letters, upto = wanted
    turn: Sequence[int] = [letter_id for letter_id, _ in letters]
    before = await _remember(run, command, key, _DOING, (turn, upto, []))
    if before:
        turn, upto, copies = _ids_of(before)
        if before.startswith(_DONE):
            return Redriven(turn, copies, upto, duplicate=True)
        letters = await _copies(run, command, turn)
    for letter_id, body in letters:
        await _redrive(run, command, own, letter_id, body)
    # A call that runs beside this one has made some, maybe.
    made = await _made(run, command, own, turn)
    done = Redriven(list(made), list(made.values()), upto)
    await _remember(run, command, key, _DONE, (done.letters, upto, done.copies))
    return done


async def _remember(
    run: Run,
    command: Redrive,
    key: IdempotencyKey,
    kind: str,
    what: tuple[Sequence[int], int | None, Sequence[int]],
) -> str:
    """Keep dead letters, how far was looked, and copies; reply: what was kept before."""
    letters, upto, copies = what
    text = ";".join(
        [kind, ids.format(upto or 0), ",".join(map(ids.format, letters)), ",".join(map(ids.format, copies))]
    )
    call = scripts.remember(command.stream, key, text, replace=kind == _DONE)
    found: str = await run(words.by_script(command.stream, call))
    return found


def _ids_of(text: str) -> tuple[Sequence[int], int | None, Sequence[int]]:
    """What such a text says."""
    _, upto, *lists = text.split(";")
    letters, copies = (
        [ids.parse_canonical(text.encode()) for text in some.split(",") if text] for some in lists
    )
    return letters, ids.parse_canonical(upto.encode()) or None, copies


async def _made(run: Run, command: Redrive, own: str, letters: Sequence[int]) -> dict[int, int]:
    """The copies of those that have some."""
    if not letters:
        return {}
    fields = [own + ids.format(letter_id) for letter_id in letters]
    look = BackendRequest(
        stream=command.stream,
        commands=[("HMGET", auxiliary_key(command.stream, "i"), *fields)],
        decode=lambda found: found[0],
        lane=Lane.READ,
    )
    kept = zip(letters, await run(look), strict=True)
    # An answer ends with the IDs `first..last`.
    return {
        letter: ids.parse_canonical(text.rpartition(b"..")[2]) for letter, text in kept if text is not None
    }


async def _copies(run: Run, command: Redrive, wanted: Sequence[int]) -> list[tuple[int, bytes]]:
    """The dead letters of the group among the IDs, each with the body of its copy."""
    if not wanted:
        return []
    looks = [("XRANGE", command.letters, word, word) for word in map(ids.format, wanted)]
    look = BackendRequest(stream=command.letters, commands=looks, decode=list, lane=Lane.READ)
    copies = []
    for letter_id, rows in zip(wanted, await run(look), strict=True):
        letter = parse(text_of(*rows[0])) if rows else None
        if letter is not None and is_of(letter, command.stream, command.group):
            copies.append((letter_id, copy_of(letter)))
    return copies


async def _redrive(run: Run, command: Redrive, own: str, letter_id: int, body: bytes) -> tuple[int, bool]:
    """Copy one, then delete it; the ID of the copy, and whether no other call did it."""
    # Another program can put other entries under the same IDs: they are refused, and not lost.
    key = IdempotencyKey(own + ids.format(letter_id), sha256(body).digest())
    added = await run(words.only_request(XAdd(stream=command.stream, bodies=[body], idempotency=key)))
    assert isinstance(added, Added), "its group is there, so the stream is"
    deleted = await run(words.only_request(XDel(stream=command.letters, ids=[letter_id])))
    return added.ids[0], bool(deleted)


async def _own_keys(run: Run, command: Redrive) -> str:
    """How the keys of copies begin. They need not be forgotten: an ID is of one letter for good, until its
    stream is deleted and another one has the name.
    """
    edges: Edges | None = await run(words.only_request(DescribeEdges(stream=command.letters)))
    return f"{_OWN}{edges.generation if edges else ''}/{command.letters}/"
