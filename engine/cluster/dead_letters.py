"""Dead letters: an entry goes to another stream, which may be in another slot, and then is settled.

Knows: in which order, so that a failure between two steps repeats an entry and loses none.
Must never know: who found an entry due, waiting.

    1  XADD to the dead-letter stream, under a key of the entry     after a failure here it is repeated, once
    2  XACK in the group        the entry was settled in between where this finds it no longer pending
    3  the key is forgotten     the entry may die again, once the group has been moved back
    4  XDEL of the dead letter  where the entry was settled in between, and not by another mover; or where it
                                was claimed from the consumer who has said that it is to die

Several gateways may move one entry. Who finds its dead letter stored marks it as shared before step 2, so the
one who stored it knows at step 3 that the other may have settled the entry.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from engine import errors, ids
from engine.cluster import replies, words
from engine.cluster.kept import failed_field
from engine.cluster.keys import auxiliary_key
from engine.cluster.replies import parse
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import ScriptCall, script, stream_keys
from engine.cluster.stored import text_of
from engine.cluster.wire import Words
from engine.commands.dead_letters import EXPIRED, TOO_MANY, letter_of
from engine.commands.types import IdempotencyKey, XAck, XAdd, XDel
from engine.errors import EngineError
from engine.replies import Added

Run = Callable[[BackendRequest], Awaitable[Any]]
# No client can send it within a key.
_OWN: Final = "\0dead/"
_SHARED: Final = "/shared"


class Due(msgspec.Struct, frozen=True):
    """An entry on its way out: its last consumer, empty for a released one, its deliveries, and why."""

    id: int
    text: bytes
    consumer: str
    deliveries: int
    reason: str = TOO_MANY


class Dying(msgspec.Struct, frozen=True):
    """Entries of one group that are due; `reply` is what their finder answers once they are moved.

    `letters` is empty where they become no dead letters, and are settled alone. `generation` is the stream's.
    `expired` is how many others were settled already, as too old. An entry is settled as long as this
    consumer is its `holder`; empty for any.
    """

    stream: str
    group: str
    letters: str
    generation: str
    due: Sequence[Due]
    reply: Any
    expired: int = 0
    holder: str = ""


def due_of(rows: Sequence[Any], reason: str = TOO_MANY) -> list[Due]:
    """Rows of ID, fields, consumer, deliveries, and whether it is too old, as scripts reply them."""
    return [
        Due(
            *(parse(entry_id), text_of(entry_id, fields), owner_of(consumer), replies.deliveries_of(count)),
            reason=EXPIRED if is_old else reason,
        )
        for entry_id, fields, consumer, count, is_old in rows
    ]


def owner_of(consumer: bytes) -> str:
    """The name of a consumer, empty for an entry without one."""
    return replies.owner_of(consumer) or ""


class Moved(NamedTuple):
    """Which entries went, and the refusals of others, which stay pending."""

    entries: list[Due]
    refusals: list[EngineError]

    @property
    def ids(self) -> list[int]:
        """Those that went."""
        return [due.id for due in self.entries]


async def move(run: Run, dying: Dying) -> Moved:
    """Move them. A refusal leaves an entry pending, for the next time."""
    ends = await asyncio.gather(*(_move(run, dying, due) for due in dying.due))
    moved = [due for due, end in zip(dying.due, ends, strict=True) if end is True]
    if moved and dying.letters:
        await run(_note_failed(dying.stream, dying.group))
    return Moved(moved, [end for end in ends if isinstance(end, EngineError)])


async def _move(run: Run, dying: Dying, due: Due) -> bool | EngineError:
    origin = (dying.stream, ids.format(due.id), dying.group, due.consumer)
    key = f"{_OWN}{dying.generation}/{dying.stream}/{dying.group}/{ids.format(due.id)}"
    letter = letter_of(due.text, origin, due.deliveries, due.reason)
    settle = _settling(dying, due.id)
    try:
        if not dying.letters:
            return bool(await run(settle))
        added = await run(
            words.only_request(
                XAdd(stream=dying.letters, bodies=[letter], idempotency=IdempotencyKey(key, b""))
            )
        )
        assert isinstance(added, Added), "the stream is made where it is missing"
        if added.duplicate:
            await run(_of_answers(dying.letters, [("HSET", key + _SHARED, 1)]))
        settled = await run(settle)
        forget = _of_answers(dying.letters, [("HMGET", key, key + _SHARED), ("HDEL", key, key + _SHARED)])
        (kept, shared), _ = await run(forget)
        is_own = not added.duplicate and not shared and _is_answer(kept, added.ids[0])
        if is_own and not settled:
            await run(words.only_request(XDel(stream=dying.letters, ids=added.ids)))
    except EngineError as refusal:
        return refusal
    return bool(settled)


def _settling(dying: Dying, entry_id: int) -> BackendRequest:
    """What settles an entry, if it is still its holder's. The reply: whether it did."""
    if not dying.holder:
        return words.only_request(XAck(stream=dying.stream, group=dying.group, ids=[entry_id]))
    keys, named = stream_keys(dying.stream)[:1], (dying.group, dying.holder, ids.format(entry_id))
    return words.by_script(dying.stream, ScriptCall(script("acknowledge", "deferring"), keys, named, bool))


def _note_failed(stream: str, group: str) -> BackendRequest:
    """Say that entries of a group have failed now."""
    words = ("EVAL", _NOTE_FAILED, 1, auxiliary_key(stream, "m"), failed_field(group))
    return BackendRequest(stream=stream, commands=[words], decode=bool, lane=Lane.GROUP)


_NOTE_FAILED: Final = """
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
"""


def _of_answers(letters: str, changes: Sequence[Words]) -> BackendRequest:
    """Commands on the answers by key of the dead-letter stream; the reply is a list."""
    answers = auxiliary_key(letters, "i")
    commands = [(name, answers, *others) for name, *others in changes]
    return BackendRequest(stream=letters, commands=commands, decode=list, lane=Lane.WRITE)


def _is_answer(kept: bytes | None, letter_id: int) -> bool:
    """Whether the key still stands for this dead letter: once forgotten, it may stand for a later one."""
    return kept is not None and kept.endswith(b"..%b" % ids.format(letter_id).encode())


def none_configured() -> EngineError:
    """The group has no dead-letter stream."""
    return errors.invalid("ERR the group has no dead-letter stream", "set the group's dead_letter first")
