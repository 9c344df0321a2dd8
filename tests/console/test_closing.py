"""The console at the end of a stream: a button that closes, a badge, and a line behind the last entry."""

import pytest
from playwright.async_api import Page, expect

from tests.console.conftest import ConsoleGateway
from tests.console.test_console import opened

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    await expect(
        page.get_by_role("gridcell", name="The stream ends behind 5-0: the run is over.")
    ).to_be_visible()
    await expect(page.get_by_role("button", name="Close stream…")).to_be_disabled()
    await page.reload()
    await expect(
        page.get_by_role("gridcell", name="The stream ends behind 5-0: the run is over.")
    ).to_be_visible()
    await expect(badge).to_have_text("closed")
