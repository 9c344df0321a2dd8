"""A real gateway process on loopback, for tests that need one.

Knows: how to start `weir serve`, wait until it is ready, ask it, kill it and stop it.
Must never know: what is tested with it.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

import pytest

from tests.preloaded import Preloaded

# The settings of the person who runs the tests; and coverage, which would halve a gateway's speed, to measure
# what the tests' own process measures already.
NOT_INHERITED = ("WEIR_", "COVERAGE_")
# With TEST_FRONTS=2, every server that a test starts has fronts: run the tests of processes so by hand.
FRONTS = ("--fronts", os.environ["TEST_FRONTS"]) if "TEST_FRONTS" in os.environ else ()
JSON: Final = {"content-type": "application/json"}
ready_s_max = 60.0
stop_s_max = 30.0


def free_port() -> int:
    """A port without a listener right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`weir serve` on `data`; `start` may follow `kill` or `stop`, on the same port and data."""

    # A module that runs `weir` with something planted.
    program: str | None = None

    def __init__(self, data: Path, *options: str, port: int | None = None) -> None:
        self.data = data
        self.port = port or free_port()
        self._options = options
        # What the program is run by; it must not put a process of its own in between.
        self.wrapper: tuple[str, ...] = ()
        # What trusts its certificate, if its options give it one.
        self.trust: ssl.SSLContext | None = None
        self._process: subprocess.Popen[bytes] | Preloaded | None = None
        self._log = data.with_name(f"{data.name}.log")

    @property
    def url(self) -> str:
        return f"{'http' if self.trust is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was started"
        return self._process.pid

    def start(self) -> Self:
        """Start, and wait until it is ready."""
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        """Start, without waiting for anything."""
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--data", str(self.data)]
        words = ["serve", *place, *FRONTS, *self._options]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(NOT_INHERITED)}
        program = self.program or ("tests.bounds" if "--bound" in words else None)
        with self._log.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            if not self.wrapper:
                streams = [nothing.fileno(), log.fileno(), log.fileno()]
                self._process = Preloaded(words, streams, environment, program)
                return
            self._process = subprocess.Popen(
                [*self.wrapper, sys.executable, "-m", program or "weir", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def wait_until_ready(self) -> Self:
        """Wait until what was launched has read its log."""
        assert self._process is not None, "it was launched"
        deadline = time.monotonic() + ready_s_max
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/healthz/ready", timeout=5, context=self.trust) as answer,
            ):
                if answer.status == 200:
                    return self
            assert self._process.poll() is None, f"the server ended: {self._log.read_text()}"
            time.sleep(0.02)
        raise AssertionError(f"not ready after {ready_s_max} s: {self._log.read_text()}")

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def log_lines(self) -> list[dict[str, Any]]:
        """What it has logged."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def serving(self) -> list[tuple[str, str]]:
        """What it says that it serves, and where."""
        said = [line for line in self.log_lines() if line["event"] == "serving"]
        return [(line["what"], line["where"]) for line in said]

    def exit_code(self) -> int:
        """Wait for an end that it comes to by itself."""
        assert self._process is not None, "the server was started"
        return self._process.wait(stop_s_max)

    def ended_within(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        assert self._process is not None, "the server was started"
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def cpu_s(self) -> float:
        """The processor time that it has used, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_to(self, path: Path) -> None:
        """Write what the process says to another file than the one beside the data."""
        self._log = path

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self._process is not None, "the server was started"
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill -9."""
        assert self._process is not None, "the server was started"
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(stop_s_max)

    def restart(self) -> Self:
        """Kill -9, and start again."""
        self.kill()
        return self.start()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None, "the server was started"
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(stop_s_max)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def call(
    server: Server | str, method: str, path: str, body: object = None, headers: Mapping[str, str] = JSON
) -> tuple[int, Any]:
    """Send a request to a server, or to a URL, on a connection of its own: the status, and the answer."""
    place = urlsplit(server if isinstance(server, str) else server.url).netloc
    with contextlib.closing(http.client.HTTPConnection(place, timeout=30)) as line:
        return ask(line, method, path, body, headers)


def ask(
    line: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] = JSON,
) -> tuple[int, Any]:
    """Send a request on this connection, its body as JSON if it is no text already."""
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body)
    line.request(method, path, sent, {**JSON, **headers})
    answer = line.getresponse()
    text = answer.read()
    is_json = "json" in (answer.getheader("content-type") or "")
    return answer.status, json.loads(text) if is_json and text else text.decode()


def server_of(scope: Literal["function", "module", "session"], *options: str) -> Any:
    """A fixture: a gateway with these options for each test, or for all tests of the scope."""

    @pytest.fixture(scope=scope)
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with Server(tmp_path_factory.mktemp("gateway") / "weir-data", *options) as server:
            yield server

    return server
