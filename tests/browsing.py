"""What tests of pages need: Chromium without a screen, and a site that pages are from.

Knows: how both are started and ended. Must never know: what a page does.
"""

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, sync_playwright

from tests.serving import serving

SWITCHES: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serve_site(directory: Path) -> Iterator[str]:
    """The origin of a site with these files."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(directory)))) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


@contextlib.contextmanager
def open_page() -> Iterator[Page]:
    """A page of a browser of its own."""
    program = shutil.which("chromium")
    assert program is not None, "chromium is among the system's packages"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=SWITCHES)
        try:
            yield browser.new_page()
        finally:
            browser.close()
