"""Metrics of a real gateway: connections by API, ten thousand of them, and the event loop during a scrape."""

import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from app.api import metrics
from app.main import create_app
from app.settings import Settings
from engine import Engine, SystemClock
from engine.commands.weir_commands import EnsureStream
from tests.app.metrics import Series, parse, value
from tests.app.sockets import talking
from tests.engine.asking import reply_to
from tests.server import Server, server_of
from tests.turns import assert_within, assert_within_async, longest_turn_s
from tests.waiting import until

CONNECTIONS: Final = 10_000
STREAMS: Final = 10_000
# Beside the sockets: files of pytest, of the log.
SPARE_FILES: Final = 200
SCRAPE_S_MAX: Final = 0.05
LOOP_HELD_S_MAX: Final = 0.02
BYTES_MAX: Final = 1_000_000


def processor_s(pid: int) -> float:
    """The processor time of a process with all its threads: clock_getcpuclockid(3), as Linux makes it."""
    return time.clock_gettime(~pid << 3 | 2)


server = server_of("module", "--set", "metrics_streams=*", "--set", "log_requests=none")


def scrape(http: httpx.Client) -> Series:
    return parse(http.get("/metrics").text)


def eventually(http: httpx.Client, name: str, wanted: float, **labels: str) -> None:
    until(lambda: value(scrape(http), name, **labels) == wanted, f"{name} {labels} is not {wanted}", 15)


def test_connections_are_counted_while_they_are_open(server: Server) -> None:
    """By API; each is gone from the count when it is closed. What they send counts for them."""
    with httpx.Client(base_url=server.url) as http:
        entries = {"entries": [{"fields": {"n": n}} for n in range(3)]}
        http.post("/v1/streams/s/entries", json=entries)
        with talking(server) as socket_client:
            socket_client.send("subscribe", sub="t", streams={"s": "0"})
            socket_client.entries(3)
            eventually(http, "weir_connections", 1, door="websocket")
            eventually(http, "weir_connections", 1, door="http")
            socket_client.send("ack", ref="a", sub="none", ids=["1-0"])
            refused = socket_client.until("error")[-1]
            found = scrape(http)
            assert value(found, "weir_entries_delivered_total", door="websocket") == 3
            assert value(found, "weir_rejected_total", code=refused["problem"]["code"]) == 1
        eventually(http, "weir_requests_total", 1, route="GET /v1/ws", code="101")
        eventually(http, "weir_connections", 0, door="websocket")
        with (
            httpx.Client(base_url=server.url) as other,
            other.stream("GET", "/v1/streams/s/tail?after=0") as tail,
        ):
            events = tail.iter_text()
            assert next(events)
            eventually(http, "weir_entries_delivered_total", 3, door="sse")
            eventually(http, "weir_connections", 1, door="sse")
            eventually(http, "weir_connections", 1, door="http")
            # It ends the stream when it is forgotten.
            del events
        eventually(http, "weir_connections", 0, door="sse")
        assert value(scrape(http), "weir_disk_free_bytes") > 0


def test_the_lag_of_the_loop_is_measured(server: Server) -> None:
    """Four times a second."""
    with httpx.Client(base_url=server.url) as http:
        before = value(scrape(http), "weir_loop_lag_seconds_count")
        wanted = before + 2
        until(lambda: value(scrape(http), "weir_loop_lag_seconds_count") >= wanted, "it is not measured", 15)


@pytest.mark.paired
def test_a_scrape_with_ten_thousand_streams_and_connections(server: Server) -> None:
    """Under 50 ms and 1 MB, with as many connections as files may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections = min(CONNECTIONS, hard - SPARE_FILES)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as http, ExitStack() as opened:
            for first in range(0, STREAMS, 500):
                names = [f"a-stream-of-a-usual-name-{number}" for number in range(first, first + 500)]
                body = {"streams": {name: [{"fields": {"n": 1}}] for name in names}}
                assert http.post("/v1/publish", json=body).is_success
            for _ in range(connections):
                opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 15))
            eventually(http, "weir_connections", connections + 1, door="http")
            text = b""

            def scrape_s() -> float:
                nonlocal text
                began = processor_s(server.pid)
                text = http.get("/metrics").content
                return processor_s(server.pid) - began

            assert_within(SCRAPE_S_MAX, scrape_s)
            assert value(parse(text.decode()), "weir_streams") >= STREAMS
            assert len(text) < BYTES_MAX
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.paired
async def test_a_scrape_holds_the_event_loop_for_moments_alone(tmp_path: Path) -> None:
    """Others have their turns while streams are measured and text is written."""
    app = create_app(Settings(metrics_streams=("*",), data=tmp_path), SystemClock())
    async with Engine.open(None, clock=SystemClock()) as engine:
        app.life.open(engine)
        for number in range(STREAMS):
            await reply_to(engine, EnsureStream(stream=f"a-stream-of-a-usual-name-{number}"))
        await metrics.write(app.gateway, openmetrics=False)
        await assert_within_async(
            LOOP_HELD_S_MAX, lambda: longest_turn_s(metrics.write(app.gateway, openmetrics=False))
        )
