"""The newest gateway beside the oldest client that its metadata allow, in one environment.

Knows: the commit of the last release. Must never know: what the two say to each other.
"""

import subprocess
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

from tests.distributions.conftest import ROOT, Environment, build, run
from tests.server import free_port

# As of tests/mixed/test_upgrade.py.
LAST_RELEASE: Final = "3d47809"
_PROGRAM: Final = """
from weir import Client

with Client() as client:
    client.wait_until_ready()
    for number in range(3):
        client.publish("orders", {"n": number})
    print(*(entry.fields["n"] for entry in client.entries("orders")))
    group = client.group("orders", "billing")
    group.ensure(start="0")
    page = group.read("anna", count=2)
    print(group.ack(*(entry.id for entry in page.entries)), group.info()["lag"])
    group.nack(group.read("anna").entries[0].id)
    print([entry["consumer"] for entry in group.pending()])
    print(client.command("XLEN", "orders"))
"""


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the last release's client."""
    folder = tmp_path_factory.mktemp("release")
    packed = subprocess.run(
        ["git", "archive", LAST_RELEASE, "sdk/python"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode != 0:
        pytest.skip("a copy of the repository without its history")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return build(folder / "sdk/python", folder / "wheel")


@pytest.mark.parametrize("project", ["pyproject.toml", "spark/pyproject.toml"])
def test_the_client_has_bounds_on_both_sides(project: str) -> None:
    """A minor version of the client may take something away, before 1.0."""
    needed = tomllib.loads((ROOT / project).read_text())["project"]["dependencies"]
    client = tomllib.loads((ROOT / "sdk/python/pyproject.toml").read_text())["project"]["version"]
    major, minor, _ = map(int, client.split("."))
    assert f"weir-client>={major}.{minor},<{major}.{minor + 1}" in needed


def test_the_newest_gateway_serves_beside_the_oldest_client(
    oldest: Path, environment: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    """It starts by that client's `weir`; its entries are published, read, and worked on by a group."""
    wheels["oldest client"] = oldest
    both, url = environment("weir_gateway", "oldest client"), f"http://127.0.0.1:{(port := free_port())}"
    serving = subprocess.Popen(
        [both / "bin/weir", "serve", "--port", str(port), "--data", tmp_path / "data"],
        stderr=subprocess.DEVNULL,
    )
    try:
        done = run(both / "bin/python", "-c", _PROGRAM, cwd=tmp_path, WEIR_URL=url)
        # Before them come the attempts that were made before the gateway was there.
        assert done.stdout.splitlines()[-4:] == ["0 1 2", "2 1", "[None]", "3"], done.stderr
        read = run(both / "bin/weir", "read", "orders", cwd=tmp_path, WEIR_URL=url)
        assert [line.rpartition(" ")[2] for line in read.stdout.splitlines()] == ["n=0", "n=1", "n=2"], (
            read.stderr
        )
    finally:
        serving.terminate()
        serving.wait(30)
