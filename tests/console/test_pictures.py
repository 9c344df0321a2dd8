"""The pictures of docs/console.md, taken of a gateway with live data.

Knows: what the document shows. Must never know: how the page works.

`make pictures` saves them in docs/images/, and of which console they are; else the test compares their size.
"""

import asyncio
import hashlib
import os
import random
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.console.conftest import ConsoleGateway
from tests.console.test_console import opened, rows

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCS = Path(__file__).parents[2] / "docs"
CONSOLE = Path(__file__).parents[2] / "app" / "console"
# The digest of the console's files when the pictures were taken.
TAKEN_OF = DOCS / "images" / "console.sha256"
NAMES = ("console-live", "console-dark", "console-groups", "console-overview")
WIDTH, HEIGHT = 1280, 760
PICTURE_BYTES_MAX = 200_000


async def test_the_pictures_match_the_document(page: Page, gateway: ConsoleGateway, tmp_path: Path) -> None:
    """A live tail, an entry in the dark theme, a group, the overview; all in the document."""
    folder = DOCS / "images" if os.environ.get("WEIR_PICTURES") else tmp_path
    await page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    await _before(gateway)
    await opened(page, gateway, "orders")
    await _live(gateway)
    await page.screenshot(path=folder / f"{NAMES[0]}.png")

    await page.emulate_media(color_scheme="dark")
    await rows(page, "paid").last.click()
    await expect(page.get_by_role("complementary", name="Entry")).to_be_visible()
    await page.screenshot(path=folder / f"{NAMES[1]}.png")

    await page.emulate_media(color_scheme="light")
    await page.keyboard.press("Escape")
    await opened(page, gateway, "orders", "groups/billing")
    await page.get_by_role("region", name="Pending entries").get_by_role("checkbox").nth(2).check()
    await page.get_by_role("heading", name="billing").scroll_into_view_if_needed()
    await page.screenshot(path=folder / f"{NAMES[2]}.png")
    await page.get_by_role("link", name="Weir console, overview").click()
    await expect(page.get_by_role("region", name="Highest lag").get_by_role("row")).not_to_have_count(0)
    await page.screenshot(path=folder / f"{NAMES[3]}.png")
    if folder != tmp_path:
        TAKEN_OF.write_text(f"{_console()}\n")
    document = (DOCS / "console.md").read_text()
    for name in NAMES:
        made, shown = ((place / f"{name}.png").read_bytes() for place in (folder, DOCS / "images"))
        assert made[:24] == shown[:24], "another size"
        assert len(shown) < PICTURE_BYTES_MAX
        assert re.search(rf"!\[[^\]]+\]\(images/{name}\.png\)", document)


async def test_the_pictures_are_of_this_console() -> None:
    """Who changes the console takes them anew."""
    assert TAKEN_OF.read_text().strip() == _console(), "the console has changed since: run `make pictures`"


def _console() -> str:
    digest = hashlib.sha256()
    for file in sorted(CONSOLE.rglob("*.*")):
        digest.update(f"{file.relative_to(CONSOLE)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _order(chance: random.Random, number: int) -> dict[str, str]:
    city = chance.choice(["Graz", "Wien", "Linz", "Salzburg", "Innsbruck"])
    return {
        "order": f"A-{10_000 + number}",
        "customer": f"c{chance.randrange(400):03}",
        "total": f"{chance.randrange(500, 30_000) / 100:.2f}",
        "state": chance.choice(["placed", "paid", "paid", "sent"]),
        "city": city,
        "items": '[{"sku":"tea-4","n":2},{"sku":"cup-1","n":1}]',
    }


async def _before(gateway: ConsoleGateway) -> None:
    chance = random.Random(7)
    await gateway.publish("orders", *(_order(chance, number) for number in range(400)))
    for stream, count in (("audit", 3_000), ("metrics:cellar", 900), ("metrics:attic", 850), ("mail", 42)):
        await gateway.publish(stream, *({"n": str(n), "value": str(chance.random())} for n in range(count)))
    for group, consumers in (("billing", ("anna", "bert", "cleo")), ("search", ("indexer",))):
        await gateway.call("PUT", f"orders/groups/{group}", {"start": "0"})
        for consumer in consumers:
            await gateway.call("POST", f"orders/groups/{group}/consumers/{consumer}/read", {"count": 40})
    policy = {"dead_letter": {"stream": "orders-dead", "max_deliveries": 5}, "ack_timeout_ms": 120_000}
    await gateway.call("PATCH", "orders/groups/billing", policy)
    pending = (await gateway.call("GET", "orders/groups/billing/pending?count=200"))["pending"]
    ids = [one["id"] for one in pending if isinstance(one, dict)]
    await gateway.call("POST", "orders/groups/billing/ack", {"ids": ids[:113]})


async def _live(gateway: ConsoleGateway) -> None:
    """A few seconds of orders at a varying rate, and a group that reads them."""
    chance, number = random.Random(8), 400
    for place in range(50):
        count = 2 + abs(25 - place) // 4
        await gateway.publish("orders", *(_order(chance, number + n) for n in range(count)))
        number += count
        read = f"orders/groups/billing/consumers/{chance.choice(['anna', 'bert'])}/read"
        entries = (await gateway.call("POST", read, {"count": 20}))["entries"]
        ids = [one["id"] for one in entries if isinstance(one, dict)]
        if ids[2:]:
            await gateway.call("POST", "orders/groups/billing/ack", {"ids": ids[2:]})
        await asyncio.sleep(0.12)
