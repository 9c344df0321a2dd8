"""Clients that ask for much and take nothing: the gateway stays within its memory, and others write on.

In a control group of 1.2 GB where the machine lets the test make one; the bytes are counted everywhere.
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.cluster.servers import BackendServer
from tests.server import Server, free_port

MIB: Final = 1 << 20
# Of the container; the memory limit and the pool follow from it.
GROUP_BYTES: Final = 1_200_000_000
MEMORY_BYTES: Final = GROUP_BYTES * 3 // 4
POOL_BYTES: Final = MEMORY_BYTES // 8
CLIENTS: Final = 20
COMMANDS: Final = 200
ROUNDS: Final = 5
# Beside the pool: replies that threads are writing, of up to 8 MiB as entries, as text, and joined.
MAKING_BYTES: Final = 6 * 3 * 8 * MIB
WATCHED_S: Final = 4.0

PIPELINE: Final = json.dumps([["XRANGE", "b", "-", "+"]] * COMMANDS).encode()
HTTP: Final = (
    b"POST /v1/commands/pipeline HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(PIPELINE), PIPELINE)
)
RESP: Final = b"*4\r\n$6\r\nXRANGE\r\n$1\r\nb\r\n$1\r\n-\r\n$1\r\n+\r\n" * COMMANDS
PAGE: Final = b"GET /v1/streams/b/entries?count=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10
COLUMNS: Final = b"GET /v1/streams/b/columns HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10
EXPORT: Final = b"GET /v1/streams/b/export HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def group() -> Iterator[Path | None]:
    """A control group with 1.2 GB; None where the machine has none to give."""
    for mount, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        made = Path(mount) / f"weir-test-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            (made / name).write_text(str(GROUP_BYTES))
        except OSError:
            made.rmdir()
            continue
        yield made
        deadline = time.monotonic() + 10
        while (made / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        made.rmdir()
        return
    yield None


@pytest.fixture
def ports() -> dict[str, int]:
    return {"resp": free_port()}


def options_of(place: str, stack: ExitStack, directory: Path, fsync: str) -> list[str]:
    """Where the engine is: in the gateway's process, behind fronts, or a server."""
    if place == "backend":
        return ["--backend", stack.enter_context(BackendServer(directory)).url]
    return ["--fsync", fsync, *(["--fronts", "2"] if place == "fronts" else [])]


@pytest.fixture
def server(
    tmp_path: Path, ports: dict[str, int], group: Path | None, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """With 5 MB in a stream."""
    words = ["--set", f"memory_bytes_max={MEMORY_BYTES}", "--set", f"resp_listen={ports['resp']}"]
    with ExitStack() as stack:
        words += options_of(getattr(request, "param", "embedded"), stack, tmp_path, "no")
        server = stack.enter_context(Server(tmp_path / "data", *words))
        if group is not None:
            for pid in processes_of(server):
                (group / "cgroup.procs").write_text(str(pid))
        entries = [{"fields": {"a": "x" * 50_000}}] * 100
        httpx.post(f"{server.url}/v1/streams/b/entries", json={"entries": entries}).raise_for_status()
        ports["http"] = server.port
        yield server


def processes_of(server: Server) -> list[int]:
    """The gateway's process, and those of its engine and its fronts."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [server.pid, *map(int, children)]


def resident_bytes(server: Server) -> int:
    """What is its own in all of them."""
    sizes = (Path(f"/proc/{pid}/statm").read_text().split() for pid in processes_of(server))
    return sum(int(size[1]) - int(size[2]) for size in sizes) * os.sysconf("SC_PAGE_SIZE")


def metric(server: Server, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


@pytest.mark.halved
@pytest.mark.parametrize(
    ("server", "port", "request_bytes"),
    [
        pytest.param("embedded", "http", HTTP, id="pipeline"),
        pytest.param("embedded", "resp", RESP, id="resp"),
        pytest.param("embedded", "http", PAGE, id="pages"),
        pytest.param("embedded", "http", COLUMNS, id="columns"),
        pytest.param("embedded", "http", EXPORT, id="export"),
        pytest.param("fronts", "http", HTTP, id="pipeline, fronts"),
        pytest.param("fronts", "http", PAGE, id="pages, fronts"),
        pytest.param("backend", "http", PAGE, id="pages, backend"),
        pytest.param("backend", "resp", RESP, id="resp, backend"),
    ],
    indirect=["server"],
)
def test_answers_that_are_not_taken_have_a_limit_together(
    server: Server, ports: dict[str, int], port: str, request_bytes: bytes
) -> None:
    """Everybody else's publishes succeed meanwhile, and the process grows by the pool at most."""
    before, statuses, highest = resident_bytes(server), list[int](), 0
    with ExitStack() as stack, httpx.Client(base_url=server.url) as innocent:
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            client.connect(("127.0.0.1", ports[port]))
            client.sendall(request_bytes)
        ends_at = time.monotonic() + WATCHED_S
        while time.monotonic() < ends_at:
            answer = innocent.post("/v1/streams/other/entries", json={"fields": {"n": "1"}})
            statuses.append(answer.status_code)
            held = metric(server, 'weir_buffer_bytes{pool="output"}')
            assert held <= POOL_BYTES
            highest = max(highest, resident_bytes(server))
            time.sleep(0.05)
    assert set(statuses) == {201}
    assert highest - before <= POOL_BYTES + MAKING_BYTES + CLIENTS * (64 << 10)


def test_the_kernel_holds_the_gateway_to_its_group(server: Server, group: Path | None) -> None:
    """In the tests above: without a group they have proved that bytes are counted, and no more."""
    if group is None:
        pytest.skip("no control group can be made: nothing kills a gateway that takes too much memory")
    assert str(server.pid) in (group / "cgroup.procs").read_text().split()


@pytest.mark.parametrize("place", ["embedded", "fronts", "backend"])
async def test_readers_of_small_entries_do_not_keep_each_other_out(tmp_path: Path, place: str) -> None:
    """Many of one caller in the same moment, whose answers wait for the disk: each holds what it got, and not
    the 8 MiB that its page might have had.
    """
    resp_port, limits = free_port(), httpx.Limits(max_connections=CLIENTS)
    words = ["--set", "memory_bytes_max=200000000", "--set", f"resp_listen={resp_port}"]
    with ExitStack() as stack:
        words += options_of(place, stack, tmp_path, "always")
        server = stack.enter_context(Server(tmp_path / "data", *words))
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=30) as client:
            entries = [{"fields": {"n": str(n)}} for n in range(2 * ROUNDS * CLIENTS)]
            (await client.post("/v1/streams/jobs/entries", json={"entries": entries})).raise_for_status()
            await client.put("/v1/streams/jobs/groups/g", json={"start": "0"})
            for _ in range(ROUNDS):
                reads = [
                    client.post(f"/v1/streams/jobs/groups/g/consumers/{n}/read", json={"count": 100})
                    for n in range(CLIENTS)
                ]
                assert {answer.status_code for answer in await asyncio.gather(*reads)} == {200}
            await client.patch("/v1/streams/jobs/groups/g", json={"last_delivered_id": "0"})
        links = [await asyncio.open_connection("127.0.0.1", resp_port) for _ in range(CLIENTS)]
        for _ in range(ROUNDS):
            for _, writer in links:
                writer.write(b"XREADGROUP GROUP g c COUNT 100 STREAMS jobs >\r\n")
            firsts = {(await reader.read(1))[:1] for reader, _ in links}
            assert b"-" not in firsts
            for reader, _ in links:
                await reader.read(1 << 20)
        for _, writer in links:
            writer.close()
        assert metric(server, 'weir_buffer_refused_total{pool="output"}') == 0


LISTS: Final = ("b/schedules?limit=1000", "b/schedules?limit=4", "?limit=1000")


@pytest.mark.parametrize("path", LISTS)
def test_lists_that_are_not_taken_have_a_limit_too(tmp_path: Path, path: str) -> None:
    """With as little memory as the pool can have: what is in it is all that the process grows by, beside the
    list that is being made.
    """
    entry = {"fields": {"a": "x" * 900_000}}
    asked = (
        f"GET /v1/streams{'' if path[0] == '?' else '/'}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    )
    words = ("--set", f"memory_bytes_max={256 * MIB}", "--fsync", "no")
    with Server(tmp_path / "data", *words) as server, httpx.Client(base_url=server.url) as innocent:
        for number in range(10):
            later = {"in_ms": 3_600_000, "entry": entry}
            innocent.put(f"/v1/streams/b/schedules/s{number}", json=later).raise_for_status()
            innocent.post(f"/v1/streams/a{number}/entries", json=entry).raise_for_status()
        innocent.get(asked.split()[1].decode()).raise_for_status()
        before, statuses, highest = resident_bytes(server), set[int](), 0
        with ExitStack() as stack:
            for _ in range(2 * CLIENTS):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
                client.connect(("127.0.0.1", server.port))
                client.sendall(3 * asked)
                answer = innocent.post("/v1/streams/other/entries", json={"fields": {"n": "1"}})
                statuses.add(answer.status_code)
                assert metric(server, 'weir_buffer_bytes{pool="output"}') <= 32 * MIB
                highest = max(highest, resident_bytes(server))
        assert statuses == {201}
        assert highest - before <= 2 * CLIENTS * (64 << 10) + 8 * MIB + 3 * 8 * MIB
