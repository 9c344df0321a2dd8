"""Old and new clients beside old and new gateways: four pairs for each change of the wire.

old client, old gateway    `recorded.json`: both at commit 3d47809, by `record.py`
new client, old gateway    this client beside a gateway that knows nothing but what was recorded
old client, new gateway    this gateway is sent what was recorded, and its answers are compared
new client, new gateway    both of this version
"""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

import weir
from app.api.root import FEATURES
from app.errors import CODES
from tests.mixed.ends import ENDS, converse
from tests.mixed.overload import publish_overloaded
from tests.mixed.record import ABOUT
from tests.mixed.scenarios import SCENARIOS
from tests.server import Server, server_of
from tests.serving import QuietHandler, serving
from weir import Client, Delivery, Worker

RECORDED: Final = json.loads(Path(__file__).with_name("recorded.json").read_text())
# What the programs see of the new gateway that they did not of the old one.
NEW_SEEN: Final[dict[str, dict[str, Any]]] = {
    "finish_late": {"done": 1, "pending": [1, "5-0", "5-0", [["b", "1"]]]},
    "read_pages": {"gap": "recreated"},
    "settle_late": {"moved": [], "pending": [2, "5-0", "5-1", [["b", "2"]]]},
}
ERRORS: Final = {
    "stream_deleted": weir.StreamDeletedError,
    "group_destroyed": weir.GroupDeletedError,
    "replaced": weir.ConsumerReplacedError,
}
END_S_MAX: Final = 20.0
NEW_MEMBERS: Final = ',"max_age_ms":null,"paused":false'
# Where the client looks at `features` before it sends what is new.
ASKED_FIRST: Final = ("finish_late", "settle_late")
scenarios = pytest.mark.parametrize("name", SCENARIOS)
ends = pytest.mark.parametrize("end", ENDS)


# A gateway of this version; what was recorded began with an empty one.
server = server_of("function")


class OldGateway(ThreadingHTTPServer):
    """Answers what was recorded, each answer once, and refuses what every old gateway refuses.

    Where others stand behind the same address, one may have said `features` which this one does not know.
    """

    daemon_threads = True

    def __init__(self, exchanges: list[dict[str, Any]], features: Sequence[str] = ()) -> None:
        super().__init__(("127.0.0.1", 0), _OldHandler)
        self.left = list(exchanges)
        self.features = features
        self.refused = 0

    def answer(self, method: str, path: str, body: str) -> dict[str, Any]:
        """What is recorded for a request."""
        if path == ABOUT:
            about = json.loads(RECORDED["about"]["answer"])
            named = {"features": self.features} if self.features else {}
            return {**RECORDED["about"], "answer": json.dumps(about | named)}
        if "cursor=generation" in path or '"consumer"' in body:
            self.refused += 1
            return next(one for one in RECORDED["refused"] if _kind(one["path"]) == _kind(path))
        for one in self.left:
            if (one["method"], one["path"], one["body"]) == (method, path, body):
                self.left.remove(one)
                return one
        return {"status": 599, "answer_headers": {}, "answer": f"not recorded: {method} {path} {body}"}


def _kind(path: str) -> list[str]:
    """Which of the resources it is, whatever the stream."""
    words = path.partition("?")[0].split("/")
    return [*words[:3], *words[4:]]


class _OldHandler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: OldGateway

    def respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0"))).decode()
        answer = self.server.answer(self.command, self.path, body)
        self.reply(answer["status"], answer["answer"].encode(), answer["answer_headers"])


@contextmanager
def old_gateway(name: str, features: Sequence[str] = ()) -> Iterator[OldGateway]:
    with serving(OldGateway(RECORDED["scenarios"][name]["exchanges"], features)) as gateway:
        yield gateway


@scenarios
def test_a_new_client_does_with_an_old_gateway_what_the_old_one_does(name: str) -> None:
    """It is refused once, asks no more, and sends what the old client has sent. What it can ask first is not
    refused.
    """
    with old_gateway(name) as gateway, Client(f"http://127.0.0.1:{gateway.server_address[1]}") as client:
        assert SCENARIOS[name](client) == RECORDED["scenarios"][name]["seen"]
        assert (gateway.refused, gateway.left) == (0 if name in ASKED_FIRST else 1, [])


@pytest.mark.parametrize("name", ASKED_FIRST)
def test_a_new_client_goes_on_with_an_old_gateway_beside_a_new_one(name: str) -> None:
    """One that does not know what the other has said: it is refused once, and asks no more."""
    with (
        old_gateway(name, FEATURES) as gateway,
        Client(f"http://127.0.0.1:{gateway.server_address[1]}") as client,
    ):
        assert SCENARIOS[name](client) == RECORDED["scenarios"][name]["seen"]
        assert (gateway.refused, gateway.left) == (1, [])


@scenarios
def test_an_old_client_gets_from_a_new_gateway_what_it_knows(name: str, server: Server) -> None:
    """Bare cursors, and the same answers, but that it is told when another stream has the name."""
    with httpx.Client(base_url=server.url) as http:
        for one in RECORDED["scenarios"][name]["exchanges"]:
            status, kind, text = _send(http, one)
            assert (status, kind) == (one["status"], one["answer_headers"].get("content-type"))
            told = _without_news(text)
            assert told == one["answer"], one["path"]


def _send(http: httpx.Client, one: dict[str, Any]) -> tuple[int, str | None, str]:
    """The answer; of events, as many as were recorded."""
    headers = {**one["headers"], "accept-encoding": "identity"}
    with http.stream(one["method"], one["path"], headers=headers, content=one["body"] or None) as response:
        text = b""
        for piece in response.iter_raw():
            text += piece
            if b"event: caught_up" in text and text.endswith(b"\n\n"):
                break
        return response.status_code, response.headers.get("content-type"), text.decode()


def _without_news(answer: str) -> str:
    """An answer without what old gateways do not tell: members of a group, and a gap, which has what an old
    client wants of one.
    """
    answer = re.sub(r',"state":"\w+"', "", answer.replace(NEW_MEMBERS, ""))
    if '"reason"' not in answer:
        return answer
    page = json.loads(answer)
    gap = page.pop("gap")
    assert {"requested", "first_available", "lost"} <= gap.keys()
    assert (gap["reason"], page["next"], gap["next"]) == ("ahead", "3-0", "3-0")
    # An old gateway says the cursor that was sent, above which there never is anything.
    return json.dumps({**page, "next": gap["requested"]}, separators=(",", ":"))


@scenarios
def test_new_clients_and_gateways_tell_what_old_ones_do_not(name: str, server: Server) -> None:
    with Client(server.url) as client:
        seen = SCENARIOS[name](client)
    assert seen == RECORDED["scenarios"][name]["seen"] | NEW_SEEN.get(name, {})


@ends
async def test_a_new_worker_tells_the_ends_of_an_old_gateway_apart(end: str) -> None:
    recorded = RECORDED["ends"][end]
    consumed: list[dict[str, Any]] = []

    async def talk(socket: ServerConnection) -> None:
        hello, *frames = recorded["came"]
        await socket.send(json.dumps(hello))
        consumed.append(json.loads(await socket.recv()))
        for frame in frames:
            await socket.send(json.dumps(frame))
        await socket.wait_closed()

    async with serve(talk, "127.0.0.1", 0, subprotocols=[Subprotocol("weir.v1")]) as gateway:
        ended = await _end_of(f"http://127.0.0.1:{gateway.sockets[0].getsockname()[1]}", end)
    assert (type(ended), consumed) == (ERRORS[end], [recorded["sent"]])


@ends
async def test_an_old_worker_gets_the_ends_that_it_knows(end: str, server: Server) -> None:
    assert await converse(server.url, end) == RECORDED["ends"][end]


@ends
async def test_a_new_worker_tells_the_ends_of_a_new_gateway_apart(end: str, server: Server) -> None:
    async with weir.AsyncClient(server.url) as client:
        await client.publish(f"ended-{end}", {"n": "1"}, id="5-0")
        working = asyncio.create_task(_end_of(server.url, end))
        async with asyncio.timeout(END_S_MAX):
            while not await _is_settled(client, end):  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.02)
        if end == "stream_deleted":
            await client.delete_stream(f"ended-{end}")
        elif end == "group_destroyed":
            await client.group(f"ended-{end}", "g").delete(drop_pending=True)
        else:
            async with Worker(server.url, f"ended-{end}", group="g", consumer="c"):
                await working
        assert type(await working) is ERRORS[end]


async def _end_of(url: str, end: str) -> BaseException | None:
    async def handle(_: Delivery) -> None:
        """Nothing to do."""

    try:
        async with asyncio.timeout(END_S_MAX):
            worker = Worker(url, f"ended-{end}", group="g", consumer="c", grace_s=0)
            await worker.run(handle, stop_on=())
    except weir.WeirError as error:
        return error
    return None


async def _is_settled(client: weir.AsyncClient, end: str) -> bool:
    try:
        info = await client.group(f"ended-{end}", "g").info()
    except weir.NotFoundError:
        return False
    return info["pending"] == 0 and info["lag"] == 0


def test_both_clients_send_again_what_a_gateway_without_room_refuses() -> None:
    """503 `overloaded` is new; old gateways never say it, and old clients know what 503 means."""
    assert publish_overloaded() == RECORDED["overloaded"] == {"requests": 2, "keys": 1, "stored": "5-0"}
    overloaded = CODES["overloaded"]
    assert (overloaded.status, overloaded.retry_after_s) == (503, 1)
