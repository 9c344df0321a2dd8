"""The console at the end of a stream: a button that closes, a badge, and a line behind the last entry."""

import pytest
from playwright.async_api import Page, expect

from tests.console.conftest import ConsoleGateway
from tests.console.test_console import opened

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def check_end(page: Page) -> None:
    """The line is no row: neither counted nor downloaded, and nothing is live any more."""
    await expect(page.locator("p.end")).to_have_text("The stream ends behind 5-0: the run is over.")
    await expect(page.locator(".row:visible")).to_have_count(1)
    await expect(page.locator(".status")).to_contain_text("1 row loaded")
    await expect(page.locator(".state")).to_have_text("Ended")
    await expect(page.get_by_role("button", name="Pause")).to_be_disabled()


async def test_a_stream_is_closed_and_shown_as_closed(page: Page, gateway: ConsoleGateway) -> None:
    """The live tail ends with a line that says why."""
    await gateway.call("POST", "ending/entries", {"id": "5-0", "fields": {"n": "first"}})
    await opened(page, gateway, "ending")
    badge = page.locator(".badge")
    await expect(badge).to_be_hidden()
    await page.get_by_role("button", name="Close stream…").click()
    await page.get_by_label("Reason, for its readers").fill("the run is over")
    await page.get_by_role("button", name="Close stream", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("Closed ending")
    await expect(badge).to_have_text("closed")
    await check_end(page)
    await expect(page.get_by_role("button", name="Close stream…")).to_be_disabled()
    await page.reload()
    await check_end(page)
    await expect(badge).to_have_text("closed")


async def test_what_adds_to_a_closed_stream_is_off(page: Page, gateway: ConsoleGateway) -> None:
    """All controls of its forms, with a sentence that says why; another stream's are on again."""
    await gateway.call("POST", "shut/entries", {"fields": {"n": "1"}})
    await gateway.call("PUT", "shut/groups/g", {"start": "0", "dead_letter": {"stream": "shut-dead"}})
    await gateway.call("POST", "shut/groups/g/consumers/c/read", {"count": 1})
    (one,) = (await gateway.call("GET", "shut/groups/g/pending?count=1"))["pending"]
    assert isinstance(one, dict)
    await gateway.call("POST", "shut/groups/g/dead-letter", {"ids": [one["id"]]})
    await gateway.call("POST", "shut/close", {})
    await gateway.call("POST", "going-on/entries", {"fields": {"n": "1"}})
    await opened(page, gateway, "shut", "publish")
    why = page.get_by_text("This stream is closed: it takes no entries any more.")
    controls = page.get_by_role("tabpanel").locator("input, textarea, button")
    await expect(why).to_be_visible()
    assert await controls.count() >= 7
    for control in await controls.all():
        await expect(control).to_be_disabled()
    again = page.get_by_role("button", name="Publish again…")
    await page.goto(f"{gateway.server.url}/console#/shut/live")
    await page.locator(".row:visible").click()
    await expect(page.get_by_role("button", name="Copy as JSON")).to_be_visible()
    await expect(again).to_be_hidden()
    await page.goto(f"{gateway.server.url}/console#/shut/groups/g")
    await expect(page.get_by_role("region", name="Dead letters")).to_contain_text("1 entry")
    await expect(page.get_by_role("button", name="Redrive all…")).to_be_disabled()
    await opened(page, gateway, "going-on", "publish")
    await expect(why).to_be_hidden()
    for control in await controls.all():
        await expect(control).to_be_enabled()
    await opened(page, gateway, "going-on")
    await page.locator(".row:visible").click()
    await expect(again).to_be_visible()
