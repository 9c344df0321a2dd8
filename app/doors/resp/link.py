"""What commands about connections may know of one.

Knows: the names of what a connection offers. Must never know: how it does it.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from app.auth import AccessPolicy, Principal
from app.doors.resp.accounting import Account
from app.doors.resp.client import RespClient
from app.doors.resp.requests import Words
from app.doors.resp.running import Runner
from app.doors.resp.subscriptions import EventSubscriber, Subscriptions
from app.doors.resp.transaction import Transaction
from app.live.budgets import Reservation
from app.live.waiting import Wait
from app.metrics.slow_turns import SlowTurns


class Link(Protocol):
    """A connection."""

    runner: Runner
    account: Account
    subscriber: EventSubscriber

    client: RespClient

    @property
    def blocked(self) -> Wait | None:
        """The read that it waits for."""

    @property
    def policy(self) -> AccessPolicy:
        """Whom the gateway lets in."""

    @property
    def others(self) -> "dict[int, Link]":
        """All connections by the numbers of their clients, this one too."""

    @property
    def descriptor(self) -> int:
        """The socket's number."""

    @property
    def input_bytes(self) -> int:
        """Bytes that were received and not run."""

    @property
    def output_bytes(self) -> int:
        """Bytes that the client has not taken."""

    @property
    def slow_turns(self) -> SlowTurns:
        """What SLOWLOG shows."""

    @property
    def subscriptions(self) -> Subscriptions:
        """The subscriptions of all clients."""

    def info(self, sections: Sequence[bytes]) -> bytes:
        """The text of INFO."""

    def new_transaction(self) -> Transaction:
        """An empty one, within the gateway's limits."""

    def counting_failures(self) -> AbstractContextManager[None]:
        """Count wrong credentials against the client's address. Raises `rate_limited`."""

    def now_s(self) -> float:
        """The monotonic clock."""

    def log_in(self, principal: Principal) -> None:
        """Go on as this caller."""

    def log_out(self) -> None:
        """Forget everything that the client has said and begun."""

    def note_unsent(self, unsent: Callable[[], None]) -> None:
        """Call this if the client has left when the work under way is done."""

    def end(self, written: bytes = b"") -> None:
        """Send this after all earlier answers, then close."""

    def abort(self, reason: str) -> None:
        """Close at once, and log why."""

    def end_browser(self) -> None:
        """Close at once: the client speaks HTTP."""

    def end_if_idle(self) -> None:
        """Close if no work is under way and the gateway stops."""


class ServedLink(Link, Protocol):
    """A connection, for what runs its commands."""

    # Held for the reply that is made, or that the client has not taken.
    output: Reservation | None

    @property
    def is_gone(self) -> bool:
        """Whether nothing more reaches the client."""

    def put(self, written: bytes) -> None:
        """Let this leave."""

    def go_on(self) -> None:
        """Run what has arrived until something has to be waited for."""

    def reserve_output(self, size: int) -> None:
        """Hold this many bytes for a reply, before it is made. Raises EngineError `overloaded`."""

    def hold_commands(self, more: int = 0) -> None:
        """Hold what commands that arrive and those that are queued take. Raises EngineError `overloaded`."""

    def fail(self, error: BaseException) -> None:
        """End with an error: which commands of a run have changed something is not known."""


# A command's reply: at once, by `Link.end`, or when the work is done.
Work = Coroutine[Any, Any, bytes]
Written = bytes | None | Work
Handler = Callable[[Link, Words], Written]


class SessionCommand(NamedTuple):
    """A command of the connection. `arity` as in the table of commands.

    `open`: it needs no AUTH. `in_multi`: it is run inside a transaction. `in_subscription`: a subscriber of
    RESP2 may send it.
    """

    arity: int
    handle: Handler
    open: bool = False
    in_multi: bool = False
    in_subscription: bool = False
