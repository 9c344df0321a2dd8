"""One WebSocket's connection: messages in, frames out, within its limits.

Knows: frames of RFC 6455 that arrive, the bytes that wait to be sent, how long a peer may stop reading.
Must never know: what a message means.

    HTTP hands the socket over ─► Handshake ─► `listen`: messages ─► the listener ─► write_frame

The library parses all but plain texts, through its public sans-IO protocol. What it lacks are limits: a flood
of empty fragments or of pings would make others wait for seconds, if all that was received was parsed at once
and each pong was written though the client does not read; and a reader that stalls would never be closed.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from websockets.frames import Frame, Opcode
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from app.doors.client import Client
from app.doors.websocket.handshake import Handshake, Service
from app.doors.websocket.messages import FrameEnds, MessageParts, plain_text
from app.doors.websocket.socket_link import NEVER_SENT, Listener
from app.live.budgets import FREE_BYTES, Budgets
from engine import EngineError

# Parsing a frame takes about ten microseconds; this many bytes hold at most 700 of the smallest frames.
_SLICE_BYTES_MIN: Final = 4 << 10
# Of what is missing of a large frame, more bytes are parsed at once.
_SLICE_BYTES_MAX: Final = 64 << 10
# Plain texts that are taken before others have their turn.
_TEXTS_AT_ONCE_MAX: Final = 8
# Pings, pongs and fragments, which cost and carry nothing or little: at once, and a second in the long run.
_SMALL_FRAMES_MAX: Final = 1_000
_SMALL_FRAMES_A_S: Final = 500
# The send buffer of the operating system, which doubles this value.
_SEND_BUFFER_BYTES: Final = 256 << 10
# With more bytes waiting, entries are given back: they were requested before so much waited.
_WAITING_BYTES_MAX: Final = 1 << 20
# Seconds in which a peer answers a close frame, or reads what was sent before it.
_CLOSE_S_MAX: Final = 2.5
# Slightly longer than the stall limit, so that the peer still gets the reason of the close.
_SYSTEM_LATER_MS: Final = 4_000

_MESSAGES: Final = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
# What a close frame of ours begins with.
_CLOSE: Final = bytes([0x80 | Opcode.CLOSE])
SLOW_READER_CLOSE: Final = 4004
FLOOD_CLOSE: Final = 4005
# What is over in a moment, or has failed here.
PASSING_CLOSE: Final = 4000
# Where the application finds the connection, once it has accepted it.
EXTENSION: Final = "weir.socket"


class SocketLimits(NamedTuple):
    """Seconds in which a reader takes what it was sent, and in which a message that has begun is complete;
    bytes of a message.
    """

    stall_s_max: float
    message_s_max: float
    message_bytes_max: int


class _Counted:
    """A transport that counts what is written to it, and closes if the peer does not read to the end."""

    __slots__ = (
        "_given_up",
        "_loop",
        "_transport",
        "get_extra_info",
        "sent_in_the_end",
        "written_bytes",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self.get_extra_info = transport.get_extra_info
        self._loop = loop
        self._given_up: asyncio.TimerHandle | None = None
        self.written_bytes = 0
        # Set when the connection is aborted: waiting bytes are dropped, and no longer counted.
        self.sent_in_the_end: int | None = None

    # All that is used of a transport: with `__getattr__`, every attribute would be slower.

    def is_closing(self) -> bool:
        """Whether further writes are lost."""
        return self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        """Bytes that the operating system has not accepted."""
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set from which number of waiting bytes on writing is paused."""
        self._transport.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        """Read nothing for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def can_write_eof(self) -> bool:
        """Whether one direction alone can end."""
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        """End this direction."""
        self._transport.write_eof()

    @property
    def sent_bytes(self) -> int:
        """Bytes that the operating system has accepted."""
        return self.written_bytes - self.get_write_buffer_size()

    def write(self, written: bytes) -> None:
        self.written_bytes += len(written)
        self._transport.write(written)

    def close(self) -> None:
        """Close once everything was sent, or after a while."""
        self._transport.close()
        if self._given_up is None and self.sent_in_the_end is None:
            self._given_up = self._loop.call_later(_CLOSE_S_MAX, self.abort)

    def abort(self) -> None:
        """Close at once."""
        self.freeze(self.sent_bytes)
        self._transport.abort()

    def freeze(self, sent_bytes: int) -> None:
        """Note that nothing more will be sent."""
        if self.sent_in_the_end is None:
            self.sent_in_the_end = sent_bytes
        if self._given_up is not None:
            self._given_up.cancel()


class WebSocketConnection(Client):
    """One connection. Subclassed with its limits, see `guarded_socket`.

    While data waits to be sent, nothing is read: so it never accepts more than it can answer.
    """

    __slots__ = (
        "_close_timer",
        "_counted",
        "_counted_at",
        "_ends",
        "_extensions",
        "_feeding",
        "_handshake",
        "_held",
        "_lingering",
        "_listener",
        "_message_bytes",
        "_messages",
        "_parts",
        "_protocol",
        "_sent_at_pause",
        "_service",
        "_small_frames",
        "close_sent",
        "is_lost",
    )
    limits: SocketLimits

    def __init__(self, service: Service, extensions: Mapping[str, Any]) -> None:
        super().__init__(self.limits.stall_s_max)
        self._service = service
        self._extensions = extensions
        # Without extensions: nothing is compressed.
        self._protocol = ServerProtocol(max_size=self.limits.message_bytes_max)
        self._listener: Listener | None = None
        self._ends, self._parts = FrameEnds(), MessageParts()
        self._feeding = self._lingering = self._held = False
        # A close frame was written, or a handshake was refused.
        self.close_sent = False
        self.is_lost = False
        self._close_timer: asyncio.TimerHandle | None = None
        # Messages that were complete, and what the library has of one that is not.
        self._messages = 0
        self._message_bytes = 0
        self._small_frames = float(_SMALL_FRAMES_MAX)
        self._counted_at = self.loop.time()
        self._sent_at_pause = 0

    # ---- for the listener

    def listen(self, listener: Listener, budgets: Budgets) -> None:
        """Pass messages to this listener from now on; before, nothing is read."""
        self._listener, self.budgets = listener, budgets
        self._handshake.release()
        self._read_on()

    @property
    def caller(self) -> str:
        """For whom its bytes are counted."""
        assert self._listener is not None, "nothing is counted before"
        return self._listener.caller

    @property
    def paused(self) -> bool:
        """Whether data waits to be sent, or the socket has ended."""
        return self.has_unsent or self._is_over()

    @property
    def full(self) -> bool:
        """Whether too much data waits to be sent, or the socket has ended."""
        if not self.has_unsent:
            return self._is_over()
        return self._is_over() or self.unsent_bytes > _WAITING_BYTES_MAX

    @property
    def sent_bytes(self) -> int:
        """The number of written bytes that the operating system has accepted."""
        return self._counted.sent_bytes

    def write_frame(self, data: bytes) -> int:
        """Write a whole frame. Returns the number of bytes written so far, this frame included; `NEVER_SENT`
        after a close.
        """
        return NEVER_SENT if self._is_over() else self._write(data)

    def write_alone(self, data: bytes) -> bool:
        """Write a whole frame if nothing waits to be sent, and the socket is open. Returns whether it did."""
        if self.has_unsent or self._is_over():
            return False
        self._write(data)
        return True

    def _write(self, data: bytes) -> int:
        self._counted.write(data)
        if self.has_unsent:
            self.settle_output()
        return self._counted.written_bytes

    def _is_over(self) -> bool:
        """Whether further writes are lost: either side has closed, and a transport drops them silently."""
        return self.close_sent or self.is_lost or self._counted.is_closing()

    def hold(self, *, held: bool) -> None:
        """Pause or resume reading. After a pause, a message that has begun has its whole time again.

        That cannot be used twice to gain time, since no other message comes within a message.
        """
        if self._held and not held and self.has_deadline:
            self.end_deadline()
            self._time_message()
        self._held = held
        if held or self.input is not None:
            self._hold_arrived()
        self._read_on()

    def close_with(self, code: int, reason: str) -> None:
        """Send a close frame once what was written before was sent, or after a while, and close."""
        if self.is_lost or self._protocol.state is not State.OPEN:
            return
        self._protocol.send_close(code, reason)
        self.transport.write(b"".join(self._protocol.data_to_send()))
        self._note_close()
        self._read_on()

    def _note_close(self) -> None:
        """Nothing more is written; the peer closes next, or it is closed."""
        self.close_sent = True
        if self._close_timer is None:
            self._close_timer = self.loop.call_later(_CLOSE_S_MAX, self.transport.abort)

    # ---- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: HTTP hands the connection over."""
        self._counted = _Counted(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", self._counted))
        self._handshake = Handshake(self, self._service, self._protocol)
        self._service.connections.add(self)
        # A paused peer has not taken everything: begin no frame. Over TLS a limit of 0 bytes would pause at
        # once, and up to 64 KiB that wait below TLS count as sent.
        is_tls = transport.get_extra_info("sslcontext") is not None
        self.transport.set_write_buffer_limits(high=1 if is_tls else 0, low=0)
        timeout_ms = int(self.limits.stall_s_max * 1000) + _SYSTEM_LATER_MS
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)

    def eof_received(self) -> None:
        """The client sends nothing more: the transport closes next."""
        if self._listener is not None:
            self._listener.leaving()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        super().connection_lost(exc)
        self._service.connections.discard(self)
        # After an error the transport has dropped waiting bytes: at least this many were sent.
        self._counted.freeze(self._sent_at_pause if self.has_unsent else self._counted.written_bytes)
        sent_bytes = self._counted.sent_in_the_end
        assert sent_bytes is not None, "it was frozen just now"
        self.is_lost = True
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._handshake.leave()
        if self._listener is not None:
            self._listener.lost(sent_bytes)

    def shutdown(self) -> None:
        """The port stops. The gateway's drain ends sessions."""
        if self._listener is None:
            self._handshake.fail()
            self.transport.close()

    @property
    def is_ending(self) -> bool:
        """Whether a time is set for its end."""
        return self._close_timer is not None

    def pause_writing(self) -> None:
        """The peer does not take what was written: nothing more is read."""
        super().pause_writing()
        self._sent_at_pause = self._counted.sent_bytes
        self._read_on()

    def resume_writing(self) -> None:
        """It takes it again."""
        super().resume_writing()
        self._read_on()
        if self._listener is not None and not self.close_sent:
            self._listener.resumed()

    def stalled(self) -> None:
        """The peer has taken nothing for as long as it may."""
        if self.close_sent or self._protocol.state is not State.OPEN:
            self.transport.abort()
        else:
            self.close_with(SLOW_READER_CLOSE, "slow reader")

    # ---- what arrives

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived: first the head of the handshake, whole."""
        try:
            if not self._handshake.has_begun:
                self._handshake.begin(data, {**self._extensions, EXTENSION: self})
            elif not self._lingering:
                taken = 0 if self.backlog or self._feeding else self._take_messages(data)
                if taken < len(data):
                    self.backlog += memoryview(data)[taken:]
                    self.received_bytes += len(data)
                    if self._feeding:
                        self._hold_arrived()
                    else:
                        self._feed()
        except Exception as error:  # noqa: BLE001 - the transport would cut the connection, and say nothing
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Close: the gateway has failed to read what came."""
        self._service.faults.note("websocket", error)
        if not self._handshake.is_over:
            self._handshake.fail()
            self.transport.close()
        else:
            self.close_with(PASSING_CLOSE, "internal")
            self._linger()

    def _take_messages(self, data: bytes | bytearray) -> int:
        """Take the plain text messages at the beginning of `data`, without the library. Returns their length.

        The rest waits while the socket is held, or is for the library: everything from the middle of a frame
        or message on.
        """
        at = 0
        for _ in range(_TEXTS_AT_ONCE_MAX):
            # A listener that closes the connection clears the backlog.
            found = plain_text(data, at, self.limits.message_bytes_max)
            if found is None or self.close_sent or not self._may_read() or not self._expects_message():
                break
            text, at = found
            self._receive_text(text)
        return at

    def _expects_message(self) -> bool:
        """Whether the library waits for the first byte of a message."""
        return self._ends.is_between and not self._parts.is_begun

    def _may_read(self) -> bool:
        if self.close_sent:
            return True
        return self._listener is not None and not self._held and not self.paused

    def _takes_in(self) -> bool:
        return self._may_read() and not self._lingering and not self.is_lost

    def _feed(self) -> None:
        """Feed messages, or a slice of what is for the library; the rest after others had their turns."""
        if self._takes_in():
            # Until this is over, nothing else feeds the connection.
            self._feeding = True
            taken = self._take_messages(self.backlog)
            del self.backlog[:taken]
            if not taken and self.backlog:
                rest_bytes = min(self._ends.left_bytes, _SLICE_BYTES_MAX)
                self._feed_library(self.take_backlog(max(rest_bytes, _SLICE_BYTES_MIN)))
        self._feeding = False
        self._hold_arrived()
        self._read_on()

    def _feed_soon(self) -> None:
        try:
            self._feed()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _feed_library(self, piece: bytes) -> None:
        self._message_bytes += len(piece)
        self._ends.follow(piece)
        self._protocol.receive_data(piece)
        frames = cast("Sequence[Frame]", self._protocol.events_received())
        written = self._protocol.data_to_send()
        # The library ends a connection after a close frame, or because of what is no WebSocket.
        has_failed = SEND_EOF in written and not (frames and frames[-1].opcode is Opcode.CLOSE)
        ending = b"".join([one for one in written if one.startswith(_CLOSE)])
        pongs = b"".join([one for one in written if not one.startswith(_CLOSE)])
        if has_failed:
            self._end_failed(frames, pongs + ending)
        else:
            self._handle_frames(frames, pongs, ending)
        if self._expects_message():
            self._message_bytes = 0
        self._time_message()

    def _handle_frames(self, frames: Sequence[Frame], pongs: bytes, ending: bytes) -> None:
        """Handle frames, for which the library has made pongs, and the answer to a close."""
        for frame in frames:
            if frame.opcode is Opcode.CLOSE:
                self._end_closed(ending)
            elif (frame.fin and frame.opcode in (Opcode.TEXT, Opcode.BINARY)) or self._affords():
                if frame.opcode is Opcode.PING and not self.close_sent:
                    self.transport.write(pongs)
                    pongs = b""
                elif frame.opcode in _MESSAGES and not self.close_sent:
                    self._add_part(frame)

    def _add_part(self, frame: Frame) -> None:
        try:
            message = self._parts.add(frame)
        except UnicodeDecodeError:
            self.close_with(1007, "not UTF-8")
            return
        if message is not None:
            self._messages += 1
            self._message_bytes = 0
            if not self.close_sent and self._listener is not None:
                self.receive_message(message, is_text=self._parts.is_text)

    def receive_message(self, message: bytes, *, is_text: bool) -> None:
        """Pass a message on that the library has parsed."""
        assert self._listener is not None, "nothing is read without a listener"
        if is_text:
            self._listener.received(message)
        else:
            self._listener.received_binary()

    def _receive_text(self, text: bytes) -> None:
        assert self._listener is not None, "nothing is read without a listener"
        try:
            if not text.isascii():
                text.decode()
        except UnicodeDecodeError:
            self.close_with(1007, "not UTF-8")
            return
        self._listener.received(text)

    def _end_closed(self, answer: bytes) -> None:
        """The peer has closed, or has answered our close."""
        if self.close_sent:
            if self._close_timer is not None:
                self._close_timer.cancel()
                self._close_timer = None
                self.transport.close()
        elif not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def _end_failed(self, frames: Sequence[Frame], ending: bytes) -> None:
        """Handle bytes that are no WebSocket, or too long: the peer gets a close frame, after the answers to
        its earlier frames.
        """
        for frame in frames:
            if frame.opcode in _MESSAGES and not self.close_sent:
                self._add_part(frame)
        self.transport.write(ending)
        self.close_sent = True
        self._linger()

    def _linger(self) -> None:
        """Ignore what still arrives: closing with unread bytes could discard the close frame. The peer sees
        the end after that frame.
        """
        self._lingering = True
        # The message that was arriving is dropped, and so is what was reserved for it.
        self.backlog.clear()
        self._parts = MessageParts()
        self.release_input()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self._set_reading()
        self._note_close()

    # ---- limits

    def _affords(self) -> bool:
        """Count a frame that is no message; close if there are too many."""
        now = self.loop.time()
        earned = (now - self._counted_at) * _SMALL_FRAMES_A_S
        self._small_frames = min(self._small_frames + earned, _SMALL_FRAMES_MAX) - 1
        self._counted_at = now
        if self._small_frames >= 0:
            return True
        self.close_with(FLOOD_CLOSE, "too many control frames or fragments")
        self._linger()
        return False

    def _time_message(self) -> None:
        """Limit the time of a message that has begun: it uses memory until it ends."""
        is_over = self.close_sent or self._lingering or self.is_lost
        if not self.has_deadline and not is_over and not self._expects_message():
            self.begin_deadline(self.limits.message_s_max, partial(self._end_message_time, self._messages))

    def _end_message_time(self, messages: int) -> None:
        # Another message than the one that was timed, or the gateway has not read on.
        has_time = self._messages != messages or self.backlog or not self._may_read()
        if not has_time and not self.close_sent and not self._expects_message():
            self.close_with(FLOOD_CLOSE, f"a message arrives within {self.limits.message_s_max:g} s")
            self._linger()
        self._time_message()

    def _hold_arrived(self) -> None:
        """Hold what has arrived and was not handled. Without room, close."""
        if self._listener is None or self._lingering or self.is_lost:
            return
        size = len(self.backlog) + self._message_bytes + self._listener.waiting_bytes
        if size <= FREE_BYTES:
            self.release_input()
            return
        # What waits for the gateway is not late.
        is_clients_turn = self._message_bytes > 0 and self._may_read() and not self.backlog
        if self.input is not None and not is_clients_turn:
            self.input.end_waiting()
        try:
            self.hold_input(size, is_clients_turn=is_clients_turn)
        except EngineError as refusal:
            self.close_with(PASSING_CLOSE, refusal.code)
            self._linger()

    def _read_on(self) -> None:
        if self.backlog and not self._feeding and self._takes_in():
            self._feeding = True
            self.loop.call_soon(self._feed_soon)
        self._set_reading()

    def _set_reading(self) -> None:
        if not self.is_lost:
            self.set_reading(wanted=self._lingering or (self._may_read() and not self.backlog))


def guarded_socket(limits: SocketLimits) -> type[WebSocketConnection]:
    """The protocol class with these limits."""
    return type("Guarded", (WebSocketConnection,), {"__slots__": (), "limits": limits})
