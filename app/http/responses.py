"""Responses: whole, streamed, refused.

Knows: how a response leaves, and what happens if its client has left. Must never know: what was requested.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette import responses

from app.errors import RefusalError, problem, problem_headers, to_refusal
from app.gateway import Receive
from app.live.budgets import Reservation
from app.live.waiting import ClientLeftError, Departure
from engine import EngineError

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
PROBLEM: Final = b"application/problem+json"
HTML: Final = b"text/html; charset=utf-8"
# An extension of a request's scope: a function that returns whether the client has left.
GONE_EXTENSION: Final = "weir.gone"
# Another one: the `Departure` of its client.
DEPARTURE_EXTENSION: Final = "weir.departure"
# The connection's transport, where it is known: what a client does not take waits there.
TRANSPORT_EXTENSION: Final = "weir.transport"
# A function that writes a piece of the answer that is being sent, if the client has taken everything before,
# and returns whether it did.
WRITE_EXTENSION: Final = "weir.write"
# Set where the connection itself ends for a client that takes nothing.
STALL_EXTENSION: Final = "weir.ends_stalled"
# In a request's state: the `unsent` of its response, for code that waits before it writes the response.
UNSENT_STATE: Final = "unsent"
# In a request's state, for the metrics: the code of its refusal, its operation's label, and that its time is
# not the gateway's: it waited for entries, or for its client.
CODE_STATE: Final = "code"
ROUTE_STATE: Final = "route"
WAITED_STATE: Final = "waited"
# In a request's state: the function of `WRITE_EXTENSION`, where the connection has one, for answers that no
# middleware changes.
WRITE_STATE: Final = "write"
# In a request's state: the `Reservation` of what its answer takes.
OUTPUT_STATE: Final = "output"
# The same of its body.
BODY_STATE: Final = "body"


def when_gone(scope: Scope, receive: Receive, callback: Callable[[], None]) -> Callable[[], None]:
    """Call back once when the client leaves, as soon as its connection tells: a server that has no such
    extension does so a cycle of the loop later. Returns what stops that.
    """
    departure: Departure | None = scope.get("extensions", {}).get(DEPARTURE_EXTENSION)
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


class Response(responses.Response):
    """A whole response, made without Starlette's header handling, which costs more than the rest."""

    # The code of the refusal in it, which is counted.
    code: str = ""
    # Called if the client has left before the response could be written.
    unsent: Callable[[], None] | None = None

    def __init__(
        self, status: int, body: bytes = b"", headers: Sequence[Header] = (), *, media_type: bytes = JSON
    ) -> None:
        self.status_code = status
        self.body = body
        self.background = None
        self.raw_headers = [*headers]
        if status != 204:
            self.raw_headers += [(b"content-type", media_type), (b"content-length", b"%d" % len(body))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; HEAD gets the head alone."""
        gone = scope.get("extensions", {}).get(GONE_EXTENSION)
        if self.unsent is not None and gone is not None and gone():
            self.unsent()
            return
        if self.code:
            scope["state"][CODE_STATE] = self.code
        if self.unsent is not None:
            scope["state"][UNSENT_STATE] = self.unsent
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = b"" if scope["method"] == "HEAD" else self.body
        keep(scope["state"], len(body))
        await send({"type": "http.response.body", "body": body})


class NoResponse(Response):
    """No response: the client has left."""

    code = "client_left"

    def __init__(self) -> None:
        super().__init__(499)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


class BrokenOffError(Exception):
    """What is left of an answer that has begun is refused: the connection ends, since a client would take the
    end of the answer for that of what it asked for.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


class StreamingResponse(Response):
    """A response that is made while it is sent: each piece when the one before has left.

    A response that fails on the way is broken off, which clients can tell from a regular end.
    """

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, no faster than it is read; HEAD gets the head alone."""
        gone = scope.get("extensions", {}).get(GONE_EXTENSION)
        if self.unsent is not None and gone is not None and gone():
            self.unsent()
            await self._pieces.aclose()
            return
        # It takes as long as its client does.
        scope["state"][WAITED_STATE] = True
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            if scope["method"] != "HEAD":
                async for piece in self._pieces:
                    if leaving.done():
                        return
                    keep(scope["state"], len(piece))
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    # But 64 KiB of it, which each connection may have, the client has taken it.
                    keep(scope["state"], 0)
                    # A fast reader never makes `send` wait: let other requests have a turn.
                    await asyncio.sleep(0 if self._charge is None else self._charge(len(piece)))
            await send({"type": "http.response.body", "body": b""})
        except (EngineError, RefusalError) as error:
            refusal = to_refusal(error) if isinstance(error, EngineError) else error
            raise BrokenOffError(refusal.code, refusal.detail) from None
        except ClientLeftError:
            # As it was found here: nothing more is to be sent.
            return
        finally:
            leaving.cancel()
            await self._pieces.aclose()


def keep(state: Mapping[str, Any], size: int) -> None:
    """Hold this much of what the request with this state has reserved: it is being sent."""
    held: Reservation | None = state.get(OUTPUT_STATE)
    if held is not None:
        held.keep(size)


def release(state: Mapping[str, Any]) -> None:
    """Give back what the request with this state has reserved."""
    for name in (OUTPUT_STATE, BODY_STATE):
        held: Reservation | None = state.get(name)
        if held is not None:
            held.release()


def refuse(refusal: RefusalError, request_id: str) -> Response:
    """Make the response of a refusal."""
    response = Response(
        refusal.kind.status, problem(refusal, request_id), problem_headers(refusal), media_type=PROBLEM
    )
    response.code = refusal.code
    return response
