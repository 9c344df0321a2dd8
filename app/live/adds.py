"""Entries that many clients publish within one cycle of the loop: one command of the engine for each stream.

Knows: which entries are stored together, whose the IDs are that they get, how many are answered in a cycle.
Must never know: bytes on the wire, connections, callers, how an entry is parsed.

    client 1: one entry ───┐                                              ┌─► 5-0
    client 2: two entries ─┼─► Batch of s ─► AddEach, 4 bodies: one frame ┼─► 5-1, 5-2
    client 3: one entry ───┘                                              └─► 5-3

A turn and its frame cost as much as five entries. No client has an answer yet, so any order is right; each
has one piece of work under way, so its own commands keep theirs. A client with quotas is served alone.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from engine import Call, CommandEngine, EngineError
from engine.commands import AddEach
from engine.replies import Added, Reply

# Entries of a turn, and their bytes but for those of one client alone: larger ones gain nothing.
_ENTRIES_MAX: Final = 1_000
_BYTES_MAX: Final = 256 << 10
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
            _answer_some(self._refusals(clients, bodies, None))
            return
        done = partial(self._answer, clients, bodies)
        replies = self.engine.send(Call((AddEach(stream=self.stream, bodies=entries),)), done)
        if replies is not None:
            done(replies)

    def _answer(self, clients: Sequence[Client], bodies: Sequence[bytes], replies: Replies) -> None:
        (reply,) = replies
        if isinstance(reply, Added):
            _answer_some(self._answers(clients, reply.ids))
        else:
            assert isinstance(reply, EngineError), "what adds is answered IDs or a refusal"
            _answer_some(self._refusals(clients, bodies, reply))


OneBatch = TypeVar("OneBatch", bound=Batch[Any])


class Batches(Generic[OneBatch]):
    """Those of one door, each kept for as long as a client has it or it has entries."""

    def __init__(self, make: Callable[[CommandEngine, str], OneBatch]) -> None:
        self._make = make
        self._batches: WeakValueDictionary[tuple[CommandEngine, str], OneBatch] = WeakValueDictionary()

    def of(self, engine: CommandEngine, stream: str) -> OneBatch:
        """That of a stream."""
        batch = self._batches.get((engine, stream))
        if batch is None:
            batch = self._batches[engine, stream] = self._make(engine, stream)
        return batch


def _answer_some(answers: Answers) -> None:
    """Answer clients, as many as a cycle may; the others in the next one."""
    for _ in range(_ANSWERS_AT_ONCE_MAX):
        try:
            next(answers)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - the other clients must have their answers
            _report(error)
    asyncio.get_running_loop().call_soon(_answer_some, answers)


def _report(error: Exception) -> None:
    context = {"message": "a command of several clients failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
