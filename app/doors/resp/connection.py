"""One connection of a Redis client: bytes in, commands in order, bytes out.

Knows: that replies leave in the order of their commands, what stops the reading of a socket, when it ends.
Must never know: the meaning of a command, which form the bytes have.

    data_received ─► codec: words ─► session ─► queue: one piece of work at a time ─► codec ─► one write

While work is under way, bytes are kept unread, up to a limit; then the socket is not read either. A client
that does not take its replies is not served until it does.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from app import logs
from app.doors.client import Client
from app.doors.resp.codec import UNAUTHENTICATED
from app.doors.resp.commands.session_commands import SESSION_COMMANDS
from app.doors.resp.port import Port
from app.doors.resp.session import REFUSALS_MAX, RespSession
from app.errors import RefusalError
from app.live.budgets import FREE_BYTES
from app.live.turns import slice_of
from app.redis import wire
from engine import EngineError, errors

# Bytes that arrive while a command is under way; beyond, the socket is not read.
_WAITING_BYTES_MAX: Final = 256 << 10
# Bytes that are read at once: a command may have six, and takes a microsecond.
_READ_BYTES_MAX: Final = 32 << 10
# Clients send a pipeline before they read: as much may wait for one, where memory is not short.
_OUTPUT_BYTES_MAX: Final = 1 << 20
# Commands after which other connections have their turn: less than a millisecond, if they are small.
_COMMANDS_AT_ONCE_MAX: Final = 100
_FAULT: Final = wire.error("ERR something went wrong in the gateway")
# A web page or a health check may connect again and again: one line in the log in this time.
_BROWSERS_QUIET_S: Final = 60.0
# Messages that a subscriber has not taken: as Redis, which closes it then.
_MESSAGES_BYTES_MAX: Final = 32 << 20


class RespConnection(Client):
    """One client's socket."""

    def __init__(self, port: Port[RespSession]) -> None:
        super().__init__(port.stall_s_max)
        self._port = port
        self.budgets = port.gateway.limits.budgets
        self._monotonic = port.gateway.clock.monotonic
        self._out: list[bytes] = []
        self._out_bytes = 0
        # Whether `go_on` is on the stack.
        self._going = False
        self._output_bytes_max = 0
        self._ended = self._at_end = False

    # --- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self._limit_output(_OUTPUT_BYTES_MAX)
        port = self._port
        address, local = (_address(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        self.session = RespSession(port, self, SESSION_COMMANDS, (address, local), self.go_on)
        self._codec, self._queue, self._turn = self.session.codec, self.session.queue, self.session.turn
        refusal = port.refusal_of_connection()
        if refusal is not None:
            self.end(self.session.refuse(refusal))
        else:
            self.session.count_for_caller()
        self.await_token()

    def await_token(self) -> None:
        """Close soon unless the client is known by then."""
        if self.session.known is None and not self.has_deadline:
            self.begin_deadline(self._port.auth_s_max, self._end_unknown)

    def _end_unknown(self) -> None:
        if self._turn.is_waiting:
            # Its token may be among the bytes that wait for their turn.
            self.await_token()
        else:
            sentence = f"NOAUTH no token came within {self._port.auth_s_max:g} s"
            self.end(self.session.refuse(EngineError("unauthenticated", sentence)))

    def _time_command(self) -> None:
        """Limit the time of a command that has begun to arrive: it uses memory until it is whole."""
        if self.session.known is None or self._ended:
            return
        if not self._codec.waiting_bytes:
            if self._deadline is not None:
                self.end_deadline()
        elif self._deadline is None:
            last_used_s = self.session.last_used_s
            self.begin_deadline(self._port.request_s_max, lambda: self._end_late_command(last_used_s))

    def _end_late_command(self, last_used_s: float) -> None:
        is_late = self.session.last_used_s == last_used_s and self._is_free() and not self._has_input()
        if is_late and self._codec.waiting_bytes:
            sentence = f"ERR a command arrives within {self._port.request_s_max:g} s"
            self.end(self.session.refuse(EngineError("request_timeout", sentence)))
        else:
            # Another command than the one that was timed, or the gateway has not read on.
            self._time_command()

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        try:
            if self._ended:
                return
            self.backlog += data
            self.received_bytes += len(data)
            is_behind = self._queue.is_busy or self.has_unsent or self._turn.is_waiting
            if is_behind and len(self.backlog) > _WAITING_BYTES_MAX:
                self.set_reading(wanted=False)
            self.go_on()
        except Exception as error:  # noqa: BLE001 - the transport would cut the connection, and say nothing
            self._fail(error)

    def eof_received(self) -> bool:
        """The client sends nothing more. What it has sent is answered first, unless that would wait."""
        self._at_end = True
        if self._queue.blocked is not None:
            self._cut()
        self.end_if_idle()
        # TLS has no half-closed connections.
        return not self._ended and self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._ended = True
        super().connection_lost(exc)
        self.backlog.clear()
        self.session.leave()

    def stalled(self) -> None:
        """It does not take its replies."""
        self.abort(f"it took no replies for {self._port.stall_s_max:g} s")

    def resume_writing(self) -> None:
        """It takes them again."""
        super().resume_writing()
        self.go_on()

    # --- for its session

    @property
    def caller(self) -> str:
        """For whom its bytes are counted."""
        return self.session.caller

    @property
    def descriptor(self) -> int:
        """The socket's number."""
        found: int = self.transport.get_extra_info("socket").fileno()
        return found

    @property
    def input_bytes(self) -> int:
        """Bytes that were received and not run."""
        return len(self.backlog) + self._codec.waiting_bytes

    def deliver(self, written: bytes) -> None:
        """Let a message leave; a client that does not take them is closed."""
        if self._ended:
            return
        self.transport.write(written)
        if self.has_unsent:
            self.settle_output()
        if self.unsent_bytes > _MESSAGES_BYTES_MAX:
            self.abort(f"it left more than {_MESSAGES_BYTES_MAX} bytes of messages")

    def end(self, written: bytes = b"") -> None:
        """Send this after all earlier answers, then close."""
        if not self._ended:
            self._out.append(written)
            self._flush()
            self._ended = True
            self._queue.abandon()
            self.transport.close()

    def abort(self, reason: str) -> None:
        """Close at once, and log why: the client cannot tell this from a disconnect that it caused."""
        if not self._ended:
            session = self.session
            logs.get().info(
                "a Redis client was disconnected", reason=reason, client=session.id, address=session.address
            )
        self._cut()

    def end_browser(self) -> None:
        """Close at once, and log it once a minute: it needs no token to connect again and again."""
        now_s = self._monotonic()
        if now_s < self._port.browsers_quiet_until_s:
            self._cut()
        else:
            self._port.browsers_quiet_until_s = now_s + _BROWSERS_QUIET_S
            self.abort("it speaks HTTP")

    def _cut(self) -> None:
        self._ended = True
        # Now: what another client publishes next is not for this one any more.
        self._queue.abandon()
        self.transport.abort()

    def end_if_idle(self) -> None:
        """Close if no work is under way and no more of it will come."""
        is_idle = not (self._queue.is_busy or self._turn.is_waiting)
        if is_idle and not self._ended and (self._at_end or self._port.draining):
            self.end()

    # --- from bytes to commands

    def go_on(self) -> None:
        """Run what has arrived until something has to be waited for."""
        if self._going:
            return
        self._going = True
        before = self._port.commands_run
        has_time = slice_of(self._monotonic)
        try:
            while (
                self._is_free()
                and self._has_input()
                and self._turn.may_go_on()
                and self._has_command(has_time)
            ):
                self.session.begin()
                many = self._port.commands_run - before >= _COMMANDS_AT_ONCE_MAX or not has_time()
                if many and self._is_free() and self._has_input():
                    # Others have their turn.
                    self._queue.pause()
        except Exception as error:  # noqa: BLE001 - the client would take it for a disconnect that it caused
            self._fail(error)
        finally:
            self._going = False
        if self.input is not None and self._codec.announced_bytes <= FREE_BYTES:
            self.hold_commands()
        if self.session.refusals >= REFUSALS_MAX:
            sentence = (
                f"NOAUTH {REFUSALS_MAX} commands came without a token: connect again, and send AUTH first"
            )
            self.end(self.session.refuse(EngineError("unauthenticated", sentence)))
        self._time_command()
        self._flush()
        self.end_if_idle()

    def _is_free(self) -> bool:
        is_stranger = self.session.refusals >= REFUSALS_MAX
        return not (self._queue.is_busy or self.has_unsent or self._ended or is_stranger)

    def _has_input(self) -> bool:
        codec = self._codec
        return bool(codec.commands or self.backlog or codec.may_read_on or codec.error)

    def _has_command(self, has_time: Callable[[], bool]) -> bool:
        """Whether a whole command is there; reads what has arrived, while there is time."""
        codec = self._codec
        is_known = self.session.known is not None
        limits = self._port.request_limits if is_known else UNAUTHENTICATED
        while not codec.commands and codec.error is None and (self.backlog or codec.may_read_on):
            if not has_time():
                self._queue.pause()
                return False
            self.session.is_mixed = False
            codec.feed(self._take_waiting(), limits, has_time)
        if codec.announced_bytes > FREE_BYTES:
            try:
                self.hold_commands()
            except EngineError as refusal:
                # The rest is never read.
                self.end(self.session.refuse(refusal))
                return False
        if codec.commands:
            return True
        if self._codec.error is not None:
            sentence = f"ERR Protocol error: {self._codec.error}"
            self.end(self.session.refuse(EngineError("malformed_request", sentence)))
        return False

    def _take_waiting(self) -> bytes:
        """The first of what was received and not read; go on receiving."""
        size = len(self.backlog)
        if size > _READ_BYTES_MAX:
            # Best between two commands: whole ones that are alike are read at once.
            start = self.backlog.rfind(b"\r\n*", 0, _READ_BYTES_MAX)
            size = start + 2 if start >= 0 else _READ_BYTES_MAX
        data = self.take_backlog(size)
        if len(self.backlog) <= _WAITING_BYTES_MAX:
            self.set_reading(wanted=True)
        return data

    def hold_commands(self, more: int = 0) -> None:
        """Hold what a command that arrives and those that are queued take, if that is more than each
        connection may have. Raises EngineError `overloaded`.
        """
        queued, announced = self.session.transaction, self._codec.announced_bytes
        size = announced + (0 if queued is None else queued.queued_bytes) + more
        if size > FREE_BYTES:
            # While a command arrives, it is its sender's turn.
            self.hold_input(size, is_clients_turn=announced > FREE_BYTES)
        elif not (self._queue.is_busy or self._codec.commands):
            self.release_input()

    # --- replies

    def _flush(self) -> None:
        if self._out and not self._ended:
            self.transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0
        self.settle_output()

    def put(self, written: bytes) -> None:
        """Let this leave: at the latest before more than each connection may have waits for it."""
        self._out.append(written)
        self._out_bytes += len(written)
        self.session.charge(len(written))
        if self.output is not None or self._out_bytes > FREE_BYTES:
            self._flush()

    def settle_output(self) -> None:
        """Hold what the client has not taken, unless a reply is held that is being made."""
        if not self._queue.is_busy:
            super().settle_output()
            if self.output is not None:
                # Others may need the memory.
                self._limit_output(self._port.gateway.limits.budgets.output.piece_bytes(_OUTPUT_BYTES_MAX))

    def _limit_output(self, size: int) -> None:
        """Run nothing more for the client while more than this waits for it."""
        if size != self._output_bytes_max:
            self._output_bytes_max = size
            self.transport.set_write_buffer_limits(high=size)

    def refuse(self, error: BaseException, name: str = "") -> bytes | None:
        """What work is answered that has failed as a whole; None where the connection ends with it."""
        if isinstance(error, EngineError | RefusalError):
            return self.session.refuse_command(error, name)
        self._fail(error)
        return None

    def _fail(self, error: BaseException) -> None:
        """End with an error: which commands of a run have changed something is not known."""
        self._port.gateway.reports.faults.note("resp", error)
        self.session.refuse(errors.internal())
        self.end(_FAULT)

    @property
    def joins(self) -> bool:
        """Whether clients may ask together: there are several, and the streams are here."""
        return len(self._port.sessions) > 1 and self._port.is_embedded

    @property
    def is_gone(self) -> bool:
        """Whether nothing more reaches the client."""
        return self._ended or self.transport.is_closing()


def _address(name: object) -> str:
    """As CLIENT LIST shows it; a Unix socket has a path."""
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return f"{name.decode(errors='replace') if isinstance(name, bytes) else name or ''}:0"
