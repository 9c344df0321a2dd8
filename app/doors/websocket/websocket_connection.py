"""A guard around uvicorn's WebSocket: limits of one connection, and how many of its bytes were sent.

Knows: frames of RFC 6455 that arrive, the bytes that wait to be sent, how long a peer may stop reading.
Must never know: what a message means.

It uses private attributes of the pinned version of uvicorn; the tests of floods and stalled readers fail if
those change.

Measured without it (uvicorn 0.54): a flood of empty fragments or of pings makes others wait for seconds,
since all that was received is parsed at once and each pong is written even if the client does not read; a
reader that stalls is never closed, in spite of pings and their timeout.
"""

import asyncio
import codecs
import socket
from typing import Any, Final, NamedTuple, Protocol, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.streams import StreamReader

from app.live.budgets import BODY_COPIES, FREE_BYTES, Budgets, Reader, Reservation, Sender
from app.live.stalls import StallTimer
from engine import EngineError

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without its part in C
    from websockets.utils import apply_mask

_AT_EOF: Final = StreamReader.at_eof.__code__

# Parsing a frame takes about ten microseconds; this many bytes hold at most 700 of the smallest frames.
_SLICE_BYTES_MIN: Final = 4 << 10
# Of large frames, more bytes are parsed at once.
_SLICE_BYTES_MAX: Final = 64 << 10
_FEW_FRAMES: Final = 8
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
_decoder: Final = codecs.getincrementaldecoder("utf-8")

SLOW_READER_CLOSE: Final = 4004
FLOOD_CLOSE: Final = 4005
# As other refusals that are over in a moment.
OVERLOADED_CLOSE: Final = 4000
# The position of a frame that is never written: greater than every position of a connection.
NEVER_SENT: Final = 1 << 62


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


class SocketLimits(NamedTuple):
    """Seconds in which a reader takes what it was sent, and in which a message that has begun is complete."""

    stall_s_max: float
    message_s_max: float


class _Counted:
    """A transport that counts what is written to it, and closes if the peer does not read to the end."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        # Used several times a frame: `__getattr__` takes 0.6 us.
        self.is_closing = transport.is_closing
        self.get_write_buffer_size = transport.get_write_buffer_size
        self._loop = loop
        self._given_up: asyncio.TimerHandle | None = None
        self.written_bytes = 0
        # Set when the connection is aborted: waiting bytes are dropped, and no longer counted.
        self.sent_in_the_end: int | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a transport
        return getattr(self._transport, name)

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


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One connection. Subclassed with its limits, see `guarded_socket`.

    While data waits to be sent, nothing is read: so it never accepts more than it can answer.
    """

    limits: SocketLimits

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's, passed on
        super().__init__(*arguments, **named)
        # Heartbeat and stall limit detect dead peers; uvicorn's pings add nothing.
        self.ping_interval = None
        self._listener: Listener | None = None
        self._backlog = bytearray()
        self._feeding = False
        self._lingering = False
        # The bytes are no WebSocket: the library has made its close frame already, but not sent it.
        self._failed = False
        self._decoder: codecs.IncrementalDecoder | None = None
        self._held = False
        self._reading = True
        # Whether something waits to leave: asked for several times a frame, and so no `asyncio.Event`.
        self._has_waiting = False
        # Known to be so, since nothing but whole messages has arrived since it was looked at.
        self._between_messages = False
        # Messages that the library has parsed, and the timer of one that has begun.
        self._parsed_messages = 0
        self._message_timer: asyncio.TimerHandle | None = None
        self._slice_bytes = _SLICE_BYTES_MIN
        self._small_frames = float(_SMALL_FRAMES_MAX)
        self._counted_at = self.loop.time()
        self._stall: StallTimer | None = None
        self._sent_at_pause = 0
        # What has not left and what has arrived, beyond what each connection may have; None where it is less.
        self._budgets: Budgets | None = None
        self._unsent: Reservation | None = None
        self._input: Reservation | None = None
        # What the library has of a message that is not complete.
        self._message_bytes = 0
        # How much has ever arrived of what was not handled at once.
        self._arrived_bytes = 0

    # ---- for the listener

    def listen(self, listener: Listener, budgets: Budgets) -> None:
        """Pass messages to this listener from now on; before, nothing is read."""
        self._listener, self._budgets = listener, budgets
        # Some kilobytes of the handshake, needed no more. The library's parser keeps the request.
        self.request.headers.clear()
        del self.request, self.response
        self._read_on()

    @property
    def paused(self) -> bool:
        """Whether data waits to be sent, or the socket has ended."""
        return self._has_waiting or self._is_over()

    @property
    def full(self) -> bool:
        """Whether too much data waits to be sent, or the socket has ended."""
        if not self._has_waiting:
            return self._is_over()
        return self._is_over() or self._counted.get_write_buffer_size() > _WAITING_BYTES_MAX

    @property
    def sent_bytes(self) -> int:
        """The number of written bytes that the operating system has accepted."""
        return self._counted.sent_bytes

    def write_frame(self, data: bytes) -> int:
        """Write a whole frame. Returns the number of bytes written so far, this frame included; `NEVER_SENT`
        after a close.
        """
        if self._is_over():
            return NEVER_SENT
        self.transport.write(data)
        if self._has_waiting:
            self._hold_unsent()
        return self._counted.written_bytes

    def _hold_unsent(self) -> None:
        """Count what the client has not taken."""
        if self._listener is None or self._budgets is None or self._is_over():
            return
        size = self._counted.get_write_buffer_size()
        if self._unsent is not None:
            self._unsent.keep(size)
        elif size > FREE_BYTES:
            pool, caller = self._budgets.output, self._listener.caller
            self._unsent = pool.hold(caller, size, Reader(self.transport))

    def _hold_input(self) -> None:
        """Hold what has arrived and was not handled. Without room, close."""
        if self._listener is None or self._budgets is None or self._lingering:
            return
        size = len(self._backlog) + self._message_bytes + self._listener.waiting_bytes
        if size <= FREE_BYTES:
            if self._input is not None:
                self._input.release()
                self._input = None
            return
        try:
            if self._input is None:
                pool, caller = self._budgets.bodies, self._listener.caller
                self._input = pool.reserve(caller, BODY_COPIES * size, Sender(self.transport))
            else:
                self._input.grow(BODY_COPIES * size)
        except EngineError as refusal:
            self.close_with(OVERLOADED_CLOSE, refusal.code)
            self._linger()
        else:
            self._input.received(self._arrived_bytes)
            if self._message_bytes:
                # Its sender's turn.
                self._input.keep_waiting()

    def _is_over(self) -> bool:
        """Whether further writes are lost: either side has closed, and a transport drops them silently."""
        return self.close_sent or self.disconnected or self.transport.is_closing()

    def hold(self, *, held: bool) -> None:
        """Pause or resume reading. After a pause, a message that has begun has its whole time again.

        That cannot be used twice to gain time, since no other message comes within a message.
        """
        if self._held and not held and self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None
            self._time_message()
        self._held = held
        if held or self._input is not None:
            self._hold_input()
        self._read_on()

    def close_with(self, code: int, reason: str) -> None:
        """Send a close frame once what was written before was sent, or after a while, and close."""
        if self.close_sent or self._failed or self.disconnected or not self.handshake_complete:
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(_CLOSE_S_MAX, self.transport.abort)
        self._read_on()

    # ---- uvicorn's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._counted = _Counted(cast("asyncio.Transport", transport), self.loop)
        # A paused peer has not taken everything: begin no frame. Over TLS a limit of 0 bytes would pause at
        # once, and up to 64 KiB that wait below TLS count as sent.
        is_tls = transport.get_extra_info("sslcontext") is not None
        self._counted.set_write_buffer_limits(high=1 if is_tls else 0, low=0)
        timeout_ms = int(self.limits.stall_s_max * 1000) + _SYSTEM_LATER_MS
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        super().connection_made(cast("asyncio.Transport", self._counted))

    def eof_received(self) -> None:
        if self._listener is not None:
            self._listener.leaving()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_stall()
        self._end_unsent()
        if self._input is not None:
            self._input.release()
        if self._message_timer is not None:
            self._message_timer.cancel()
        # After an error the transport has dropped waiting bytes: at least this many were sent.
        self._counted.freeze(self._sent_at_pause if self._has_waiting else self._counted.written_bytes)
        sent_bytes = self._counted.sent_in_the_end
        assert sent_bytes is not None, "it was frozen just now"
        super().connection_lost(exc)
        if self._listener is not None:
            self._listener.lost(sent_bytes)

    async def run_asgi(self) -> None:
        extensions = cast("dict[str, Any]", self.scope["extensions"])
        extensions["weir.socket"] = self
        await super().run_asgi()

    async def send(self, message: Any) -> None:  # noqa: ANN401 - uvicorn's, passed on
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            # A handshake that was refused is over; uvicorn would log it as a failure of ours.
            self.handshake_complete = True

    def shutdown(self) -> None:
        # The gateway's drain ends sessions.
        if self._listener is None:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._has_waiting = True
        self._sent_at_pause = self._counted.sent_bytes
        if self._stall is None:
            self._stall = StallTimer(self.transport, self.limits.stall_s_max, self._stalled)
        self._read_on()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._has_waiting = False
        self._end_stall()
        self._end_unsent()
        self._read_on()
        if self._listener is not None and not self.close_sent:
            self._listener.resumed()

    def _stalled(self) -> None:
        self._stall = None
        if self.close_sent or not self.handshake_complete:
            self.transport.abort()
        else:
            self.close_with(SLOW_READER_CLOSE, "slow reader")

    def _end_unsent(self) -> None:
        if self._unsent is not None:
            self._unsent.release()
            self._unsent = None

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    # ---- what arrives

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            super().data_received(data)
        elif not self._lingering:
            taken = 0 if self._backlog or self._feeding else self._take_messages(data)
            if taken < len(data):
                self._backlog += memoryview(data)[taken:]
                self._arrived_bytes += len(data)
                if self._feeding:
                    self._hold_input()
                else:
                    self._feed()

    def _take_messages(self, data: bytes | bytearray) -> int:
        """Take the plain text messages at the beginning of `data`, without the library. Returns their length.

        Most of what arrives is one of them, whole. The rest waits while the socket is held, or is for the
        library: everything from the middle of a frame or message on.
        """
        at = 0
        for _ in range(_FEW_FRAMES):
            # A listener that closes the connection clears the backlog.
            size = len(data)
            # No extension, no fragment, masked, of at most 64 KiB.
            if size - at < 6 or data[at] != 0x81 or not 0x80 <= data[at + 1] <= 0xFE:
                break
            length, mask_at = data[at + 1] & 0x7F, at + 2
            if length == 126:
                mask_at += 2
                length = data[at + 2] << 8 | data[at + 3]
            end = mask_at + 4 + length
            if end > size or length > self.config.ws_max_size or not self._is_between_messages():
                break
            text = apply_mask(data[mask_at + 4 : end], data[mask_at : mask_at + 4])
            at = end
            self._receive_text(text)
        return at

    def _is_between_messages(self) -> bool:
        """Whether the library waits for the first byte of a message."""
        return not self.close_sent and self._may_read() and self._expects_message()

    def _expects_message(self) -> bool:
        if not self._between_messages:
            # Typed as the protocol of generators, which lacks what all of them have.
            parsing = getattr(self.conn.parser, "gi_yieldfrom", None)
            waiting = None if parsing is None else parsing.gi_yieldfrom
            self._between_messages = (
                getattr(waiting, "gi_code", None) is _AT_EOF
                and not self.conn.reader.buffer
                and self.conn.current_size is None
            )
        return self._between_messages

    def _may_read(self) -> bool:
        if self.close_sent:
            return True
        return self._listener is not None and not self._held and not self.paused

    def _takes_in(self) -> bool:
        return self._may_read() and not self._lingering and not self.disconnected

    def _feed(self) -> None:
        """Feed messages, or a slice of what is for the library; the rest after others had their turns."""
        if self._takes_in():
            # Until this is over, nothing else feeds the connection.
            self._feeding = True
            taken = self._take_messages(self._backlog)
            del self._backlog[:taken]
            if not taken:
                self._feed_library()
        self._feeding = False
        self._hold_input()
        self._read_on()

    def _feed_library(self) -> None:
        piece = bytes(self._backlog[: self._slice_bytes])
        del self._backlog[: self._slice_bytes]
        if piece:
            self._between_messages = False
            self._message_bytes += len(piece)
            super().data_received(piece)
            if self._expects_message():
                self._message_bytes = 0
            self._time_message()

    def _time_message(self) -> None:
        """Limit the time of a message that has begun: it uses memory until it ends."""
        is_over = self.close_sent or self._lingering or self.disconnected
        if self._message_timer is None and not is_over and not self._expects_message():
            self._message_timer = self.loop.call_later(
                self.limits.message_s_max, self._end_message_time, self._parsed_messages
            )

    def _end_message_time(self, parsed_messages: int) -> None:
        self._message_timer = None
        # Another message than the one that was timed, or the gateway has not read on.
        has_time = self._parsed_messages != parsed_messages or self._backlog or not self._may_read()
        if not has_time and not self.close_sent and not self._expects_message():
            self.close_with(FLOOD_CLOSE, f"a message arrives within {self.limits.message_s_max:g} s")
            self._linger()
        self._time_message()

    def _read_on(self) -> None:
        if self._backlog and not self._feeding and self._takes_in():
            self._feeding = True
            self.loop.call_soon(self._feed)
        self._set_reading()

    def _set_reading(self) -> None:
        wanted = self._lingering or (self._may_read() and not self._backlog)
        if wanted == self._reading or self.disconnected or self.transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def handle_events(self) -> None:
        events = self.conn.events_received()
        self._slice_bytes = (
            min(2 * self._slice_bytes, _SLICE_BYTES_MAX) if len(events) <= _FEW_FRAMES else _SLICE_BYTES_MIN
        )
        for event in events:
            if isinstance(event, Request):
                self.handle_connect(event)
            elif isinstance(event, Frame):
                self._handle_frame(event)

    def _handle_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self.handle_close(frame)
            return
        if not (frame.fin and frame.opcode in (Opcode.TEXT, Opcode.BINARY)) and not self._affords():
            return
        if frame.opcode is Opcode.PING:
            self.handle_ping()
        elif frame.opcode in _MESSAGES and not self.close_sent and self._is_text(frame):
            self._handle_part(frame)

    def _handle_part(self, frame: Frame) -> None:
        if frame.opcode is Opcode.TEXT:
            self.handle_text(frame)
        elif frame.opcode is Opcode.BINARY:
            self.handle_bytes(frame)
        else:
            self.handle_cont(frame)

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

    def handle_ping(self) -> None:
        pongs = b"".join(self.conn.data_to_send())
        if not self.close_sent:
            self.transport.write(pongs)

    def send_receive_event_to_app(self) -> None:
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        self._parsed_messages += 1
        self._message_bytes = 0
        if self.close_sent or self._listener is None:
            return
        if self.curr_msg_data_type == "text":
            self._listener.received(bytes(data))
        else:
            self._listener.received_binary()

    def _is_text(self, frame: Frame) -> bool:
        """Whether the part of the message that has arrived can be UTF-8. If not, close, and do not wait for
        the rest.
        """
        if frame.opcode is not Opcode.CONT:
            self._decoder = None
            if frame.opcode is Opcode.BINARY or (frame.fin and bytes(frame.data).isascii()):
                return True
            self._decoder = _decoder()
        if self._decoder is None:
            return True
        try:
            self._decoder.decode(frame.data, final=frame.fin)
        except UnicodeDecodeError:
            self.close_with(1007, "not UTF-8")
            return False
        return True

    def _receive_text(self, text: bytes) -> None:
        assert self._listener is not None, "nothing is read without a listener"
        try:
            if not text.isascii():
                text.decode()
        except UnicodeDecodeError:
            self.close_with(1007, "not UTF-8")
            return
        self._listener.received(text)

    def handle_parser_exception(self) -> None:
        """Handle bytes that are no WebSocket, or too long: the peer gets a close frame, after the answers to
        its earlier frames.
        """
        ending = b"".join(self.conn.data_to_send())
        self._failed = True
        for event in self.conn.events_received():
            if isinstance(event, Frame) and event.opcode in _MESSAGES and self._is_text(event):
                self._handle_part(event)
        self.transport.write(ending)
        self.close_sent = True
        self._linger()

    def _linger(self) -> None:
        """Ignore what still arrives: closing with unread bytes could discard the close frame. The peer sees
        the end after that frame.
        """
        self._lingering = True
        self._backlog.clear()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self._set_reading()
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(_CLOSE_S_MAX, self.transport.abort)


def guarded_socket(limits: SocketLimits) -> type[WebSocketConnection]:
    """The protocol class with these limits, for uvicorn's `ws`."""
    return type("Guarded", (WebSocketConnection,), {"limits": limits})
