"""Requests that join others of their kind as ways in: their heads were seen, and they are one command.

Knows: how a head comes to be kept, and that the next entry is served by its plan. Must never know: what is
checked.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from engine import ids
from engine.commands.types import Cursor, XAdd, XReadGroup
from engine.entries import body
from tests.app.http_requests import post
from tests.app.ten_doors import LATE_S, LONG, Bench, Door, Durable
from tests.engine.asking import reply_to

_SHORT: Final = "1"
# IDs to acknowledge, behind all that is given by the clock.
_FIRST: Final = 9_000_000_000_000
_PENDING: Final = 500
_ID_BYTES: Final = len('"9000000000000-0"')


class JoiningDoor(Door):
    """Requests for `orders`. They do one thing: to read a stream is to publish into it, or to acknowledge."""

    def opened(self, bench: Bench) -> AbstractAsyncContextManager[Any]:
        """A connection on which the head of the next entry is known."""
        raise NotImplementedError

    async def add(self, wire: Any, stream: str, value: str) -> str:
        """The answer to an entry."""
        raise NotImplementedError

    async def read(self, bench: Bench, *streams: str) -> str:
        async with self.opened(bench) as wire:
            return "\n".join([await self.add(wire, stream, _SHORT) for stream in streams])

    async def publish(self, bench: Bench, stream: str) -> str:
        async with self.opened(bench) as wire:
            return await self.add(wire, stream, LONG)

    async def read_often(self, bench: Bench, times: int) -> None:
        async with self.opened(bench) as wire:
            before, _ = bench.taken()
            for _ in range(times):
                await self.add(wire, "orders", _SHORT)
            # Not those behind which the head is known.
            assert bench.taken()[0] == before + times

    async def stay(self, bench: Bench, staying: Callable[[], None]) -> str:
        stamp = bench.gateway.stamp
        async with self.opened(bench) as wire:
            before = stamp.value
            staying()
            assert await bench.come(lambda: stamp.value != before)
            return await self.add(wire, "orders", _SHORT)


class JoiningPublish(JoiningDoor):
    """POST on one connection."""

    @asynccontextmanager
    async def opened(self, bench: Bench) -> AsyncIterator[Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", await bench.port())
        try:
            await self.prepare(bench)
            # A host and a head are known only behind the first requests with them.
            for _ in range(3):
                await self.add((reader, writer), "orders", _SHORT)
            heads = bench.connection(writer.get_extra_info("sockname"))._heads  # noqa: SLF001
            assert heads.find(self.asked("orders", _SHORT), 0) is not None
            yield reader, writer
        finally:
            writer.close()

    async def prepare(self, bench: Bench) -> None:
        """Have `orders`, if that is needed."""

    def asked(self, stream: str, value: str) -> bytes:
        """The request to add an entry."""
        return post(f"/v1/streams/{stream}/entries", b'{"fields":{"f":"%b"}}' % value.encode())

    async def add(self, wire: Any, stream: str, value: str) -> str:
        reader, writer = wire
        writer.write(self.asked(stream, value))
        async with asyncio.timeout(LATE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
            body = await reader.readexactly(length)
        return f"{head[9:12].decode()} {body.decode()}"


class JoiningAppend(JoiningPublish):
    """POST to a stream of Durable Streams, on one connection."""

    async def prepare(self, bench: Bench) -> None:
        door = Durable("durable", "rest")
        await door.delete(bench, "orders")
        await door.ask(bench, "PUT", "/v1/stream/orders")

    def asked(self, stream: str, value: str) -> bytes:
        return post(f"/v1/stream/{stream}", b'"%b"' % value.encode())


class JoiningAck(JoiningPublish):
    """POST of IDs to acknowledge, on one connection."""

    def __init__(self, name: str, label: Any, status: int) -> None:
        super().__init__(name, label, status)
        self._ids = iter(range(1, _PENDING))

    async def prepare(self, bench: Bench) -> None:
        new = [ids.make(number, 0) for number in range(_FIRST, _FIRST + _PENDING)]
        self._ids = iter(range(_FIRST, _FIRST + _PENDING))
        await reply_to(bench.engine, XAdd(stream="orders", bodies=[body([("f", "1")])] * _PENDING, ids=new))
        read = XReadGroup(group="g", consumer="c", streams=[("orders", Cursor.NEW)])
        await reply_to(bench.engine, read)

    def asked(self, stream: str, value: str) -> bytes:
        number = 1 if value == _SHORT else len(LONG) // _ID_BYTES
        named = b",".join([b'"%d-0"' % next(self._ids) for _ in range(number)])
        return post(f"/v1/streams/{stream}/groups/g/ack", b'{"ids":[%b]}' % named)


JOINING_DOORS: Final[tuple[Door, ...]] = (
    JoiningPublish("publishing together", "rest", 201),
    JoiningAppend("appending together", "rest", 204),
    JoiningAck("acknowledging together", "rest", 200),
)
