"""Conversations with a real gateway, over real sockets: following, commands, and a gateway that ends."""

import json
import threading
import time
from pathlib import Path

import httpx
import pytest

from engine.commands.turn import TURN_LOOKUPS_MAX
from tests.app.sockets import SocketClient, talking
from tests.app.websocket.group_calls import WORK, add, closed_with, pending
from tests.server import Server
from tests.waiting import until


def test_the_first_frame_tells_the_limits(client: SocketClient) -> None:
    """And the subprotocol is chosen; heartbeats follow on their own."""
    assert client.connection.subprotocol == "weir.v1"
    hello = client.hello
    assert (hello["op"], hello["version"], hello["heartbeat_ms"]) == ("hello", 1, 200)
    assert hello["limits"]["frame_bytes_max"] == 65_536 + 4_096
    assert (hello["limits"]["ids_max"], hello["limits"]["lookups_max"]) == (10_000, TURN_LOOKUPS_MAX)
    began = time.monotonic()
    beats = [json.loads(client.connection.recv(5)) for _ in range(2)]
    assert beats == [{"op": "heartbeat"}] * 2
    assert time.monotonic() - began < 4


def test_what_is_published_arrives_everywhere(
    client: SocketClient, server: Server, http: httpx.Client
) -> None:
    """By a frame or by HTTP, at this socket and at another, in one order."""
    with talking(server) as other:
        for one in (client, other):
            assert one.ask("subscribe", sub="t", streams={"s": "$"}) == {"op": "ok", "next": {"s": "0-0"}}
            assert one.next()["op"] == "caught_up"
        client.send("publish", ref="p", stream="s", fields={"n": 1})
        # The answer and the entry come in either order.
        frames = {frame["op"]: frame for frame in (client.next(), client.next())}
        ids = frames["ok"]["ids"] + add(http, "s", 2, 3)
        assert [entry["id"] for entry in frames["entries"]["entries"] + client.entries(2)] == ids
        assert [entry["id"] for entry in other.entries(3)] == ids


def test_commands_are_the_command_api(client: SocketClient, http: httpx.Client) -> None:
    """Results, errors with Redis's sentence; a read that would block answers at once."""
    assert client.ask("command", command=["XADD", "s", "1-0", "n", 1]) == {"op": "ok", "result": "1-0"}
    result = client.ask("command", command=["XADD", "s", "1-0", "n", "1"])
    assert result["problem"]["redis_error"].startswith("ERR The ID specified in XADD is equal or smaller")
    began = time.monotonic()
    assert client.ask("command", command=["XREAD", "BLOCK", "0", "STREAMS", "s", "$"])["result"] is None
    assert time.monotonic() - began < 5
    assert client.ask("command", command="PING")["problem"]["code"] == "invalid"


def test_frames_are_done_in_their_order(client: SocketClient) -> None:
    """Also behind a command, which takes its time."""
    client.send("publish", stream="s", id="1-0", fields={"n": 1})
    client.send("command", command=["XLEN", "s"])
    client.send("publish", stream="s", id="2-0", fields={"n": 2})
    client.send("command", command=["XLEN", "s"])
    client.send("ping")
    answers = client.until("pong")
    assert [one["result"] for one in answers if "result" in one] == [1, 2]


def test_many_frames_at_once_are_all_answered(client: SocketClient) -> None:
    """More than may be unanswered at a time."""
    frames = [
        json.dumps({"op": "publish", "stream": "s", "fields": {"n": n}, "ref": n}) for n in range(2_000)
    ]

    def send_all() -> None:
        for frame in frames:
            client.connection.send(frame)

    sending = threading.Thread(target=send_all)
    sending.start()
    answers = [client.next() for _ in frames]
    sending.join()
    assert [one["ref"] for one in answers] == list(range(2_000))
    ids = [one["ids"][0] for one in answers]
    assert len(set(ids)) == 2_000


def why(http: httpx.Client, consumer: str) -> dict[str, str]:
    """What holds up a consumer, and what to do about it."""
    answer = http.get("/v1/streams/s/groups/g/why", params={"consumer": consumer})
    return {one["code"]: one["remedies"]["rest"] for one in answer.json()["reasons"]}


@pytest.mark.parametrize("remedy", ["acknowledge what the consumer holds", "send more credit on its socket"])
def test_a_worker_without_credit_goes_on_as_the_remedy_says(
    server: Server, http: httpx.Client, remedy: str
) -> None:
    ids = add(http, "s", 1, 2)
    with talking(server) as worker:
        worker.ask("consume", sub="w", consumer="c", **WORK | {"credit": 1})
        assert [one["id"] for one in worker.entries(1)] == ids[:1]
        until(lambda: "credit_used" in why(http, "c"), "its credit is used up")
        assert remedy in why(http, "c")["credit_used"]
        if remedy.startswith("acknowledge"):
            worker.send("ack", sub="w", ids=ids[:1])
        else:
            worker.send("credit", sub="w", n=1)
        assert [one["id"] for one in worker.entries(1)] == ids[1:]


def test_two_workers_of_one_name_go_on_as_the_remedy_says(server: Server, http: httpx.Client) -> None:
    """With a name of its own the one that was replaced gets entries beside the other."""
    with talking(server) as one, talking(server) as other:
        for worker in (one, other):
            worker.ask("consume", sub="w", consumer="c", **WORK | {"credit": 1})
        assert why(http, "c")["replaced"] == "give each worker a name of its own"
        assert one.until("revoked")[-1]["reason"] == "replaced"
        one.ask("consume", sub="v", consumer="d", **WORK | {"credit": 1})
        ids = add(http, "s", 1, 2)
        assert sorted(entry["id"] for worker in (one, other) for entry in worker.entries(1)) == ids
        assert "replaced" not in why(http, "d")


def test_a_stopping_gateway_lets_workers_finish(tmp_path: Path) -> None:
    """`goaway`, acknowledgements still count, then 4001; who holds nothing is sent away at once."""
    server = Server(tmp_path / "data")
    with server, httpx.Client(base_url=server.url) as http:
        ids = add(http, "s", 1, 2)
        with talking(server) as worker, talking(server) as follower:
            worker.ask("consume", sub="w", consumer="c", **WORK)
            worker.entries(2)
            follower.ask("subscribe", sub="t", streams={"s": "$"})
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            assert worker.until("goaway")[-1]["after_ms"] > 0
            assert worker.ask("publish", stream="s", fields={"a": "1"})["problem"]["code"] == "draining"
            assert worker.ask("ack", sub="w", ids=ids) == {"op": "ok", "acknowledged": 2}
            assert closed_with(worker) == 4001
            assert closed_with(follower) == 4001
            stopping.join()
        server.start()
        assert pending(http) == []


def test_a_killed_gateway_delivers_again(tmp_path: Path) -> None:
    """Nothing was pushed that a crash could undo: what a worker saw is its history afterwards."""
    server = Server(tmp_path / "data", "--set", "fsync=always")
    with server, httpx.Client(base_url=server.url) as http:
        with talking(server) as worker:
            worker.ask("consume", sub="w", consumer="c", **WORK)
            add(http, "s", *range(10))
            seen = [entry["id"] for entry in worker.entries(1)]
            server.kill()
        server.start()
        with talking(server) as worker:
            worker.ask("consume", sub="w", consumer="c", **WORK)
            history = [entry["id"] for entry in worker.until("entries")[-1]["entries"]]
            assert history[: len(seen)] == seen
