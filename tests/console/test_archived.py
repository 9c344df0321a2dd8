"""A reader scrolls from the live tail into the archive, and back, and does not see where one ends."""

import re
from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from tests.history.room import STREAM, Room

pytestmark = pytest.mark.asyncio(loop_scope="module")

ARCHIVED = 700
LIVE = 40


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """With most of a stream in the archive alone."""
    made = Room(tmp_path_factory.mktemp("archived"))
    made.publish(*(f"n{number}" for number in range(ARCHIVED)))
    made.archiver.run(STREAM)
    assert made.archiver.trim() == ARCHIVED
    made.publish(*(f"n{number}" for number in range(ARCHIVED, ARCHIVED + LIVE)))
    made.served.start()
    yield made
    made.close()


async def opened(page: Page, room: Room) -> None:
    """At the stream, live."""
    await page.goto(f"{room.gateway.url}/console#/{STREAM}/live")
    await expect(page.locator(".state")).to_have_text("Live")


def value(page: Page, number: int) -> str:
    """What is looked for of a visible row: its only field."""
    return f"xpath=//*[contains(@class, 'row')]//*[text()='n{number}']"


async def scroll_to(page: Page, number: int, *, up: bool) -> None:
    """Turn the wheel until the row of that entry is seen."""
    await page.mouse.move(600, 500)
    for _ in range(400):
        if await page.locator(value(page, number)).first.is_visible():
            return
        await page.mouse.wheel(0, -2_000 if up else 2_000)
        await page.evaluate("() => new Promise(requestAnimationFrame)")
    raise AssertionError(f"n{number} is not there: {await page.locator('.status').first.text_content()}")


async def test_a_reader_scrolls_up_to_the_first_archived_entry(page: Page, room: Room) -> None:
    """All rows in between are there, once."""
    await opened(page, room)
    await expect(page.locator(value(page, ARCHIVED + LIVE - 1)).first).to_be_visible()
    await scroll_to(page, 0, up=True)
    await expect(page.locator(".foot .status")).to_contain_text(f"{ARCHIVED + LIVE} rows loaded")


async def test_without_the_service_the_page_says_why_there_are_no_more_rows(page: Page, room: Room) -> None:
    """And goes on when it is back; a jump behind all entries names the newest one."""
    first = room.ids(after="0", count=1)[0]
    await opened(page, room)
    jump = page.get_by_label("Jump to a time or an ID")
    await jump.fill(first)
    await jump.press("Enter")
    await expect(page.locator(value(page, 0)).first).to_be_visible()
    room.served.kill()
    status = page.locator(".foot .status")
    await page.mouse.move(600, 500)
    for _ in range(100):
        await page.mouse.wheel(0, 4_000)
        if "no more could be loaded" in (await status.text_content() or ""):
            break
        await page.evaluate("() => new Promise(requestAnimationFrame)")
    await expect(status).to_contain_text(
        re.compile("no more could be loaded: the service of history at .* does")
    )
    room.served.start()
    await scroll_to(page, ARCHIVED + LIVE - 1, up=False)
    await expect(status).not_to_contain_text("no more could be loaded")
    room.archiver.run(STREAM)
    assert room.archiver.trim() == LIVE
    await jump.fill("9999999999999-0")
    await jump.press("Enter")
    newest = room.ids(last=1)[0]
    await expect(page.locator(".empty.over")).to_contain_text(f"The newest entry is {newest}")
