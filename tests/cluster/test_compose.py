"""The cluster of deploy/compose-cluster.yaml, without containers: its servers, slots and gateway."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from ruamel.yaml import YAML

from tests.cluster.servers import BackendServer
from tests.server import Server, call, free_port
from tests.waiting import until

FILE: Final = Path(__file__).parents[2] / "deploy" / "compose-cluster.yaml"
ADDRESS: Final = re.compile(r"172\.30\.0\.1(\d)")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file."""
    return dict(YAML(typ="safe").load(FILE.read_text()))


@pytest.fixture
def servers(compose: dict[str, Any], tmp_path: Path) -> Iterator[list[BackendServer]]:
    """Its servers, with the options that they have there, on this machine."""
    with ExitStack() as stack:
        found = []
        for number in (1, 2, 3):
            _, *options = compose["services"][f"valkey-{number}"]["command"]
            directory = tmp_path / str(number)
            directory.mkdir()
            own = ["--cluster-port", str(free_port())]
            found.append(stack.enter_context(BackendServer(directory, "valkey", [*options, *own])))
        yield found


def here(text: str, servers: list[BackendServer]) -> str:
    """A text of the file with the addresses of these servers."""
    with_ports = re.sub(
        ADDRESS.pattern + r"(:6379)?", lambda found: f"127.0.0.1:{servers[int(found[1]) - 1].port}", text
    )
    return re.sub(r"-h (\S+):(\d+)", r"-h \1 -p \2", with_ports).replace("valkey-cli", "redis-cli")


def test_a_gateway_serves_over_the_servers_of_the_file(
    compose: dict[str, Any], servers: list[BackendServer], tmp_path: Path
) -> None:
    """The slots are given once; each write is on a disk when it is acknowledged."""
    shell, flag, script = compose["services"]["slots"]["command"]
    for _ in range(2):
        subprocess.run([shell, flag, here(script, servers)], check=True, timeout=60, capture_output=True)
        until(lambda: all(b"cluster_state:ok" in one.call("CLUSTER", "INFO") for one in servers), "it is up")
    weir = compose["services"]["weir"]["environment"]
    words = [here(weir["WEIR_BACKEND"], servers), weir["WEIR_BACKEND_DURABILITY"]]
    with Server(tmp_path / "data", "--backend", words[0], "--set", f"backend_durability={words[1]}") as one:
        for name in ("a", "b", "c", "d", "e", "f"):
            status, _ = call(one, "POST", f"/v1/streams/{name}/entries", {"fields": {"n": "1"}})
            assert status == 201
        assert call(one, "GET", "/v1/status")[1]["durability"]["answers"] == words[1]
    assert all(one.call("DBSIZE") for one in servers)


def test_servers_have_the_addresses_that_the_gateway_and_the_slots_name(compose: dict[str, Any]) -> None:
    """And none else."""
    services = compose["services"]
    have = {
        one["networks"]["default"]["ipv4_address"]
        for name, one in services.items()
        if name.startswith("valkey-")
    }
    named = [services["slots"]["command"][-1], services["weir"]["environment"]["WEIR_BACKEND"]]
    assert [{found[0] for found in ADDRESS.finditer(text)} for text in named] == [have, have]
