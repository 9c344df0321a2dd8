"""What a client does with a gateway that has no room for an answer at the moment: 503 `overloaded`."""

import json
from http.server import ThreadingHTTPServer
from typing import Any

from tests.serving import QuietHandler, serving
from weir import Client

PROBLEM = {"code": "overloaded", "detail": "no room at the moment", "status": 503, "retryable": True}
STORED = {"id": "5-0", "duplicate": False}


def publish_overloaded() -> dict[str, Any]:
    """Publish once, with 503 as the first answer: how many requests came, how many keys, what was stored."""
    keys: list[str] = []

    class Overloaded(QuietHandler):
        def respond(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            keys.append(self.headers["idempotency-key"])
            is_first = len(keys) == 1
            content = json.dumps(PROBLEM if is_first else STORED).encode()
            kind = "application/problem+json" if is_first else "application/json"
            self.reply(503 if is_first else 201, content, {"content-type": kind, "retry-after": "1"})

    with (
        serving(ThreadingHTTPServer(("127.0.0.1", 0), Overloaded)) as server,
        Client(f"http://127.0.0.1:{server.server_address[1]}") as client,
    ):
        stored = client.publish("s", {"n": 1})
    return {"requests": len(keys), "keys": len(set(keys)), "stored": stored.id}
