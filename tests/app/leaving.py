"""Clients that leave while their group's read waits, right before something is published.

Knows: the doors over HTTP, in which order the bytes leave. Must never know: which server it is.
"""

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

from tests.server import ask

GROUP: Final = "/v1/streams/s/groups/g"
# Long enough for a request to arrive and wait.
_ARRIVES_S: Final = 0.03
_READ: Final[Mapping[str, tuple[str, object]]] = {
    "read": (f"{GROUP}/consumers/gone/read", {"wait": 20_000}),
    "read of several streams": (
        "/v1/read",
        {"streams": {"s": ">", "t": ">"}, "group": "g", "consumer": "gone", "wait": 20_000},
    ),
    "command": (
        "/v1/commands",
        ["XREADGROUP", "GROUP", "g", "gone", "BLOCK", "20000", "STREAMS", "s", ">"],
    ),
}
DOORS: Final = (*_READ, "read, as a server of the usual kind parses it")


class House:
    """One server at a port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for stream in ("s", "t"):
            body = {"name": "g", "start": "$", "mkstream": True}
            self.ask("POST", f"/v1/streams/{stream}/groups", body)

    def ask(self, method: str, path: str, body: object) -> Any:
        """What a request is answered, on the publisher's connection."""
        status, answer = ask(self._line, method, path, body)
        assert status < 300, answer
        return answer

    def wait(self, door: str) -> socket.socket:
        """A client whose read waits."""
        path, body = _READ[door.partition(",")[0]]
        text = json.dumps(body).encode()
        client = socket.create_connection(("127.0.0.1", self._port))
        # In two pieces it goes to the parser, and the ordinary way.
        pieces = 2 if "," in door else 1
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" % path.encode()
        whole = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(text), text)
        at = len(head) if pieces == 2 else len(whole)
        client.sendall(whole[:at])
        if pieces == 2:
            time.sleep(_ARRIVES_S)
            client.sendall(whole[at:])
        time.sleep(_ARRIVES_S)
        return client

    def lost(
        self, door: str, rounds: int, leave: Callable[[socket.socket], None] = socket.socket.close
    ) -> int:
        """How many entries no other consumer was given as new, of so many rounds."""
        count = 0
        for number in range(rounds):
            with closing(self.wait(door)) as client:
                leave(client)
                self.ask("POST", "/v1/streams/s/entries", {"fields": {"n": str(number)}})
                found = self.ask("POST", f"{GROUP}/consumers/next/read", {"wait": 2_000})["entries"]
                count += [one["fields"] for one in found] != [{"n": str(number)}]
        return count

    def close(self) -> None:
        self._line.close()
