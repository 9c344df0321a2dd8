"""The console in a real browser with a real gateway: what people see and can do.

Knows: the page by its ARIA roles and names. Must never know: its modules.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Request, Route, expect

from tests.console.conftest import ConsoleGateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHARTS = ("Rate", "Lag", "Latency")
AXE = Path(__file__).parents[1] / "sdk" / "node_modules" / "axe-core" / "axe.min.js"


async def opened(page: Page, gateway: ConsoleGateway, stream: str, view: str = "live") -> Page:
    """The page at a stream, connected."""
    await page.goto(f"{gateway.server.url}/console#/{stream}/{view}")
    await expect(page.get_by_role("group", name="Connection")).to_contain_text("Connected since")
    if view == "live":
        await expect(page.locator(".state")).to_have_text("Live")
    return page


def rows(page: Page, text: str = "") -> Locator:
    """The visible rows with this text."""
    return page.locator(".row:visible").filter(has_text=text)


async def test_published_entries_appear(page: Page, gateway: ConsoleGateway) -> None:
    """Existing entries, then new ones, in order; fields have columns; the list of streams has the length."""
    await gateway.publish("appear", *({"n": f"old {n}"} for n in range(3)))
    await opened(page, gateway, "appear")
    await expect(rows(page)).to_have_count(3)
    (new,) = await gateway.publish("appear", {"n": "new", "city": "Graz"})
    await expect(rows(page, "new")).to_contain_text(new)
    assert re.findall(r"old \d", " ".join(await rows(page).all_inner_texts())) == ["old 0", "old 1", "old 2"]
    await expect(page.get_by_role("columnheader", name="city")).to_be_visible()
    line = page.get_by_role("region", name="List of streams").get_by_role("row", name=re.compile("appear"))
    await expect(line.get_by_role("cell").first).to_have_text("4")


async def test_a_paused_tail_leaves_no_entry_out(page: Page, gateway: ConsoleGateway) -> None:
    """It says since when it is paused and how many entries arrived; resuming shows them all."""
    await gateway.publish("pause", {"n": "first"})
    await opened(page, gateway, "pause")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator(".state")).to_contain_text("Paused at")
    await gateway.publish("pause", *({"n": f"held {n}"} for n in range(5)))
    await expect(page.locator(".status")).to_contain_text("5 new entries")
    await expect(rows(page)).to_have_count(1)
    await page.get_by_role("button", name="Resume").click()
    await expect(rows(page)).to_have_count(6)
    await expect(page.locator(".state")).to_have_text("Live")


async def test_a_filter_shows_matching_entries(page: Page, gateway: ConsoleGateway) -> None:
    """Words, fields, numbers, exclusion; among loaded and new entries."""
    await gateway.publish(
        "filter", *({"city": city, "t": str(t)} for city in ("Graz", "Wien") for t in range(5))
    )
    await opened(page, gateway, "filter")
    wanted = page.get_by_role("searchbox", name="Filter entries")
    for text, count in (("graz", 5), ("city:wi t>2", 2), ('city="Graz" -t=0', 4), ("t>=4", 2), ("", 10)):
        await wanted.fill(text)
        await expect(rows(page)).to_have_count(count)
    await wanted.fill("city:linz")
    await expect(page.get_by_text("No loaded entry matches")).to_be_visible()
    await gateway.publish("filter", {"city": "Linz", "t": "1"}, {"city": "Graz", "t": "1"})
    await expect(rows(page)).to_have_count(1)


async def test_a_reader_jumps_into_history_and_back(page: Page, gateway: ConsoleGateway) -> None:
    """To an ID; scrolling up loads older entries; one button returns to the newest."""
    ids = await gateway.publish("jump", *({"n": f"n{n:04}"} for n in range(1500)))
    await opened(page, gateway, "jump")
    place = page.get_by_role("textbox", name="Jump to")
    await place.fill("25 o'clock")
    await place.press("Enter")
    assert await place.evaluate("element => element.validationMessage")
    await place.fill(ids[700])
    await place.press("Enter")
    await expect(page.locator(".state")).to_have_text("History")
    await expect(rows(page, "n0700")).to_be_in_viewport()
    await expect(page.locator(".status")).to_contain_text("1,000 rows")
    await page.get_by_role("grid").evaluate("element => { element.scrollTop = 0 }")
    await expect(page.locator(".status")).to_contain_text("1,200 rows")
    await expect(rows(page, "n0200")).to_be_in_viewport()
    await place.fill("1h")
    await place.press("Enter")
    await expect(rows(page, "n0000")).to_be_in_viewport()
    await page.get_by_role("button", name="Go to newest").click()
    await expect(page.locator(".state")).to_have_text("Live")
    await expect(rows(page, "n1499")).to_be_visible()


async def test_a_reader_scrolls_on_beyond_the_rows_that_a_page_keeps(
    page: Page, gateway: ConsoleGateway
) -> None:
    """Rows that leave at the front do not move those in sight; at the end, the wheel asks for newer ones."""
    ids = [
        *await gateway.publish("long", *({"n": f"n{n:05}"} for n in range(9_000))),
        *await gateway.publish("long", *({"n": f"n{n:05}"} for n in range(9_000, 10_400))),
    ]
    await opened(page, gateway, "long")
    place = page.get_by_role("textbox", name="Jump to")
    await place.fill(ids[0])
    await place.press("Enter")
    await expect(page.locator(".status")).to_have_text("500 rows loaded")
    grid = page.get_by_role("grid")
    for loaded in range(1_000, 10_001, 500):
        await grid.evaluate("element => { element.scrollTop = element.scrollHeight }")
        await expect(page.locator(".status")).to_have_text(f"{loaded:,} rows loaded")
    await grid.evaluate("element => { element.scrollTop = element.scrollHeight }")
    await expect(page.locator(".status")).to_contain_text("the newest entry is reached")
    await expect(rows(page, "n09999")).to_be_in_viewport()
    await grid.evaluate("element => { element.scrollTop = element.scrollHeight }")
    await expect(rows(page, "n10399")).to_be_in_viewport()
    await gateway.publish("long", {"n": "later"})
    await grid.hover()
    await page.mouse.wheel(0, 100)
    await expect(rows(page, "later")).to_be_attached()
    await page.mouse.wheel(0, 100)
    await expect(rows(page, "later")).to_be_in_viewport()


async def test_scrolling_away_from_the_end_pauses(page: Page, gateway: ConsoleGateway) -> None:
    """The rows in sight stay; the reader chooses columns; a notice names skipped entries."""
    await gateway.publish("scroll", *({"n": f"n{n:04}", "m": "x"} for n in range(300)))
    await opened(page, gateway, "scroll")
    await page.get_by_role("grid").hover()
    await page.mouse.wheel(0, -3_000)
    await expect(page.locator(".state")).to_contain_text("Paused at")
    sight = await rows(page).nth(12).inner_text()
    await gateway.publish("scroll", *({"n": f"n{n:04}"} for n in range(300, 1_300)))
    await expect(page.locator(".status")).to_contain_text("new entries, more wait")
    assert await rows(page).nth(12).inner_text() == sight
    await page.get_by_role("button", name="Columns", exact=True).click()
    await page.get_by_role("checkbox", name="m").uncheck()
    await page.keyboard.press("Escape")
    await expect(page.locator(".grid-head .cell")).to_have_text(["ID", "Time", "n", "Other fields"])
    await page.get_by_role("button", name="Go to newest").click()
    await expect(rows(page, "n1299")).to_be_in_viewport()
    await page.get_by_role("grid").press("Home")
    await expect(rows(page, "were skipped")).to_be_in_viewport()


async def test_a_tab_has_one_connection(page: Page, gateway: ConsoleGateway) -> None:
    """One WebSocket serves all streams and views."""
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    for stream in ("one", "two", "three"):
        await gateway.publish(stream, {"of": stream})
        await opened(page, gateway, stream)
        await expect(rows(page, stream)).to_have_count(1)
    await gateway.publish("one", {"of": "unseen"})
    await page.get_by_role("tab", name="Groups").click()
    assert len(sockets) == 1


async def test_a_gap_is_shown(page: Page, gateway: ConsoleGateway) -> None:
    """A trim removes entries that a paused tail has not read: a row says how many."""
    await gateway.publish("gap", {"n": "0"})
    await opened(page, gateway, "gap")
    await page.get_by_role("button", name="Pause").click()
    # More than the granted credit, so that some stay in the stream.
    for start in range(0, 5000, 1000):
        await gateway.publish("gap", *({"n": str(n)} for n in range(start, start + 1000)))
    await gateway.call("POST", "gap/trim", {"maxlen": 10})
    await expect(page.locator(".status")).to_contain_text("more wait in the stream")
    await page.get_by_role("button", name="Resume").click()
    await expect(rows(page, "Gap:")).to_contain_text(re.compile(r"Gap: .*removed before"))
    await expect(rows(page, "4999")).to_be_visible()


async def test_the_date_of_an_old_entry_is_shown_whole(page: Page, gateway: ConsoleGateway) -> None:
    await gateway.call("POST", "old/entries", {"id": "1700000000000-0", "fields": {"n": "1"}})
    await opened(page, gateway, "old")
    cell = rows(page).first.get_by_role("gridcell").nth(1)
    await expect(cell).to_have_text(re.compile(r"^2023-11-1\d \d\d:\d\d$"))
    assert await cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth")


_LINES_SHOWN = """element => {
  const range = document.createRange();
  range.selectNodeContents(element);
  return new Set([...range.getClientRects()].map(({top}) => top)).size;
}"""


async def test_an_entry_is_inspected_and_deleted(page: Page, gateway: ConsoleGateway) -> None:
    """Every field in full, bytes in hexadecimal, JSON indented; deleting asks first."""
    entry = {"fields": {"raw": "AP8QSA==", "sixteen": "MDEyMzQ1Njc4OWFiY2RlZg=="}, "encoding": "base64"}
    await gateway.call("POST", "inspect/entries", entry)
    await gateway.publish("inspect", {"long": "x" * 5000, "json": '{"a":[1,2]}'})
    await opened(page, gateway, "inspect")
    await rows(page).first.click()
    shown = page.get_by_role("complementary", name="Entry")
    await expect(shown.get_by_text("00 ff 10 48")).to_be_visible()
    dump = shown.locator("pre").last
    await expect(dump).to_have_text(re.compile(r"^0000 .* 01234567\n0008 .* 89abcdef$"))
    assert await dump.evaluate(_LINES_SHOWN) == 2, "no line of it is wrapped"
    await page.keyboard.press("Escape")
    await expect(shown).to_be_hidden()
    await rows(page).last.click()
    # It stays in sight when the inspector makes the list narrower.
    await expect(page.locator('.row[aria-selected="true"]')).to_be_in_viewport()
    assert len(await shown.locator("pre").first.inner_text()) == 5000
    await expect(shown.locator("pre").last).to_have_text('{\n  "a": [\n    1,\n    2\n  ]\n}')
    await shown.get_by_role("button", name="Delete…").click()
    await page.get_by_role("button", name="Delete entry").click()
    await expect(page.locator(".toast")).to_contain_text("Deleted")
    await expect(rows(page).last).to_contain_text("deleted")
    assert len((await gateway.call("GET", "inspect/entries"))["entries"]) == 1


async def test_pending_entries_are_managed(page: Page, gateway: ConsoleGateway) -> None:
    """Lag, consumers, idle times and deliveries; acknowledge, claim, release."""
    ids = await gateway.publish("work", *({"n": str(n)} for n in range(8)))
    await gateway.call("POST", "work/groups", {"name": "team", "start": "0"})
    await gateway.call("POST", "work/groups/team/consumers/anna/read", {"count": 5})
    await opened(page, gateway, "work", "groups/team")
    group = page.get_by_role("row", name=re.compile("^team"))
    await expect(group).to_have_text(re.compile(r"team\s*running\s*3\s*5\s*1"))
    pending = page.get_by_role("region", name="Pending entries")
    await expect(pending.get_by_role("row")).to_have_count(6)

    await pending.get_by_label(f"Choose {ids[0]}").check()
    await pending.get_by_role("button", name="Acknowledge").click()
    await expect(page.locator(".toast").last).to_contain_text("Acknowledged 1 entry")
    await expect(pending.get_by_role("row")).to_have_count(5)

    await pending.get_by_label(f"Choose {ids[1]}").check()
    await pending.get_by_role("button", name="Claim…").click()
    await page.get_by_role("dialog").get_by_label("Consumer").fill("bert")
    await page.get_by_role("button", name="Claim", exact=True).click()
    await expect(pending.get_by_role("row", name=ids[1])).to_have_text(re.compile(r"bert.*2$"))

    await pending.get_by_label(f"Choose {ids[2]}").check()
    await pending.get_by_role("button", name="Release").click()
    await expect(pending.get_by_role("row", name=ids[2])).to_contain_text("–")

    await pending.get_by_label("Consumer", exact=True).select_option("bert")
    await expect(pending.get_by_role("row")).to_have_count(2)
    await pending.get_by_role("button", name=ids[1], exact=True).click()
    await expect(page.get_by_role("complementary", name="Entry")).to_contain_text(ids[1])


async def test_what_another_consumer_holds_by_now_stays_with_it(page: Page, gateway: ConsoleGateway) -> None:
    """Though the list shows it as another's yet; who has it is said."""
    ids = await gateway.publish("taken", *({"n": str(n)} for n in range(3)))
    await gateway.call(
        "POST", "taken/groups", {"name": "team", "start": "0", "dead_letter": {"stream": "taken-dead"}}
    )
    await gateway.call("POST", "taken/groups/team/consumers/anna/read", {"count": 3})
    seen = await gateway.call("GET", "taken/groups/team/pending?count=100")
    is_asked = False

    async def show(route: Route) -> None:
        await (route.continue_() if is_asked else route.fulfill(json=seen))

    def note(request: Request) -> None:
        nonlocal is_asked
        is_asked |= request.url.endswith(("/nack", "/dead-letter"))

    await page.route(re.compile(r"/groups/team/pending\?"), show)
    page.on("request", note)
    await opened(page, gateway, "taken", "groups/team")
    pending = page.get_by_role("region", name="Pending entries")
    await expect(pending.get_by_role("row", name=ids[0])).to_contain_text("anna")
    claim = {"consumer": "bert", "min_idle_ms": 0, "ids": ids[:1]}
    await gateway.call("POST", "taken/groups/team/claim", claim)
    await pending.get_by_label(f"Choose {ids[0]}").check()
    await pending.get_by_label(f"Choose {ids[1]}").check()
    await pending.get_by_role("button", name="Release").click()
    await expect(page.locator(".toast").last).to_contain_text(
        "Released 1 entry; 1 entry is held by bert since"
    )
    await expect(pending.get_by_role("row", name=ids[0])).to_have_text(re.compile(r"bert.*2$"))
    is_asked = False
    await expect(pending.get_by_role("row", name=ids[0])).to_contain_text("anna")
    await pending.get_by_label(f"Choose {ids[0]}").check()
    await pending.get_by_label(f"Choose {ids[2]}").check()
    await pending.get_by_role("button", name="Dead letter…").click()
    await page.get_by_role("button", name="Move to dead letters").click()
    said = "Moved 1 entry to taken-dead; 1 entry is held by bert since"
    await expect(page.locator(".toast").last).to_contain_text(said)
    left: Any = (await gateway.call("GET", "taken/groups/team/pending?count=100"))["pending"]
    assert [(one["id"], one["consumer"]) for one in left] == [(ids[0], "bert"), (ids[1], None)]


async def test_a_policy_is_set_and_an_entry_moved_to_dead_letters(
    page: Page, gateway: ConsoleGateway
) -> None:
    """With the keyboard. Fields show the current policy, and an empty field removes its part. Without a
    dead-letter stream a dialog says how to set one.
    """
    ids = await gateway.publish("policy", {"n": "1"}, {"n": "2"})
    await gateway.call("POST", "policy/groups", {"name": "team", "start": "0"})
    await gateway.call("POST", "policy/groups/team/consumers/anna/read", {})
    await opened(page, gateway, "policy", "groups/team")
    detail = page.get_by_role("region", name="Group", exact=True)
    await expect(detail).to_contain_text("No dead-letter stream.")
    await page.get_by_label(f"Choose {ids[0]}").check()
    await page.get_by_role("button", name="Dead letter…").press("Enter")
    await expect(page.get_by_role("dialog", name="No dead-letter stream")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Dead letter…")).to_be_focused()

    await page.get_by_role("button", name="Policy…").press("Enter")
    await expect(page.get_by_label("Dead-letter stream")).to_be_focused()
    for text in ("policy-dead", "3", "60s", "1800500ms", "1h", "", ""):
        await page.keyboard.type(text)
        await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Set policy")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(detail).to_contain_text("After 3 deliveries an entry moves to policy-dead.")
    await expect(detail).to_contain_text("not acknowledged within 1 min goes to another consumer.")
    group = await gateway.call("GET", "policy/groups/team")
    shown = [str(group[name]) for name in ("ack_timeout_ms", "consumer_timeout_ms", "max_age_ms")]
    assert shown == ["60000", "1800500", "3600000"]

    for name, other, is_paused in (("Pause", "Resume", True), ("Resume", "Pause", False)):
        await page.get_by_role("button", name=name, exact=True).press("Enter")
        await expect(page.get_by_role("button", name=other, exact=True)).to_be_visible()
        await expect(detail).to_contain_text(
            "Paused: nothing is delivered" if is_paused else "After 3 deliveries"
        )
        group = await gateway.call("GET", "policy/groups/team")
        assert bool(group["paused"]) is is_paused

    await page.get_by_role("button", name="Dead letter…").press("Enter")
    await page.get_by_label("Reason").fill("no such town")
    await page.keyboard.press("Enter")
    await expect(page.locator(".toast").last).to_contain_text("Moved 1 entry to policy-dead")
    (letter,) = (await gateway.call("GET", "policy-dead/entries"))["entries"]
    assert "no such town" in str(letter)

    await page.get_by_role("button", name="Policy…").click()
    for label, value in (("Maximum deliveries", "3"), ("Consumer timeout", "1800500ms")):
        await expect(page.get_by_label(label)).to_have_value(value)
    await page.get_by_label("Dead-letter stream").fill("")
    await page.get_by_label("Acknowledgement timeout").fill("")
    await page.get_by_role("button", name="Set policy").click()
    await expect(detail).to_contain_text("No dead-letter stream.")
    await page.get_by_role("button", name="Limits…").click()
    await page.get_by_label("Maximum age").fill("1h")
    await page.get_by_role("button", name="Set limits").click()
    await expect(page.locator(".figures")).to_contain_text("keeps at most 1 h")


async def test_streams_and_groups_are_created_trimmed_and_deleted(
    page: Page, gateway: ConsoleGateway
) -> None:
    """A trim first shows its effect; a refused form can be corrected; a deletion needs the name typed."""
    await page.goto(f"{gateway.server.url}/console")
    await page.get_by_role("button", name="New stream").click()
    await page.get_by_label("Name", exact=True).fill("made here")
    await page.get_by_label("Maximum number of entries").fill("100")
    await page.get_by_role("button", name="Create stream").click()
    await expect(page.get_by_role("heading", level=1, name="made here")).to_be_visible()
    await expect(page.locator(".figures")).to_contain_text("keeps at most 100 entries")

    await page.get_by_role("tab", name="Publish").click()
    await page.get_by_label("Field name").fill("colour")
    await page.get_by_label("Value").fill("blue")
    await page.get_by_label("Value").press("Control+Enter")
    await expect(page.locator(".toast").last).to_contain_text("Published")
    await page.get_by_label("One JSON object per line").fill('{"colour": "red"}\n{"colour": "green"}')
    await page.get_by_role("button", name="Publish lines").click()
    await expect(page.locator(".toast").last).to_contain_text("Published 2 entries")
    await page.get_by_role("tab", name="Live").click()
    await expect(rows(page, "green")).to_be_visible()

    await page.get_by_role("button", name="Trim…").click()
    await page.get_by_label("Number, ID or age").fill("1")
    await expect(page.get_by_text("This removes 2 entries.")).to_be_visible()
    await page.get_by_role("button", name="Trim", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("Removed 2 entries")

    await page.get_by_role("tab", name="Groups").click()
    await page.get_by_role("button", name="New group").click()
    await page.get_by_label("Name", exact=True).fill("team")
    await page.get_by_role("button", name="Create group").click()
    await expect(page.get_by_role("row", name=re.compile("^team"))).to_be_visible()
    await page.get_by_role("button", name="New group").click()
    await page.get_by_label("Name", exact=True).fill("team")
    await page.get_by_role("button", name="Create group").click()
    await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("team")
    await expect(page.get_by_label("Name", exact=True)).to_have_value("team")
    await page.get_by_label("Name", exact=True).fill("second")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.get_by_role("row", name=re.compile("^second"))).to_be_visible()

    await page.get_by_role("button", name="Delete stream…").click()
    delete = page.get_by_role("button", name="Delete stream", exact=True)
    await expect(delete).to_be_disabled()
    await page.get_by_label("Type made here to confirm").fill("made here")
    await delete.click()
    await expect(page.get_by_text("This stream does not exist.")).to_be_visible()


async def test_a_group_is_made_with_its_policy_and_says_why_nothing_comes(
    page: Page, gateway: ConsoleGateway
) -> None:
    """What is to be done is said by the console's buttons, and its state is a word beside it."""
    await gateway.publish("asked", {"n": "1"})
    await opened(page, gateway, "asked", "groups")
    await page.get_by_role("button", name="New group").click()
    for label, text in (("Name", "team"), ("Acknowledgement timeout", "5m"), ("Maximum age", "60")):
        await page.get_by_label(label, exact=True).fill(text)
    await page.get_by_label("Start with").select_option("the oldest entry")
    await page.get_by_role("button", name="Create group").click()
    await expect(page.get_by_role("alert")).to_contain_text("60 is no duration such as")
    await page.get_by_label("Maximum age", exact=True).fill("7d")
    await page.get_by_role("button", name="Create group").click()
    detail = page.get_by_role("region", name="Group", exact=True)
    await expect(detail).to_contain_text("not acknowledged within 5 min goes to another consumer.")
    row = page.get_by_role("table", name="Groups").get_by_role("row", name=re.compile("^team"))
    await expect(row).to_contain_text("no consumers")
    await detail.get_by_role("button", name="Pause", exact=True).click()
    await expect(row).to_contain_text("paused")
    await detail.get_by_role("button", name="Why?").click()
    reasons = page.get_by_role("dialog").get_by_role("listitem")
    await expect(reasons.first).to_contain_text("the group is paused")
    await expect(reasons.first).to_contain_text("resume it: Resume")
    await page.keyboard.press("Escape")
    await detail.get_by_role("button", name="Resume").click()
    await expect(row).to_contain_text("no consumers")


async def test_charts_show_rate_lag_and_latency(page: Page, gateway: ConsoleGateway) -> None:
    """The latest value is text, which screen readers can read."""
    await gateway.call("PUT", "charts/groups/team", {"start": "0"})
    await opened(page, gateway, "charts")
    figure = {name: page.get_by_role("region", name=f"{name}:").locator(".figure") for name in CHARTS}
    await expect(figure["Latency"]).to_have_text("p50 –p99 –")
    await gateway.publish("charts", *({"n": str(n)} for n in range(7)))
    await expect(figure["Latency"]).to_have_text(re.compile(r"^p50 <?[\d.]+ m?sp99 <?[\d.]+ m?s$"))
    await expect(figure["Lag"]).to_have_text("7")
    await expect(figure["Rate"]).to_have_text(re.compile(r"^[1-9][\d.]*/s$"))


async def test_the_keyboard_is_enough(page: Page, gateway: ConsoleGateway) -> None:
    """From the list of streams to an entry and back without a pointer; the focus is never lost."""
    await gateway.publish("keys", *({"n": f"row {n}"} for n in range(20)))
    await page.goto(f"{gateway.server.url}/console")
    await page.keyboard.press("s")
    await page.keyboard.type("keys")
    found = page.get_by_role("region", name="List of streams").get_by_role("link")
    link = found.filter(has_text=re.compile("^keys$"))
    await expect(found).to_have_count(1)
    while not await link.evaluate("element => element === document.activeElement"):
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    # Rows are drawn in the frame after the state.
    await expect(rows(page, "row 19")).to_be_visible()
    await page.keyboard.press("e")
    grid = page.get_by_role("grid", name="Entries")
    await expect(grid).to_be_focused()
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("ArrowUp")
    active = await grid.get_attribute("aria-activedescendant")
    await expect(page.locator(f"#{active}")).to_contain_text("row 18")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("complementary", name="Entry")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(grid).to_be_focused()
    await page.keyboard.press(" ")
    await expect(page.locator(".state")).to_have_text("Live")
    await page.keyboard.press("2")
    await expect(page.get_by_role("tab", name="Groups")).to_have_attribute("aria-selected", "true")
    await page.get_by_role("tab", name="Groups").focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("tab", name="Publish")).to_be_focused()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("tab", name="Publish")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_views_are_accessible(page: Page, gateway: ConsoleGateway, scheme: str) -> None:
    """Axe finds no violation in any view and either theme, contrast included."""
    stream = f"access-{scheme}"
    await gateway.publish(stream, *({"n": str(n), "city": "Graz"} for n in range(5)))
    await gateway.call("PUT", f"{stream}/groups/team", {"start": "0"})
    await gateway.call("POST", f"{stream}/groups/team/consumers/anna/read", {"count": 2})
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    await opened(page, gateway, stream)
    # Run from the test's side of the browser, where the page's policy does not apply.
    await page.evaluate(AXE.read_text())
    await rows(page).first.click()
    await check_access(page)
    await page.keyboard.press("Escape")
    await page.get_by_role("tab", name="Groups").click()
    await page.get_by_role("link", name="team").click()
    await expect(page.get_by_role("region", name="Pending entries").get_by_role("row")).to_have_count(3)
    await check_access(page)
    for question in ("New group", "Policy…"):
        await page.get_by_role("button", name=question).click()
        await check_access(page)
        await page.keyboard.press("Escape")
    await page.get_by_role("tab", name="Publish").click()
    await check_access(page)


async def check_access(page: Page) -> None:
    """Assert that axe finds no violation."""
    found = await page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    problems = [(one["id"], [node["target"] for node in one["nodes"]]) for one in found["violations"]]
    assert problems == []


async def test_dark_is_dark(page: Page, gateway: ConsoleGateway) -> None:
    """The theme follows the system, or the reader's choice, which is remembered."""
    await page.emulate_media(color_scheme="dark")
    await page.goto(f"{gateway.server.url}/console")
    paper = "() => getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(paper)
    assert max(map(int, re.findall(r"\d+", dark)[:3])) < 60
    await page.get_by_role("button", name="Theme: system").click()
    assert min(map(int, re.findall(r"\d+", await page.evaluate(paper))[:3])) > 200
    await page.reload()
    await expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    await page.get_by_role("button", name="Theme: light").click()
    assert await page.evaluate(paper) == dark


async def test_a_recreated_stream_is_followed_from_its_beginning(page: Page, gateway: ConsoleGateway) -> None:
    """Also if its IDs are smaller than before; a row says that it is another stream."""
    await gateway.call("POST", "again/entries", {"id": "99-1", "fields": {"n": "before"}})
    await opened(page, gateway, "again")
    await gateway.call("DELETE", "again")
    await gateway.call("POST", "again/entries", {"id": "5-1", "fields": {"n": "after"}})
    await expect(rows(page, "after")).to_have_count(1)
    await expect(rows(page, re.compile("deleted").pattern).first).to_be_visible()
