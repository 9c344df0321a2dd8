"""A connection, once for all protocols: what is between a socket and the codec that reads it.

Knows: bytes that arrived and were not read, bytes that the peer has not taken, when a peer stalls, whose
connection it is.
Must never know: what the bytes mean, which protocol they are of, engines.

    data_received ─► backlog ─► the codec, a subclass ─► write ─► the peer takes it
                        │                                   │ it takes nothing: `stalled`
                        └► too much: the socket is not read └► above its free share: held in the output pool

What is a protocol's own: when it reads its backlog, and how it ends a connection.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from app.auth import Principal
from app.gateway import Gateway
from app.live.budgets import BODY_COPIES, FREE_BYTES, Budgets, Reader, Reservation, Sender
from app.live.fair_queue import ConnectionTurn
from app.live.sessions import AccessEnd, OpenSession
from app.live.shares import Share
from app.live.stalls import StallTimer


class Client(asyncio.Protocol):
    """One client's socket. Subclasses are codecs: they read `backlog` and write to `transport`."""

    # There may be many of them, each with more attributes than objects without slots share names of.
    __slots__ = (
        "_deadline",
        "_reading",
        "_stall",
        "backlog",
        "budgets",
        "has_unsent",
        "input",
        "loop",
        "output",
        "received_bytes",
        "stall_s_max",
        "transport",
    )
    transport: asyncio.Transport

    def __init__(self, stall_s_max: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.stall_s_max = stall_s_max
        # What was received and not read, and how many bytes were received: of these, or of all.
        self.backlog = bytearray()
        self.received_bytes = 0
        # Whether the socket is read, and whether something that was written waits to leave.
        self._reading = True
        self.has_unsent = False
        # Both pools, once the connection takes part in them.
        self.budgets: Budgets | None = None
        # Held for what is made for the client or was not taken by it, and for what arrives.
        self.output: Reservation | None = None
        self.input: Reservation | None = None
        self._stall: StallTimer | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def caller(self) -> str:
        """For whom its bytes are counted."""
        raise NotImplementedError

    # --- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: nothing is held or timed for it."""
        self._end_stall()
        self.end_deadline()
        self.release_output()
        self.release_input()

    def pause_writing(self) -> None:
        """The client does not take what was written."""
        self.has_unsent = True
        if self._stall is None:
            self._stall = StallTimer(self.transport, self.stall_s_max, self._end_stalled)

    def resume_writing(self) -> None:
        """It takes it again."""
        self.has_unsent = False
        self._end_stall()
        self.settle_output()

    def _end_stalled(self) -> None:
        self._stall = None
        self.stalled()

    def stalled(self) -> None:
        """The client has taken nothing for as long as it may."""
        raise NotImplementedError

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def set_reading(self, *, wanted: bool) -> None:
        """Read the socket, or do not."""
        if wanted == self._reading or self.transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def take_backlog(self, size: int) -> bytes:
        """The first bytes of what was received and not read, at most this many."""
        if len(self.backlog) <= size:
            data = bytes(self.backlog)
            self.backlog.clear()
        else:
            data = bytes(memoryview(self.backlog)[:size])
            del self.backlog[:size]
        return data

    # --- time

    def begin_deadline(self, seconds: float, late: Callable[[], None]) -> None:
        """Call `late` unless the deadline is ended by then. A connection has one at a time."""
        self.end_deadline()
        self._deadline = self.loop.call_later(seconds, self._end_late, late)

    def _end_late(self, late: Callable[[], None]) -> None:
        self._deadline = None
        late()

    @property
    def has_deadline(self) -> bool:
        """Whether something is waited for."""
        return self._deadline is not None

    def end_deadline(self) -> None:
        """What was waited for has come."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # --- budgets

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def reserve_output(self, size: int) -> None:
        """Hold this many bytes for a reply, before it is made. Raises EngineError `overloaded`."""
        if self.output is not None:
            self.output.grow(size)
        elif size > FREE_BYTES and self.budgets is not None:
            self.output = self.budgets.output.reserve(self.caller, size, Reader(self.transport))

    def settle_output(self) -> None:
        """Hold what the client has not taken, if that is more than each connection may have."""
        size = 0 if self.transport.is_closing() else self.unsent_bytes
        if size <= FREE_BYTES:
            if self.output is not None:
                self.release_output()
        elif self.output is not None:
            self.output.keep(size)
        elif self.budgets is not None:
            self.output = self.budgets.output.hold(self.caller, size, Reader(self.transport))

    def release_output(self) -> None:
        """Hold nothing of what leaves."""
        if self.output is not None:
            self.output.release()
            self.output = None

    def hold_input(self, size: int, *, is_clients_turn: bool) -> None:
        """Hold what parsing this many bytes takes, which have arrived or are announced: more than each
        connection may have. Raises EngineError `overloaded`.
        """
        size *= BODY_COPIES
        if self.input is not None:
            if size > self.input.size:
                self.input.grow(size)
        elif self.budgets is not None:
            self.input = self.budgets.bodies.reserve(self.caller, size, Sender(self.transport))
        if self.input is not None:
            self.input.received(self.received_bytes)
            if is_clients_turn:
                self.input.keep_waiting()

    def release_input(self) -> None:
        """Hold nothing of what arrives."""
        if self.input is not None:
            self.input.release()
            self.input = None


class ClientAccess:
    """Whose a connection is: it counts among the caller's, takes turns with them, and ends when its token
    does.
    """

    def __init__(
        self,
        gateway: Gateway,
        end: Callable[[AccessEnd], None],
        *,
        warn: Callable[[int], None] = lambda _: None,
        share: Share | None = None,
        turn: ConnectionTurn | None = None,
    ) -> None:
        self._gateway = gateway
        self._end = end
        self._warn = warn
        self._share = share
        self._turn = turn
        self._session: OpenSession | None = None

    def count_for(self, caller: str) -> None:
        """Be this caller's connection. Raises RefusalError if it has too many, and stays as it was."""
        if self._share is None:
            self._share = self._gateway.limits.connections.enter(caller)
        else:
            self._share.pass_to(caller)
        if self._turn is not None:
            self._turn.pass_to(caller)

    def follow(self, principal: Principal) -> None:
        """End with this caller's token."""
        if self._session is None:
            self._session = self._gateway.access.sessions.enter(principal, self._end, self._warn)
        else:
            self._session.renew(principal)

    @property
    def is_followed(self) -> bool:
        """Whether it ends with a token."""
        return self._session is not None

    def forget(self) -> None:
        """End with no token: the client has logged out."""
        if self._session is not None:
            self._session.leave()
            self._session = None

    def leave(self) -> None:
        """The connection is gone."""
        self.forget()
        if self._turn is not None:
            self._turn.leave()
        if self._share is not None:
            self._share.leave()


def place_of(address: Callable[[], object]) -> tuple[str, int] | None:
    """Host and port of a socket's end, if it has them; None where the peer has gone."""
    try:
        found = address()
    except OSError:
        return None
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
