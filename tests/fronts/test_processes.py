"""A gateway of several processes: they start, stop, die and come back; what was acknowledged stays."""

import contextlib
import fcntl
import http.client
import os
import select
import signal
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.lifespan import FAILED, LOCKED
from tests.fronts.processes import CONNECTIONS, FRONTS, Fronted, add, is_alive
from tests.server import Server, ask, call
from tests.waiting import until

ENTRIES = "/v1/streams/s/entries"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Fronted]:
    with Fronted(tmp_path / "data") as server:
        yield server
        if server.running:
            server.kill_all()


def answers(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"{server.url}/v1/streams", timeout=1) as answer:
            return bool(answer.status == 200)
    except TimeoutError:
        return False


def ids_in(server: Server) -> list[str]:
    return [one["id"] for one in call(server, "GET", f"{ENTRIES}?count=1000")[1]["entries"]]


def test_all_fronts_serve_one_engine(server: Fronted) -> None:
    """What is published over one connection is read over any other; figures are those of all processes."""
    assert sorted(server.processes()) == ["weir engine", "weir front 1", "weir front 2"]
    before = counted(server)
    published = [add(server)[1]["id"] for _ in range(CONNECTIONS)]
    for _ in range(CONNECTIONS):
        assert ids_in(server) == published
    assert counted(server) - before == CONNECTIONS
    with contextlib.ExitStack() as opened:
        lines = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(CONNECTIONS)]
        for line in lines:
            opened.callback(line.close)
            assert ask(line, "GET", "/v1")[0] == 200
        # The one that asks too.
        assert call(server, "GET", "/v1/status")[1]["connections"]["open"] == CONNECTIONS + 1
    assert call(server, "GET", "/v1/status")[1]["streams"] == 1


def counted(server: Fronted) -> int:
    """How many entries were published, as the metrics of all processes say."""
    lines = call(server, "GET", "/metrics")[1].splitlines()
    label = 'weir_requests_total{code="201",route="POST /v1/streams/{stream}/entries"}'
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(label)))


def test_a_front_that_is_killed_loses_its_own_connections_and_comes_back(server: Fronted) -> None:
    """Those of the other front stay, and no counter goes down; with kill -9 of both, everything published is
    there.
    """
    with contextlib.ExitStack() as opened:
        lines = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(CONNECTIONS)]
        for line in lines:
            opened.callback(line.close)
            line.auto_open = True
            assert ask(line, "POST", ENTRIES, {"fields": {"a": "1"}})[0] == 201
            line.auto_open = False
        assert counted(server) == CONNECTIONS
        killed, *others = server.front_pids
        os.kill(killed, signal.SIGKILL)
        until(lambda: not is_alive(killed))
        kept = 0
        for line in lines:
            with contextlib.suppress(OSError, http.client.HTTPException):
                kept += ask(line, "GET", "/v1")[0] == 200
        assert 0 < kept < CONNECTIONS
    until(lambda: len(server.front_pids) == FRONTS)
    assert set(others) < set(server.front_pids)
    # What the killed one has counted stays in the sum.
    assert counted(server) == CONNECTIONS
    for pid in server.front_pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(server.front_pids) == FRONTS)
    server.wait_until_ready()
    assert len(ids_in(server)) == CONNECTIONS


def test_a_gateway_is_ready_when_all_of_its_processes_are(server: Fronted) -> None:
    """One 200, at whichever front, says that all serve: after a start, and after the engine's process died. A
    front that is started again gets no connections before it serves.
    """
    server.stop()
    server.launch()
    for _ in range(3):
        server.wait_until_ready()
        assert {is_ready(server) for _ in range(CONNECTIONS)} == {200}
        assert {add(server)[0] for _ in range(CONNECTIONS)} == {201}
        killed = server.engine_pid
        os.kill(killed, signal.SIGKILL)
        until(lambda killed=killed: not is_alive(killed) and is_ready(server) != 200)
    server.wait_until_ready()
    os.kill(server.front_pids[0], signal.SIGKILL)
    seen: set[int] = set()
    while 'weir_fronts{state="up"} 2' not in metrics(server):
        with contextlib.suppress(OSError, http.client.HTTPException):
            seen.add(is_ready(server))
    assert seen <= {200}
    assert {is_ready(server) for _ in range(CONNECTIONS)} == {200}


def test_a_front_that_dies_while_it_waits_for_the_engine_holds_up_no_other(server: Fronted) -> None:
    """The others are ready without it, although it is being started again."""
    with contextlib.ExitStack() as opened:
        lines = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(CONNECTIONS)]
        for line in lines:
            opened.callback(line.close)
            line.connect()
        dying = server.processes()["weir front 1"]
        os.kill(dying, signal.SIGSTOP)
        other = first_to_answer(lines)
        os.kill(dying, signal.SIGCONT)
        engine = stop_next_engine(server)
        os.kill(dying, signal.SIGSTOP)
        os.kill(engine, signal.SIGCONT)
        until(lambda: ask(other, "GET", "/v1/streams")[0] == 200)
        # The next one does not serve before the engine goes on.
        os.kill(engine, signal.SIGSTOP)
        os.kill(dying, signal.SIGKILL)
        until(lambda: ask(other, "GET", "/healthz/ready")[0] == 200)
        os.kill(engine, signal.SIGCONT)
    until(lambda: 'weir_fronts{state="up"} 2' in metrics(server))
    assert {is_ready(server) for _ in range(CONNECTIONS)} == {200}


def test_a_front_that_is_started_while_the_engine_is_gets_no_connections_yet(server: Fronted) -> None:
    """The other front answers them: the gateway restarts, and does not start."""
    engine = stop_next_engine(server)
    killed = server.processes()["weir front 1"]
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_alive(killed) and is_running(server.processes().get("weir front 1", killed)))
    answers = [call(server, "GET", "/healthz/ready")[1] for _ in range(CONNECTIONS)]
    assert {answer["status"] for answer in answers} == {"restarting"}
    os.kill(engine, signal.SIGCONT)
    until(lambda: 'weir_fronts{state="up"} 2' in metrics(server))
    assert {is_ready(server) for _ in range(CONNECTIONS)} == {200}


def first_to_answer(lines: Sequence[http.client.HTTPConnection]) -> http.client.HTTPConnection:
    """Ask on all of them; the one whose front answers first."""
    for line in lines:
        line.request("GET", "/v1")
    (first, *_), _, _ = select.select([line.sock for line in lines], [], [])
    (found,) = [line for line in lines if line.sock is first]
    found.getresponse().read()
    return found


def stop_next_engine(server: Fronted) -> int:
    """Kill -9 the engine's process, and SIGSTOP the next one before it serves; its pid."""
    while True:
        killed = server.engine_pid
        os.kill(killed, signal.SIGKILL)
        # Without a pause: it serves some milliseconds after its start.
        while (engine := server.processes().get("weir engine", killed)) == killed:
            pass
        os.kill(engine, signal.SIGSTOP)
        if is_ready(server) != 200:
            return engine


def is_running(pid: int) -> bool:
    """Whether a process has come as far as its threads."""
    return is_alive(pid) and len(list(Path(f"/proc/{pid}/task").iterdir())) > 1


def is_ready(server: Fronted) -> int:
    """The status that one of the fronts has."""
    return call(server, "GET", "/healthz/ready")[0]


def metrics(server: Fronted) -> str:
    """Those of all processes; nothing from a front that is dying."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return str(call(server, "GET", "/metrics")[1])
    return ""


def test_an_engine_that_is_killed_is_started_again_while_fronts_and_connections_stay(server: Fronted) -> None:
    """503 until its log is read again, for those who wait too; nothing acknowledged is lost."""
    published = [add(server)[1]["id"] for _ in range(5)]
    fronts = server.front_pids
    with (
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as line,
        ThreadPoolExecutor() as pool,
    ):
        ask(line, "GET", "/v1")
        line.auto_open = False
        polling = pool.submit(call, server, "GET", f"{ENTRIES}?after=$&wait=30000")
        until(lambda: call(server, "GET", "/v1/status")[1]["connections"]["waiting_reads"])
        os.kill(server.engine_pid, signal.SIGKILL)
        status, problem = polling.result()
        assert (status, problem["code"]) == (503, "restarting")
        until(lambda: ask(line, "GET", "/healthz/ready")[0] == 200)
        assert [one["id"] for one in ask(line, "GET", ENTRIES)[1]["entries"]] == published
    assert server.front_pids == fronts
    assert add(server)[0] == 201


def test_what_was_acknowledged_survives_the_end_of_all_processes(server: Fronted) -> None:
    """Kill -9 of the supervisor takes its children along, and the same data can be served at once."""
    published = [add(server)[1]["id"] for _ in range(5)]
    children = server.processes().values()
    server.kill()
    until(lambda: not any(map(is_alive, children)))
    server.start()
    assert ids_in(server) == published
    server.kill_all()
    server.start()
    assert ids_in(server) == published


def test_a_process_that_hangs_ends_with_the_supervisor(tmp_path: Path) -> None:
    """It waits until what it logs is read, so it does not notice: the kernel ends it."""
    log = tmp_path / "data.log"
    os.mkfifo(log)
    unread = os.open(log, os.O_RDWR)
    fcntl.fcntl(unread, fcntl.F_SETPIPE_SZ, 4_096)
    try:
        with Fronted(tmp_path / "data", "--set", "log_requests=all") as server:
            children = server.processes().values()
            until(lambda: not answers(server))
            server.kill()
            until(lambda: not any(map(is_alive, children)))
    finally:
        os.close(unread)


def test_a_stop_answers_what_waits_and_ends_with_0(server: Fronted) -> None:
    children = server.processes().values()
    with ThreadPoolExecutor() as pool:
        polling = pool.submit(call, server, "GET", f"{ENTRIES}?after=$&wait=30000")
        until(lambda: call(server, "GET", "/v1/status")[1]["connections"]["waiting_reads"])
        assert server.stop() == 0
        status, problem = polling.result()
        assert (status, problem["code"]) == (503, "draining")
    assert not any(map(is_alive, children))


def test_a_second_gateway_has_neither_the_port_nor_the_data(server: Fronted, tmp_path: Path) -> None:
    """Although fronts share their port among them."""
    for data, port, expected in ((tmp_path / "other", server.port, FAILED), (server.data, None, LOCKED)):
        second = Fronted(data)
        second.port = port or second.port
        second.log_to(tmp_path / "second.log")
        second.launch()
        assert second.exit_code() == expected
    # The engine's process has it, which the supervisor would start again.
    assert f"in use by process {server.pid}" in (tmp_path / "second.log").read_text()
    assert add(server)[0] == 201
