"""Names with slashes: on every API they are names as any others, and stand in paths as `%2F`."""

import json
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import redis

from app.names import check_text
from app.tenants.renaming import add_prefix
from app.tenants.tenant_names import OUTSIDE, TenantNames
from engine import EngineError
from engine.commands.types import XLen
from engine.name_rules import NAME_BYTES_MAX, is_name
from tests.app.sockets import talking
from tests.server import Server, free_port

NAME = "acme/orders/%2F eu"
PATH = f"/v1/streams/{quote(NAME, safe='')}"
GROUP = f"{PATH}/groups/{quote('eu/billing', safe='')}"


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "a/b/c",
        "a/...",
        "...",
        "a/..b/c..",
        "weir",
        "weird/a",
        "a/weir/b",
        "é/ü",
        "a/%2F",
        "x/" * 255 + "xx",
    ],
)
def test_what_is_between_slashes_may_be_anything_else(name: str) -> None:
    assert check_text(name) == name
    assert len(name.encode()) <= NAME_BYTES_MAX


@pytest.mark.parametrize(
    "name",
    [
        "/",
        "//",
        "/a",
        "a/",
        "a//b",
        "a/.",
        "./a",
        "a/./b",
        "../a",
        "a/..",
        "a/../b",
        "weir/",
        "weir/a",
        "a/\n",
    ],
)
def test_what_proxies_resolve_and_what_is_weirs_own_is_no_name(name: str) -> None:
    """Empty parts, dots, and the keys that Weir has over a backend."""
    assert not is_name(name.encode())
    with pytest.raises(EngineError, match="invalid_name"):
        check_text(name)


async def test_every_kind_of_name_may_have_slashes(http: httpx.AsyncClient) -> None:
    """A stream, a group, a consumer, one that gets dead letters; each is found again where Location says."""
    added = await http.post(f"{PATH}/entries", json={"id": "1-1", "fields": {"n": "1"}})
    assert added.headers["location"] == f"{PATH}/entries/1-1"
    assert (await http.get(added.headers["location"])).json()["fields"] == {"n": "1"}
    made = await http.post(
        f"{PATH}/groups",
        json={
            "name": "eu/billing",
            "start": "0",
            "dead_letter": {"stream": "acme/dead", "max_deliveries": 1},
        },
    )
    assert (made.status_code, made.headers["location"]) == (201, GROUP)
    read = await http.post(f"{GROUP}/consumers/{quote('host/1', safe='')}/read", json={})
    assert [one["id"] for one in read.json()["entries"]] == ["1-1"]
    held = await http.get(f"{GROUP}/pending", params={"consumer": "host/1"})
    assert [one["id"] for one in held.json()["pending"]] == ["1-1"]
    moved = await http.delete(f"{GROUP}/consumers/host%2f1", params={"pending": "transfer:host/2"})
    assert moved.json() == {"pending": 1}
    claimed = await http.post(f"{GROUP}/autoclaim", json={"consumer": "host/3", "min_idle_ms": 0})
    assert claimed.json()["entries"] == []
    letters = (await http.get("/v1/streams/acme%2Fdead/entries")).json()["entries"]
    assert letters[0]["fields"]["weir-source"] == NAME
    assert [one["name"] for one in (await http.get("/v1/streams")).json()["streams"]] == ["acme/dead", NAME]


async def test_a_slash_as_it_is_ends_a_name(http: httpx.AsyncClient) -> None:
    """Without the encoding it is another path, and mostly none."""
    await http.post("/v1/streams/a%2Fentries/entries", json={"fields": {"n": "1"}})
    assert (await http.get("/v1/streams/a%2Fentries")).json()["name"] == "a/entries"
    assert (await http.get("/v1/streams/a/entries")).json()["entries"] == []
    refused = (await http.get("/v1/streams/a/b/entries")).json()
    assert (refused["code"], "written %2F" in refused["detail"]) == ("no_route", True)
    assert (await http.get("/v1%2Fstreams")).json()["code"] == "no_route"


async def test_queries_and_bodies_have_the_name_as_it_is(http: httpx.AsyncClient) -> None:
    await http.post("/v1/publish", json={"streams": {"a/b": [{"id": "1-1", "fields": {"n": "1"}}]}})
    assert list((await http.post("/v1/read", json={"streams": {"a/b": "0"}})).json()["streams"]) == ["a/b"]
    assert (await http.get("/v1/streams", params={"prefix": "a/"})).json()["streams"][0]["name"] == "a/b"
    assert (await http.post("/v1/commands", json=["KEYS", "a/*"])).json() == {"result": ["a/b"]}
    assert (await http.post("/v1/commands", json=["SCAN", "0", "MATCH", "*"])).json()["result"][1] == ["a/b"]


def test_doors_that_have_no_paths_take_them(tmp_path: Path) -> None:
    """Redis clients, sockets and event streams see one stream."""
    resp = free_port()
    with Server(tmp_path / "data", "--resp-listen", f"127.0.0.1:{resp}") as server:
        with closing(redis.Redis(port=resp, protocol=3)) as client:
            client.xadd("a/b", {"n": "1"}, id="1-1")
            assert client.keys("a/*") == [b"a/b"]
            with pytest.raises(redis.ResponseError, match="invalid name"):
                client.xadd("weir/gateways", {"n": "1"})
        with talking(server) as socket:
            assert socket.ask("subscribe", sub="s", streams={"a/b": "0"})["op"] == "ok"
            assert [one["id"] for one in socket.entries(1)] == ["1-1"]
            socket.send("publish", ref=1, stream="a/b", id="2-1", fields={"n": "2"})
            assert [one["id"] for one in socket.entries(1)] == ["2-1"]
        for url in ("/v1/streams/a%2Fb/tail?after=1-1", "/v1/tail?stream=a/b&after=1-1"):
            with httpx.stream("GET", server.url + url, headers={"accept": "text/event-stream"}) as tail:
                lines = iter(tail.iter_lines())
                assert next(line for line in lines if line.startswith("data:") and '"fields"' in line)


def test_a_tenants_prefix_may_be_a_folder() -> None:
    """Its names begin with it; what others leave when it is taken away is no name."""
    acme = TenantNames("acme/")
    assert add_prefix(XLen(stream="orders/eu"), acme) == XLen(stream="acme/orders/eu")
    assert [*map(acme.strip, ("acme/orders", "acme/weir/a", "acme", "acne/orders"))] == [
        "orders",
        *[OUTSIDE] * 3,
    ]
    assert not TenantNames("acme").has("acme/orders")


@pytest.mark.parametrize(("prefix", "name"), [("w", "eir/gateways"), ("wei", "r/{9cz}/m/orders")])
def test_no_tenant_has_weirs_own_keys(prefix: str, name: str) -> None:
    """With a prefix of any length."""
    with pytest.raises(EngineError, match="invalid_name"):
        add_prefix(XLen(stream=name), TenantNames(prefix))


async def test_an_operation_that_is_not_plain_has_them_too(http: httpx.AsyncClient) -> None:
    """A patch waits in a task."""
    await http.put(PATH, json={})
    answer = await http.patch(PATH, json={"retention": {"max_len": 5}})
    assert (answer.status_code, json.loads(answer.content)["name"]) == (200, NAME)
