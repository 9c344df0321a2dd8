"""Pages of streams in the cache of a real browser: whose they are, and of which stream."""

from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.browsing import open_page
from tests.server import Server

ROOT: Final = "correct-horse-battery-staple-browser"
READ: Final = """
async ([url, token]) => {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(url, { headers });
  return [answer.status, answer.ok ? await answer.text() : ""];
}
"""
ANNA: Final = "of Anna alone"
NEW: Final = "of the new one"
# Of a complete page, of the first of several, and of one entry.
URLS: Final = ("/v1/stream/diary", "/v1/stream/diary?offset=-1", "/v1/streams/diary/entries/1-0")


def fill(http: httpx.Client, text: str) -> None:
    """Make the stream, with an end, and with the same IDs for any text."""
    rows = [{"id": f"{number}-0", "fields": {"data": text}} for number in range(1, 6)]
    http.post("/v1/streams/diary/entries", json={"entries": rows}).raise_for_status()
    http.post("/v1/streams/diary/close", json={}).raise_for_status()


def token_for(http: httpx.Client, streams: str) -> str:
    body = {"grants": [{"actions": ["read"], "streams": streams}]}
    made = http.post("/v1/admin/tokens", json=body).raise_for_status().json()
    return str(made["token"])


@pytest.mark.parametrize("count_max", [3, 100])
def test_a_cached_page_is_its_readers_and_of_its_stream(count_max: int, tmp_path: Path) -> None:
    """Who may not read, or has no token, gets nothing of it; and a stream made anew is not the old one."""
    words = ("--set", f"root_token={ROOT}", "--set", f"count_max={count_max}")
    with (
        Server(tmp_path / "data", *words) as server,
        httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {ROOT}"}) as http,
        open_page() as page,
    ):
        fill(http, ANNA)
        anna, bob = token_for(http, "diary"), token_for(http, "others")
        page.goto(f"{server.url}/console")

        def read(url: str, token: str = "") -> Any:
            return page.evaluate(READ, [url, token])

        for url in URLS:
            for _ in range(2):
                status, text = read(url, anna)
                assert (status, ANNA in text) == (200, True)
            assert read(url, bob) == [403, ""]
            assert read(url) == [401, ""]
        http.delete("/v1/streams/diary").raise_for_status()
        assert [read(url, anna)[0] for url in URLS] == [404] * len(URLS)
        fill(http, NEW)
        for url in URLS:
            status, text = read(url, anna)
            assert (status, ANNA in text, NEW in text) == (200, False, True)
