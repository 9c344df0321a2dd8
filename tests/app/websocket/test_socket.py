"""Conversations with a real gateway, over real sockets: following, working, commands."""

import json
import threading
import time

import httpx

from engine.commands import TURN_LOOKUPS_MAX
from tests.app.sockets import SocketClient, talking
from tests.app.websocket.group_calls import WORK, add, pending
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


def test_history_of_any_length_joins_what_is_new(client: SocketClient, http: httpx.Client) -> None:
    """While another client publishes: no gap, no duplicate."""
    old = [entry for _ in range(30) for entry in add(http, "s", *range(100))]
    client.send("subscribe", sub="t", streams={"s": "0"})
    new = [entry for _ in range(30) for entry in add(http, "s", *range(100))]
    assert [entry["id"] for entry in client.entries(6_000)] == old + new


def test_a_subscription_may_begin_a_few_entries_back(client: SocketClient, http: httpx.Client) -> None:
    """`last`, and `next` says from where."""
    ids = add(http, "s", 1, 2, 3, 4)
    client.ask("subscribe", sub="t", streams={"s": "$"}, last=2)
    assert [entry["id"] for entry in client.entries(2)] == ids[2:]


def test_a_gap_is_reported(client: SocketClient, http: httpx.Client) -> None:
    """A cursor before what was trimmed away."""
    ids = add(http, "s", 1, 2, 3, 4)
    http.post("/v1/streams/s/trim", json={"maxlen": 1, "approx": False})
    client.ask("subscribe", sub="t", streams={"s": ids[0]})
    gap, entries = client.next(), client.next()
    assert (gap["op"], gap["requested"], gap["first_available"]) == ("gap", ids[0], ids[3])
    assert [entry["id"] for entry in entries["entries"]] == ids[3:]


def test_an_ended_subscription_is_silent(client: SocketClient, http: httpx.Client) -> None:
    """Its name is free at once."""
    client.ask("subscribe", sub="t", streams={"s": "$"})
    assert client.next()["op"] == "caught_up"
    assert client.ask("unsubscribe", sub="t") == {"op": "ok"}
    add(http, "s", 1)
    assert client.ask("ping") == {"op": "pong"}
    assert client.ask("subscribe", sub="t", streams={"s": "$"})["op"] == "ok"


def test_a_worker_that_only_acknowledges_gets_everything(client: SocketClient, http: httpx.Client) -> None:
    """Each entry once, ten at a time; nothing stays pending."""
    ids = add(http, "s", *range(95))
    client.ask("consume", sub="w", consumer="c", credit=10, **WORK)
    done: list[str] = []
    while len(done) < len(ids):
        batch = [entry["id"] for entry in client.entries(1)]
        assert len(batch) <= 10
        done += batch
        client.send("ack", sub="w", ids=batch)
    assert done == ids
    until(lambda: pending(http) == [], "everything is acknowledged")


def test_workers_share_a_stream(server: Server, client: SocketClient, http: httpx.Client) -> None:
    """Each entry goes to one of them."""
    with talking(server) as other:
        workers = {"a": client, "b": other}
        for name, one in workers.items():
            one.ask("consume", sub="w", consumer=name, credit=10, **WORK)
        ids = add(http, "s", *range(15))
        got = [entry["id"] for one in workers.values() for entry in one.entries(5)]
        assert len(set(got)) == len(got) >= 10
        assert set(got) <= set(ids)


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
