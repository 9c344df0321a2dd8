"""Rewrites and backups over HTTP: begun at once, done beside everything else."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from engine import Clock, Engine, SystemClock
from tests.server import Server, call
from tests.waiting import until

ENDED_S_MAX = 30.0
PATH = "/v1/admin/backup"


def ended(server: Server, path: str) -> Any:
    """The state of what was begun, once it is not under way any more."""

    def end() -> Any:
        state = call(server, "GET", path)[1]
        return state["state"] != "running" and state

    return until(end, "it does not end", ENDED_S_MAX)


def test_a_backup_is_begun_and_told_of(tmp_path: Path) -> None:
    """202 with its state, done a moment later; a server that is given the copy has the entries."""
    (tmp_path / "backups").mkdir()
    with Server(tmp_path / "data", "--set", f"backup_dir={tmp_path / 'backups'}") as server:
        assert call(server, "GET", PATH)[1]["state"] == "none"
        call(server, "POST", "/v1/streams/orders/entries", {"id": "1-0", "fields": {"n": "1"}})
        status, begun = call(server, "POST", PATH, {"name": "monday-1.0"})
        assert (status, begun["state"], begun["name"]) == (202, "running", "monday-1.0")
        done = ended(server, PATH)
        assert (done["state"], done["files"], done["error"]) == ("done", 1, None)
        assert begun["started_ms"] == done["started_ms"] <= done["ended_ms"]
        assert call(server, "POST", PATH, {"name": "monday-1.0"})[0] == 422
    with Server(tmp_path / "backups" / "monday-1.0") as server:
        _, found = call(server, "GET", "/v1/streams/orders/entries")
    assert [entry["id"] for entry in found["entries"]] == ["1-0"]


def test_a_backup_that_fails_says_why(tmp_path: Path) -> None:
    """Where the directory is missing, for one; the gateway goes on."""
    with Server(tmp_path / "data", "--set", f"backup_dir={tmp_path / 'nowhere'}") as server:
        assert call(server, "POST", PATH, {"name": "a"})[0] == 202
        failed = ended(server, PATH)
        assert failed["state"] == "failed"
        assert "nowhere is no directory" in failed["error"]
        assert call(server, "POST", PATH, {"name": "b"})[0] == 202


def test_a_rewrite_is_begun_and_told_of(tmp_path: Path) -> None:
    """202, done a moment later; what was trimmed is in no file, and a restart finds the same."""
    path = "/v1/admin/rewrite"
    with Server(tmp_path / "data") as server:
        assert call(server, "GET", path)[1]["state"] == "none"
        orders = "/v1/streams/orders"
        entries = [{"id": f"{n}-0", "fields": {"n": "x" * 99}} for n in range(1, 100)]
        assert call(server, "POST", f"{orders}/entries", {"entries": entries})[0] == 201
        assert call(server, "POST", f"{orders}/trim", {"maxlen": 1})[1]["deleted"] == 98
        status, begun = call(server, "POST", path, {})
        assert (status, begun["state"]) == (202, "running")
        done = ended(server, path)
        assert (done["state"], done["error"]) == ("done", None)
        left = b"".join(file.read_bytes() for file in (tmp_path / "data").glob("*.weir"))
        assert left.count(b"x" * 99) == 1
        server.restart()
        assert [one["id"] for one in call(server, "GET", f"{orders}/entries")[1]["entries"]] == ["99-0"]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../a", "a/b", "/etc", ".hidden", "-rf", "a b", "a\n", "ä", "a" * 129, 7, None, ["a"]],
)
async def test_names_lead_nowhere_else(name: object) -> None:
    """Plain names of directories alone."""
    async with httpx.AsyncClient(transport=_gateway("/nowhere"), base_url="http://127.0.0.1:8080") as http:
        answer = await http.post(PATH, json={"name": name})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize("path", ["/v1/admin/rewrite", PATH])
async def test_nothing_unknown_is_passed_over(path: str) -> None:
    """Parameters are 400, members 422."""
    async with httpx.AsyncClient(transport=_gateway("/nowhere"), base_url="http://127.0.0.1:8080") as http:
        assert (await http.get(f"{path}?force=true")).json()["code"] == "unknown_parameter"
        assert (await http.post(f"{path}?force=true")).json()["code"] == "unknown_parameter"
        assert (await http.post(path, json={"name": "a", "force": True})).json()["code"] == "invalid"


async def test_without_a_directory_there_are_none() -> None:
    """409, with the setting that is needed."""
    async with httpx.AsyncClient(transport=_gateway(""), base_url="http://127.0.0.1:8080") as http:
        answer = await http.post(PATH, json={"name": "a"})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_configured")
    assert "backup_dir" in answer.json()["detail"]


class _HeldInThreads(SystemClock):
    """It gives a thread other than the loop's the time at which it is released."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self._own = threading.current_thread()

    def wall_ms(self) -> int:
        if threading.current_thread() is not self._own:
            assert self.gate.wait(ENDED_S_MAX), "the gate opens before the deadline"
        return super().wall_ms()


async def test_there_is_one_backup_at_a_time() -> None:
    """409 with the name of the one that is under way."""
    clock = _HeldInThreads()
    transport = _gateway("/nowhere", clock)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
        first = await http.post(PATH, json={"name": "a"})
        second = await http.post(PATH, json={"name": "b"})
        meanwhile = (await http.get(PATH)).json()
        clock.gate.set()
    for thread in threading.enumerate():
        if thread.name == "weir-backup":
            await asyncio.to_thread(thread.join, ENDED_S_MAX)
    assert (second.status_code, second.json()["code"]) == (409, "busy")
    assert "backup a is under way" in second.json()["detail"]
    assert meanwhile == first.json()
    assert first.status_code == 202


def _gateway(backup_dir: str, clock: Clock | None = None) -> httpx.ASGITransport:
    settings = Settings(log_requests="none", data=Path("/nowhere/data"), backup_dir=backup_dir)
    app = create_app(settings, clock or SystemClock())
    app.life.open(Engine.open(None, clock=SystemClock()))
    return httpx.ASGITransport(app)
