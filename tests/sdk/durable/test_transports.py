"""The transports of Durable Streams for AI SDK and TanStack AI go on through a gateway that is killed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.sdk.durable.test_client import CLIENT_S_MAX
from tests.server import Server

COUNT: Final = 60


@pytest.mark.parametrize("transport", ["aisdk", "tanstack"])
def test_an_answer_goes_on_over_a_kill(transport: str, tmp_path: Path) -> None:
    """Half of it is read before; the other half is written while there is no gateway, and read after."""
    with Server(tmp_path / "data") as server:
        chat = subprocess.Popen(
            ["timeout", str(CLIENT_S_MAX), "node", f"{transport}.mjs"],
            cwd=Path(__file__).parent,
            env={**os.environ, "URL": server.url, "COUNT": str(COUNT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert chat.stdin is not None, "a pipe was asked for"
        assert chat.stdout is not None, "a pipe was asked for"
        waits = chat.stdout.readline()
        server.kill()
        chat.stdin.write("go on\n")
        chat.stdin.flush()
        server.start()
        printed, said = chat.communicate()
    assert (waits, chat.returncode) == ("half\n", 0), said
    answer = "".join(f" {number}" for number in range(COUNT))
    assert json.loads(printed) == ["count", answer], said
