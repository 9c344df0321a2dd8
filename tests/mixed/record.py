"""Write `recorded.json`: what a client sent to a gateway, what that answered, and what the program saw.

    PYTHONPATH=OLD:OLD/sdk/python:. python -m tests.mixed.record URL_OF_AN_EMPTY_OLD_GATEWAY

with OLD a checkout of the old version, whose client is recorded. Run it in the folder of this version.
Knows: HTTP/1.1 as far as the scenarios need it, frames as text. Must never know: what is tested with it.
"""

import asyncio
import http.client
import json
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.mixed.ends import ENDS, converse
from tests.mixed.overload import publish_overloaded
from tests.mixed.scenarios import SCENARIOS
from tests.serving import QuietHandler, serving
from weir import Client

RECORDED: Final = Path(__file__).with_name("recorded.json")
# What each gateway before has refused.
REFUSED: Final[tuple[tuple[str, str, Any], ...]] = (
    ("GET", "/v1/streams/paged/entries?after=0&cursor=generation", None),
    ("GET", "/v1/streams/paged/tail?after=0&cursor=generation", None),
    ("GET", "/v1/tail?stream=one&stream=two&after=0&cursor=generation", None),
    ("POST", "/v1/streams/done/groups/g/ack", {"ids": ["5-0", "5-1"], "consumer": "a"}),
    ("POST", "/v1/streams/late/groups/g/nack", {"ids": ["5-0"], "mode": "fail", "consumer": "a"}),
    ("POST", "/v1/streams/late/groups/g/dead-letter", {"ids": ["5-1"], "consumer": "a"}),
)
# What each gateway before says of itself.
ABOUT: Final = "/v1"
_KEPT: Final = ("content-type", "last-event-id", "accept", "retry-after")


class _Recording(QuietHandler):
    protocol_version = "HTTP/1.1"
    behind: tuple[str, int]
    exchanges: list[dict[str, Any]]

    def respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        connection = http.client.HTTPConnection(*self.behind, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        connection.request(self.command, self.path, body or None, headers)
        exchange = {
            "method": self.command,
            "path": self.path,
            "headers": _kept(self.headers),
            "body": body.decode(),
            **_answer(connection.getresponse()),
        }
        connection.close()
        self.exchanges.append(exchange)
        self.reply(exchange["status"], exchange["answer"].encode(), exchange["answer_headers"])


def _kept(headers: Any) -> dict[str, str]:
    return {name: value for name in _KEPT if (value := headers.get(name)) is not None}


def _answer(response: http.client.HTTPResponse) -> dict[str, Any]:
    """Of events, those up to the one that says that what exists was sent."""
    text = b""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        while b"event: caught_up" not in text:
            text += response.readline()
        while not text.endswith(b"\n\n"):
            text += response.readline()
    else:
        text = response.read()
    return {"status": response.status, "answer_headers": _kept(response.headers), "answer": text.decode()}


def _ask(behind: tuple[str, int], method: str, path: str, body: Any = None) -> dict[str, Any]:
    connection = http.client.HTTPConnection(*behind, timeout=30)
    accept = "text/event-stream" if "/tail" in path else "application/json"
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {"accept": accept, "content-type": "application/json"})
    answer = _answer(connection.getresponse())
    connection.close()
    return {"method": method, "path": path, **answer}


def main() -> None:
    """Record everything."""
    url = sys.argv[1]
    behind = (urlsplit(url).hostname or "", urlsplit(url).port or 80)
    recorded: dict[str, Any] = {"scenarios": {}, "ends": {}}
    for name, scenario in SCENARIOS.items():
        exchanges: list[dict[str, Any]] = []
        handler = type("_Handler", (_Recording,), {"behind": behind, "exchanges": exchanges})
        with (
            serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as proxy,
            Client(f"http://127.0.0.1:{proxy.server_address[1]}") as client,
        ):
            seen = scenario(client)
        recorded["scenarios"][name] = {"seen": seen, "exchanges": exchanges}
    recorded["refused"] = [_ask(behind, *one) for one in REFUSED]
    recorded["about"] = _ask(behind, "GET", ABOUT)
    recorded["overloaded"] = publish_overloaded()
    for end in ENDS:
        recorded["ends"][end] = asyncio.run(converse(url, end))
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
