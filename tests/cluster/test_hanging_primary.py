"""A primary hangs, its connections stay, and its replica takes over: clients that follow go on there."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from engine.cluster.keys import SLOTS, slot_of
from tests.cluster.clusters import cluster
from tests.cluster.many_tails import Tail, until
from tests.server import Server
from tests.waiting import until as servers_until
from weir import AsyncClient

STREAM: Final = "followed"
SOON_S: Final = 60.0
RETRY_S: Final = 0.1


class Socket:
    """Follows over a WebSocket, from `next` of the last frame on, as docs/websocket.md has it."""

    def __init__(self, port: int) -> None:
        self.seen: list[str] = []
        self.closes: list[tuple[int, str] | None] = []
        self._url = f"ws://127.0.0.1:{port}/v1/ws"
        self._cursor = "0"

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._read()
            except ConnectionClosed as closed:
                self.closes.append(None if closed.rcvd is None else (closed.rcvd.code, closed.rcvd.reason))
            except InvalidStatus:
                pass
            await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        async with connect(self._url) as socket:
            begin = {"op": "subscribe", "ref": 1, "sub": "s", "streams": {STREAM: self._cursor}}
            await socket.send(json.dumps(begin))
            async for text in socket:
                frame = json.loads(text)
                if frame["op"] == "error":
                    assert frame["problem"]["code"] == "backend_unavailable"
                    return
                if frame["op"] == "entries":
                    self.seen += [entry["id"] for entry in frame["entries"]]
                    self._cursor = frame["next"]


async def follow(client: AsyncClient, seen: list[str]) -> None:
    async for entry in client.tail(STREAM, after="0"):
        seen.append(entry.id)  # noqa: PERF401 - seen while it goes on


@asynccontextmanager
async def followed(port: int, client: AsyncClient) -> AsyncIterator[tuple[Tail, Socket, list[str]]]:
    """One of each kind, and what the SDK's tail has seen."""
    events, socket, seen = Tail(port, STREAM), Socket(port), list[str]()
    work = (events.follow(), socket.follow(), follow(client, seen))
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield events, socket, seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_who_follows_comes_back_to_the_server_that_took_over(tmp_path: Path) -> None:
    """Event streams end with `backend_unavailable` and come back, sockets stay. No entry is missed or comes
    twice.
    """
    with cluster(tmp_path) as shards:
        for server in (one for shard in shards for one in shard.servers):
            # The replica takes over later than a read is given up.
            server.call("CONFIG", "SET", "cluster-node-timeout", 2_000)
        seeds = ",".join(str(shard.servers[0].address) for shard in shards)
        settings = ("backend_durability=memory", "backend_timeout_ms=500")
        words = [
            "--backend",
            f"redis+cluster://{seeds}",
            *(word for one in settings for word in ("--set", one)),
            *("--bound", "backend_poll_s=1"),
        ]
        primary, replica = shards[slot_of(STREAM.encode()) * len(shards) // SLOTS].servers
        with Server(tmp_path / "gateway", *words) as gateway:
            async with AsyncClient(gateway.url, retry_s=SOON_S) as client:
                added: list[str] = []

                async def add() -> None:
                    added.extend((await client.publish(STREAM, {"n": "1"})).ids)
                    await until(lambda: all(seen == added for seen in each), SOON_S)
                    assert [events.seen, socket.seen, seen] == [added] * 3

                async with followed(gateway.port, client) as (events, socket, seen):
                    each = (events.seen, socket.seen, seen)
                    await add()
                    assert primary.call("WAIT", 1, 5_000) == 1
                    primary.pause()
                    await asyncio.to_thread(
                        servers_until, lambda: replica.call("ROLE")[0] == b"master", "the replica takes over"
                    )
                    await until(lambda: bool(events.ends), SOON_S)
                    await add()
                    await add()
        # Who comes back before the replica has taken over may be refused, as a socket's handshake may.
        assert {reason for reason, _ in events.ends} - {"status 503"} == {"backend_unavailable"}
        assert socket.closes == []
