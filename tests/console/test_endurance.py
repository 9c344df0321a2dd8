"""A console that stays open: it keeps up, does not grow, and reconnects by itself.

Knows: the browser's measurements. Must never know: how rows are drawn.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.console.conftest import ConsoleGateway
from tests.console.test_console import opened, rows
from tests.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

PER_SECOND = 2_000
SECONDS = 5
HEAP_GROWTH_BYTES_MAX = 16 << 20
HEAP = "() => { gc(); return performance.memory.usedJSHeapSize }"
NODES = "() => document.querySelectorAll('*').length"


@pytest.mark.alone
async def test_it_keeps_up_with_two_thousand_entries_a_second(page: Page, gateway: ConsoleGateway) -> None:
    """The newest entries are visible within a second, none is missed, elements and memory do not leak."""
    await gateway.publish("fast", {"n": "-1", "at": "start", "note": "x" * 40})
    await opened(page, gateway, "fast")
    # First fill the ring buffer, so that later growth is a leak.
    sent = 0
    for _ in range(12):
        await gateway.publish("fast", *map(_entry, range(sent, sent := sent + 1_000)))
    await expect(page.locator(".status")).to_contain_text("10,000 rows loaded")
    await expect(page.locator(".plot canvas")).to_have_count(3)
    heap, nodes = await page.evaluate(HEAP), await page.evaluate(NODES)
    sent = await _publish(gateway, sent, SECONDS)
    await expect(rows(page, f"last {sent - 1}.")).to_be_visible(timeout=1_000)
    await expect(page.locator(".status")).to_contain_text(f"{sent:,} received")
    assert await page.evaluate(NODES) <= nodes + 5
    assert await page.evaluate(HEAP) - heap < HEAP_GROWTH_BYTES_MAX


def _entry(number: int) -> dict[str, str]:
    return {"n": str(number), "at": f"last {number}.", "note": "x" * 40}


async def _publish(gateway: ConsoleGateway, first: int, seconds: int) -> int:
    """Publish at an even pace; returns the number after the last."""
    loop = asyncio.get_running_loop()
    began, batch = loop.time(), PER_SECOND // 20
    for place in range(seconds * 20):
        start = first + place * batch
        await gateway.publish("fast", *map(_entry, range(start, start + batch)))
        await asyncio.sleep(max(0.0, began + (place + 1) / 20 - loop.time()))
    return first + seconds * PER_SECOND


@pytest_asyncio.fixture(loop_scope="module")
async def restarted(tmp_path: Path) -> AsyncIterator[ConsoleGateway]:
    with Server(tmp_path / "data") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            yield ConsoleGateway(http, server)


@pytest.mark.parametrize("way", ["kill", "stop"])
async def test_a_restart_is_shown_and_loses_no_entry(page: Page, restarted: ConsoleGateway, way: str) -> None:
    """The header says since when and why; the page reconnects by itself and continues at its cursor."""
    await restarted.publish("survive", {"n": "before"})
    await opened(page, restarted, "survive")
    await (
        asyncio.to_thread(restarted.server.kill)
        if way == "kill"
        else asyncio.to_thread(restarted.server.stop)
    )
    connection = page.get_by_role("group", name="Connection")
    await expect(connection).to_contain_text(re.compile(r"Not connected since [\d:]+: .*next attempt in"))
    since = (re.search(r"[\d:]{8}", await connection.inner_text()) or [""])[0]
    await expect(page.locator(".state")).to_have_text("Not connected")
    await expect(connection).to_contain_text(re.compile("reconnecting|next attempt in 2 s"))
    await expect(connection).to_contain_text(f"Not connected since {since}: ")
    await asyncio.to_thread(restarted.server.start)
    # Before the page has reconnected.
    await restarted.publish("survive", *({"n": f"during {n}"} for n in range(20)))
    await expect(connection).to_contain_text("Connected since")
    await restarted.publish("survive", {"n": "finally"})
    await expect(rows(page, "finally")).to_have_count(1)
    await expect(rows(page, "Reconnected after")).to_have_count(1)
    texts = await rows(page).locator(".cell:nth-child(3)").all_inner_texts()
    assert [text for text in texts if text] == ["before", *(f"during {n}" for n in range(20)), "finally"]
