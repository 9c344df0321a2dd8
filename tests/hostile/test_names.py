"""Hostile names on every route that takes one: no two collapse, none leaves its place or its log line."""

import json
import re
from collections.abc import Callable
from itertools import product
from urllib.parse import quote

import pytest

from app.main import ROUTES
from tests.hostile.conftest import log_of
from tests.hostile.peers import HOST, answers, ask, ask_json, connected, exchange
from tests.server import Server

# HEAD answers as GET does, without a body.
NAMED = sorted(
    {(route.method, route.template) for route in ROUTES if "{" in route.template and route.method != "HEAD"}
)
# Whose word is a name; an ID in a path has a table of its own.
NAMES = [
    (method, path, name) for method, path in NAMED for name in re.findall(r"{(\w+)}", path) if name != "id"
]

REFUSED = {
    "NUL": b"%00",
    "NUL inside": b"a%00b",
    "invalid UTF-8": b"%ff",
    "another": b"%fe",
    "slash": b"%2f",
    "slash at the end": b"a%2F",
    "slash at the beginning": b"%2Fa",
    "slashes": b"a%2F%2fb",
    "dot between slashes": b"a%2F.%2Fb",
    "dots after a slash": b"a%2F%2e%2e",
    "the gateway's own": b"weir%2Fgateways",
    "overlong slash": b"%c0%af",
    "overlong NUL": b"%c0%80",
    "overlong dot": b"%e0%80%ae",
    "surrogate": b"%ed%a0%80",
    "cut character": b"%c3",
    "beyond Unicode": b"%f5%80%80%80",
    "CR LF": b"a%0d%0ab",
    "LF": b"%0a",
    "ESC": b"%1b",
    "DEL": b"%7f",
    "C1": b"%c2%85",
    "dot": b"%2e",
    "dots": b"%2e%2e",
    "dots as they are": b"..",
    "up and away": b"..%2f..%2fetc%2fpasswd",
    "bad escape": b"%zz",
    "bad escape before one": b"%%41",
    "half an escape": b"%1",
    "cut escape": b"%",
    "513 bytes": b"x" * 513,
    "514 bytes of two": b"%C3%A9" * 257,
    "nothing": b"",
}


def placed(path: str, name: str, raw: bytes) -> bytes:
    """A route's path with `raw` as one of its names, and something plain as the others."""
    filled = path.replace(f"{{{name}}}", "\0").replace("{id}", "1-0")
    return re.sub(r"{\w+}", "s", filled).encode().replace(b"\0", raw)


@pytest.mark.parametrize(("method", "path", "name"), NAMES)
def test_hostile_names_in_paths(untouched: Server, method: str, path: str, name: str) -> None:
    """T14, T15, T16. 400 `invalid_name` on each route, in each place, and no answer repeats the bytes raw."""
    with connected(untouched.port) as peer, peer.makefile("rb") as incoming:
        for what, raw in REFUSED.items():
            peer.sendall(method.encode() + b" " + placed(path, name, raw) + b" HTTP/1.1\r\n" + HOST + b"\r\n")
            status = int(incoming.readline().split()[1])
            headers = dict(line.split(b": ", 1) for line in iter(incoming.readline, b"\r\n"))
            body = json.loads(incoming.read(int(headers[b"content-length"])))
            # An empty name at the end of a path is a slash too many.
            wanted = (404, "no_route") if not raw and path.endswith(f"{name}}}") else (400, "invalid_name")
            assert (status, body["code"]) == wanted, what


GROUP = "/v1/streams/s/groups/g"
IN_BODIES: dict[str, tuple[str, Callable[[str], object]]] = {
    "createGroup": ("/v1/streams/s/groups", lambda name: {"name": name, "mkstream": True}),
    "claim": (f"{GROUP}/claim", lambda name: {"consumer": name, "min_idle_ms": 0, "ids": ["1-0"]}),
    "autoclaim": (f"{GROUP}/autoclaim", lambda name: {"consumer": name, "min_idle_ms": 0}),
    "publish": ("/v1/publish", lambda name: {"streams": {name: [{"fields": {"a": "1"}}]}}),
    "read": ("/v1/read", lambda name: {"streams": {name: "0"}}),
    "read a group": ("/v1/read", lambda name: {"streams": {"s": ">"}, "group": name, "consumer": "c"}),
    "command": ("/v1/commands", lambda name: ["XADD", name, "*", "a", "1"]),
    "group by command": ("/v1/commands", lambda name: ["XGROUP", "CREATE", "s", name, "$", "MKSTREAM"]),
    "transaction": ("/v1/commands/multi-exec", lambda name: [["XADD", name, "*", "a", "1"]]),
}
WORDS = [
    "",
    "\0",
    "a\0b",
    "a//b",
    "a/",
    "/a",
    "a/..",
    "weir/metadata",
    "..",
    ".",
    "a\r\nb",
    "\x1b[2J",
    "\x7f",
    "\x85",
    "x" * 513,
    "é" * 257,
]


@pytest.mark.parametrize("where", IN_BODIES)
def test_hostile_names_in_bodies(untouched: Server, where: str) -> None:
    """T14, T16. The same names in a body are refused as well: 400, at the command API with its own words."""
    path, body = IN_BODIES[where]
    for word in WORDS:
        answer = ask_json(untouched.port, "POST", path, body(word))
        if where == "transaction" and answer.status == 200:
            assert answer.json()[0]["error"].startswith("ERR"), word
        else:
            assert answer.status in (400, 422), (word, answer)
        assert b"\0" not in answer.body + answer.head


def test_names_that_look_alike_stay_two(server: Server) -> None:
    """T14. NFC and NFD, upper and lower case, wide and narrow: what bytes differ, names differ."""
    names = [
        b"%C3%A9",
        b"e%CC%81",
        b"a",
        b"A",
        b"%EF%BD%81",
        b"%D0%B0",
        b"a%CC%81",
        b"%C3%A1",
        b"+",
        b"%20",
        b"a.",
    ]
    for place, name in enumerate(names):
        path = b"/v1/streams/" + name + b"/entries"
        for _ in range(place + 1):
            assert ask(
                server.port, "POST", path, b'{"fields":{"a":"1"}}', b"Content-Type: application/json\r\n"
            )
    for place, name in enumerate(names):
        assert ask(server.port, "GET", b"/v1/streams/" + name).json()["length"] == place + 1
    ask_json(server.port, "POST", "/v1/commands", ["FLUSHALL"])


def test_no_name_is_a_path_of_the_disk(untouched: Server) -> None:
    """T15. With any names of streams, the directory holds the log's own files alone."""
    before = {found.name for found in untouched.data.parent.rglob("*")}
    for name in (
        b"%5c..%5cetc",
        b"CON",
        b"~",
        b"log",
        b"manifest",
        b"...",
        b"%2a",
        b"-rf",
        b"$HOME",
        b"x" * 512,
    ):
        path = b"/v1/streams/" + name + b"/entries"
        sent = ask(
            untouched.port, "POST", path, b'{"fields":{"a":"1"}}', b"Content-Type: application/json\r\n"
        )
        assert sent.status == 201, name
    assert {found.name for found in untouched.data.parent.rglob("*")} <= before
    ask_json(untouched.port, "POST", "/v1/commands", ["FLUSHALL"])


TERMINALS = ["\u2028", "\u202e", "\ufeff", "{}[]\\\"'", "%0d%0aSet-Cookie: a=b", "<script>", "%1b%5b2J"]


def test_log_injection(server: Server) -> None:
    """T17. One line for each request, JSON, never with a raw control character."""
    log = log_of(server)
    before = len(log.read_bytes().splitlines())
    heads = [
        b"X-Request-Id: a\x1b[2J\r\n",
        b"Weir-Request-Id: a b\r\n",
        b'Weir-Request-Id: "}\r\n',
        b"User-Agent: \xe2\x80\xa8\r\n",
        b"Weir-Request-Id: " + b"a" * 65 + b"\r\n",
        b"Weir-Request-Id: \xff\r\n",
    ]
    paths = [
        b"/v1/streams/" + b"%0d%0a%22%7d" * 3,
        b"/%1b%5b2J",
        b"/%E2%80%A8?a=%0d%0a",
        b'/"}{"',
        b"/" + b"a" * 9_000,
    ]
    for path, head in product(paths, heads):
        assert ask(server.port, "GET", path, headers=head).status in (400, 404)
    ask_json(server.port, "POST", "/v1/commands", ["NO\r\nSUCH\x1b", "\n"])
    assert ask(server.port, "GET", b"/healthz/live", headers=b"Connection: close\r\n").status == 200
    exchange(server.port, b"", 1.5)
    lines = log.read_bytes().splitlines()[before:]
    assert len(lines) >= len(heads) * len(paths)
    for line in lines:
        assert not re.search(rb"[\x00-\x1f\x7f]", line)
        assert json.loads(line)["level"] in ("info", "warning", "error")
    assert max(map(len, lines)) < 1_000


@pytest.mark.parametrize("name", TERMINALS)
def test_names_with_odd_characters_are_escaped_in_headers(untouched: Server, name: str) -> None:
    """T16. A Location is ASCII, percent-encoded, one line; where the name is refused there is none."""
    path = f"/v1/streams/{quote(name, safe='')}/entries".encode()
    answer = ask(untouched.port, "POST", path, b'{"fields":{"a":"1"}}', b"Content-Type: application/json\r\n")
    assert answer.status in (201, 400)
    (parsed, *more) = answers(answer.head + b"\r\n\r\n" + answer.body)
    assert not more
    assert parsed.head.isascii()
    assert len(re.findall(rb"(?im)^set-cookie:", parsed.head)) == 0
    ask_json(untouched.port, "POST", "/v1/commands", ["FLUSHALL"])
