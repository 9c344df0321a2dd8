"""The gateway keeps to its description for all requests that schemathesis makes.

Knows: how schemathesis is called. Must never know: what the description says.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import halves
from tests.server import Server

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# The same cases each time; another one looks elsewhere.
SEED = os.environ.get("SCHEMATHESIS_SEED", "1")
# Over all operations and phases about three thousand requests, if it is not halved.
EXAMPLES = str(halves.some(10))
# Their answers have no end, so schemathesis.toml leaves them out.
ENDLESS = ("tailStream", "tailStreams", "consumeGroup")
# The document says how long a read may wait, and schemathesis waits that long.
SETTINGS = ("--set", "wait_ms_max=200", "--set", "log_requests=none")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A gateway that has what the examples of the description are about."""
    backups = tmp_path / "backups"
    backups.mkdir()
    place = ("--set", f"backup_dir={backups}")
    with Server(tmp_path / "data", *SETTINGS, *place) as server, httpx.Client(base_url=server.url) as http:
        for name in ("orders", "payments"):
            rows = [{"fields": {"n": n}, "id": f"1526919030474-{n}"} for n in range(5)]
            http.post(f"/v1/streams/{name}/entries", json={"entries": rows[1:]}).raise_for_status()
            group = {"start": "0", "dead_letter": {"stream": "letters"}}
            http.put(f"/v1/streams/{name}/groups/billing", json=group).raise_for_status()
        read = "/v1/streams/orders/groups/billing/consumers/worker-1/read"
        http.post(read, json={"count": 2}).raise_for_status()
        yield server


def test_schemathesis_finds_nothing(server: Server, tmp_path: Path) -> None:
    """All checks, all phases, all operations."""
    options = ["--checks", "all", "--max-examples", EXAMPLES, "--seed", SEED, "--no-shrink", "--no-color"]
    ran = subprocess.run(
        [
            *(Path(sys.executable).with_name("schemathesis"), "--config-file", HERE / "schemathesis.toml"),
            *("run", f"{server.url}/openapi.json", "--continue-on-failure", *options),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, f"SCHEMATHESIS_SEED={SEED}\n{ran.stdout}"
    document = httpx.get(f"{server.url}/openapi.json").json()
    operations = [result for methods in document["paths"].values() for result in methods.values()]
    ending = sum(result["operationId"] not in ENDLESS for result in operations)
    assert re.search(rf"Tested: {ending}\n", ran.stdout), ran.stdout
