"""A socket and the conversation on it: what each has of the other, and which deliveries may not have left.

Knows: how many bytes were written to the socket, how many have left. Must never know: what a frame means.
"""

from collections.abc import Callable, Sequence
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
    """Frames with entries that may not have left the socket, and for whom each was. `deliver` counts the
    entries of those that have.
    """

    def __init__(self, link: SocketLink, deliver: Callable[[int], None]) -> None:
        self._link = link
        self._deliver = deliver
        # With the socket's byte count at the end of each.
        self._frames: list[tuple[int, int, W, Sequence[int]]] = []

    def note(self, end: int, count: int, work: W, entry_ids: Sequence[int]) -> None:
        """Note a frame with this number of entries that was written, up to this byte."""
        self._frames.append((end, count, work, entry_ids))
        self.forget_sent()

    def forget_sent(self) -> None:
        """Forget those that have left."""
        self._forget(self._link.sent_bytes if self._link.paused else NEVER_SENT)

    def _forget(self, sent_bytes: int) -> None:
        while self._frames and self._frames[0][0] <= sent_bytes:
            self._deliver(self._frames.pop(0)[1])

    def take_first(self, sent_bytes: int) -> Sequence[tuple[W, Sequence[int]]]:
        """What has not left among the first `sent_bytes`: for whom, and its entries."""
        self._forget(sent_bytes)
        unsent = [(work, entry_ids) for _, _, work, entry_ids in self._frames]
        self._frames.clear()
        return unsent
