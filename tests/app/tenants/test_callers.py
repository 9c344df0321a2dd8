"""Who has which tenant: requests, connections that show another token, tokens that are passed on."""

import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from app.auth import Grant, Principal, TokenPolicy, tokens
from app.gateway import Gateway
from app.http.plan import HeadPlan
from app.http.requests import Request
from app.http.responses import Exchange
from app.life import Life
from app.live.leases import ConsumerKey, ConsumerLeases
from app.settings import Settings
from engine import Engine, SystemClock
from engine.commands.types import XLen
from tests.app.auth.callers import ROOT, app_with, client
from tests.app.resp.conftest import open_port  # noqa: F401 - a fixture
from tests.app.ten_doors import Http, opened
from tests.engine.asking import reply_to

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
    Life(gateway).open(engine)
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


async def test_a_redis_client_hears_of_its_tenants_streams(open_port: Any) -> None:  # noqa: F811
    """By channel and by pattern."""
    one, other = made("acme."), made("globex.")
    port = await open_port(policy=TokenPolicy([one.token, other.token], wall_s=lambda: 0.0))
    for own, beside in ((one, other), (other, one)):
        wires = [await port.connect() for _ in range(3)]
        for wire, token in zip(wires, (own, own, beside), strict=True):
            await wire.call("AUTH", token.text)
        listening, publisher, foreign = wires
        await publisher.call("XADD", "s", "*", "a", "b")
        await listening.call("PSUBSCRIBE", "*")
        await listening.call("SUBSCRIBE", "__keyspace@0__:s")
        for publishing in (foreign, publisher):
            assert isinstance(await publishing.call("XADD", "s", "*", "a", "b"), bytes)
        heard: list[Any] = [await listening.reply() for _ in range(3)]
        assert sorted(one[-2] for one in heard) == [b"__keyevent@0__:xadd", *[b"__keyspace@0__:s"] * 2]
        assert [one[-1] for one in heard if one[-2] == b"__keyevent@0__:xadd"] == [b"s"]
        listening.send("PING")
        assert await listening.reply() == [b"pong", b""]


async def test_a_socket_stays_with_its_tenant(tmp_path: Path) -> None:
    """That of the token which it shows, or of its ticket: what it has opened is of that one."""
    one, other = made("acme."), made("globex.")
    policy = TokenPolicy([one.token, other.token], wall_s=lambda: 0.0)
    async with opened(tmp_path, access=policy) as bench:
        bench.headers = {"authorization": f"Bearer {one.text}"}
        ticket = json.loads((await Http("http", "rest").ask(bench, "POST", "/v1/tickets")).partition(" ")[2])[
            "ticket"
        ]
        url = f"ws://127.0.0.1:{await bench.port()}/v1/ws"
        for offered in ((), (f"weir.ticket.{ticket}",)):
            names = [Subprotocol(name) for name in ("weir.v1", *offered)]
            async with connect(url, subprotocols=names) as socket:
                await socket.recv()

                async def ask(op: str, **members: object) -> Any:
                    await socket.send(json.dumps({"op": op, "ref": op, **members}))
                    return json.loads(await socket.recv())

                assert offered or (await ask("auth", token=one.text))["op"] == "ok"
                assert (await ask("publish", stream="s", fields={"a": "b"}))["op"] == "ok"
                assert (await ask("command", command=["KEYS", "*"]))["result"] == ["s"]
                assert (await ask("auth", token=one.text))["op"] == "ok"
                assert (await ask("auth", token=other.text))["problem"]["code"] == "forbidden"
        assert await reply_to(bench.engine, XLen(stream="acme.s")) == 2


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
        await http.post("/v1/streams/s/entries", json={"fields": {"a": "b"}})
        ids, issued = [], []
        for prefix, real in ((None, "acme."), ("eu.", "acme.eu."), ("acme.", "acme.acme.")):
            answer = await http.post("/v1/admin/tokens", json={"grants": [READ_S | {"prefix": prefix}]})
            assert (answer.status_code, answer.json()["grants"][0]["prefix"]) == (201, prefix)
            ids.append(answer.json()["id"])
            issued.append(answer.json()["token"])
            shown = (await root.get(f"/v1/admin/tokens/{ids[-1]}")).json()
            assert shown["grants"][0]["prefix"] == real
        too_long = await http.post("/v1/admin/tokens", json={"grants": [READ_S | {"prefix": "x" * 128}]})
        assert too_long.status_code == 422
        wider = {"grants": [{"actions": ["admin"], "streams": "*"}]}
        assert (await http.post("/v1/admin/tokens", json=wider)).status_code == 403
        await root.post("/v1/admin/tokens", json={"grants": [READ_S | {"prefix": "globex."}]})
        for number, names in enumerate((["s"], [], [])):
            async with client(app, issued[number]) as holder:
                assert [s["name"] for s in (await holder.get("/v1/streams")).json()["streams"]] == names
        listed = (await http.get("/v1/admin/tokens")).json()["tokens"]
        assert sorted(one["id"] for one in listed) == sorted(ids)
