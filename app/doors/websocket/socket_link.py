"""The socket of a connection, and which deliveries may not have left it.

Knows: how many bytes were written to the socket, how many have left. Must never know: what a frame means.
"""

from collections.abc import Sequence
from typing import Protocol

from app.doors.websocket.effects import SendFrame


class SocketLink(Protocol):
    """The socket, as `app.doors.websocket.websocket_connection` has it."""

    @property
    def paused(self) -> bool: ...
    @property
    def full(self) -> bool: ...
    @property
    def sent_bytes(self) -> int: ...
    def write_frame(self, data: bytes) -> int: ...
    def hold(self, *, held: bool) -> None: ...
    def close_with(self, code: int, reason: str) -> None: ...


class UnsentDeliveries:
    """Frames with entries that may not have left the socket."""

    def __init__(self, link: SocketLink) -> None:
        self._link = link
        # With the socket's byte count at the end of each.
        self._frames: list[tuple[int, SendFrame]] = []

    def note(self, end: int, sent: SendFrame) -> None:
        """Note a frame that was written, up to this byte."""
        if not self._link.paused:
            self._frames.clear()
        elif sent.entry_ids:
            sent_bytes = self._link.sent_bytes
            while self._frames and self._frames[0][0] <= sent_bytes:
                self._frames.pop(0)
            self._frames.append((end, sent))

    def forget_sent(self) -> None:
        """Forget all of them if nothing waits in the socket."""
        if self._frames and not self._link.paused:
            self._frames.clear()

    def take(self, sent_bytes: int) -> Sequence[tuple[int, Sequence[int]]]:
        """What has not left among the first `sent_bytes`: the key of each subscription and its entries."""
        unsent = [(sent.key, sent.entry_ids) for end, sent in self._frames if end > sent_bytes]
        self._frames.clear()
        return unsent
