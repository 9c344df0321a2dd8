"""What is no frame, no message and no handshake, over real sockets."""

import itertools
import json
import time

import pytest

from tests.app.sockets import Raw, SocketClient, masked, talking
from tests.app.websocket.group_calls import closed_with
from tests.server import Server


@pytest.mark.parametrize("message", [b"\x00", b'{"op":"ping"}', "", "{", "[]", "null", '{"op":"ping"} x'])
def test_what_is_no_frame_is_the_end(client: SocketClient, message: str | bytes) -> None:
    """4501: do not come again like this."""
    client.connection.send(message)
    assert closed_with(client) == 4501


def test_an_over_long_frame_is_the_end(client: SocketClient) -> None:
    """1009, sent while the rest of it still arrives; up to the limit all is fine."""
    value = "x" * 65_000
    assert client.ask("publish", stream="s", fields={"a": value})["op"] == "ok"
    result = client.ask("publish", stream="s", fields={"a": "x" * 66_000})
    assert result["problem"]["code"] == "entry_too_large"
    client.send("publish", stream="s", fields={"a": "x" * 4_000_000})
    assert closed_with(client) == 1009


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
        masked(0x0, b"", fin=False),
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


def test_a_long_message_is_answered_before_those_behind_it(patient: Server) -> None:
    """It is read in a thread; in order all the same, refused or not."""
    entries = [{"fields": {"a": "1" * 100}}] * 3_000
    with talking(patient) as client:
        for _ in range(2):
            client.send("publish", ref=1, stream="s", entries=entries)
            client.send("publish", ref=2, stream="s", entries=[*entries, {"fields": {}}])
            client.send("ping", ref=3)
            answers = [client.next() for _ in range(3)]
            assert [(answer["op"], answer["ref"]) for answer in answers] == [
                ("ok", 1),
                ("error", 2),
                ("pong", 3),
            ]
            assert answers[0]["count"] == len(entries)
