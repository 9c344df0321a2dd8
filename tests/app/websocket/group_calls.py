"""What tests of sockets do and see over HTTP: entries published, what a group has pending.

Knows: the stream `s` with its group `g`. Must never know: what is tested.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
from websockets.exceptions import ConnectionClosed

from tests.app.sockets import Json, Raw, SocketClient
from tests.server import Server

GROUP: Final = "/v1/streams/s/groups/g"
WORK: Final[Json] = {"stream": "s", "group": "g", "create": "0"}


def add(http: httpx.Client, stream: str, *values: int | str) -> list[str]:
    body = {"entries": [{"fields": {"n": value}} for value in values]}
    result = http.post(f"/v1/streams/{stream}/entries", json=body).json()
    return list(result["ids"])


def pending(http: httpx.Client) -> list[tuple[str | None, int]]:
    rows = http.get(f"{GROUP}/pending?count=1000").json()["pending"]
    return [(row["consumer"], row["delivery_count"]) for row in rows]


def closed_with(client: SocketClient) -> int:
    """The code of the close that comes behind everything else; -1 where there is none."""
    try:
        while True:
            client.next()
    except ConnectionClosed as closed:
        return int(closed.rcvd.code) if closed.rcvd is not None else -1


def resident_bytes(server: Server) -> int:
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise AssertionError("every process has it")


def publish_megabytes(http: httpx.Client, count: int) -> None:
    value = "x" * 10_000
    for _ in range(count):
        add(http, "s", *[value] * 100)


def frames_of(raw: Raw, op: str) -> Iterator[Json]:
    """What is pushed from now on, of this kind."""
    while True:
        frame = json.loads(raw.read()[1])
        if frame["op"] == op:
            yield frame
