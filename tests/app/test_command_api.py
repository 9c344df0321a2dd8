"""The command API: one command, a pipeline, a transaction; encodings; what waits and what it may cost."""

import asyncio
import base64
import threading
from collections.abc import Sequence

import httpx
import pytest

from app.redis import bodies
from engine import Engine, EngineProtocol, SystemClock
from engine.storage.memory import MemoryStorage
from tests.app.conftest import app_on, calling, until_waiting
from tests.bounds import bounded
from tests.engine.clocks import HandClock

ONE, PIPELINE, TRANSACTION = "/v1/commands", "/v1/commands/pipeline", "/v1/commands/multi-exec"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def test_a_command_answers_its_result(http: httpx.AsyncClient) -> None:
    """200 with `result` in RESP2's shape."""
    added = await http.post(ONE, json=["XADD", "s", "1-0", "f", "v", "n", 5, "t", True])
    assert (added.status_code, added.json()) == (200, {"result": "1-0"})
    found = await http.post(ONE, json=["XRANGE", "s", "-", "+"])
    assert found.json() == {"result": [["1-0", ["f", "v", "n", "5", "t", "true"]]]}
    assert (await http.post(ONE, json=["PING"])).json() == {"result": "PONG"}
    assert (await http.post(ONE, json=["XREAD", "STREAMS", "s", "$"])).json() == {"result": None}


async def test_a_wrong_command_is_400_with_redis_words(http: httpx.AsyncClient) -> None:
    """`error` is Redis's sentence and nothing else."""
    answer = await http.post(ONE, json=["XADD", "s"])
    assert answer.status_code == 400
    assert answer.json() == {"error": "ERR wrong number of arguments for 'xadd' command"}
    answer = await http.post(ONE, json=["FOO", "bar"])
    assert answer.json() == {"error": "ERR unknown command 'FOO', with args beginning with: 'bar' "}
    answer = await http.post(ONE, json=["XGROUP", "CREATE", "none", "g", "$"])
    assert answer.json()["error"].startswith("ERR The XGROUP subcommand requires the key to exist")


@pytest.mark.parametrize("way", [ONE, PIPELINE, TRANSACTION])
async def test_a_read_may_have_a_total(http: httpx.AsyncClient, way: str) -> None:
    """MAXCOUNT and MAXSIZE hold over all streams of one command."""
    for stream in ("s", "t"):
        for number in (1, 2):
            await http.post(ONE, json=["XADD", stream, f"{number}-0", "f", "v"])

    async def read(*words: str) -> object:
        command = ["XREAD", *words, "STREAMS", "s", "t", "0", "0"]
        answer = (await http.post(way, json=command if way == ONE else [command])).json()
        found = answer if way == ONE else answer[0]
        return [(name, len(entries)) for name, entries in found["result"]]

    assert await read("MAXCOUNT", "3") == [("s", 2), ("t", 1)]
    assert await read("MAXSIZE", "1") == [("s", 1)]
    assert await read("MAXCOUNT", "1000000", "MAXSIZE", "1000000") == [("s", 2), ("t", 2)]


async def test_integers_beyond_javascript_are_strings(http: httpx.AsyncClient) -> None:
    """Exact at any size."""
    await http.post(ONE, json=["XADD", "s", "1-0", "f", "v"])
    await http.post(ONE, json=["XSETID", "s", "1-0", "ENTRIESADDED", "9223372036854775807"])
    info = (await http.post(ONE, json=["XINFO", "STREAM", "s"])).json()["result"]
    assert info[info.index("entries-added") + 1] == "9223372036854775807"


@pytest.mark.parametrize("header", ["upstash-encoding", "weir-encoding"])
async def test_replies_may_be_base64(http: httpx.AsyncClient, header: str) -> None:
    """Every string of the reply; with Weir-Encoding those of the arguments too, for bytes of any kind."""
    words = ["XADD", "s", "1-0", "f", "v"]
    sent = [b64(word) for word in words] if header == "weir-encoding" else words
    answer = await http.post(ONE, json=sent, headers={header: "base64"})
    assert answer.json() == {"result": b64("1-0")}
    for unknown in ("rot13", ""):
        answer = await http.post(ONE, json=sent, headers={header: unknown})
        assert answer.status_code == 422


async def test_any_bytes_can_be_stored(http: httpx.AsyncClient) -> None:
    """As base64 both ways."""
    raw = base64.b64encode(b"\xff\x00").decode()
    headers = {"weir-encoding": "base64"}
    await http.post(ONE, json=[b64("XADD"), b64("s"), b64("1-0"), b64("f"), raw], headers=headers)
    answer = await http.post(ONE, json=[b64("XRANGE"), b64("s"), b64("-"), b64("+")], headers=headers)
    assert answer.json()["result"][0][1][1] == raw


async def test_the_commands_of_a_pipeline_wait_no_longer_together_than_one_may(
    engine: EngineProtocol,
) -> None:
    """Where the first has waited for so long, the next takes what is there."""
    settings, clock = bounded(log_requests="none", wait_ms_max=60_000), HandClock()
    app = app_on(engine, settings, clock)
    rows = [["XREAD", "BLOCK", 60_000, "STREAMS", stream, "$"] for stream in ("a", "b")]
    async with calling(app) as http, asyncio.timeout(20):
        reading = asyncio.create_task(http.post(PIPELINE, json=rows))
        await until_waiting(engine)
        clock.pass_ms(settings.wait_ms_max)
        await http.post("/v1/streams/a/entries", json={"id": "1-0", "fields": {"f": "v"}})
        assert (await reading).json() == [{"result": [["a", [["1-0", ["f", "v"]]]]]}, {"result": None}]


async def test_a_transaction_is_on_disk_where_one_of_its_commands_waits_for_that() -> None:
    """As each command before a WAITAOF is."""
    engine = Engine.open(MemoryStorage(), clock=SystemClock(), fsync="no")
    await engine.start()
    app = app_on(engine, bounded(log_requests="none"))
    add = ["XADD", "s", "*", "f", "v"]
    left: list[int] = []
    async with calling(app) as http:
        # What begins the log is on disk in any case.
        for rows in ([add], [add], [add, ["WAITAOF", 1, 0, 0]]):
            assert (await http.post(TRANSACTION, json=rows)).status_code == 200
            log = engine.log_figures()
            assert log is not None
            left.append(log.unsynced_bytes)
    await engine.close()
    assert left[1] > left[2] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (ONE, {"a": 1}),
        (ONE, "PING"),
        (ONE, [["PING"]]),
        (ONE, []),
        (PIPELINE, ["PING"]),
        (TRANSACTION, {"a": []}),
    ],
)
async def test_bodies_of_another_shape_are_told_apart(
    http: httpx.AsyncClient, path: str, body: object
) -> None:
    """There is an `error` with any status."""
    answer = await http.post(path, json=body)
    found = answer.json()[0] if isinstance(answer.json(), list) else answer.json()
    assert "error" in found
    assert answer.status_code in (200, 400, 422)


async def test_too_many_commands_are_413(http: httpx.AsyncClient) -> None:
    """As a problem with `error` beside."""
    answer = await http.post(PIPELINE, json=[["PING"]] * 6_000)
    assert answer.status_code == 200
    answer = await http.post(PIPELINE, content=b"[" + b",".join([b"[]"] * 10_001) + b"]")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_entries")
    assert answer.json()["error"].startswith("ERR")


@pytest.mark.parametrize(("count", "inline"), [(499, True), (500, False)])
@pytest.mark.parametrize("path", [PIPELINE, TRANSACTION])
async def test_many_commands_are_parsed_in_a_thread(
    http: httpx.AsyncClient, path: str, count: int, monkeypatch: pytest.MonkeyPatch, *, inline: bool
) -> None:
    """However short they are: others are served meanwhile."""
    threads: list[int] = []
    check = bodies.check_number

    def noted(rows: Sequence[object], commands_max: int) -> None:
        threads.append(threading.get_ident())
        check(rows, commands_max)

    monkeypatch.setattr(bodies, "check_number", noted)
    await http.post(path, json=[["PING"]] * count)
    assert {thread == threading.get_ident() for thread in threads} == {inline}


async def test_a_scan_walks_over_all_names_page_by_page(http: httpx.AsyncClient) -> None:
    """Of a caller that may see all of them."""
    names = [f"s{number}" for number in range(7)]
    await http.post(PIPELINE, json=[["XADD", name, "*", "n", "1"] for name in names])
    found, cursor = list[str](), ""
    while cursor != "0":
        answer = await http.post(ONE, json=["SCAN", cursor or "0", "COUNT", "3"])
        cursor, page = answer.json()["result"]
        assert len(page) <= 3
        found += page
    assert found == names


async def test_names_are_checked_here_too(http: httpx.AsyncClient) -> None:
    """No slash, no control character, nothing too long."""
    for name in ("a//b", "/a", "a/..", "weir/gateways", "a\nb", "", "x" * 513, ".", ".."):
        answer = await http.post(ONE, json=["XADD", name, "*", "f", "v"])
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("ERR invalid name: a stream name has 1 to 512 bytes")
