"""Blocked reads hold no connection to the servers: thousands of tails take as many as one does."""

import asyncio
from pathlib import Path

import httpx

from tests.cluster.many_tails import GATEWAYS, PUBLISHED, STREAMS, Tail, report_of, run, until
from tests.cluster.servers import BackendServer
from tests.server import Server

TAILS = 600
# Four to each of three primaries, and one more while a server is asked something.
CONNECTIONS_MAX = 40
SOON_S = 20.0


def test_tails_share_the_connections_of_their_gateway(tmp_path: Path) -> None:
    """And each gets what is published over the other gateway."""
    report = run(tmp_path, TAILS)
    assert report.tails == GATEWAYS * TAILS
    assert report.wanted == PUBLISHED * report.tails // STREAMS
    assert (report.received, report.missed) == (report.wanted, [])
    assert all(12 <= count < CONNECTIONS_MAX for count in report.connections)


async def add(url: str) -> None:
    async with httpx.AsyncClient(timeout=SOON_S) as http:
        answer = await http.post(f"{url}/v1/streams/s/entries", json={"fields": {"n": "1"}})
        answer.raise_for_status()


async def test_a_tail_that_was_refused_or_cut_off_comes_back(
    tmp_path: Path, own_server: BackendServer
) -> None:
    """After what it has, once its time has come; the report says why each connection was over."""
    words = ("--backend", own_server.url, "--set", "backend_timeout_ms=500")
    with Server(tmp_path / "gateway", *words) as gateway:
        own_server.pause()
        tails = [Tail(gateway.port, "s"), Tail(gateway.port, "no/stream")]
        following = [asyncio.create_task(tail.follow()) for tail in tails]
        await until(lambda: all(tail.ends for tail in tails), SOON_S)
        own_server.resume()
        await until(lambda: tails[0].is_open, SOON_S)
        await add(gateway.url)
        await until(lambda: len(tails[0].arrived_s) == 1, SOON_S)
        ended = report_of(tails, {"s": 0.0}, [])
        assert (ended.received, ended.wanted, ended.missed) == (1, 1, [])
        assert set(ended.ended) == {"backend_unavailable", "status 404"}
        gateway.kill()
        await asyncio.to_thread(gateway.start)
        await add(gateway.url)
        await until(lambda: len(tails[0].arrived_s) == 2, SOON_S)
        again = report_of(tails, {"s": 0.0}, [])
        assert (again.received, again.wanted) == (0, 1)
        assert "2 entries, open, backend_unavailable after" in again.missed[0]
        for one in following:
            one.cancel()
