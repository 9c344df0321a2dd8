"""What a client does with a gateway that has no room for an answer at the moment: 503 `overloaded`."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from weir import Client

PROBLEM = {"code": "overloaded", "detail": "no room at the moment", "status": 503, "retryable": True}
STORED = {"id": "5-0", "duplicate": False}


def publish_overloaded() -> dict[str, Any]:
    """Publish once, with 503 as the first answer: how many requests came, how many keys, what was stored."""
    keys: list[str] = []

    class Overloaded(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            keys.append(self.headers["idempotency-key"])
            is_first = len(keys) == 1
            content = json.dumps(PROBLEM if is_first else STORED).encode()
            self.send_response(503 if is_first else 201)
            self.send_header("content-type", "application/problem+json" if is_first else "application/json")
            self.send_header("retry-after", "1")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Overloaded) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            with Client(f"http://127.0.0.1:{server.server_address[1]}") as client:
                stored = client.publish("s", {"n": 1})
        finally:
            server.shutdown()
            thread.join()
    return {"requests": len(keys), "keys": len(set(keys)), "stored": stored.id}
