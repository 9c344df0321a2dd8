"""What is counted by a client's address, at each door of HTTP: that of the client, not that of its proxy.

A proxy that is not trusted is the client itself, whatever it says.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.auth import ANONYMOUS
from tests.app.ten_doors import BURST, DOORS, LATE_S, Bench, Door, Http, Redis, Sse, WebSocket, opened

PROXIED = [door for door in DOORS if not isinstance(door, Redis)]
AT_ONCE = [door for door in PROXIED if door.name != "multi-exec"]
PROXY, CLIENT, OTHER = "127.0.0.1", "203.0.113.5", "203.0.113.6"


def test_every_door_is_asked() -> None:
    """Redis's protocol has no place for the address of another."""
    assert {*DOORS} - {*PROXIED} == {door for door in DOORS if door.name.startswith("RESP")}


@pytest.fixture(params=[True, False], ids=["trusted", "not trusted"])
async def proxied(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Bench, str]]:
    """A gateway behind a proxy, and the address of whoever asks."""
    trusted = (PROXY,) if request.param else ()
    settings: dict[str, Any] = {"trusted_proxies": trusted, "rate_failures": "1/s burst 2"}
    async with opened(tmp_path, principal=ANONYMOUS, per_principal_max=2, **settings) as bench:
        await DOORS[0].publish(bench, "orders")
        # The other header is never believed.
        bench.headers = {"x-forwarded-for": CLIENT, "forwarded": f"for={OTHER}"}
        yield bench, CLIENT if request.param else PROXY


def taken(bench: Bench, address: str) -> int:
    """The requests that were counted for an address."""
    limiter = bench.gateway.limits.rates
    assert limiter is not None
    assert limiter.rates.requests is not None
    now_s = bench.gateway.clock.monotonic()
    return BURST - round(limiter.requests.remaining(f"ip:{address}", limiter.rates.requests, now_s))


@pytest.mark.parametrize("door", PROXIED, ids=lambda door: door.name)
async def test_requests_are_counted_for_the_client(proxied: tuple[Bench, str], door: Door) -> None:
    """And its bytes with them."""
    bench, address = proxied
    before = {one: taken(bench, one) for one in (PROXY, CLIENT, OTHER)}
    await door.read(bench, "orders")
    await door.publish(bench, "orders")
    counted = {one for one, requests in before.items() if taken(bench, one) > requests}
    assert counted == {address}


@pytest.mark.parametrize("door", AT_ONCE, ids=lambda door: door.name)
async def test_what_stays_open_is_the_clients(proxied: tuple[Bench, str], door: Door) -> None:
    """A read that waits, a tail or a socket."""
    bench, address = proxied
    staying = asyncio.Event()
    stays = asyncio.create_task(door.stay(bench, staying.set))
    async with asyncio.timeout(LATE_S):
        await staying.wait()
        limits = bench.gateway.limits
        shares = limits.connections if isinstance(door, WebSocket | Sse) else bench.gateway.waits.each
        held = {one for one in (PROXY, CLIENT) if shares.held(f"ip:{one}")}
        door.stop(bench)
        await stays
    assert held == {address}


@pytest.mark.parametrize(
    "door", [door for door in PROXIED if isinstance(door, Http)], ids=lambda door: door.name
)
async def test_wrong_credentials_are_counted_for_the_client(proxied: tuple[Bench, str], door: Door) -> None:
    """Others behind the same trusted proxy may go on with theirs. A page that follows events is asked to come
    again, by an answer that it does not take for the end.
    """
    bench, address = proxied
    bench.policy.revoked = True
    bench.headers["authorization"] = "Bearer wrong"
    late = "200" if door.name == "sse" else "429"
    answers = [(await door.read(bench, "orders"))[:3] for _ in range(3)]
    assert answers == ["401", "401", late]
    bench.headers["x-forwarded-for"] = OTHER
    assert (await door.read(bench, "orders"))[:3] == ("401" if address == CLIENT else late)


@pytest.mark.parametrize("door", [door for door in PROXIED if door.name != "sse"], ids=lambda door: door.name)
async def test_the_audit_log_has_the_clients_address(proxied: tuple[Bench, str], door: Door) -> None:
    """In the place of a token's name. Events change nothing."""
    bench, address = proxied
    await door.delete(bench, "orders")
    assert {line["caller"] for line in await bench.audited()} == {f"ip:{address}"}
