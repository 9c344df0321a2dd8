"""A whole history, read once: ranges of a thousand from the first entry to the last, beside Redis (P4).

P4 itself reads one range again and again, so both servers have at hand what it takes, and the gateway has
answered the same bytes before. Here no request is sent twice, and a history is longer than what is kept
unpacked. The client is the same for both, and has a request more under way than the one that it reads the
answer to, so that no server waits for it.
"""

import shutil
import socket
import time
from collections.abc import Sequence
from typing import Final

import redis

from bench.figure import Pairs
from bench.peers import redis_server
from bench.versus import BATCH, RANGE_COUNT, Weir

STREAM: Final = "history"
# All IDs are as long as this one.
FIRST_MS: Final = 1_000_000_000
# Each entry has it once, in either protocol.
_MARK: Final = b"temperature"
_AHEAD: Final = 2
# The newest nodes are not packed before this time.
_PACKED_S: Final = 3


def read_once(entries: int, rounds: int) -> Pairs:
    """Entries a second, ours and Redis's."""
    ours = Weir()
    ours.start()
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as (port, _):
        client = redis.Redis(port=port)
        for first in range(FIRST_MS, FIRST_MS + entries, BATCH):
            ids = range(first, min(first + BATCH, FIRST_MS + entries))
            lines = b"\n".join(b'{"id":"%d-0","fields":{"temperature":"19.8"}}' % ms for ms in ids)
            ours.call("POST", f"/v1/streams/{STREAM}/entries", lines, "application/x-ndjson")
            pipeline = client.pipeline(transaction=False)
            for ms in ids:
                pipeline.xadd(STREAM, {"temperature": "19.8"}, id=f"{ms}-0")
            pipeline.execute()
        time.sleep(_PACKED_S)
        starts = range(FIRST_MS, FIRST_MS + entries - RANGE_COUNT + 1, RANGE_COUNT)
        pairs = []
        for number in range(rounds):
            mine = entries_a_second(ours.port, [over_http(ours.port, start, number) for start in starts])
            pairs.append((mine, entries_a_second(port, [over_resp(start) for start in starts])))
    ours.stop()
    shutil.rmtree(ours.data, ignore_errors=True)
    return pairs


def over_http(port: int, start_ms: int, number: int) -> bytes:
    """The request for a range from this entry on, in bytes that no other round sends."""
    path = f"/v1/streams/{STREAM}/entries?start={start_ms}-0&count={RANGE_COUNT}"
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: round-{number}\r\n\r\n".encode()


def over_resp(start_ms: int) -> bytes:
    """The same as XRANGE."""
    words = ("XRANGE", STREAM, f"{start_ms}-0", "+", "COUNT", str(RANGE_COUNT))
    return (f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)).encode()


def entries_a_second(port: int, requests: Sequence[bytes]) -> float:
    """Read all these ranges, each of `RANGE_COUNT` entries."""
    found, sent, cut = 0, _AHEAD, b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        began = time.perf_counter()
        connection.sendall(b"".join(requests[:sent]))
        while found < RANGE_COUNT * len(requests):
            data = cut + connection.recv(1 << 18)
            assert data != cut, f"the server has closed the connection after {found} entries"
            found += data.count(_MARK)
            # Too short for a mark that was counted.
            cut = data[1 - len(_MARK) :]
            while sent < len(requests) and found >= (sent - _AHEAD + 1) * RANGE_COUNT:
                connection.sendall(requests[sent])
                sent += 1
        return found / (time.perf_counter() - began)
