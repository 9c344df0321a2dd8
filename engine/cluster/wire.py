"""A connection to a Redis or Valkey server: pipelined, and made again when it is lost.

Knows: RESP3 as hiredis reads it, the greeting, deadlines, how much may wait to be sent, which server it is.
Must never know: what commands mean, which server has a stream, who may repeat what.

    send ──► unsent ──one write for all that came in one cycle──► waiting ──reply in order──► done
               │ stays over a reconnection, until its deadline       │ lost with the link: it may have run

A reply belongs to the first command that waits. So a command without a reply holds up all others: when its
deadline is over, the link ends with all that wait on it.
"""

import asyncio
import random
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

import hiredis
import msgspec

from engine.cluster import misfits
from engine.cluster.figures import BackendFigures

Word = bytes | str | int | float
Words = Sequence[Word]

# The stub has a tuple of one word.
pack: Final[Callable[[tuple[Word, ...]], bytes]] = hiredis.pack_command  # type: ignore[assignment]

# What has not been handed to the system: a server that reads nothing must not fill the memory.
UNSENT_BYTES_MAX: Final = 64 << 20
# Above it the transport takes no more until the server has read.
_TRANSPORT_BYTES_MAX: Final = 1 << 20
# In a command it stands for the run ID of the server that gets it, and is as long. No client knows it.
IDENTITY: Final = secrets.token_hex(20).encode()
RECONNECT_S_MIN: Final = 0.05
RECONNECT_S_MAX: Final = 2.0


class ServerError(Exception):
    """The server's refusal. `code` is its first word, as ERR, MOVED, NOGROUP, OOM."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    @property
    def code(self) -> str:
        """The first word."""
        return self.text.partition(" ")[0]


class ConnectionLostError(Exception):
    """There is no reply. `may_have_run`: the command was sent, so it may have had its effect."""

    def __init__(self, reason: str, *, may_have_run: bool) -> None:
        super().__init__(reason)
        self.may_have_run = may_have_run


# A reply as hiredis gives it: bytes, int, float, bool, None, list, dict (maps), set; errors within a list
# are ServerError.
Result = Any
Done = Callable[[Result], None]


class Address(msgspec.Struct, frozen=True):
    """Where a server listens: `path` is a Unix socket, and then the others are empty."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class ServerAccess(msgspec.Struct, frozen=True):
    """How connections are made: with which user and password, encrypted or not, to which database of a server
    of which mode, as HELLO has it; empty: of any. `primary`: to no replica.
    """

    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None
    database: int = 0
    mode: bytes = b""
    primary: bool = False

    def greeting(self) -> list[Words]:
        """The commands that begin a connection."""
        hello: list[Word] = ["HELLO", 3]
        if self.password:
            hello += ["AUTH", self.user or "default", self.password]
        select: list[Words] = [("SELECT", self.database)] if self.database else []
        return [[*hello, "SETNAME", "weir"], *select]


class _Unsent(msgspec.Struct, gc=False):
    data: bytes
    # None: no reply comes.
    done: Sequence[Done | None]
    deadline: float


class _Link(asyncio.Protocol):
    """One TCP, TLS or Unix connection, from its beginning to its end."""

    def __init__(self, push: Callable[[list[Any]], None], resume: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        # Of each command whose reply has not come: the callback, and its deadline.
        self.waiting: deque[tuple[Done, float]] = deque()
        self.is_paused = False
        # Ended by a refusal of what has no reply, as of SUBSCRIBE: the next link will end so, too.
        self.is_refused = False
        # Of the server at its other end; empty where that is not asked.
        self.identity = b""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._push = push
        self._resume = resume
        self._nothing = object()
        self._reader = hiredis.Reader(replyError=ServerError, notEnoughData=self._nothing)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every event loop's transports are of this class.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(_TRANSPORT_BYTES_MAX)
        end = transport.get_extra_info("socket")
        if end is not None and end.family != socket.AF_UNIX:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not self._nothing:
                self._take(reply)
        except hiredis.ProtocolError:
            self.end(misfits.of_bytes(data))

    def _take(self, reply: Result) -> None:
        if type(reply) is hiredis.PushNotification:
            call(self._push, reply)
        elif self.waiting:
            call(self.waiting.popleft()[0], reply)
        else:
            # A server that takes no further clients says so before it is asked anything.
            self.is_refused = True
            self.end(reply.text if isinstance(reply, ServerError) else "a reply to nothing")

    def connection_lost(self, exc: Exception | None) -> None:
        reason = misfits.of_system(exc) if isinstance(exc, OSError) else str(exc or "")
        self.end(reason or "the server closed the connection")

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._resume()

    def end(self, reason: str) -> None:
        """End it; what waits has no reply."""
        if not self.lost.done():
            self.lost.set_result(reason)
        if self.transport is not None:
            self.transport.abort()
        while self.waiting:
            call(self.waiting.popleft()[0], ConnectionLostError(reason, may_have_run=True))

    async def ask(self, words: Words) -> Result:
        """The reply to one command of the greeting. Raises ServerError, ConnectionLostError."""
        assert self.transport is not None, "it is connected"
        replied: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(reply: Result) -> None:
            if not replied.done():
                replied.set_result(reply)

        self.waiting.append((done, 0.0))
        self.transport.write(pack(tuple(words)))
        reply = await replied
        if isinstance(reply, ServerError | ConnectionLostError):
            raise reply
        return reply


class ServerConnection:
    """A connection that stays: `start`, `send` as often as wanted, `close`.

    `timeout_s` is how long a command may take from `send` to its reply. `on_up` is called after each
    greeting; `on_down` with the reason when the link is lost or could not be made; `on_push` with each
    message that is no reply (subscriptions). `IDENTITY` in a command is the run ID of the server that it is
    sent to, also where that is another one by then; a connection that does not identify its server takes no
    such command. All belong to one event loop.
    """

    def __init__(  # noqa: PLR0913 - a connection's options
        self,
        address: Address,
        access: ServerAccess,
        timeout_s: float,
        *,
        on_up: Callable[[], None] = lambda: None,
        on_down: Callable[[str], None] = lambda _: None,
        on_push: Callable[[list[Any]], None] = lambda _: None,
        identifies: bool = True,
        figures: BackendFigures | None = None,
    ) -> None:
        self.address = address
        # Why it is down; None while it is up.
        self.failure: str | None = f"there is no connection to {address} yet"
        self._loop = asyncio.get_running_loop()
        self._access = access
        self._timeout_s = timeout_s
        self._on_up = on_up
        self._on_down = on_down
        self._on_push = on_push
        self._identifies = identifies
        self._figures = figures or BackendFigures()
        self._unsent: deque[_Unsent] = deque()
        self._unsent_bytes = 0
        self._link: _Link | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._flushing = False
        self._watching: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begin to connect."""
        self._figures.connections_wanted += 1
        self._keeping = self._loop.create_task(self._keep_up())

    async def close(self) -> None:
        """End it: what has no reply yet never gets one."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
        if self._link is not None:
            self._link.end("closed")
            self._link = None
            self._figures.connections_up -= 1
        self._refuse_unsent("closed")
        # Last: the task that closes may be cancelled while it waits.
        if self._keeping is not None:
            self._figures.connections_wanted -= 1
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        # The transport of an ended link is closed in the next cycle.
        await asyncio.sleep(0)

    def send(self, words: Words, done: Done | None) -> None:
        """Send a command, and call `done` once, never before this returns: with the reply, ServerError or
        ConnectionLostError. `done` None is for what has no reply, as SUBSCRIBE in RESP3.
        """
        self._queue(pack(tuple(words)), (done,))

    def send_together(self, commands: Sequence[Words], done: Callable[[list[Result]], None]) -> None:
        """Send commands that must not be separated, as MULTI … EXEC, and call `done` once with the result of
        each.
        """
        results: list[Result] = []

        def last(result: Result) -> None:
            results.append(result)
            done(results)

        data = b"".join([pack(tuple(words)) for words in commands])
        self._queue(data, (*(results.append for _ in commands[1:]), last))

    def _queue(self, data: bytes, done: Sequence[Done | None]) -> None:
        # Sent as it is, it would be a server that there is nowhere: to all others, one that took over.
        assert self._identifies or IDENTITY not in data, "what names its server goes to one that is known"
        if self._is_closed or self._unsent_bytes + len(data) > UNSENT_BYTES_MAX:
            reason = "closed" if self._is_closed else f"more than {UNSENT_BYTES_MAX} bytes wait to be sent"
            self._loop.call_soon(partial(_refuse, done, reason))
            return
        self._unsent.append(_Unsent(data, done, self._loop.time() + self._timeout_s))
        self._unsent_bytes += len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what has come, as one."""
        self._flushing = False
        link = self._link
        # What a link gets after its end nothing would answer: it stays for the next one.
        if link is not None and not link.lost.done() and not link.is_paused and self._unsent:
            assert link.transport is not None, "it was greeted"
            identity = link.identity
            link.transport.writelines([unsent.data.replace(IDENTITY, identity) for unsent in self._unsent])
            link.waiting += [
                (done, unsent.deadline) for unsent in self._unsent for done in unsent.done if done is not None
            ]
            self._unsent.clear()
            self._unsent_bytes = 0
        if self._watching is None:
            self._watch()

    # --- deadlines

    def _watch(self) -> None:
        """Look again when the first of them is over."""
        link = self._link
        deadlines = [link.waiting[0][1]] if link is not None and link.waiting else []
        deadlines += [self._unsent[0].deadline] if self._unsent else []
        self._watching = self._loop.call_at(min(deadlines), self._expire) if deadlines else None

    def _expire(self) -> None:
        now = self._loop.time()
        reason = f"no answer from {self.address} within {self._timeout_s:g} s"
        if self._link is not None and self._link.waiting and self._link.waiting[0][1] <= now:
            self._link.end(reason)
        while self._unsent and self._unsent[0].deadline <= now:
            late = self._unsent.popleft()
            self._unsent_bytes -= len(late.data)
            _refuse(late.done, self.failure or reason)
        self._watch()

    def _refuse_unsent(self, reason: str) -> None:
        unsent = list(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        for request in unsent:
            _refuse(request.done, reason)

    # --- connecting

    async def _keep_up(self) -> None:
        pause_s = RECONNECT_S_MIN
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    link = await self._connect()
            except TimeoutError:
                hint = "" if self._access.tls is None else f". {misfits.MAYBE_NO_TLS}"
                self._be_down(f"no connection to {self.address} within {self._timeout_s:g} s{hint}")
            except (OSError, ServerError, ConnectionLostError) as error:
                reason = why_not(self.address, error)
                hangs_up = isinstance(error, ConnectionLostError) and not isinstance(reason, misfits.Misfit)
                hint = f". {misfits.MAYBE_TLS}" if hangs_up and self._access.tls is None else ""
                self._be_down(f"{reason}{hint}" if hint else reason)
            except Exception as error:  # noqa: BLE001 - it is tried again
                report("a connection could not be made", error)
                self._be_down(f"{self.address}: {error}")
            else:
                self.failure = None
                self._link = link
                self._figures.connections_up += 1
                call(self._on_up)
                self._flush()
                reason = await link.lost
                pause_s = RECONNECT_S_MAX if link.is_refused else RECONNECT_S_MIN
                self._link = None
                self._figures.connections_up -= 1
                self._be_down(f"{self.address}: {reason}")
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            pause_s = min(2 * pause_s, RECONNECT_S_MAX)

    async def _connect(self) -> _Link:
        make = partial(_Link, self._on_push, self._flush)
        where, tls = self.address, self._access.tls
        if where.path:
            _, link = await self._loop.create_unix_connection(make, where.path)
        else:
            _, link = await self._loop.create_connection(make, where.host, where.port, ssl=tls)
        try:
            hello, *select = self._access.greeting()
            _expect(self._access, await link.ask(hello))
            for words in select:
                await link.ask(words)
            if self._identifies:
                link.identity = _identity_of(await link.ask(("INFO", "server")))
        except BaseException:
            link.end("not greeted")
            raise
        return link

    def _be_down(self, reason: str) -> None:
        self.failure = reason
        self._figures.connections_lost += 1
        call(self._on_down, reason)


def _expect(access: ServerAccess, hello: Result) -> None:
    """Raise ConnectionLostError for a server of another mode or role, or too old."""
    misfit = misfits.of_greeting(hello, access.mode, primary=access.primary)
    if misfit is not None:
        raise ConnectionLostError(misfit, may_have_run=False)


def why_not(address: Address, error: OSError | ServerError | ConnectionLostError) -> str:
    """Why a server cannot be used: a `Misfit` where no time cures that."""
    if isinstance(error, ServerError):
        reason = misfits.of_refusal(error.text)
    else:
        reason = misfits.of_system(error) if isinstance(error, OSError) else error.args[0]
    if str(address) in reason:
        return reason
    text = f"{address}: {reason}"
    return misfits.Misfit(text) if isinstance(reason, misfits.Misfit) else text


def _identity_of(info: bytes) -> bytes:
    """The run ID of a server: new with each of its starts."""
    return info.partition(b"run_id:")[2].partition(b"\r\n")[0].ljust(len(IDENTITY))[: len(IDENTITY)]


async def ask(address: Address, access: ServerAccess, words: Words, timeout_s: float) -> Result:
    """The reply to one command, over a connection of its own. Raises ServerError, ConnectionLostError."""
    replied: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def take(result: Result) -> None:
        if not replied.done():
            replied.set_result(result)

    def lose(reason: str) -> None:
        take(ConnectionLostError(reason, may_have_run=False))

    connection = ServerConnection(address, access, timeout_s, on_down=lose, identifies=False)
    connection.start()
    try:
        connection.send(words, take)
        result = await replied
    finally:
        await connection.close()
    if isinstance(result, ServerError | ConnectionLostError):
        raise result
    return result


def _refuse(done: Sequence[Done | None], reason: str) -> None:
    lost = ConnectionLostError(reason, may_have_run=False)
    for call_back in done:
        if call_back is not None:
            call(call_back, lost)


def call(callback: Callable[..., object], *arguments: object) -> None:
    """Call back; what the callback raises is reported, and concerns no other callback."""
    try:
        callback(*arguments)
    except Exception as error:  # noqa: BLE001 - the others get their replies
        report("a callback of a connection failed", error)


def report(message: str, error: Exception) -> None:
    """Report what should not be, where the event loop reports such things."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
