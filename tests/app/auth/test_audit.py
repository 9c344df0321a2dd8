"""The audit log: who did what, and how it ended, over every API; never what stands in a body."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.errors import RefusalError
from app.http.plan import HeadPlan
from app.http.requests import Request
from app.http.responses import Exchange
from app.main import App, create_app
from app.redis.bodies import run_unblocked
from app.settings import Settings
from engine import Engine, EngineError, SystemClock
from tests.app.auth.callers import ROOT, client
from tests.app.policies import principal_with


async def audited(engine: Engine, path: Path) -> App:
    settings = Settings(log_requests="none", root_token=SecretStr(ROOT), audit_file=str(path))
    app = await asyncio.to_thread(create_app, settings, SystemClock())
    app.life.open(engine)
    return app


async def lines(app: App, path: Path) -> list[dict[str, Any]]:
    await asyncio.to_thread(app.gateway.access.audit.flush)
    text = await asyncio.to_thread(path.read_text)
    return [json.loads(line) for line in text.splitlines()]


async def test_an_action_has_one_line_with_its_outcome(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    app = await audited(engine, path)
    async with client(app, ROOT) as http:
        ids = [
            (await http.post("/v1/streams/s/groups", json={"name": "billing"})).headers["weir-request-id"],
            (await http.post("/v1/streams/s/groups", json={"name": "billing"})).headers["weir-request-id"],
        ]
        token = (await http.post("/v1/admin/tokens", json={"grants": [{"actions": ["read"]}]})).json()
        await http.delete(f"/v1/admin/tokens/{token['id']}")
        await http.post("/v1/admin/revocations", json={"jti": "j1"})
        # No caller is logged for reads or publishes.
        await http.get("/v1/status")
        await http.post("/v1/streams/s/entries", json={"fields": {"secret": "secret"}})
    async with client(app, token["token"]) as http:
        await http.delete("/v1/streams/s")
    found = await lines(app, path)
    assert [(one["operation"], one["action"], one["outcome"], one["status"]) for one in found] == [
        ("createGroup", "manage", "done", 201),
        ("createGroup", "manage", "group_exists", 409),
        ("createToken", "issue", "done", 201),
        ("deleteToken", "issue", "done", 204),
        ("createRevocation", "admin", "done", 201),
        ("deleteStream", "manage", "unauthenticated", 401),
    ]
    assert [one["request_id"] for one in found[:2]] == ids
    assert (found[0]["caller"], found[0]["stream"]) == ("token:root00000000", "s")
    assert found[0]["made"] == "/v1/streams/s/groups/billing"
    assert (found[3]["token"], found[4]["revoked"]) == (token["id"], "jti:j1")
    assert found[5]["caller"] == "ip:127.0.0.1"
    text = json.dumps(found)
    assert "secret" not in text
    assert token["token"].split("_")[2] not in text
    assert ROOT not in text


async def test_schedules_that_recur_have_lines_and_others_have_none(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    app = await audited(engine, path)
    target = "/v1/streams/s/schedules"
    entry = {"entry": {"fields": {"secret": "secret"}}}
    async with client(app, ROOT) as http:
        await http.put(f"{target}/tick", json={**entry, "every_ms": 60_000})
        await http.put(f"{target}/once", json={**entry, "in_ms": 60_000})
        for name in ("tick", "once"):
            await http.post(f"{target}/{name}/fire")
        await http.delete(f"{target}/tick")
    found = await lines(app, path)
    assert [(one["operation"], one["schedule"], one["status"]) for one in found] == [
        ("putSchedule", "tick", 201),
        ("fireSchedule", "tick", 201),
        ("deleteSchedule", "tick", 204),
    ]
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize("path", ["", "/pipeline", "/multi-exec"])
async def test_commands_that_manage_have_lines_too(engine: Engine, tmp_path: Path, path: str) -> None:
    file = tmp_path / "audit.jsonl"
    app = await audited(engine, file)
    commands: Sequence[list[str]] = [
        ["XGROUP", "CREATE", "s", "h", "0"],
        ["XADD", "s", "*", "a", "secret"],
        ["XINFO", "STREAM", "s"],
        ["DEL", "s", "t"],
    ]
    async with client(app, ROOT) as http:
        for body in commands if not path else [commands]:
            assert (await http.post(f"/v1/commands{path}", json=body)).status_code == 200
    found = await lines(app, file)
    assert [(one["operation"], one["streams"]) for one in found] == [
        ("xgroup|create", ["s"]),
        ("del", ["s", "t"]),
    ]
    assert found[0]["group"] == "h"


async def test_each_that_is_invalid_has_its_line(engine: Engine, tmp_path: Path) -> None:
    """Also one that is like the one before."""
    file = tmp_path / "audit.jsonl"
    app = await audited(engine, file)
    async with client(app, ROOT) as http:
        await http.post("/v1/commands/pipeline", json=[["FLUSHALL", "x"]] * 3)
    assert [one["outcome"] for one in await lines(app, file)] == ["invalid"] * 3


async def test_the_file_is_opened_again_when_it_was_moved_away(engine: Engine, tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    app = await audited(engine, path)
    async with client(app, ROOT) as http:
        await http.put("/v1/streams/a")
        app.gateway.access.audit.reopen()
        await http.put("/v1/streams/b")
        # Behind the lines that are under way.
        await asyncio.to_thread(lambda: app.gateway.access.audit._writer.submit(path.rename, moved).result())  # type: ignore[union-attr]  # noqa: SLF001
        await http.put("/v1/streams/c")
        app.gateway.access.audit.reopen()
        await http.put("/v1/streams/d")
    assert [one["stream"] for one in await lines(app, path)] == ["d"]
    text = await asyncio.to_thread(moved.read_text)
    assert [json.loads(line)["stream"] for line in text.splitlines()] == ["a", "b", "c"]


async def test_a_file_that_cannot_be_written_stops_nothing_and_is_logged_once(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "audit.jsonl"
    app = await audited(engine, path)

    def is_failing() -> bool:
        """Behind the lines that are under way."""
        app.gateway.access.audit._writer.submit(int).result()  # type: ignore[union-attr]  # noqa: SLF001
        return app.gateway.operator.health.failures()["audit_failed"]

    assert not is_failing()
    async with client(app, ROOT) as http:
        for name in ("a", "b"):
            assert (await http.put(f"/v1/streams/{name}")).status_code == 201
            assert await asyncio.to_thread(is_failing)
        await asyncio.to_thread(path.parent.mkdir)
        await http.put("/v1/streams/c")
        assert not await asyncio.to_thread(is_failing)
    await asyncio.to_thread(app.gateway.access.audit.flush)
    assert "".join(capsys.readouterr()).count("the audit log cannot be written") == 1


async def test_ends_have_lines_however_they_are_asked_for(engine: Engine, tmp_path: Path) -> None:
    """By a publication and by Durable Streams too, done or refused."""
    path, json_type = tmp_path / "audit.jsonl", {"content-type": "application/json"}
    app = await audited(engine, path)
    async with client(app, ROOT) as http:
        may = [{"actions": ["read", "write"]}]
        writer = (await http.post("/v1/admin/tokens", json={"grants": may})).json()["token"]
        for name in ("a", "b"):
            await http.put(f"/v1/stream/{name}", headers=json_type)
    closing = {**json_type, "stream-closed": "true"}
    for token in (writer, ROOT):
        async with client(app, token) as http:
            await http.post("/v1/stream/a", headers=closing, content="1")
            await http.put("/v1/stream/c", headers=closing)
            await http.post("/v1/streams/d/entries?close=true", json={"fields": {"n": "1"}})
            await http.post("/v1/stream/b", headers=json_type, content="1")
            await http.delete("/v1/stream/c")
    found = await lines(app, path)
    rows = [(one["operation"], one["action"], one["stream"], one["outcome"]) for one in found[1:]]
    wanted = [
        ("appendDurable", "close", "a"),
        ("createDurable", "close", "c"),
        ("addEntries", "close", "d"),
        ("deleteDurable", "manage", "c"),
    ]
    assert rows == [(*row, outcome) for outcome in ("forbidden", "done") for row in wanted]


async def test_what_recurs_has_a_line_however_it_is_touched(engine: Engine, tmp_path: Path) -> None:
    """Cancelled or replaced by a publication too, done or refused; what does not recur has none."""
    path, stream = tmp_path / "audit.jsonl", "/v1/streams/s"
    app = await audited(engine, path)
    entry, tick = {"fields": {"n": "1"}}, f"{stream}/schedules/tick"
    async with client(app, ROOT) as http:
        writing = [{"actions": ["write"]}]
        writer = (await http.post("/v1/admin/tokens", json={"grants": writing})).json()["token"]
        await http.put(tick, json={"entry": entry, "every_ms": 60_000})
    statuses = []
    for token in (writer, ROOT):
        async with client(app, token) as http:
            answers = [
                await http.post(f"{tick}/fire"),
                await http.post(f"{stream}/entries?delay_ms=60000&schedule=tick", json=entry),
                await http.post(f"{stream}/entries?delay_ms=60000&schedule=once", json=entry),
                await http.post(f"{stream}/entries?cancel_schedule=tick", json=entry),
                await http.delete(f"{stream}/schedules/once"),
            ]
            statuses += [answer.status_code for answer in answers]
    assert statuses == [403, 403, 202, 403, 204, 201, 202, 202, 201, 204]
    async with client(app, ROOT) as http:
        for way in (http.delete(tick), http.post(f"{stream}/entries?cancel_schedule=tick", json=entry)):
            await http.put(tick, json={"entry": entry, "every_ms": 60_000})
            assert (await way).status_code in (201, 204)
    found = (await lines(app, path))[2:]
    assert [(one["operation"], one["outcome"]) for one in found] == [
        ("fireSchedule", "forbidden"),
        ("addEntries", "forbidden"),
        ("addEntries", "forbidden"),
        ("fireSchedule", "done"),
        ("addEntries", "done"),
        ("putSchedule", "done"),
        ("deleteSchedule", "done"),
        ("putSchedule", "done"),
        ("addEntries", "done"),
    ]
    assert {one["action"] for one in found} == {"manage"}
    assert [one["schedules"] for one in found if one["operation"] == "addEntries"] == [["tick"]] * 4


async def test_commands_over_a_socket_have_lines_each_with_its_own_outcome(
    engine: Engine, tmp_path: Path
) -> None:
    path, token = tmp_path / "audit.jsonl", f"Bearer {ROOT}".encode()
    app = await audited(engine, path)
    scope = {"headers": [(b"authorization", token)], "query_string": b""}
    request = Request(app.gateway, scope, hanging, Exchange(HeadPlan("GET", b"/", b"", {}), "r-1"))
    await request.authenticate()
    await run_unblocked(request, b'["XGROUP","CREATE","s","h","0"]', 1_000)
    with pytest.raises(EngineError, match="already exists"):
        await run_unblocked(request, b'["XGROUP","CREATE","s","h","0"]', 1_000)
    await run_unblocked(request, b'["XLEN","s"]', 1_000)
    request.principal = principal_with("read:s")
    with pytest.raises(RefusalError, match="do not allow"):
        await run_unblocked(request, b'["DEL","s"]', 1_000)
    found = [(one["caller"], one["operation"], one["outcome"]) for one in await lines(app, path)]
    assert found == [
        ("token:root00000000", "xgroup|create", "done"),
        ("token:root00000000", "xgroup|create", "group_exists"),
        ("tester", "del", "forbidden"),
    ]


async def hanging() -> dict[str, Any]:
    """What a client sends that says nothing."""
    raise AssertionError("a socket's commands have no body")
