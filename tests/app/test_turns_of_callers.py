"""Long work of one caller in turns: others are not behind all of it."""

import asyncio
import json
from collections.abc import Awaitable, Sequence
from contextlib import suppress

import httpx
import pytest

from app.http.responses import GONE_EXTENSION
from app.live.turns import CallerTurns, CycleBudget
from app.main import App
from app.redis.queue import RUN_COMMANDS_MAX
from engine import Engine
from tests.app.conftest import app_on, calling
from tests.app.resp.conftest import until
from tests.app.test_time_bounds import timed_world
from tests.engine.clocks import HandClock, settle


async def test_each_caller_has_one_turn_a_cycle() -> None:
    turns, order = CallerTurns(), list[str]()

    async def work(caller: str, name: str) -> None:
        await turns.wait(caller)
        order.append(name)

    greedy = [asyncio.create_task(work("greedy", f"greedy {number}")) for number in range(4)]
    other = asyncio.create_task(work("other", "other"))
    await asyncio.gather(*greedy, other)
    assert order == ["greedy 0", "other", "greedy 1", "greedy 2", "greedy 3"]


async def test_what_was_cancelled_takes_no_turn() -> None:
    turns, order = CallerTurns(), list[int]()

    async def work(number: int) -> None:
        await turns.wait("a")
        order.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[1].cancel()
    await settle()
    assert order == [2]
    await turns.wait("a")


async def test_large_pages_of_one_caller_take_turns(app: App) -> None:
    """A caller that asks behind eight of another is not behind all of them; smaller pages need no turn."""
    order = list[str]()

    async def note(asked: Awaitable[httpx.Response], who: str) -> None:
        assert (await asked).status_code == 200
        order.append(who)

    for count, place_max in ((1_001, 2), (1_000, 8)):
        async with calling(app, "192.0.2.1") as greedy, calling(app, "192.0.2.2") as other:
            path = f"/v1/streams/s/entries?count={count}"
            asked = [note(greedy.get(path), "greedy") for _ in range(8)]
            await asyncio.gather(*asked, note(other.get(path), "other"))
        place, order = order.index("other"), []
        assert place <= place_max
        assert (place == 8) is (count == 1_000)


async def test_publications_into_many_streams_take_turns(engine: Engine) -> None:
    """Each is one piece: those of one caller are not all of one cycle."""
    order = list[str]()

    async def note(asked: Awaitable[httpx.Response], who: str) -> None:
        assert (await asked).status_code == 201
        order.append(who)

    app = app_on(engine, clock=HandClock())
    body = {"streams": {f"s{number}": [{"fields": {"a": "1"}}] for number in range(200)}}
    async with calling(app, "192.0.2.1") as greedy, calling(app, "192.0.2.2") as other:
        asked = [one.post("/v1/publish", json=body) for one in (*[greedy] * 8, other)]
        await asyncio.gather(*(note(one, "greedy") for one in asked[:-1]), note(asked[-1], "other"))
    assert order.index("other") <= 2


@pytest.mark.parametrize(
    ("path", "rows"), [("pipeline", [["PING", "x" * 100]] * 100), ("multi-exec", [["PING", "x" * 100]] * 100)]
)
async def test_long_lists_of_commands_of_one_caller_are_read_in_turns(
    app: App, path: str, rows: Sequence[Sequence[str]]
) -> None:
    """Reading them takes as long as running them; this one ends before it runs."""
    broken = json.dumps(rows).encode() + b"]"
    order = list[str]()

    async def note(asked: Awaitable[httpx.Response], who: str) -> None:
        assert (await asked).status_code == 400
        order.append(who)

    async with calling(app, "192.0.2.1") as greedy, calling(app, "192.0.2.2") as other:
        headers = {"content-type": "application/json"}
        asked = [
            one.post(f"/v1/commands/{path}", content=broken, headers=headers)
            for one in (*[greedy] * 8, other)
        ]
        await asyncio.gather(*(note(one, "greedy") for one in asked[:-1]), note(asked[-1], "other"))
    assert order.index("other") <= 2


async def test_a_cycle_has_time_for_a_while() -> None:
    """From the first look on; the next cycle has all of it again."""
    clock = HandClock()
    budget = CycleBudget(clock.monotonic)
    for _ in range(2):
        assert budget.has_time()
        clock.pass_ms(0, 4)
        assert budget.has_time()
        clock.pass_ms(0, 1)
        assert not budget.has_time()
        await asyncio.sleep(0)


async def test_clients_that_send_ahead_do_not_make_a_cycle_long() -> None:
    """Their caller has one request answered at once; further ones while the cycle is young."""
    sent = b"GET /v1/streams/s/entries?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with timed_world() as world:
        lines = [await world.connect() for _ in range(3)]
        for line in lines:
            await line.send(sent)
        world.clock.ticking_s = 0.000_2
        before, answered = world.answers, list[int]()
        for connection in list(world.state.connections):
            connection.data_received(sent * 16)
            answered.append(world.answers - before - sum(answered))
        assert 1 < sum(answered) < 16
        world.clock.ticking_s = 0.0
        await until(lambda: world.answers - before == 48)


async def test_what_a_client_sends_ahead_is_not_read_on_and_on() -> None:
    """Each request whose body is asked for would have more read, which joins what waits already."""
    body = b'{"fields":{"a":"1"}}'
    head = b"POST /v1/streams/s/entries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = (head + b"Content-Length: %d\r\n\r\n" % len(body) + body) * 40_000
    async with timed_world() as world:
        await world.connect()
        (client,), (connection,) = world.sockets, world.state.connections
        waited, at = list[int](), 0

        def has_answered() -> bool:
            nonlocal at
            with suppress(BlockingIOError):
                at += client.send(sent[at : at + (1 << 20)])
            with suppress(BlockingIOError):
                client.recv(1 << 20)
            waited.append(len(connection.backlog))
            return world.answers >= 40

        await until(has_answered)
        # What the loop reads at once, twice.
        assert 0 < max(waited) <= 512 << 10


async def test_waits_of_one_caller_begin_in_turns(app: App, engine: Engine) -> None:
    app.gateway.waits.most = 100
    path = "/v1/streams/s/entries?after=$&wait=5000"
    async with calling(app, "192.0.2.1") as greedy, calling(app, "192.0.2.2") as other:
        asked = [asyncio.create_task(one.get(path)) for one in (*[greedy] * 8, other)]
        held = app.gateway.waits.each.held
        await until(lambda: held("ip:192.0.2.2") == 1)
        assert held("ip:192.0.2.1") <= 2
        await until(lambda: engine.figures().waiting == len(asked))
        added = await other.post("/v1/streams/s/entries", json={"fields": {"a": "1"}})
        assert added.status_code == 201
        assert [len((await one).json()["entries"]) for one in asked] == [1] * len(asked)


async def test_a_pipeline_ends_when_its_client_leaves(engine: Engine) -> None:
    """What has run has run; the rest is not begun. A run ends early where time passes: here none does."""
    app = app_on(engine, clock=HandClock())
    rows = [["XADD", "s", "*", "a", "1"], ["XLEN", "s"]] * RUN_COMMANDS_MAX
    body = json.dumps(rows, separators=(",", ":")).encode()

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body}

    async def send(message: object) -> None:
        raise AssertionError(message)

    path = "/v1/commands/pipeline"
    headers = [(b"host", b"127.0.0.1:8080"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 4_711),
        "server": ("127.0.0.1", 8_080),
        "extensions": {GONE_EXTENSION: lambda: engine.figures().appended > 0},
    }
    await app(scope, receive, send)
    assert engine.figures().appended == RUN_COMMANDS_MAX // 2


async def test_a_pipeline_may_be_cancelled_while_its_replies_wait() -> None:
    """They come when nobody waits for them any more, and what ran has run."""
    failures = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, failure: failures.append(failure))
    async with Engine.open(None, clock=HandClock(), fsync="always") as engine:
        async with calling(app_on(engine, clock=HandClock())) as http:
            rows = [["XADD", "s", "*", "a", "1"], ["XLEN", "s"]]
            asked = asyncio.ensure_future(http.post("/v1/commands/pipeline", json=rows))
            await until(lambda: engine.figures().appended > 0)
            asked.cancel()
            with suppress(asyncio.CancelledError):
                await asked
            await settle()
            length = await http.post("/v1/commands", json=["XLEN", "s"])
        assert length.json() == {"result": 1}
    assert not failures
