"""The connection between two processes: frames of messages over a socket.

Knows: that all messages of one cycle of the loop are one write, and how much is read in one cycle.
Must never know: what the messages mean.

    4 bytes, little-endian   length of what follows
    msgpack                  a list of messages, each a list (`app.fronts.codec`)
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from app.fronts.codec import decode, encode

_LENGTH_BYTES: Final = 4
# A peer that takes nothing any more: the answers that it has asked for are in memory until then.
_UNSENT_BYTES_MAX: Final = 256 << 20
# While more than this waits to be sent, an end that serves reads and handles nothing: what it would be asked
# for would only wait too. The other end always reads, so that both go on.
_UNSENT_BYTES_HIGH: Final = 4 << 20
# A longer message is sent at once, so that the next one is handled when it was taken.
_LONG_BYTES: Final = 256 << 10
# Of a list with four bytes of length, as msgpack has it.
_LIST: Final = b"\xdd"
# After this time the next messages wait for the next cycle of the loop.
_HANDLED_S_MAX: Final = 0.005

Message = list[Any]


class ProcessLink(asyncio.Protocol):
    """One end of a connection. `on_message` gets each message, `on_lost` is called once at the end."""

    def __init__(
        self, on_message: Callable[[Message], None], on_lost: Callable[[], None], *, serves: bool = False
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._serves = serves
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._messages: deque[Message] = deque()
        self._is_handling = False
        self._is_paused = False
        self._unsent: list[bytes] = []
        self.is_lost = False

    def send(self, *message: Any) -> None:  # noqa: ANN401 - what msgpack carries
        """Send a message at the end of this cycle of the loop. After the end nothing is sent. Raises for what
        cannot be encoded.
        """
        encoded = encode(message)
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent.append(encoded)
        if len(encoded) > _LONG_BYTES:
            self._write()

    def end(self) -> None:
        """End the connection behind what was sent."""
        self._write()
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """End the connection, at once: what was not sent never will be."""
        if self._transport is not None:
            self._transport.abort()

    # --- called by the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Sockets have both directions.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES_HIGH)

    def pause_writing(self) -> None:
        self._is_paused = self._serves
        self._read_on()

    def resume_writing(self) -> None:
        self._is_paused = False
        if not self._is_handling:
            self._handle()

    def data_received(self, data: bytes) -> None:
        self._received += data
        at = 0
        while len(self._received) >= (begin := at + _LENGTH_BYTES):
            end = begin + int.from_bytes(self._received[at:begin], "little")
            if len(self._received) < end:
                break
            self._messages += decode(memoryview(self._received)[begin:end])
            at = end
        del self._received[:at]
        if not (self._is_handling or self._is_paused):
            self._handle()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        # What has come before the end still counts.
        while self._messages:
            self._handle_one()
        self._on_lost()

    def _handle(self) -> None:
        ends_at = self._loop.time() + _HANDLED_S_MAX
        while self._messages and not self._is_paused and self._loop.time() < ends_at:
            self._handle_one()
        self._is_handling = bool(self._messages) and not self._is_paused
        if self._is_handling:
            self._loop.call_soon(self._handle)
        self._read_on()

    def _read_on(self) -> None:
        """Read unless messages wait to be handled: they are as much as memory should hold."""
        if self._transport is None or self._transport.is_closing():
            return
        waits = self._is_handling or self._is_paused
        (self._transport.pause_reading if waits else self._transport.resume_reading)()

    def _handle_one(self) -> None:
        try:
            self._on_message(self._messages.popleft())
        except Exception as error:  # noqa: BLE001 - the other messages are handled
            self._loop.call_exception_handler({"message": "a message was not handled", "exception": error})

    def _write(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is None or self.is_lost or not unsent:
            return
        frame = b"".join([_LIST, len(unsent).to_bytes(4, "big"), *unsent])
        self._transport.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)
        if self._transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self.close()
