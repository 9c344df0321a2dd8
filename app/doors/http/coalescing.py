"""Requests to publish one entry, which are stored with those of other connections: see `app.live.adds`.

Knows: which bodies may be read together, how each request is answered. Must never know: how bytes leave.

This is the one operation that the fast path answers by itself, see docs/decisions/coalesced-publishes.md: the
route of a single entry would read, store and answer the same, at more than twice the cost.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Final, Protocol
from urllib.parse import quote

from app.doors.http.plain_requests import REMEMBERED_MAX
from app.errors import RefusalError, to_refusal
from app.gateway import Gateway, Phase
from app.http.entries import entry_bodies
from app.http.entries.line_bodies import ENVELOPE_STARTS
from app.http.media import NDJSON, MediaType
from app.http.responses import Response, refuse
from app.live.adds import Answers, Coalescer
from engine import CommandEngine, EngineError, ids

_LINES: Final = MediaType(NDJSON, NDJSON)
# Larger entries would gain nothing.
_ENTRY_BYTES_MAX: Final = 16 << 10


class PendingPublish(Protocol):
    """A request to publish one entry, which waits for its answer."""

    request_id: str
    body: bytes

    def serve(self) -> None:
        """Serve it by its route."""

    def finish(self, response: Response) -> None:
        """Answer it."""

    def finish_entry(self, location: bytes, entry_id: bytes) -> None:
        """Answer that the entry is stored; `location` are headers that end with the entry's ID."""


class PublishCoalescer(Coalescer[PendingPublish]):
    """Has the publishes of one loop cycle stored together.

    Bodies are parsed together, at the end of the cycle. Only a body of one line that begins as an entry does
    is taken. If one turns out to be anything else than a plain entry, or if the command is refused (which
    changes nothing), each request is served by its route.
    """

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway

    def add(self, pending: PendingPublish, stream: str) -> bool:
        """Publish it with others. Returns False, and does nothing, if it must be served alone."""
        gateway, body = self._gateway, pending.body
        if not body.startswith(ENVELOPE_STARTS) or b"\n" in body or len(body) > _ENTRY_BYTES_MAX:
            return False
        try:
            engine = gateway.engine
        except RefusalError:
            return False
        self._collect(engine, stream, pending, 1, len(body))
        return True

    def _bodies(self, clients: Sequence[PendingPublish]) -> Sequence[bytes] | None:
        """Parse all as the lines of one body; None unless each is one entry without an ID."""
        gateway = self._gateway
        if gateway.phase is not Phase.READY:
            return None
        try:
            lines = b"\n".join([one.body for one in clients])
            published = entry_bodies.read(lines, _LINES, gateway.limits.entries)
        except (RefusalError, EngineError):
            return None
        return published.bodies if len(published.bodies) == len(clients) and not published.ids else None

    def _answers(
        self, engine: CommandEngine, stream: str, clients: Sequence[PendingPublish], added: Sequence[int]
    ) -> Answers:
        location = _location(stream, engine.durability)

        def finish(one: PendingPublish, entry_id: int) -> None:
            one.finish_entry(location, b"%d-%d" % divmod(entry_id, 1 << ids.SEQUENCE_BITS))

        stored = map(finish, clients, added)
        rest = clients[len(added) :]
        return chain(stored, map(_serve, rest)) if rest else stored

    def _refusals(
        self,
        engine: CommandEngine,
        stream: str,
        clients: Sequence[PendingPublish],
        refusal: EngineError | None,
    ) -> Answers:
        if refusal is None or not (refusal.code == "internal" or "outcome" in refusal.members):
            return map(_serve, clients)
        # One of them may have caused the fault, or a backend may have stored them: none is tried again.
        return map(partial(_refuse, refusal), clients)


def _refuse(refusal: EngineError, one: PendingPublish) -> None:
    one.finish(refuse(to_refusal(refusal), one.request_id))


def _serve(one: PendingPublish) -> None:
    one.serve()


@lru_cache(REMEMBERED_MAX)
def _location(stream: str, durability: str) -> bytes:
    """The headers of an entry's durability and of its location, up to its ID."""
    path = f"/v1/streams/{quote(stream, safe='')}/entries/"
    return f"weir-durability: {durability}\r\nlocation: {path}".encode()
