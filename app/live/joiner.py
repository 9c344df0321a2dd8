"""What many clients ask within one cycle of the loop, as one command of the engine: entries for a stream,
what consumers of a group acknowledge, batches of producers.

Knows: what goes together, whose each part of the reply is, how many are answered in a cycle.
Must never know: bytes on the wire, connections, callers, how a body is read.

    client 1: one entry ───┐                                             ┌─► 5-0
    client 2: two entries ─┼─► one XADD of s: one frame, all or none ────┼─► 5-1, 5-2
    client 3: one entry ───┘     └ refused: each is asked alone ─────────┴─► 5-3

    clients 4, 5: XACK ────────► one of all their IDs ─────────────────────► which of each were pending

A turn and its frame cost as much as five entries. No client has an answer yet, so any order is right; a door
that has several pieces of a client's work under way flushes in between, so its own commands keep theirs. What
has quotas, waits for the disk or brings a condition or a key goes alone.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, repeat
from operator import call as invoke
from typing import Any, Final, NamedTuple, Protocol

from engine import Call, CommandEngine, Done, EngineError, How, Replies, errors
from engine.commands.base import Command
from engine.commands.durable_commands import AppendBatches, AppendDurable
from engine.commands.types import XAck, XAdd
from engine.commands.weir_commands import Acknowledge, AddEach
from engine.replies import AcknowledgedIds, Added, BatchesAppended, DurableAppended, Reply

# Entries or IDs of one command, and their bytes: larger ones gain nothing.
_NUMBER_MAX: Final = 1_000
_BYTES_MAX: Final = 256 << 10
# Of one that joins: with more it would gain nothing.
_JOINING_NUMBER_MAX: Final = 100
_JOINING_BYTES_MAX: Final = 16 << 10
# What follows from an answer takes up to 2 ms: others have their turns in between.
_ANSWERS_AT_ONCE_MAX: Final = 50

# What is asked of the engine once the body is read.
_NOTHING: Final = Call(())

# Each step answers one client, and the next one goes on where it fails, as `map` does.
Answers = Iterator[object]
# The reply to each of some clients; None to one that is asked alone.
Split = Iterable[Reply | EngineError | None]


class Kind(NamedTuple):
    """How commands of one kind are one: how many entries or IDs one has, what all are together, and how the
    reply is each one's.
    """

    number: Callable[[Any], int]
    merge: Callable[[Sequence[Any]], Command]
    split: Callable[[Any, Sequence[Any]], Split]


class Raw(Protocol):
    """How bodies of entries for one stream are read together."""

    @property
    def stream(self) -> str:
        """Where they are stored."""

    def takes(self, body: bytes) -> bool:
        """Whether this body may be read with others."""

    def read(self, bodies: Sequence[bytes]) -> Sequence[bytes] | None:
        """An entry of each body; None where one of them is anything else."""


class Part(NamedTuple):
    """What one client asks, and what gets the reply. Of what is `raw` the `body` is read with those of others
    as it is sent; `ask_alone` asks it alone, where one of them is anything else.
    """

    call: Call
    done: Done
    raw: Raw | None = None
    body: bytes = b""
    ask_alone: Callable[[], object] = bool


def key_of(command: Command) -> Hashable | None:
    """What commands have in common that go together; None for one that goes alone. Callers have to share an
    engine.
    """
    kind = type(command)
    if kind is XAdd:
        assert isinstance(command, XAdd), "that is its kind"
        return None if _asks_more(command) else (XAdd, command.stream)
    if isinstance(command, AddEach):
        return XAdd, command.stream
    if isinstance(command, XAck | Acknowledge):
        return XAck, command.stream, command.group
    if isinstance(command, AppendDurable):
        if command.closes or command.writer_seq is not None or not command.bodies:
            return None
        # Those of all producers go together.
        return AppendDurable, command.stream, command.kind, command.batch is None
    return None


def _asks_more(add: XAdd) -> bool:
    return bool(
        add.ids
        or not add.mkstream
        or add.trim
        or add.producer_key
        or add.idempotency
        or add.expected_last_id is not None
    )


def _add_all(commands: Sequence[XAdd | AddEach]) -> Command:
    return XAdd(stream=commands[0].stream, bodies=[body for one in commands for body in one.bodies])


def _ids_of_each(reply: Added, commands: Sequence[XAdd | AddEach]) -> Split:
    return map(Added, _parts([len(one.bodies) for one in commands], reply.ids))


def _acknowledge_all(commands: Sequence[XAck | Acknowledge]) -> Command:
    wanted = [entry_id for one in commands for entry_id in one.ids]
    holders: Sequence[str] = ()
    if any(isinstance(one, Acknowledge) and one.holders for one in commands):
        holders = [holder for one in commands for holder in _holders(one)]
    return Acknowledge(stream=commands[0].stream, group=commands[0].group, ids=wanted, holders=holders)


def _holders(command: XAck | Acknowledge) -> Sequence[str]:
    """Of each of its IDs, "" for any."""
    named = command.holders if isinstance(command, Acknowledge) else ()
    return named or ("",) * len(command.ids)


def _acknowledged_of_each(reply: AcknowledgedIds, commands: Sequence[XAck | Acknowledge]) -> Split:
    left, refused = set(reply.ids), Counter(reply.not_held)
    for one in commands:
        # An ID that several have named was refused to the first of them, and acknowledged by the next one.
        not_held = [entry_id for entry_id in one.ids if refused[entry_id] > 0] if refused else ()
        refused.subtract(not_held)
        settled = left.intersection(one.ids).difference(not_held)
        left -= settled
        yield len(settled) if isinstance(one, XAck) else AcknowledgedIds(tuple(settled), not_held)


def _append_all(commands: Sequence[AppendDurable]) -> Command:
    first = commands[0]
    bodies = [body for one in commands for body in one.bodies]
    if first.batch is None:
        return AppendDurable(stream=first.stream, kind=first.kind, bodies=bodies)
    return AppendBatches(
        stream=first.stream,
        kind=first.kind,
        batches=[one.batch for one in commands if one.batch is not None],
        counts=[len(one.bodies) for one in commands],
        bodies=bodies,
    )


def _appended_of_each(reply: DurableAppended | BatchesAppended, commands: Sequence[AppendDurable]) -> Split:
    if isinstance(reply, BatchesAppended):
        return reply.replies
    # The IDs of those without a producer follow each other.
    numbers = [len(one.bodies) for one in commands]
    before = reply.last_id - sum(numbers)
    last_ids = accumulate(numbers[1:], initial=before + numbers[0])
    return [DurableAppended(last_id, generation=reply.generation) for last_id in last_ids]


def _bodies(command: XAdd | AddEach | AppendDurable) -> int:
    return len(command.bodies)


def _ids(command: XAck | Acknowledge) -> int:
    return len(command.ids)


_ADDS: Final = Kind(_bodies, _add_all, _ids_of_each)
_ACKS: Final = Kind(_ids, _acknowledge_all, _acknowledged_of_each)
_APPENDS: Final = Kind(_bodies, _append_all, _appended_of_each)


def kind_of(command: Command) -> Kind:
    """How a command that has a key goes with others."""
    if isinstance(command, XAck | Acknowledge):
        return _ACKS
    return _APPENDS if isinstance(command, AppendDurable) else _ADDS


class Joint:
    """One command of several clients, until it is sent at the end of the cycle."""

    def __init__(self, engine: CommandEngine, forget: Callable[[], object]) -> None:
        self._engine = engine
        self._forget = forget
        self._parts: list[Part] = []
        self._number = self._bytes = 0
        self._is_sent = False
        asyncio.get_running_loop().call_soon(self.send)

    def add(self, part: Part, number: int, size: int) -> None:
        """Have this sent too, which has `number` entries or IDs in `size` bytes."""
        self._parts.append(part)
        self._number += number
        self._bytes += size
        if self._number >= _NUMBER_MAX or self._bytes >= _BYTES_MAX:
            self.send()

    def send(self) -> None:
        """Send it now, unless it was sent."""
        if self._is_sent:
            return
        self._is_sent = True
        # Also where a fault has left it empty: what comes next has one of its own.
        self._forget()
        # Who has asked for it may be silent for long: nothing holds it any more.
        parts, self._parts = self._parts, []
        raw = [part for part in parts if part.raw is not None]
        bodies = _read(raw) if raw else ()
        if bodies is None:
            answer_some(map(invoke, [part.ask_alone for part in raw]))
            parts = [part for part in parts if part.raw is None]
        if parts:
            self._ask(parts, iter(bodies or ()))

    def _ask(self, parts: Sequence[Part], bodies: Iterator[bytes]) -> None:
        commands = [
            call.commands[0] if raw is None else XAdd(stream=raw.stream, bodies=[next(bodies)])
            for call, _, raw, *_ in parts
        ]
        if len(parts) == 1:
            ((call, done, *_),) = parts
            _send(self._engine, call if call.commands else Call(commands), done)
            return
        dones = [part.done for part in parts]
        try:
            whole = Call((kind_of(commands[0]).merge(commands),))
        except Exception as error:  # noqa: BLE001 - each client has an answer
            _report(error)
            answer_some(map(invoke, dones, repeat((errors.internal(),))))
            return
        _send(self._engine, whole, partial(self._answer, parts, commands))

    def _answer(self, parts: Sequence[Part], commands: Sequence[Command], replies: Replies) -> None:
        (reply,) = replies
        # `map` with functions of C makes no frame of Python between.
        dones = [part.done for part in parts]
        if not isinstance(reply, EngineError):
            try:
                found = [*kind_of(commands[0]).split(reply, commands)]
            except Exception as error:  # noqa: BLE001 - as above
                _report(error)
                found = [errors.internal()] * len(parts)
            if None in found:
                answer_some(map(self._answer_one, parts, found))
            else:
                answer_some(map(invoke, dones, zip(found)))
        elif may_have_run(reply):
            answer_some(map(invoke, dones, repeat((reply,))))
        else:
            # Together they were refused, which changed nothing.
            each = Call(commands, How.EACH)
            _send(self._engine, each, lambda replies: answer_some(map(invoke, dones, zip(replies))))

    def _answer_one(self, part: Part, reply: Reply | EngineError | None) -> None:
        if reply is not None:
            part.done((reply,))
        else:
            _send(self._engine, part.call, part.done)


class Joiner:
    """What is under way within this cycle: for all doors of a gateway."""

    def __init__(self) -> None:
        self._joints: dict[Hashable, Joint] = {}

    def send(
        self, engine: CommandEngine, call: Call, done: Done, behind: Joint | None = None
    ) -> Joint | None:
        """Ask this at the end of the cycle with what others ask, and return what it goes with; at once, and
        None, where it goes alone. `done` gets the replies. What it is `behind` is sent before it, if it does
        not go with that.
        """
        joint = self.join(engine, call, done, behind)
        if joint is None:
            if behind is not None:
                behind.send()
            _send(engine, call, done)
        return joint

    def join(
        self, engine: CommandEngine, call: Call, done: Done, behind: Joint | None = None
    ) -> Joint | None:
        """The same; but what goes alone is left to be sent by who asks."""
        command = call.commands[0]
        key = None if call.quotas or call.synced or len(call.commands) > 1 else key_of(command)
        if key is None:
            return None
        number, size = kind_of(command).number(command), command.entry_bytes()
        if number > _JOINING_NUMBER_MAX or size > _JOINING_BYTES_MAX:
            return None
        whole = engine, key
        joint = self._joints.get(whole)
        if behind is not None and behind is not joint:
            behind.send()
            # An answer to that may have begun one.
            joint = self._joints.get(whole)
        joint = joint or self._begin(whole)
        joint.add(Part(call, done), number, size)
        return joint

    def join_raw(
        self, engine: CommandEngine, raw: Raw, body: bytes, done: Done, ask_alone: Callable[[], None]
    ) -> None:
        """Read an entry at the end of the cycle with those of others, and store it with what others store."""
        whole = engine, (XAdd, raw.stream)
        joint = self._joints.get(whole) or self._begin(whole)
        joint.add(Part(_NOTHING, done, raw, body, ask_alone), 1, len(body))

    def _begin(self, whole: tuple[CommandEngine, Hashable]) -> Joint:
        joint = self._joints[whole] = Joint(whole[0], partial(self._joints.pop, whole))
        return joint


def _read(parts: Sequence[Part]) -> Sequence[bytes] | None:
    """The entries in these bodies; None where one of them is anything else."""
    raw = parts[0].raw
    assert raw is not None, "they are read together"
    try:
        return raw.read([part.body for part in parts])
    except Exception as error:  # noqa: BLE001 - one of them may be the cause: each has an answer
        _report(error)
        return None


def _send(engine: CommandEngine, call: Call, done: Done) -> None:
    replies = engine.send(call, done)
    if replies is not None:
        done(replies)


def _parts(numbers: Sequence[int], whole: Sequence[Any]) -> list[Sequence[Any]]:
    """What of it is each client's, by the number of its entries."""
    return [whole[at:upto] for at, upto in pairwise(accumulate(numbers, initial=0))]


def may_have_run(refusal: EngineError) -> bool:
    """Whether none of what was refused together is tried again: one of them may have caused the fault, or a
    backend may have done it. Any other refusal has changed nothing, and may be for one of them alone.
    """
    return refusal.code == "internal" or "outcome" in refusal.members


def answer_some(answers: Answers) -> None:
    """Answer clients, as many as a cycle may; the others in the next one."""
    for _ in range(_ANSWERS_AT_ONCE_MAX):
        try:
            next(answers)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - the other clients must have their answers
            _report(error)
    asyncio.get_running_loop().call_soon(answer_some, answers)


def _report(error: Exception) -> None:
    context = {"message": "a command of several clients failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
