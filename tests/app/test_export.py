"""Exports: a range of any length as lines, no faster than it is read, and honest about what went lost."""

import asyncio
import json
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.entries import export
from app.main import App
from engine import Engine
from tests.server import Server

ENTRIES = "/v1/streams/s/entries"
LINES = {"accept": "application/x-ndjson"}
Message = MutableMapping[str, Any]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry a page."""
    monkeypatch.setattr(export, "PAGE_BYTES_MAX", 1)


async def lines(http: httpx.AsyncClient, query: str = "") -> list[Any]:
    answer = await http.get(f"{ENTRIES}?{query}", headers=LINES)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert not answer.text or answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


async def ids(http: httpx.AsyncClient, query: str = "") -> str:
    return "".join(one["id"][0] for one in await lines(http, query))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "12345"),
        ("start=2", "2345"),
        ("start=(2-0&end=(5-0", "34"),
        ("after=2-0", "345"),
        ("after=0", "12345"),
        ("after=2-0&end=4", "34"),
        ("reverse=true", "54321"),
        ("reverse=true&start=2&end=4", "432"),
        ("count=2", "12"),
        ("reverse=true&count=2", "54"),
        ("count=100000000", "12345"),
        ("after=5-0", ""),
        ("start=4&end=2", ""),
        ("until=1970-01-01T00:00:00.003Z", "123"),
    ],
)
@pytest.mark.usefixtures("small_pages")
async def test_a_range_comes_as_lines(five: httpx.AsyncClient, query: str, expected: str) -> None:
    """Page by page the same as at once, in both directions."""
    assert await ids(five, query) == expected


async def test_lines_are_the_stored_entries(http: httpx.AsyncClient) -> None:
    """Byte for byte, pairs and base64 and hostile text too."""
    rows = [
        {"id": "1-0", "fields": [["a", "1"], ["a", '},{"id":"2-0"']]},
        {"id": "2-0", "fields": {"a": "/w=="}, "encoding": "base64"},
        {"id": "3-0", "fields": {',{"id":"': "\u2028\r\n"}},
    ]
    await http.post(ENTRIES, json={"entries": rows})
    whole = (await http.get(ENTRIES)).json()["entries"]
    answer = await http.get(ENTRIES, headers=LINES)
    assert [json.loads(line) for line in answer.text.split("\n")[:-1]] == whole


@pytest.mark.parametrize(
    ("query", "following"),
    [
        ("", "5-0"),
        ("end=3", "3-18446744073709551615"),
        ("end=9", "5-0"),
        ("after=7-0", "5-0"),
        ("start=7", "6-18446744073709551615"),
        ("reverse=true", None),
        ("count=2", "2-0"),
    ],
)
async def test_the_head_says_where_to_go_on(
    five: httpx.AsyncClient, query: str, following: str | None
) -> None:
    """Weir-Next-Id is behind the whole export; the edges and the generation come along."""
    answer = await five.get(f"{ENTRIES}?{query}", headers=LINES)
    assert answer.headers.get("weir-next-id") == following
    assert answer.headers["weir-first-available"] == "1-0"
    assert answer.headers["weir-generation"] == (await five.get("/v1/streams/s")).json()["generation"]


async def test_a_missing_stream_exports_nothing(http: httpx.AsyncClient) -> None:
    """An empty 200, as for every read of entries."""
    answer = await http.get(ENTRIES, headers=LINES)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["weir-next-id"] == "0-0"
    assert "weir-generation" not in answer.headers


async def test_head_has_the_headers_alone(five: httpx.AsyncClient) -> None:
    """No line is made for it."""
    answer = await five.head(ENTRIES, headers=LINES)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["weir-next-id"] == "5-0"


async def test_fields_can_be_chosen(five: httpx.AsyncClient) -> None:
    """For lines as for pages."""
    assert (await lines(five, "fields=n&count=1")) == [{"id": "1-0", "fields": {"n": "1"}}]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("wait=5", 400, "unknown_parameter"),
        ("last=5", 400, "unknown_parameter"),
        ("max_bytes=5", 400, "unknown_parameter"),
        ("after=$", 400, "malformed_id"),
        ("after=1&start=1", 422, "invalid"),
    ],
)
async def test_what_no_export_can_do_is_refused(
    five: httpx.AsyncClient, query: str, status: int, code: str
) -> None:
    """It does not wait."""
    answer = await five.get(f"{ENTRIES}?{query}", headers=LINES)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


@pytest.mark.parametrize("query", ["", "after=2-0&count=2", "reverse=true&fields=n", "start=2&end=4"])
async def test_its_own_path_gives_the_same(five: httpx.AsyncClient, query: str) -> None:
    """Every media type that an Accept names and the export has is served."""
    accepted = await five.get(f"{ENTRIES}?{query}", headers=LINES)
    for headers in ({}, {"accept": "*/*"}, LINES):
        found = await five.get(f"/v1/streams/s/export?{query}", headers=headers)
        assert (found.status_code, found.content) == (200, accepted.content)
        assert found.headers["content-type"] == "application/x-ndjson"
        assert found.headers.get("weir-next-id") == accepted.headers.get("weir-next-id")
    assert (await five.get("/v1/streams/s/export?wait=0")).json()["code"] == "unknown_parameter"


# ---- while the stream changes


class ExportReader:
    """A client that takes one piece at a time, and may leave."""

    def __init__(self, app: App, query: str = "") -> None:
        self.pieces: list[bytes] = []
        self.ended = False
        self._turn = asyncio.Semaphore(0)
        self._at_piece = asyncio.Event()
        self._left = asyncio.Event()
        self._asked = False
        scope = {
            "type": "http",
            "method": "GET",
            "raw_path": ENTRIES.encode(),
            "path": ENTRIES,
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1:8080"), (b"accept", b"application/x-ndjson")],
        }
        self.request = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
            if not self.ended:
                self.pieces.append(message["body"])
                self._at_piece.set()
                await self._turn.acquire()

    async def piece(self) -> list[Any]:
        """The next piece, which then waits to be taken."""
        await asyncio.wait_for(self._at_piece.wait(), 5)
        self._at_piece.clear()
        return [json.loads(line) for line in self.pieces[-1].splitlines()]

    async def rest(self) -> list[Any]:
        """Take everything."""
        for _ in range(100):
            self._turn.release()
        before = len(self.pieces)
        await asyncio.wait_for(self.request, 5)
        return [json.loads(line) for line in b"".join(self.pieces[before:]).splitlines()]

    async def leave(self) -> None:
        self._left.set()
        self._turn.release()
        await asyncio.wait_for(self.request, 5)


@pytest.mark.usefixtures("small_pages")
async def test_what_comes_meanwhile_is_not_part_of_it(app: App, five: httpx.AsyncClient) -> None:
    """The end is fixed at the start."""
    reader = ExportReader(app)
    await reader.piece()
    await five.post(ENTRIES, json={"id": "6-0", "fields": {"n": "6"}})
    assert [one["id"] for one in await reader.rest()] == ["2-0", "3-0", "4-0", "5-0"]
    assert reader.ended


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(
    ("query", "body", "rest"),
    [
        ("", {"maxlen": 2}, [{"gap": ("1-0", "4-0")}, "4-0", "5-0"]),
        ("after=0", {"maxlen": 2}, [{"gap": ("1-0", "4-0")}, "4-0", "5-0"]),
        ("", {"maxlen": 0}, [{"gap": ("1-0", "0-0")}]),
        ("end=3", {"maxlen": 2}, [{"gap": ("1-0", "4-0")}]),
        ("on_gap=fail", {"maxlen": 2}, [{"gap": ("1-0", "4-0")}]),
        ("reverse=true", {"maxlen": 2}, ["4-0", {"gap": ("0-0", "4-0")}]),
        ("reverse=true", {"maxlen": 0}, [{"gap": ("0-0", "0-0")}]),
        ("", {"maxlen": 4}, ["2-0", "3-0", "4-0", "5-0"]),
    ],
)
async def test_a_trim_that_overtakes_leaves_a_line(
    app: App, five: httpx.AsyncClient, query: str, body: Any, rest: list[Any]
) -> None:
    """`{"gap": …}` in the place of what is gone; the rest still comes, unless gaps were to fail."""
    reader = ExportReader(app, query)
    await reader.piece()
    await five.post("/v1/streams/s/trim", json=body)
    found = [
        one["id"] if "id" in one else {"gap": (one["gap"]["requested"], one["gap"]["first_available"])}
        for one in await reader.rest()
    ]
    assert found == rest
    assert reader.ended


@pytest.mark.usefixtures("small_pages")
async def test_a_stream_made_again_is_another_one(app: App, five: httpx.AsyncClient) -> None:
    """Its entries are not mixed into the old one's export."""
    reader = ExportReader(app)
    await reader.piece()
    await five.delete("/v1/streams/s")
    await five.post(ENTRIES, json={"id": "2-0", "fields": {"other": "one"}})
    told = {"requested": "1-0", "first_available": "2-0", "lost": None, "reason": "recreated", "next": "0-0"}
    assert await reader.rest() == [{"gap": told}]


async def test_a_cursor_before_what_is_kept_begins_with_a_gap(five: httpx.AsyncClient) -> None:
    """Or is refused, where that was asked for."""
    await five.post("/v1/streams/s/trim", json={"maxlen": 2})
    gap = {"gap": {"requested": "1-0", "first_available": "4-0", "lost": None}}
    first, *rest = await lines(five, "after=1-0")
    assert first == gap
    assert [one["id"] for one in rest] == ["4-0", "5-0"]
    answer = await five.get(f"{ENTRIES}?after=1-0&on_gap=fail", headers=LINES)
    assert (answer.status_code, answer.json()["code"]) == (410, "gap")


@pytest.mark.usefixtures("small_pages")
async def test_nothing_is_made_for_a_client_that_left(app: App, five: httpx.AsyncClient) -> None:
    """The export ends with its connection, one piece later at most."""
    reader = ExportReader(app)
    await reader.piece()
    await reader.leave()
    assert len(reader.pieces) <= 2
    assert not reader.ended


# ---- a real server, a real socket

_entries, _bytes_each = 40_000, 1_000


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@pytest.mark.alone
def test_memory_stays_flat_behind_a_slow_reader(tmp_path: Path) -> None:
    """40 MB to a client that does not read: the server holds a page or two, and goes on serving others."""
    with Server(tmp_path / "data", "--fsync", "no") as server:
        row = json.dumps({"a": "x" * _bytes_each}).encode() + b"\n"
        for _ in range(8):
            answer = httpx.post(
                server.url + ENTRIES,
                content=row * (_entries // 8),
                headers={"content-type": "application/x-ndjson"},
                timeout=60,
            )
            assert answer.status_code == 201
        httpx.get(server.url + ENTRIES, params={"count": 1})
        before = _resident_mb(server.pid)
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            head = f"GET {ENTRIES} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
            client.sendall(f"{head}accept: application/x-ndjson\r\nconnection: close\r\n\r\n".encode())
            rest = client.recv(1 << 10)
            assert rest.startswith(b"HTTP/1.1 200")
            for _ in range(50):
                assert httpx.get(server.url + "/healthz/ready", timeout=5).status_code == 200
            assert _resident_mb(server.pid) - before < 16
            count, mark = 0, b'{"id":"'
            while piece := client.recv(1 << 20):
                read = rest + piece
                count += read.count(mark)
                # A mark may come in two pieces.
                rest = read[1 - len(mark) :]
            assert _resident_mb(server.pid) - before < 16
        assert count == _entries


async def test_others_get_their_turns(app: App, engine: Engine, http: httpx.AsyncClient) -> None:
    """A reader that is never behind does not keep the loop to itself."""
    rows = [{"fields": {"a": "x" * 500}} for _ in range(100)]
    for _ in range(20):
        await http.post(ENTRIES, json={"entries": rows})
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    answer = await http.get(ENTRIES, headers=LINES)
    beside.cancel()
    assert answer.text.count("\n") == 2_000
    assert turns >= len(answer.content) // export.PAGE_BYTES_MAX
