"""The service of history as a real process on loopback.

Knows: how to start `weir history serve`, wait until it answers, kill it and stop it. Must never know: what is
tested with it.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

from tests.server import NOT_INHERITED, free_port

_READY_S_MAX = 60.0


class Answer(NamedTuple):
    """Of the service."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def ids(self) -> list[str]:
        """Those of a page's entries."""
        return [one["id"] for one in self.json["entries"]]


class Served:
    """`weir history serve` of an archive; `start` may follow `kill` or `stop`, on the same port."""

    def __init__(self, archive: str, *flags: str, log: Path | None = None) -> None:
        self.port = free_port()
        self._words = ["--archive", archive, "--port", str(self.port), *flags]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start, and wait until it answers."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(NOT_INHERITED)}
        words = [sys.executable, "-m", "weir", "history", "serve", *self._words]
        with open(self._log or os.devnull, "ab") as log:  # noqa: PTH123 - either
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + _READY_S_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if self.get("/healthz").status == 200:
                    return self
            assert self._process.poll() is None, "it has ended"
            time.sleep(0.05)
        raise AssertionError(f"not ready after {_READY_S_MAX} s")

    def kill(self) -> None:
        """As the kernel does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def cpu_s(self) -> float:
        """The processor time that it has used, in seconds."""
        assert self._process is not None, "it was started"
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        """The memory that it has taken at most."""
        assert self._process is not None, "it was started"
        (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
        return int(line) * 1024

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        assert self._process is not None, "it was started"
        self._process.terminate()
        return self._process.wait(30)

    def get(self, path: str, **headers: str) -> Answer:
        """Ask, with these headers, written with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Answer(answer.status, _lower(answer.headers), answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return Answer(refused.code, _lower(refused.headers), refused.read())

    def page(
        self, stream: str, generation: str, headers: dict[str, str] | None = None, **query: object
    ) -> Answer:
        """A page of a stream."""
        words = urlencode({"generation": generation, **query})
        return self.get(f"/v1/streams/{quote(stream)}/entries?{words}", **(headers or {}))


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
