"""A gateway whose backend hangs: the page says so, though its connection is open.

Knows: how to stop a server of the backend for a while. Must never know: how the gateway notices.
"""

from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from tests.cluster.servers import BackendServer
from tests.console.conftest import ConsoleGateway
from tests.console.test_console import opened, rows
from tests.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendServer]:
    with BackendServer(tmp_path_factory.mktemp("backend"), "valkey") as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backend: BackendServer) -> Iterator[Server]:
    options = ("--backend", backend.url, "--set", "backend_durability=memory")
    with Server(tmp_path_factory.mktemp("console") / "data", *options) as running:
        yield running


async def test_a_backend_that_hangs_is_named(
    page: Page, gateway: ConsoleGateway, backend: BackendServer
) -> None:
    """In the header and in the live view; once it answers again, the tail goes on."""
    await gateway.publish("orders", {"n": "old"})
    await opened(page, gateway, "orders")
    connection = page.get_by_role("group", name="Connection")
    backend.pause()
    try:
        await expect(connection).to_contain_text("Connected, but the backend does not answer")
        await expect(page.locator(".state")).to_have_text("Waiting for the gateway")
    finally:
        backend.resume()
    await expect(connection).to_contain_text("Connected since")
    await expect(page.locator(".state")).to_have_text("Live")
    await gateway.publish("orders", {"n": "new"})
    await expect(rows(page, "new")).to_have_count(1)
