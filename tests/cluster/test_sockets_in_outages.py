"""The backend is away for a while: sockets stay open, say so once, and go on with every entry."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.cluster.many_tails import until
from tests.cluster.servers import BackendServer
from tests.server import Server
from weir import AsyncClient

STREAM: Final = "s"
SOON_S: Final = 30.0
SETTINGS: Final = (
    "--set",
    "backend_timeout_ms=500",
    "--bound",
    "backend_poll_s=1",
    "--set",
    "log_requests=none",
)
# What the server acknowledges is still there after a kill.
KEEPS: Final = ("--appendonly", "yes", "--appendfsync", "always")

Json = dict[str, Any]


class Talk:
    """One socket, and all its frames."""

    def __init__(self, connection: ClientConnection) -> None:
        self.frames: list[Json] = []
        self.is_over = False
        self._connection = connection

    async def listen(self) -> None:
        async for text in self._connection:
            self.frames.append(json.loads(text))
        self.is_over = True

    async def say(self, op: str, **members: object) -> None:
        await self._connection.send(json.dumps({"op": op, **members}))

    def given(self, sub: str) -> list[str]:
        """The IDs that a subscription was sent, in order."""
        frames = [one for one in self.frames if one["op"] == "entries" and one["sub"] == sub]
        return [entry["id"] for one in frames for entry in one["entries"]]

    def said(self, op: str, sub: str) -> list[str]:
        """The reasons of these frames, "" for none."""
        return [one.get("reason", "") for one in self.frames if (one["op"], one.get("sub")) == (op, sub)]


@asynccontextmanager
async def talk(gateway: Server) -> AsyncIterator[Talk]:
    async with connect(f"ws://127.0.0.1:{gateway.port}/v1/ws") as connection:
        talking = Talk(connection)
        listening = asyncio.create_task(talking.listen())
        try:
            yield talking
        finally:
            listening.cancel()
            await asyncio.wait((listening,))


async def soon(is_so: Callable[[], bool], talking: Talk) -> None:
    await until(is_so, SOON_S)
    assert is_so(), talking.frames
    assert not talking.is_over


def backend_of(tmp_path: Path) -> BackendServer:
    (tmp_path / "backend").mkdir()
    return BackendServer(tmp_path / "backend", "valkey", KEEPS)


async def go_through(server: BackendServer, way: str, talking: Talk, outages: int) -> None:
    """One more outage, until all are told that it is over."""

    def have_all(op: str) -> bool:
        return all(len(talking.said(op, sub)) == outages for sub in ("tail", "work"))

    await asyncio.to_thread(server.pause if way == "hangs" else server.kill)
    await soon(lambda: have_all("paused"), talking)
    await asyncio.to_thread(server.resume if way == "hangs" else server.start)
    await soon(lambda: have_all("resumed"), talking)


@pytest.mark.parametrize("way", ["hangs", "dies"])
async def test_sockets_stay_open(tmp_path: Path, way: str) -> None:
    """Each subscription is told once an outage, also by the second one; one without credit is not. What is in
    flight is not sent again.
    """
    with (
        backend_of(tmp_path) as server,
        Server(tmp_path / "gateway", "--backend", server.url, *SETTINGS) as gateway,
    ):
        async with AsyncClient(gateway.url, retry_s=SOON_S) as client, talk(gateway) as talking:
            added = list((await client.publish_batch(STREAM, [{"n": "1"}, {"n": "2"}, {"n": "3"}])).ids)

            def have_all(*subs: str) -> bool:
                return all(talking.given(sub) == added for sub in subs)

            await talking.say("subscribe", sub="tail", streams={STREAM: "0", "empty": "0"})
            await talking.say("subscribe", sub="spent", streams={STREAM: "0"}, credit=1)
            await talking.say("consume", sub="work", stream=STREAM, group="g", consumer="c", create="0")
            await soon(lambda: have_all("tail", "work"), talking)
            await talking.say("ack", ref=1, sub="work", ids=added[:1])
            await soon(lambda: talking.frames[-1].get("acknowledged") == 1, talking)
            for outages in (1, 2):
                await go_through(server, way, talking, outages)
                added += (await client.publish(STREAM, {"n": "4"})).ids
                await soon(lambda: have_all("tail", "work"), talking)
            await talking.say("credit", sub="spent", n=100)
            await soon(lambda: have_all("spent"), talking)
            assert [talking.said("paused", sub) for sub in ("tail", "work")] == [["backend"] * 2] * 2
            assert (talking.said("paused", "spent"), talking.said("resumed", "spent")) == (["credit"], [])
            assert [one for one in talking.frames if one["op"] in {"error", "gap", "revoked"}] == []


async def test_what_a_lost_reply_delivered_is_sent(tmp_path: Path) -> None:
    """The server has given entries to the consumer, and the gateway has not heard of it: they come once."""
    with (
        backend_of(tmp_path) as server,
        Server(tmp_path / "gateway", "--backend", server.url, *SETTINGS) as gateway,
    ):
        async with talk(gateway) as talking:
            await talking.say("consume", sub="work", stream=STREAM, group="g", consumer="c", create="0")
            first = server.call("XADD", STREAM, "*", "n", "1").decode()
            await soon(lambda: talking.given("work") == [first], talking)
            with socket.create_connection(("127.0.0.1", server.port)) as beside:
                beside.sendall(b"PING\r\n")
                assert await asyncio.to_thread(beside.recv, 100) == b"+PONG\r\n"
                server.pause()
                beside.sendall(b"XADD s * n 2\r\n")
                await soon(lambda: talking.said("paused", "work") == ["backend"], talking)
                server.resume()
                await soon(lambda: len(talking.given("work")) == 2, talking)
            second = server.call("XREVRANGE", STREAM, "+", "-", "COUNT", 1)[0][0].decode()
            await soon(lambda: talking.said("resumed", "work") == [""], talking)
            assert talking.given("work") == [first, second]
            await talking.say("ack", ref=1, sub="work", ids=[first, second])
            await soon(lambda: talking.frames[-1].get("acknowledged") == 2, talking)
            assert talking.said("caught_up", "work") == [""]
