"""Quotas of grants at every API: what is refused, what goes on, whose quota it is."""

import json
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.auth import Grant, token_file, tokens
from engine import Engine
from tests.app.auth.callers import ROOT, app_with, client
from tests.engine.running import engine_of
from tests.server import Server

ENTRY: Final = {"fields": {"a": "1"}}
XADD: Final = ["XADD", "a.2", "*", "a", "1"]


def held(streams: str = "a.*", **quota: int) -> tokens.CreatedToken:
    """A token that may do everything with these streams."""
    actions = ["read", "write", "consume", "manage"]
    return tokens.create((Grant.from_value({"actions": actions, "streams": streams, **quota}),))


engine = engine_of()


def check_refused(answer: httpx.Response, **members: Any) -> None:
    problem = answer.json()
    assert answer.status_code == 507, problem
    assert answer.headers["retry-after"] == "30"
    assert problem["code"] == "quota_exceeded"
    assert problem["retryable"] is True
    assert {name: problem[name] for name in members} == members


MAKING: Final[dict[str, tuple[str, str, Any]]] = {
    "an entry": ("POST", "/v1/streams/a.2/entries", ENTRY),
    "a batch": ("POST", "/v1/streams/a.2/entries", {"entries": [ENTRY]}),
    "many streams": ("POST", "/v1/publish", {"streams": {"a.2": [ENTRY]}}),
    "a stream": ("PUT", "/v1/streams/a.2", {}),
    "a group": ("PUT", "/v1/streams/a.2/groups/g", {}),
    "a command": ("POST", "/v1/commands", XADD),
    "a transaction": ("POST", "/v1/commands/multi-exec", [XADD]),
}


@pytest.mark.parametrize("what", MAKING)
async def test_one_stream_too_many_is_507(what: str, engine: Engine, tmp_path: Path) -> None:
    """Nothing was changed then; what is there is written to, read and deleted."""
    made, (method, path, body) = held(streams_max=1), MAKING[what]
    app = await app_with(engine, tmp_path, made)
    async with client(app, made.text) as http, client(app, ROOT) as root:
        first = await http.post("/v1/streams/a.1/entries", json=ENTRY)
        assert first.status_code == 201
        refused = await http.request(method, path, json=body)
        check_refused(refused, limit="streams_max", used=1, quota="a.*")
        assert engine.figures().streams == 1
        assert (await http.post("/v1/streams/a.1/entries", json=ENTRY)).status_code == 201
        assert (await http.get("/v1/streams/a.1/entries")).status_code == 200
        assert (await root.request(method, path, json=body)).is_success, "root has no quota"
        assert (await http.delete("/v1/streams/a.2")).is_success
        assert (await http.delete("/v1/streams/a.1")).is_success
        assert (await http.request(method, path, json=body)).is_success


async def test_a_pipeline_is_refused_command_by_command(engine: Engine, tmp_path: Path) -> None:
    made = held(streams_max=1)
    async with client(await app_with(engine, tmp_path, made), made.text) as http:
        rows = [["XADD", "a.1", "*", "a", "1"], XADD, ["XLEN", "a.1"]]
        added, refused, length = (await http.post("/v1/commands/pipeline", json=rows)).json()
    assert "result" in added
    assert refused["error"].startswith("OOM the quota of 'a.*' is used up: 1 streams")
    assert length == {"result": 1}


async def test_bytes_that_are_used_up_are_507_until_there_is_room(engine: Engine, tmp_path: Path) -> None:
    """Another token with the same pattern sees the same streams."""
    made, larger = held(bytes_max=10_000), held(bytes_max=1_000_000)
    app = await app_with(engine, tmp_path, made, larger)
    async with client(app, made.text) as http, client(app, larger.text) as other:
        entry = {"fields": {"a": "x" * 5_000}}
        for path in ("a.1", "a.2"):
            assert (await other.post(f"/v1/streams/{path}/entries", json=entry)).status_code == 201
        refused = await http.post("/v1/streams/a.1/entries", json=ENTRY)
        check_refused(refused, limit="bytes_max", used=engine.memory.streams.bytes)
        assert (await other.post("/v1/streams/a.1/entries", json=ENTRY)).status_code == 201
        assert (await http.delete("/v1/streams/a.2")).is_success
        assert (await http.post("/v1/streams/a.1/entries", json=ENTRY)).status_code == 201


async def test_each_quota_of_a_token_holds_for_all_of_its_grants(engine: Engine, tmp_path: Path) -> None:
    grants = ("write:*", '{"actions": ["read"], "streams": "logs.*", "streams_max": 1}')
    made = tokens.create(tuple(map(Grant.parse, grants)))
    async with client(await app_with(engine, tmp_path, made), made.text) as http:
        assert (await http.post("/v1/streams/logs.1/entries", json=ENTRY)).status_code == 201
        check_refused(await http.post("/v1/streams/logs.2/entries", json=ENTRY), quota="logs.*")
        assert (await http.post("/v1/streams/other/entries", json=ENTRY)).status_code == 201


def test_kept_plans_of_a_server(tmp_path: Path) -> None:
    """Also after a restart of the gateway."""
    made = held(streams_max=1)
    path = tmp_path / "tokens.toml"
    path.write_text(token_file.write(made.token))
    headers = {"authorization": f"Bearer {made.text}"}
    options = ("--set", f"tokens_file={path}")
    for stream, status in (("a.1", 201), ("a.2", 507), ("a.1", 201)):
        with (
            Server(tmp_path / "data", *options) as server,
            httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers) as http,
        ):
            # Twice: the second time the token is known, and the plan of the request is kept.
            for _ in range(2):
                answer = http.post(f"/v1/streams/{stream}/entries", json=ENTRY)
                assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("quota", "is_good"),
    [
        ({"streams_max": 0}, True),
        ({"streams_max": 1_000_000_000}, True),
        ({"streams_max": 1_000_000_001}, False),
        ({"streams_max": -1}, False),
        ({"bytes_max": 1 << 50}, True),
        ({"bytes_max": (1 << 50) + 1}, False),
    ],
)
def test_quotas_have_bounds(quota: dict[str, Any], *, is_good: bool) -> None:
    try:
        grant = Grant.parse(json.dumps({"actions": ["write"], "streams": "a.*", **quota}))
    except ValueError:
        assert not is_good
        return
    assert is_good
    kept = {name: value for name, value in quota.items() if value}
    assert grant.describe() == ({"actions": ["write"], "streams": "a.*", **kept} if kept else "write:a.*")
    assert (grant.quota() is None) is (not kept)
