"""What a real gateway tells of its groups is what the lag job says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyspark_weir import clock
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.jobs import lag
from pyspark_weir.jobs.lag import Lag, Wanted, Watch, look
from tests.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway with 100 entries in `orders`, of which `billing` has read 30, settled 10, and `audit` none;
    and 5 in `clicks`, which nobody reads.
    """
    with Server(tmp_path_factory.mktemp("gateway") / "weir-data") as server, _http(server) as http:
        _publish(http, "orders", 100)
        _publish(http, "clicks", 5)
        for group in ("billing", "audit"):
            http.put(f"/v1/streams/orders/groups/{group}", json={"start": "0"}).raise_for_status()
        ids = _read(http, "billing", 30)
        http.post("/v1/streams/orders/groups/billing/ack", json={"ids": ids[:10]}).raise_for_status()
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with _http(server) as http:
        yield http


@pytest.fixture
def gateway(server: Server) -> Iterator[Gateway]:
    with Gateway(Access("g0", server.url)) as gateway:
        yield gateway


def _http(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url)


def _publish(http: httpx.Client, stream: str, count: int) -> None:
    entries = [{"fields": {"n": str(n)}} for n in range(count)]
    http.post(f"/v1/streams/{stream}/entries", json={"entries": entries}).raise_for_status()


def _read(http: httpx.Client, group: str, count: int) -> list[str]:
    path = f"/v1/streams/orders/groups/{group}/consumers/a/read"
    return [one["id"] for one in http.post(path, json={"count": count}).json()["entries"]]


def _found(gateway: Gateway, wanted: Wanted, at_ms: int | None = None) -> dict[str, Lag]:
    looks = look(gateway, wanted, clock.wall_ms if at_ms is None else lambda: at_ms)
    return {one.group: one for one in Watch(0).note(looks)}


def test_unread_and_pending_entries_are_behind(gateway: Gateway, http: httpx.Client) -> None:
    """And the oldest pending one is told, with its age, its deliveries and its time since."""
    found = _found(gateway, Wanted())
    assert set(found) == {"billing", "audit"}
    billing, audit = found["billing"], found["audit"]
    assert (billing.unread, billing.pending, billing.behind) == (70, 20, 90)
    assert (audit.unread, audit.pending, audit.behind) == (100, 0, 100)
    oldest = http.get("/v1/streams/orders/groups/billing/pending?count=1").json()["pending"][0]
    assert billing.oldest_pending_id == oldest["id"]
    assert billing.oldest_pending_deliveries == 1
    assert billing.oldest_pending_age_ms is not None
    assert 0 <= billing.oldest_pending_age_ms < 600_000
    assert (audit.oldest_pending_id, audit.oldest_pending_age_ms) == (None, None)


def test_only_what_is_wanted_is_looked_at(gateway: Gateway) -> None:
    """Streams by name or by pattern, groups by name; what is missing is no error."""
    assert set(_found(gateway, Wanted(groups=("audit",)))) == {"audit"}
    assert set(_found(gateway, Wanted(pattern="ord.*"))) == {"billing", "audit"}
    assert _found(gateway, Wanted(pattern="rders")) == {}
    assert set(_found(gateway, Wanted(streams=("orders", "missing"), groups=("billing",)))) == {"billing"}
    assert _found(gateway, Wanted(streams=("clicks",))) == {}


def test_rates_follow_what_happens_between_two_looks(gateway: Gateway, http: httpx.Client) -> None:
    """In ten seconds of the clock 50 entries came, and 20 were settled."""
    wanted, watch = Wanted(("orders",), groups=("audit",)), Watch(0)
    watch.note(look(gateway, wanted, lambda: 1_000_000))
    _publish(http, "orders", 50)
    ids = _read(http, "audit", 40)
    http.post("/v1/streams/orders/groups/audit/ack", json={"ids": ids[:20]}).raise_for_status()
    (found,) = watch.note(look(gateway, wanted, lambda: 1_010_000))
    assert (found.unread, found.pending) == (110, 20)
    assert (found.published_per_s, found.settled_per_s, found.trend) == (5.0, 2.0, lag.FALLING_BEHIND)


def test_a_group_whose_lag_the_gateway_does_not_know_is_counted(gateway: Gateway, http: httpx.Client) -> None:
    """Where entries were deleted in the middle, and the group starts behind them."""
    _publish(http, "holes", 10)
    ids = [one["id"] for one in http.get("/v1/streams/holes/entries").json()["entries"]]
    http.post("/v1/streams/holes/entries/delete", json={"ids": ids[4:6]}).raise_for_status()
    http.put("/v1/streams/holes/groups/g", json={"start": ids[1]}).raise_for_status()
    assert http.get("/v1/streams/holes/groups/g").json()["lag"] is None
    assert _found(gateway, Wanted(("holes",)))["g"].unread == 6


def test_findings_are_kept_as_entries(gateway: Gateway, http: httpx.Client) -> None:
    """One for each group; what is not known is left out."""
    found = Watch(0).note(look(gateway, Wanted(("orders",)), clock.wall_ms))
    lag.publish(gateway, "kept", found)
    entries = [one["fields"] for one in http.get("/v1/streams/kept/entries").json()["entries"]]
    assert [one["group"] for one in entries] == [one.group for one in found]
    for entry, one in zip(entries, found, strict=True):
        expected: dict[str, Any] = {name: value for name, value in one.row().items() if value is not None}
        assert entry == {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in expected.items()
        }


def test_bars_of_it_can_be_drawn(gateway: Gateway, tmp_path: Path) -> None:
    """From the gateway to the picture."""
    charts = pytest.importorskip("pyspark_weir.charts")
    found = Watch(0).note(look(gateway, Wanted(("orders",)), clock.wall_ms))
    charts.bars(tmp_path / "lag.svg", lag.bars(found), title="Behind", value="entries")
    assert "orders / billing" in (tmp_path / "lag.svg").read_text()
