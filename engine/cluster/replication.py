"""What an acknowledgement promises over a server: that its replicas, or its disk, have the write.

Knows: the promises, WAIT and WAITAOF, that one of them covers all writes sent before it on its connection.
Must never know: what was written, where it goes after a failure.

    write write write WAIT ·············· write write WAIT     one connection
                       └─ covers three       └─ these came while it waited: the next one covers both

The server runs nothing on a connection that waits, so this one is for writes alone.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from engine.cluster.wire import ConnectionLostError, Done, ServerError, Words, call
from engine.errors import EngineError
from engine.histogram import Histogram

_Send = Callable[[Words, Done], None]
# None: the promise is kept.
Confirmed = Callable[[EngineError | ConnectionLostError | None], None]

_WORDS: Final = "memory, replicated:N or fsync:N"


class BackendDurability(msgspec.Struct, frozen=True):
    """A promise: `replicas` have the write in memory, or `disks` have synced it, the primary's among them."""

    replicas: int = 0
    disks: int = 0

    @property
    def name(self) -> str:
        """As the setting and the header `Weir-Durability` have it."""
        if self.disks:
            return f"fsync:{self.disks}"
        return f"replicated:{self.replicas}" if self.replicas else "memory"

    def words(self, timeout_ms: int) -> Words:
        """The command that waits until the promise is kept."""
        if self.disks:
            return ("WAITAOF", 1, self.disks - 1, timeout_ms)
        return ("WAIT", self.replicas, timeout_ms)

    @property
    def replicas_needed(self) -> int:
        """How many replicas a primary must have for it."""
        return max(self.replicas, self.disks - 1)

    def is_kept(self, reply: Any) -> bool:  # noqa: ANN401 - as the server sent it
        """Whether the reply to these words says so."""
        if self.disks:
            local, replicas = reply
            return bool(local >= 1 and replicas >= self.disks - 1)
        return bool(reply >= self.replicas)


def parse_durability(text: str) -> BackendDurability:
    """Parse `memory`, `replicated:N` or `fsync:N`. Raises ValueError."""
    if text == "memory":
        return BackendDurability()
    kind, _, number = text.partition(":")
    if kind in {"replicated", "fsync"} and number.isascii() and number.isdecimal() and int(number) > 0:
        return (
            BackendDurability(replicas=int(number))
            if kind == "replicated"
            else BackendDurability(disks=int(number))
        )
    raise ValueError(f"{text!r} is no durability: one of {_WORDS}")


def not_replicated(durability: BackendDurability, got: str) -> EngineError:
    """The write may be lost when the primary fails, or may not: its outcome is unknown."""
    sentence = (
        f"{durability.name} was not confirmed in time ({got}): the outcome is unknown, since the write is "
        "lost if the primary fails now; a retry under the same idempotency key is safe"
    )
    return EngineError("not_replicated", f"ERR {sentence}", outcome="unknown")


class GroupCommit:
    """Confirms the writes of one connection: `send` is that connection's, and its `on_down` calls `lose`.

    Belongs to one event loop.
    """

    def __init__(
        self,
        send: _Send,
        durability: BackendDurability,
        timeout_ms: int,
        seconds: Histogram | None = None,
    ) -> None:
        self._send = send
        # How long each command took.
        self._seconds = seconds
        self._sent_s = 0.0
        self._durability = durability
        self._words = durability.words(timeout_ms)
        # Those that the command under way covers, and those that came after it.
        self._covered: list[Confirmed] = []
        self._next: list[Confirmed] = []
        # Counts the links: over another one, a reply says nothing of these writes.
        self._link = 0

    def confirm(self, done: Confirmed) -> None:
        """Call back once all that was sent so far is as durable as promised, never before this returns.

        With `not_replicated` where it is not in time, and ConnectionLostError where that is not known.
        """
        if not (self._durability.replicas or self._durability.disks):
            asyncio.get_running_loop().call_soon(done, None)
            return
        self._next.append(done)
        if len(self._next) == 1 and not self._covered:
            asyncio.get_running_loop().call_soon(self._commit, self._link)

    def lose(self, reason: str) -> None:
        """The link is lost: of what was sent over it no more will be known."""
        self._link += 1
        lost, self._covered, self._next = [*self._covered, *self._next], [], []
        for done in lost:
            call(done, ConnectionLostError(reason, may_have_run=True))

    def _commit(self, link: int) -> None:
        """Wait for all that has come."""
        if link == self._link:
            self._covered, self._next = self._next, []
            self._sent_s = asyncio.get_running_loop().time()
            self._send(self._words, partial(self._take, link))

    def _take(self, link: int, reply: Any) -> None:  # noqa: ANN401 - as the server sent it
        if link != self._link:
            return
        if isinstance(reply, ConnectionLostError):
            self.lose(str(reply))
            return
        if self._seconds is not None:
            self._seconds.observe(asyncio.get_running_loop().time() - self._sent_s)
        covered, self._covered = self._covered, []
        if self._next:
            self._commit(link)
        verdict = self._verdict(reply)
        for done in covered:
            call(done, verdict)

    def _verdict(self, reply: Any) -> EngineError | None:  # noqa: ANN401 - as the server sent it
        if isinstance(reply, ServerError):
            return not_replicated(self._durability, str(reply))
        if self._durability.is_kept(reply):
            return None
        return not_replicated(self._durability, f"the server says {reply}")
