"""`uvicorn app.main:app`: the API without `weir serve`, its own protocol classes."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.server import NOT_INHERITED, Server, call, stop_s_max
from tests.turns import assert_within

# uvicorn sends itself the signal again once it has stopped.
TERMINATED = (0, -15)
# On the machine of the limits in tests/turns.py, where it takes 0.7.
MADE_CPU_S_MAX = 1.0


class Uvicorn(Server):
    """uvicorn as it is installed, on the data that the environment names."""

    def launch(self) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(NOT_INHERITED)}
        environment["WEIR_DATA"] = str(self.data)
        program = [sys.executable, "-m", "uvicorn", "app.main:app", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(program, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def log_text(self) -> str:
        """What it has written."""
        return self._log.read_text()


def test_it_serves_the_api_and_keeps_what_was_published(tmp_path: Path) -> None:
    """Publish, read, a group, a command, the document; SIGTERM; the same entry after a restart."""
    entries = "/v1/streams/orders/entries"
    with Uvicorn(tmp_path / "data") as server:
        status, stored = call(server, "POST", entries, {"fields": {"item": "apple"}})
        assert status == 201
        found = call(server, "GET", entries)[1]["entries"]
        assert found == [{"id": stored["id"], "fields": {"item": "apple"}}]
        assert call(server, "PUT", "/v1/streams/orders/groups/billing", {"start": "0"})[0] == 201
        read = call(server, "POST", "/v1/streams/orders/groups/billing/consumers/a/read", {"count": 1})[1]
        assert read["entries"] == found
        assert call(server, "POST", "/v1/commands", ["XLEN", "orders"]) == (200, {"result": 1})
        assert call(server, "GET", "/openapi.json")[1]["openapi"].startswith("3.1")
        assert server.stop() in TERMINATED
        server.start()
        assert call(server, "GET", entries)[1]["entries"] == found
        assert call(server, "GET", "/v1/streams/orders/groups/billing/pending")[1]["count"] == 1
        assert server.stop() in TERMINATED


def test_a_stop_ends_the_waiting_reads(tmp_path: Path) -> None:
    """503 at once: uvicorn waits for its connections, and these would wait for 30 seconds."""
    with Uvicorn(tmp_path / "data") as server:
        answers: list[tuple[int, Any]] = []
        path = "/v1/streams/orders/entries?after=$&wait=30000"
        poll = threading.Thread(target=lambda: answers.append(call(server, "GET", path)))
        poll.start()
        deadline = time.monotonic() + 10
        while call(server, "GET", "/v1/status")[1]["connections"]["following"] == 0:
            assert time.monotonic() < deadline
        began = time.monotonic()
        assert server.stop() in TERMINATED
        poll.join(stop_s_max)
        assert time.monotonic() - began < 15
        assert (answers[0][0], answers[0][1]["code"]) == (503, "draining")


def test_a_conversation_over_the_socket(tmp_path: Path) -> None:
    """What is published arrives, small and large; an open conversation keeps no process from ending."""
    large = "x" * 100_000
    with (
        Uvicorn(tmp_path / "data") as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/ws", open_timeout=30) as socket,
    ):
        assert json.loads(socket.recv(30))["op"] == "hello"
        subscribe = {"op": "subscribe", "sub": "a", "streams": {"orders": "0"}, "credit": 10}
        socket.send(json.dumps(subscribe))
        for value in ("apple", large):
            frame = {
                "op": "publish",
                "ref": value[:9],
                "stream": "orders",
                "entries": [{"fields": {"item": value}}],
            }
            socket.send(json.dumps(frame))
        found: list[str] = []
        while len(found) < 2:
            frame = json.loads(socket.recv(30))
            assert frame["op"] != "error", frame
            found += [entry["fields"]["item"] for entry in frame.get("entries", ())]
        assert found == ["apple", large]
        assert server.stop() in TERMINATED


def test_data_in_use_ends_the_start(tmp_path: Path) -> None:
    """The second one says who holds the data, and serves nothing."""
    with Uvicorn(tmp_path / "data") as server:
        second = Uvicorn(server.data)
        second.log_to(tmp_path / "second.log")
        second.launch()
        try:
            assert second.exit_code() != 0
        finally:
            if second.running:
                second.kill()
        assert str(server.pid) in second.log_text()
        assert call(server, "GET", "/healthz/ready")[0] == 200


@pytest.mark.alone
def test_the_application_is_made_in_a_second() -> None:
    """Import and `create_app`, in processor time; the document, half a second, is made when asked for."""
    program = (
        "import time; from app.main import create_app; from app.settings import Settings; "
        "app = create_app(Settings()); print(time.process_time())"
    )

    def measure() -> float:
        made = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=True, timeout=60, env=compiled,
        )  # fmt: skip
        return float(made.stdout)

    # The first time may compile the modules; the next ones read what it wrote.
    compiled = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    assert_within(MADE_CPU_S_MAX, measure)
