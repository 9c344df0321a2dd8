"""Two tenants with the same names of streams, on every API of a real gateway: neither sees names or data of
the other, and no answer has a byte of a prefix.
"""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from websockets.sync.client import connect

from app.auth import Grant, token_file, tokens
from tests.app.sockets import SocketClient
from tests.server import Server, free_port

S: Final = "/v1/streams/orders"
G: Final = f"{S}/groups/g"
ROOT: Final = "root-token-of-at-least-24-characters"
LINES: Final = {"content-type": "application/x-ndjson"}


class Caller:
    """One tenant: its client, and every byte that it was answered. `mark` is in all its data."""

    def __init__(self, server: Server, resp_port: int, prefix: str, mark: str) -> None:
        self.prefix = prefix
        self.mark = mark
        self.server = server
        self.resp_port = resp_port
        self.seen = bytearray()
        grant = Grant.from_value({"actions": ["*"], "streams": "*", "prefix": prefix})
        self.token = tokens.create((grant,))
        headers = {"authorization": f"Bearer {self.token.text}"}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=20)

    def call(self, method: str, path: str, status: int = 200, **options: Any) -> Any:
        """What a request answers, as JSON if it is JSON."""
        with self.http.stream(method, path, **options) as answer:
            body = answer.read()
        self.see(b"".join(b"%b: %b\n" % header for header in answer.headers.raw) + body)
        assert answer.status_code == status, (method, path, body)
        is_json = answer.headers.get("content-type", "").startswith(
            ("application/json", "application/problem")
        )
        return json.loads(body) if is_json else body

    def see(self, data: bytes) -> None:
        """Keep what was answered."""
        self.seen += data + b"\n"

    def publish(self, value: str, stream: str = "orders") -> str:
        path = f"/v1/streams/{stream}/entries"
        found: str = self.call("POST", path, 201, json={"fields": {"v": f"{self.mark}{value}"}})["id"]
        return found

    def run(self, *words: str) -> Any:
        """The result of a Redis command."""
        return self.call("POST", "/v1/commands", json=list(words))["result"]

    def events(self, path: str, names: set[str], **options: Any) -> None:
        """Follow events until one of each of these kinds has come."""
        headers = {"accept": "text/event-stream"}
        with self.http.stream("GET", path, headers=headers, **options) as answer:
            assert answer.status_code == 200, answer.read()
            missing = set(names)
            for line in answer.iter_lines():
                self.see(line.encode())
                missing.discard(line.removeprefix("event: "))
                if not missing:
                    return
        raise AssertionError(f"{missing} did not come")

    @staticmethod
    def words(*words: str) -> bytes:
        """A command as Redis clients send it."""
        encoded = [b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()) for word in words]
        return b"*%d\r\n%b" % (len(words), b"".join(encoded))

    def connect(self) -> socket.socket:
        """A connection to the port for Redis clients, which has sent its token."""
        wire = socket.create_connection(("127.0.0.1", self.resp_port), timeout=20)
        wire.sendall(self.words("AUTH", self.token.text))
        return wire

    def wire(self, *commands: tuple[str, ...]) -> bytes:
        """What the port for Redis clients answers."""
        with closing(self.connect()) as wire:
            wire.sendall(b"".join(self.words(*words) for words in (*commands, ("QUIT",))))
            found = b""
            while piece := wire.recv(1 << 16):
                found += piece
        self.see(found)
        return found


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, Caller, httpx.Client]]:
    """Both tenants, and who may do everything; each tenant has used every API when it is here."""
    folder: Path = tmp_path_factory.mktemp("tenants")
    made, root, port = folder / "tokens.toml", folder / "root", free_port()
    server = Server(
        folder / "data",
        *("--set", f"tokens_file={made}", "--set", f"root_token_file={root}", "--set", f"resp_listen={port}"),
        *("--set", "log_requests=none", "--set", f"audit_file={folder / 'audit'}"),
    )
    one = Caller(server, port, "qqacme.", "of-one-")
    other = Caller(server, port, "zzglobex:", "of-another-")
    root.write_text(ROOT)
    made.write_text("".join(token_file.write(caller.token.token) for caller in (one, other)))
    with closing(one.http), closing(other.http), server:
        for caller in (one, other):
            use_streams(caller)
            use_groups(caller)
            use_dead_letters(caller)
            use_many(caller)
            use_commands(caller)
            follow(caller)
            use_socket(caller)
            use_redis_port(caller)
            use_tokens(caller)
            be_refused(caller)
        with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {ROOT}"}) as everything:
            yield one, other, everything


def use_streams(caller: Caller) -> None:
    """Publish, read, page, export, list, change, trim, delete."""
    first = caller.publish("1")
    # Twice: the second time the token is known, and the request is a plain one.
    caller.publish("2")
    lines = "".join(f'{{"fields":{{"v":"{caller.mark}{n}"}}}}\n' for n in (3, 4))
    caller.call("POST", f"{S}/entries", 201, content=lines, headers=LINES)
    found = caller.call("GET", f"{S}/entries")["entries"]
    assert [one["fields"]["v"] for one in found] == [f"{caller.mark}{n}" for n in (1, 2, 3, 4)]
    assert len(caller.call("GET", f"{S}/entries", params={"after": first})["entries"]) == 3
    caller.call("GET", f"{S}/entries/{first}")
    caller.call("GET", f"{S}/entries", params={"after": found[-1]["id"], "wait": 20})
    assert caller.mark.encode() in caller.call("GET", f"{S}/export")
    assert caller.mark in str(caller.call("GET", f"{S}/columns"))
    for name in ("a", "b", "c"):
        caller.call("PUT", f"/v1/streams/{name}", 201, json={})
    names: list[str] = []
    following: str | None = ""
    while following is not None:
        query = {"limit": "2"} | ({"after": following} if following else {})
        page = caller.call("GET", "/v1/streams", params=query)
        names += [one["name"] for one in page["streams"]]
        following = page["next"]
    assert names == ["a", "b", "c", "orders"]
    assert [one["name"] for one in caller.call("GET", "/v1/streams?prefix=or")["streams"]] == ["orders"]
    assert caller.call("GET", S)["name"] == "orders"
    caller.call("GET", S, params={"full": "true"})
    caller.call("PATCH", "/v1/streams/a", json={"retention": {"max_len": 5}})
    caller.call("POST", "/v1/streams/a/trim", json={"maxlen": 0})
    caller.call("DELETE", f"{S}/entries/{first}", 204)
    caller.call("DELETE", "/v1/streams/c", 204)
    answer = caller.call("GET", "/v1/streams/missing", 404)
    assert "'missing'" in answer["detail"]


def use_groups(caller: Caller) -> None:
    """Read, look, acknowledge, give back, claim; and the reads that find nothing, or no group."""
    caller.call("POST", f"{S}/groups", 201, json={"name": "g", "start": "0"})
    caller.call("POST", f"{S}/groups", 409, json={"name": "g", "start": "0"})
    read = f"{G}/consumers/w/read"
    given = caller.call("POST", read, json={"count": 2})["entries"]
    assert [one["fields"]["v"] for one in given] == [f"{caller.mark}2", f"{caller.mark}3"]
    caller.call("POST", read, json={"after": "0"})
    caller.call("GET", f"{G}/pending")
    assert len(caller.call("GET", f"{G}/pending", params={"count": 9})["pending"]) == 2
    caller.call("GET", f"{G}/consumers")
    caller.call("GET", f"{G}/consumers/w")
    caller.call("POST", f"{G}/ack", json={"ids": [given[0]["id"]]})
    caller.call("POST", f"{G}/nack", json={"ids": [given[1]["id"]], "mode": "fail"})
    caller.call("POST", f"{G}/claim", json={"consumer": "x", "min_idle_ms": 0, "ids": [given[1]["id"]]})
    caller.call("POST", f"{G}/autoclaim", json={"consumer": "w", "min_idle_ms": 0})
    caller.call("POST", read, json={"wait": 20, "count": 1})
    caller.call("POST", read, json={"wait": 20})
    for path in (f"{S}/groups/missing", f"{S}/groups/missing/pending", "/v1/streams/missing/groups"):
        assert "missing" in caller.call("GET", path, 404)["detail"]
    caller.call("POST", f"{S}/groups/missing/consumers/w/read", 404, json={"wait": 20})


def use_dead_letters(caller: Caller) -> None:
    """A group that dead-letters into a stream of the tenant, entries that come back from there."""
    letters = {"stream": "dead", "max_deliveries": 2}
    assert caller.call("PUT", f"{S}/groups/d", 201, json={"start": "0", "dead_letter": letters})
    assert caller.call("GET", f"{S}/groups/d")["dead_letter"]["stream"] == "dead"
    assert caller.call("GET", f"{S}/groups")["groups"][0]["dead_letter"]["stream"] == "dead"
    caller.call("POST", f"{S}/entries", 201, json={"fields": {"v": "/w=="}, "encoding": "base64"})
    given = caller.call("POST", f"{S}/groups/d/consumers/w/read", json={})["entries"]
    buried = caller.call("POST", f"{S}/groups/d/dead-letter", json={"ids": [one["id"] for one in given]})
    assert buried["stream"] == "dead"
    found = caller.call("GET", "/v1/streams/dead/entries")["entries"]
    assert [one["fields"]["weir-source"] for one in found[:-1]] == ["orders"] * (len(given) - 1)
    assert base64.b64decode(found[-1]["fields"]["weir-source"]) == b"orders"
    caller.call("GET", "/v1/streams/dead", params={"full": "true"})
    caller.call("GET", "/v1/streams/dead/columns")
    caller.call("GET", "/v1/streams/dead/export")
    shown = caller.http.get("/v1/streams/dead")
    caller.call("PATCH", "/v1/streams/dead", json={}, headers={"if-match": shown.headers["etag"]})
    redrive = f"{S}/groups/d/dead-letters/redrive"
    caller.call("POST", redrive, json={"dry_run": True})
    assert caller.call("POST", redrive, json={})["redriven"] == len(given)


def use_many(caller: Caller) -> None:
    """Streams together: publish, read, plan; keys of publications are of each tenant."""
    entry = [{"fields": {"v": f"{caller.mark}many"}}]
    body = json.dumps({"streams": {"orders": entry, "b": entry}})
    for headers in ({"idempotency-key": "k"}, {"weir-producer": "p", "weir-epoch": "2", "weir-chunk": "0"}):
        for repeated in (False, True):
            answer = caller.call("POST", "/v1/publish", 201, content=body, headers=headers)
            assert (sorted(answer["streams"]), answer["duplicate"]) == (["b", "orders"], repeated)
    old = {"weir-producer": "p", "weir-epoch": "1", "weir-chunk": "0"}
    assert "'p'" in caller.call("POST", "/v1/publish", 409, content=body, headers=old)["detail"]
    read = caller.call("POST", "/v1/read", json={"streams": {"orders": "0", "b": "0", "missing": "0"}})
    assert sorted(read["streams"]) == ["b", "missing", "orders"]
    caller.call("POST", "/v1/read", json={"streams": {"missing": "0"}, "wait": 20})
    group = {"group": "g", "consumer": "w", "streams": {"orders": ">"}}
    caller.call("POST", "/v1/read", json=group)
    caller.call("POST", "/v1/read", json=group)
    assert sorted(caller.call("POST", "/v1/plan", json={"pattern": "o*"})["streams"]) == ["orders"]
    named = {"streams": {"orders": "0", "missing": "0"}, "end": {"orders": "5-0"}, "wait": 20}
    assert caller.call("POST", "/v1/plan", json=named)["missing"] == ["missing"]


def use_commands(caller: Caller) -> None:
    """Redis commands: alone, in pipelines, in transactions, lists of names, errors that quote them."""
    assert sorted(caller.run("KEYS", "*")) == ["a", "b", "dead", "orders"]
    assert caller.run("KEYS", "o*") == ["orders"]
    assert caller.run("KEYS", f"{caller.prefix}*") == []
    names: list[str] = []
    cursor = "0"
    while True:
        cursor, some = caller.run("SCAN", cursor, "COUNT", "1")
        names += some
        if cursor == "0":
            break
    assert names == ["a", "b", "dead", "orders"]
    caller.run("XINFO", "STREAM", "orders", "FULL")
    caller.run("XINFO", "GROUPS", "orders")
    caller.run("XREAD", "STREAMS", "orders", "missing", "0", "0")
    assert caller.run("COPY", "orders", "copy") == 1
    assert caller.run("RENAME", "copy", "renamed") == "OK"
    assert caller.run("EXISTS", "renamed", "copy") == 1
    assert caller.run("DEL", "renamed") == 1
    assert caller.run("TYPE", "orders") == "stream"
    assert caller.run("WAITAOF", "1", "0", "0") == [1, 0]
    rows = [
        ["XADD", "b", "*", "v", caller.mark],
        ["XLEN", "b"],
        ["XGROUP", "CREATE", "missing", "g", "0"],
        ["XPENDING", "missing", "g"],
        ["XREADGROUP", "GROUP", "missing", "w", "STREAMS", "orders", ">"],
        ["XINFO", "CONSUMERS", "orders", "missing"],
    ]
    for path in ("/v1/commands/pipeline", "/v1/commands/multi-exec"):
        answer = caller.call("POST", path, json=rows)
        assert "NOGROUP No such key 'missing' or consumer group 'g'" in str(answer)
    for words in (
        ["FLUSHALL"],
        ["DBSIZE"],
        ["CONFIG", "GET", "*"],
        ["CONFIG", "SET", "stream-node-max-entries", "1"],
    ):
        caller.call("POST", "/v1/commands", 403, json=words)


def follow(caller: Caller) -> None:
    """Tails of one stream and of several, and a consumer, over server-sent events."""
    caller.events(f"{S}/tail?after=0", {"entry", "caught_up"})
    caller.events("/v1/tail?stream=orders&stream=dead&after=0", {"entry", "caught_up"})
    caller.call("PUT", f"{S}/groups/sse", 201, json={"start": "0"})
    caller.events(f"{S}/groups/sse/consumers/w/stream", {"entry"})
    caller.call("GET", f"{S}/groups/missing/consumers/w/stream", 404, headers={"accept": "text/event-stream"})
    caller.call("POST", "/v1/streams/b/trim", json={"maxlen": 1})
    caller.events("/v1/tail?stream=b&stream=orders&after=0-1", {"gap", "entry"})


def use_socket(caller: Caller) -> None:
    """Publish, subscribe, consume and commands over a WebSocket, opened with `auth` and by a ticket."""
    ticket = caller.call("POST", "/v1/tickets", 201)["ticket"]
    for offered in ((), (f"weir.ticket.{ticket}",)):
        place = f"ws://127.0.0.1:{caller.server.port}/v1/ws"
        with connect(place, subprotocols=["weir.v1", *offered], compression=None) as connection:  # type: ignore[list-item]
            client = SocketClient(connection)
            if not offered:
                caller.see(str(client.ask("auth", token=caller.token.text)).encode())
            frames = [client.ask("publish", stream="orders", fields={"v": f"{caller.mark}socket"})]
            frames.append(client.ask("subscribe", sub="s", streams={"orders": "0", "b": "$"}))
            assert frames[-1]["op"] == "ok", frames
            frames += client.until("caught_up")
            group = {"stream": "orders", "group": f"ws{len(offered)}", "consumer": "w", "create": "0"}
            frames += answers(client, "consume", sub="c", **group)
            while frames[-1].get("sub") != "c" or frames[-1]["op"] != "entries":
                frames.append(client.next())
            ids = [one["id"] for one in frames[-1]["entries"]]
            frames += answers(client, "ack", sub="c", ids=ids[:1])
            frames += answers(client, "unsubscribe", sub="c")
            frames += answers(client, "command", command=["KEYS", "*"])
            assert sorted(frames[-1]["result"]) == ["a", "b", "dead", "orders"]
            frames += answers(client, "consume", sub="x", **group | {"stream": "missing", "create": False})
            assert "'missing'" in str(frames[-1])
            caller.see(json.dumps(frames).encode())


def answers(client: SocketClient, op: str, **members: Any) -> list[Any]:
    """The frames up to the answer of this one."""
    client.send(op, ref=op, **members)
    frames = [client.next()]
    while frames[-1].get("ref") != op:
        frames.append(client.next())
    return frames


def use_redis_port(caller: Caller) -> None:
    """The same words over the port for Redis clients."""
    found = caller.wire(
        ("XADD", "orders", "*", "v", f"{caller.mark}resp"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("XRANGE", "orders", "-", "+"),
        ("XREAD", "BLOCK", "1", "STREAMS", "orders", "$"),
        ("XREADGROUP", "GROUP", "g", "w", "BLOCK", "1", "STREAMS", "orders", ">"),
        ("XREADGROUP", "GROUP", "missing", "w", "STREAMS", "orders", ">"),
        ("XPENDING", "orders", "missing"),
        ("CLIENT", "LIST"),
        ("XGROUP", "CREATE", "orders", "by-resp", "$"),
        ("FLUSHALL",),
        ("DBSIZE",),
        ("WATCH", "orders", "dead"),
        ("MULTI",),
        ("XLEN", "orders"),
        ("KEYS", "*"),
        ("EXEC",),
        ("INFO",),
        ("PSUBSCRIBE", "*"),
        ("SUBSCRIBE", "__keyspace@0__:orders"),
    )
    assert found.count(b"-NOPERM") == 2
    assert b"'orders'" in found


def use_tokens(caller: Caller) -> None:
    """A tenant passes on what it has: the prefix stands before what it asks for, and is not shown."""
    assert caller.call("GET", "/v1/whoami")["grants"][0]["prefix"] is None
    made = []
    for prefix in (None, "eu."):
        body = {"grants": [{"actions": ["write", "read"], "streams": "*", "prefix": prefix}]}
        made.append(caller.call("POST", "/v1/admin/tokens", 201, json=body))
        assert made[-1]["grants"][0]["prefix"] == prefix
    listed = caller.call("GET", "/v1/admin/tokens")["tokens"]
    assert sorted(one["id"] for one in listed) == sorted(one["id"] for one in made)
    for token, names in zip(made, (["a", "b", "dead", "orders"], []), strict=True):
        headers = {"authorization": f"Bearer {token['token']}"}
        page = caller.call("GET", "/v1/streams", headers=headers)
        assert [one["name"] for one in page["streams"]] == names
        caller.call("DELETE", f"/v1/admin/tokens/{token['id']}", 204)


def be_refused(caller: Caller) -> None:
    """What is about the gateway, or about all streams."""
    for method, path in (
        ("GET", "/v1/status"),
        ("GET", "/metrics"),
        ("GET", "/v1/admin/rewrite"),
        ("POST", "/v1/admin/rewrite"),
        ("GET", "/v1/admin/backup"),
        ("GET", "/v1/admin/revocations"),
    ):
        caller.call(method, path, 403)
    caller.call("POST", "/v1/admin/backup", 403, json={"path": "x"})
    caller.call("POST", "/v1/admin/revocations", 403, json={"jti": "x"})


Callers = tuple[Caller, Caller, httpx.Client]


def test_events_are_of_the_tenants_streams(callers: Callers) -> None:
    """Over the port for Redis clients, by channel and by pattern."""
    for caller, other in (callers[:2], callers[1::-1]):
        with closing(caller.connect()) as wire:
            wire.sendall(caller.words("PSUBSCRIBE", "*") + caller.words("SUBSCRIBE", "__keyspace@0__:orders"))
            received = wire.makefile("rb")
            subscribed = [received.readline() for _ in range(1 + 2 * 6)]
            assert subscribed[0] == b"+OK\r\n"
            other.publish("event")
            caller.publish("event")
            found = b"".join(received.readline() for _ in range(7 + 9 + 9))
            received.close()
        caller.see(found)
        expected = [b"__keyspace@0__:orders", b"__keyspace@0__:orders", b"__keyevent@0__:xadd"]
        assert [line.strip() for line in found.splitlines() if line.startswith(b"__")] == expected


def test_no_answer_has_a_byte_of_a_prefix(callers: Callers) -> None:
    for caller in callers[:2]:
        assert len(caller.seen) > 10_000
        for prefix in (callers[0].prefix, callers[1].prefix):
            for written in (prefix, base64.b64encode(prefix.encode()).decode()[:8]):
                assert written.encode() not in caller.seen


def test_neither_sees_data_of_the_other(callers: Callers) -> None:
    one, other, _ = callers
    assert one.mark.encode() in one.seen
    assert other.mark.encode() in other.seen
    assert one.mark.encode() not in other.seen
    assert other.mark.encode() not in one.seen


def test_the_real_names_have_the_prefixes(callers: Callers) -> None:
    """As those see them who have no prefix."""
    one, other, everything = callers
    names = [stream["name"] for stream in everything.get("/v1/streams").json()["streams"]]
    own = ["a", "b", "dead", "orders"]
    assert names == [f"{caller.prefix}{name}" for caller in (one, other) for name in own]


def test_the_audit_log_has_the_real_names(callers: Callers) -> None:
    """Of paths, and of Redis commands over both APIs."""
    one, other, _ = callers
    lines = [json.loads(line) for line in one.server.data.with_name("audit").read_text().splitlines()]
    for caller in (one, other):
        own = [line for line in lines if line["caller"] == f"token:{caller.token.token.id}"]
        named = [[line["stream"]] if "stream" in line else line.get("streams", []) for line in own]
        assert all(name.startswith(caller.prefix) for names in named for name in names)
        assert [f"{caller.prefix}copy", f"{caller.prefix}renamed"] in named
        by_resp = [line["streams"] for line in own if line.get("group") == "by-resp"]
        assert by_resp == [[f"{caller.prefix}orders"]]


def test_a_socket_does_not_go_over_to_another_tenant(callers: Callers) -> None:
    """What it has opened is of the first one."""
    one, other, _ = callers
    with connect(f"ws://127.0.0.1:{one.server.port}/v1/ws", subprotocols=["weir.v1"]) as connection:  # type: ignore[list-item]
        client = SocketClient(connection)
        client.ask("auth", token=one.token.text)
        assert client.ask("auth", token=one.token.text)["op"] == "ok"
        client.send("auth", ref="auth", token=other.token.text)
        assert "forbidden" in str(client.next())
