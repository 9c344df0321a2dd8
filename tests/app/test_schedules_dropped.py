"""A stream ends with what is scheduled for it: in which ways that happens, and that each one is counted."""

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Final

import pytest

from engine import Engine, EngineProtocol, entries
from engine.commands.schedule_commands import NewSchedule, SetSchedule
from engine.commands.types import FlushAll, XAdd
from engine.recurrence import Rule
from engine.storage.memory import MemoryStorage
from tests.app.auth.test_enforcement import GUARDED, ask
from tests.app.conftest import app_on, calling
from tests.app.every_command import WORDS
from tests.app.policies import principal_with
from tests.app.ten_doors import DOORS, Bench, Http, InWords, WebSocket, opened
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock

BODY: Final = entries.body([("n", "1")])
SCHEDULED: Final = 2
HOUR_MS: Final = 3_600_000
# As `ask` names a schedule.
ONCE: Final = "a"


# How the stream `a`, which has schedules, ends.
WAYS: Final = [
    "DEL a",
    "UNLINK missing a",
    "FLUSHALL",
    "FLUSHDB",
    "RENAME b a",
    "COPY b a REPLACE",
    "EXPIRE a -1",
    "EXPIREAT a 1",
    "PEXPIRE a -1",
    "PEXPIREAT a 1",
    "WEIR.CLOSE a SCHEDULES DROP",
]
REQUESTS: Final = [
    ("deleteStream", "DELETE", "/v1/streams/a?schedules=drop"),
    ("closeStream", "POST", "/v1/streams/a/close?schedules=drop"),
    ("deleteDurable", "DELETE", "/v1/stream/a"),
]
IN_WORDS: Final = [door for door in DOORS if isinstance(door, InWords | WebSocket)]
BY_HTTP: Final = [door for door in DOORS if type(door) is Http]
DROPPED: Final = "weir_schedules_dropped_total"


async def prepare(engine: EngineProtocol, scheduled: str = "a") -> None:
    """The streams `a` and `b`, of which one has schedules."""
    for stream in "ab":
        await reply_to(engine, XAdd(stream=stream, bodies=[BODY]))
    for name, rule in ((ONCE, Rule(in_ms=HOUR_MS)), ("often", Rule(every_ms=HOUR_MS))):
        await reply_to(engine, SetSchedule(stream=scheduled, schedule=NewSchedule(name, BODY, rule)))


async def check_dropped(bench: Bench) -> None:
    """They are gone, counted, and in the audit log with what ended the stream."""
    assert (bench.engine.figures().schedules, bench.engine.figures().schedules_dropped) == (0, SCHEDULED)
    said = [line for line in await bench.audited() if "schedules_dropped" in line]
    assert [(one["schedules_dropped"], one["outcome"]) for one in said] == [(SCHEDULED, "done")]


@pytest.mark.parametrize("is_front", [False, True], ids=["engine", "front"])
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_command_that_ends_a_stream_drops_what_is_scheduled_and_says_so(
    tmp_path: Path, way: str, *, is_front: bool
) -> None:
    """At every way in for commands, each of which has a gateway of its own."""
    for door in IN_WORDS:
        place = tmp_path / door.name.replace(" ", "-")
        place.mkdir()
        async with opened(place, principal=principal_with("*:*"), is_front=is_front) as bench:
            await prepare(bench.engine)
            assert isinstance(door, InWords | WebSocket)
            answer = await door.send(bench, way.split())
            assert "error" not in answer.lower().replace('"error":null', ""), (door.name, answer)
            await check_dropped(bench)


@pytest.mark.parametrize(("name", "method", "path"), REQUESTS)
@pytest.mark.parametrize("door", BY_HTTP, ids=lambda door: door.name)
async def test_a_request_that_ends_a_stream_drops_what_is_scheduled_and_says_so(
    tmp_path: Path, door: Http, name: str, method: str, path: str
) -> None:
    async with opened(tmp_path, principal=principal_with("*:*")) as bench:
        await prepare(bench.engine)
        if name == "deleteDurable":
            await make_durable(bench)
        async with await door.connect(bench) as http:
            answer = await http.request(method, path)
        assert answer.status_code in (200, 204), answer.text
        await check_dropped(bench)


async def make_durable(bench: Bench) -> None:
    """A stream of Durable Streams in its place."""
    async with calling(bench.app) as http:
        await http.post("/v1/commands", json=["RENAME", "a", "old"])
        assert (
            await http.put("/v1/stream/a", headers={"content-type": "application/json"})
        ).status_code == 201
        for name in (ONCE, "often"):
            body = {"entry": {"fields": {"data": "1"}}, "in_ms": HOUR_MS}
            answer = await http.put(f"/v1/streams/a/schedules/{name}", json=body)
            assert answer.status_code == 201, answer.text
            await http.delete(f"/v1/streams/old/schedules/{name}")
    assert bench.engine.figures().schedules == SCHEDULED


async def test_the_end_of_a_lifetime_is_counted() -> None:
    """No caller has asked for it. A restart counts from zero, and what was read from the log is no news."""
    clock, storage = HandClock(), MemoryStorage()
    engine = Engine.open(storage, clock=clock)
    await engine.start()
    app = app_on(engine, clock=clock)
    await prepare(engine)
    async with calling(app) as http:
        await http.post("/v1/commands", json=["PEXPIRE", "a", "10"])
        assert f"{DROPPED} 0.0" in (await http.get("/metrics")).text
        clock.pass_ms(20)
        assert (await http.get("/v1/streams/a")).status_code == 404
        assert f"{DROPPED} {SCHEDULED}.0" in (await http.get("/metrics")).text
    await engine.close()
    assert Engine.open(storage, clock=clock).figures().schedules_dropped == 0


# ---- over all commands and routes


class Books:
    """What has gone, and what was said of it: both of every command and request."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        # By operation, how many the audit log has to have.
        self.dropped: list[tuple[str, int]] = []

    async def check(self, name: str, doing: Awaitable[object], own: int = 0) -> None:
        """Do it; what has gone then was counted, but for the `own` ones that it has changed one by one."""
        engine = self.bench.engine
        await reply_to(engine, FlushAll())
        await prepare(engine, "a")
        await prepare(engine, "b")
        before, counted = engine.figures().schedules, engine.figures().schedules_dropped
        await doing
        dropped = engine.figures().schedules_dropped - counted
        assert before - engine.figures().schedules == dropped + own, name
        if dropped:
            self.dropped.append((name, dropped))

    async def check_audited(self) -> None:
        said = [line for line in await self.bench.audited() if "schedules_dropped" in line]
        assert [(line["operation"], line["schedules_dropped"]) for line in said] == self.dropped


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    async with opened(tmp_path, principal=principal_with("*:*")) as bench:
        yield Books(bench)


async def test_no_command_loses_a_schedule_without_a_word(books: Books) -> None:
    """Each of the table, and each of the ways above."""
    own = {"weir.schedule|set": -1, "weir.schedule|del": 1}
    every = [
        (name, words.replace(" n", f" {ONCE}" if name.endswith("del") else " n"))
        for name, words in WORDS.items()
    ]
    every += [(way.partition(" ")[0].lower(), way) for way in WAYS]
    async with calling(books.bench.app) as http:
        await prepare(books.bench.engine)
        for name, words in every:
            await books.check(name, http.post("/v1/commands", json=words.split()), own.get(name, 0))
    await books.check_audited()
    assert {name for name, _ in books.dropped} >= {way.partition(" ")[0].lower() for way in WAYS}


async def test_no_request_loses_a_schedule_without_a_word(books: Books) -> None:
    """Of each operation, and each of the ways above."""
    own = {"deleteSchedule": 1, "fireSchedule": 1}
    async with calling(books.bench.app) as http:
        for route in GUARDED:
            await books.check(route.operation_id, ask(http, route, "a"), own.get(route.operation_id, 0))
        for name, method, path in REQUESTS:
            await books.check(name, http.request(method, path))
    await books.check_audited()
    assert [name for name, _ in books.dropped] == [name for name, *_ in REQUESTS]
