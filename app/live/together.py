"""What many clients ask within one cycle of the loop, as one command of the engine: entries for a stream, and
what consumers of a group acknowledge.

Knows: what goes together, whose the IDs are that entries get, how many are answered in a cycle.
Must never know: bytes on the wire, connections, callers, how an entry is parsed.

    client 1: one entry ───┐                                              ┌─► 5-0
    client 2: two entries ─┼─► Batch of s ─► AddEach, 4 bodies: one frame ┼─► 5-1, 5-2
    client 3: one entry ───┘                                              └─► 5-3

    client 4: XADD, two entries ─┐                                        ┌─► 5-4, 5-5
    client 5: XADD, one entry ───┴─► SharedCommand ─► XADD: all or none ──┴─► 5-6
    clients 6, 7: XACK ────────────► SharedCommand ─► XACK of all their IDs ─► how many of each were pending

A turn and its frame cost as much as five entries. No client has an answer yet, so any order is right; of a
`Batch` each has one piece of work under way, so its own commands keep theirs. A client with quotas is served
alone.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from engine import Call, CommandEngine, Done, EngineError, How
from engine.commands import Acknowledge, AddEach, Command, XAck, XAdd
from engine.replies import AcknowledgedIds, Added, Reply

# Entries of a turn, and their bytes but for those of one client alone: larger ones gain nothing.
_ENTRIES_MAX: Final = 1_000
_BYTES_MAX: Final = 256 << 10
# Of a command that joins others: with more it would gain nothing.
_JOINING_NUMBER_MAX: Final = 100
_JOINING_BYTES_MAX: Final = 16 << 10
# What follows from an answer takes up to 2 ms: others have their turns in between.
_ANSWERS_AT_ONCE_MAX: Final = 50

Client = TypeVar("Client")
# Each step answers one client, and the next one goes on where it fails, as `map` does.
Answers = Iterator[object]
Replies = Sequence[Reply | EngineError]


class Batch(Generic[Client]):
    """What the clients of one door publish into one stream, until the end of the cycle. A door says what
    entries their bodies are, and how each client is answered.
    """

    def __init__(self, engine: CommandEngine, stream: str) -> None:
        self.engine = engine
        self.stream = stream
        self._loop = asyncio.get_running_loop()
        self._clients: list[Client] = []
        self._bodies: list[bytes] = []
        self._bytes = 0

    def _entries(self, bodies: Sequence[bytes]) -> Sequence[bytes] | None:
        """What to store, an entry of each body; None where one of them cannot be stored with others."""
        raise NotImplementedError

    def _call(self, clients: Sequence[Client], entries: Sequence[bytes]) -> Call:
        """What stores them."""
        return Call((AddEach(stream=self.stream, bodies=entries),))

    def _answers(self, clients: Sequence[Client], added: Sequence[int]) -> Answers:
        """Answer each with its part of the IDs, which may not suffice for all."""
        raise NotImplementedError

    def _refusals(
        self, clients: Sequence[Client], bodies: Sequence[bytes], refusal: EngineError | None
    ) -> Answers:
        """Answer each: their command was refused as a whole, or is not sent."""
        raise NotImplementedError

    def join(self, client: Client, body: bytes) -> None:
        """Store an entry at the end of this cycle."""
        if not self._clients:
            self._loop.call_soon(self._send_all)
        self._clients.append(client)
        self._bodies.append(body)
        self._bytes += len(body)
        if self._bytes >= _BYTES_MAX or len(self._bodies) >= _ENTRIES_MAX:
            self._send_all()

    def join_all(self, client: Client, bodies: Sequence[bytes]) -> None:
        """Store a client's entries, one or more, at the end of this cycle."""
        *first, last = bodies
        size = sum(map(len, bodies))
        if len(self._bodies) + len(bodies) > _ENTRIES_MAX or self._bytes + size > _BYTES_MAX:
            self._send_all()
        self._bodies += first
        self._bytes += size - len(last)
        self.join(client, last)

    def _send_all(self) -> None:
        clients, self._clients = self._clients, []
        bodies, self._bodies = self._bodies, []
        self._bytes = 0
        if clients:
            self._send(clients, bodies)

    def _send(self, clients: Sequence[Client], bodies: Sequence[bytes]) -> None:
        try:
            entries = self._entries(bodies)
        except Exception as error:  # noqa: BLE001 - one of them may be the cause: each has an answer
            _report(error)
            entries = None
        if entries is None:
            answer_some(self._refusals(clients, bodies, None))
            return
        done = partial(self._answer, clients, bodies)
        replies = self.engine.send(self._call(clients, entries), done)
        if replies is not None:
            done(replies)

    def _answer(self, clients: Sequence[Client], bodies: Sequence[bytes], replies: Replies) -> None:
        (reply,) = replies
        if isinstance(reply, Added):
            answer_some(self._answers(clients, reply.ids))
        else:
            assert isinstance(reply, EngineError), "what adds is answered IDs or a refusal"
            answer_some(self._refusals(clients, bodies, reply))


OneBatch = TypeVar("OneBatch", bound=Batch[Any])


class Batches(Generic[OneBatch]):
    """Those of one door, each kept for as long as a client has it or it has entries."""

    def __init__(self, make: Callable[[CommandEngine, str], OneBatch]) -> None:
        self._make = make
        self._batches: WeakValueDictionary[tuple[CommandEngine, str, Hashable], OneBatch] = (
            WeakValueDictionary()
        )

    def of(self, engine: CommandEngine, stream: str, kind: Hashable = None) -> OneBatch:
        """That of a stream, for entries of this kind where there are several."""
        batch = self._batches.get((engine, stream, kind))
        if batch is None:
            batch = self._batches[engine, stream, kind] = self._make(engine, stream)
        return batch


class Part(NamedTuple):
    """What one client asks, and what gets the reply to it."""

    call: Call
    command: XAdd | XAck
    done: Done

    @property
    def number(self) -> int:
        """Of its entries, or IDs."""
        return len(self.command.bodies if isinstance(self.command, XAdd) else self.command.ids)

    def answer(self, reply: Reply | EngineError) -> None:
        """This is the reply."""
        self.done([reply])

    @property
    def is_small(self) -> bool:
        """Whether there is a gain."""
        return self.number <= _JOINING_NUMBER_MAX and self.command.entry_bytes() <= _JOINING_BYTES_MAX


class SharedCommand:
    """One command for all, until it is sent."""

    def __init__(self, engine: CommandEngine, forget: Callable[[], object]) -> None:
        self._engine = engine
        self._forget = forget
        self._parts: list[Part] = []
        self._number = self._bytes = 0
        self._is_sent = False
        asyncio.get_running_loop().call_soon(self.send)

    def add(self, part: Part) -> None:
        """Have this sent too."""
        self._number += part.number
        self._bytes += part.command.entry_bytes()
        self._parts.append(part)
        if self._number >= _ENTRIES_MAX or self._bytes >= _BYTES_MAX:
            self.send()

    def send(self) -> None:
        """Send it now, unless it was sent."""
        if self._is_sent:
            return
        self._is_sent = True
        self._forget()
        if len(self._parts) == 1:
            ((call, _, done),) = self._take_parts()
        else:
            whole = _together([part.command for part in self._parts])
            call, done = Call((whole,)), self._answer
        replies = self._engine.send(call, done)
        if replies is not None:
            done(replies)

    def _answer(self, replies: Replies) -> None:
        (reply,) = replies
        if not isinstance(reply, EngineError):
            self._answer_each(_apart(reply, self._parts))
        elif may_have_run(reply):
            self._answer_each([reply] * len(self._parts))
        else:
            self._send_each()

    def _send_each(self) -> None:
        """Send them one by one: together they were refused, which changed nothing."""
        commands = [part.command for part in self._parts]
        replies = self._engine.send(Call(commands, How.EACH), self._answer_each)
        if replies is not None:
            self._answer_each(replies)

    def _answer_each(self, replies: Replies) -> None:
        answer_some(map(Part.answer, self._take_parts(), replies))

    def _take_parts(self) -> Sequence[Part]:
        """All of it, which nothing holds any more: who has asked for it may be silent for long."""
        parts, self._parts = self._parts, []
        return parts


def _together(commands: Sequence[XAdd | XAck]) -> Command:
    adds = [one for one in commands if isinstance(one, XAdd)]
    if adds:
        return XAdd(stream=adds[0].stream, bodies=[body for one in adds for body in one.bodies])
    acks = [one for one in commands if isinstance(one, XAck)]
    wanted = [entry_id for one in acks for entry_id in one.ids]
    return Acknowledge(stream=acks[0].stream, group=acks[0].group, ids=wanted)


def parts(numbers: Sequence[int], whole: Sequence[Any]) -> list[Sequence[Any]]:
    """What of it is each client's, by the number of its entries."""
    return [whole[at:upto] for at, upto in pairwise(accumulate(numbers, initial=0))]


def _apart(reply: Reply, asked: Sequence[Part]) -> Sequence[Reply]:
    """The reply to each."""
    if isinstance(reply, Added):
        return [*map(Added, parts([part.number for part in asked], reply.ids))]
    assert isinstance(reply, AcknowledgedIds), "an acknowledgement answers which IDs were pending"
    left = set(reply.ids)
    found: list[Reply] = []
    for part in asked:
        # An ID that two have named was acknowledged by the first.
        found.append(len(left.intersection(part.command.ids)))
        left.difference_update(part.command.ids)
    return found


class SharedWork:
    """What the clients of one door share."""

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], SharedCommand] = {}

    def of(self, engine: CommandEngine, command: XAdd | XAck) -> SharedCommand:
        """What goes with this command at the end of the cycle."""
        key = engine, command.stream, command.group if isinstance(command, XAck) else None
        shared = self._open.get(key)
        if shared is None:
            shared = self._open[key] = SharedCommand(engine, lambda: self._open.pop(key))
        return shared


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
