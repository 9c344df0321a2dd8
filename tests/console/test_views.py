"""Every view, narrow and wide, light and dark: no text is cut off, no element crosses the edge.

Knows: the views, and how to detect what does not fit. Must never know: what a view is for.

`WEIR_VIEWS=folder` saves the pictures there.
"""

import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.console.conftest import ConsoleGateway
from tests.console.test_console import opened, rows

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "tenant-4711:region-eu-central:orders-of-the-northern-warehouses:"
STREAM = f"{LONG}placed"
NIGHTLY = {"entry": {"fields": {"job": "report"}}, "cron": "30 2 * * *", "paused": True}
SIZES = {"wide": (1280, 800), "narrow": (390, 844)}
# Elements that cross the edge of the window, or whose end is hidden without a way to scroll there.
OVERFLOWS = """() => {
  const LOOKED_AT = "button, h1, h2, dt, dd, th, label, input, select, .figures, .status, .connection > span";
  const UNSEEN = ".unseen, .skip, [hidden], dialog:not([open])";
  // These scroll, or cut text off at the end of a column.
  const SCROLLS = ".grid, .sideways, .plot, .menu";
  const wide = document.documentElement.scrollWidth > innerWidth ? ["the page"] : [];
  for (const one of document.querySelectorAll(LOOKED_AT)) {
    const box = one.getBoundingClientRect();
    if (one.closest(`${UNSEEN}, ${SCROLLS}`) || !one.checkVisibility() || box.width === 0) continue;
    const label = `${one.tagName}.${one.className} ${one.textContent.slice(0, 40)}`;
    const isCut = one.scrollWidth > one.clientWidth + 1 && one.matches("button, h1, th, dt, dd, label");
    if (box.right > innerWidth + 1 || box.left < -1) wide.push(`over the edge: ${label}`);
    else if (isCut) wide.push(`cut off: ${label}`);
  }
  return wide;
}"""


async def _fill(gateway: ConsoleGateway) -> None:
    chance = random.Random(11)
    for tail in ("placed", "paid", "sent", "returned"):
        await gateway.publish(
            f"{LONG}{tail}",
            *({"order": f"A-{n}", "total": str(chance.randrange(9_999)), "note": "x" * n} for n in range(60)),
        )
    for name in ("audit", "metrics.cellar", "metrics.attic"):
        await gateway.publish(name, *({"n": str(n)} for n in range(20)))
    policy = {"start": "0", "dead_letter": {"stream": f"{LONG}dead", "max_deliveries": 3}}
    await gateway.call("PUT", f"{STREAM}/groups/billing", {"start": "0"})
    await gateway.call("PUT", f"{STREAM}/groups/a-group-with-a-rather-long-name-of-its-own", {"start": "0"})
    del policy["start"]
    await gateway.call("PATCH", f"{STREAM}/groups/billing", policy)
    given = await gateway.call(
        "POST", f"{STREAM}/groups/billing/consumers/worker-on-node-17/read", {"count": 9}
    )
    ids = [one["id"] for one in given["entries"] if isinstance(one, dict)]
    dead_letters = {
        "ids": ids[:3],
        "reason": "the customer's address could not be found in any of the registers",
    }
    await gateway.call("POST", f"{STREAM}/groups/billing/dead-letter", dead_letters)
    await gateway.call("PATCH", f"{STREAM}/groups/billing", {"paused": True})
    await gateway.call("PUT", f"{STREAM}/schedules/every-night-after-the-stocktaking", NIGHTLY)


async def _overview(page: Page, gateway: ConsoleGateway) -> None:
    await page.goto(f"{gateway.server.url}/console#/")
    await expect(page.get_by_role("region", name="Highest lag").get_by_role("row")).not_to_have_count(0)


async def _live(page: Page, gateway: ConsoleGateway) -> None:
    await opened(page, gateway, STREAM)
    await expect(rows(page).last).to_be_visible()


async def _entry(page: Page, gateway: ConsoleGateway) -> None:
    await _live(page, gateway)
    await rows(page).last.click()
    await expect(page.get_by_role("complementary", name="Entry")).to_be_visible()


async def _groups(page: Page, gateway: ConsoleGateway) -> None:
    await opened(page, gateway, STREAM, "groups/billing")
    await expect(page.get_by_role("region", name="Dead letters").get_by_role("row")).to_have_count(4)


async def _dead_letters(page: Page, gateway: ConsoleGateway) -> None:
    await _groups(page, gateway)
    await page.get_by_role("region", name="Dead letters").scroll_into_view_if_needed()


async def _publish(page: Page, gateway: ConsoleGateway) -> None:
    await opened(page, gateway, STREAM, "publish")


async def _dialog(page: Page, gateway: ConsoleGateway) -> None:
    await _groups(page, gateway)
    await page.get_by_role("button", name="Policy…").click()
    await expect(page.get_by_role("dialog")).to_be_visible()


async def _new_group(page: Page, gateway: ConsoleGateway) -> None:
    await _groups(page, gateway)
    await page.get_by_role("button", name="New group").click()
    await expect(page.get_by_role("dialog")).to_be_visible()


async def _why(page: Page, gateway: ConsoleGateway) -> None:
    await _groups(page, gateway)
    await page.get_by_role("button", name="Why?").click()
    await expect(page.get_by_role("dialog").get_by_role("listitem")).not_to_have_count(0)


async def _scheduled(page: Page, gateway: ConsoleGateway) -> None:
    await opened(page, gateway, STREAM, "scheduled")
    await expect(page.get_by_role("table", name="Schedules")).to_contain_text("paused")
    await page.get_by_role("button", name="Resume").click()
    await page.get_by_role("button", name="Pause…").click()
    await expect(page.get_by_role("dialog").get_by_label("Until")).to_be_visible()
    await gateway.call("PUT", f"{STREAM}/schedules/every-night-after-the-stocktaking", NIGHTLY)


VIEWS: dict[str, Callable[[Page, ConsoleGateway], Awaitable[None]]] = {
    "overview": _overview,
    "live": _live,
    "entry": _entry,
    "groups": _groups,
    "dead-letters": _dead_letters,
    "publish": _publish,
    "dialog": _dialog,
    "new-group": _new_group,
    "why": _why,
    "scheduled": _scheduled,
}


async def test_every_view_fits(page: Page, gateway: ConsoleGateway, tmp_path: Path) -> None:
    """With long names, all text can be read or scrolled to."""
    folder = Path(os.environ.get("WEIR_VIEWS") or tmp_path)
    await _fill(gateway)
    found: dict[str, object] = {}
    for size, (width, height) in SIZES.items():
        await page.set_viewport_size({"width": width, "height": height})
        for name, view in VIEWS.items():
            await view(page, gateway)
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
                await page.screenshot(path=folder / f"{name}-{size}-{scheme}.png")
                if wide := await page.evaluate(OVERFLOWS):
                    found[f"{name} {size} {scheme}"] = wide
            await page.keyboard.press("Escape")
    assert found == {}
