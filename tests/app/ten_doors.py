"""The ten ways in, each with the same few verbs: read, publish, delete, read for a group, wait, stay.

Knows: how each way says them, to one gateway in this process. Must never know: what is checked.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from websockets import ConnectionClosed, InvalidStatus
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from app.auth import AccessPolicy, Action, Principal, Resource
from app.auth.certificates import ClientCertificate
from app.doors.resp.listening import RespServer
from app.errors import RefusalError
from app.gateway import Gateway
from app.live.sessions import OpenSessions
from app.main import App
from app.metrics.counters import Door as Label
from app.metrics.tracing import Tracer
from app.server import http_server
from app.settings import Settings
from engine import Engine, EngineProtocol, entries
from engine.commands.types import XAdd, XGroupCreate
from tests.app.asgi_server import asgi_server
from tests.app.conftest import calling
from tests.app.policies import FixedPolicy, principal_with
from tests.app.resp.conftest import Wire
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock
from tests.fronts.joined import join

BURST: Final = 1_000_000
LONG: Final = "x" * 5_000
LATE_S: Final = 10.0
SAMPLED: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_READ: Final = ("XREAD", "STREAMS", "orders", "0")
# To read all certificates takes longer than a test.
_PLAIN: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_EVENTS: Final = {"accept": "text/event-stream"}


class FaultyPrincipal(Principal):
    """A caller whose right to one stream cannot be looked up: a bug of the gateway."""

    def may(self, action: Action, resource: Resource) -> bool:
        """Whether it may do this."""
        if resource.stream == "bad":
            raise RuntimeError("a bug")
        return super().may(action, resource)

    def require(self, action: Action, resource: Resource) -> None:
        """Raise unless it may do this."""
        if resource.stream == "bad":
            raise RuntimeError("a bug")
        super().require(action, resource)


class EndingPolicy(FixedPolicy):
    """A policy whose only caller can be revoked."""

    revoked = False

    def recognise(
        self, headers: Mapping[bytes, bytes], certificate: ClientCertificate | None = None
    ) -> Principal | None:
        return None if self.revoked else super().recognise(headers, certificate)

    async def authenticate(
        self, headers: Mapping[bytes, bytes], certificate: ClientCertificate | None = None
    ) -> Principal:
        if self.revoked:
            raise RefusalError("unauthenticated", "the caller was revoked")
        return await super().authenticate(headers, certificate)

    def is_revoked(self, principal: Principal) -> bool:
        return self.revoked

    def revoke(self, sessions: OpenSessions) -> None:
        """End what the caller has open."""
        self.revoked = True
        self.on_changed()
        sessions.revoke(lambda _: True)


class Bench:
    """A gateway with all ways in, and one caller who may not use `secret`."""

    def __init__(self, app: App, engine: EngineProtocol, policy: EndingPolicy, directory: Path) -> None:
        self.app = app
        self.gateway = app.gateway
        self.engine = engine
        self.policy = policy
        self.directory = directory
        self.resp = RespServer(app.gateway)
        app.life.on_drain.append(self.resp.drain)
        self._http = http_server(app.gateway.settings, app)
        # Knows nothing but ASGI.
        self._asgi = asgi_server(app.gateway.settings, app)
        # Listen for HTTP, once something has asked for their port.
        self._listening: dict[bool, asyncio.Server] = {}
        # What a proxy adds to each request of HTTP.
        self.headers: dict[str, str] = {}
        self.spans = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.gateway.reports.tracer = Tracer(provider, trace)

    async def port(self, *, asgi: bool = False) -> int:
        """Where HTTP is listened to, by our server or by one that knows nothing but ASGI."""
        if asgi not in self._listening:
            connect = (self._asgi if asgi else self._http).connect
            self._listening[asgi] = await asyncio.get_running_loop().create_server(connect, "127.0.0.1")
        port: int = self._listening[asgi].sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """How many there are, of all doors."""
        by_http = len(self._http.service.connections) + len(self._asgi.service.connections)
        return by_http + len(self.resp.port.sessions)

    def connection(self, address: tuple[str, int]) -> Any:
        """The protocol of HTTP whose client has this address."""
        found: set[Any] = {*self._http.service.connections}
        return next(one for one in found if one.client == address)

    async def close(self) -> None:
        """Stop."""
        await asyncio.to_thread(self.gateway.access.audit.flush)
        for listening in self._listening.values():
            listening.close()
        await self.resp.close()

    async def wire(self) -> Wire:
        """A connection to the port for Redis clients."""
        return Wire(*await asyncio.open_unix_connection(str(self.directory / "port.sock")))

    def taken(self) -> tuple[int, int]:
        """Requests and bytes that were taken from the caller's rate."""
        limiter = self.gateway.limits.rates
        assert limiter is not None
        rates, now_s = limiter.rates, self.gateway.clock.monotonic()
        assert rates.requests is not None
        assert rates.bytes is not None
        left = limiter.requests.remaining("tester", rates.requests, now_s)
        bytes_left = limiter.bytes.remaining("tester", rates.bytes, now_s)
        return round(BURST - left), round(BURST - bytes_left)

    async def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        await asyncio.to_thread(self.gateway.access.audit.flush)
        text = await asyncio.to_thread((self.directory / "audit").read_text)
        return [json.loads(line) for line in text.splitlines()]

    async def come(self, come: Callable[[], bool]) -> bool:
        """Whether this comes true soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while not come():  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.001)
        return come()


Opening = Callable[[HandClock], AbstractAsyncContextManager[EngineProtocol]]


@asynccontextmanager
async def embedded(clock: HandClock) -> AsyncIterator[EngineProtocol]:
    """An engine in this process, without a disk."""
    async with Engine.open(None, clock=clock) as engine:
        yield engine


@asynccontextmanager
async def opened(
    directory: Path,
    *,
    principal: Principal | None = None,
    access: AccessPolicy | None = None,
    opening: Opening = embedded,
    is_front: bool = False,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """A gateway that listens for HTTP and for Redis clients. Every caller is the principal; a front has its
    engine behind a connection. With `access`, callers are whom that recognises.
    """
    clock = HandClock()
    limits = Settings(
        log_requests="all",
        resp_listen=(f"unix:{directory}/port.sock",),
        audit_file=str(directory / "audit"),
        rate_requests=f"1/s burst {BURST}",
        rate_bytes=f"1/s burst {BURST}",
        drain_s_max=1,
        durable_streams=True,
        tracing=True,
        **settings,
    )
    allowed = principal_with("read,write,consume,manage:orders*", "admin:*", "manage,read:bad")
    policy = EndingPolicy(principal or FaultyPrincipal("tester", allowed.grants))
    # Its tracer is that of the bench.
    app = await asyncio.to_thread(lambda: App(Gateway(limits, clock, access or policy)))
    async with opening(clock) as engine:
        app.life.open((await join(engine)).remote if is_front else engine)
        bench = Bench(app, engine, policy, directory)
        await bench.resp.start()
        try:
            yield bench
        finally:
            await bench.close()


@asynccontextmanager
async def filled(directory: Path, **options: Any) -> AsyncIterator[Bench]:
    """The same with a stream of one long entry, and a group that has not read it."""
    async with opened(directory, **options) as bench:
        await reply_to(bench.engine, XAdd(stream="orders", bodies=[entries.body([("f", LONG)])]))
        await reply_to(bench.engine, XGroupCreate(stream="orders", group="g", start=0))
        yield bench


class Door:
    """One way in. `label` is its API in the metrics, `status` that of what is done."""

    def __init__(self, name: str, label: Label, status: int = 200) -> None:
        self.name = name
        self.label: Label = label
        self.status = status

    async def read(self, bench: Bench, *streams: str) -> str:
        """Read these streams from the beginning; gives the answer."""
        raise NotImplementedError

    async def publish(self, bench: Bench, stream: str) -> str:
        """Publish a long entry, as a part of a trace where the way in knows of them."""
        raise NotImplementedError

    async def delete(self, bench: Bench, *streams: str) -> str:
        """Delete streams, one after the other."""
        raise NotImplementedError

    async def read_for_group(self, bench: Bench, group: str = "g") -> str:
        """Read `orders` as the consumer `c` of a group."""
        raise NotImplementedError

    async def read_often(self, bench: Bench, times: int) -> None:
        """Read `orders` as often, at once where the way in has several commands."""
        for _ in range(times):
            await self.read(bench, "orders")

    async def wait(self, bench: Bench, after: str = "$") -> str:
        """Read `orders` after this ID, and wait for what is not there."""
        raise NotImplementedError

    async def wait_for_group(self, bench: Bench) -> str:
        """The same as the consumer `c` of the group."""
        raise NotImplementedError

    async def stay(self, bench: Bench, staying: Callable[[], None]) -> str:
        """Keep something open until the gateway ends it; gives what was said at the end."""
        raise NotImplementedError

    def lines(self, bench: Bench) -> list[bytes]:
        """The log of its requests that is not written yet."""
        return bench.app.exchanges._lines._lines  # noqa: SLF001

    def stop(self, bench: Bench) -> None:
        """Have the gateway stop."""
        bench.app.life.drain()


async def _until_waiting(bench: Bench, staying: Callable[[], None]) -> None:
    """Say so when a read waits."""
    assert await bench.come(lambda: bench.gateway.waits.count > 0)
    staying()


class Http(Door):
    """REST: over a socket of our own server, or through ASGI."""

    async def connect(self, bench: Bench) -> httpx.AsyncClient:
        """A client."""
        if self.name == "asgi":
            return calling(bench.app, headers=bench.headers)
        base_url = f"http://127.0.0.1:{await bench.port()}"
        return httpx.AsyncClient(base_url=base_url, verify=_PLAIN, headers=bench.headers)

    async def ask(self, bench: Bench, method: str, path: str, body: object = None) -> str:
        """Status and body of an answer."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "traceparent": SAMPLED}
        async with await self.connect(bench) as http:
            answer = await http.request(method, path, content=content, headers=headers)
        return f"{answer.status_code} {answer.text}"

    async def read(self, bench: Bench, *streams: str) -> str:
        if len(streams) > 1:
            return await self.ask(bench, "POST", "/v1/read", {"streams": dict.fromkeys(streams, "0")})
        return await self.ask(bench, "GET", f"/v1/streams/{streams[0]}/entries?after=0")

    async def publish(self, bench: Bench, stream: str) -> str:
        return await self.ask(bench, "POST", f"/v1/streams/{stream}/entries", {"fields": {"f": LONG}})

    async def delete(self, bench: Bench, *streams: str) -> str:
        paths = [f"/v1/streams/{stream}" for stream in streams]
        return "\n".join([await self.ask(bench, "DELETE", path) for path in paths])

    async def read_for_group(self, bench: Bench, group: str = "g") -> str:
        return await self.ask(bench, "POST", f"/v1/streams/orders/groups/{group}/consumers/c/read", {})

    async def wait(self, bench: Bench, after: str = "$") -> str:
        return await self.ask(bench, "GET", f"/v1/streams/orders/entries?after={after}&wait=30000")

    async def wait_for_group(self, bench: Bench) -> str:
        return await self.ask(bench, "POST", "/v1/streams/orders/groups/g/consumers/c/read", {"wait": 30_000})

    async def stay(self, bench: Bench, staying: Callable[[], None]) -> str:
        asked = asyncio.create_task(self.wait(bench))
        await _until_waiting(bench, staying)
        return await asked


class Durable(Http):
    """Durable Streams, which have one stream at each URL."""

    def _path(self, stream: str) -> str:
        return f"/v1/stream/{stream}"

    async def read(self, bench: Bench, *streams: str) -> str:
        """Of several streams one is a fork of the next."""
        if len(streams) == 1:
            return await self.ask(bench, "GET", f"{self._path(streams[0])}?offset=-1")
        async with await self.connect(bench) as http:
            headers = {"stream-forked-from": self._path(streams[1])}
            return (await http.put(self._path(f"{streams[0]}.fork"), headers=headers)).text

    async def publish(self, bench: Bench, stream: str) -> str:
        """Into one of its own."""
        await self.ask(bench, "DELETE", self._path(stream))
        await self.ask(bench, "PUT", self._path(stream))
        return await self.ask(bench, "POST", self._path(stream), LONG)

    async def delete(self, bench: Bench, *streams: str) -> str:
        return "\n".join([await self.ask(bench, "DELETE", self._path(stream)) for stream in streams])

    async def wait(self, bench: Bench, after: str = "$") -> str:
        offset = "now" if after == "$" else "-1"
        return await self.ask(bench, "GET", f"{self._path('orders')}?offset={offset}&live=long-poll")


class InWords(Door):
    """A way in for Redis's commands."""

    async def send(self, bench: Bench, *commands: Sequence[object]) -> str:
        """The answers to commands."""
        raise NotImplementedError

    async def read(self, bench: Bench, *streams: str) -> str:
        return await self.send(bench, ("XREAD", "STREAMS", *streams, *["0" for _ in streams]))

    async def read_often(self, bench: Bench, times: int) -> None:
        await self.send(bench, *[_READ] * times)

    async def publish(self, bench: Bench, stream: str) -> str:
        return await self.send(bench, ("XADD", stream, "*", "f", LONG))

    async def delete(self, bench: Bench, *streams: str) -> str:
        return await self.send(bench, *[("DEL", stream) for stream in streams])

    async def read_for_group(self, bench: Bench, group: str = "g") -> str:
        return await self.send(bench, ("XREADGROUP", "GROUP", group, "c", "STREAMS", "orders", ">"))

    async def wait(self, bench: Bench, after: str = "$") -> str:
        return await self.send(bench, _waiting(("XREAD", "STREAMS", "orders", after), 30_000))

    async def wait_for_group(self, bench: Bench) -> str:
        read = ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "orders", ">")
        return await self.send(bench, _waiting(read, 30_000))


class Commands(InWords, Http):
    """The command API: one command, several, or several as one turn."""

    _paths: Final = {"command": "", "pipeline": "/pipeline", "multi-exec": "/multi-exec"}

    async def connect(self, bench: Bench) -> httpx.AsyncClient:
        return calling(bench.app, headers=bench.headers)

    async def send(self, bench: Bench, *commands: Sequence[object]) -> str:
        path = f"/v1/commands{self._paths[self.name]}"
        bodies: list[Any] = [*commands] if self.name == "command" else [commands]
        return "\n".join([await self.ask(bench, "POST", path, body) for body in bodies])


class Sse(Http):
    """Server-sent events: of streams, and of a consumer."""

    async def events(self, bench: Bench, path: str, staying: Callable[[], None] | None = None) -> str:
        """The answer up to the first entry, or up to its end."""
        got = ""
        async with await self.connect(bench) as http, http.stream("GET", path, headers=_EVENTS) as answer:
            got = f"{answer.status_code} "
            with suppress(httpx.HTTPError):
                async for piece in answer.aiter_text():
                    got += piece
                    if "event: entry" in got or "event:entry" in got:
                        if staying is None:
                            break
                        staying()
        return got

    async def read(self, bench: Bench, *streams: str) -> str:
        names = "&".join(f"stream={stream}" for stream in streams)
        return await self.events(bench, f"/v1/tail?{names}&after=0")

    async def read_for_group(self, bench: Bench, group: str = "g") -> str:
        return await self.events(bench, f"/v1/streams/orders/groups/{group}/consumers/c/stream")

    async def wait(self, bench: Bench, after: str = "$") -> str:
        return await self.events(bench, f"/v1/tail?stream=orders&after={after}")

    async def stay(self, bench: Bench, staying: Callable[[], None]) -> str:
        return await self.events(bench, "/v1/tail?stream=orders&after=0", staying)


class WebSocket(Door):
    """Frames."""

    @asynccontextmanager
    async def talking(self, bench: Bench) -> AsyncIterator[ClientConnection]:
        """A connection that has said hello."""
        async with connect(
            f"ws://127.0.0.1:{await bench.port()}/v1/ws",
            subprotocols=[Subprotocol("weir.v1")],
            additional_headers=bench.headers,
            compression=None,
            max_size=None,
        ) as connection:
            # `hello`.
            await connection.recv()
            yield connection

    async def ask(self, bench: Bench, *sent: Mapping[str, object]) -> str:
        """The answers to frames, each up to what it asks for."""
        got = ""
        # A fault ends the connection.
        with suppress(ConnectionClosed):
            async with self.talking(bench) as connection:
                for frame in sent:
                    await connection.send(json.dumps({"ref": "r", **frame}))
                    if frame["op"] == "credit":
                        # It has no answer.
                        continue
                    last = {"error", "pong", "entries" if frame["op"] in ("subscribe", "consume") else "ok"}
                    while (text := str(await connection.recv())) and json.loads(text)["op"] not in last:
                        got += text
                    got += text
        return got

    async def read(self, bench: Bench, *streams: str) -> str:
        return await self.ask(
            bench, {"op": "subscribe", "sub": "s", "streams": dict.fromkeys(streams, "0"), "credit": 9}
        )

    async def publish(self, bench: Bench, stream: str) -> str:
        frame = {"op": "publish", "stream": stream, "fields": {"f": LONG}, "traceparent": SAMPLED}
        return await self.ask(bench, frame)

    async def send(self, bench: Bench, *commands: Sequence[object]) -> str:
        """The answers to commands."""
        return await self.ask(bench, *[{"op": "command", "command": [*words]} for words in commands])

    async def delete(self, bench: Bench, *streams: str) -> str:
        return await self.send(bench, *[("DEL", stream) for stream in streams])

    async def read_for_group(self, bench: Bench, group: str = "g") -> str:
        place = {"stream": "orders", "group": group, "consumer": "c"}
        return await self.ask(bench, {"op": "consume", "sub": "s", **place, "credit": 9})

    async def read_long(self, bench: Bench, stream: str) -> str:
        """As a command."""
        return await self.send(bench, ("XRANGE", stream, "-", "+"))

    async def stay(self, bench: Bench, staying: Callable[[], None]) -> str:
        got = ""
        try:
            async with self.talking(bench) as connection:
                staying()
                while "goaway" not in got:
                    got += str(await connection.recv())
        except ConnectionClosed as closed:
            got += str(closed)
        except InvalidStatus as refused:
            got += f"{refused.response.headers} {refused.response.body!r}"
        return got


class Redis(InWords):
    """The port for Redis clients: in one write, in a transaction, or as reads that wait."""

    async def send(self, bench: Bench, *commands: Sequence[object]) -> str:
        wire = await bench.wire()
        lines: list[tuple[Any, ...]] = [*map(tuple, commands)]
        if self.name == "RESP MULTI":
            lines = [("MULTI",), *lines, ("EXEC",)]
        elif self.name == "RESP blocked":
            lines = [_waiting(words) for words in lines]
        got = []
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            # A fault ends the connection.
            for words in lines:
                wire.send(*words)
                if self.name != "RESP":
                    got.append(str(await wire.reply()))
            if self.name == "RESP":
                got += [str(await wire.reply()) for _ in lines]
        wire.close()
        return "\n".join(got)

    async def stay(self, bench: Bench, staying: Callable[[], None]) -> str:
        with closing(await bench.wire()) as wire:
            said = str(await wire.call("AUTH", "default", "secret"))
            if said.startswith("-"):
                assert await wire.ended()
                return said
            if self.name == "RESP blocked":
                wire.send("XREAD", "BLOCK", "0", "STREAMS", "orders", "$")
                await _until_waiting(bench, staying)
            elif self.name == "RESP MULTI":
                await wire.call("MULTI")
                await wire.call("XLEN", "orders")
                staying()
            else:
                staying()
            got = ""
            async with asyncio.timeout(LATE_S):
                with suppress(ConnectionError):
                    while piece := await wire.reader.read(1_000):
                        got += piece.decode()
        return f"{got}closed"

    def lines(self, bench: Bench) -> list[bytes]:
        return bench.resp.port.log.lines._lines  # noqa: SLF001

    def stop(self, bench: Bench) -> None:
        super().stop(bench)
        bench.resp.drain()


def _waiting(words: tuple[Any, ...], block_ms: int = 1) -> tuple[Any, ...]:
    """A read with BLOCK; any other command as it is."""
    if words[0] not in ("XREAD", "XREADGROUP") or "BLOCK" in words:
        return words
    place = words.index("STREAMS")
    return (*words[:place], "BLOCK", block_ms, *words[place:])


DOORS: Final[tuple[Door, ...]] = (
    Http("http", "rest"),
    Http("asgi", "rest"),
    WebSocket("websocket", "websocket", 101),
    Sse("sse", "sse"),
    Durable("durable", "rest"),
    Commands("command", "commands"),
    Commands("pipeline", "commands"),
    Commands("multi-exec", "commands"),
    Redis("RESP", "resp"),
    Redis("RESP MULTI", "resp"),
    Redis("RESP blocked", "resp"),
)
Check = Callable[[Bench, Door], Awaitable[None]]
