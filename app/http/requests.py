"""One request, as the operations see it.

Knows: headers, bodies and their limit, the way to the engine. Must never know: what an operation does.
"""

import asyncio
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel

from app import auth
from app.auth import UNAUTHENTICATED, Action, Principal, Resource
from app.auth.policy import unauthenticated
from app.errors import RefusalError
from app.gateway import ClientLeftError, Gateway, Receive
from app.http import media
from app.http.media import MediaType, Preferences
from app.http.responses import Header, Response, Scope
from app.live import in_flight
from engine import EngineError, EngineProtocol
from engine.commands import Command, XReadGroup
from engine.replies import Reply

T = TypeVar("T")

# In a request's state: its Host is not served here; it learns no more than whether the gateway is well.
STRANGER: Final = "stranger"

# A body of this size takes about ten milliseconds to read: larger ones are read in a thread.
_INLINE_BYTES_MAX: Final = 1 << 20
_TICKET: Final = b"ticket="


class Request:
    """One request. `names` are the path's decoded segments by their names in the route."""

    __slots__ = ("_engine", "gateway", "headers", "names", "principal", "receive", "scope")

    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, names: Mapping[str, str]) -> None:
        self.gateway = gateway
        self.scope = scope
        self.receive = receive
        self.names = names
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.principal: Principal = UNAUTHENTICATED
        self._engine: EngineProtocol | None = None

    @property
    def engine(self) -> EngineProtocol:
        """The engine: the same from the first use to the answer. Raises `starting`, `draining`."""
        if self._engine is None:
            self._engine = self.gateway.engine
        return self._engine

    def check_ready(self) -> None:
        """Raise `starting` or `draining` before anything is read."""
        _ = self.engine

    @property
    def query(self) -> bytes:
        """The query string as it came."""
        query: bytes = self.scope["query_string"]
        return query

    @property
    def request_id(self) -> str:
        """As in the response and in the log."""
        request_id: str = self.scope["state"]["request_id"]
        return request_id

    @property
    def is_stranger(self) -> bool:
        """Whether it came under a Host that is not served here, as probes may."""
        return STRANGER in self.scope["state"]

    @property
    def media_type(self) -> MediaType:
        """The body's. Raises `unsupported_media_type`."""
        return media.content_type(
            self.headers.get(b"content-type", b""), self.headers.get(b"content-encoding", b"")
        )

    def asks_for_events(self, offered: Sequence[str]) -> bool:
        """Whether it is an EventSource that asks, of a route with these media types."""
        return bool(offered) and media.asks_for_events(self.headers.get(b"accept", b""), offered)

    async def authenticate(self, *, tickets: Sequence[str] = ()) -> None:
        """Recognise the caller, by a ticket if there is one. Raises `unauthenticated`."""
        if not tickets:
            self.principal = await self.gateway.policy.authenticate(self.headers)
            return
        origin = self.headers.get(b"origin", b"").decode("latin-1")
        principal = self.gateway.tickets.redeem(tickets[0], origin)
        if principal is None:
            raise unauthenticated(
                "the ticket is unknown, was used, has ended or is for another origin", "invalid_token"
            )
        self.principal = principal

    @property
    def query_tickets(self) -> Sequence[str]:
        """The tickets in the query."""
        if _TICKET not in self.query:
            return ()
        return parse_qs(self.query.decode("latin-1")).get("ticket", ())

    def require(
        self, action: Action, stream: str | None, group: str | None = None, consumer: str | None = None
    ) -> None:
        """Raise `forbidden` unless the caller may do this."""
        auth.require(self.principal, action, Resource(stream, group, consumer))

    def may_read(self, stream: str) -> bool:
        """Whether the caller may see the stream."""
        return self.principal.may(Action.READ, Resource(stream))

    async def body(self) -> bytes:
        """The whole body. Raises `body_too_large` as early as it can be known, ClientLeftError."""
        limit = self.gateway.settings.body_bytes_max
        announced = self.headers.get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > limit:
            raise _too_large(limit)
        message = await self.receive()
        if not message.get("more_body") and message["type"] == "http.request":
            whole: bytes = message.get("body", b"")
            if len(whole) > limit:
                raise _too_large(limit)
            return whole
        return await self._rest(message, limit)

    async def _rest(self, message: MutableMapping[str, Any], limit: int) -> bytes:
        body = bytearray()
        while message["type"] == "http.request":
            body += message.get("body", b"")
            if len(body) > limit:
                raise _too_large(limit)
            if not message.get("more_body"):
                return bytes(body)
            message = await self.receive()
        raise ClientLeftError

    async def read(self, reader: Callable[[bytes], T], inline_bytes_max: int = _INLINE_BYTES_MAX) -> T:
        """`reader` of the body; a large body is read in a thread, so that others are served meanwhile."""
        body = await self.body()
        return reader(body) if len(body) <= inline_bytes_max else await asyncio.to_thread(reader, body)

    @property
    def preferences(self) -> Preferences:
        """What Prefer asks for."""
        return media.preferences(self.headers.get(b"prefer", b""))

    async def write(self, *commands: Command) -> list[Reply]:
        """Run commands that change something as one turn; on disk before the answer where Prefer says so."""
        synced = self.preferences.synced
        if len(commands) == 1:
            replies = [await self.execute(commands[0], synced=synced)]
        else:
            replies = await self.transaction(commands, synced=synced)
        self.gateway.leases.settled(self.names.get("stream", ""))
        return replies

    def respond(self, status: int, body: bytes | BaseModel = b"", headers: Sequence[Header] = ()) -> Response:
        """Make the response of a change: it says how safe the change is."""
        if isinstance(body, BaseModel):
            body = body.__pydantic_serializer__.to_json(body)
        synced = self.preferences.synced
        safe = b"fsync" if synced else self.engine.durability.encode()
        applied = [(b"preference-applied", b"durability=fsync")] if synced else []
        return Response(status, body, [(b"weir-durability", safe), *applied, *headers])

    @staticmethod
    def respond_accepted(body: BaseModel, path: str) -> Response:
        """Make the response of a request that began something: its state is at `path`."""
        return Response(202, body.__pydantic_serializer__.to_json(body), [(b"location", path.encode())])

    async def execute(self, command: Command, *, synced: bool = False) -> Reply:
        """Run one command. A read that waits ends when the client leaves."""
        if getattr(command, "block_ms", None) is None:
            return await self.engine.execute(command, synced=synced)
        if not isinstance(command, XReadGroup):
            work = self.engine.execute(command, synced=synced)
            return await self.gateway.wait(work, self.receive, self.principal)
        until: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work = self.engine.execute(command, synced=synced, until=until)
        give_back = partial(self.give_back, command)
        return await self.gateway.wait(work, self.receive, self.principal, until, give_back)

    def give_back(self, command: XReadGroup, reply: Reply) -> None:
        """Return new entries that the client never gets: it has left."""
        for one in in_flight.give_back(command, reply):
            # Each by itself: a large one takes several turns, which a transaction may not.
            self.engine.submit([one], lambda _: None)
            self.gateway.leases.settled(one.stream)

    async def run(self, commands: Sequence[Command]) -> list[Reply]:
        """One command, which may wait, or several as one turn."""
        if len(commands) == 1:
            return [await self.execute(commands[0])]
        return await self.transaction(commands)

    async def transaction(self, commands: Sequence[Command], *, synced: bool = False) -> list[Reply]:
        """Run commands as one turn; the first refusal among them is raised."""
        replies: list[Reply] = []
        for reply in await self.engine.transaction(commands, synced=synced):
            if isinstance(reply, EngineError):
                raise reply
            replies.append(reply)
        return replies


def _too_large(limit: int) -> RefusalError:
    return RefusalError("body_too_large", f"a body has at most {limit} bytes")
