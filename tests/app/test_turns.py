"""No turn of the loop is longer than 20 ms, for any request within the limits.

Knows: requests at their maxima, on an engine whose log is on a disk.
Must never know: how the gateway cuts its work.

The time of a turn includes what the client of the test does in it, which is little.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from app.doors.resp.listening import RespServer
from app.main import create_app
from app.settings import Settings
from engine import Engine, SystemClock, entries, ids
from engine.commands.types import Cursor, FlushAll, XAdd, XGroupCreate, XGroupDestroy, XReadGroup
from tests.app.conftest import app_on, calling
from tests.engine.asking import reply_to
from tests.turns import TURN_S_MAX, assert_within_async, longest_turn_s

pytestmark = pytest.mark.paired

# Room for the largest transaction, as a gateway has on a machine of 2 GiB.
SETTINGS: Final = Settings(log_requests="none", buffer_bytes_max=128 << 20)
PENDING: Final = 2 * SETTINGS.ids_max
GROUP: Final = "/v1/streams/s/groups/g"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    opening = partial(Engine.open, tmp_path / "data", clock=SystemClock())
    async with await asyncio.to_thread(opening) as engine:
        yield engine


TRANSACTION: Final = "/v1/commands/multi-exec"
SMALL, LARGE = 8, 1_000
# How many bytes a value has, and the commands of a transaction that reads as much as it may.
TRANSACTIONS: Final[dict[str, tuple[int, list[list[str]]]]] = {
    "many entries": (SMALL, [["XRANGE", "s", "-", "+", "COUNT", "10000"]] * 64),
    "many entries backwards": (SMALL, [["XREVRANGE", "s", "+", "-", "COUNT", "10000"]] * 64),
    "all entries backwards": (SMALL, [["XREVRANGE", "s", "+", "-"]]),
    "many deliveries": (
        SMALL,
        [
            ["XREADGROUP", "GROUP", f"g{number}", "c", "COUNT", "10000", "STREAMS", "s", ">"]
            for number in range(64)
        ],
    ),
    "many bytes": (LARGE, [["XREAD", "COUNT", "10000", "STREAMS", "s", "0"]] * 8),
}


@pytest.mark.parametrize("name", TRANSACTIONS)
async def test_a_transaction_that_reads_as_much_as_it_may(name: str, engine: Engine) -> None:
    """What the client of the test does with the answer is not counted: it reads no body."""
    value_bytes, rows = TRANSACTIONS[name]
    body = entries.body([("a", "1" * value_bytes)])
    for _ in range(10 if value_bytes == SMALL else 1):
        await reply_to(engine, XAdd(stream="s", bodies=[body] * 10_000))
    app = app_on(engine, SETTINGS)
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": TRANSACTION,
        "raw_path": TRANSACTION.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
    }
    content, sent = orjson.dumps(rows), [0]

    async def receive() -> dict[str, Any]:
        if sent[0] < 0:
            await asyncio.Event().wait()
        sent[0] = -1
        return {"type": "http.request", "body": content}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            sent[0] = 0
        else:
            sent[0] += len(message["body"])

    async def measured() -> float:
        for number in range(64):
            await reply_to(engine, XGroupCreate(stream="s", group=f"g{number}", start=0))
        sent[0] = 0
        longest = await longest_turn_s(app(scope, receive, send))
        assert sent[0] > 0
        for number in range(64):
            await reply_to(engine, XGroupDestroy(stream="s", group=f"g{number}"))
        return longest

    await assert_within_async(TURN_S_MAX, measured)


# Commands at their limits, of which a pipeline has as many as are held in memory together at least.
PIPELINES: Final[dict[str, list[list[str]]]] = {
    "pending entries": [["XPENDING", "s", "g", "-", "+", "10000"]] * 6,
    "groups": [["XINFO", "GROUPS", "s"]] * 12,
    "summaries": [["XPENDING", "s", "crowd"]] * 12,
    "idle entries": [["XAUTOCLAIM", "s", "g", "d", "3600000", "0", "COUNT", "1000", "JUSTID"]] * 12,
    "streams": [["XADD", f"t{number}", "*", "a", "1"] for number in range(1_000)],
    "trims": [["XADD", "u", "MAXLEN", "~", "1000", "*", "a", "1"]] * 2_000,
    "plain": [["XADD", "u", "*", "a", "1"]] * 10_000,
    "short replies": [["XLEN", "s"]] * 10_000,
}


async def crowded(engine: Engine) -> None:
    """A stream with as many pending entries and groups, and a group with as many consumers, as may be."""
    await pending_ids(engine)
    for number in range(900):
        await reply_to(engine, XGroupCreate(stream="s", group=f"g{number}", start=0))
    await reply_to(engine, XGroupCreate(stream="s", group="crowd", start=0))
    for number in range(2_000):
        read = XReadGroup(group="crowd", consumer=f"c{number}", count=1, streams=[("s", Cursor.NEW)])
        await reply_to(engine, read)


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("door", ["HTTP", "RESP"])
async def test_a_pipeline_of_long_commands(door: str, name: str, engine: Engine, tmp_path: Path) -> None:
    """However many there are: nobody waits for more than a slice of it, replies included."""
    rows, path = PIPELINES[name], tmp_path / "socket"
    settings = Settings(log_requests="none", resp_listen=(f"unix:{path}",))
    app = app_on(engine, settings)
    await crowded(engine)
    server = RespServer(app.gateway)
    await server.start()

    async def over_resp() -> None:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=1 << 24)
        for row in [*rows, ["PING", "end"]]:
            words = [b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in row]
            writer.write(b"*%d\r\n%b" % (len(words), b"".join(words)))
        await reader.readuntil(b"$3\r\nend\r\n")
        writer.close()

    async def over_http() -> None:
        async with calling(app) as http:
            headers = {"content-type": "application/json"}
            answer = await http.post("/v1/commands/pipeline", content=orjson.dumps(rows), headers=headers)
        assert answer.status_code == 200
        assert b'"error"' not in answer.content

    async def measured() -> float:
        return await longest_turn_s(over_resp() if door == "RESP" else over_http())

    try:
        await assert_within_async(TURN_S_MAX, measured)
    finally:
        await server.close()


async def pending_ids(engine: Engine) -> list[str]:
    """All IDs of a stream whose entries are pending with `c` in `g`, made anew."""
    await reply_to(engine, FlushAll())
    body = entries.body([("sensor", "1234"), ("temperature", "19.8")])
    for _ in range(0, PENDING, SETTINGS.ids_max):
        await reply_to(engine, XAdd(stream="s", bodies=[body] * SETTINGS.ids_max))
    await reply_to(engine, XGroupCreate(stream="s", group="g", start=0))
    found: list[int] = []
    while len(found) < PENDING:
        read = XReadGroup(group="g", consumer="c", count=PENDING, streams=[("s", Cursor.NEW)])
        reply: Any = await reply_to(engine, read)
        found += [one.id for one in reply.streams[0].entries]
    return list(map(ids.format, found))


def _every(found: list[str]) -> list[str]:
    """As many as a request may look up, spread over the stream."""
    return found[:: len(found) // SETTINGS.lookups_max][: SETTINGS.lookups_max]


MOST: Final[dict[str, tuple[str, Callable[[list[str]], object]]]] = {
    "ack": (f"{GROUP}/ack", lambda found: {"ids": found[: SETTINGS.ids_max]}),
    "ack backwards": (f"{GROUP}/ack", lambda found: {"ids": found[: SETTINGS.ids_max][::-1]}),
    "ack of nothing": (
        f"{GROUP}/ack",
        lambda _: {"ids": [f"{ms}-1" for ms in range(1, SETTINGS.ids_max + 1)]},
    ),
    "ack and delete": (f"{GROUP}/ack", lambda found: {"ids": _every(found), "delete": "delete"}),
    "nack": (f"{GROUP}/nack", lambda found: {"ids": _every(found), "mode": "fail"}),
    "claim": (f"{GROUP}/claim", lambda found: {"ids": _every(found), "consumer": "d", "min_idle_ms": 0}),
    "extend": (f"{GROUP}/extend", lambda found: {"ids": _every(found), "consumer": "c"}),
    "autoclaim": (f"{GROUP}/autoclaim", lambda _: {"consumer": "d", "min_idle_ms": 0, "count": 10_000}),
    "delete": ("/v1/streams/s/entries/delete", lambda found: {"ids": _every(found)}),
    "XACK": ("/v1/commands", lambda found: ["XACK", "s", "g", *found[: SETTINGS.ids_max]]),
}


@pytest.mark.parametrize("name", MOST)
async def test_a_request_with_as_many_ids_as_it_may_name(name: str, engine: Engine) -> None:
    path, body = MOST[name]
    async with calling(app_on(engine, SETTINGS)) as http:

        async def ask(content: bytes) -> None:
            headers = {"content-type": "application/json"}
            answer = await http.post(path, content=content, headers=headers)
            assert answer.status_code == 200, answer.text

        async def measured() -> float:
            return await longest_turn_s(ask(orjson.dumps(body(await pending_ids(engine)))))

        await assert_within_async(TURN_S_MAX, measured)


async def test_a_publication_into_as_many_streams_as_it_may_name(engine: Engine) -> None:
    """New ones: to read it, to store it and to answer it are turns of their own."""
    app, made = create_app(SETTINGS, SystemClock()), 0
    app.life.open(engine)
    async with calling(app) as http:

        async def publish(content: bytes) -> None:
            headers = {"content-type": "application/json"}
            answer = await http.post("/v1/publish", content=content, headers=headers)
            assert answer.status_code == 201, answer.text

        async def measured() -> float:
            nonlocal made
            made += 1
            entry = [{"fields": {"a": "1" * 100}}]
            names = [f"new-{made}-{number}" for number in range(SETTINGS.request_streams_max)]
            return await longest_turn_s(publish(orjson.dumps({"streams": dict.fromkeys(names, entry)})))

        await assert_within_async(TURN_S_MAX, measured)
