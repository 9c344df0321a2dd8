"""A fault inside the engine, in a real gateway: it is restarted from its log, and every client learns it.

The second one within ten minutes ends the process, for its supervisor.
"""

import contextlib
import http.client
import json
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.app.hanging import SLOW, STUCK, UNREAD
from tests.app.poisoned import POISON
from tests.server import FRONTS, Server, call

GROUP: Final = "/v1/streams/s/groups/g"
BACK_S_MAX: Final = 20.0
EVENTS: Final = {"accept": "text/event-stream"}


class Poisoned(Server):
    """A server whose engine fails at any entry for one stream."""

    program: str | None = "tests.app.poisoned"


class Hanging(Server):
    """A server whose disk hangs too."""

    program: str | None = "tests.app.hanging"


def add(server: Server, stream: str, **members: object) -> tuple[int, Any]:
    return call(server, "POST", f"/v1/streams/{stream}/entries", {**members, "fields": {"a": "1"}})


def events(server: Server, path: str) -> str:
    """All that a browser is sent, to the end."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=EVENTS)
        return connection.getresponse().read().decode()


def closed_with(socket: ClientConnection) -> tuple[int | None, str]:
    """How the other side closes."""
    try:
        while True:
            socket.recv(timeout=30)
    except ConnectionClosed as closed:
        return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (None, "")


def until_ready(server: Server) -> list[str]:
    """Wait; what it said of itself meanwhile."""
    said: list[str] = []
    deadline = time.monotonic() + BACK_S_MAX
    while time.monotonic() < deadline:
        status, report = call(server, "GET", "/healthz/ready")
        if status == 200:
            return said
        said.append(report["status"])
        time.sleep(0.005)
    raise AssertionError(f"it does not come back: {said[-3:]}")


@pytest.fixture(params=["always", "everysec"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Poisoned]:
    with Poisoned(tmp_path / "data", "--fsync", request.param) as server:
        yield server


@contextlib.contextmanager
def readers(server: Server) -> Iterator[dict[str, Future[Any]]]:
    """One of each kind of reader, all of them waiting."""
    with ThreadPoolExecutor(8) as pool, connect(f"ws://127.0.0.1:{server.port}/v1/ws") as socket:
        socket.send(json.dumps({"op": "subscribe", "sub": "f", "streams": {"s": "$"}}))
        socket.send(json.dumps({"op": "consume", "sub": "c", "stream": "s", "group": "g", "consumer": "w"}))
        while json.loads(socket.recv(timeout=30)).get("op") != "entries":
            pass
        ends: dict[str, Future[Any]] = {
            "socket": pool.submit(closed_with, socket),
            "tail": pool.submit(events, server, "/v1/streams/s/tail"),
            "consumer": pool.submit(events, server, f"{GROUP}/consumers/e/stream"),
            "poll": pool.submit(call, server, "GET", "/v1/streams/s/entries?after=$&wait=30000"),
            "group": pool.submit(call, server, "POST", f"{GROUP}/consumers/p/read", {"wait": 30000}),
        }
        deadline = time.monotonic() + BACK_S_MAX
        while time.monotonic() < deadline:
            if call(server, "GET", "/v1/status")[1]["connections"]["following"] >= 4:
                break
            time.sleep(0.01)
        yield ends


def test_a_fault_restarts_the_engine_and_a_second_one_ends_the_process(server: Poisoned) -> None:
    """500 for the poison alone; 4000, `end` and 503 for who waits; all that was answered is there."""
    shown = add(server, "s")[1]["id"]
    assert call(server, "PUT", GROUP, {"start": "0"})[0] == 201
    with readers(server) as ends:
        status, problem = add(server, POISON, id="1-0")
        assert (status, problem["code"], problem["retryable"]) == (500, "internal", False)
        until_ready(server)
        assert ends["socket"].result() == (4000, "restarting")
        for name in ("tail", "consumer"):
            text = ends[name].result()
            assert "event: end" in text, name
            assert "restarting" in text, name
        for name in ("poll", "group"):
            status, problem = ends[name].result()
            assert (status, problem["code"], problem["retryable"]) == (503, "restarting", True), name
            assert problem["outcome"] == "not done", name
    assert call(server, "GET", f"/v1/streams/{POISON}")[0] == 404
    status, page = call(server, "GET", "/v1/streams/s/entries")
    assert [one["id"] for one in page["entries"]] == [shown]
    status, pending = call(server, "GET", f"{GROUP}/pending?count=1")
    assert [one["consumer"] for one in pending["pending"]] == ["w"]
    status, added = add(server, "s")
    assert status == 201
    assert int(added["id"].partition("-")[0]) > int(shown.partition("-")[0])
    (line,) = [line for line in server.log_lines() if line["level"] == "critical"]
    assert "a planted fault" in line["error"]
    assert any("poisoned.py" in place for place in line["trace"])
    # Again: it would go on like that for ever.
    assert add(server, POISON)[0] == 500
    assert server.exit_code() == 5
    server.program = None
    server.start()
    status, page = call(server, "GET", "/v1/streams/s/entries")
    assert [one["id"] for one in page["entries"]] == [shown, added["id"]]
    assert server.stop() == 0


def test_a_disk_that_does_not_come_back_ends_the_process(tmp_path: Path) -> None:
    """A fault while a sync hangs: what waits for it gets no answer, and what was answered is still there."""
    with Hanging(tmp_path / "data", "--fsync", "always") as server, ThreadPoolExecutor(2) as pool:
        status, shown = add(server, "s")
        assert status == 201
        waiting = pool.submit(add, server, SLOW)
        while call(server, "GET", "/v1/status")[1]["log"]["answers_waiting"] == 0:
            time.sleep(0.01)
        pool.submit(add, server, POISON)
        assert server.exit_code() == 5
        assert is_unknown(waiting)
        events = [line["event"] for line in server.log_lines() if line["level"] == "critical"]
        assert events == ["a fault inside the engine", "a disk does not come back"]
        server.program = None
        server.start()
        status, page = call(server, "GET", "/v1/streams/s/entries")
        assert [one["id"] for one in page["entries"]] == [shown["id"]]
        assert server.stop() == 0


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_stop_does_not_wait_for_a_disk_for_ever(fsync: str, tmp_path: Path) -> None:
    """SIGTERM while a sync hangs: answers have their time, then the log has, then the process ends with 1."""
    options = ("--fsync", fsync, "--set", "drain_s_max=1")
    with Hanging(tmp_path / "data", *options) as server, ThreadPoolExecutor(1) as pool:
        status, shown = add(server, "s")
        assert status == 201
        waiting = pool.submit(add, server, SLOW)
        while not waiting.done() and not call(server, "GET", "/v1/status")[1]["log"]["answers_waiting"]:
            time.sleep(0.01)
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 1
        answered = waiting.exception() is None and waiting.result()[0] == 201
        assert answered == (fsync == "everysec")
        (line,) = [line for line in server.log_lines() if line["level"] == "critical"]
        assert line["event"] == "a disk does not come back"
        server.program = None
        server.start()
        status, page = call(server, "GET", "/v1/streams/s/entries")
        assert [one["id"] for one in page["entries"]] == [shown["id"]]
        assert server.stop() == 0


def ends_as_if_killed(server: Server) -> None:
    """SIGTERM: one line says why it ends, and what was answered is there at the next start."""
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 1
    (line,) = [line for line in server.log_lines() if line["level"] == "critical"]
    assert line["event"] == "a disk does not come back"
    server.program = None
    server.start()
    assert len(call(server, "GET", "/v1/streams/s/entries")[1]["entries"]) == 1
    assert server.stop() == 0


def is_unknown(waiting: Future[Any]) -> bool:
    """Whether there is no answer; a front, which outlives the engine, says that it may or may not be done."""
    if FRONTS and waiting.exception() is None:
        status, problem = waiting.result()
        return (status, problem["code"]) == (503, "restarting")
    return isinstance(waiting.exception(), (ConnectionError, http.client.HTTPException))


def answers(server: Server, path: str) -> bool:
    """Whether an event loop does anything: with fronts, `/v1/status` asks that of the engine's process."""
    try:
        with urllib.request.urlopen(f"{server.url}{path}", timeout=0.5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_stop_does_not_wait_for_a_write_for_ever(tmp_path: Path) -> None:
    """The event loop hangs in it: no answer leaves any more, and no handler of a signal runs."""
    options = ("--set", "drain_s_max=0")
    with Hanging(tmp_path / "data", *options) as server, ThreadPoolExecutor(1) as pool:
        assert add(server, "s")[0] == 201
        waiting = pool.submit(add, server, STUCK)
        while answers(server, "/v1/status"):
            time.sleep(0.01)
        ends_as_if_killed(server)
        assert is_unknown(waiting)


def test_a_stop_does_not_wait_for_a_start_for_ever(tmp_path: Path) -> None:
    """A disk hangs while the log is read."""
    with Server(tmp_path / "data", "--set", "drain_s_max=0") as server:
        assert add(server, "s")[0] == add(server, UNREAD)[0] == 201
        assert server.stop() == 0
        server.program = "tests.app.hanging"
        server.launch()
        while not answers(server, "/healthz/live"):
            time.sleep(0.01)
        ends_as_if_killed(server)


def test_those_who_come_during_a_restart_are_told_when_to_come_again(tmp_path: Path) -> None:
    """503 with Retry-After on every way in, health included; then it serves as before."""
    with Poisoned(tmp_path / "data") as server:
        rows = [{"fields": {"a": "x" * 100}} for _ in range(1_000)]
        for _ in range(40):
            assert call(server, "POST", "/v1/streams/s/entries", {"entries": rows})[0] == 201
        assert add(server, POISON)[0] == 500
        status, problem = add(server, "s")
        if status != 201:
            assert (status, problem["code"], problem["retryable"]) == (503, "restarting", True)
        assert set(until_ready(server)) <= {"restarting"}
        assert call(server, "GET", "/v1/streams/s")[1]["length"] >= 40_000
        assert server.stop() == 0
    with Server(tmp_path / "data") as server:
        assert call(server, "GET", "/v1/streams/s")[1]["length"] >= 40_000
