"""A socket and the conversation on it: what each has of the other, and which deliveries may not have left.

Knows: how many bytes were written to the socket, how many have left. Must never know: what a frame means.
"""

from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

W = TypeVar("W")

# The position of a frame that is never written: greater than every position of a connection.
NEVER_SENT: Final = 1 << 62


class SocketLink(Protocol):
    """The socket: `websocket_connection` or `asgi_socket`."""

    @property
    def paused(self) -> bool: ...
    @property
    def full(self) -> bool: ...
    @property
    def sent_bytes(self) -> int: ...
    def write_frame(self, data: bytes) -> int: ...
    def write_alone(self, data: bytes) -> bool: ...
    def hold(self, *, held: bool) -> None: ...
    def close_with(self, code: int, reason: str) -> None: ...


class Listener(Protocol):
    """Gets what arrives. Its methods are called from the event loop and must not block."""

    @property
    def caller(self) -> str:
        """Whose connection it is."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Messages that wait to be handled."""
        ...

    def received(self, text: bytes) -> None:
        """A text message."""
        ...

    def received_binary(self) -> None:
        """A binary message."""
        ...

    def resumed(self) -> None:
        """Everything that waited was sent."""
        ...

    def leaving(self) -> None:
        """The client sends nothing more: its connection ends next."""
        ...

    def lost(self, sent_bytes: int) -> None:
        """Handle the loss of the connection, which has carried this number of bytes."""
        ...


class UnsentDeliveries(Generic[W]):
    """Frames with entries that may not have left the socket, and for whom each was."""

    def __init__(self, link: SocketLink) -> None:
        self._link = link
        # With the socket's byte count at the end of each.
        self._frames: list[tuple[int, W, Sequence[int]]] = []

    def note(self, end: int, work: W, entry_ids: Sequence[int]) -> None:
        """Note a frame that was written, up to this byte."""
        if not self._link.paused:
            self._frames.clear()
        elif entry_ids:
            sent_bytes = self._link.sent_bytes
            while self._frames and self._frames[0][0] <= sent_bytes:
                self._frames.pop(0)
            self._frames.append((end, work, entry_ids))

    def forget_sent(self) -> None:
        """Forget all of them if nothing waits in the socket."""
        if self._frames and not self._link.paused:
            self._frames.clear()

    def take_first(self, sent_bytes: int) -> Sequence[tuple[W, Sequence[int]]]:
        """What has not left among the first `sent_bytes`: for whom, and its entries."""
        unsent = [(work, entry_ids) for end, work, entry_ids in self._frames if end > sent_bytes]
        self._frames.clear()
        return unsent
