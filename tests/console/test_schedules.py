"""Entries for later in the console: when each is appended next, fired and cancelled."""

import pytest
from playwright.async_api import FloatRect, Locator, Page, expect

from tests.console.conftest import ConsoleGateway
from tests.console.test_console import opened

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def box(locator: Locator) -> FloatRect:
    """Where it is shown."""
    found = await locator.bounding_box()
    assert found is not None, "it is shown"
    return found


async def test_what_is_scheduled_is_shown_fired_and_cancelled(page: Page, gateway: ConsoleGateway) -> None:
    later = {"entry": {"fields": {"n": "later"}}}
    await gateway.call(
        "PUT", "timed/schedules/nightly", {**later, "cron": "30 2 * * *", "tz": "Europe/Berlin"}
    )
    await gateway.call("PUT", "timed/schedules/tick", {**later, "every_ms": 3_600_000, "count": 3})
    await opened(page, gateway, "timed", "scheduled")
    rows = page.get_by_role("table", name="Schedules").locator("tbody tr")
    await expect(rows).to_have_count(2)
    tick = rows.filter(has_text="tick")
    await expect(tick).to_contain_text("every 1 h, 3 left")
    await expect(rows.filter(has_text="nightly")).to_contain_text("30 2 * * * Europe/Berlin")
    # As far from the edge as what the other tabs show, and no button at another's.
    heading, panel = page.get_by_role("heading", name="Scheduled"), page.get_by_role("tabpanel")
    assert (await box(heading))["x"] - (await box(panel))["x"] >= 12
    fire, cancel = await box(tick.get_by_role("button").first), await box(tick.get_by_role("button").last)
    assert cancel["x"] - (fire["x"] + fire["width"]) >= 4
    await tick.get_by_role("button", name="Fire now").click()
    await expect(page.locator(".toast").last).to_contain_text("Appended ")
    await expect(tick).to_contain_text("2 left")
    await rows.filter(has_text="nightly").get_by_role("button", name="Cancel…").click()
    await page.get_by_role("button", name="Cancel schedule").click()
    await expect(page.locator(".toast").last).to_contain_text("Cancelled nightly")
    await expect(rows).to_have_count(1)


@pytest.mark.parametrize(("action", "said"), [("Delete stream", "Deleted "), ("Close stream", "Closed ")])
async def test_what_ends_with_the_stream_is_named_in_the_question(
    page: Page, gateway: ConsoleGateway, action: str, said: str
) -> None:
    """Also what was scheduled since the page was opened; who agrees has it dropped."""
    name = action.partition(" ")[0].lower()
    later = {"entry": {"fields": {"n": "later"}}, "in_ms": 3_600_000}
    await gateway.call("PUT", f"{name}d/schedules/a", later)
    await opened(page, gateway, f"{name}d")
    await expect(page.locator(".figures")).to_contain_text("1 scheduled")
    await gateway.call("PUT", f"{name}d/schedules/b", later)
    await page.get_by_role("button", name=f"{action}…").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("What is scheduled never runs: 2 schedules.")
    if action == "Delete stream":
        await page.get_by_label(f"Type {name}d to confirm").fill(f"{name}d")
    await dialog.get_by_role("button", name=action, exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text(said)


@pytest.mark.parametrize("width", [1280, 900, 700, 390])
async def test_a_row_is_on_the_screen_whole(page: Page, gateway: ConsoleGateway, width: int) -> None:
    """Its actions too, at each width, with long names, rules and entries: nothing scrolls sideways."""
    long = {"kind": "report", "recipient": "operations@example.org", "note": "what is to be done " * 12}
    name = "nightly-report-of-the-northern-plant"
    rule = {"cron": "*/15 8-17 1,15 * mon-fri", "tz": "America/Argentina/Buenos_Aires", "count": 1_000}
    await gateway.call("PUT", f"wide/schedules/{name}", {"entry": {"fields": long}, **rule})
    await gateway.call("PUT", "wide/schedules/tick", {"entry": {"fields": {"n": "1"}}, "every_ms": 3_600_000})
    await page.set_viewport_size({"width": width, "height": 844})
    await opened(page, gateway, "wide", "scheduled")
    table = page.get_by_role("table", name="Schedules")
    for row in await table.get_by_role("row").filter(has=page.get_by_role("button")).all():
        await row.scroll_into_view_if_needed()
        for part in await row.locator("th, td, button").all():
            found = await box(part)
            assert found["x"] >= 0, await part.inner_text()
            assert found["x"] + found["width"] <= width, await part.inner_text()
            cut = await part.evaluate("element => element.scrollWidth - element.clientWidth")
            assert cut <= 1, await part.inner_text()
    await expect(table.get_by_role("rowheader", name=name)).to_be_visible()
    await table.get_by_role("row").filter(has_text="tick").get_by_role("button", name="Fire now").click()
    await expect(page.locator(".toast").last).to_contain_text("Appended ")
