"""Webhooks in the console."""

import asyncio
import hmac
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOOKS = """
[github]
stream = "repos/acme"
scheme = "github"
secrets = ["file:secret"]
"""


def _begun(place: Path) -> Server:
    (place / "secret").write_text("secret")
    (place / "hooks.toml").write_text(HOOKS)
    server = Server(place / "data", "--set", f"hooks_file={place / 'hooks.toml'}").start()
    made = hmac.digest(b"secret", b"{}", "sha256").hex()
    for signature in (made, "00"):
        headers = {"X-Hub-Signature-256": f"sha256={signature}"}
        httpx.post(f"{server.url}/v1/hooks/github", content=b"{}", headers=headers)
    return server


async def test_a_hook_has_a_row_with_what_came(page: Page, tmp_path: Path) -> None:
    """Its stream, what was stored and refused, and when the last came."""
    server = await asyncio.to_thread(_begun, tmp_path)
    try:
        await page.goto(f"{server.url}/console")
        row = page.get_by_role("table", name="Webhooks").get_by_role("row", name="github")
        shown: list[str | re.Pattern[str]] = ["repos/acme", "1", "1", re.compile(r"\d\d:\d\d:\d\d")]
        await expect(row.get_by_role("cell")).to_have_text(shown)
    finally:
        await asyncio.to_thread(server.kill)
