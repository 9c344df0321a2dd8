"""Answers in the coding that their client accepts, for all that comes through the application.

Knows: whole answers and those sent in pieces. Must never know: routes, which codings there are.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from app.gateway import Receive
from app.http.middleware import codings
from app.http.middleware.request_id import ASGI
from app.http.responses import GONE_EXTENSION, UNSENT_STATE, Scope, Send


class Codings:
    """Compresses large answers in a thread, so that others are served meanwhile."""

    def __init__(self, app: ASGI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accept = b",".join([value for name, value in scope["headers"] if name == b"accept-encoding"])
        is_head = scope["method"] == "HEAD"
        await self._app(scope, receive, _Coded(send, codings.accepted(accept), scope, is_head=is_head))


class _Coded:
    __slots__ = ("_chosen", "_compressor", "_is_head", "_scope", "_send", "_start")

    def __init__(self, send: Send, chosen: codings.Coding | None, scope: Scope, *, is_head: bool) -> None:
        self._send = send
        self._scope = scope
        self._chosen = chosen
        self._is_head = is_head
        self._compressor: codings.Compressor | None = None
        # The head of a whole answer waits for its length.
        self._start: MutableMapping[str, Any] | None = None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._compressor is not None and message["type"] == "http.response.body":
            await self._pass_on(message, self._compressor)
        else:
            await self._send(message)

    async def _begin(self, message: MutableMapping[str, Any]) -> None:
        headers = message["headers"]
        if not codings.gains(headers):
            await self._send(message)
        elif self._chosen is None:
            await self._send({**message, "headers": codings.varied(headers)})
        elif self._is_head:
            await self._send({**message, "headers": codings.coded(headers, self._chosen, None)})
        else:
            self._compressor = codings.compressor(self._chosen)
            self._start = message

    async def _pass_on(self, message: MutableMapping[str, Any], compressor: codings.Compressor) -> None:
        more = message.get("more_body", False)
        piece = message.get("body", b"")
        body = await asyncio.to_thread(_piece, compressor, piece, is_last=not more)
        if self._start is not None:
            assert self._chosen is not None, "there is a compressor"
            start, self._start = self._start, None
            if self._is_taken_back():
                return
            headers = codings.coded(start["headers"], self._chosen, None if more else len(body))
            await self._send({**start, "headers": headers})
        await self._send({**message, "body": body})

    def _is_taken_back(self) -> bool:
        """Whether the client left while its answer was compressed: what it was to get has gone back."""
        unsent = self._scope["state"].get(UNSENT_STATE)
        gone = self._scope.get("extensions", {}).get(GONE_EXTENSION)
        if unsent is None or gone is None or not gone():
            return False
        unsent()
        return True


def _piece(compressor: codings.Compressor, piece: bytes, *, is_last: bool) -> bytes:
    return compressor.compress(piece) + (compressor.flush() if is_last else b"")
