"""Streams of other doors, read by the protocol's own client for TypeScript."""

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.sdk.durable.test_client import CLIENT_S_MAX
from tests.server import Server

STREAM: Final = "/v1/streams/orders"
ENTRIES: Final = f"{STREAM}/entries"
GROUP: Final = f"{STREAM}/groups/billing"
PAGE_COUNT_MAX: Final = 100
SETTINGS: Final = ("--set", f"count_max={PAGE_COUNT_MAX}")
PATH: Final = "/v1/stream/orders"
# More than the connection's buffers hold.
LARGE: Final = "x" * 500_000
LARGE_COUNT: Final = 60


class Reader:
    """Their client, which waits behind the first entry."""

    def __init__(self, server: Server, live: str) -> None:
        self._process = subprocess.Popen(
            ["timeout", str(CLIENT_S_MAX), "node", "native.mjs"],
            cwd=Path(__file__).parent,
            env={**os.environ, "URL": server.url + PATH, "LIVE": live},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None, "a pipe was asked for"
        assert self._process.stdout.readline() == "first\n"

    def finish(self) -> dict[str, Any]:
        """Let it go on; what it has read, and how it ended."""
        printed, said = self._process.communicate("go on\n")
        assert self._process.returncode == 0, said
        found: dict[str, Any] = json.loads(printed)
        return found


def test_entries_are_read_as_they_are_stored(tmp_path: Path) -> None:
    """JSON and bytes are what `GET …/entries` says, and groups do not notice."""
    binary = base64.b64encode(bytes(range(256))).decode()
    with Server(tmp_path / "data", *SETTINGS) as server, httpx.Client(base_url=server.url) as http:
        http.put(GROUP, json={"start": "0"}).raise_for_status()
        for entry in (
            {"fields": {"order": '{"item": "apple", "price": 1.50}', "empty": ""}},
            {"fields": {"image": binary}, "encoding": "base64"},
        ):
            http.post(ENTRIES, json=entry).raise_for_status()
        entries = http.get(ENTRIES).json()["entries"]
        assert [entry["fields"] for entry in entries][1] == {"image": binary}
        assert Reader(server, "pages").finish() == {"items": entries, "error": None}
        assert http.get(GROUP).json()["lag"] == len(entries)
        assert http.post(f"{GROUP}/consumers/anna/read", json={}).json()["entries"] == entries


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_closed_one_ends(live: str, tmp_path: Path) -> None:
    """Who follows it learns that nothing comes any more."""
    with Server(tmp_path / "data", *SETTINGS) as server, httpx.Client(base_url=server.url) as http:
        http.post(ENTRIES, json={"fields": {"n": "1"}}).raise_for_status()
        reader = Reader(server, live)
        http.post(f"{STREAM}/close", json={"entry": {"fields": {"n": "2"}}}).raise_for_status()
        found = reader.finish()
        assert [item["fields"]["n"] for item in found["items"]] == ["1", "2"]
        assert found["error"] is None


@pytest.mark.parametrize("live", ["pages", "sse"])
def test_all_pages_are_read(live: str, tmp_path: Path) -> None:
    with Server(tmp_path / "data", *SETTINGS) as server, httpx.Client(base_url=server.url) as http:
        numbers = _publish(http)
        http.post(f"{STREAM}/close", json={}).raise_for_status()
        found = Reader(server, live).finish()
        assert [item["fields"]["n"] for item in found["items"]] == numbers


@pytest.mark.parametrize("live", ["pages", "long-poll"])
def test_pages_that_were_trimmed_away_are_an_error(live: str, tmp_path: Path) -> None:
    """It asks for one page after the other, and learns that those behind its place are gone."""
    with Server(tmp_path / "data", *SETTINGS) as server, httpx.Client(base_url=server.url) as http:
        numbers = _publish(http)
        reader = Reader(server, live)
        http.post(f"{STREAM}/trim", json={"maxlen": 1}).raise_for_status()
        _is_a_gap(reader.finish(), numbers)


def test_events_that_were_trimmed_away_are_an_error(tmp_path: Path) -> None:
    """They come faster than it reads, so that what it has not taken can be trimmed away."""
    with Server(tmp_path / "data", *SETTINGS) as server, httpx.Client(base_url=server.url) as http:
        values = ["first", *(f"{number} {LARGE}" for number in range(LARGE_COUNT))]
        http.post(ENTRIES, json={"fields": {"n": values[0]}}).raise_for_status()
        reader = Reader(server, "sse")
        for value in values[1:]:
            http.post(ENTRIES, json={"fields": {"n": value}}).raise_for_status()
        http.post(f"{STREAM}/trim", json={"maxlen": 1}).raise_for_status()
        _is_a_gap(reader.finish(), values)


def _publish(http: httpx.Client) -> list[str]:
    """Fill some pages; what they hold."""
    numbers = [str(number) for number in range(4 * PAGE_COUNT_MAX)]
    for start in range(0, len(numbers), PAGE_COUNT_MAX):
        batch = [{"fields": {"n": number}} for number in numbers[start : start + PAGE_COUNT_MAX]]
        http.post(ENTRIES, json={"entries": batch}).raise_for_status()
    return numbers


def _is_a_gap(found: dict[str, Any], values: list[str]) -> None:
    """It has read the beginning, whole and in order, and learned that the rest is not to be had."""
    read = [item["fields"]["n"] for item in found["items"]]
    assert 0 < len(read) < len(values)
    assert read == values[: len(read)]
    assert found["error"] == {"status": 410, "code": "gap"}
