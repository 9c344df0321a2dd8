"""Tickets in a real browser, which sends no Origin with an EventSource of a page of the same host."""

from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.browsing import open_page, serve_site
from tests.server import Server

ROOT: Final = "correct-horse-battery-staple-tickets"
URLS: Final = (
    "/v1/stream/chat?offset=-1&live=sse",
    "/v1/streams/chat/tail?after=0",
    "/v1/tail?stream=chat&after=0",
)
OPEN: Final = """
async ([gateway, url, token]) => {
  const headers = { authorization: `Bearer ${token}` };
  const { ticket } = await (await fetch(`${gateway}/v1/tickets`, { method: "POST", headers })).json();
  const open = () => new Promise((over) => {
    const events = new EventSource(`${gateway}${url}&ticket=${ticket}`);
    const end = (how) => () => { events.close(); over(how) };
    for (const name of ["data", "entry"]) events.addEventListener(name, end("opened"));
    events.onerror = end("refused");
  });
  return [await open(), await open()];
}
"""


@pytest.mark.parametrize("page_of", ["the gateway", "another site"])
def test_a_ticket_opens_an_event_source_once(page_of: str, tmp_path: Path) -> None:
    with (
        serve_site(tmp_path) as site,
        Server(
            tmp_path / "data", "--set", f"root_token={ROOT}", "--set", f"allowed_origins={site}"
        ) as server,
        open_page() as page,
    ):
        headers = {"authorization": f"Bearer {ROOT}", "content-type": "application/json"}
        httpx.put(f"{server.url}/v1/stream/chat", headers=headers, content="1").raise_for_status()
        page.goto(f"{server.url}/console" if page_of == "the gateway" else site)
        for url in URLS:
            assert page.evaluate(OPEN, [server.url, url, ROOT]) == ["opened", "refused"], url
