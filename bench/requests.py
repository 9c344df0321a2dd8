"""What a request costs the gateway's processor: one client, one request at a time, and pipelines (P16, P17).

The processor time is that of the gateway alone.
"""

import json
import time
from http.client import HTTPConnection
from typing import Final

from bench.peers import cpu_s_of
from bench.push import gateway

PIPELINE: Final = 1_000
# As many as one transaction takes.
TRANSACTION: Final = 300
JSON: Final = {"content-type": "application/json"}
ADD: Final = ["XADD", "s", "*", "temperature", "19.8"]

# Method, path and body.
Request = tuple[str, str, bytes | None]

ONE: Final[dict[str, Request]] = {
    "publish": ("POST", "/v1/streams/s/entries", b'{"fields":{"temperature":"19.8"}}'),
    "range of one": ("GET", "/v1/streams/s/entries?count=1", None),
    "stream info": ("GET", "/v1/streams/s", None),
    "health": ("GET", "/healthz/live", None),
}
MANY: Final[dict[str, tuple[Request, int]]] = {
    "pipeline, per XADD": (
        ("POST", "/v1/commands/pipeline", json.dumps([ADD] * PIPELINE).encode()),
        PIPELINE,
    ),
    "pipeline, per XLEN": (
        ("POST", "/v1/commands/pipeline", json.dumps([["XLEN", "s"]] * PIPELINE).encode()),
        PIPELINE,
    ),
    "multi-exec, per XADD": (
        ("POST", "/v1/commands/multi-exec", json.dumps([ADD] * TRANSACTION).encode()),
        TRANSACTION,
    ),
}


def cost_us(port: int, pid: int, request: Request, seconds: float) -> float:
    """Microseconds of the gateway's processor time a request."""
    method, path, body = request
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    count, before_s = 0, cpu_s_of(pid)
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        connection.request(method, path, body, JSON if body else {})
        with connection.getresponse() as answer:
            answer.read()
            assert answer.status < 300, f"{path}: {answer.status}"
        count += 1
    connection.close()
    return (cpu_s_of(pid) - before_s) / count * 1e6


def costs(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Microseconds a request, or a command of those that are sent together, by round."""
    found: dict[str, list[float]] = {}
    with gateway() as (port, pid):
        for _ in range(rounds):
            for name, request in ONE.items():
                found.setdefault(name, []).append(cost_us(port, pid, request, seconds))
            for name, (request, commands) in MANY.items():
                found.setdefault(name, []).append(cost_us(port, pid, request, seconds) / commands)
    return found
