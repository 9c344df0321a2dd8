"""Entries that many clients publish within one cycle of the loop: one command of the engine for each stream.

Knows: which entries are stored together, whose the IDs are that they get, how many are answered in a cycle.
Must never know: bytes on the wire, connections, callers, how an entry is parsed.

    client 1: one entry ───┐                                        ┌─► 5-0
    client 2: two entries ─┼─► AddEach s, 4 bodies: one turn, frame ┼─► 5-1, 5-2
    client 3: one entry ───┘                                        └─► 5-3

A turn and its frame cost as much as five entries. No client has an answer yet, so any order is right; each
has one piece of work under way, so its own commands keep theirs. A client with quotas is served alone.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

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


class Coalescer(Generic[Client]):
    """What the clients of one door have published since the last turn, by engine and stream. A door says what
    the entries of its clients are, and how each is answered.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[CommandEngine, str], list[Client]] = {}
        self._entries = self._bytes = 0

    def _bodies(self, clients: Sequence[Client]) -> Sequence[bytes] | None:
        """All entries of these, in their order; None where one of them cannot be stored with others."""
        raise NotImplementedError

    def _answers(
        self, engine: CommandEngine, stream: str, clients: Sequence[Client], added: Sequence[int]
    ) -> Answers:
        """Answer each with its part of the IDs, which may not suffice for all."""
        raise NotImplementedError

    def _refusals(
        self, engine: CommandEngine, stream: str, clients: Sequence[Client], refusal: EngineError | None
    ) -> Answers:
        """Answer each: their command was refused as a whole, or is not sent."""
        raise NotImplementedError

    def _collect(self, engine: CommandEngine, stream: str, client: Client, entries: int, size: int) -> None:
        """Store the client's entries, of this number and size, at the end of this cycle."""
        if self._entries + entries > _ENTRIES_MAX or self._bytes + size > _BYTES_MAX:
            self._send_all()
        if not self._clients:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._clients.setdefault((engine, stream), []).append(client)
        self._entries += entries
        self._bytes += size
        if self._entries >= _ENTRIES_MAX or self._bytes >= _BYTES_MAX:
            self._send_all()

    def _send_all(self) -> None:
        collected, self._clients = self._clients, {}
        self._entries = self._bytes = 0
        for (engine, stream), clients in collected.items():
            self._send(engine, stream, clients)

    def _send(self, engine: CommandEngine, stream: str, clients: Sequence[Client]) -> None:
        try:
            bodies = self._bodies(clients)
        except Exception as error:  # noqa: BLE001 - one of them may be the cause: each has an answer
            _report(error)
            bodies = None
        if bodies is None:
            _answer_some(self._refusals(engine, stream, clients, None))
            return
        done = partial(self._answer, engine, stream, clients)
        replies = engine.send(Call((AddEach(stream=stream, bodies=bodies),)), done)
        if replies is not None:
            done(replies)

    def _answer(
        self, engine: CommandEngine, stream: str, clients: Sequence[Client], replies: Replies
    ) -> None:
        (reply,) = replies
        if isinstance(reply, Added):
            _answer_some(self._answers(engine, stream, clients, reply.ids))
        else:
            assert isinstance(reply, EngineError), "what adds is answered IDs or a refusal"
            _answer_some(self._refusals(engine, stream, clients, reply))


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
