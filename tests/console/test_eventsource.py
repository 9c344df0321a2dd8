"""EventSource in a real browser: the gateway must avoid responses after which it never reconnects.

Knows: the states of an EventSource. Must never know: how the gateway ends a response.
"""

import sys
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Browser

from tests.server import Server, server_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOW = str(Path(__file__).parents[1] / "slow_start.py")
LOADING_S = 5
EVENTSOURCE_CLOSED = 2
TAIL = "/v1/streams/s/tail"
# The gateway ends a response every few seconds; the browser waits one to five before the next.
BACK_MS_MAX = 30_000
FOLLOW = """
() => {
  const source = new EventSource("/v1/streams/s/tail?after=0");
  const seen = { entries: [], ends: [], states: [] };
  source.onerror = () => seen.states.push(source.readyState);
  source.addEventListener("entry", ({ data }) => seen.entries.push(JSON.parse(data).id));
  source.addEventListener("end", ({ data }) => seen.ends.push(JSON.parse(data).reason));
  source.addEventListener("closed", ({ data }) => seen.ends.push(JSON.parse(data).reason));
  window.seen = seen;
}
"""


slow = server_of("function", "--fsync", "always")


async def test_an_eventsource_outlives_a_kill_and_a_long_start(browser: Browser, slow: Server) -> None:
    """After kill -9 and a start of five seconds, new entries arrive without any action."""
    async with httpx.AsyncClient(base_url=slow.url, timeout=30) as http:
        await http.post("/v1/streams/s/entries", json={"id": "5-0", "fields": {"n": "before"}})
        page = await (await browser.new_context(bypass_csp=True)).new_page()
        await page.goto(f"{slow.url}/errors/gap")
        await page.evaluate(FOLLOW)
        await page.wait_for_function("seen.entries.length === 1")
        slow.kill()
        slow.wrapper = (sys.executable, SLOW, str(LOADING_S))
        slow.launch()
        await page.wait_for_function("seen.ends.includes('starting')", timeout=BACK_MS_MAX)
        assert (await http.get("/healthz/ready")).status_code == 503
        slow.wait_until_ready()
        await http.post("/v1/streams/s/entries", json={"id": "5-1", "fields": {"n": "after"}})
        await page.wait_for_function("seen.entries.length === 2", timeout=BACK_MS_MAX)
        assert await page.evaluate("seen.entries") == ["5-0", "5-1"]
        assert EVENTSOURCE_CLOSED not in await page.evaluate("seen.states")
        await page.context.close()


async def test_an_eventsource_comes_back_once_to_a_closed_stream(browser: Browser, slow: Server) -> None:
    """It has all by then, and is answered with 204: it stops for good."""
    async with httpx.AsyncClient(base_url=slow.url, timeout=30) as http:
        await http.post("/v1/streams/s/entries", json={"id": "5-0", "fields": {"n": "before"}})
        page = await (await browser.new_context(bypass_csp=True)).new_page()
        answers: list[tuple[int, str | None]] = []
        page.on(
            "response",
            lambda one: (
                answers.append((one.status, one.request.headers.get("last-event-id")))
                if TAIL in one.url
                else None
            ),
        )
        await page.goto(f"{slow.url}/errors/gap")
        await page.evaluate(FOLLOW)
        await page.wait_for_function("seen.entries.length === 1")
        last = {"reason": "done", "entry": {"id": "5-1", "fields": {"n": "last"}}}
        await http.post("/v1/streams/s/close", json=last)
        await page.wait_for_function(f"seen.states.includes({EVENTSOURCE_CLOSED})", timeout=BACK_MS_MAX)
        assert await page.evaluate("seen.entries") == ["5-0", "5-1"]
        assert await page.evaluate("seen.ends") == ["done"]
        assert [status for status, _ in answers] == [200, 204]
        await page.context.close()
