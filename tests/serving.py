"""Small servers of a test's own, in a thread.

Knows: how one runs and ends. Must never know: what it answers.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer
from typing import Any, TypeVar

ServerT = TypeVar("ServerT", bound=BaseServer)


class QuietHandler(BaseHTTPRequestHandler, ABC):
    """A handler of all methods, which says nothing. It may `reply`."""

    @abstractmethod
    def respond(self) -> None:
        """Answer the request."""

    def do_POST(self) -> None:
        """Every method."""
        self.respond()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST  # noqa: N815 - the server's names

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def reply(self, status: int, content: bytes, headers: dict[str, Any]) -> None:
        """The answer, with its length."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(server: ServerT) -> Iterator[ServerT]:
    """The server while it runs."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
