"""A gateway, a browser, and a page of the console.

Knows: how to start Chromium without a screen and without downloads; what a page must never do.
Must never know: what a test looks at.
"""

import re
import shutil
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from app.main import create_app
from app.settings import Settings
from engine import SystemClock
from tests.server import Server, server_of

_SWITCHES = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *(
        "--disable-component-update",
        "--disable-sync",
        # A turn of the wheel has had its whole effect when its first scroll event comes.
        "--disable-smooth-scrolling",
        "--enable-precise-memory-info",
        "--js-flags=--expose-gc",
    ),
)
_OWN = re.compile(r"(http|ws)://127\.0\.0\.1:\d+/")
# The browser's own messages about error responses and about a gateway that is away.
_BY_BROWSER = re.compile(
    r"net::ERR_|the server responded with a status of|closed before|Unexpected response code"
)
# Generous, because a machine may run four test processes on two cores.
WAIT_MS_MAX = 20_000.0
expect.set_options(timeout=WAIT_MS_MAX)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """The HTTP API without an engine, which the files of the page do not need."""
    app = create_app(Settings(log_requests="none"), SystemClock())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        yield client


server = server_of("module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None, "chromium is among the system's packages"
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=program, args=list(_SWITCHES))
        yield chromium
        await chromium.close()


class ConsoleGateway:
    """The gateway, as another client uses it during a test."""

    def __init__(self, http: httpx.AsyncClient, server: Server) -> None:
        self.http = http
        self.server = server

    async def publish(self, stream: str, *entries: dict[str, str]) -> list[str]:
        """Publish a batch; returns the IDs."""
        body = {"entries": [{"fields": fields} for fields in entries]}
        return [str(one) for one in (await self.call("POST", f"{stream}/entries", body))["ids"]]

    async def call(self, method: str, path: str, body: object = None) -> dict[str, list[object]]:
        """Send a request below /v1/streams, which must succeed."""
        answer = await self.http.request(method, f"/v1/streams/{path}", json=body)
        assert answer.is_success, answer.text
        found: dict[str, list[object]] = answer.json() if answer.content else {}
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(server: Server) -> AsyncIterator[ConsoleGateway]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        yield ConsoleGateway(client, server)


@pytest.fixture
def wrong() -> list[str]:
    """What the page must not do and did; empty when a test ends."""
    return []


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, wrong: list[str]) -> AsyncIterator[Page]:
    """A page in a context of its own. Logged errors, dialogs and requests to other hosts are failures."""
    context = await browser.new_context(viewport={"width": 1360, "height": 820}, color_scheme="light")
    context.set_default_timeout(WAIT_MS_MAX)
    opened = await context.new_page()
    opened.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda sent: None if _OWN.match(sent.url) else wrong.append(f"requested {sent.url}"))
    opened.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    yield opened
    await context.close()
    assert [line for line in wrong if not _BY_BROWSER.search(line)] == []
