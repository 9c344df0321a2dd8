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


async def test_one_is_made_paused_and_resumed(page: Page, gateway: ConsoleGateway) -> None:
    """What is wrong is said where it was written, and the form stays."""
    await opened(page, gateway, "made", "scheduled")
    await page.get_by_role("button", name="New schedule…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("tick")
    await dialog.get_by_label("Fields of the entry").fill("{")
    await dialog.get_by_label("Append it").select_option("every")
    await dialog.get_by_label("When").fill("1 hour")
    for said in ("The fields of the entry are JSON", "1 hour is no duration such as"):
        await dialog.get_by_role("button", name="Set schedule").click()
        await expect(dialog.get_by_role("alert")).to_contain_text(said)
        await dialog.get_by_label("Fields of the entry").fill('{"job": "report"}')
    await dialog.get_by_label("When").fill("1h")
    await dialog.get_by_role("button", name="Set schedule").click()
    tick = page.get_by_role("table", name="Schedules").locator("tbody tr")
    await expect(tick).to_contain_text('{"job":"report"}')
    await tick.get_by_role("button", name="Pause…").click()
    await page.get_by_role("button", name="Pause schedule").click()
    await expect(tick).to_contain_text("every 1 h, paused")
    await expect(tick.locator("td.next")).to_have_text("paused")
    await tick.get_by_role("button", name="Pause…").or_(tick.get_by_role("button", name="Resume")).click()
    await expect(tick.get_by_role("button", name="Pause…")).to_be_visible()
    await expect(tick).not_to_contain_text("paused")
    await tick.get_by_role("button", name="Pause…").click()
    await page.get_by_label("Until").fill("2035-01-31T12:00")
    await page.get_by_role("button", name="Pause schedule").click()
    await expect(tick).to_contain_text("every 1 h, paused until 2035-01-31")


async def test_the_overview_has_those_of_all_streams(page: Page, gateway: ConsoleGateway) -> None:
    """Each leads to its stream; a new one asks for its stream."""
    later = {"entry": {"fields": {"n": "later"}}, "at": "2034-05-01T00:00:00Z"}
    for stream in ("all-a", "all-b"):
        await gateway.call("PUT", f"{stream}/schedules/job", later)
    await page.goto(f"{gateway.server.url}/console#//scheduled")
    rows = page.get_by_role("table", name="Schedules").locator("tbody tr")
    await expect(rows.filter(has_text="all-b")).to_contain_text("once")
    await page.get_by_role("button", name="New schedule…").click()
    dialog = page.get_by_role("dialog")
    for label, text in (("Stream", "all-a"), ("Name", "nightly"), ("When", "30 2 * * *")):
        await dialog.get_by_label(label, exact=True).fill(text)
    await dialog.get_by_role("button", name="Set schedule").click()
    await expect(rows.filter(has_text="nightly")).to_contain_text("30 2 * * *")
    await rows.filter(has_text="all-b").get_by_role("link", name="all-b").click()
    await expect(page.get_by_role("tab", name="Scheduled")).to_have_attribute("aria-selected", "true")


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
