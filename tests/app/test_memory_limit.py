"""The memory limit at every API of a real gateway, its default, and what the log says of it.

Knows: HTTP, WebSocket, the command API, files of control groups.
Must never know: how the engine counts.
"""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from structlog.testing import capture_logs

from app.metrics import memory_limit
from app.metrics.memory_limit import MemoryLimits, MemoryLog, default_bytes
from app.settings import Settings
from engine import Caps, Engine, Memory
from tests.app.conftest import app_on, calling
from tests.app.sockets import talking
from tests.cli.command import weir
from tests.engine.clocks import HandClock, let_threads_run
from tests.server import Server

OOM: Final = "OOM command not allowed when used memory > 'maxmemory'."
MACHINE: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
ENTRY: Final = {"fields": {"a": "1"}}
GB: Final = 1 << 30
# How often a test looks for what a thread does: some seconds.
_LOOKS_MAX: Final = 10_000

# --- the default --------------------------------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, GB),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "1073741824\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            GB,
        ),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "2147483648\n",
                "sys/fs/cgroup/a/memory.high": "1073741824\n",
            },
            GB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/x\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
            },
            GB,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1073741824\n",
            },
            GB,
        ),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/memory.max": "max\n"}, MACHINE),
    ],
    ids=["none", "v2", "v2 above", "v2 high", "v1 in a container", "v1", "v2 unlimited"],
)
def test_the_default_is_three_quarters_of_the_smallest_limit(
    files: dict[str, str], found: int, tmp_path: Path
) -> None:
    """Of a control group, of one above it, or of the machine."""
    assert default_bytes(write(tmp_path, files)) == int(found * 0.75)


@pytest.mark.parametrize(
    ("given", "soft_bytes"),
    [
        ({}, 600),
        ({"memory_bytes_soft": 1}, 1),
        ({"memory_bytes_soft": 999}, 999),
        ({"memory_bytes_soft": 1_000}, None),
        ({"memory_bytes_soft": 1 << 50}, None),
        ({"backend": "redis://127.0.0.1:1"}, None),
        ({"backend": "redis://127.0.0.1:1", "memory_bytes_soft": 1}, None),
    ],
)
def test_cold_entries_leave_memory_above_three_fifths_of_it(
    given: dict[str, Any], soft_bytes: int | None
) -> None:
    """By default; never where the setting is not below the limit, or a backend has the entries."""
    assert memory_limit.limits(Settings(memory_bytes_max=1_000, **given)) == MemoryLimits(1_000, soft_bytes)


def test_what_is_shown_of_the_soft_limit_is_what_holds(tmp_path: Path) -> None:
    """By `weir config`, beside the setting, and by the status of a gateway, with fronts too."""
    most = default_bytes()
    for words, config, soft_bytes in (
        ((), f"# here: {most * 3 // 5} bytes", most * 3 // 5),
        (("--set", "memory_bytes_max=1000000000"), "# here: 600000000 bytes", 600_000_000),
        (("--set", "memory_bytes_soft=7"), None, 7),
        (("--set", f"memory_bytes_soft={most}", "--fronts", "1"), "# here: never: it is not below", None),
    ):
        lines = weir("", "config", *words).out.splitlines()
        at = next(at for at, line in enumerate(lines) if line.startswith("memory_bytes_soft ="))
        assert lines[at - 1].startswith(config or "# memory use above which cold entries leave")
        with Server(tmp_path / f"data-{soft_bytes}", *words) as server:
            memory = httpx.get(f"{server.url}/v1/status").json()["memory"]
        assert memory["bytes_soft"] == soft_bytes
    shown = weir("", "config", "--backend", "redis://127.0.0.1:1").out
    assert "# here: never: the backend has the entries\nmemory_bytes_soft = 0" in shown


# --- the log ------------------------------------------------------------------------------------------------


def test_the_log_says_once_a_minute_that_memory_is_full() -> None:
    """With the remedy at `critical`, at `warning` when there is room; a flapping limit does not fill it."""
    memory, now_s = Memory(100), [0.0]
    with capture_logs() as lines:
        MemoryLog(memory, lambda: now_s[0])
        for at_s, change in ((1, 100), (2, -1), (3, 1), (4, -1), (62, 1)):
            now_s[0] = at_s
            memory.streams.add(change)
            memory.observe(None)
    assert [(line["log_level"], line["used_bytes"]) for line in lines] == [
        ("critical", 100),
        ("warning", 99),
        ("critical", 100),
    ]
    assert "memory_bytes_max" in lines[0]["remedy"]


def test_a_start_with_too_much_is_logged_at_once() -> None:
    memory = Memory(1)
    memory.streams.add(1)
    memory.observe(None)
    with capture_logs() as lines:
        MemoryLog(memory, lambda: 0.0)
    assert [line["log_level"] for line in lines] == ["critical"]


# --- the APIs -----------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with a stream, and a group that has one of its entries pending."""
    with Server(tmp_path / "data") as server, httpx.Client(base_url=server.url) as http:
        for number in range(3):
            http.post("/v1/streams/s/entries", json={"id": f"5-{number}", **ENTRY}).raise_for_status()
        http.put("/v1/streams/s/groups/g", json={"start": "0"}).raise_for_status()
        http.post("/v1/streams/s/groups/g/consumers/c/read", json={"count": 1}).raise_for_status()
        assert server.stop() == 0
    return tmp_path / "data"


def lines_of(data: Path) -> list[dict[str, Any]]:
    text = data.with_name("data.log").read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def check_refused(http: httpx.Client) -> None:
    """At each API that adds something, nothing is changed."""
    group = "/v1/streams/s/groups"
    answers = [
        http.post("/v1/streams/s/entries", json=ENTRY),
        http.post("/v1/streams/s/entries", json={"entries": [ENTRY, ENTRY]}),
        http.post("/v1/streams/s/entries?a=1&b=2", content=b"{}\n{}\n"),
        http.post("/v1/publish", json={"streams": {"s": [ENTRY], "t": [ENTRY]}}),
        http.put("/v1/streams/t", json={}),
        http.put(f"{group}/h", json={"start": "0"}),
        http.put(f"{group}/g/consumers/d"),
        http.post(f"{group}/g/consumers/c/read", json={"count": 1}),
        http.post("/v1/commands", json=["XADD", "s", "*", "a", "1"]),
        http.post("/v1/commands", json=["XGROUP", "CREATE", "s", "h", "0"]),
        http.post("/v1/commands/multi-exec", json=[["XDEL", "s", "5-1"], ["XADD", "s", "*", "a", "1"]]),
    ]
    problems = [answer.json() for answer in answers if answer.status_code == 507]
    assert len(problems) == len(answers) - 1, [answer.status_code for answer in answers]
    assert {problem["code"] for problem in problems} == {"memory_full"}
    assert {problem["redis_error"] for problem in problems} == {OOM}
    assert all(problem["retryable"] and problem["memory_bytes_max"] == 1 for problem in problems)
    assert answers[2].status_code == 400, "what is wrong by itself is refused for that"
    assert "retry-after" in answers[0].headers
    commands = [["XADD", "s", "*", "a", "1"], ["XLEN", "s"]]
    pipeline = http.post("/v1/commands/pipeline", json=commands).json()
    assert pipeline == [{"error": OOM}, {"result": 3}]


def test_a_start_with_too_much_serves_and_refuses_what_adds(data: Path) -> None:
    """Over REST, the command API and WebSocket; reading, acknowledging, trimming and deleting go on."""
    with (
        Server(data, "--set", "memory_bytes_max=1") as server,
        httpx.Client(base_url=server.url) as http,
        talking(server) as client,
    ):
        check_refused(http)
        refused = client.ask("publish", stream="s", fields={"a": "1"})
        assert (refused["op"], refused["problem"]["code"]) == ("error", "memory_full")
        assert client.ask("command", command=["XACK", "s", "g", "5-0"])["result"] == 1, "the socket goes on"
        assert len(http.get("/v1/streams/s/entries").json()["entries"]) == 3
        assert http.delete("/v1/streams/s/entries/5-2").status_code in (200, 204)
        assert http.post("/v1/streams/s/trim", json={"maxlen": 1}).status_code == 200
        assert http.delete("/v1/streams/s").status_code in (200, 204)
        (line,) = [line for line in lines_of(data) if line["level"] == "critical"]
        assert line["memory_bytes_max"] == 1
        assert "memory_full" in line["event"]


@asynccontextmanager
async def limited(bytes_max: int | None) -> AsyncIterator[tuple[httpx.AsyncClient, Engine]]:
    """A gateway at which only the estimate counts: it looks at its process once, and its time stands still.
    It has a group with one of two entries pending.
    """
    clock, loop = HandClock(), asyncio.get_running_loop()
    clock.drive(loop)
    async with Engine.open(None, clock=clock, fsync="no", caps=Caps(memory_bytes_max=bytes_max)) as engine:
        engine.memory.observe(0)
        async with calling(app_on(engine, clock=clock)) as http:
            for entry_id in ("5-0", "5-1"):
                await http.post("/v1/streams/s/entries", json={"id": entry_id, **ENTRY})
            await http.put("/v1/streams/s/groups/g", json={"start": "0"})
            answer = await http.post("/v1/streams/s/groups/g/consumers/c/read", json={"count": 1})
            assert answer.status_code == 200
            yield http, engine
        engine.check()
    clock.let_be(loop)


# As long as a node may be: it is one of its own.
LARGE: Final = {"fields": {"a": "x" * (64 << 10)}}


async def add(http: httpx.AsyncClient, entry: object = LARGE) -> int:
    return (await http.post("/v1/streams/s/entries", json=entry)).status_code


async def shown(http: httpx.AsyncClient) -> object:
    """All that a refused write could have changed."""
    paths = ("/v1/streams/s", "/v1/streams/s/entries?count=100", "/v1/streams/s/groups/g/pending")
    return [(await http.get(path)).json() for path in paths]


async def why(http: httpx.AsyncClient) -> dict[str, str]:
    """What holds up the group, and what to do about it."""
    answer = await http.get("/v1/streams/s/groups/g/why")
    return {one["code"]: one["remedies"]["rest"] for one in answer.json()["reasons"]}


@pytest.mark.parametrize(("beside_bytes", "taken"), [(-1, 20), (0, 20), (1, 21)])
async def test_the_last_entry_that_fits_is_taken_and_the_next_refused(beside_bytes: int, taken: int) -> None:
    """The limit is what twenty entries take, a byte less, a byte more: an entry that finds a byte free is
    taken. What is refused changes nothing; reading, acknowledging, trimming and deleting go on.
    """
    async with limited(None) as (http, engine):
        assert [await add(http) for _ in range(20)] == [201] * 20
        twenty_bytes = engine.memory.used_bytes
    async with limited(twenty_bytes + beside_bytes) as (http, engine):
        assert [await add(http) for _ in range(taken + 2)] == [201] * taken + [507] * 2
        before = await shown(http), engine.memory.used_bytes, engine.log_figures()
        refused = await http.post("/v1/streams/s/entries", json=LARGE)
        assert (refused.status_code, refused.json()["code"]) == (507, "memory_full")
        assert (await shown(http), engine.memory.used_bytes, engine.log_figures()) == before
        assert "acknowledge, trim or delete entries" in (await why(http))["memory_full"]
        read = await http.post("/v1/streams/s/groups/g/consumers/c/read", json={"count": 1})
        assert [entry["id"] for entry in read.json()["entries"]] == ["5-1"]
        acked = await http.post("/v1/streams/s/groups/g/ack", json={"ids": ["5-0"]})
        assert acked.json()["acknowledged"] == 1
        assert (await http.delete("/v1/streams/s/entries/5-1")).status_code in (200, 204)
        assert await add(http) == 507, "it was one of an open node, which goes as a whole"
        trimmed = await http.post("/v1/streams/s/trim", json={"maxlen": 1})
        assert trimmed.json()["deleted"] == taken
        assert await add(http) == 201
        assert "memory_full" not in await why(http)


async def test_compressing_makes_room_without_a_trim() -> None:
    """So a write may be taken after others were refused: a thread exchanges what has gone cold for its
    compressed form, and what is in use sinks at that moment.
    """
    async with limited(16 * (64 << 10)) as (http, engine):
        assert await add(http, {"entries": [LARGE] * 16}) == 201
        assert await add(http) == 507
        # What the next second would bring; the loop's time stands still.
        engine._packer.begin_packing()  # noqa: SLF001
        for _ in range(_LOOKS_MAX):
            if not engine.memory.is_full:
                break
            await let_threads_run()
        assert await add(http) == 201


def test_writes_go_on_when_there_is_room(tmp_path: Path) -> None:
    """A limit that is reached while the gateway runs; what is deleted makes room, though the process keeps
    the memory.
    """
    with Server(tmp_path / "data") as server:
        pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
        server.stop()
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (32 << 20)
    # Entries of a megabyte, and files of what is cold, take up to 24 MB for themselves: threads have heaps.
    words = ["--set", f"memory_bytes_max={limit}", "--set", f"memory_bytes_soft={limit}"]
    with Server(tmp_path / "data", *words) as server, httpx.Client(base_url=server.url) as http:
        published = [publish(http) for _ in range(800)]
        assert published[0] == 201
        assert 507 in published, "100 MB are more than the limit"
        # All that went in, also behind the first refusal: compressing halves what is held, and buffers go.
        held = published.count(201) // 8
        assert held < 80, f"{held} MB went in where there is room for 32 MB"
        assert http.delete("/v1/streams/s").status_code in (200, 204)
        assert publish(http) == 201


def publish(http: httpx.Client) -> int:
    """The status of publishing an eighth of a megabyte that no compressor makes smaller than half."""
    entry = {"fields": {"v": secrets.token_hex(64 << 10)}}
    return http.post("/v1/streams/s/entries", json=entry).status_code
