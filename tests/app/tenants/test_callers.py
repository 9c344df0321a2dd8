"""Who has which tenant: requests, connections that show another token, tokens that are passed on."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from app.auth import Grant, Principal, TokenPolicy, tokens
from app.gateway import Gateway
from app.http.plan import HeadPlan
from app.http.requests import Request
from app.http.responses import Exchange
from app.live.leases import ConsumerKey, ConsumerLeases
from app.settings import Settings
from engine import Engine, SystemClock
from tests.app.auth.callers import ROOT, app_with, client
from tests.app.resp.conftest import open_port  # noqa: F401 - a fixture

READ_S = {"actions": ["read", "write"], "streams": "*"}


def made(prefix: str | None, *actions: str) -> tokens.CreatedToken:
    """A token of this tenant."""
    grant = Grant.from_value({"actions": list(actions) or ["*"], "streams": "*", "prefix": prefix})
    return tokens.create((grant,))


async def nothing() -> MutableMapping[str, Any]:
    """A request without a body."""
    return {"type": "http.request"}


async def test_callers_without_a_prefix_share_one_engine(engine: Engine) -> None:
    """Nothing is renamed; a request that is recognised as a tenant's has another one from then on."""
    gateway = Gateway(Settings(log_requests="none"), SystemClock())
    gateway.open(engine)
    request = Request(gateway, {"headers": ()}, nothing, Exchange(HeadPlan("GET", b"/", b"", {}), "r"))
    request.check_ready()
    plain = gateway.tenant("")
    assert request.engine is plain.engine
    assert (request.tenant.feeds, request.tenant.engine) == (plain.feeds, plain.engine)
    request.principal = Principal("tester", made("acme.").token.grants)
    assert request.engine is not plain.engine
    assert request.engine is request.engine is gateway.tenant("acme.").engine


async def test_readers_of_a_consumer_take_turns_whatever_they_call_its_stream() -> None:
    """A tenant's reader is replaced by an operator's, and not by one of another tenant."""
    leases, replaced = ConsumerLeases(), list[str]()
    tenant, other = leases.under("acme."), leases.under("globex.")
    lease = tenant.acquire(ConsumerKey("s", "g", "c"), lambda: replaced.append("tenant"))
    assert lease.consumer.stream == "s"
    assert (leases.active("acme.s"), tenant.active("s"), other.active("s")) == (
        {("g", "c")},
        {("g", "c")},
        set(),
    )
    assert other.acquire(ConsumerKey("s", "g", "c"), lambda: None).alone.done()
    assert replaced == []
    after = leases.acquire(ConsumerKey("acme.s", "g", "c"), lambda: None)
    assert (replaced, after.alone.done()) == (["tenant"], False)
    woken: list[str] = []
    tenant.follow("s", lambda _: woken.append("own"))
    stop = other.follow("s", lambda _: woken.append("other"))
    leases.settled("acme.s", [1])
    assert woken == ["own"]
    leases.wake()
    assert woken == ["own", "own", "other"]
    stop()


async def test_a_redis_client_begins_anew_as_another_tenant(open_port: Any) -> None:  # noqa: F811
    """What it has queued, watched and subscribed to was of the first one."""
    one, other, same = made("acme."), made("globex."), made("acme.")
    port = await open_port(policy=TokenPolicy([t.token for t in (one, other, same)], wall_s=lambda: 0.0))
    wire, writer = await port.connect(), await port.connect()
    assert await writer.call("AUTH", one.text) == "OK"
    await writer.call("XADD", "s", "1-0", "a", "b")
    assert await wire.call("HELLO", "3", "AUTH", "default", one.text) is not None
    assert await wire.call("WATCH", "s") == "OK"
    wire.send("SUBSCRIBE", "__keyspace@0__:s")
    assert await wire.line() == b">3"
    for _ in range(5):
        await wire.line()
    assert await wire.call("AUTH", same.text) == "OK"
    await writer.call("XADD", "s", "1-1", "a", "b")
    assert await wire.line() == b">3"
    for _ in range(6):
        await wire.line()
    assert await wire.call("AUTH", other.text) == "OK"
    await writer.call("XADD", "s", "1-2", "a", "b")
    # Neither a message nor the watched stream of the first tenant.
    assert await wire.call("MULTI") == "OK"
    assert await wire.call("XLEN", "s") == "QUEUED"
    assert await wire.call("EXEC") == [0]
    assert await wire.call("KEYS", "*") == []


async def test_tokens_have_one_prefix(engine: Engine, tmp_path: Path) -> None:
    """Grants of two tenants in one token are refused, to the root token too."""
    app = await app_with(engine, tmp_path)
    for other in (None, "globex."):
        grants = [READ_S | {"prefix": "acme."}, READ_S | {"prefix": other}]
        async with client(app, ROOT) as http:
            answer = await http.post("/v1/admin/tokens", json={"grants": grants})
        assert (answer.status_code, "same prefix" in answer.json()["detail"]) == (422, True)


async def test_a_tenant_passes_on_its_own_streams_alone(engine: Engine, tmp_path: Path) -> None:
    """Under its prefix, which operators see, however it asks; and sees no token of another tenant."""
    issuer = made("acme.", "read", "write", "issue")
    app = await app_with(engine, tmp_path, issuer)
    async with client(app, issuer.text) as http, client(app, ROOT) as root:
        ids = []
        for prefix, real in ((None, "acme."), ("eu.", "acme.eu."), ("acme.", "acme.acme.")):
            answer = await http.post("/v1/admin/tokens", json={"grants": [READ_S | {"prefix": prefix}]})
            assert (answer.status_code, answer.json()["grants"][0]["prefix"]) == (201, prefix)
            ids.append(answer.json()["id"])
            shown = (await root.get(f"/v1/admin/tokens/{ids[-1]}")).json()
            assert shown["grants"][0]["prefix"] == real
        too_long = await http.post("/v1/admin/tokens", json={"grants": [READ_S | {"prefix": "x" * 128}]})
        assert too_long.status_code == 422
        wider = {"grants": [{"actions": ["admin"], "streams": "*"}]}
        assert (await http.post("/v1/admin/tokens", json=wider)).status_code == 403
        await root.post("/v1/admin/tokens", json={"grants": [READ_S | {"prefix": "globex."}]})
        listed = (await http.get("/v1/admin/tokens")).json()["tokens"]
        assert sorted(one["id"] for one in listed) == sorted(ids)
