"""The public suite for servers of Durable Streams passes: alone, behind fronts, with tokens, on backends."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.cluster.clusters import opened_backend, server_words
from tests.server import Server

SDK: Final = Path(__file__).parents[1]
# The suite waits for long-polls, asks as a page of this origin, and sends 10 MiB.
SETTINGS: Final = (
    *("--set", "durable_long_poll_s=1"),
    *("--set", "allowed_origins=https://example.com", "--set", "body_bytes_max=16777216"),
)
TOKEN: Final = "correct-horse-battery-staple-durable"
# What vitest needs.
NODE_MIN: Final = 20
SUITE_S_MAX: Final = 180
WAYS: Final = {"alone": (), "fronts": ("--fronts", "2"), "tokens": ("--set", f"root_token={TOKEN}")}
# Over a cluster a fork has to be in the slot of its source: as all streams of this caller are.
ONE_SLOT: Final = {"actions": ["read", "write", "close", "manage"], "streams": "*", "prefix": "{suite}/"}
# They are skipped unless one asks for them.
NOT_SERVED: Final = "Reserved subscription APIs"


def node_version() -> int:
    printed = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    return int(printed.removeprefix("v").partition(".")[0])


def run_suite(server: Server, report: Path, token: str = "") -> Mapping[str, str]:
    """How each of the suite's tests ended."""
    # Beside other tests, one that checks 100,000 bytes in JavaScript takes more than the usual 5 seconds.
    words = ["vitest", "run", "--testTimeout=60000", "--reporter=json", f"--outputFile={report}"]
    environment = {**os.environ, "URL": server.url, "TOKEN": token}
    npx = shutil.which("npx")
    assert npx is not None, "it comes with node"
    subprocess.run(
        [npx, *words, "suite.test.mjs"],
        cwd=SDK / "durable",
        env=environment,
        timeout=SUITE_S_MAX,
        check=False,
        capture_output=True,
    )
    (found,) = json.loads(report.read_text())["testResults"]
    return {one["fullName"]: one["status"] for one in found["assertionResults"]}


@pytest.mark.skipif(node_version() < NODE_MIN, reason="vitest needs a newer Node")
@pytest.mark.parametrize("way", WAYS)
def test_the_public_suite_passes(way: str, tmp_path: Path) -> None:
    """Every test of it, but those of what is not served."""
    with Server(tmp_path / "data", *SETTINGS, *WAYS[way]) as server:
        check(run_suite(server, tmp_path / "report.json", TOKEN if way == "tokens" else ""))


@pytest.mark.skipif(node_version() < NODE_MIN, reason="vitest needs a newer Node")
@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_it_passes_over_a_backend(kind: str, tmp_path: Path) -> None:
    """All the same tests: over Redis, and over a cluster of Valkey in one slot of it."""
    (tmp_path / "backend").mkdir()
    with (
        opened_backend(tmp_path / "backend", kind) as backend,
        Server(tmp_path / "data", *SETTINGS, *server_words(backend), *WAYS["tokens"]) as server,
    ):
        made = httpx.post(
            f"{server.url}/v1/admin/tokens",
            headers={"authorization": f"Bearer {TOKEN}"},
            json={"grants": [ONE_SLOT]},
        ).json()
        check(run_suite(server, tmp_path / "report.json", made["token"]))


def check(ended: Mapping[str, str]) -> None:
    served = {name: status for name, status in ended.items() if not name.startswith(NOT_SERVED)}
    assert {name for name, status in served.items() if status != "passed"} == set()
    assert len(served) == 332
