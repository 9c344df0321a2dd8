"""What an operation that appends or acknowledges says of itself, so that its requests can be sent to the
engine with those of others.

Knows: what has to be known of a request to do it beside others, and to answer it.
Must never know: how bytes arrive, how requests come together, who a caller is.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

from app.limits import EntryLimits
from engine.commands import Command, ProducerBatch
from engine.replies import Reply


class Answer(NamedTuple):
    """The status of an answer, the lines of its headers up to the caller's rate, and its body."""

    status: int
    lines: bytes
    body: bytes = b""


class Asked(NamedTuple):
    """What one request asks: its entries, as they are stored, or its IDs; as how many requests it counts
    against its caller's rate; and which batch of a producer it is, if it is one.
    """

    entries: Sequence[bytes]
    cost: int = 1
    batch: ProducerBatch | None = None


class Appends(Protocol):
    """What requests have in common that append entries to one stream, or acknowledge IDs of it, with heads
    that differ in two numbers at most: the length of the body, and what the header `counter` says.
    """

    @property
    def stream(self) -> str:
        """The stream's name."""

    @property
    def counter(self) -> bytes:
        """The header that counts the requests of one writer, in lower case; empty where none does."""

    @property
    def kind(self) -> Hashable:
        """Requests of one kind share a command."""

    def read(self, body: bytes, count: bytes, limits: EntryLimits) -> Asked | None:
        """What a request asks with this body, and this count if there is one. None where only its route can
        serve it. Raises RefusalError.
        """

    def command(self, asked: Sequence[Asked]) -> Command:
        """What does all that these requests ask."""

    def answers(self, reply: Reply, asked: Sequence[Asked], durability: str) -> Iterable[Answer | None]:
        """The answers to them; None to one that changed nothing and that its route answers."""
