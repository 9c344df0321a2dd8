"""Finding streams, entries and lagging groups, and downloading or copying them.

Knows: the page by its ARIA roles and names. Must never know: its modules.
"""

import asyncio
import csv
import http.client
import json
import re
import shlex
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, Request, Route, expect

from tests.console.conftest import ConsoleGateway
from tests.console.test_console import AXE, check_access, opened, rows
from tests.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAREHOUSES = "tenant-4711:region-eu-central:orders-of-the-northern-warehouses"
LEFT = "element => element.getBoundingClientRect().left"
# Elements that scroll and cannot be reached with the Tab key; axe does not find all of them.
OUT_OF_REACH = """() => [...document.querySelectorAll("*")].filter((one) => {
  const { overflowX, overflowY } = getComputedStyle(one);
  const scrolls = (/auto|scroll/.test(overflowY) && one.scrollHeight > one.clientHeight + 1)
    || (/auto|scroll/.test(overflowX) && one.scrollWidth > one.clientWidth + 1);
  const stop = one.tabIndex >= 0 || one.querySelector("a[href], button, input, [tabindex='0']");
  return scrolls && one.clientHeight > 0 && !stop;
}).map((one) => one.className)"""
WIDTH = "element => element.getBoundingClientRect().width"

# All texts that an element has from now on.
RECORD = """element => {
  window.recorded = [];
  new MutationObserver(() => window.recorded.push(element.textContent))
    .observe(element, { childList: true, characterData: true, subtree: true });
}"""

_FORM = {"content-type": "application/x-www-form-urlencoded"}


def listed(page: Page) -> Locator:
    """The links of the list of streams."""
    return page.get_by_role("region", name="List of streams").get_by_role("link")


async def test_names_are_whole_and_columns_stay(page: Page, gateway: ConsoleGateway) -> None:
    """At 1280 px, with long names that differ at the end and figures that grow. The keyboard makes the list
    wider, and the width is remembered.
    """
    await page.set_viewport_size({"width": 1280, "height": 800})
    names = [f"wide-{place:02}-{'x' * 60}-{end}" for place, end in enumerate(("one", "two", "three"))]
    for name in names:
        await gateway.publish(name, {"n": "1"})
    await opened(page, gateway, names[0])
    length = page.get_by_role("columnheader", name="Length")
    left = await length.evaluate(LEFT)
    cut = "one => [one, one.parentElement].some((box) => box.scrollWidth > box.clientWidth)"
    for name in names:
        link = page.get_by_role("region", name="List of streams").get_by_role("link", name=name)
        assert await link.inner_text() == name
        assert not await link.evaluate(cut)
    for n in range(12):
        await gateway.publish(names[0], *({"n": str(n)} for n in range(1_000)))
        if n % 4 == 0:
            assert await length.evaluate(LEFT) == left
    line = page.get_by_role("row", name=names[0])
    await expect(line.get_by_role("cell").first).to_have_text("12K")
    assert await length.evaluate(LEFT) == left
    divider = page.get_by_role("separator", name="Width of the list")
    await divider.focus()
    for _ in range(9):
        await divider.press("ArrowRight")
    assert await length.evaluate(LEFT) > left + 20
    await expect(page.get_by_role("columnheader", name="Memory")).to_be_visible()
    width = await page.locator("#streams").evaluate(WIDTH)
    await page.reload()
    assert await page.locator("#streams").evaluate(WIDTH) == width


async def test_prefixes_fold_and_any_part_of_a_name_finds(page: Page, gateway: ConsoleGateway) -> None:
    """Folders of a short list are open; in a long list only that of the selected stream is."""
    tails = [f"{kind}:{n}" for kind in ("paid", "sent") for n in range(22)]
    for tail in tails:
        await gateway.call("PUT", f"{WAREHOUSES}:{tail}")
    await gateway.call("PUT", "fold-other")
    await opened(page, gateway, f"{WAREHOUSES}:paid:7")
    folder = page.get_by_role("button", name=f"{WAREHOUSES}:")
    await expect(folder).to_have_attribute("aria-expanded", "true")
    await expect(page.get_by_role("row", name=f"{WAREHOUSES}: 44 streams")).to_be_visible()
    await expect(page.get_by_role("button", name="paid:", exact=True)).to_have_attribute(
        "aria-expanded", "true"
    )
    sent = page.get_by_role("button", name="sent:", exact=True)
    await expect(sent).to_have_attribute("aria-expanded", "false")
    await expect(listed(page).filter(has_text=re.compile("^7$"))).to_have_count(1)
    await sent.press("Enter")
    await expect(listed(page).filter(has_text=re.compile("^7$"))).to_have_count(2)
    await expect(page.get_by_role("link", name=f"{WAREHOUSES}:sent:21", exact=True)).to_be_visible()
    await folder.click()
    await expect(page.get_by_role("link", name=f"{WAREHOUSES}:sent:21", exact=True)).to_have_count(0)
    search = page.get_by_role("searchbox", name="Find streams")
    await search.fill("NORTHERN sent:2")
    await expect(listed(page)).to_have_text([f"{WAREHOUSES}:sent:{n}" for n in ("2", "20", "21")])
    await search.fill("nothing like it")
    await expect(page.get_by_text("No stream name matches.")).to_be_visible()


async def test_the_overview_shows_the_gateway(page: Page, gateway: ConsoleGateway) -> None:
    """Figures, the busiest streams, and the groups with the highest lag, the worst first."""
    for name, count in (("lag-much", 30), ("lag-some", 20)):
        await gateway.call("PUT", f"{name}/groups/team", {"start": "0"})
        await gateway.publish(name, *({"n": str(n)} for n in range(count)))
    await page.goto(f"{gateway.server.url}/console")
    for card in ("Streams", "Entries in memory", "Memory", "Log", "Connections", "Version", "Uptime"):
        figure = page.locator(".card").filter(has=page.get_by_text(card, exact=True)).locator("dd")
        await expect(figure).to_have_text(re.compile(r"\d"))
    behind = page.get_by_role("region", name="Highest lag").get_by_role("row")
    await expect(behind.nth(1)).to_have_text(re.compile(r"team\s*lag-much\s*30\s*0\s*0"))
    await expect(behind.nth(2)).to_have_text(re.compile(r"team\s*lag-some\s*20\s*0\s*0"))
    busy = page.get_by_role("region", name="Busiest streams")
    for _ in range(100):
        await gateway.publish("lag-some", {"n": "more"})
        if await busy.get_by_role("link", name="lag-some").is_visible():
            break
        await asyncio.sleep(0.2)
    await expect(busy.get_by_role("link", name="lag-some")).to_be_visible()
    await behind.nth(1).get_by_role("link", name="team").click()
    await expect(page.get_by_role("region", name="Group", exact=True)).to_be_visible()
    await expect(page.get_by_role("region", name="Lag of each group over time")).to_contain_text("team 30")
    await page.get_by_role("link", name="Weir console, overview").click()
    await expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()


@pytest.mark.parametrize(("count", "counted"), [(5_000, "5,000"), (5_001, "5,000 or more")])
async def test_the_overview_says_that_it_is_of_the_first_streams(
    page: Page, tmp_path: Path, count: int, counted: str
) -> None:
    """The list holds 5,000: the largest stream, or one that lags, may be beyond them."""
    with Server(tmp_path / "data") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            for start in range(0, count, 1_000):
                names = [f"s-{number:04}" for number in range(start, min(start + 1_000, count))]
                body = {"streams": {name: [{"fields": {"n": "1"}}] for name in names}}
                (await http.post("/v1/publish", json=body)).raise_for_status()
        await page.goto(f"{server.url}/console")
        entries = page.locator(".card").filter(has=page.get_by_text("Entries", exact=True)).locator("dd")
        await expect(entries).to_have_text(counted)
        notice = page.get_by_text("the first 5,000 streams by name")
        await expect(notice).to_be_visible(visible=count > 5_000)
        # The page must not ask a gateway that is gone.
        await page.goto("about:blank")


async def test_nothing_is_said_of_groups_before_they_are_read(page: Page, gateway: ConsoleGateway) -> None:
    """That no group lags is known when the groups of all streams have been read."""
    await gateway.call("PUT", "lag-late/groups/team", {"start": "0"})
    await gateway.publish("lag-late", {"n": "1"})
    released = asyncio.Event()

    async def wait(route: Route) -> None:
        await released.wait()
        await route.continue_()

    await page.route("**/groups", wait)
    await page.goto(f"{gateway.server.url}/console")
    lagging = page.get_by_role("region", name="Highest lag")
    await expect(page.get_by_role("region", name="Largest streams").get_by_role("link").first).to_be_visible()
    await expect(lagging.get_by_text("…", exact=True)).to_be_visible()
    released.set()
    await expect(lagging.get_by_role("link", name="lag-late")).to_be_visible()


async def test_dead_letters_have_a_reason_and_are_redriven(page: Page, gateway: ConsoleGateway) -> None:
    """Chosen ones, then all of one reason, each after a preview. Dead letters of other groups stay, and so do
    those that arrive during the redrive.
    """
    asked: list[dict[str, dict[str, str]]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/redrive"):
            asked.append(json.loads(request.post_data or "{}"))

    page.on("request", note)
    ids = await gateway.publish("letters", *({"n": str(n)} for n in range(6)))
    await gateway.call("PUT", "letters/groups/team", {"start": "0"})
    policy = {"dead_letter": {"stream": "letters-dead", "max_deliveries": None}}
    await gateway.call("PATCH", "letters/groups/team", policy)
    await gateway.call("POST", "letters/groups/team/consumers/anna/read", {"count": 6})
    for at, reason in ((0, "no such town"), (3, "unpaid")):
        letters = {"ids": ids[at : at + 3], "reason": reason}
        await gateway.call("POST", "letters/groups/team/dead-letter", letters)
    await gateway.call("PUT", "letters/groups/other", {"start": "0"})
    await gateway.call("PATCH", "letters/groups/other", policy)
    await gateway.call("POST", "letters/groups/other/consumers/bert/read", {"count": 1})
    await gateway.call("POST", "letters/groups/other/dead-letter", {"ids": ids[:1], "reason": "unpaid"})
    await opened(page, gateway, "letters", "groups/team")
    letters_shown = page.get_by_role("region", name="Dead letters")
    line = letters_shown.get_by_role("row").filter(has_text=ids[4])
    await expect(line).to_contain_text("unpaid")
    await expect(line).to_contain_text("anna")
    await expect(letters_shown.get_by_role("row")).to_have_count(7)
    await line.get_by_role("checkbox").check()
    await letters_shown.get_by_role("button", name="Redrive chosen…").click()
    await expect(page.get_by_text("This redrives 1 dead letter.")).to_be_visible()
    await page.get_by_role("button", name="Redrive", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("Redrove 1 entry")
    await expect(letters_shown.get_by_role("row")).to_have_count(6)
    await letters_shown.get_by_role("button", name="Redrive all…").click()
    await page.get_by_label("Only with this reason").fill("no such town")
    await expect(page.get_by_text("This redrives 3 dead letters.")).to_be_visible()
    await page.get_by_role("button", name="Redrive", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("Redrove 3 entries")
    await expect(letters_shown.get_by_role("row")).to_have_count(3)
    ends = {one["filter"]["end"] for one in asked if "filter" in one}
    assert len(ends) == 1
    letters_left = (await gateway.call("GET", "letters-dead/entries"))["entries"]
    first, second, others = (str(one["id"]) for one in letters_left if isinstance(one, dict))
    assert ends != {others}
    await letters_shown.get_by_label(f"Choose {first}").check()
    await gateway.call("POST", "letters-dead/entries/delete", {"ids": [first]})
    await expect(letters_shown.get_by_role("button", name="Redrive chosen…")).to_be_disabled()
    await expect(letters_shown.get_by_role("button", name=second, exact=True)).to_be_visible()
    entries = (await gateway.call("GET", "letters/entries"))["entries"]
    fields = [one["fields"] for one in entries if isinstance(one, dict)]
    assert [one["n"] for one in fields] == ["0", "1", "2", "3", "4", "5", "4", "0", "1", "2"]


async def _run_copied(page: Page, name: str) -> dict[str, object]:
    """Run the command that this button copies; returns the gateway's response."""
    await page.evaluate("() => navigator.clipboard.writeText('')")
    await page.get_by_role("complementary", name="Entry").get_by_role("button", name=name, exact=True).click()
    copied = await page.wait_for_function("() => navigator.clipboard.readText()")
    words = shlex.split(str(await copied.json_value()))
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


async def test_an_entry_is_copied_and_published_again(page: Page, gateway: ConsoleGateway) -> None:
    """A copied command works in a shell; an entry published again has the same fields, line ends included."""
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    note = 'it\'s\r\n"two" lines'
    (entry_id,) = await gateway.publish("copies", {"note": note, "n": "1"})
    await opened(page, gateway, "copies")
    await rows(page).last.click()
    entry = page.get_by_role("complementary", name="Entry")
    await entry.get_by_role("button", name="JSON", exact=True).click()
    shown = json.loads(await entry.locator("pre").inner_text())
    assert shown == {"id": entry_id, "fields": {"note": note, "n": "1"}}
    assert "id" in await _run_copied(page, "Copy as curl to publish")
    assert (await _run_copied(page, "Copy as curl"))["fields"] == {"note": note, "n": "1"}
    await entry.get_by_role("button", name="Publish again…").click()
    await expect(page.get_by_label("Value").first).to_have_value(note.replace("\r\n", "\n"))
    await page.get_by_label("Value").last.fill("2")
    await page.get_by_role("button", name="Publish", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("Published")
    entries = (await gateway.call("GET", "copies/entries"))["entries"]
    assert [one["fields"] for one in entries if isinstance(one, dict)] == [
        {"note": note, "n": "1"},
        {"note": note, "n": "1"},
        {"note": note, "n": "2"},
    ]


async def test_bytes_are_published_again_as_bytes(page: Page, gateway: ConsoleGateway) -> None:
    """A binary entry keeps its encoding; the next entry is text again."""
    await gateway.call("POST", "raw/entries", {"fields": {"raw": "AP8QSA=="}, "encoding": "base64"})
    await opened(page, gateway, "raw")
    await rows(page).last.click()
    await page.get_by_role("button", name="Publish again…").click()
    await expect(page.get_by_text("are base64")).to_be_visible()
    await page.get_by_role("button", name="Publish", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("Published")
    await page.get_by_role("button", name="Start with text").click()
    await page.get_by_label("Field name").fill("raw")
    await page.get_by_label("Value").fill("AP8QSA==")
    await page.get_by_label("Value").press("Control+Enter")
    await expect(page.locator(".toast")).to_have_count(2)
    entries = (await gateway.call("GET", "raw/entries"))["entries"]
    encodings = [one.get("encoding") for one in entries if isinstance(one, dict)]
    assert encodings == ["base64", "base64", None]


async def test_ages_have_units(page: Page, gateway: ConsoleGateway) -> None:
    """A trim by age keeps younger entries, and removes none before the reader submits."""
    minutes_ago = round(time.time() * 1000) - 600_000
    await gateway.call("POST", "aged/entries", {"id": f"{minutes_ago}-0", "fields": {"n": "1"}})
    await opened(page, gateway, "aged")
    await page.get_by_role("button", name="Trim…").click()
    await page.get_by_label("Keep").select_option("older")
    for age, said in (("1d", "removes 0 entries."), ("60", "60 is no duration"), ("1m", "removes 1 entry.")):
        await page.get_by_label("Number, ID or age").fill(age)
        await expect(page.get_by_text(said)).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await expect(rows(page)).to_have_count(1)


async def test_limits_say_what_they_remove(page: Page, gateway: ConsoleGateway) -> None:
    """Before they are set: how many entries, how many of them pending, and what is kept all the same."""
    ids = await gateway.publish("limited", *({"n": str(n)} for n in range(20)))
    await gateway.call("POST", "limited/groups", {"name": "team", "start": "0"})
    await gateway.call("POST", "limited/groups/team/consumers/one/read", {"count": 15})
    await opened(page, gateway, "limited")
    await page.get_by_role("button", name="Limits…").click()
    await page.get_by_label("Maximum number of entries").fill("5")
    await expect(
        page.get_by_text("This removes 15 entries. 15 of them are pending in a group.")
    ).to_be_visible()
    await page.get_by_label("What a group has not read").select_option("keep")
    await expect(page.get_by_text("what a group has not finished stays until then")).to_be_visible()
    await page.get_by_role("button", name="Set limits").click()
    await expect(page.locator(".toast").last).to_contain_text("Limits set")
    assert len((await gateway.call("GET", "limited/entries"))["entries"]) == len(ids)

    await page.get_by_role("tab", name="Groups").click()
    await page.get_by_role("link", name="team").click()
    await page.get_by_label("Choose all shown entries").check()
    await page.get_by_role("button", name="Acknowledge").click()
    dialog = page.get_by_role("dialog", name="Acknowledge 15 entries?")
    await dialog.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Acknowledge").click()
    await dialog.get_by_role("button", name="Acknowledge").click()
    await expect(page.locator(".toast").last).to_contain_text("Acknowledged 15 entries")


async def test_an_action_is_for_all_that_match(page: Page, gateway: ConsoleGateway) -> None:
    """Shown or not: more than one request takes, those of one consumer alone. Dead letters are counted."""
    for _ in range(7):
        await gateway.publish("many", *({"n": str(n)} for n in range(100)))
    policy = {"dead_letter": {"stream": "many-dead", "max_deliveries": 9}}
    await gateway.call("POST", "many/groups", {"name": "team", "start": "0", **policy})
    await gateway.call("POST", "many/groups/team/consumers/one/read", {"count": 650})
    await gateway.call("POST", "many/groups/team/consumers/two/read", {"count": 50})
    await opened(page, gateway, "many", "groups/team")
    pending = page.get_by_role("region", name="Pending entries")
    await pending.get_by_label("Consumer", exact=True).select_option("one")
    await expect(pending).to_contain_text("100 and more")
    await pending.get_by_role("button", name="Choose all that match").click()
    await expect(pending).to_contain_text("all that match chosen")
    await pending.get_by_role("button", name="Dead letter…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Move to dead letters").click()
    await expect(page.locator(".toast").last).to_contain_text("Moved 650 entries to many-dead")
    await expect(pending.get_by_role("row")).to_have_count(1)
    table = page.get_by_role("region", name="Groups")
    await expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile(r"50\s*2\s*650"))


async def test_the_keyboard_leads_from_the_search_to_a_paused_stream(
    page: Page, gateway: ConsoleGateway
) -> None:
    """Enter opens what was found, Space pauses after a click on it, and a jump beyond the end says so."""
    (last,) = await gateway.publish("by keyboard", {"n": "1"})
    await opened(page, gateway, "limited")
    search = page.get_by_label("Find streams")
    await search.fill("by key")
    await expect(page.get_by_role("link", name="limited")).to_have_count(0)
    await search.press("ArrowDown")
    link = page.get_by_role("link", name="by keyboard")
    await expect(link).to_be_focused()
    await search.press("Enter")
    await expect(page.get_by_role("heading", level=1, name="by keyboard")).to_be_visible()
    await expect(rows(page)).to_have_count(1)
    await link.click()
    await page.keyboard.press("Space")
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    await page.get_by_label("Jump to a time or an ID").fill("2100-01-01")
    await page.get_by_label("Jump to a time or an ID").press("Enter")
    live = page.get_by_role("tabpanel", name="Live")
    await expect(live.get_by_text(f"Nothing from there on. The newest entry is {last}")).to_be_visible()


async def test_a_late_response_is_ignored(page: Page, gateway: ConsoleGateway) -> None:
    """Figures of the previous stream never show on the next."""
    await gateway.publish("late", *({"n": str(n)} for n in range(7)))
    await gateway.publish("prompt", {"n": "1"})
    late = re.compile("/v1/streams/late$")
    _, release = await _hold(page, late)
    await page.goto(f"{gateway.server.url}/console#/late/live")
    await expect(page.get_by_role("heading", level=1, name="late")).to_be_visible()
    await page.evaluate("() => { location.hash = '#/prompt/live' }")
    figures = page.locator(".figures")
    await expect(figures).to_contain_text("1 entry ")
    await figures.evaluate(RECORD)
    async with page.expect_response(late):
        release.set()
    # The next refresh would correct a wrong figure, which is recorded by then.
    async with page.expect_response(re.compile("/v1/streams/prompt$")):
        pass
    assert [text for text in await page.evaluate("recorded") if "1 entry " not in text] == []


async def test_a_response_from_before_an_action_is_ignored(page: Page, gateway: ConsoleGateway) -> None:
    """What a group's policy was is not shown again once it is changed."""
    await gateway.publish("overtaken", {"n": "1"})
    await gateway.call("POST", "overtaken/groups", {"name": "team"})
    await opened(page, gateway, "overtaken", "groups/team")
    detail = page.get_by_role("region", name="Group", exact=True)
    await expect(detail).to_contain_text("No dead-letter stream.")
    groups = re.compile("/v1/streams/overtaken/groups$")
    answered, release = await _hold(page, groups)
    await answered.wait()
    await page.get_by_role("button", name="Policy…").click()
    await page.get_by_label("Dead-letter stream").fill("overtaken-dead")
    await page.get_by_role("button", name="Set policy").click()
    await expect(detail).to_contain_text("Dead letters are moved to overtaken-dead")
    await detail.evaluate(RECORD)
    async with page.expect_response(groups):
        release.set()
    async with page.expect_response(groups):
        pass
    assert [text for text in await page.evaluate("recorded") if "No dead-letter stream." in text] == []


async def _hold(page: Page, url: re.Pattern[str]) -> tuple[asyncio.Event, asyncio.Event]:
    """Keep back the response to the next such request: when the gateway has answered, and to let it go."""
    answered, release = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        response = await route.fetch()
        answered.set()
        await release.wait()
        await route.fulfill(response=response)

    await page.route(url, hold, times=1)
    return answered, release


async def _downloaded(page: Page, form: str, to: Path) -> str:
    async with page.expect_download() as download:
        await page.get_by_label("Download the rows shown").select_option(form)
    await (await download.value).save_as(to)
    return (await asyncio.to_thread(to.read_bytes)).decode()


async def test_filtered_entries_are_downloaded(page: Page, gateway: ConsoleGateway, tmp_path: Path) -> None:
    """As NDJSON and as CSV, where no cell is a formula."""
    formula = '=HYPERLINK("http://127.0.0.1/","click")'
    await gateway.publish("keep/it".replace("/", " "), *({"n": str(n), "text": formula} for n in range(300)))
    await opened(page, gateway, "keep%20it")
    await page.get_by_role("searchbox", name="Filter entries").fill("n>=290")
    await expect(rows(page)).to_have_count(10)
    lines = (await _downloaded(page, "ndjson", tmp_path / "a")).splitlines()
    assert [json.loads(line)["fields"] for line in lines] == [
        {"n": str(n), "text": formula} for n in range(290, 300)
    ]
    table = list(csv.reader((await _downloaded(page, "csv", tmp_path / "b")).splitlines()))
    assert table[0] == ["id", "time", "encoding", "n", "text"]
    assert [line[3:] for line in table[1:]] == [[str(n), f"'{formula}"] for n in range(290, 300)]


async def _one_at_a_time(gateway: ConsoleGateway, count: int) -> int:
    """Publish with a cheap client, because it takes thousands of requests."""

    def publish() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.server.port, timeout=30)
        for number in range(count):
            connection.request("POST", "/v1/streams/busy/entries", f"n={number}", _FORM)
            answer = connection.getresponse()
            assert answer.status == 201, answer.read()
            answer.read()
        connection.close()

    await asyncio.to_thread(publish)
    return count


async def test_a_pause_in_a_busy_stream_loses_no_entry(
    page: Page, gateway: ConsoleGateway, tmp_path: Path
) -> None:
    """Entries arrive one at a time, more than the page has credit for; after the pause all are shown."""
    await gateway.call("PUT", "busy")
    await opened(page, gateway, "busy")
    sent = 0
    for pauses in range(2):
        await page.get_by_role("button", name="Pause").click()
        for _ in range(6):
            sent += await _one_at_a_time(gateway, 500)
        if pauses == 0:
            await expect(page.locator(".status")).to_contain_text("more wait in the stream")
        await page.get_by_role("button", name="Resume").click()
        sent += await _one_at_a_time(gateway, 50)
        await expect(page.locator(".status")).to_contain_text(f"{sent:,} received")
    entries: list[str] = []
    after = "0"
    while page_of := (await gateway.call("GET", f"busy/entries?after={after}&count=1000"))["entries"]:
        entries += [str(one["id"]) for one in page_of if isinstance(one, dict)]
        after = entries[-1]
    lines = (await _downloaded(page, "ndjson", tmp_path / "all")).splitlines()
    assert [json.loads(line)["id"] for line in lines] == entries
    assert len(entries) == sent
    await expect(rows(page, "Gap:")).to_have_count(0)


async def test_after_a_jump_the_arrow_keys_continue_there(page: Page, gateway: ConsoleGateway) -> None:
    """A jump selects its row. Without a selection the keys start at the first visible row."""
    ids = await gateway.publish("jumped", *({"n": f"n{n:04}"} for n in range(1_200)))
    await opened(page, gateway, "jumped")
    grid = page.get_by_role("grid", name="Entries")
    chosen = page.locator('.row[aria-selected="true"]')
    place = page.get_by_role("textbox", name="Jump to")
    await place.fill(ids[600])
    await place.press("Enter")
    await expect(chosen).to_contain_text("n0600")
    await expect(grid).to_be_focused()
    # Rows above it are loaded after the jump.
    await expect(chosen).to_have_attribute("data-index", "500")
    await page.keyboard.press("ArrowDown")
    await expect(chosen).to_contain_text("n0601")
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("ArrowUp")
    await expect(chosen).to_contain_text("n0599")
    await expect(chosen).to_be_in_viewport()

    await page.get_by_role("button", name="Go to newest").click()
    await grid.hover()
    await page.mouse.wheel(0, -2_600)
    await expect(page.locator(".state")).to_contain_text("Paused at")
    first = """rows => {
      const head = document.querySelector(".grid-top").getBoundingClientRect();
      return rows.find((row) => row.getBoundingClientRect().top >= head.bottom - 1).textContent;
    }"""
    for key in ("ArrowDown", "ArrowUp"):
        await page.get_by_role("searchbox", name="Filter entries").fill(
            f"n0{'' if key == 'ArrowDown' else ' '}"
        )
        await grid.evaluate("element => { element.scrollTop -= 40 }")
        await grid.focus()
        seen = await page.locator(".row:visible").evaluate_all(first)
        await grid.press(key)
        await expect(chosen).to_have_text(seen)


async def test_the_selection_survives_any_number_of_pages(page: Page, gateway: ConsoleGateway) -> None:
    """A row stays selected while pages are inserted before it, however far back they go."""
    ids = await gateway.publish("pages", *({"n": f"n{n:04}"} for n in range(2_000)))
    await opened(page, gateway, "pages")
    selected = page.locator('.row[aria-selected="true"]')
    jump = page.get_by_role("textbox", name="Jump to")
    await jump.fill(ids[1_400])
    await jump.press("Enter")
    await expect(page.locator(".status")).to_contain_text("1,000 rows")
    await page.keyboard.press("Home")
    await expect(page.locator(".status")).to_contain_text("1,500 rows")
    await expect(selected).to_contain_text("n0900")
    for number in (899, 898, 897):
        await page.keyboard.press("ArrowUp")
        await expect(selected).to_contain_text(f"n0{number}")


async def test_a_narrow_window_shows_the_list_on_request(page: Page, gateway: ConsoleGateway) -> None:
    """It is open above the overview, and closed above a stream until the reader opens it."""
    await gateway.publish("slim", {"n": "1"})
    await page.set_viewport_size({"width": 390, "height": 844})
    streams = page.get_by_role("navigation", name="Streams")
    toggle = page.get_by_role("button", name="Streams", exact=True)
    await page.goto(f"{gateway.server.url}/console#/")
    await expect(streams).to_be_visible()
    await opened(page, gateway, "slim")
    await expect(streams).to_be_hidden()
    await expect(toggle).to_have_attribute("aria-expanded", "false")
    await toggle.press("Enter")
    await expect(streams).to_be_visible()
    await toggle.press("Enter")
    await expect(streams).to_be_hidden()
    await page.keyboard.press("s")
    await expect(page.get_by_role("searchbox", name="Find streams")).to_be_focused()
    await page.set_viewport_size({"width": 901, "height": 844})
    await expect(toggle).to_be_hidden()
    await expect(streams).to_be_visible()


async def test_columns_are_resized(page: Page, gateway: ConsoleGateway) -> None:
    """With the pointer in the head, with the keyboard in the menu of columns; a double click resets."""
    await gateway.publish("columns", {"alpha": "a" * 90, "beta": "b"})
    await opened(page, gateway, "columns")
    head = page.get_by_role("columnheader", name="alpha")
    width = await head.evaluate(WIDTH)
    divider = head.get_by_role("separator")
    box = await divider.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 4, box["y"] + 4)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 84, box["y"] + 4, steps=4)
    await page.mouse.up()
    assert await head.evaluate(WIDTH) == pytest.approx(width + 80, abs=2)
    assert await rows(page).locator(".cell").nth(2).evaluate(WIDTH) == await head.evaluate(WIDTH)
    await page.get_by_role("button", name="Columns", exact=True).click()
    await page.get_by_role("button", name="Narrower alpha").press("Enter")
    assert await head.evaluate(WIDTH) == pytest.approx(width + 32, abs=2)
    await page.keyboard.press("Escape")
    await divider.dblclick()
    assert await head.evaluate(WIDTH) == pytest.approx(width, abs=2)


async def test_actions_apply_to_the_chosen_pending_entries(page: Page, gateway: ConsoleGateway) -> None:
    """Idle times have units; an entry that another client acknowledged is no longer chosen."""
    ids = await gateway.publish("stale", *({"n": str(n)} for n in range(4)))
    await gateway.call("PUT", "stale/groups/team", {"start": "0"})
    await gateway.call("POST", "stale/groups/team/consumers/anna/read", {"count": 4})
    await opened(page, gateway, "stale", "groups/team")
    pending = page.get_by_role("region", name="Pending entries")
    lines = pending.get_by_role("row")
    await expect(lines).to_have_count(5)
    await page.wait_for_function(
        "() => /[1-9][.0-9]* s/.test(document.querySelector('.pending tbody').textContent)"
    )
    # More than 500 milliseconds have passed, but not 500 seconds.
    await pending.get_by_label("Minimum idle time").fill("500s")
    await expect(lines).to_have_count(1)
    await pending.get_by_label("Minimum idle time").fill("5")
    await expect(lines).to_have_count(5)
    await pending.get_by_label(f"Choose {ids[0]}").check()
    await pending.get_by_role("button", name="Claim…").click()
    await page.get_by_role("dialog").get_by_label("Consumer").fill("bert")
    await page.get_by_role("dialog").get_by_label("Minimum idle time").fill("500s")
    await page.get_by_role("button", name="Claim", exact=True).click()
    await expect(page.locator(".toast").last).to_contain_text("bert claimed 0 entries")

    for entry_id in ids[:2]:
        await pending.get_by_label(f"Choose {entry_id}").check()
    await gateway.call("POST", "stale/groups/team/ack", {"ids": ids[:1]})
    await expect(lines).to_have_count(4)
    await expect(pending).to_contain_text("3, 1 chosen")
    await gateway.call("POST", "stale/groups/team/ack", {"ids": ids[1:2]})
    await expect(pending.get_by_role("button", name="Acknowledge")).to_be_disabled()
    await expect(lines).to_have_count(3)


async def test_a_long_list_and_the_overview_are_accessible(page: Page, gateway: ConsoleGateway) -> None:
    """The keyboard reaches every element that scrolls."""
    await gateway.publish("reach", *({f"field-{at}": "x" * 40 for at in range(9)} for _ in range(200)))
    await gateway.call("PUT", "reach/groups/team", {"start": "0"})
    for narrow in (False, True):
        await page.set_viewport_size({"width": 390 if narrow else 1280, "height": 700})
        await opened(page, gateway, "reach")
        assert await page.evaluate(OUT_OF_REACH) == []
        await page.evaluate(AXE.read_text())
        await check_access(page)
        await page.get_by_role("link", name="Weir console, overview").click()
        await expect(page.get_by_role("region", name="Highest lag").get_by_role("row")).not_to_have_count(0)
        await check_access(page)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("way", ["Enter", "click"])
async def test_what_was_found_has_the_keys(page: Page, gateway: ConsoleGateway, width: int, way: str) -> None:
    """Behind *Find streams*, by key or by pointer: not the search, and no list that is hidden."""
    await gateway.publish("keys-first", {"n": "1"})
    await gateway.publish("keys-second", {"n": "1"})
    await page.set_viewport_size({"width": width, "height": 844})
    await opened(page, gateway, "keys-first")
    await page.keyboard.press("s")
    search = page.get_by_role("searchbox", name="Find streams")
    await expect(search).to_be_focused()
    await search.fill("keys-second")
    if way == "Enter":
        await search.press("Enter")
    else:
        await page.get_by_role("link", name="keys-second").click()
    await expect(page.get_by_role("heading", name="keys-second")).to_be_visible()
    assert await page.evaluate("document.activeElement.matches('main, a')"), "neither the search nor nothing"
    await page.keyboard.press("3")
    await expect(page.get_by_role("tab", name="Publish")).to_have_attribute("aria-selected", "true")


async def test_a_jump_that_fails_says_so_and_leads_back(page: Page, gateway: ConsoleGateway) -> None:
    """It is not loading for ever."""
    await gateway.publish("jumping", {"n": "1"})
    await opened(page, gateway, "jumping")

    async def refuse(route: Route) -> None:
        problem = {"code": "history_unavailable", "detail": "the history of the stream cannot be read now"}
        await route.fulfill(status=503, json=problem)

    await page.route(re.compile(r"/entries\?start="), refuse)
    jump = page.get_by_label("Jump to a time or an ID")
    await jump.fill("5m")
    await jump.press("Enter")
    await expect(page.locator(".state")).to_have_text("Not loaded")
    await expect(page.locator(".over")).to_contain_text("cannot be read now")
    await page.get_by_role("button", name="Go to newest").click()
    await expect(page.locator(".state")).to_have_text("Live")
    await expect(rows(page)).to_have_count(1)
