"""A worker of a group, written once for each Redis client.

Knows: how each client publishes, makes a group, reads, acknowledges, claims, and loses its connection.
Must never know: what the workers are tried with.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import coredis
import glide
import redis
import redis.asyncio
from redis._parsers import _AsyncRESP2Parser, _AsyncRESP3Parser, _RESP2Parser, _RESP3Parser

HOST: Final = "127.0.0.1"
GROUP: Final = "packers"
FIELD: Final = "item"
NODE_WORKER: Final = Path(__file__).with_name("worker.mjs")
NODE_MODULES: Final = Path(__file__).parents[2] / "sdk" / "node_modules"

# IDs, and the values of FIELD.
Entries = list[tuple[str, str]]


class Worker(Protocol):
    """One client; its group is GROUP."""

    async def publish(self, stream: str, item: str) -> str:
        """Publish an entry; its ID."""

    async def create_group(self, stream: str) -> None:
        """Create the group at the stream's beginning."""

    async def read(self, stream: str, consumer: str, start: str, block_ms: int | None = None) -> Entries:
        """Read at most two entries: new ones (`>`), or the consumer's pending ones (`0`)."""

    async def claim(self, stream: str, consumer: str) -> Entries:
        """Claim everything that is pending."""

    async def acknowledge(self, stream: str, entry_id: str) -> int:
        """Acknowledge an entry; how many were pending."""

    async def pending(self, stream: str) -> int:
        """The number of pending entries."""

    async def crash(self) -> None:
        """Lose the connection."""


Open = Callable[[int], AbstractAsyncContextManager[Worker]]
READ_MAX: Final = 2


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _flat(rows: Any) -> Entries:
    """Entries as the wire has them."""
    return [(_text(entry_id), _text(fields[1])) for entry_id, fields in rows]


# ---- redis-py


class RedisPy:
    """redis-py; `run` awaits a call of the asynchronous client, and moves one of the other to a thread."""

    def __init__(self, client: Any, run: Callable[..., Any]) -> None:
        self._client = client
        self._run = run

    async def publish(self, stream: str, item: str) -> str:
        return str(await self._run(self._client.xadd, stream, {FIELD: item}))

    async def create_group(self, stream: str) -> None:
        assert await self._run(self._client.xgroup_create, stream, GROUP, "0")

    async def read(self, stream: str, consumer: str, start: str, block_ms: int | None = None) -> Entries:
        found = await self._run(self._client.xreadgroup, GROUP, consumer, {stream: start}, READ_MAX, block_ms)
        rows = found.get(stream, []) if isinstance(found, dict) else found[0][1] if found else []
        if rows and isinstance(rows[0], list):
            rows = rows[0]
        return [(entry_id, fields[FIELD]) for entry_id, fields in rows]

    async def claim(self, stream: str, consumer: str) -> Entries:
        found = await self._run(self._client.xautoclaim, stream, GROUP, consumer, 0)
        return [(entry_id, fields[FIELD]) for entry_id, fields in found[1]]

    async def acknowledge(self, stream: str, entry_id: str) -> int:
        return int(await self._run(self._client.xack, stream, GROUP, entry_id))

    async def pending(self, stream: str) -> int:
        return int((await self._run(self._client.xpending, stream, GROUP))["pending"])

    async def crash(self) -> None:
        await self._run(self._client.connection_pool.disconnect)


async def _awaited(call: Callable[..., Any], *arguments: object) -> Any:
    return await call(*arguments)


def redis_py(protocol: int, *, hiredis: bool) -> Open:
    """The synchronous client, with hiredis or with the parser in Python."""
    parser: dict[str, Any] = (
        {} if hiredis else {"parser_class": _RESP2Parser if protocol == 2 else _RESP3Parser}
    )

    @asynccontextmanager
    async def open_worker(port: int) -> AsyncIterator[Worker]:
        pool = redis.ConnectionPool(
            host=HOST, port=port, protocol=protocol, decode_responses=True, socket_timeout=30, **parser
        )
        with redis.Redis(connection_pool=pool) as client:
            yield RedisPy(client, asyncio.to_thread)
        await asyncio.to_thread(pool.disconnect)

    return open_worker


def redis_py_asyncio(protocol: int, *, hiredis: bool) -> Open:
    """The asynchronous client of the same library."""
    parser: dict[str, Any] = (
        {} if hiredis else {"parser_class": _AsyncRESP2Parser if protocol == 2 else _AsyncRESP3Parser}
    )

    @asynccontextmanager
    async def open_worker(port: int) -> AsyncIterator[Worker]:
        pool = redis.asyncio.ConnectionPool(
            host=HOST, port=port, protocol=protocol, decode_responses=True, socket_timeout=30, **parser
        )
        async with redis.asyncio.Redis(connection_pool=pool) as client:
            yield RedisPy(client, _awaited)
        await pool.disconnect()

    return open_worker


# ---- coredis


class Coredis:
    """coredis, which speaks RESP3 alone."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def publish(self, stream: str, item: str) -> str:
        return str(await self._client.xadd(stream, {FIELD: item}))

    async def create_group(self, stream: str) -> None:
        assert await self._client.xgroup_create(stream, GROUP, "0")

    async def read(self, stream: str, consumer: str, start: str, block_ms: int | None = None) -> Entries:
        found = await self._client.xreadgroup(
            GROUP, consumer, {stream: start}, count=READ_MAX, block=block_ms
        )
        return [(entry.identifier, entry.field_values[FIELD]) for entry in (found or {}).get(stream, ())]

    async def claim(self, stream: str, consumer: str) -> Entries:
        found = await self._client.xautoclaim(stream, GROUP, consumer, 0, "0-0")
        return [(entry.identifier, entry.field_values[FIELD]) for entry in found[1]]

    async def acknowledge(self, stream: str, entry_id: str) -> int:
        return int(await self._client.xack(stream, GROUP, [entry_id]))

    async def pending(self, stream: str) -> int:
        return int((await self._client.xpending(stream, GROUP)).pending)

    async def crash(self) -> None:
        """Its connection ends when its block is left."""


@asynccontextmanager
async def open_coredis(port: int) -> AsyncIterator[Worker]:
    """A worker with coredis."""
    async with coredis.Redis(HOST, port, decode_responses=True) as client:
        yield Coredis(client)


# ---- valkey-glide


class Glide:
    """valkey-glide, whose core is Rust."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def publish(self, stream: str, item: str) -> str:
        return _text(await self._client.xadd(stream, [(FIELD, item)]))

    async def create_group(self, stream: str) -> None:
        assert await self._client.xgroup_create(stream, GROUP, "0") == "OK"

    async def read(self, stream: str, consumer: str, start: str, block_ms: int | None = None) -> Entries:
        options = glide.StreamReadGroupOptions(block_ms=block_ms, count=READ_MAX)
        found = await self._client.xreadgroup({stream: start}, GROUP, consumer, options)
        return self._entries((found or {}).get(stream.encode(), {}))

    @staticmethod
    def _entries(found: Mapping[bytes, Any]) -> Entries:
        return [(_text(entry_id), _text(pairs[0][1])) for entry_id, pairs in found.items()]

    async def claim(self, stream: str, consumer: str) -> Entries:
        found = await self._client.xautoclaim(stream, GROUP, consumer, 0, "0-0")
        return self._entries(found[1])

    async def acknowledge(self, stream: str, entry_id: str) -> int:
        return int(await self._client.xack(stream, GROUP, [entry_id]))

    async def pending(self, stream: str) -> int:
        return int((await self._client.xpending(stream, GROUP))[0])

    async def crash(self) -> None:
        await self._client.close()


def valkey_glide(protocol: int) -> Open:
    """A worker with valkey-glide."""
    version = glide.ProtocolVersion.RESP2 if protocol == 2 else glide.ProtocolVersion.RESP3

    @asynccontextmanager
    async def open_worker(port: int) -> AsyncIterator[Worker]:
        settings = glide.GlideClientConfiguration(
            [glide.NodeAddress(HOST, port)], protocol=version, request_timeout=20_000
        )
        client = await glide.GlideClient.create(settings)
        try:
            yield Glide(client)
        finally:
            await client.close()

    return open_worker


# ---- redis-cli


class RedisCli:
    """redis-cli, a process for each command."""

    def __init__(self, port: int, protocol: int) -> None:
        self._program = ("redis-cli", "-h", HOST, "-p", str(port), f"-{protocol}", "--json")
        self._waiting: asyncio.subprocess.Process | None = None

    async def _run(self, *words: object) -> Any:
        process = await asyncio.create_subprocess_exec(
            *self._program, *map(str, words), stdout=asyncio.subprocess.PIPE
        )
        self._waiting = process
        out, _ = await process.communicate()
        self._waiting = None
        return json.loads(out) if out else None

    async def publish(self, stream: str, item: str) -> str:
        return str(await self._run("XADD", stream, "*", FIELD, item))

    async def create_group(self, stream: str) -> None:
        assert await self._run("XGROUP", "CREATE", stream, GROUP, "0") == "OK"

    async def read(self, stream: str, consumer: str, start: str, block_ms: int | None = None) -> Entries:
        block = () if block_ms is None else ("BLOCK", block_ms)
        words = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", READ_MAX, *block, "STREAMS", stream, start)
        found = await self._run(*words)
        return _flat(dict(found or {}).get(stream, []))

    async def claim(self, stream: str, consumer: str) -> Entries:
        return _flat((await self._run("XAUTOCLAIM", stream, GROUP, consumer, 0, "0-0"))[1])

    async def acknowledge(self, stream: str, entry_id: str) -> int:
        return int(await self._run("XACK", stream, GROUP, entry_id))

    async def pending(self, stream: str) -> int:
        return int((await self._run("XPENDING", stream, GROUP))[0])

    async def crash(self) -> None:
        if self._waiting is not None:
            self._waiting.kill()


def redis_cli(protocol: int) -> Open:
    """A worker with redis-cli."""

    @asynccontextmanager
    async def open_worker(port: int) -> AsyncIterator[Worker]:
        yield RedisCli(port, protocol)

    return open_worker


# ---- ioredis, node-redis, phpredis, redis-rb


class WorkerProcess:
    """A client of another language in a process of its own: a call is a line of JSON, so is its result."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def _call(self, *call: object) -> Any:
        assert self._process.stdin is not None, "a pipe was asked for"
        assert self._process.stdout is not None, "a pipe was asked for"
        self._process.stdin.write(json.dumps(call).encode() + b"\n")
        line = await self._process.stdout.readline()
        return json.loads(line)

    async def publish(self, stream: str, item: str) -> str:
        return str(await self._call("publish", stream, item))

    async def create_group(self, stream: str) -> None:
        assert await self._call("createGroup", stream) == "OK"

    async def read(self, stream: str, consumer: str, start: str, block_ms: int | None = None) -> Entries:
        found = await self._call("read", stream, consumer, start, block_ms)
        return [(entry_id, item) for entry_id, item in found]

    async def claim(self, stream: str, consumer: str) -> Entries:
        return [(entry_id, item) for entry_id, item in await self._call("claim", stream, consumer)]

    async def acknowledge(self, stream: str, entry_id: str) -> int:
        return int(await self._call("acknowledge", stream, entry_id))

    async def pending(self, stream: str) -> int:
        return int(await self._call("pending", stream))

    async def crash(self) -> None:
        self._process.kill()


def in_process(*program: str) -> Open:
    """A worker whose program gets the port as its last argument."""

    @asynccontextmanager
    async def open_worker(port: int) -> AsyncIterator[Worker]:
        process = await asyncio.create_subprocess_exec(
            *(*program, str(port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield WorkerProcess(process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    return open_worker


KINDS: Final[Mapping[str, Open]] = {
    **{
        f"redis-py{kind}, RESP{protocol}, {'hiredis' if hiredis else 'its own parser'}": make(
            protocol, hiredis=hiredis
        )
        for kind, make in (("", redis_py), (" asyncio", redis_py_asyncio))
        for protocol in (2, 3)
        for hiredis in (True, False)
    },
    "coredis": open_coredis,
    **{f"valkey-glide, RESP{protocol}": valkey_glide(protocol) for protocol in (2, 3)},
    **{
        f"{library}, RESP{protocol}": in_process(
            "node", str(NODE_WORKER), str(NODE_MODULES), library, str(protocol)
        )
        for library in ("ioredis", "redis")
        for protocol in (2, 3)
    },
    **{f"redis-cli, RESP{protocol}": redis_cli(protocol) for protocol in (2, 3)},
}
# Debian's packages, which the gate does not install: php-redis, php-cli and ruby-redis.
KINDS_BY_HAND: Final[Mapping[str, Open]] = {
    program: in_process(program, str(Path(__file__).with_name(f"worker.{suffix}")))
    for program, suffix in (("php", "php"), ("ruby", "rb"))
}
