"""Workers on real sockets that are killed, replaced, stopped, or lose what they consume."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.app.eventsource import Parser, ReceivedEvent
from tests.app.sockets import SocketClient, talking
from tests.app.websocket.group_calls import GROUP, WORK, add, closed_with, consumers, pending, pending_ids
from tests.server import Server
from tests.waiting import until

WORKER: Final = """
import json, sys
from websockets.sync.client import connect
with connect(sys.argv[1]) as socket:
    frame = {"op": "consume", "sub": "w", "stream": "s", "group": "g", "consumer": "first", "create": "0"}
    socket.send(json.dumps(frame))
    while True:
        frame = json.loads(socket.recv())
        if frame["op"] == "entries":
            print(len(frame["entries"]), flush=True)
"""


def test_a_killed_worker_gets_its_entries_back(server: Server, http: httpx.Client) -> None:
    """Killed between delivery and acknowledgement: when it comes again they are its own history; another
    consumer gets them by claiming.
    """
    ids = add(http, "s", 1, 2, 3)
    url = f"ws://127.0.0.1:{server.port}/v1/ws"
    with subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"3\n"
        worker.send_signal(signal.SIGKILL)
    assert pending(http) == [("first", 1)] * 3
    with talking(server) as client:
        client.ask("consume", sub="w", consumer="second", claim_min_idle_ms=1_000, **WORK)
        got = client.entries(3)
        assert [entry["id"] for entry in got] == ids
        assert [entry["delivery_count"] for entry in got] == [2, 2, 2]
    with talking(server) as client:
        client.ask("consume", sub="w", consumer="second", **WORK)
        assert [entry["delivery_count"] for entry in client.entries(3)] == [3, 3, 3]
        assert client.next()["op"] == "caught_up"


def test_a_reader_that_leaves_while_it_waits_takes_nothing(server: Server, http: httpx.Client) -> None:
    """What comes later is the next one's."""
    with talking(server) as client:
        client.ask("consume", sub="w", consumer="c", **WORK)
        assert client.next()["op"] == "caught_up"
    (entry,) = add(http, "s", 1)
    with talking(server) as client:
        client.ask("consume", sub="w", consumer="d", **WORK)
        assert [one["id"] for one in client.entries(1)] == [entry]
    assert pending(http) == [("d", 1)]


def test_released_entries_come_first(server: Server, client: SocketClient, http: httpx.Client) -> None:
    """Given back by one, taken by the next before what is new."""
    first, second = add(http, "s", 1, 2)
    client.ask("consume", sub="w", consumer="c", credit=1, **WORK)
    client.entries(1)
    with talking(server) as other:
        # While it reads it would be the next itself.
        client.send("unsubscribe", sub="w", ref=1)
        assert client.until("ok")
        http.post(f"{GROUP}/nack", json={"ids": [first], "mode": "fail"})
        other.ask("consume", sub="w", consumer="d", **WORK)
        assert first in [entry["id"] for entry in other.entries(1)]
        assert second


def test_a_second_consume_replaces_the_first(
    server: Server, client: SocketClient, http: httpx.Client
) -> None:
    """On another socket or the same one; its entries are the second's history."""
    add(http, "s", 1)
    client.ask("consume", sub="w", consumer="c", **WORK)
    assert len(client.entries(1)) == 1
    with talking(server) as other:
        other.ask("consume", sub="w", consumer="c", **WORK)
        assert client.next() == {"op": "revoked", "sub": "w", "reason": "replaced"}
        assert other.entries(1)[0]["delivery_count"] == 2
        assert other.next()["op"] == "caught_up"
        (entry,) = add(http, "s", 2)
        assert other.entries(1)[0]["id"] == entry
        other.send("consume", sub="again", consumer="c", **WORK)
        assert {"op": "revoked", "sub": "w", "reason": "replaced"} in other.until("entries")
    assert client.ask("ping") == {"op": "pong"}


def events_of(answer: httpx.Response) -> Iterator[ReceivedEvent]:
    parser = Parser()
    for piece in answer.iter_raw():
        yield from parser.feed(piece)


def test_server_sent_events_and_the_socket_replace_each_other(
    client: SocketClient, http: httpx.Client
) -> None:
    """A consumer has one reader, over any API: the one before gets a notice, and hands over."""
    add(http, "s", 1)
    client.ask("consume", sub="w", consumer="c", **WORK)
    assert client.entries(1)[0].get("delivery_count", 1) == 1
    with http.stream(
        "GET", "/v1/streams/s/groups/g/consumers/c/stream", headers={"accept": "text/event-stream"}
    ) as answer:
        events = events_of(answer)
        assert client.until("revoked")[-1] == {"op": "revoked", "sub": "w", "reason": "replaced"}
        assert json.loads(next(events).data)["delivery_count"] == 2
        client.send("consume", sub="again", consumer="c", **WORK)
        assert client.entries(1)[0]["delivery_count"] == 3
        assert [(one.name, json.loads(one.data)) for one in events] == [("end", {"reason": "replaced"})]
    add(http, "s", 2)
    assert "delivery_count" not in client.entries(1)[0]


def test_a_worker_without_credit_is_not_silent(server: Server, http: httpx.Client) -> None:
    """It works on what it was given, however long that takes: its silence begins when it has left."""
    add(http, "s", 1, 2)
    with talking(server) as client:
        client.ask("consume", sub="w", consumer="busy", credit=1, **WORK)
        client.entries(1)
        client.until("paused")
        http.post(f"{GROUP}/consumers/gone/read", json={"count": 1})
        http.patch(GROUP, json={"consumer_timeout_ms": 50})
        until(lambda: consumers(http) == ["busy"], "who reads nothing more is removed")
        assert pending(http) == [("busy", 1), (None, 1)]
        client.ask("ack", sub="w", ids=[pending_ids(http)[0]])
        assert client.entries(1)[0]["delivery_count"] == 2
    until(lambda: consumers(http) == [], "it has left")


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/v1/streams/s/groups/g?pending=drop", "group_destroyed"), ("/v1/streams/s", "stream_deleted")],
)
def test_a_worker_is_told_that_its_group_is_gone(
    client: SocketClient, http: httpx.Client, path: str, reason: str
) -> None:
    """The socket goes on."""
    client.ask("consume", sub="w", consumer="c", **WORK)
    assert client.next()["op"] == "caught_up"
    http.delete(path)
    assert client.next() == {"op": "revoked", "sub": "w", "reason": reason}
    assert client.ask("ping") == {"op": "pong"}


def test_what_others_settle_gives_credit_back(client: SocketClient, http: httpx.Client) -> None:
    """Acknowledged over HTTP, by any client."""
    ids = add(http, "s", 1, 2, 3)
    client.ask("consume", sub="w", consumer="c", credit=1, **WORK)
    assert client.entries(1)[0]["id"] == ids[0]
    http.post("/v1/streams/s/groups/g/ack", json={"ids": [ids[0]]})
    assert client.entries(1)[0]["id"] == ids[1]


def test_a_deleted_stream_goes_on_when_it_is_made_again(client: SocketClient, http: httpx.Client) -> None:
    """To a follower it is an empty one meanwhile."""
    client.ask("subscribe", sub="t", streams={"s": "$"})
    assert client.next()["op"] == "caught_up"
    add(http, "s", 1)
    client.entries(1)
    http.delete("/v1/streams/s")
    (entry,) = add(http, "s", 2)
    assert client.entries(1)[0]["id"] == entry


# ---- what is no conversation


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
