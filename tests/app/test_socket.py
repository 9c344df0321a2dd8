"""Conversations with a real gateway: over real sockets, broken in the ways that sockets break."""

import contextlib
import itertools
import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from engine.commands import TURN_LOOKUPS_MAX
from tests.app.eventsource import Parser, ReceivedEvent
from tests.app.sockets import Json, Raw, SocketClient, masked, talking
from tests.server import Server

LIMITS: Final = ("--set", "heartbeat_ms=200", "--set", "entry_bytes_max=65536")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("socket") / "data", *LIMITS) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        client.post("/v1/commands", json=["FLUSHALL"])
        yield client


@pytest.fixture
def client(server: Server, http: httpx.Client) -> Iterator[SocketClient]:
    with talking(server) as client:
        yield client


def add(http: httpx.Client, stream: str, *values: int | str) -> list[str]:
    body = {"entries": [{"fields": {"n": value}} for value in values]}
    told = http.post(f"/v1/streams/{stream}/entries", json=body).json()
    return list(told["ids"])


def pending(http: httpx.Client) -> list[tuple[str | None, int]]:
    rows = http.get(f"{GROUP}/pending?count=1000").json()["pending"]
    return [(row["consumer"], row["delivery_count"]) for row in rows]


def eventually(holds: Any, what: str, within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def pending_ids(http: httpx.Client) -> list[str]:
    return [row["id"] for row in http.get(f"{GROUP}/pending?count=1000").json()["pending"]]


def consumers(http: httpx.Client) -> list[str]:
    return [one["name"] for one in http.get(f"{GROUP}/consumers").json()["consumers"]]


GROUP: Final = "/v1/streams/s/groups/g"
WORK: Final[Json] = {"stream": "s", "group": "g", "create": "0"}

# ---- conversations


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
        told = client.ask("publish", stream="s", fields={"n": 1})
        ids = told["ids"] + add(http, "s", 2, 3)
        assert [entry["id"] for entry in client.entries(3)] == ids
        assert [entry["id"] for entry in other.entries(3)] == ids


def test_history_of_any_length_joins_what_is_new(client: SocketClient, http: httpx.Client) -> None:
    """While somebody publishes: no gap, no duplicate."""
    old = [entry for _ in range(30) for entry in add(http, "s", *range(100))]
    client.send("subscribe", sub="t", streams={"s": "0"})
    new = [entry for _ in range(30) for entry in add(http, "s", *range(100))]
    assert [entry["id"] for entry in client.entries(6_000)] == old + new


def test_a_subscription_may_begin_a_few_entries_back(client: SocketClient, http: httpx.Client) -> None:
    """`last`, and `next` says from where."""
    ids = add(http, "s", 1, 2, 3, 4)
    client.ask("subscribe", sub="t", streams={"s": "$"}, last=2)
    assert [entry["id"] for entry in client.entries(2)] == ids[2:]


def test_a_gap_is_told(client: SocketClient, http: httpx.Client) -> None:
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
    eventually(lambda: pending(http) == [], "everything is acknowledged")


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


def test_commands_are_the_command_door(client: SocketClient, http: httpx.Client) -> None:
    """Results, errors with Redis's sentence; a read that would block answers at once."""
    assert client.ask("command", command=["XADD", "s", "1-0", "n", 1]) == {"op": "ok", "result": "1-0"}
    told = client.ask("command", command=["XADD", "s", "1-0", "n", "1"])
    assert told["problem"]["redis_error"].startswith("ERR The ID specified in XADD is equal or smaller")
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


# ---- consumers that go away

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
    """Killed between delivery and acknowledgement: when it comes again they are its own history; somebody
    else gets them by claiming.
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
    """A consumer has one reader, whatever that reads over: the one before is told, and hands over."""
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
        eventually(lambda: consumers(http) == ["busy"], "who reads nothing more is removed")
        assert pending(http) == [("busy", 1), (None, 1)]
        client.ask("ack", sub="w", ids=[pending_ids(http)[0]])
        assert client.entries(1)[0]["delivery_count"] == 2
    eventually(lambda: consumers(http) == [], "it has left")


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
    """Acknowledged over HTTP, by whoever."""
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


def closed_with(client: SocketClient) -> int:
    """The code of the close that comes behind everything else; -1 where there is none."""
    try:
        while True:
            client.next()
    except ConnectionClosed as closed:
        return int(closed.rcvd.code) if closed.rcvd is not None else -1


@pytest.mark.parametrize("message", [b"\x00", b'{"op":"ping"}', "", "{", "[]", "null", '{"op":"ping"} x'])
def test_what_is_no_frame_is_the_end(client: SocketClient, message: str | bytes) -> None:
    """4501: do not come again like this."""
    client.connection.send(message)
    assert closed_with(client) == 4501


def test_an_over_long_frame_is_the_end(client: SocketClient) -> None:
    """1009, told while the rest of it still comes; up to the limit all is fine."""
    value = "x" * 65_000
    assert client.ask("publish", stream="s", fields={"a": value})["op"] == "ok"
    told = client.ask("publish", stream="s", fields={"a": "x" * 66_000})
    assert told["problem"]["code"] == "entry_too_large"
    client.send("publish", stream="s", fields={"a": "x" * 4_000_000})
    assert closed_with(client) == 1009


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (masked(0x1, b"\xff\xfe"), 1007),
        (masked(0x3, b"x"), 1002),
        (masked(0x0, b"x"), 1002),
        (masked(0x1, b"{", fin=False) + masked(0x1, b"}"), 1002),
        (masked(0x9, b"x" * 126), 1002),
        (masked(0x9, b"", fin=False), 1002),
        (b"\xc1\x80" + bytes(4), 1002),
        (b"\x81\x05hello", 1002),
        (masked(0x8, b"\x03"), 1002),
    ],
    ids=["utf8", "opcode", "continues nothing", "begins twice", "long ping", "ping in parts", "compressed",
         "not masked", "short close"],
)  # fmt: skip
def test_what_is_no_websocket_is_the_end(server: Server, sent: bytes, code: int) -> None:
    """The codes of RFC 6455."""
    with Raw(server.port) as raw:
        assert raw.handshake()[0] == 101
        raw.socket.sendall(sent)
        assert raw.close_code() == code


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_whole_messages_and_others_come_in_order(server: Server, pieces: int) -> None:
    """However the bytes are cut: whole ones, those in parts, control frames, lengths of all forms."""

    def ping(ref: str) -> bytes:
        return b'{"op":"ping","ref":"%b"}' % ref.encode()

    sent = [
        masked(0x1, ping("whole")),
        masked(0x9, b"one"),
        masked(0x1, ping("a")[:9], fin=False),
        masked(0x9, b"two"),
        masked(0x0, ping("a")[9:]),
        masked(0x1, ping("long") + b" " * 300),
        masked(0x1, ping("longest") + b" " * 66_000),
        masked(0x1, ping("last")),
    ]
    data = b"".join(sent)
    with Raw(server.port) as raw:
        raw.handshake()
        cuts = [len(data) * number // pieces for number in range(pieces + 1)]
        for start, end in itertools.pairwise(cuts):
            raw.socket.sendall(data[start:end])
            time.sleep(0.02)
        assert json.loads(raw.read()[1])["op"] == "hello"
        found: list[tuple[int, bytes]] = []
        while len(found) < 7:
            frame = raw.read()
            if frame != (1, b'{"op":"heartbeat"}'):
                found.append(frame)
    refs = [json.loads(text)["ref"] if opcode == 1 else text for opcode, text in found]
    assert refs == ["whole", b"one", b"two", "a", "long", "longest", "last"]


def test_a_message_in_parts_is_one_message(server: Server) -> None:
    """With a ping in between, which is answered first."""
    with Raw(server.port) as raw:
        raw.handshake()
        raw.write(0x1, b'{"op":', fin=False)
        raw.write(0x9, b"p")
        raw.write(0x0, b"", fin=False)
        raw.write(0x0, b'"ping","ref":"\xc3\xa9"}')
        frames = [raw.read() for _ in range(3)]
        assert json.loads(frames[0][1])["op"] == "hello"
        assert frames[1] == (0xA, b"p")
        assert json.loads(frames[2][1]) == {"op": "pong", "ref": "é"}


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/v1/ws", {"Origin": "http://evil.example"}, 403, "origin_refused"),
        ("/v1/ws", {"Origin": "null"}, 403, "origin_refused"),
        ("/v1/ws", {"Origin": "http://127.0.0.1.evil.example"}, 403, "origin_refused"),
        ("/v1/ws", {"Host": "evil.example"}, 403, "origin_refused"),
        ("/v1/ws?token=x", {}, 400, "unknown_parameter"),
        ("/v1/ws/", {}, 404, "no_route"),
        ("/v1/streams", {}, 404, "no_route"),
        ("/v1/ws", {"Upgrade": "", "Connection": ""}, 426, "upgrade_required"),
    ],
)
def test_a_handshake_is_refused_before_it_is_accepted(
    server: Server, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    """With a problem, as any request is."""
    with Raw(server.port) as raw:
        found, answered, body = raw.handshake(path, **headers)
        assert (found, json.loads(body)["code"]) == (status, code)
        assert answered["content-type"] == "application/problem+json"
        assert answered["weir-request-id"]


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "http://127.0.0.1"}, {"Sec_WebSocket_Protocol": "other, weir.v1"}]
)
def test_a_handshake_from_here_is_accepted(server: Server, headers: dict[str, str]) -> None:
    """Without an origin or from the gateway's own pages, with and without a subprotocol; never compressed."""
    with Raw(server.port) as raw:
        offered = {"Sec_WebSocket_Extensions": "permessage-deflate"}
        status, answered, _ = raw.handshake(**headers, **offered)
        assert status == 101
        assert "sec-websocket-extensions" not in answered
        chosen = "weir.v1" if "Sec_WebSocket_Protocol" in headers else None
        assert answered.get("sec-websocket-protocol") == chosen


# ---- slow and broken peers


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Server]:
    """A gateway of its own, with real patience."""
    with Server(tmp_path / "data") as server:
        yield server


def resident_bytes(server: Server) -> int:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise AssertionError("every process has it")


def publish_megabytes(http: httpx.Client, count: int) -> None:
    value = "x" * 10_000
    for _ in range(count):
        add(http, "s", *[value] * 100)


@pytest.mark.alone
def test_a_reader_that_stalls_is_gone_and_nobody_notices(patient: Server) -> None:
    """Within 15 s, with 4004, at no more than 2 MiB; the others get everything meanwhile. What never left for
    a stalled consumer goes back at once.
    """
    with (
        httpx.Client(base_url=patient.url, timeout=30) as http,
        talking(patient) as good,
        contextlib.ExitStack() as open_sockets,
    ):
        publish_megabytes(http, 4)
        good.ask("subscribe", sub="t", streams={"s": "$"})
        assert good.next()["op"] == "caught_up"
        stalled = [open_sockets.enter_context(Raw(patient.port, receive_bytes=64 << 10)) for _ in range(10)]
        before = resident_bytes(patient)
        began = time.monotonic()
        for number, raw in enumerate(stalled):
            raw.handshake()
            if number:
                raw.send("subscribe", sub="t", streams={"s": "0"})
            else:
                raw.send("consume", sub="w", consumer="c", credit=1_000, batch_max=20, **WORK)
        latency_s = []
        grown = 0
        while time.monotonic() - began < 9:
            sent = time.monotonic()
            add(http, "s", 1)
            good.entries(1)
            latency_s.append(time.monotonic() - sent)
            grown = max(grown, resident_bytes(patient) - before)
            time.sleep(0.05)
        assert grown < len(stalled) * (2 << 20)
        assert sorted(latency_s)[len(latency_s) * 99 // 100] < 0.25
        held = len(pending(http))
        assert held
        eventually(lambda: len([1 for owner, _ in pending(http) if owner is None]) > 0, "given back", 7)
        assert time.monotonic() - began < 15
        owned = [count for owner, count in pending(http) if owner == "c"]
        released = [count for owner, count in pending(http) if owner is None]
        assert set(owned) <= {1}
        assert set(released) == {0}
        codes = {raw.close_code() for raw in stalled}
        assert codes <= {4004, -1}


@pytest.mark.alone
def test_a_stalled_reader_that_wakes_up_is_told(patient: Server) -> None:
    """4004 comes behind what was sent before."""
    with httpx.Client(base_url=patient.url, timeout=30) as http, Raw(patient.port, 64 << 10) as raw:
        publish_megabytes(http, 4)
        raw.handshake()
        raw.send("subscribe", sub="t", streams={"s": "0"})
        time.sleep(10.7)
        assert raw.close_code() == 4004


@pytest.mark.alone
@pytest.mark.parametrize(
    "flood",
    [masked(0x9, b"x" * 20), masked(0xA, b""), masked(0x0, b"", fin=False)],
    ids=["pings", "pongs", "empty fragments"],
)
def test_a_flood_ends_and_nobody_notices(patient: Server, flood: bytes) -> None:
    """4005 for who floods; others are answered in time, and memory stays where it is."""
    before = resident_bytes(patient)
    with Raw(patient.port) as raw, httpx.Client(base_url=patient.url) as http:
        raw.handshake()
        raw.write(0x1, b"{", fin=False)
        ended = threading.Event()

        def pour() -> None:
            try:
                while not ended.is_set():
                    raw.socket.sendall(flood * 4_096)
            except OSError:
                pass
            ended.set()

        pouring = threading.Thread(target=pour)
        pouring.start()
        latency_s = []
        for _ in range(100):
            began = time.monotonic()
            assert http.get("/healthz/live").status_code == 200
            latency_s.append(time.monotonic() - began)
        assert ended.wait(15), "the flood was let go on"
        pouring.join()
        assert sorted(latency_s)[98] < 0.25
        assert raw.close_code() in (4005, -1)
    assert resident_bytes(patient) - before < 32 << 20


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_what_never_left_for_a_dead_worker_goes_back(patient: Server, how: str) -> None:
    """It had stopped reading, and is gone before the gateway lost patience: only frames that had not left
    whole are given back, the others are its history.
    """
    with httpx.Client(base_url=patient.url, timeout=30) as http:
        publish_megabytes(http, 4)
        with Raw(patient.port, receive_bytes=64 << 10) as raw:
            raw.handshake()
            raw.send("consume", sub="w", consumer="c", credit=1_000, batch_max=5, **WORK)
            eventually(lambda: len(pending(http)) > 20, "it was given something")
            time.sleep(0.5)
            if how == "killed":
                raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: any(owner is None for owner, _ in pending(http)), "given back", 5)
        rows = pending(http)
        assert {count for owner, count in rows if owner is None} == {0}
        assert {count for owner, count in rows if owner == "c"} == {1}
        released = [owner for owner, _ in rows]
        assert released == sorted(released, key=lambda owner: owner is None), "the last that were sent"


def frames_of(raw: Raw, op: str) -> Iterator[Json]:
    """What is pushed from now on, of this kind."""
    while True:
        frame = json.loads(raw.read()[1])
        if frame["op"] == op:
            yield frame


def test_entries_for_a_stalled_socket_do_not_gather(patient: Server) -> None:
    """Many of its consumers waited for entries when it stopped reading: a few are given theirs, the others'
    go back. Once it reads again everything comes, once.
    """
    value = "x" * 900_000
    streams = [f"s{number}" for number in range(20)]
    with httpx.Client(base_url=patient.url, timeout=30) as http, Raw(patient.port, 4 << 10) as raw:
        raw.handshake()
        for stream in streams:
            raw.send("consume", sub=stream, consumer="c", **WORK | {"stream": stream})
            next(frames_of(raw, "caught_up"))
        raw.send("subscribe", sub="t", streams={"t": "$"})
        next(frames_of(raw, "caught_up"))
        for _ in range(5):
            add(http, "t", value)
        ids = [(stream, *add(http, stream, value)) for stream in streams]

        def owners() -> list[str | None]:
            found = [http.get(f"/v1/streams/{stream}/groups/g/pending?count=9").json() for stream in streams]
            return [row["consumer"] for one in found for row in one["pending"]]

        eventually(lambda: len(owners()) == len(streams) and owners().count("c") <= 2, "given back", 5)
        got = itertools.islice(frames_of(raw, "entries"), 5 + len(streams))
        seen = [(one["sub"], entry["id"]) for one in got for entry in one["entries"] if one["sub"] != "t"]
        assert sorted(seen) == sorted(ids)


@pytest.mark.alone
def test_history_for_a_stalled_socket_does_not_gather(patient: Server) -> None:
    """However many subscriptions begin with it at once; once the socket reads, each gets all of it."""
    count = 60
    with httpx.Client(base_url=patient.url, timeout=30) as http, Raw(patient.port, 4 << 10) as raw:
        for _ in range(2):
            add(http, "s", "x" * 900_000)
        raw.handshake()
        before = resident_bytes(patient)
        subs = [f"t{number}" for number in range(count)]
        wanted = [{"op": "subscribe", "sub": sub, "streams": {"s": "0"}} for sub in subs]
        raw.socket.sendall(b"".join(masked(0x1, json.dumps(one).encode()) for one in wanted))
        time.sleep(2)
        assert resident_bytes(patient) - before < 12 << 20
        got = itertools.islice(frames_of(raw, "entries"), 2 * count)
        seen = [one["sub"] for one in got for _ in one["entries"]]
        assert sorted(seen) == sorted(2 * subs)


def test_what_meets_a_close_goes_back(server: Server, http: httpx.Client) -> None:
    """A consumer says goodbye while an entry comes for it: what it has not seen is the group's again, as if
    it had never been delivered.
    """
    unseen = []
    with Raw(server.port) as publisher:
        publisher.handshake()
        for number in range(10):
            stream = f"s{number}"
            with Raw(server.port) as raw:
                raw.handshake()
                raw.send("consume", sub="w", consumer="c", **WORK | {"stream": stream})
                while b'"caught_up"' not in raw.read()[1]:
                    pass
                publisher.send("publish", ref=1, stream=stream, fields={"n": 1})
                raw.write(0x8, struct.pack(">H", 1000))
                while (frame := raw.read())[0] == 0x1 and b'"entries"' not in frame[1]:
                    pass
                while b'"ok"' not in publisher.read()[1]:
                    pass
                if frame[0] != 0x1:
                    unseen.append(stream)
    assert unseen, "every entry was faster than the close that came with it"

    def rows() -> list[tuple[str | None, int]]:
        found = [http.get(f"/v1/streams/{stream}/groups/g/pending?count=9").json() for stream in unseen]
        return [(row["consumer"], row["delivery_count"]) for one in found for row in one["pending"]]

    eventually(lambda: ("c", 1) not in rows(), "given back")
    assert set(rows()) <= {(None, 0)}


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (b"\x81\xff" + struct.pack(">Q", 50 << 20) + bytes(4), 1009),
        (masked(0x1, b"\xff\xfe"), 1007),
        (masked(0x9) * 3_000, 4005),
    ],
    ids=["too long", "not UTF-8", "a flood"],
)
def test_what_comes_behind_our_close_goes_back(
    server: Server, http: httpx.Client, ending: bytes, code: int
) -> None:
    """The peer has been told that it ends, and stays: what comes for it is not kept until it is gone."""
    with Raw(server.port) as raw:
        raw.handshake()
        raw.send("consume", sub="w", consumer="c", **WORK)
        while b'"caught_up"' not in raw.read()[1]:
            pass
        raw.socket.sendall(ending)
        assert raw.close_code() == code
        add(http, "s", *range(5))
        add(http, "s", *range(5))
        eventually(lambda: ("c", 1) not in pending(http), "given back at once", 1.5)
        assert set(pending(http)) <= {(None, 0)}


def test_too_many_sockets_are_refused(tmp_path: Path) -> None:
    """Before they are accepted; one that leaves makes room. In the log it is a refusal, and no error."""
    with Server(tmp_path / "data", "--set", "sockets_max=2") as server:
        with talking(server), talking(server), Raw(server.port) as raw:
            status, answered, body = raw.handshake()
            assert (status, json.loads(body)["code"]) == (429, "too_many_sockets")
            assert answered["retry-after"]

        def accepted() -> bool:
            with Raw(server.port) as raw:
                return raw.handshake()[0] == 101

        eventually(accepted, "there is room again")
    assert '"level":"error"' not in (tmp_path / "data.log").read_text()


# ---- the end


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
