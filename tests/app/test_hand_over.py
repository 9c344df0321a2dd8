"""Entries for a reader of a group that has left: they go back, whichever way its answer would have gone."""

import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from app.settings import Settings
from tests.app.pair import HOST, Pair
from tests.engine.conversation import SlowDisk
from tests.server import Server

GROUP = "/v1/streams/s/groups/g"
_TRIES = 30
# Long enough for a read to be blocked, which no client can see.
_BLOCKED_S = 0.01


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("hand-over") / "data") as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{GROUP}/consumers/c/read", {"wait": 20_000}),
        ("/v1/read", {"streams": {"s": ">"}, "group": "g", "consumer": "c", "wait": 20_000}),
    ],
    ids=["one", "many"],
)
def test_what_comes_just_after_a_reader_has_left_is_the_next_ones(
    server: Server, path: str, body: dict[str, object]
) -> None:
    """It is not pending with the one that left, and its first delivery counts as the first."""
    with httpx.Client(base_url=server.url) as http:
        http.post("/v1/commands", json=["FLUSHALL"])
        http.put(GROUP, json={"start": "0"})
        for number in range(_TRIES):
            leave_while_waiting(server.port, path, body)
            time.sleep(number % 4 / 2_000)
            assert http.post("/v1/streams/s/entries", json={"fields": {"n": number}}).status_code == 201
            assert next_of(http) == [(str(number), 1)]
    log = server.data.with_name(f"{server.data.name}.log").read_text()
    assert [line for line in log.splitlines() if '"level":"error"' in line] == []


def test_an_answer_that_waits_for_the_disk_takes_its_entries_back() -> None:
    """Its client has left meanwhile: over our own server and over ASGI."""
    storages = (SlowDisk(), SlowDisk())
    with Pair(Settings(log_requests="none"), always=True, storages=storages) as pair:
        pair.both(post("/v1/streams/s/entries", {"id": "5-1", "fields": {"n": 1}}))
        pair.both(post("/v1/streams/s/groups", {"name": "g", "start": "0"}))
        lines = [pair.fast.connect(), pair.full.connect()]
        for storage in storages:
            storage.hold()
        for line in lines:
            line.send(post(f"{GROUP}/consumers/c/read", {}))
        time.sleep(0.1)
        for line in lines:
            line.close()
        time.sleep(0.1)
        for storage in storages:
            storage.let_go()
        time.sleep(0.2)
        for answer in pair.both(b"GET " + GROUP.encode() + b"/pending?count=9 HTTP/1.1\r\n" + HOST + b"\r\n"):
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["pending"] == []
        for answer in pair.both(post(f"{GROUP}/consumers/d/read", {})):
            (entry,) = json.loads(answer.partition(b"\r\n\r\n")[2])["entries"]
            assert entry["id"] == "5-1", "it is as if it had never been read"
        for answer in pair.both(b"GET " + GROUP.encode() + b"/pending?count=9 HTTP/1.1\r\n" + HOST + b"\r\n"):
            (row,) = json.loads(answer.partition(b"\r\n\r\n")[2])["pending"]
            assert (row["consumer"], row["delivery_count"]) == ("d", 1)


def post(path: str, body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def next_of(http: httpx.Client) -> list[tuple[str, int]]:
    """What the next reader gets, which is given back entries and new ones, and how often it was delivered."""
    read = {"claim_min_idle_ms": (1 << 53) - 1, "wait": 1_000}
    entries = http.post(f"{GROUP}/consumers/d/read", json=read).json()["entries"]
    http.post(f"{GROUP}/ack", json={"ids": [entry["id"] for entry in entries]})
    return [(entry["fields"]["n"], entry["delivery_count"]) for entry in entries]


def leave_while_waiting(port: int, path: str, body: dict[str, object]) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(post(path, body))
        time.sleep(_BLOCKED_S)
