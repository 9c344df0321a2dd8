"""Joins single entries of many connections, published within one loop cycle: one command a stream.

Knows: how such entries are parsed together, stored together and answered one by one.
Must never know: how bytes arrive and leave.

This is the one operation that the fast path answers by itself, see docs/decisions/coalesced-publishes.md: the
route of a single entry would read, store and answer the same, at more than twice the cost.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final, Protocol
from urllib.parse import quote

from app.doors.http.inline import Replies
from app.doors.http.plain_requests import REMEMBERED_MAX
from app.errors import RefusalError, to_refusal
from app.gateway import Gateway, Phase
from app.http.entries import entry_bodies
from app.http.entries.entry_bodies import ENVELOPE_STARTS, ParsedEntries
from app.http.media import NDJSON, MediaType
from app.http.middleware.request_id import as_refusal
from app.http.responses import Response, refuse
from engine import EngineError, ids
from engine.commands import XAdd
from engine.replies import Added

_LINES: Final = MediaType(NDJSON, NDJSON)
# Bytes that are parsed and stored at once, except for the last request. Larger entries would gain nothing.
_BYTES_MAX: Final = 256 << 10
_ENTRY_BYTES_MAX: Final = 16 << 10


class PendingPublish(Protocol):
    """A request to publish one entry, which waits for its answer."""

    request_id: str
    body: bytes

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next cycle of the loop."""

    def serve(self) -> None:
        """Serve it by its route."""

    def finish(self, response: Response) -> None:
        """Answer it."""

    def finish_entry(self, location: bytes, entry_id: bytes) -> None:
        """Answer that the entry is stored; `location` are headers that end with the entry's ID."""


class PublishCoalescer:
    """Collects the publishes of one loop cycle, and runs them together.

    Bodies are parsed together, at the end of the cycle. Only a body of one line that begins as an entry does
    is collected. If one turns out to be anything else than a plain entry, or if the command is refused (which
    changes nothing), each request is served by its route.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._streams: dict[str, list[PendingPublish]] = {}
        self._bytes = 0

    def add(self, pending: PendingPublish, stream: str) -> bool:
        """Publish it with others. Returns False, and does nothing, if it must be served alone."""
        body = pending.body
        if not body.startswith(ENVELOPE_STARTS) or b"\n" in body or len(body) > _ENTRY_BYTES_MAX:
            return False
        if not self._streams:
            pending.call_soon(self._publish)
        self._streams.setdefault(stream, []).append(pending)
        self._bytes += len(body)
        if self._bytes > _BYTES_MAX:
            self._publish()
        return True

    def _publish(self) -> None:
        streams, self._streams, self._bytes = self._streams, {}, 0
        for stream, pending in streams.items():
            self._publish_into(stream, pending)

    def _publish_into(self, stream: str, pending: Sequence[PendingPublish]) -> None:
        gateway = self._gateway
        published = self._read(pending)
        if published is None or gateway.phase is not Phase.READY:
            self._serve_each(pending)
            return
        command = XAdd(stream=stream, bodies=published.bodies)
        try:
            # Before it is submitted: when the answer comes the gateway may drain.
            location = _location(stream, gateway.engine.durability)
            gateway.engine.submit((command,), partial(self._answer, location, pending))
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
            for one in pending:
                one.finish(refuse(as_refusal(error, one.request_id), one.request_id))

    def _read(self, pending: Sequence[PendingPublish]) -> ParsedEntries | None:
        """Parse all bodies as the lines of one; None unless each is one entry without an ID."""
        lines = b"\n".join([one.body for one in pending])
        try:
            published = entry_bodies.read(lines, _LINES, self._gateway.entry_limits)
        except (RefusalError, EngineError):
            return None
        return published if len(published.bodies) == len(pending) and not published.ids else None

    def _answer(self, location: bytes, pending: Sequence[PendingPublish], replies: Replies) -> None:
        (reply,) = replies
        if isinstance(reply, EngineError) and (reply.code == "internal" or "outcome" in reply.members):
            # One of them may have caused the fault, or a backend may have stored them: none is tried again.
            for one in pending:
                one.finish(refuse(to_refusal(reply), one.request_id))
        elif isinstance(reply, Added):
            for one, entry_id in zip(pending, reply.ids, strict=True):
                one.finish_entry(location, b"%d-%d" % divmod(entry_id, 1 << ids.SEQUENCE_BITS))
        else:
            self._serve_each(pending)

    def _serve_each(self, pending: Sequence[PendingPublish]) -> None:
        for one in pending:
            one.serve()


@lru_cache(REMEMBERED_MAX)
def _location(stream: str, durability: str) -> bytes:
    """The headers of an entry's durability and of its location, up to its ID."""
    path = f"/v1/streams/{quote(stream, safe='')}/entries/"
    return f"weir-durability: {durability}\r\nlocation: {path}".encode()
