"""Entries that left memory for files of a real gateway: reads, restarts, backups, and a damage.

Knows: HTTP, the command line, the data directory. Must never know: how the engine stores them.
"""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.command import weir
from tests.server import Server
from tests.waiting import until

ENTRIES = 12_000
NOWHERE = "http://127.0.0.1:9"
_WAIT_S = 60


def fill(http: httpx.Client, first: int = 1) -> None:
    """More than the newest nodes, which stay in memory."""
    for start in range(first, first + ENTRIES - 1, 1_000):
        entries = [
            {"id": f"{number}-0", "fields": {"n": str(number)}} for number in range(start, start + 1_000)
        ]
        http.post("/v1/streams/s/entries", json={"entries": entries}).raise_for_status()


def wait_until_stored(http: httpx.Client) -> None:
    """Until most of what is cold has left memory."""
    until(
        lambda: http.get("/v1/status").json()["log"]["stored_bytes"] > 10_000, "nothing was stored", _WAIT_S
    )


def read(http: httpx.Client, number: int) -> Any:
    return http.get(f"/v1/streams/s/entries/{number}-0")


def test_cold_entries_are_read_from_files(tmp_path: Path) -> None:
    """By every read, after a kill and from a backup; a range over both kinds is one answer."""
    data = tmp_path / "data"
    words = ("--set", "memory_bytes_soft=1", "--set", f"backup_dir={tmp_path}")
    with Server(data, *words) as server, httpx.Client(base_url=server.url) as http:
        fill(http)
        wait_until_stored(http)
        assert read(http, 5).json()["fields"] == {"n": "5"}
        page = http.get("/v1/streams/s/entries", params={"count": 10_000}).json()
        assert [entry["fields"]["n"] for entry in page["entries"]] == [str(n) for n in range(1, 10_001)]
        assert http.get("/metrics").text.count("\nweir_stored_bytes ") == 1
        assert http.post("/v1/admin/backup", json={"name": "copy"}).status_code == 202
        while http.get("/v1/admin/backup").json()["state"] == "running":
            time.sleep(0.05)
        server.kill()
    for directory in (data, tmp_path / "copy"):
        with Server(directory) as server, httpx.Client(base_url=server.url) as http:
            assert read(http, 7).json()["fields"] == {"n": "7"}
            assert http.get("/v1/streams/s").json()["length"] == ENTRIES
            assert http.post("/v1/streams/s/trim", json={"maxlen": 5}).json()["deleted"] == ENTRIES - 5
            assert http.post("/v1/admin/rewrite").status_code == 202
            why = "nothing refers to the files any more"
            until(lambda directory=directory: not list(directory.glob("run-*")), why, _WAIT_S)


def test_a_damaged_file_costs_what_is_in_it(tmp_path: Path) -> None:
    """That part is refused; the log says so once, readiness names it, and everything else goes on."""
    data = tmp_path / "data"
    with Server(data, "--set", "memory_bytes_soft=1") as server, httpx.Client(base_url=server.url) as http:
        fill(http)
        wait_until_stored(http)
    (file,) = data.glob("run-*.weir")
    content = bytearray(file.read_bytes())
    # In the first run, however short it is.
    content[300] ^= 1
    file.write_bytes(content)
    with Server(data) as server, httpx.Client(base_url=server.url) as http:
        assert "failing" not in http.get("/healthz/ready").json()
        backups(data, tmp_path / "first", code=3, said="restore a backup, or give them up")
        for _ in range(2):
            refused = read(http, 5)
            assert (refused.status_code, refused.json()["code"]) == (500, "entries_damaged")
            assert "cannot be read from the disk" in refused.json()["detail"]
        assert read(http, ENTRIES).json()["fields"] == {"n": str(ENTRIES)}
        assert (
            http.post("/v1/streams/s/entries", json={"id": "12000-1", "fields": {"a": "1"}}).status_code
            == 201
        )
        assert http.get("/healthz/ready").json()["failing"] == ["entries_damaged"]
        assert http.get("/v1/status").json()["log"]["stored_damaged"] == 1
        (line,) = [line for line in server.log_lines() if line["level"] == "critical"]
        assert file.name in line["where"]
        # The beginning of an export has left when that is found: its pages have 256 KiB.
        fill(http, ENTRIES + 1)
        with pytest.raises(httpx.RemoteProtocolError):
            http.get("/v1/streams/s/export?reverse=true")
        assert http.post("/v1/streams/s/trim", json={"minid": "11000-0"}).status_code == 200
        assert "failing" not in http.get("/healthz/ready").json()
        # The damage is in the file still, and nothing refers to it.
        backups(data, tmp_path / "second", code=0, said="sound: ")
        (line,) = [line for line in server.log_lines() if "broken off" in line["event"]]
        assert (line["level"], "entries_damaged" in line["event"]) == ("warning", True)
        assert not [line for line in server.log_lines() if line["level"] == "error"]
    assert "were not looked at" in weir(NOWHERE, "log", "repair", "--data", str(data)).out


def backups(data: Path, place: Path, *, code: int, said: str) -> None:
    """`weir log check` and `weir backup` end so, and agree."""
    checked = weir(NOWHERE, "log", "check", "--data", str(data))
    assert (checked.code, said in checked.out + checked.err) == (code, True)
    assert ("sound: " in checked.out) == (not code)
    made = weir(NOWHERE, "backup", str(place), "--data", str(data))
    assert (made.code, place.exists()) == (code, not code)
