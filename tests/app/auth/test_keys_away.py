"""The server of the keys of JWTs is away while callers come: at each door, each step, with each kind of key.

Counted is what was stored, and how often the server was asked. A caller whose key cannot be looked up is told
to come again; one whose key the server has not is refused; with a key that is known everything goes on.
"""

import json
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from app.auth import TokenPolicy
from app.auth.jwt import REFRESH_S, UNKNOWN_KEY_S
from engine import entries
from engine.commands.types import XAdd, XLen
from tests.app.auth.test_jwt import NOW, RSA, RSA_NEW, KeyServer, public, signed
from tests.app.ten_doors import DOORS, Bench, opened
from tests.engine.asking import reply_to

_DOORS: Final[dict[str, Any]] = {door.name: door for door in DOORS}
DOORS_OF_CALLERS: Final = (
    *("http", "asgi", "durable", "command", "pipeline", "multi-exec"),
    *("sse", "websocket", "auth frame", "RESP"),
)
_IDS: Final = count()
MINUTE: Final = UNKNOWN_KEY_S
LONG: Final = REFRESH_S


class Step(NamedTuple):
    """When, which keys the server has (none: it is away), whose token comes (`again`: the first one of all),
    what is found, and how often the server was asked by then.
    """

    at_s: float
    served: tuple[Any, ...]
    key: Any
    found: str
    asked: int


_FIRST: Final = Step(0, (RSA,), RSA, "done", 1)
ROWS: Final = {
    "before the first request": (
        Step(0, (), RSA, "later", 1),
        Step(MINUTE - 1, (RSA,), RSA, "later", 1),
        Step(MINUTE, (RSA,), RSA, "done", 2),
    ),
    "a known key, while it need not be asked for": (_FIRST, Step(LONG - 1, (), RSA, "done", 1)),
    "a known key, ever after": (
        _FIRST,
        Step(LONG, (), RSA, "done", 2),
        Step(LONG + 1, (), RSA, "done", 2),
        Step(10 * LONG, (), RSA, "done", 3),
    ),
    "a new key": (
        _FIRST,
        Step(MINUTE, (), RSA_NEW, "later", 2),
        Step(MINUTE + 1, (RSA, RSA_NEW), RSA_NEW, "later", 2),
        Step(MINUTE + 2, (), RSA, "done", 2),
        Step(2 * MINUTE, (RSA, RSA_NEW), RSA_NEW, "done", 3),
    ),
    "a key of others": (
        _FIRST,
        Step(MINUTE, (RSA,), RSA_NEW, "refused", 2),
        Step(MINUTE + 1, (), RSA_NEW, "refused", 2),
        Step(2 * MINUTE, (), RSA_NEW, "later", 3),
    ),
    "a key that is withdrawn": (
        _FIRST,
        Step(LONG, (RSA_NEW,), RSA_NEW, "done", 2),
        Step(LONG + 1, (), "again", "refused", 2),
        Step(LONG + 2, (), RSA, "refused", 2),
        Step(2 * LONG, (), RSA_NEW, "done", 3),
    ),
}


async def _publish(bench: Bench, name: str, token: str, stream: str) -> str:
    """What the caller is answered."""
    if name == "RESP":
        wire = await bench.wire()
        said = str(await wire.call("AUTH", "default", token))
        said = str(await wire.call("XADD", stream, "*", "n", "1")) if said == "OK" else said
        wire.close()
        return said
    if name == "auth frame":
        return await _auth_in_a_frame(bench, token, stream)
    bench.headers = {"authorization": f"Bearer {token}"}
    try:
        if name != "sse":
            return str(await _DOORS[name].publish(bench, stream))
        await reply_to(bench.engine, XAdd(stream=stream, bodies=[entries.body([("n", "1")])]))
        return str(await _DOORS[name].read(bench, stream))
    except InvalidStatus as refusal:
        return str(refusal.response.body.decode())


async def _auth_in_a_frame(bench: Bench, token: str, stream: str) -> str:
    said, url = "", f"ws://127.0.0.1:{await bench.port()}/v1/ws"
    bench.headers = {}
    async with connect(url, subprotocols=[Subprotocol("weir.v1")], compression=None) as socket:
        try:
            await socket.send(json.dumps({"op": "auth", "ref": "a", "token": token}))
            await socket.send(
                json.dumps({"op": "publish", "ref": "p", "stream": stream, "fields": {"n": "1"}})
            )
            while '"ref":"p"' not in said:
                said += str(await socket.recv())
        except ConnectionClosed:
            pass
    return said


def _found(said: str) -> str:
    if "keys_unavailable" in said or "cannot be had" in said:
        return "later"
    return "refused" if "unauthenticated" in said or "WRONGPASS" in said else "done"


@pytest.mark.parametrize("name", DOORS_OF_CALLERS)
@pytest.mark.parametrize("row", ROWS)
async def test_callers_while_the_keys_cannot_be_asked_for(tmp_path: Path, row: str, name: str) -> None:
    """Nothing is stored for one who is refused; an EventSource is told to come again by events."""
    server, first = KeyServer(), ""
    policy = TokenPolicy([], lambda: NOW, verifier=server.verifier)
    async with opened(tmp_path, access=policy) as bench:
        for number, step in enumerate(ROWS[row]):
            server.now, server.down = step.at_s, not step.served
            server.text = public(*step.served)
            stream = f"orders.{number}"
            claims = {"jti": str(next(_IDS)), "exp": NOW + 1e9, "grants": ["read,write,manage:orders*"]}
            token = first if step.key == "again" else signed(step.key, "RS256", claims)
            first = first or token
            said = await _publish(bench, name, token, stream)
            assert (_found(said), server.asked) == (step.found, step.asked), (number, said)
            stored = await reply_to(bench.engine, XLen(stream=stream))
            assert stored == (step.found == "done" or name == "sse")
            if name == "sse" and step.found == "later":
                assert said.startswith("200 ")
                assert "retry:" in said
