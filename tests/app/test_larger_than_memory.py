"""More than fits into memory, as a user has it: a gateway in a small container, filled over HTTP with several
times as much, and read from its beginning by every API, before and after a restart.

Knows: HTTP, server-sent events, Redis's protocol. Must never know: how entries are stored.
"""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import redis

from tests.cli.command import weir
from tests.server import Server, free_port

# Three quarters of a container with 256 MiB.
LIMIT: Final = 192 << 20
BATCH: Final = 256
VALUE_BYTES: Final = 4_000
BATCHES: Final = 5 * LIMIT // 2 // (BATCH * VALUE_BYTES)
TOTAL: Final = BATCH * BATCHES


def bodies() -> list[bytes]:
    """Batches that no compressor makes smaller; each entry tells its number in its batch."""
    return [
        b"\n".join(
            json.dumps({"n": str(number), "v": secrets.token_urlsafe(VALUE_BYTES * 3 // 4)}).encode()
            for number in range(BATCH)
        )
        for _ in range(4)
    ]


def fill(http: httpx.Client) -> set[int]:
    """The statuses of all batches."""
    made, headers = bodies(), {"content-type": "application/x-ndjson"}
    return {
        http.post("/v1/streams/s/entries", content=made[number % 4], headers=headers).status_code
        for number in range(BATCHES)
    }


def check_reads(http: httpx.Client, client: redis.Redis, group: str) -> None:
    """From the beginning, by each API, though nearly nothing of that is in memory."""
    wanted = ["0", "1", "2"]
    page = http.get("/v1/streams/s/entries", params={"count": 3}).json()
    assert [entry["fields"]["n"] for entry in page["entries"]] == wanted
    first = page["entries"][0]["id"]
    assert http.get(f"/v1/streams/s/entries/{first}").json()["fields"]["n"] == "0"
    with http.stream("GET", "/v1/streams/s/export", headers={"accept-encoding": "identity"}) as answer:
        lines = [json.loads(line) for line, _ in zip(answer.iter_lines(), wanted, strict=False)]
    assert [line["fields"]["n"] for line in lines] == wanted
    assert [number for number, _ in zip(events(http), wanted, strict=False)] == wanted
    assert http.put(f"/v1/streams/s/groups/{group}", json={"start": "0"}).is_success
    given = http.post(f"/v1/streams/s/groups/{group}/consumers/c/read", json={"count": 3}).json()["entries"]
    assert [entry["fields"]["n"] for entry in given] == wanted
    rows: Any = client.xrange("s", count=3)
    assert [fields["n"] for _, fields in rows] == wanted
    shown: Any = client.xinfo_stream("s")
    assert (shown["length"], shown["first-entry"][0]) == (TOTAL, first)
    assert client.xlen("s") == http.get("/v1/streams/s").json()["length"] == TOTAL
    newest = http.get("/v1/streams/s/entries", params={"reverse": "true", "count": 1}).json()["entries"]
    assert newest[0]["fields"]["n"] == str(BATCH - 1)


def events(http: httpx.Client) -> Iterator[str]:
    """What a tail from the beginning gets."""
    with http.stream("GET", "/v1/streams/s/tail?after=0", headers={"accept": "text/event-stream"}) as answer:
        for line in answer.iter_lines():
            if line.startswith('data: {"id"'):
                yield json.loads(line.removeprefix("data: "))["fields"]["n"]


def stored_bytes(http: httpx.Client, url: str) -> int:
    """As the status, the metrics and `weir doctor` say."""
    status = http.get("/v1/status").json()
    assert status["memory"]["used_bytes"] < LIMIT == status["memory"]["bytes_max"]
    assert (status["memory"]["bytes_soft"], status["memory"]["full"]) == (LIMIT * 3 // 5, False)
    assert status["log"]["storing_failure"] is None
    stored: int = status["log"]["stored_bytes"]
    lines = http.get("/metrics").text.splitlines()
    rows = [line.rpartition(" ") for line in lines if line.startswith("weir_")]
    figures = {name: float(value) for name, _, value in rows}
    assert figures["weir_memory_soft_bytes"] == LIMIT * 3 // 5
    assert figures["weir_stored_bytes"] > LIMIT
    assert "of cold entries, fsync" in weir(url, "doctor").out
    return stored


@pytest.mark.alone
def test_a_small_gateway_keeps_several_times_its_memory(tmp_path: Path) -> None:
    """Publishing is never refused; reads of the oldest entries work; it says what is on the disk."""
    data, port = tmp_path / "data", free_port()
    words = (f"memory_bytes_max={LIMIT}", f"resp_listen=127.0.0.1:{port}", "log_requests=none")
    options = [word for each in words for word in ("--set", each)]
    with redis.Redis(port=port, decode_responses=True) as client:
        with Server(data, *options) as server, httpx.Client(base_url=server.url, timeout=30) as http:
            assert fill(http) == {201}
            check_reads(http, client, "before")
            assert stored_bytes(http, server.url) > LIMIT
            assert server.stop() == 0
        with Server(data, *options) as server, httpx.Client(base_url=server.url, timeout=30) as http:
            check_reads(http, client, "after")
            assert stored_bytes(http, server.url) > LIMIT
            assert http.post("/v1/streams/s/entries", json={"fields": {"a": "1"}}).status_code == 201
            assert "critical" not in {line["level"] for line in server.log_lines()}
