"""That servers cannot be used, or take no writes, is noticed without any request, shown, and logged once."""

from pathlib import Path
from typing import Any

import pytest

from engine import EngineError
from engine.cluster.health import OUTAGE_S_MAX, Trouble
from engine.commands.types import XAdd, XGroupCreate, XInfoGroups, XLen
from tests.cluster.engines import BODY, AdjustedClock, opened
from tests.cluster.servers import Backend, BackendServer, full
from tests.engine.asking import reply_of, reply_to
from tests.server import Server, call
from tests.waiting import until, until_async


@pytest.mark.parametrize(
    ("word", "option", "refusing", "taking"),
    [("NOREPLICAS", "min-replicas-to-write", 1, 0), ("NOPERM", "", "-eval", "+eval")],
)
async def test_servers_that_take_no_writes_cannot_be_used(
    own_server: BackendServer, word: str, option: str, refusing: int | str, taking: int | str
) -> None:
    """Reads go on."""
    change = ("CONFIG", "SET", option) if option else ("ACL", "SETUSER", "default")
    clock = AdjustedClock()
    async with opened(own_server, clock=clock) as engine:
        told: list[tuple[Trouble, str | None]] = []
        engine.health.on_change = lambda *change: told.append(change)
        own_server.call(*change, refusing)
        clock.ahead_s = OUTAGE_S_MAX
        await until_async(lambda: engine.failure is not None)
        clock.ahead_s *= 2
        await until_async(lambda: engine.figures().outage is not None)
        assert word in (engine.figures().outage or "")
        assert await reply_to(engine, XLen(stream="s")) == 0
        await until_async(lambda: len(told) == 1)
        own_server.call(*change, taking)
        await until_async(lambda: engine.figures().outage is None)
        await until_async(lambda: len(told) == 2)
        assert told == [(Trouble.OUTAGE, told[0][1]), (Trouble.OUTAGE, None)]
        await reply_to(engine, XAdd(stream="s", bodies=[BODY]))


async def test_servers_that_take_no_writes_yet_are_read(own_server: BackendServer) -> None:
    """A gateway that starts over them serves."""
    own_server.call("CONFIG", "SET", "min-replicas-to-write", 1)
    async with opened(own_server) as engine:
        assert await reply_to(engine, XLen(stream="s")) == 0
        with pytest.raises(EngineError, match="NOREPLICAS"):
            await reply_to(engine, XAdd(stream="s", bodies=[BODY]))


async def test_that_writes_cannot_be_confirmed_is_told(pair: tuple[BackendServer, BackendServer]) -> None:
    """While a gateway runs, too."""
    primary, replica = pair
    async with opened(primary, durability="replicated:1") as engine:
        told: list[tuple[Trouble, bool]] = []
        engine.health.on_change = lambda trouble, reason: told.append((trouble, reason is None))
        replica.call("REPLICAOF", "NO", "ONE")
        await until_async(lambda: told == [(Trouble.UNKEPT_PROMISE, False)])
        replica.call("REPLICAOF", "127.0.0.1", primary.port)
        await until_async(lambda: told == [(Trouble.UNKEPT_PROMISE, False), (Trouble.UNKEPT_PROMISE, True)])


async def test_a_full_server_is_told(backend: Backend) -> None:
    """It is no outage; reads go on, of several commands too."""
    clock = AdjustedClock()
    async with opened(backend, clock=clock) as engine:
        told: list[tuple[Trouble, bool]] = []
        engine.health.on_change = lambda trouble, reason: told.append((trouble, reason is None))
        assert engine.health.full is None
        await reply_to(engine, XAdd(stream="s", bodies=[BODY]))
        await reply_to(engine, XGroupCreate(stream="s", group="g", start=0))
        with full(backend):
            groups = await reply_of(engine, list, XInfoGroups(stream="s"))
            assert len(groups) == 1
            await until_async(lambda: engine.health.full is not None)
            clock.ahead_s = 2 * OUTAGE_S_MAX
            assert engine.figures().outage is None
        await until_async(lambda: engine.health.full is None)
        await until_async(lambda: told == [(Trouble.FULL, False), (Trouble.FULL, True)])


def test_a_gateway_logs_an_outage_and_its_end_once(own_server: BackendServer, tmp_path: Path) -> None:
    """And that a server is full, which is among what fails."""
    words = ["--backend", own_server.url, "--set", "log_requests=none", "--set", "backend_timeout_ms=500"]
    with Server(tmp_path / "data", *words) as gateway:
        own_server.pause()
        until(lambda: health(gateway)["status"] == "backend_unavailable")
        own_server.resume()
        until(lambda: health(gateway)["status"] == "ready")
        own_server.call("CONFIG", "SET", "maxmemory", 1)
        until(lambda: health(gateway).get("failing") == ["memory_full"])
        own_server.call("CONFIG", "SET", "maxmemory", 0)
        until(lambda: "failing" not in health(gateway))
        gateway.stop()
        lines = [line for line in gateway.log_lines() if line["level"] in {"critical", "warning"}]
    assert [line["level"] for line in lines] == ["critical", "warning"] * 2
    assert str(own_server.port) in lines[0]["reason"]
    assert [word in line["event"] for word, line in zip(("cannot be used", "again"), lines, strict=False)]
    assert "maxmemory" in lines[2]["remedy"]


def test_a_gateway_logs_in_one_line_why_it_cannot_maintain_streams(
    own_server: BackendServer, tmp_path: Path
) -> None:
    """Without a trace, and once, however often it tries."""
    password = tmp_path / "password"
    password.write_text("secret")
    password.chmod(0o600)
    rights = ("~s", "~weir/gateways", "~weir/{*", "&*", "+@all")
    own_server.call("ACL", "SETUSER", "weir", "on", ">secret", *rights)
    url = f"redis://weir@127.0.0.1:{own_server.port}/0"
    words = ["--backend", url, "--set", f"backend_password_file={password}", "--set", "log_requests=none"]
    with Server(tmp_path / "data", *words) as gateway:
        until(lambda: "NOPERM" in str(own_server.call("INFO", "errorstats")) and warnings(gateway))
        refused = own_server.call("INFO", "errorstats")
        until(lambda: own_server.call("INFO", "errorstats") != refused)
        gateway.stop()
        (line,) = warnings(gateway)
    assert line["event"].startswith("streams are not maintained")
    assert "let the user that `backend` names use this key" in line["reason"]
    assert "exception" not in line


def warnings(gateway: Server) -> list[dict[str, Any]]:
    return [line for line in gateway.log_lines() if line["level"] in {"warning", "error", "critical"}]


def health(gateway: Server) -> dict[str, Any]:
    return dict(call(gateway, "GET", "/healthz/ready")[1])
