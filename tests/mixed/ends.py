"""A worker's conversation over a WebSocket, up to the frame that ends it.

Knows: frames of `weir.v1`, as the client of the recording has sent them. Must never know: the clients of this
version.
"""

import asyncio
import json
from typing import Any, Final

import httpx
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

# What is said of a subscription, and how it comes to that: a request, None for another subscription.
ENDS: Final[dict[str, tuple[str, str] | None]] = {
    "stream_deleted": ("DELETE", "/v1/streams/ended-stream_deleted"),
    "group_destroyed": ("DELETE", "/v1/streams/ended-group_destroyed/groups/g?pending=drop"),
    "replaced": None,
}
END_S_MAX: Final = 20.0


def _consume(end: str) -> dict[str, Any]:
    return {
        "op": "consume",
        "ref": "consume",
        "sub": "work",
        "stream": f"ended-{end}",
        "group": "g",
        "consumer": "c",
        "create": "0",
        "credit": 100,
    }


async def converse(url: str, end: str) -> dict[str, Any]:
    """What was sent, and all frames that came, until `revoked`."""
    target = url.replace("http", "ws", 1) + "/v1/ws"
    sent, came = _consume(end), list[dict[str, Any]]()
    protocols = [Subprotocol("weir.v1")]
    async with (
        asyncio.timeout(END_S_MAX),
        httpx.AsyncClient(base_url=url) as http,
        connect(target, subprotocols=protocols) as socket,
        connect(target, subprotocols=protocols) as other,
    ):
        await http.post(f"/v1/streams/ended-{end}/entries", json={"id": "5-0", "fields": {"n": "1"}})
        await socket.send(json.dumps(sent))
        while not came or came[-1]["op"] != "revoked":
            came.append(json.loads(await socket.recv()))
            if came[-1]["op"] == "entries":
                asked = ENDS[end]
                await (other.send(json.dumps(sent)) if asked is None else http.request(*asked))
    return {"sent": sent, "came": [_steady(one) for one in came]}


def _steady(frame: dict[str, Any]) -> dict[str, Any]:
    return {"op": "hello", "heartbeat_ms": frame["heartbeat_ms"]} if frame["op"] == "hello" else frame
