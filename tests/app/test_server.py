"""A real process: it listens before it is ready, stops with exit code 0, and says why it cannot start."""

import contextlib
import http.client
import io
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app import logs
from app.transport.descriptors import Descriptors
from tests.cli.command import Ended, weir
from tests.server import Server, call, server_of
from tests.waiting import completed, until

FORM = "application/x-www-form-urlencoded"


class Signalled(Server):
    """A server that can be sent any signal."""

    def end(self, number: int) -> int:
        """The exit code after this signal."""
        assert self._process is not None, "the server was started"
        self._process.send_signal(number)
        return self._process.wait(30)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Signalled]:
    """A server that a test may end."""
    server = Signalled(tmp_path / "data")
    with server:
        yield server


# A server that survives its tests.
server = server_of("module", "--bound", "head_bytes_max=4096")


def run(*words: str) -> Ended:
    return weir("", "serve", *words)


def test_what_was_published_is_there_after_a_stop_and_a_kill(mortal: Signalled) -> None:
    """Entries and groups; both ends leave everything in place."""
    status, result = call(mortal, "POST", "/v1/streams/s/entries", b'{"fields":{"a":"1"}}')
    assert status == 201
    assert mortal.stop() == 0
    mortal.start()
    call(mortal, "POST", "/v1/streams/s/groups", b'{"name":"g","start":"0"}')
    call(mortal, "POST", "/v1/streams/s/groups/g/consumers/c/read")
    mortal.restart()
    _, page = call(mortal, "GET", "/v1/streams/s/entries")
    assert [entry["id"] for entry in page["entries"]] == [result["id"]]
    _, again = call(mortal, "POST", "/v1/streams/s/groups/g/consumers/c/read", b'{"after":"0"}')
    assert [entry["id"] for entry in again["entries"]] == [result["id"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_the_waiting_reads_and_then_the_process(mortal: Signalled, number: int) -> None:
    """Long-polls get 503 with Retry-After at once; the exit code is 0, and it takes no time."""
    answers: list[tuple[int, Any]] = []
    path = "/v1/streams/s/entries?after=$&wait=30000"
    poll = threading.Thread(target=lambda: answers.append(call(mortal, "GET", path)))
    poll.start()
    time.sleep(0.5)
    began = time.monotonic()
    assert mortal.end(number) == 0
    poll.join(10)
    assert time.monotonic() - began < 5
    assert answers[0][0] == 503
    assert answers[0][1]["code"] == "draining"
    said = [line["event"] for line in mortal.log_lines()]
    assert (said.count("stopping"), said[-1]) == (1, "stopped")


def test_a_second_process_on_the_data_is_told_who_holds_it(server: Server) -> None:
    """Exit code 4, and the first one serves on."""
    second = run("--port", "0", "--data", str(server.data))
    assert second.code == 4
    assert str(server.pid) in second.err
    assert "http://" not in second.out, "what will never answer is not shown"
    assert call(server, "GET", "/healthz/ready")[0] == 200


def test_damaged_data_is_refused(tmp_path: Path) -> None:
    """Exit code 3; file and place are named; nothing is touched."""
    with Server(tmp_path / "data") as server:
        call(server, "POST", "/v1/streams/s/entries", b'{"fields":{"a":"1"}}')
        assert server.stop() == 0
    (manifest,) = (tmp_path / "data").glob("manifest")
    manifest.write_bytes(b"")
    refused = run("--port", "0", "--data", str(tmp_path / "data"))
    assert refused.code == 3
    assert "manifest" in refused.err
    assert "http://" not in refused.out
    assert manifest.read_bytes() == b""


def test_a_port_in_use_is_a_clear_message(server: Server, tmp_path: Path) -> None:
    """Exit code 1, no trace: the way out, and which process has the data, where one has. Piped, everything is
    JSON on standard error, and a refusal is one line of it.
    """
    second = run("--port", str(server.port), "--data", str(tmp_path / "other"))
    assert (second.code, second.out) == (1, "")
    (line,) = map(json.loads, second.err.splitlines())
    assert "cannot listen" in line["reason"]
    assert "--port" in line["remedy"]
    again = run("--port", str(server.port), "--data", str(server.data))
    (line,) = map(json.loads, again.err.splitlines())
    assert line["reason"].endswith(f"and {server.data} is in use by process {server.pid}")


def test_what_is_served_is_json_where_it_is_piped(server: Server) -> None:
    said = dict(server.serving())
    assert said["API"] == f"{server.url}/v1"
    assert said["data"].startswith(str(server.data))


def test_a_taken_port_for_redis_clients_is_named(server: Server, tmp_path: Path) -> None:
    """And a path where no socket can be: which place, and why."""
    data = ("--port", "0", "--data", str(tmp_path / "other"))
    taken = run(*data, "--resp-listen", str(server.port))
    assert (taken.code, "Errno" in taken.err) == (1, False)
    assert f'"cannot listen on redis://127.0.0.1:{server.port}: address already in use"' in taken.err
    nowhere = tmp_path / "none" / "socket"
    refused = run(*data, "--resp-listen", f"unix:{nowhere}")
    assert refused.code == 1
    assert f'"cannot listen on redis+unix://{nowhere}: No such file or directory' in refused.err


@pytest.mark.parametrize(
    ("at", "reason"), [("file", "Not a directory"), ("none/data", "No such file or directory")]
)
def test_data_that_can_be_no_directory_are_named(tmp_path: Path, at: str, reason: str) -> None:
    """Exit code 3, with a remedy for that: there is no log to check."""
    (tmp_path / "file").touch()
    refused = run("--port", "0", "--data", str(tmp_path / at))
    assert refused.code == 3
    assert f'"data directory {tmp_path / at}: {reason}"' in refused.err
    assert "name a directory that belongs to this user" in refused.err


def test_a_disk_without_room_for_a_log_is_the_disk_s_fault(tmp_path: Path) -> None:
    """The remedy is not about a damaged log."""
    place = ("--port", "0", "--data", str(tmp_path / "data"))
    command = ["prlimit", "--fsize=0:0", sys.executable, "-m", "weir", "serve", *place]
    refused = completed(command, timeout=60)
    assert (refused.returncode, "File too large" in refused.stderr) == (3, True)
    assert "check the disk" in refused.stderr
    assert "weir log check" not in refused.stderr


def test_an_audit_file_that_cannot_be_opened_is_reported_at_the_start(tmp_path: Path) -> None:
    """Before an action goes unrecorded."""
    with Server(tmp_path / "data", "--set", f"audit_file={tmp_path / 'none' / 'audit'}") as server:
        assert server.stop() == 0
    said = [line for line in server.log_lines() if line["event"] == "the audit log cannot be written"]
    assert [line["level"] for line in said] == ["critical"]


@pytest.mark.parametrize("name", ["root_token_file", "tokens_file", "backend_password_file", "backend_ca"])
def test_a_file_of_the_settings_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    """With its setting, in words. Exit code 2."""
    backend = ("--backend", "rediss://127.0.0.1:1") if name.startswith("backend") else ()
    place = ("--port", "0", "--data", str(tmp_path / "data"))
    refused = run(*place, *backend, "--set", f"{name}={tmp_path / 'none'}")
    assert refused.code == 2
    reason = "No such file or directory"
    assert f'"{name}: {tmp_path / "none"}: {reason}"' in refused.err


def test_beyond_loopback_it_needs_a_word(tmp_path: Path) -> None:
    """Exit code 2 before anything is opened."""
    refused = run("--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path / "data"))
    assert refused.code == 2
    assert "--insecure" in refused.err
    assert not (tmp_path / "data").exists()


def test_beyond_loopback_it_needs_its_names(tmp_path: Path) -> None:
    """With --insecure too: a page whose name resolves to this machine may not call. Exit code 2."""
    place = ("--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path / "data"))
    refused = run(*place, "--insecure")
    assert refused.code == 2
    assert "allowed_hosts" in refused.err
    for names in ("http://weir.example", "*", "weir.example/"):
        wrong = run(*place, "--insecure", "--set", f"allowed_hosts={names}")
        assert wrong.code == 2
        assert "is no host" in wrong.err
    assert not (tmp_path / "data").exists()


def test_a_foreign_name_is_refused_beyond_loopback(tmp_path: Path) -> None:
    """DNS rebinding: the name is the attacker's, the address this machine's. FLUSHALL is not run."""
    names = ("--insecure", "--set", "allowed_hosts=weir.example")
    # The last --host wins.
    with Server(tmp_path / "data", "--host", "0.0.0.0", *names) as server:
        call(server, "POST", "/v1/streams/s/entries", b'{"fields":{"a":"1"}}')
        statuses = []
        for host in ("evil.example", "weir.example", f"127.0.0.1:{server.port}"):
            head = f"POST /v1/commands HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
            words = b'["FLUSHALL"]' if host == "evil.example" else b'["XLEN","s"]'
            sent = head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(words), words)
            statuses.append(raw(server, sent).split()[1])
            if host != "evil.example":
                assert b'{"result":1}' in raw(server, sent)
        assert statuses == [b"403", b"200", b"200"]


def test_it_says_where_everything_is(tmp_path: Path) -> None:
    """The data before it is opened; API, console and docs after, with the port that it really has: they
    answer from then on. Lines for people, as on a terminal.
    """
    place = ["--port", "0", "--data", str(tmp_path / "data"), "--set", "log_format=console"]
    process = subprocess.Popen(
        [sys.executable, "-m", "weir", "serve", *place],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().decode().split() for _ in range(4)]
    with urllib.request.urlopen(lines[1][1], timeout=30) as answer:
        assert answer.status == 200
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert [line[0] for line in lines] == ["data", "API", "console", "docs"]
    assert lines[1][1].startswith("http://127.0.0.1:")
    assert not lines[1][1].endswith(":0/v1")


def raw(server: Server, sent: bytes, seconds: float = 10) -> bytes:
    """What comes back for these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as peer:
        peer.sendall(sent)
        answer = b""
        try:
            while piece := peer.recv(65_536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 5_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 5_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 1_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000,
    ],
    ids=["line", "header", "headers", "endless"],
)
def test_a_head_beyond_the_limit_is_431(server: Server, head: bytes) -> None:
    """And the connection closed."""
    assert_early_problem(server, raw(server, head), 431, "headers_too_large")
    assert call(server, "GET", "/healthz/live")[0] == 200


def assert_early_problem(server: Server, received: bytes, status: int, code: str) -> None:
    """What never became a request is answered as all refusals are: a problem, an ID that is in the log."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    problem = json.loads(body)
    assert (first.split()[1], problem["status"], problem["code"]) == (str(status), status, code)
    assert headers["content-type"] == "application/problem+json"
    assert headers["content-length"] == str(len(body))
    assert headers["weir-request-id"] == problem["request_id"]
    assert (headers["connection"], headers["cache-control"]) == ("close", "no-store")
    log = server.data.with_name(f"{server.data.name}.log")
    until(lambda: problem["request_id"] in log.read_text(), "the ID is not in the log", 10)


def test_what_came_before_garbage_is_answered_as_itself(server: Server) -> None:
    """Sent together: a read that waits, and what is no request. The refusal comes behind its answer."""
    read = b"GET /v1/streams/none/entries?after=$&wait=200 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = raw(server, read + b"GARBAGE\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"entries":[]' in answer
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 400 " in answer


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        b"CONNECT evil:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(server: Server, sent: bytes) -> None:
    """Smuggling needs two servers that read one request differently."""
    answer = raw(server, sent)
    assert_early_problem(server, answer, 400, "malformed_request")


def old_request(server: Server, line: bytes, body: bytes = b"") -> tuple[bytes, bytes]:
    """Head and body of the answer to a client that speaks HTTP/1.0."""
    head = b"%b HTTP/1.0\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    head, _, found = raw(server, head % (line, len(body)) + body).partition(b"\r\n\r\n")
    return head.lower(), found


def test_an_old_client_gets_no_chunks(server: Server) -> None:
    """HTTP/1.0 does not know them (RFC 9112, 6.1): a body without a length ends with its connection."""
    call(server, "POST", "/v1/streams/old/entries", b"a=b", {"content-type": FORM})
    head, body = old_request(server, b"GET /v1/streams/old/export")
    assert head.startswith(b"http/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["fields"] == {"a": "b"}
    assert old_request(server, b"HEAD /v1/streams/old/export")[1] == b""


def test_an_old_client_is_not_asked_for_its_body(server: Server) -> None:
    """HTTP/1.0 has no 100 Continue (RFC 9110, 10.1.1)."""
    head, body = old_request(server, b"POST /v1/commands", b'["PING"]')
    assert (head[:13], json.loads(body)) == (b"http/1.1 200 ", {"result": "PONG"})


def test_options_of_the_server_itself(server: Server) -> None:
    """`OPTIONS *` says what there is anywhere; `*` is nothing that could be read."""
    tail = b" * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = raw(server, b"OPTIONS" + tail)
    assert answer.startswith(b"HTTP/1.1 204 ")
    assert b"\r\nallow: DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT\r\n" in answer
    assert raw(server, b"GET" + tail).startswith(b"HTTP/1.1 404 ")


def test_running_out_of_file_descriptors_is_logged_once_a_minute(tmp_path: Path) -> None:
    """Not a flood, and not silent; when clients leave, others are served."""
    starved = Server(tmp_path / "data")
    starved.wrapper = ("prlimit", "--nofile=48:48")
    with starved, contextlib.ExitStack() as clients:
        for _ in range(2):
            for _ in range(60):
                clients.enter_context(socket.create_connection(("127.0.0.1", starved.port), timeout=10))
            # Served once there is room: that what came before has been accepted or closed.
            deadline = time.monotonic() + 20
            while "file descriptors" not in (tmp_path / "data.log").read_text():
                assert time.monotonic() < deadline, "nothing was said"
                time.sleep(0.05)
            clients.close()
            while not _answers(starved):
                assert time.monotonic() < deadline, "it does not recover"
            assert call(starved, "GET", "/healthz/ready")[1]["failing"] == ["descriptors_used_up"]
        log = (tmp_path / "data.log").read_text()
        lines = [json.loads(line) for line in log.splitlines() if "file descriptors" in line]
        assert [(line["level"], line["limit"]) for line in lines] == [("error", 48)]
        assert "LimitNOFILE" in lines[0]["remedy"]


def _answers(server: Server) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return call(server, "GET", "/healthz/ready")[0] == 200
    return False


def test_descriptors_are_told_of_again_after_a_minute() -> None:
    """The last one of all, and none before it."""
    said = io.StringIO()
    logs.configure("info", "json", said)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    watch = Descriptors()
    for number, now_s in ((limit - 2, 1.0), (limit - 1, 2.0), (limit - 1, 61.9), (limit - 1, 62.0)):
        watch.taken(number, now_s)
    assert said.getvalue().count("all file descriptors are in use") == 2


# Numbers that only the strict reader takes, and more than is read without a thread.
LARGE_BODY: bytes = (b'{"a":1.50,"b":12e2}\n' * 9_000).ljust((1 << 20) + 1)
LONE_S_MAX: float = 0.004


@pytest.mark.alone
def test_a_lone_request_waits_little_for_threads_that_read_large_bodies(mortal: Signalled) -> None:
    """The event loop asks for the interpreter's lock before each callback; Python lets it wait for 5 ms."""
    kind, took_s = {"content-type": "application/x-ndjson"}, list[float]()

    def publish_much() -> int:
        return call(mortal, "POST", "/v1/streams/large/entries?maxlen=9", LARGE_BODY, kind)[0]

    with ThreadPoolExecutor(1) as pool, closing(http.client.HTTPConnection("127.0.0.1", mortal.port)) as lone:
        for _ in range(8):
            publishing = pool.submit(publish_much)
            while not publishing.done():
                began_s = time.perf_counter()
                lone.request("GET", "/v1/streams/small")
                lone.getresponse().read()
                took_s.append(time.perf_counter() - began_s)
            assert publishing.result() == 201
    assert len(took_s) > 100
    # Some come between two bodies.
    assert sorted(took_s)[len(took_s) * 3 // 4] < LONE_S_MAX


def test_a_start_of_one_process_over_the_own_log_imports_only_what_it_uses() -> None:
    """Each would take a hundredth of the time until the gateway serves, and never be used."""
    needless = ("engine.cluster", "app.fronts.messages", "app.supervisor")
    program = (
        "import sys, app.server; from weir.cli.main import main;"
        f"found = lambda: [name for name in sys.modules if name.startswith({needless!r})];"
        "app.server.run = lambda *_: print(found()); sys.argv = ['weir', 'serve', '--port', '0']; main()"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
