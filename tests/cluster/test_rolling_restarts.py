"""Two gateways over one server are restarted one after the other, under load: clients of both go on.

clients ──► a port of each gateway, or one port for both ──► gateways ──► server
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import cycle, pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.servers import BackendServer
from tests.server import Server
from tests.waiting import until_async
from weir import AsyncClient, Delivery, Worker

STREAM: Final = "jobs"
# Of each gateway.
RESTARTS: Final = 1
PUBLISHED_BETWEEN: Final = 60
DONE_S_MAX: Final = 120.0


def order(entry: str) -> tuple[int, ...]:
    """What IDs are compared by."""
    return tuple(map(int, entry.split("-")))


class Balancer:
    """Gives the connections that come to one port to gateways in turn, without looking into them."""

    def __init__(self, servers: Sequence[Server]) -> None:
        # How many connections the gateway at each port has got.
        self.given: Counter[int] = Counter()
        self._ports = [server.port for server in servers]
        self._turns = cycle(self._ports)
        self._open = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Its URL. All connections have ended after that."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as listener:
            yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            await until_async(lambda: not self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            there, back = await self._connect()
            await asyncio.gather(_forward(reader, back), _forward(there, writer))
        except OSError:
            # No gateway listens.
            writer.close()
        finally:
            self._open -= 1

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the next gateway that listens. Raises ConnectionRefusedError."""
        for port in (next(self._turns) for _ in self._ports):
            with suppress(ConnectionRefusedError):
                found = await asyncio.open_connection("127.0.0.1", port)
                self.given[port] += 1
                return found
        raise ConnectionRefusedError


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one of both ends is over, and then both are."""
    try:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


class Clients:
    """Clients of one gateway: a publisher, a tail, and two workers of one group."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.published: list[str] = []
        self.tailed: list[str] = []
        self.handled: Counter[str] = Counter()
        self.is_over = False
        self._client = client
        url = client.url
        self._workers = [
            Worker(url, STREAM, group="g", consumer=f"socket-{name}", via="websocket", credit=10),
            Worker(url, STREAM, group="g", consumer=f"poll-{name}", via="long-poll", credit=10),
        ]

    async def publish(self) -> None:
        """Batches, until it is over. A retry goes under the key of its batch."""
        while not self.is_over:
            done = await self._client.publish_batch(STREAM, [{"n": n} for n in range(3)])
            self.published += done.ids

    async def tail(self) -> None:
        """All entries, those of the other gateway too."""
        async for entry in self._client.tail(STREAM, after="0"):
            self.tailed.append(entry.id)

    async def work(self) -> None:
        """Until `end`."""
        await asyncio.gather(*(one.run(self._handle, stop_on=()) for one in self._workers))

    async def _handle(self, delivery: Delivery) -> None:
        self.handled[delivery.entry.id] += 1

    async def is_settled(self) -> bool:
        """Whether the group has nothing left."""
        info = await self._client.group(STREAM, "g").info()
        return info["pending"] == 0 and info["lag"] == 0

    def end(self) -> None:
        """Stop the workers."""
        for one in self._workers:
            one.stop()


async def restart_each(servers: list[Server], clients: list[Clients]) -> None:
    """One after the other, while both publishers get on."""
    for _ in range(RESTARTS):
        for server in servers:
            before = [len(one.published) for one in clients]
            while any(  # noqa: ASYNC110 - other processes do it
                len(one.published) < count + PUBLISHED_BETWEEN
                for one, count in zip(clients, before, strict=True)
            ):
                await asyncio.sleep(0.02)
            assert await asyncio.to_thread(server.stop) == 0
            await asyncio.to_thread(server.start)


@pytest.mark.parametrize("is_one_port", [False, True])
async def test_clients_lose_nothing_over_restarts_of_each_gateway(
    tmp_path: Path, *, is_one_port: bool
) -> None:
    """Each entry is published once, tailed once at both in order, and handled; none stays pending."""
    with BackendServer(tmp_path, "valkey") as backend:
        words = ("--backend", backend.url, "--set", "log_requests=none")
        with Server(tmp_path / "one", *words) as one, Server(tmp_path / "other", *words) as other:
            balancer = Balancer([one, other])
            async with AsyncExitStack() as stack, asyncio.timeout(DONE_S_MAX):
                url = await stack.enter_async_context(balancer.listening())
                urls = [url, url] if is_one_port else [one.url, other.url]
                tasks = await stack.enter_async_context(asyncio.TaskGroup())
                opened = [await stack.enter_async_context(AsyncClient(url)) for url in urls]
                clients = [Clients(client, f"{n}") for n, client in enumerate(opened)]
                tails = [tasks.create_task(each.tail()) for each in clients]
                for each in clients:
                    tasks.create_task(each.work())
                publishing = [tasks.create_task(each.publish()) for each in clients]
                await restart_each([one, other], clients)
                for each in clients:
                    each.is_over = True
                await asyncio.wait(publishing)
                published = sorted([one for each in clients for one in each.published], key=order)
                for each in clients:
                    while len(each.tailed) < len(published) or not await each.is_settled():  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                for tail in tails:
                    tail.cancel()
                for each in clients:
                    each.end()
    assert all(before < after for before, after in pairwise(map(order, published)))
    rows = {str(entry) for each in clients for entry in each.handled}
    assert rows == set(published)
    assert [each.tailed for each in clients] == [published, published]
    assert len(balancer.given) == (2 if is_one_port else 0)
