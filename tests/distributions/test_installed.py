"""Installed distributions in a folder whose modules have the names of ours: `app.py`, `engine/`, `cli/`.

Knows: the programs that an installation brings. Must never know: this repository's folders.
"""

import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from tests.distributions.conftest import Environment, run
from tests.server import Server, free_port

_STOP_S_MAX: Final = 30
_CLIENT: Final = """
import sys
import pyspark_weir, weir

with weir.Client() as client:
    client.publish("orders", {"item": "pear"})
    print(*(entry.fields["item"] for entry in client.entries("orders")))
print(pyspark_weir.DefaultSource.name())
print([name for name in ("app", "cli", "engine", "fastapi", "uvicorn") if name in sys.modules])
"""


@pytest.fixture(scope="module")
def clients(environment: Environment) -> Path:
    """An environment of a client's machine: no gateway."""
    return environment("weir_client", "pyspark_weir")


@pytest.fixture(scope="module")
def gateway(environment: Environment) -> Path:
    """An environment of a gateway's machine: no Spark."""
    return environment("weir_gateway", "weir_client")


def test_clients_work_beside_a_user_s_own_modules(clients: Path, users_folder: Path, tmp_path: Path) -> None:
    """`python -c` has the current folder first on its path, as a user's program has."""
    with Server(tmp_path / "data") as server:
        done = run(clients / "bin/python", "-c", _CLIENT, cwd=users_folder, WEIR_URL=server.url)
        assert done.stdout.splitlines() == ["pear", "weir", "[]"], done.stderr
        read = run(clients / "bin/weir", "read", "orders", cwd=users_folder, WEIR_URL=server.url)
        assert read.stdout.endswith("item=pear\n"), read.stderr
        found = run(clients / "bin/weir-spark", "--help", cwd=users_folder)
        assert "archive" in found.stdout, found.stderr


def test_a_client_has_the_commands_of_what_is_installed(clients: Path, gateway: Path, tmp_path: Path) -> None:
    """`weir serve` comes with the gateway, `weir publish` with the client, which both have."""
    shown = {one: run(one / "bin/weir", "--help", cwd=tmp_path).stdout for one in (clients, gateway)}
    for command, there in {"publish": {clients, gateway}, "serve": {gateway}}.items():
        assert {one for one, text in shown.items() if f" {command} " in text} == there, command


@pytest.mark.parametrize("program", [("bin/weir",), ("bin/python", "-m", "weir")])
def test_a_gateway_starts_from_a_user_s_folder(
    program: tuple[str, ...], gateway: Path, users_folder: Path
) -> None:
    """It takes no module of the current folder for its own, and puts its data there."""
    port, (first, *words) = free_port(), program
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "PYTHON"))}
    command = [str(gateway / first), *words, "serve", "--port", str(port)]
    process = subprocess.Popen(command, cwd=users_folder, env=kept, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        # It says where its data are, and what it has read.
        for event in ("serving", "ready"):
            assert f'"event":"{event}"' in process.stderr.readline()
        url = f"http://127.0.0.1:{port}"
        done = run(gateway / "bin/weir", "publish", "orders", "item=pear", cwd=users_folder, WEIR_URL=url)
        assert done.stdout.startswith("stored 1 entry"), done.stderr
        with urllib.request.urlopen(f"{url}/v1/streams/orders", timeout=10) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_STOP_S_MAX)
    assert process.returncode == 0
    assert (users_folder / "weir-data").is_dir()


def test_commands_that_cannot_be_loaded_are_reported(gateway: Path, users_folder: Path) -> None:
    """A user's `app.py` on PYTHONPATH hides the gateway; a client's commands do not need it."""
    done = run(gateway / "bin/weir", "streams", "--help", cwd=users_folder, PYTHONPATH=str(users_folder))
    assert done.returncode == 0
    assert "List the streams." in done.stdout
    assert done.stderr == (
        "weir: the commands of weir-gateway cannot be loaded: "
        "RuntimeError: a module of the user was imported\n"
    )
