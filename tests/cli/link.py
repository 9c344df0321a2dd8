"""A link to a gateway that fails on request.

Knows: HTTP/1.1 enough to pass one request on, and three ways to fail.
Must never know: what is tested with it.
"""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Final

from tests.serving import QuietHandler, serving

PASS: Final = "pass"
LOSE: Final = "lose the answer"
DROP: Final = "drop the request"
BUSY: Final = 429
STARTING: Final = 503
BAD_GATEWAY: Final = 502
_HOP: Final = ("content-length", "transfer-encoding", "connection", "host")


class FlakyLink(ThreadingHTTPServer):
    """`plan` says what happens to each request in turn; what is beyond it passes. `seen` has their keys,
    `operations` the last parts of their paths.
    """

    daemon_threads = True

    def __init__(self, port: int, plan: list[str | int]) -> None:
        super().__init__(("127.0.0.1", 0), _LinkHandler)
        self.behind = port
        self.plan = plan
        self.seen: list[str | None] = []
        self.operations: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _LinkHandler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: FlakyLink

    def respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        self.server.seen.append(self.headers.get("idempotency-key"))
        self.server.operations.append(self.path.partition("?")[0].rpartition("/")[2])
        step = self.server.plan.pop(0) if self.server.plan else PASS
        if isinstance(step, int):
            self.reply(step, b"<html>not for you</html>", {"retry-after": "0"})
            return
        if step == DROP:
            self.close_connection = True
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection.request(self.command, self.path, body or None, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if step == LOSE:
            self.close_connection = True
            return
        self.reply(answer.status, content, {"content-type": answer.headers["content-type"]})


@contextmanager
def link(port: int, *plan: str | int) -> Iterator[FlakyLink]:
    """A link to the gateway at `port`."""
    with serving(FlakyLink(port, list(plan))) as server:
        yield server
