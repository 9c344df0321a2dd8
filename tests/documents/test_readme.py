"""README.md: its page, as it stands there, in a browser."""

from pathlib import Path

import httpx

from tests.browsing import open_page, serve_site
from tests.documents.programs import programs
from tests.server import Server

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_page_shows_what_is_published(tmp_path: Path) -> None:
    """From another origin, which the setting beside it lets in; across a restart of the gateway."""
    page = programs(README)["page.html"]
    assert len(page.splitlines()) <= 6
    with serve_site(tmp_path) as origin:
        assert "--set allowed_origins=http://localhost:8000" in README
        with (
            Server(tmp_path / "weir-data", "--set", f"allowed_origins={origin}") as server,
            open_page() as tab,
        ):
            (tmp_path / "page.html").write_text(page.replace("http://localhost:8080", server.url))
            with tab.expect_response("**/tail"):
                tab.goto(f"{origin}/page.html")
            for item, restarts in (("apple", True), ("pear", False)):
                httpx.post(f"{server.url}/v1/streams/orders/entries", data={"item": item}).raise_for_status()
                tab.wait_for_selector(f"li:text-is('{item}')")
                if restarts:
                    server.stop()
                    server.start()
            assert tab.locator("li").all_inner_texts() == ["apple", "pear"]
