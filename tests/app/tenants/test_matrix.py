"""Every operation of every door, asked by a tenant beside others who have the same names: it shows and
changes nothing of theirs, and no answer has a byte of a prefix.

The rows are compared with the tables of operations, of commands and of frames: what is new has a row.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Self

import pytest

from app import redis
from app.doors.durable import door as durable_door
from app.doors.websocket.frames import CLIENT_FRAMES
from app.main import ROUTES
from engine import Call, Engine, EngineProtocol, How, ask, entries, ids
from engine.commands import types
from engine.commands.schedule_commands import ListSchedules, NewSchedule, SetSchedule
from engine.recurrence import Rule
from tests.app.ten_doors import DOORS, LATE_S, Bench, Durable, Http, InWords, Sse, WebSocket, embedded, opened
from tests.app.tenants import test_same_answers as same
from tests.cluster import engines
from tests.cluster.clusters import backend_of_tests
from tests.cluster.servers import Backend
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock

PREFIX: Final = "qqacme."
# Another tenant; one whose prefix begins as that of the tenant; and a caller without a prefix.
OTHERS: Final = ("zzglobex.", "qqacme", "")
# In all that is theirs: a value, the names of a group, of a consumer and of a schedule.
MARK: Final = "of-others"
NAMES: Final = ("orders", "dead", "b", "moved", "missing", "doc")
FAR_MS: Final = 1_900_000_000_000

# About the gateway: refused.
ADMINISTRATION: Final[Sequence[same.Call]] = [
    ("GET", "/v1/status", {}),
    ("GET", "/metrics", {}),
    ("GET", "/v1/admin/backup", {}),
    ("POST", "/v1/admin/backup", {"json": {"path": "x"}}),
    ("GET", "/v1/admin/rewrite", {}),
    ("POST", "/v1/admin/rewrite", {}),
    ("GET", "/v1/admin/revocations", {}),
    ("POST", "/v1/admin/revocations", {"json": {"jti": "x"}}),
    ("GET", "/v1/hooks", {}),
]
GATEWAY: Final[Sequence[same.Call]] = [
    *ADMINISTRATION,
    ("GET", "/v1/whoami", {}),
    ("POST", "/v1/tickets", {}),
    ("GET", "/v1/admin/tokens", {}),
    ("GET", "/v1/admin/tokens/missing", {}),
    ("POST", "/v1/admin/tokens", {"json": {"grants": [{"actions": ["read"], "streams": "*"}]}}),
    ("DELETE", "/v1/admin/tokens/missing", {}),
    ("GET", "/v1/hooks/missing", {}),
    ("POST", "/v1/hooks/missing", {}),
]
# What they answer may go on for ever.
EVENTS: Final = {
    "tailStream": "/v1/streams/orders/tail?after=0",
    "tailStreams": "/v1/tail?stream=b&stream=orders&after=0-1",
    "consumeGroup": "/v1/streams/orders/groups/sse/consumers/w/stream",
}
MISSING: Final = "/v1/streams/orders/groups/missing/consumers/w/stream"
NOT_OF_TENANTS: Final[Sequence[Sequence[str]]] = [
    ("CONFIG", "GET", "*"), ("CONFIG", "SET", "stream-node-max-entries", "1"), ("DBSIZE",), ("FLUSHALL",),
    ("FLUSHDB",),
]  # fmt: skip
WORDS: Final = [*same.COMMANDS, ("RANDOMKEY",), *NOT_OF_TENANTS]
# Of the port for Redis clients alone.
OF_THE_PORT: Final[Sequence[Sequence[str]]] = [("CLIENT", "LIST"), ("INFO",), ("WATCH", "orders", "dead")]
FRAMES: Final[Sequence[Sequence[dict[str, Any]]]] = [
    [{"op": "ping"}],
    [{"op": "auth", "token": "x" * 40}],
    [{"op": "publish", "stream": "orders", "fields": {"v": "1"}}],
    [{"op": "subscribe", "sub": "s", "streams": {"orders": "0", "b": "0"}, "credit": 9}],
    [{"op": "consume", "sub": "s", "stream": "orders", "group": "ws", "consumer": "c", "create": "0"}],
    [{"op": "command", "command": ["KEYS", "*"]}, {"op": "command", "command": ["DEL", "missing"]}],
]
CONSUME: Final = FRAMES[4][0]
# Of that subscription.
WITHIN: Final[Sequence[dict[str, Any]]] = [
    {"op": "ack", "ids": ["1-0"]},
    {"op": "nack", "ids": ["2-0"]},
    {"op": "credit", "n": 1},
    {"op": "unsubscribe"},
]
TEXT: Final = {"content-type": "text/plain"}
DURABLE: Final[Sequence[same.Call]] = [
    ("PUT", "/v1/stream/doc", {"headers": TEXT, "content": "first"}),
    ("PUT", "/v1/stream/doc", {"headers": TEXT, "content": "first"}),
    ("POST", "/v1/stream/doc", {"headers": TEXT, "content": "second"}),
    ("HEAD", "/v1/stream/doc", {}),
    ("GET", "/v1/stream/doc?offset=-1", {}),
    ("PUT", "/v1/stream/fork", {"headers": {"stream-forked-from": "/v1/stream/doc"}}),
    ("DELETE", "/v1/stream/doc", {}),
    # It is hidden while it has a fork.
    ("PUT", "/v1/stream/doc", {"headers": TEXT}),
    ("GET", "/v1/streams/fork", {}),
    ("DELETE", "/v1/stream/fork", {}),
    ("GET", "/v1/stream/nothing?offset=-1", {}),
]


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A server that has the streams."""
    with backend_of_tests(tmp_path_factory.mktemp("valkey"), "valkey") as backend:
        assert backend is not None
        yield backend


@pytest.fixture(params=["log", "front", "valkey"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """A gateway whose caller is a tenant, and what the others have in its engine."""

    def over_valkey(_: HandClock) -> AbstractAsyncContextManager[EngineProtocol]:
        backend = request.getfixturevalue("valkey")
        backend.call("FLUSHALL")
        return engines.opened(backend)

    opening = over_valkey if request.param == "valkey" else embedded
    is_front = request.param == "front"
    async with opened(
        tmp_path, principal=same.principal(PREFIX), opening=opening, is_front=is_front
    ) as bench:
        await fill(bench.engine)
        yield bench


async def fill(engine: EngineProtocol) -> None:
    """Give the others streams with all that a stream may have, under the names that the rows use."""
    body = entries.body([("v", MARK), ("weir-source", f"{OTHERS[0]}orders")])
    later = NewSchedule(MARK, body, Rule(at_ms=FAR_MS))
    for prefix in OTHERS:
        for name in (f"{prefix}{name}" for name in NAMES):
            await reply_to(
                engine, types.XAdd(stream=name, bodies=[body] * 3, ids=[ids.make(n, 0) for n in (1, 2, 3)])
            )
            for group in ("g", "d", MARK):
                await reply_to(engine, types.XGroupCreate(stream=name, group=group, start=0))
            read = types.XReadGroup(streams=[(name, types.Cursor.NEW)], group="g", consumer=MARK, count=2)
            await reply_to(engine, read)
            await reply_to(engine, SetSchedule(stream=name, schedule=later))
            await reply_to(engine, types.Expire(stream=name, ms=FAR_MS, relative=False))


async def kept(engine: EngineProtocol) -> list[Any]:
    """All that there is of the streams of others."""
    listing: Any = await reply_to(engine, types.ListStreams())
    names = [name for name in listing.names if not name.startswith(PREFIX)]
    asked = [
        command
        for name in names
        for command in (types.XInfoStreamFull(stream=name, count=None), ListSchedules(stream=name))
    ]
    return [names, *await ask(engine, Call(asked, How.EACH))]


class Witness:
    """Looks whether the others have what they had: in this process after each row, elsewhere at the end. The
    audit log has the tenant's names as the engine has them.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._engine = bench.engine
        self._before: list[Any] = []

    async def __aenter__(self) -> Self:
        self._before = await kept(self._engine)
        return self

    async def look(self, row: object) -> None:
        """After this row."""
        if isinstance(self._engine, Engine):
            assert await kept(self._engine) == self._before, row

    async def __aexit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            assert await kept(self._engine) == self._before
            assert all(name.startswith(PREFIX) for names in await audited(self._bench) for name in names)


async def audited(bench: Bench) -> list[list[str]]:
    """The streams that each line of the audit log names."""
    return [
        [line["stream"]] if "stream" in line else line.get("streams", []) for line in await bench.audited()
    ]


def check(row: object, answer: str | bytes) -> None:
    """What the tenant is answered."""
    text = answer if isinstance(answer, bytes) else answer.encode()
    for foreign in (PREFIX, "qqacme", OTHERS[0], MARK, *map(_in_base64, (PREFIX, OTHERS[0]))):
        assert foreign.encode() not in text, (row, answer)
    assert not text.startswith(b"50"), (row, answer)


def _in_base64(prefix: str) -> str:
    return base64.b64encode(prefix.encode())[:8].decode()


# ---- the rows are whole


def test_each_operation_command_and_frame_has_a_row() -> None:
    """Also those of the gateway, which show no names."""
    called = {
        one.operation_id
        for one in ROUTES
        for method, path, _ in (*same.ROUTES, *GATEWAY)
        if one.method == method and _template(one.template).fullmatch(path.partition("?")[0])
    }
    assert {one.operation_id for one in ROUTES if not one.hidden} - called == EVENTS.keys()
    assert {same.name_of(words) for words in WORDS} == redis.COMMANDS.keys()
    assert {one["op"] for rows in (*FRAMES, WITHIN) for one in rows} == {
        one.__struct_config__.tag for one in CLIENT_FRAMES
    }
    assert {method for method, *_ in DURABLE} == {one.method for one in durable_door.OPERATIONS}


def _template(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", path))


# ---- the doors


@pytest.mark.parametrize("door", [door for door in DOORS if type(door) is Http], ids=lambda door: door.name)
async def test_every_operation_keeps_to_the_tenants_streams(bench: Bench, door: Http) -> None:
    await requests_keep_to_its_own(bench, door, (*same.ROUTES, *GATEWAY))


async def test_every_operation_of_durable_streams_keeps_to_the_tenants_streams(bench: Bench) -> None:
    await requests_keep_to_its_own(bench, next(door for door in DOORS if isinstance(door, Durable)), DURABLE)


async def requests_keep_to_its_own(bench: Bench, door: Http, rows: Sequence[same.Call]) -> None:
    """Send these requests."""
    async with Witness(bench) as witness, await door.connect(bench) as http:
        for method, path, options in rows:
            answer = await http.request(method, path, **options)
            headers = b"".join(b"%b: %b\n" % pair for pair in answer.headers.raw)
            assert (answer.status_code == 403) == ((method, path, options) in ADMINISTRATION), answer.text
            check((method, path), b"%d %b%b" % (answer.status_code, headers, answer.content))
            await witness.look((method, path))


@pytest.mark.parametrize(
    "door", [door for door in DOORS if isinstance(door, InWords | WebSocket)], ids=lambda door: door.name
)
async def test_every_command_keeps_to_the_tenants_streams(bench: Bench, door: InWords | WebSocket) -> None:
    """What is about the streams of all callers is refused."""
    async with Witness(bench) as witness:
        for words in (*WORDS, *(OF_THE_PORT if door.name == "RESP" else ())):
            answer = await door.send(bench, words)
            check(words, answer)
            await witness.look(words)
            assert words not in NOT_OF_TENANTS or "NOPERM" in answer or "forbidden" in answer, (words, answer)
    assert [f"{PREFIX}copy", f"{PREFIX}moved"] in await audited(bench)


async def test_every_frame_keeps_to_the_tenants_streams(bench: Bench) -> None:
    door = next(door for door in DOORS if isinstance(door, WebSocket))
    async with Witness(bench) as witness:
        for frames in (*FRAMES, [CONSUME, *({"sub": "s", **one} for one in WITHIN)]):
            async with asyncio.timeout(LATE_S):
                answer = await door.ask(bench, *frames)
            check(frames, answer)
            await witness.look(frames)


@pytest.mark.parametrize("operation", EVENTS)
async def test_every_operation_of_events_keeps_to_the_tenants_streams(bench: Bench, operation: str) -> None:
    """It follows until it has an entry of its own; what is missing in between is a gap."""
    door = next(door for door in DOORS if isinstance(door, Sse))
    async with Witness(bench):
        for stream in ("orders", "b", "b"):
            await door.ask(bench, "POST", f"/v1/streams/{stream}/entries", {"fields": {"v": "1"}})
        await door.ask(bench, "POST", "/v1/streams/b/trim", {"maxlen": 1})
        await door.ask(bench, "PUT", "/v1/streams/orders/groups/sse", {"start": "0"})
        async with asyncio.timeout(LATE_S):
            answer = await door.events(bench, EVENTS[operation])
            missing = await door.events(bench, MISSING)
        check(operation, answer)
        check(MISSING, missing)
        assert "event: entry" in answer
        assert ("event: gap" in answer) == (operation == "tailStreams")
        assert missing.startswith("404 ")
        assert "missing" in missing
