"""A gateway for a test: a real one, on a free port, with its data in a folder that goes with it.

    @pytest.fixture(scope="session")
    def weir_url():
        with running_gateway() as url:
            yield url

Needs the gateway in the same environment (its program `weir`), or its command line in WEIR_GATEWAY.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from weir.errors import WeirError

READY_S_MAX: Final = 30.0
STOP_S_MAX: Final = 30.0
# `weir serve` prints its addresses once it is ready.
_PRINTED: Final = re.compile(r"(?:^API +|\"what\":\"API\",\"where\":\")(https?:\S+?)/v1\b", re.MULTILINE)
_LOOK_S: Final = 0.02


class GatewayDidNotStartError(WeirError):
    """The gateway ended, or was not ready in time; the text is what it printed."""


@contextmanager
def running_gateway(*options: str, command: Sequence[str] | None = None) -> Iterator[str]:
    """Start a gateway with `options` of `weir serve`, and yield its URL. It is stopped, and its data removed,
    at the end. Raises GatewayDidNotStartError.
    """
    with tempfile.TemporaryDirectory(prefix="weir-test-") as directory:
        printed = Path(directory) / "printed"
        # The system chooses the port: one that was looked for before may be taken by the time of the start.
        place = ["serve", "--host", "127.0.0.1", "--port", "0", "--data", f"{directory}/data"]
        # A test's gateway has the settings that the test names, and no others.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
        with printed.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - the program that the caller named
                [*(command or _program()), *place, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        try:
            yield _wait_until_ready(process, printed)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], printed: Path) -> str:
    until = time.monotonic() + READY_S_MAX
    while process.poll() is None and time.monotonic() < until:
        found = _PRINTED.search(printed.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(_LOOK_S)
    raise GatewayDidNotStartError(printed.read_text(errors="replace"))


def _program() -> list[str]:
    named = os.environ.get("WEIR_GATEWAY")
    if named:
        return shlex.split(named)
    beside = Path(sys.executable).with_name("weir")
    found = str(beside) if beside.exists() else shutil.which("weir")
    if found is None:
        raise GatewayDidNotStartError("no program `weir` was found: install the gateway, or set WEIR_GATEWAY")
    return [found]
