"""What an operation that appends or acknowledges says of itself, so that its requests can be sent to the
engine with those of others.

Knows: what has to be known of a request to do it beside others, and to answer it.
Must never know: how bytes arrive, how requests come together, who a caller is.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from app.limits import EntryLimits
from engine.commands import Command
from engine.replies import Reply


class Answer(NamedTuple):
    """The status of an answer, the lines of its headers up to the caller's rate, and its body."""

    status: int
    lines: bytes
    body: bytes = b""


class Appends(Protocol):
    """What requests have in common that append entries to one stream, or acknowledge IDs of it, with heads
    that differ in two numbers at most: the length of the body, and what the header `counter` says. Equal ones
    are the same.
    """

    @property
    def stream(self) -> str:
        """The stream's name."""

    @property
    def counter(self) -> bytes:
        """The header that counts the requests of one writer, in lower case; empty where none does. Each of
        these has a command of its own, of others that come together one stores all entries.
        """

    def read(self, body: bytes, limits: EntryLimits) -> Sequence[bytes]:
        """The entries of a body, as they are stored, or the IDs; none where only its route can serve it.
        Raises RefusalError.
        """

    def cost(self, entries: Sequence[bytes]) -> int:
        """As how many requests one with these counts against its caller's rate."""

    def command(self, entries: Sequence[bytes], count: bytes) -> Command:
        """What is done with them. Raises RefusalError: of a count."""

    def answers(
        self, reply: Reply, asked: Sequence[Sequence[bytes]], durability: str
    ) -> Iterable[Answer | None]:
        """The answers to requests of these entries or IDs, for which there was one command; None to one that
        changed nothing and that its route answers.
        """
