"""A thousand sockets that follow one stream get its end at once."""

import asyncio
import json
from typing import Final

from tests.app.both_servers import Side, opened
from tests.app.http_requests import ENTRIES, ENTRY, JSON, post, request
from tests.app.sockets import masked
from tests.engine.clocks import settle

SOCKETS: Final = 1_000
_HANDSHAKE: Final = (
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


async def follow(side: Side) -> asyncio.StreamReader:
    """A socket whose subscription waits for entries."""
    other = await side.another()
    other.writer.write(request("GET /v1/ws", None, *_HANDSHAKE, f"Authorization: Bearer {side.token.text}"))
    frame = {"op": "subscribe", "sub": "x", "streams": {"s": "0"}}
    other.writer.write(masked(0x1, json.dumps(frame).encode()))
    await other.reader.readuntil(b'"caught_up"')
    return other.reader


async def test_a_thousand_sockets_end_with_the_stream() -> None:
    """No time passes: the clock of the loop stands still."""
    async with opened(sockets_max=2 * SOCKETS, per_principal_max=SOCKETS) as sides:
        side = sides.ours
        side.change_token(actions=["read", "write", "close"])
        bearer = f"Authorization: Bearer {side.token.text}"
        assert (await side.ask(post(ENTRIES, ENTRY, JSON, bearer)))[9:12] == b"201"
        readers = [await follow(side) for _ in range(SOCKETS)]
        assert (await side.ask(post("/v1/streams/s/close", b"{}", JSON, bearer)))[9:12] == b"200"
        for _ in range(10):
            await settle()
        ended = [(await reader.read(1 << 16)).count(b'"op":"closed"') for reader in readers]
        assert ended == [1] * SOCKETS
