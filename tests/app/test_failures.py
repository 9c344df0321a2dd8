"""What an operator has to act on is seen in three places: the log, /healthz/ready and a metric."""

import ast
import asyncio
import errno
import json
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

import app
from app.main import App
from app.policies import policy_of
from app.server import reload_tokens
from app.settings import Settings
from engine import Caps, Engine, RewriteFailedError
from engine.runtime.resident import resident_bytes
from engine.storage.memory import MemoryStorage
from tests.app.conftest import BASE, app_on
from tests.app.metrics import scrape, value
from tests.engine.clocks import HandClock
from tests.server import Server
from tests.waiting import until

ENTRIES: Final = "/v1/streams/s/entries"
# Half of it is left when it is compressed.
LARGE: Final = {"fields": {"a": secrets.token_hex(1 << 19)}}
# More than any of these limits has room for.
MANY: Final = 1_000
TOKEN: Final = "root-token-of-at-least-24-characters"
PLENTY_BYTES: Final = 1 << 30
# What data may take before memory is full.
ROOM_BYTES: Final = 64 << 20


class Watched:
    """A gateway, its disk, and what it has logged."""

    clock: HandClock

    def __init__(self, app: App, engine: Engine, storage: MemoryStorage, http: httpx.AsyncClient) -> None:
        self.app = app
        self.engine = engine
        self.storage = storage
        self.http = http
        self.lines: list[Any] = []

    async def publish(self) -> int:
        return (await self.http.post(ENTRIES, json=LARGE)).status_code

    async def publish_until_refused(self) -> None:
        for _ in range(MANY):
            if await self.publish() != 201:
                return
        raise AssertionError("nothing was refused")

    async def fill_disk(self) -> None:
        """Take away what is free, and use what is reserved."""
        free_bytes = self.storage.free_bytes()
        assert free_bytes is not None
        assert self.storage.space_bytes is not None
        self.storage.space_bytes -= free_bytes
        await self.publish_until_refused()

    async def check(self, *failing: str, status: int = 200) -> None:
        """Exactly these fail, in the eyes of a probe and of Prometheus; each has a line with a remedy."""
        ready = await self.http.get("/healthz/ready")
        assert (ready.status_code, ready.json().get("failing", [])) == (status, list(failing))
        found = await scrape(self.http)
        shown = {
            dict(labels)["what"] for (name, labels), one in found.items() if name == "weir_failing" and one
        }
        assert shown == set(failing)
        assert value(found, "weir_log_failed") == ("log_failed" in failing)
        serious = [line for line in self.lines if line["log_level"] in ("critical", "error")]
        assert len(serious) == len(failing), serious
        assert all(line["remedy"] for line in serious)
        self.lines.clear()


@pytest.fixture
async def watched(tmp_path: Path) -> Any:
    clock, storage = HandClock(), MemoryStorage(space_bytes=PLENTY_BYTES)
    tokens = tmp_path / "tokens.toml"
    await asyncio.to_thread(tokens.write_text, "")
    settings = Settings(
        log_requests="none",
        body_bytes_max=2 << 20,
        entry_bytes_max=2 << 20,
        root_token=SecretStr(TOKEN),
        tokens_file=str(tokens),
        data=tmp_path / "none",
        backup_dir=str(tmp_path),
    )
    policy = await asyncio.to_thread(policy_of, settings, clock)
    limit = (resident_bytes() or 0) + ROOM_BYTES
    async with Engine.open(storage, clock=clock, fsync="always", caps=Caps(memory_bytes_max=limit)) as engine:
        application = app_on(engine, settings, clock, policy=policy)
        headers = {"authorization": f"Bearer {TOKEN}"}
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers) as http:
            watched = Watched(application, engine, storage, http)
            watched.clock = clock
            with capture_logs() as watched.lines:
                yield watched
        storage.space_bytes = PLENTY_BYTES


async def test_nothing_fails_at_first(watched: Watched) -> None:
    """Ready, without a word."""
    await watched.check()


async def test_a_failed_log(watched: Watched) -> None:
    """Not ready until a restart."""
    watched.storage.fail("sync", errno.EIO)
    assert await watched.publish() == 503
    await watched.check("log_failed", status=503)


def test_a_data_directory_that_goes_away_below_a_gateway(tmp_path: Path) -> None:
    """What was acknowledged would be lost with the process: it ends within a second, and health says why."""
    entry = {"fields": {"a": "1"}}
    with (
        Server(tmp_path / "data", "--fsync", "always") as server,
        httpx.Client(base_url=server.url) as http,
    ):
        assert http.post(ENTRIES, json=entry).status_code == 201
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        until(lambda: http.get("/healthz/ready").status_code == 503)
        refused = http.post(ENTRIES, json=entry)
        assert (refused.status_code, refused.json()["code"]) == (503, "storage_failed")
        health = http.get("/healthz/ready").json()
        assert (health["status"], health["failing"]) == ("storage_failed", ["log_failed"])
        assert "is not in the data directory any more" in health["reason"]
        assert http.get(ENTRIES).json()["entries"][0]["fields"] == entry["fields"]
    said = [line for line in (tmp_path / "data.log").read_text().splitlines() if '"critical"' in line]
    (line,) = map(json.loads, said)
    assert line["reason"] == health["reason"]


async def test_a_full_disk(watched: Watched) -> None:
    """Ready: reads, and what makes room, go on."""
    await watched.fill_disk()
    await watched.check("disk_full")
    watched.storage.space_bytes = PLENTY_BYTES
    assert await watched.publish() == 201
    await watched.check()


async def test_the_log_says_that_the_disk_is_full_and_that_it_has_room_again(watched: Watched) -> None:
    """At `critical` with reason and remedy, at `warning` with the first write that is taken; once each."""
    await watched.fill_disk()
    assert [await watched.publish() for _ in range(3)] == [507, 507, 507]
    assert (await watched.http.get(f"{ENTRIES}?count=1")).status_code == 200
    watched.storage.space_bytes = PLENTY_BYTES
    assert [await watched.publish() for _ in range(3)] == [201, 201, 201]
    said = [(line["log_level"], line["event"].partition(":")[0]) for line in watched.lines]
    assert said == [("critical", "the disk is full"), ("warning", "there is room on the disk again")]
    assert "No space left on device" in watched.lines[0]["reason"]
    assert "make room" in watched.lines[0]["remedy"]


async def test_a_disk_that_is_full_again_and_again_gets_a_line_a_minute(watched: Watched) -> None:
    """And none of room that was not missed in the log; one millisecond less is within the minute."""
    for passed_ms in (0, 59_999, 1):
        watched.clock.pass_ms(passed_ms)
        await watched.fill_disk()
        watched.storage.space_bytes = PLENTY_BYTES
        assert await watched.publish() == 201
    levels = [line["log_level"] for line in watched.lines]
    assert levels == ["critical", "warning", "critical", "warning"]


async def test_a_slow_disk(watched: Watched) -> None:
    """Ready, with a warning a minute, until it is fast again."""
    note = watched.engine.events.disk_slow
    for seconds, passed_ms in ((2.5, 0), (0.7, 59_000), (3.0, 1_000)):
        watched.clock.pass_ms(passed_ms)
        note(seconds)
        assert (await watched.http.get("/healthz/ready")).json()["failing"] == ["disk_slow"]
    warnings = [line for line in watched.lines if line["log_level"] == "warning"]
    assert [line["sync_s"] for line in warnings] == [2.5, 3.0]
    assert all(line["remedy"] for line in warnings)
    note(None)
    await watched.check()


async def test_full_memory(watched: Watched) -> None:
    """Ready: reads, acks and trims go on."""
    await watched.publish_until_refused()
    watched.engine.memory.observe(None)
    await watched.check("memory_full")


async def test_a_rewrite_that_fails(watched: Watched) -> None:
    """Until one ends well."""
    watched.storage.fail("create", errno.EIO)
    with pytest.raises(RewriteFailedError):
        await watched.engine.rewrite()
    await watched.check("rewrite_failed")
    watched.storage.heal()
    await watched.engine.rewrite()
    await watched.check()


async def test_a_file_of_tokens_that_cannot_be_read_again(watched: Watched) -> None:
    """The tokens of before stay in use; a good file ends it."""
    tokens = Path(watched.app.gateway.settings.tokens_file)
    await asyncio.to_thread(tokens.write_text, "not [ toml")
    await reload_tokens(watched.app.gateway)
    await watched.check("tokens_stale")
    await asyncio.to_thread(tokens.write_text, "")
    await reload_tokens(watched.app.gateway)
    await watched.check()


async def test_a_backup_that_fails(watched: Watched) -> None:
    """There is no log in this directory to copy; the next backup that ends well would end it."""
    begun = await watched.http.post("/v1/admin/backup", json={"name": "b"})
    assert begun.status_code == 202, begun.text
    while (await watched.http.get("/v1/admin/backup")).json()["state"] == "running":  # noqa: ASYNC110 - by a thread
        await asyncio.sleep(0)
    await watched.check("backup_failed")


async def test_strangers_learn_whether_it_is_ready_and_no_more(watched: Watched) -> None:
    """A probe may come with any Host, and so may anybody else."""
    watched.storage.fail("create", errno.EIO)
    with pytest.raises(RewriteFailedError):
        await watched.engine.rewrite()
    answer = await watched.http.get("/healthz/ready", headers={"host": "10.0.0.7"})
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def serious_calls() -> Iterator[tuple[str, ast.Call]]:
    """Where the gateway logs at critical or error."""
    root = Path(app.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = ast.unparse(node.func)
                if re.fullmatch(r"(logs\.get\(\)|get\(\)|log)\.(critical|error)", target):
                    yield f"{file.relative_to(root)}:{node.lineno}", node


@pytest.mark.early
def test_every_serious_line_has_a_remedy() -> None:
    """What is logged at critical or error says what to do."""
    found = dict(serious_calls())
    assert len(found) >= 8
    without = [at for at, call in found.items() if "remedy" not in {word.arg for word in call.keywords}]
    assert without == []
