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

from app.live.budgets import FREE_BYTES
from tests.app.sockets import Raw
from tests.cluster.servers import BackendServer
from tests.server import Server, free_port
from tests.waiting import until

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
PATIENCE_S: Final = 15.0
RECEIVE_BYTES: Final = 16 << 10

RANGE: Final = ["XRANGE", "b", "-", "+"]
RESP_RANGE: Final = b"XRANGE b - +\r\n"
LARGE_BYTES: Final = 900_000
# A stream whose name makes its notifications long. Of 2 KB each: one client may have them all, and not all.
LONG_NAME: Final = "n" * 500
NOTIFICATIONS: Final = 2_500


def asking(method: str, path: str, times: int, commands: object = None) -> bytes:
    """Requests of this kind, several on one connection."""
    body = b"" if commands is None else json.dumps(commands).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head.encode(), len(body), body) * times


HERE: Final = ("embedded",)
TWO: Final = ("embedded", "backend")
EVERYWHERE: Final = ("embedded", "fronts", "backend")
# By door: its port, what is sent to it, and where the engine is. Elsewhere it is served by the same code.
DOORS: Final = {
    "pages": ("http", asking("GET", "/v1/streams/b/entries?count=1000", 10), EVERYWHERE),
    "asgi": ("http", asking("GET", "/v1/streams/b/entries?wait=1000&after=0", 3), HERE),
    "columns": ("http", asking("GET", "/v1/streams/b/columns", 10), EVERYWHERE),
    "export": ("http", asking("GET", "/v1/streams/b/export", 3), HERE),
    "sse": ("http", asking("GET", "/v1/streams/b/tail?after=0", 3), TWO),
    "command": ("http", asking("POST", "/v1/commands", 3, RANGE), HERE),
    "pipeline": ("http", asking("POST", "/v1/commands/pipeline", 1, [RANGE] * COMMANDS), EVERYWHERE),
    "multi-exec": ("http", asking("POST", "/v1/commands/multi-exec", 3, [RANGE] * 2), TWO),
    "resp": ("resp", RESP_RANGE * COMMANDS, EVERYWHERE),
    "resp multi": ("resp", b"MULTI\r\n%bEXEC\r\n" % (RESP_RANGE * 2), HERE),
    "resp blocked": ("resp", b"XREAD BLOCK 10000 STREAMS late $\r\n", HERE),
    "notifications": ("resp", b"PSUBSCRIBE __key*\r\n", HERE),
    "websocket": ("http", b"", EVERYWHERE),
}
# Those at which memory is looked at for a while; at the others until something is counted.
WATCHED: Final = ("pages", "columns", "export", "pipeline", "resp")


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
        for stream, sent in (("b", entries), ("large", [{"fields": {"a": "x" * LARGE_BYTES}}] * 5)):
            added = httpx.post(f"{server.url}/v1/streams/{stream}/entries", json={"entries": sent})
            added.raise_for_status()
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


def connect(stack: ExitStack, port: int) -> socket.socket:
    """A client that takes nothing."""
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    client.connect(("127.0.0.1", port))
    return client


def ask(stack: ExitStack, ports: dict[str, int], door: str) -> None:
    """The same, which has asked for much at this door."""
    port, sent, _ = DOORS[door]
    if door == "websocket":
        raw = stack.enter_context(Raw(ports["http"], RECEIVE_BYTES))
        assert raw.handshake()[0] == 101
        raw.send("subscribe", sub="b", streams={"large": "0"}, credit=1_000)
        return
    client = connect(stack, ports[port])
    client.sendall(sent)
    if door == "notifications":
        assert client.recv(1) == b"*"


def cause(door: str, server: Server, link: socket.socket) -> None:
    """What the clients wait for, where they wait for something, by another client of Redis's protocol."""
    if door == "resp blocked":
        status = f"{server.url}/v1/status"
        until(lambda: httpx.get(status).json()["connections"]["waiting_reads"] == CLIENTS, "they are blocked")
        value = b"$%d\r\n%b\r\n" % (LARGE_BYTES, b"x" * LARGE_BYTES)
        add = b"*5\r\n$4\r\nXADD\r\n$4\r\nlate\r\n$1\r\n*\r\n$1\r\na\r\n" + value
        link.sendall(b"MULTI\r\n" + add * 5 + b"EXEC\r\n")
    elif door == "notifications":
        link.sendall(f"XADD {LONG_NAME} MAXLEN 1 * a b\r\n".encode() * NOTIFICATIONS)


CASES: Final = [(place, door) for door, (_, _, places) in DOORS.items() for place in places]


@pytest.mark.halved
@pytest.mark.parametrize(("server", "door"), CASES, indirect=["server"])
def test_answers_that_are_not_taken_have_a_limit_together(
    server: Server, ports: dict[str, int], door: str
) -> None:
    """At every door: what is held is counted, and given back when they leave. Everybody else's publishes
    succeed meanwhile, and the process grows by the pool at most.
    """
    before, statuses, highest = resident_bytes(server), set[int](), 0

    def watch(innocent: httpx.Client) -> float:
        nonlocal highest
        answer = innocent.post("/v1/streams/other/entries", json={"fields": {"n": "1"}})
        statuses.add(answer.status_code)
        held = metric(server, 'weir_buffer_bytes{pool="output"}')
        assert held <= POOL_BYTES
        highest = max(highest, resident_bytes(server))
        return held

    with httpx.Client(base_url=server.url) as innocent:
        with ExitStack() as stack:
            for _ in range(CLIENTS):
                ask(stack, ports, door)
            cause(door, server, stack.enter_context(socket.create_connection(("127.0.0.1", ports["resp"]))))
            ends_at = time.monotonic() + (WATCHED_S if door in WATCHED else 0)
            until(lambda: watch(innocent) > FREE_BYTES, "it is counted")
            while time.monotonic() < ends_at:
                watch(innocent)
                time.sleep(0.05)
        until(lambda: watch(innocent) == 0, "given back", PATIENCE_S)
    assert statuses == {201}
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
    asked = asking("GET", f"/v1/streams{'' if path[0] == '?' else '/'}{path}", 3)
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
                connect(stack, server.port).sendall(asked)
                answer = innocent.post("/v1/streams/other/entries", json={"fields": {"n": "1"}})
                statuses.add(answer.status_code)
                assert metric(server, 'weir_buffer_bytes{pool="output"}') <= 32 * MIB
                highest = max(highest, resident_bytes(server))
        assert statuses == {201}
        assert highest - before <= 2 * CLIENTS * (64 << 10) + 8 * MIB + 3 * 8 * MIB
