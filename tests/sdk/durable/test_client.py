"""The protocol's own client for TypeScript writes and reads through gateways that are killed."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from tests.sdk.durable.test_suite import SETTINGS
from tests.server import Server

COUNT: Final = 200
CLIENT_S_MAX: Final = 60


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_tokens_arrive_once_and_in_order_over_kills(live: str, tmp_path: Path) -> None:
    """Written by its idempotent producer, read live, until the stream is closed."""
    with Server(tmp_path / "data", *SETTINGS) as server:
        environment = {**os.environ, "URL": server.url, "LIVE": live, "COUNT": str(COUNT)}
        client = subprocess.Popen(
            ["node", "tokens.mjs"],
            cwd=Path(__file__).parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2):
            time.sleep(0.7)
            server.restart()
        printed, said = client.communicate(timeout=CLIENT_S_MAX)
    assert client.returncode == 0, said
    assert json.loads(printed) == list(range(COUNT)), said
