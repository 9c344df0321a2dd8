"""What an operation that appends says of itself, so that its requests can be stored with those of others.

Knows: what has to be known of a request to store its entries beside others', and to answer it.
Must never know: how bytes arrive, how requests come together, who a caller is.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from app.limits import EntryLimits
from engine.commands import Command
from engine.replies import Reply


class Appends(Protocol):
    """What requests have in common that append to one stream, with heads that differ in two numbers at most:
    the length of the body, and what the header `counter` says. Equal ones are the same.
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
        """The entries of a body, as they are stored. Raises RefusalError."""

    def command(self, entries: Sequence[bytes], count: bytes) -> Command:
        """What stores entries. Raises RefusalError: of a count."""

    def parts(self, reply: Reply, numbers: Sequence[int]) -> Iterable[Reply]:
        """The replies to requests of these numbers of entries, which one command has stored."""

    def answer(self, reply: Reply, durability: str) -> tuple[int, bytes]:
        """The status of the answer to one request, and the lines of its headers. It has no body."""
