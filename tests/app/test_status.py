"""What the gateway says of itself, and that the operator learns of a failed log."""

import errno
from collections.abc import Iterator
from importlib.metadata import version

import httpx
import pytest
import structlog

from app.main import App, create_app
from app.settings import Settings
from engine import Engine, Fsync, RewriteFailedError, SystemClock, entries, rows
from engine.commands.types import XAdd
from engine.storage.memory import MemoryStorage
from tests.app.conftest import app_on, calling
from tests.app.test_waits import WaitingClient
from tests.engine.asking import reply_to

Lines = list[dict[str, object]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What is logged."""
    with structlog.testing.capture_logs() as lines:
        yield lines  # type: ignore[misc]


async def test_the_status_says_how_the_gateway_is(http: httpx.AsyncClient, engine: Engine) -> None:
    """Figures that move with what is done."""
    before = (await http.get("/v1/status")).json()
    assert (before["status"], before["streams"], before["log"]["failure"]) == ("ready", 0, None)
    assert before["durability"] == {"fsync": "everysec", "answers": "os"}
    await http.post("/v1/streams/s/entries", json={"fields": {"a": "x" * 100}})
    after = (await http.get("/v1/status")).json()
    assert after["streams"] == 1
    assert after["log"]["bytes"] > before["log"]["bytes"] + 100
    assert after["memory"]["data_bytes"] > before["memory"]["data_bytes"]
    assert after["uptime_ms"] >= before["uptime_ms"]
    await engine.rewrite()
    assert (await http.get("/v1/status")).json()["rewrite"]["state"] == "done"
    assert (await http.get("/v1/status?a=1")).status_code == 400


async def test_the_status_names_all_that_an_operator_looks_for(http: httpx.AsyncClient, app: App) -> None:
    """Its version and limits, who is there and waits, how the last rewrite and backup went."""
    waiting = WaitingClient(app, "GET", "/v1/streams/s/entries", b"after=$&wait=5000")
    await waiting.waits(app)
    status = (await http.get("/v1/status")).json()
    assert status["rows"] == rows.way()
    assert status["version"] == version("weir-gateway")
    assert status["log"]["unsynced_bytes"] <= status["log"]["bytes"]
    assert status["memory"]["full"] is False
    assert status["connections"] == {"open": 0, "following": 1, "waiting_reads": 1, "failed": 0}
    assert (status["rewrite"]["state"], status["backup"]["state"]) == ("none", "none")
    await waiting.leave()


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
async def test_a_failed_disk_is_told_once_and_makes_it_not_ready(fsync: Fsync, lines: Lines) -> None:
    """One critical line with the reason and the remedy; 503 for probes; the status stays readable."""
    storage = MemoryStorage()
    async with Engine.open(storage, clock=SystemClock(), fsync=fsync) as engine:
        async with calling(app_on(engine)) as http:
            assert (await http.get("/healthz/ready")).status_code == 200
            storage.fail("append", errno.EIO)
            for outcome in ("unknown", "not done", "not done"):
                refused = await http.post("/v1/streams/s/entries", json={"fields": {"a": "1"}})
                assert (refused.status_code, refused.json()["code"]) == (503, "storage_failed")
                assert refused.json()["outcome"] == outcome
            ready = await http.get("/healthz/ready")
            status = (await http.get("/v1/status")).json()
            assert (ready.status_code, ready.json()) == (
                503,
                {"status": "storage_failed", "reason": status["log"]["failure"], "failing": ["log_failed"]},
            )
            assert (await http.get("/healthz/live")).status_code == 200
            assert (status["status"], status["log"]["answers_waiting"]) == ("storage_failed", 0)
        (line,) = [line for line in lines if line["log_level"] == "critical"]
        assert line["reason"] == status["log"]["failure"]
        assert "restart" in str(line["remedy"])


async def test_a_log_that_fails_while_it_is_read_is_told_when_the_gateway_opens(lines: Lines) -> None:
    """The first write may fail before any client can learn it."""
    storage = MemoryStorage()
    async with Engine.open(storage, clock=SystemClock(), fsync="always") as engine:
        storage.fail("sync", errno.EIO)
        with pytest.raises(Exception, match="read-only"):
            await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])]))
        create_app(Settings(log_requests="none"), SystemClock()).life.open(engine)
        assert [line["log_level"] for line in lines] == ["critical"]


async def test_a_rewrite_that_fails_by_a_bug_is_told_too(
    engine: Engine, app: App, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not tried again each second."""
    app.life.open(engine)

    def fail(_: object) -> bytes:
        raise KeyError("unheard of")

    await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])]))
    monkeypatch.setattr("engine.runtime.rewriting.encode", fail)
    with pytest.raises(RewriteFailedError):
        await engine.rewrite()
    (line,) = lines
    assert (line["log_level"], line["reason"]) == ("error", "'unheard of'")
    assert line["again_in_s"] == 60.0
    assert engine.figures().rewrites.failure == "'unheard of'"
