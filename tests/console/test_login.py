"""The console of a gateway that wants a token: it asks for one, keeps it in memory alone, and hides what the
token does not allow.
"""

from typing import Final

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.console.conftest import WAIT_MS_MAX
from tests.server import Server, server_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT: Final = "root-token-of-at-least-24-characters"
STORED: Final = "() => JSON.stringify([localStorage, sessionStorage, document.cookie])"


guarded = server_of("module", "--set", f"root_token={ROOT}")


def make(guarded: Server, *actions: str) -> str:
    headers = {"authorization": f"Bearer {ROOT}"}
    with httpx.Client(base_url=guarded.url, headers=headers) as http:
        http.post("/v1/streams/orders/entries", json={"fields": {"item": "apple"}}).raise_for_status()
        grants = [{"actions": list(actions), "streams": "orders"}]
        return str(http.post("/v1/admin/tokens", json={"grants": grants}).json()["token"])


async def log_in(page: Page, token: str) -> None:
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("dialog").get_by_role("button", name="Log in").click()


async def test_a_page_is_used_with_a_token_that_nothing_stores(page: Page, guarded: Server) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    await page.goto(f"{guarded.url}/console#/orders/live")
    await log_in(page, "weir_wrong")
    await expect(page.get_by_role("alert")).to_contain_text("unknown")
    await log_in(page, make(guarded, "read", "write", "manage", "consume"))
    await expect(page.get_by_role("dialog")).to_have_count(0)
    # Over REST, and over the WebSocket.
    await expect(page.get_by_text("apple").first).to_be_visible()
    await expect(page.get_by_role("group", name="Connection")).to_contain_text("Connected since")
    await expect(page.get_by_role("button", name="Delete stream…")).to_be_visible()
    token = make(guarded, "read")
    assert not [url for url in sent if "weir_" in url or ROOT in url]
    assert "weir_" not in str(await page.evaluate(STORED))
    await page.get_by_role("button", name="Log out").click()
    await log_in(page, token)
    await expect(page.get_by_text("apple").first).to_be_visible()
    await expect(page.get_by_role("button", name="Delete stream…")).to_be_hidden()
    await expect(page.get_by_role("button", name="New stream")).to_be_hidden()
    await expect(page.get_by_role("button", name="Trim…")).to_be_hidden()


async def test_a_token_may_stay_in_the_tab(page: Page, guarded: Server) -> None:
    """Until it is closed, or the caller logs out."""
    await page.goto(f"{guarded.url}/console#/orders/live")
    await page.get_by_label("Keep it").select_option("tab")
    await log_in(page, make(guarded, "read"))
    await expect(page.get_by_text("apple").first).to_be_visible()
    await page.reload()
    await expect(page.get_by_text("apple").first).to_be_visible()
    assert "weir_" not in str(await page.evaluate("() => JSON.stringify([localStorage, document.cookie])"))
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Token")).to_be_visible()
    assert "weir_" not in str(await page.evaluate(STORED))


@pytest.mark.parametrize(
    ("actions", "shown"),
    [
        (("read",), set()),
        (("read", "write"), {"Trim…"}),
        (("read", "close"), {"Close stream…"}),
        (("read", "manage"), {"Limits…", "Close stream…", "Delete stream…"}),
    ],
)
async def test_each_action_shows_what_it_allows(
    page: Page, guarded: Server, actions: tuple[str, ...], shown: set[str]
) -> None:
    """Who manages a stream may close it; who writes may not."""
    await page.goto(f"{guarded.url}/console#/orders/live")
    await log_in(page, make(guarded, *actions))
    await expect(page.get_by_text("apple").first).to_be_visible()
    for name in ("Trim…", "Limits…", "Close stream…", "Delete stream…"):
        button = page.get_by_role("button", name=name)
        await (expect(button).to_be_visible() if name in shown else expect(button).to_be_hidden())


async def test_a_revoked_token_ends_the_page(page: Page, guarded: Server) -> None:
    token = make(guarded, "read")
    await page.goto(f"{guarded.url}/console#/orders/live")
    await log_in(page, token)
    connection = page.get_by_role("group", name="Connection")
    await expect(connection).to_contain_text("Connected since")
    async with httpx.AsyncClient(base_url=guarded.url, headers={"authorization": f"Bearer {ROOT}"}) as http:
        assert (await http.delete(f"/v1/admin/tokens/{token.split('_')[1]}")).status_code == 204
    await expect(connection).to_contain_text("Refused", timeout=WAIT_MS_MAX)
