"""The bodies of requests: received, decoded and read within the memory that there is for them.

Knows: limits, codings, which body takes so long to read that a thread does. Must never know: what it says.
"""

import asyncio
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from app.errors import RefusalError
from app.http import strict_json
from app.http.body_codings import INLINE_BYTES, SLICE_BYTES, CodedBody, coding_of
from app.http.requests import NeedsTaskError, Request
from app.http.responses import TRANSPORT_EXTENSION
from app.http.strict_json import NeedsRoomError, NotPlainError
from app.live.budgets import BODY_COPIES, FREE_BYTES, Pool, Sender
from app.live.waiting import ClientLeftError
from engine import EngineError

T = TypeVar("T")

# A body of this size takes up to 16 ms to read, with many short fields: larger ones are read in a thread.
INLINE_BYTES_MAX: Final = 256 << 10
# What a thread may take to read a body, of however few bytes: there are few of them.
_THREAD_BYTES: Final = 4 << 20
_TOO_MUCH: Final = (
    "to read this body takes more memory than there is for bodies (buffer_bytes_max): it has too many "
    "values, or long texts with wide characters; send less at once"
)
# What a list of values takes more than they take themselves, in values.
_LIST_VALUES: Final = 7


class BodyReading(NamedTuple, Generic[T]):
    """How a body is read: `reader` reads it; a large one in a thread, so that others are served meanwhile,
    one of `turn_bytes_min` when it is the caller's turn. One with more values than `inline_values_max` is
    large, where a list counts as several. `quick` reads other bodies, and leaves with NotPlainError what has
    to be read in a thread too. It is no longer than `bytes_max`.
    """

    reader: Callable[[bytes], T]
    inline_bytes_max: int = INLINE_BYTES_MAX
    bytes_max: int = sys.maxsize
    inline_values_max: int | None = None
    turn_bytes_min: int | None = None
    quick: Callable[[bytes], T] | None = None

    def is_short(self, body: bytes) -> bool:
        """Whether this body is read at once."""
        most = self.inline_values_max
        return len(body) <= self.inline_bytes_max and (
            most is None or body.count(b",") + _LIST_VALUES * body.count(b"[") < most
        )

    async def receive(self, request: Request) -> T:
        """What the body of a request is. Raises as `receive`, and what the reader raises."""
        return await self.read(request, await receive(request, self.bytes_max))

    async def read(self, request: Request, body: bytes) -> T:
        """The same of a body that is there."""
        if self.turn_bytes_min is not None and len(body) >= self.turn_bytes_min:
            await request.take_turn()
        if self.is_short(body):
            with suppress(NotPlainError):
                return (self.quick or self.reader)(body)
        pool = request.gateway.limits.budgets.bodies
        return await read_in_thread(self.reader, body, pool, partial(_hold, request))

    def read_now(self, request: Request, body: bytes) -> T:
        """The same of a body that is there. Raises NeedsTaskError where that takes long."""
        limit = min(request.gateway.settings.body_bytes_max, self.bytes_max)
        if len(body) > limit:
            raise _too_large(limit)
        is_turns = self.turn_bytes_min is not None and len(body) >= self.turn_bytes_min
        if is_turns or b"content-encoding" in request.headers or not self.is_short(body):
            raise NeedsTaskError
        try:
            return (self.quick or self.reader)(body)
        except NotPlainError:
            raise NeedsTaskError from None


async def receive(request: Request, bytes_max: int = sys.maxsize) -> bytes:
    """The whole body of a request, decoded: as long as the settings allow, and no longer than `bytes_max`.
    Raises `body_too_large` as early as it can be known, `unsupported_media_type` and `malformed_encoding` for
    its coding, `unauthenticated` if the token has ended meanwhile, ClientLeftError.
    """
    limit = min(request.gateway.settings.body_bytes_max, bytes_max)
    coded = request.headers.get(b"content-encoding")
    coding = None if coded is None else coding_of(coded)
    announced = request.headers.get(b"content-length", b"0")
    if not announced.isdigit() or int(announced) > limit:
        raise _too_large(limit)
    _hold_body(request, int(announced), is_arriving=True)
    message = await request.receive()
    whole: bytes = message.get("body", b"")
    if message.get("more_body") or message["type"] != "http.request":
        whole = await _rest(request, message, limit)
    elif len(whole) > limit:
        raise _too_large(limit)
    if coding:
        whole = await _decode(request, CodedBody(coding, whole), limit)
    # It may have taken a while.
    request.check_access()
    if len(whole) > int(announced):
        request.take_requests(0, len(whole) - int(announced))
    return whole


async def _decode(request: Request, coded: CodedBody, limit: int) -> bytes:
    """The decoded body, a slice at a time: no more of it is made than what is held and allowed."""
    slices = [coded.read(INLINE_BYTES)]
    size = len(slices[0])
    if not coded.is_read:
        await request.take_turn()
    while not coded.is_read and size <= limit:
        _hold_body(request, min(size + SLICE_BYTES, limit))
        slices.append(await asyncio.to_thread(coded.read))
        size += len(slices[-1])
    if size > limit:
        raise _too_large(limit)
    return b"".join(slices)


def _hold_body(request: Request, size: int, *, is_arriving: bool = False) -> None:
    """Hold what a long body takes, before it is there. Raises `overloaded`."""
    if size > FREE_BYTES:
        _hold(request, BODY_COPIES * size, is_arriving=is_arriving)


def _hold(request: Request, size: int, *, is_arriving: bool = False) -> None:
    """Hold this many bytes for a body, and for what it takes to read it. Raises `overloaded`."""
    held = request.exchange.held_body
    try:
        if held is None:
            sender = Sender(request.exchange.extensions.get(TRANSPORT_EXTENSION))
            held = request.gateway.limits.budgets.bodies.reserve(request.caller, size, sender)
            request.exchange.held_body = held
        else:
            held.grow(size)
    except EngineError as refusal:
        members = {"redis_error": refusal.redis, **refusal.members}
        # The rest of the body is never read.
        headers = {"connection": "close"}
        raise RefusalError(refusal.code, refusal.detail, members=members, headers=headers) from None
    if is_arriving:
        held.keep(size)


async def _rest(request: Request, message: MutableMapping[str, Any], limit: int) -> bytes:
    body = bytearray()
    held = request.exchange.held_body
    while message["type"] == "http.request":
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if held is None and len(body) > FREE_BYTES:
            # It has no length.
            _hold_body(request, limit, is_arriving=True)
            held = request.exchange.held_body
        if held is not None:
            held.received(len(body))
        if not message.get("more_body"):
            if held is not None:
                # The gateway's turn: its sender is slow no more.
                held.grow(0)
            return bytes(body)
        message = await request.receive()
    raise ClientLeftError


async def read_in_thread(
    reader: Callable[[bytes], T], body: bytes, pool: Pool, hold: Callable[[int], None]
) -> T:
    """What a thread reads of a body, for which as much is held as `BODY_COPIES` says. Where reading it takes
    more, `hold` has this many bytes held for both. Raises `body_too_large` where the pool has never as many,
    and what `hold` raises.
    """
    room = max(_THREAD_BYTES, (BODY_COPIES - 1) * len(body))
    while True:
        try:
            return await asyncio.to_thread(_within, room, reader, body)
        except NeedsRoomError as needed:
            room = needed.size
        if len(body) + room > pool.bytes_max:
            raise RefusalError("body_too_large", _TOO_MUCH)
        hold(len(body) + room)


def _within(room: int, reader: Callable[[bytes], T], body: bytes) -> T:
    strict_json.room.set(room)
    return reader(body)


def _too_large(limit: int) -> RefusalError:
    """The refusal of a longer body."""
    return RefusalError("body_too_large", f"a body has at most {limit} bytes")
