"""A server says what nobody expects: at every door it is the backend's fault, and not to be tried again."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.asyncio.client import connect

import weir
from tests.cluster.odd_link import OddLink
from tests.cluster.servers import BackendServer
from tests.cluster.test_refusals import Wire
from tests.server import Server, free_port
from weir import Client

STREAM: Final = "odd"
SENTENCE: Final = "ERR the moon is full"
# In the midst of a script whose slot moves: what it has done before is not known.
ELSEWHERE: Final = "ERR Attempted to access a non local key in a cluster node script: on @user_script:9."
ENTRY: Final = {"fields": {"n": "1"}}
PATH: Final = f"/v1/streams/{STREAM}"
GROUP: Final = f"{PATH}/groups/g"
SOON_S: Final = 20.0
# One command of each kind, as words of Redis.
ADD: Final = ["XADD", STREAM, "*", "n", "1"]
LOOK: Final = ["XLEN", STREAM]
TAKE: Final = ["XREADGROUP", "GROUP", "g", "c", "STREAMS", STREAM, ">"]


class Gateway:
    """A gateway of its own process over the link."""

    def __init__(self, server: Server, link: OddLink, redis_port: int) -> None:
        self.server, self.link, self.redis_port = server, link, redis_port


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """It has a stream with an entry, and a group, about which its server says the sentence."""
    directory, redis_port = tmp_path_factory.mktemp("odd"), free_port()
    with BackendServer(directory) as backend, OddLink(backend, STREAM) as link:
        words = ("--backend", link.url, "--resp-listen", str(redis_port), "--bound", "backend_poll_s=1")
        with Server(Path(directory) / "gateway", *words) as server, httpx.Client(base_url=server.url) as http:
            assert http.post(f"{PATH}/entries", json=ENTRY).status_code == 201
            assert http.put(GROUP, json={"start": "0"}).status_code == 201
            link.sentence = SENTENCE
            yield Gateway(server, link, redis_port)


def check(problem: dict[str, Any], outcome: str) -> None:
    """It is the refusal of the table."""
    assert (problem["code"], problem["status"], problem["retryable"]) == ("backend_error", 502, False), (
        problem
    )
    assert SENTENCE.removeprefix("ERR ") in problem["detail"]
    assert problem["outcome"] == outcome


@pytest.mark.parametrize(
    ("method", "path", "body", "outcome"),
    [
        ("POST", f"{PATH}/entries", ENTRY, "unknown"),
        ("POST", f"{PATH}/entries", {"entries": [ENTRY, ENTRY]}, "unknown"),
        ("GET", f"{PATH}/entries", None, "not done"),
        ("GET", f"{PATH}/entries?after=9-0&wait=1000", None, "not done"),
        ("GET", f"{PATH}/entries/1-0", None, "not done"),
        ("GET", f"{PATH}/export", None, "not done"),
        ("GET", PATH, None, "not done"),
        ("GET", "/v1/streams", None, "not done"),
        ("DELETE", PATH, None, "unknown"),
        ("POST", f"{PATH}/trim", {"maxlen": 1}, "not done"),
        ("PUT", f"{PATH}/groups/h", {}, "not done"),
        ("GET", GROUP, None, "not done"),
        ("GET", f"{GROUP}/pending", None, "not done"),
        ("POST", f"{GROUP}/ack", {"ids": ["1-0"]}, "unknown"),
        ("POST", f"{GROUP}/consumers/c/read", {}, "unknown"),
        ("POST", f"{GROUP}/consumers/c/read", {"wait": 1000}, "unknown"),
        ("POST", "/v1/publish", {"streams": {STREAM: [ENTRY]}}, "unknown"),
        ("POST", "/v1/plan", {"streams": {STREAM: "0-0"}}, "not done"),
    ],
)
async def test_over_http(gateway: Gateway, method: str, path: str, body: Any, outcome: str) -> None:
    async with httpx.AsyncClient(base_url=gateway.server.url, timeout=SOON_S) as http:
        before = gateway.link.said
        answer = await http.request(method, path, json=body)
        problem = answer.json()
        assert (answer.status_code, "retry-after" in answer.headers) == (502, False), problem
        check(problem, outcome)
        # It is not sent again by the gateway either.
        assert 0 < gateway.link.said - before <= 8


@pytest.mark.parametrize("words", [ADD, LOOK, TAKE], ids=lambda words: words[0])
async def test_as_a_command(gateway: Gateway, words: list[str]) -> None:
    """Alone, in a pipeline, in a transaction, and over the port for Redis clients."""
    text = f"ERR the backend gave an unexpected answer: {SENTENCE}"
    async with httpx.AsyncClient(base_url=gateway.server.url, timeout=SOON_S) as http:
        alone = await http.post("/v1/commands", json=words)
        several = await http.post("/v1/commands/pipeline", json=[words, words])
        turn = await http.post("/v1/commands/multi-exec", json=[words, words])
    assert alone.status_code == 502
    check(alone.json(), "not done" if words == LOOK else "unknown")
    assert several.json() == [{"error": text}] * 2
    assert text in turn.text
    wire = await asyncio.to_thread(Wire, gateway.redis_port)
    try:
        replies = [await asyncio.to_thread(wire.said, *one) for one in (words, ["MULTI"], words, ["EXEC"])]
    finally:
        wire.close()
    assert str(replies[0]) == text
    assert str(replies[3]) == text or str(replies[3][0]) == text, replies


@asynccontextmanager
async def talking(gateway: Gateway) -> AsyncIterator[Any]:
    async with connect(f"ws://127.0.0.1:{gateway.server.port}/v1/ws") as socket, asyncio.timeout(SOON_S):
        yield socket


@pytest.mark.parametrize(
    ("frame", "outcome"),
    [
        ({"op": "publish", "stream": STREAM, "entries": [ENTRY]}, "unknown"),
        ({"op": "subscribe", "sub": "s", "streams": {STREAM: "0"}}, "not done"),
        ({"op": "consume", "sub": "c", "stream": STREAM, "group": "g", "consumer": "c"}, None),
    ],
    ids=lambda frame: frame["op"] if isinstance(frame, dict) else "",
)
async def test_over_a_socket(gateway: Gateway, frame: dict[str, Any], outcome: str | None) -> None:
    async with talking(gateway) as socket:
        await socket.send(json.dumps({"ref": 1, **frame}))
        while (answer := json.loads(await socket.recv()))["op"] != "error":
            pass
        check(answer["problem"], outcome or answer["problem"]["outcome"])


async def test_in_an_event_stream(gateway: Gateway) -> None:
    """Refused where it begins; in its midst the last event says that it is not to be begun again."""
    path = f"{PATH}/tail?after=0"
    async with httpx.AsyncClient(base_url=gateway.server.url, timeout=SOON_S) as http:
        check((await http.get(path)).json(), "not done")
        gateway.link.sentence = ""
        try:
            async with http.stream("GET", path) as answer:
                lines = answer.aiter_lines()
                await anext(line async for line in lines if line.startswith("id:"))
                gateway.link.sentence = SENTENCE
                await anext(line async for line in lines if line == "event: error")
                check(json.loads((await anext(lines)).removeprefix("data:")), "not done")
        finally:
            gateway.link.sentence = SENTENCE


def test_clients_do_not_send_it_again(gateway: Gateway) -> None:
    """Neither what a gateway says of its backend, nor a change without a key that may have been made."""
    with Client(gateway.server.url) as client:
        asked = gateway.link.said
        for ask in (lambda: client.publish(STREAM, {"n": 1}), lambda: client.command(*ADD)):
            with pytest.raises(weir.InternalError, match="the moon is full") as refused:
                ask()
            assert refused.value.outcome_unknown
        gateway.link.sentence = ELSEWHERE
        try:
            with pytest.raises(weir.UnavailableError) as unknown:
                client.command(*ADD)
        finally:
            gateway.link.sentence = SENTENCE
        assert (unknown.value.code, unknown.value.outcome_unknown) == ("backend_unavailable", True)
        assert gateway.link.said == asked + 3


async def test_the_gateway_goes_on(gateway: Gateway) -> None:
    """Other streams of the same server are served, and it is ready."""
    async with httpx.AsyncClient(base_url=gateway.server.url, timeout=SOON_S) as http:
        assert (await http.post("/v1/streams/other/entries", json=ENTRY)).status_code == 201
        assert (await http.get("/healthz/ready")).status_code == 200
