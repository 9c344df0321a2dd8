"""Many kinds of attackers in one process, for some seconds: `attackers.py <port> <seconds>`."""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Sequence

HEAD = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)
PUBLISH = b"/v1/streams/attacked/entries"
FIELDS = b'{"fields":{%b}}' % b",".join(b'"f%d":"1"' % number for number in range(200_000))
BATCH = b'{"entries":[%b]}' % b",".join([b'{"fields":{"a":"1"}}'] * 10_000)
DEEP = b"[" * 500_000 + b"]" * 500_000
PIPELINE = b"GET /v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500
TRICKLE = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "


def posted(path: bytes, body: bytes) -> bytes:
    """A request with this body."""
    return HEAD % (path, len(body), body)


def again_and_again(port: int, sent: bytes, pause_s: float, until: float) -> None:
    """Send it on a connection of its own, read one piece of what comes, pause."""
    while time.perf_counter() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=3) as peer:
            peer.sendall(sent)
            peer.recv(65_536)
        time.sleep(pause_s)


def main(arguments: Sequence[str]) -> None:
    """Attack until the time is over."""
    port, until = int(arguments[0]), time.perf_counter() + float(arguments[1])
    attacks = [
        (posted(PUBLISH, FIELDS), 0.2),
        (posted(PUBLISH, DEEP), 0.1),
        (posted(b"/v1/commands", DEEP), 0.1),
        (posted(PUBLISH, BATCH), 0.5),
        (PIPELINE, 0.2),
        *[(TRICKLE, 0.0)] * 20,
    ]
    threads = [
        threading.Thread(target=again_and_again, args=(port, sent, pause_s, until))
        for sent, pause_s in attacks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
