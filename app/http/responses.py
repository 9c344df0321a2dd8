"""Requests under way, and their responses: whole, streamed, refused.

Knows: what there is of a request from its head until its answer has left, how that leaves, and what happens
if its client has left.
Must never know: what was requested.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from app.errors import RefusalError, problem, problem_headers, to_refusal
from app.http.plan import HeadPlan
from app.live.budgets import FREE_BYTES, Reader, Reservation
from app.live.waiting import ClientLeftError, Departure
from engine import EngineError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
PROBLEM: Final = b"application/problem+json"
HTML: Final = b"text/html; charset=utf-8"
# Extensions of a scope, of our own server. The `Exchange`, where the server has made it.
EXCHANGE_EXTENSION: Final = "weir.exchange"
# The `ClientCertificate` of its connection, where there is one.
CERTIFICATE_EXTENSION: Final = "weir.client_certificate"
# A function that returns whether the client has left.
GONE_EXTENSION: Final = "weir.gone"
# The `Departure` of its client.
DEPARTURE_EXTENSION: Final = "weir.departure"
# The connection's transport: what a client does not take waits there.
TRANSPORT_EXTENSION: Final = "weir.transport"
# A function that writes a piece of the answer that is being sent, if the client has taken everything before,
# and returns whether it did.
WRITE_EXTENSION: Final = "weir.write"
# Set where the connection itself ends for a client that takes nothing.
STALL_EXTENSION: Final = "weir.ends_stalled"
# The label of requests that no operation answers.
NO_ROUTE: Final = "other"
_BODY: Final = "http.response.body"


class Exchange(msgspec.Struct, eq=False):
    """A request and its answer."""

    plan: HeadPlan
    request_id: str
    extensions: Mapping[str, Any] = {}
    # Its operation's label.
    route: str = NO_ROUTE
    began_s: float = 0.0
    # Of the answer, once it begins to leave: its status, the code of the refusal that it is, and the bytes of
    # its body so far.
    status: int = 0
    code: str = ""
    sent_bytes: int = 0
    # Its time is not the gateway's: it waited for entries, or for its client.
    has_waited: bool = False
    # What is held for its answer, and for its body.
    held_answer: Reservation | None = None
    held_body: Reservation | None = None

    @property
    def has_left(self) -> bool:
        """Whether the client has left, as far as its server tells."""
        gone = self.extensions.get(GONE_EXTENSION)
        return gone is not None and gone()

    @property
    def reader(self) -> Reader | None:
        """Who takes the answer, where its transport is known."""
        transport = self.extensions.get(TRANSPORT_EXTENSION)
        return None if transport is None else Reader(transport)

    def keep(self, size: int) -> None:
        """Hold this much of what is held for the answer: it is being sent."""
        if self.held_answer is not None:
            self.held_answer.keep(size)

    def release(self) -> None:
        """Hold nothing."""
        for held in (self.held_answer, self.held_body):
            if held is not None:
                held.release()

    def when_gone(self, receive: Receive, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when the client leaves, as soon as its connection tells: a server that has no such
        extension does so a cycle of the loop later. Returns what stops that.
        """
        departure: Departure | None = self.extensions.get(DEPARTURE_EXTENSION)
        if departure is not None:
            return departure.follow(callback)
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        leaving.add_done_callback(lambda ended: None if ended.cancelled() else callback())

        def stop() -> None:
            leaving.cancel()

        return stop


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def location(*segments: str) -> Header:
    """The header that says where something is: its path below `/v1`."""
    return b"location", "/".join(["/v1", *[quote(one, safe="") for one in segments]]).encode()


class Response:
    """A whole response."""

    # The code of the refusal in it, which is counted.
    code: str = ""
    # Called if the client has left before the response could be written.
    unsent: Callable[[], None] | None = None

    def __init__(
        self, status: int, body: bytes = b"", headers: Sequence[Header] = (), *, media_type: bytes = JSON
    ) -> None:
        self.status_code = status
        self.body = body
        self.raw_headers = [*headers]
        if status != 204:
            self.raw_headers += [(b"content-type", media_type), (b"content-length", b"%d" % len(body))]

    async def send(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Send it over ASGI; HEAD gets the head alone."""
        if self._is_unsent(exchange):
            return
        await self._send_head(exchange, send)
        body = b"" if exchange.plan.method == "HEAD" else self.body
        exchange.keep(len(body))
        await send_body(exchange, send, body)

    def _is_unsent(self, exchange: Exchange) -> bool:
        """Whether its client has left, which is noted."""
        if self.unsent is None or not exchange.has_left:
            return False
        self.unsent()
        return True

    async def _send_head(self, exchange: Exchange, send: Send) -> None:
        exchange.status, exchange.code = self.status_code, self.code
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


async def send_body(exchange: Exchange, send: Send, body: bytes, *, more: bool = False) -> None:
    """Send a part of a body so that no more than a slice of it waits in the transport: each is written once
    the client has taken most of the one before.
    """
    exchange.sent_bytes += len(body)
    held = exchange.held_answer if len(body) > FREE_BYTES else None
    if held is not None:
        held.note_sliced(len(body))
    for at in range(0, len(body) or 1, FREE_BYTES):
        end = at + FREE_BYTES
        await send({"type": _BODY, "body": body[at:end], "more_body": more or end < len(body)})
    if held is not None:
        held.note_sliced(0)


class NoResponse(Response):
    """No response: the client has left."""

    code = "client_left"

    def __init__(self) -> None:
        super().__init__(499)

    async def send(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Send nothing."""


class BrokenOffError(Exception):
    """What is left of an answer that has begun is refused: the connection ends, since a client would take the
    end of the answer for that of what it asked for.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


class Compressor(Protocol):
    """Pieces in, what is ready of the coded text out."""

    def compress(self, data: bytes, /) -> bytes:
        """Take a piece."""
        ...

    def flush(self) -> bytes:
        """End."""
        ...


class StreamingResponse(Response):
    """A response that is made while it is sent: each piece when the one before has left.

    A response that fails on the way is broken off, which clients can tell from a regular end.
    """

    # Codes each piece, in a thread.
    compressor: Compressor | None = None

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], headers: Sequence[Header], *, media_type: bytes
    ) -> None:
        super().__init__(204, b"", headers)
        self.status_code = 200
        self.raw_headers.append((b"content-type", media_type))
        self._pieces = pieces
        self._charge: Callable[[int], float] | None = None

    def slow_down(self, charge: Callable[[int], float]) -> None:
        """Have each piece counted by its bytes, and wait for the seconds that `charge` returns."""
        self._charge = charge

    async def send(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Send it, no faster than it is read; HEAD gets the head alone."""
        if self._is_unsent(exchange):
            await self._pieces.aclose()
            return
        # It takes as long as its client does.
        exchange.has_waited = True
        await self._send_head(exchange, send)
        leaving, compressor = asyncio.ensure_future(wait_for_disconnect(receive)), self.compressor
        last = b""
        try:
            if exchange.plan.method != "HEAD":
                async for piece in self._pieces:
                    if leaving.done():
                        return
                    exchange.keep(len(piece))
                    coded = piece
                    if compressor is not None:
                        coded = await asyncio.to_thread(compressor.compress, piece)
                    await send_body(exchange, send, coded, more=True)
                    # But 64 KiB of it, which each connection may have, the client has taken it.
                    exchange.keep(0)
                    # A fast reader never makes `send` wait: let other requests have a turn.
                    await asyncio.sleep(0 if self._charge is None else self._charge(len(piece)))
                if compressor is not None:
                    last = await asyncio.to_thread(compressor.flush)
            await send_body(exchange, send, last)
        except (EngineError, RefusalError) as error:
            refusal = to_refusal(error) if isinstance(error, EngineError) else error
            raise BrokenOffError(refusal.code, refusal.detail) from None
        except ClientLeftError:
            # As it was found here: nothing more is to be sent.
            return
        finally:
            leaving.cancel()
            await self._pieces.aclose()


def refuse(refusal: RefusalError, request_id: str) -> Response:
    """Make the response of a refusal."""
    response = Response(
        refusal.kind.status, problem(refusal, request_id), problem_headers(refusal), media_type=PROBLEM
    )
    response.code = refusal.code
    return response
