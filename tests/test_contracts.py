"""The import contracts hold: a breach seeded in each package fails the gate, and is named."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
TREES: Final = ("app", "engine", "sdk/python/weir", "spark/pyspark_weir")
BREACHES: Final = {
    "engine": ("engine/ids.py", "import engine.keyspace", "In the engine nothing points back"),
    "engine, a module without a layer": ("engine/new.py", "", "In the engine nothing points back"),
    "engine, web": ("engine/entries.py", "import pydantic", "The engine knows nothing of the web"),
    "app": ("app/gateway.py", "import app.http.requests", "In the gateway nothing points back"),
    "app, a module without a layer": ("app/new.py", "", "In the gateway nothing points back"),
    "app.api": ("app/api/root.py", "import app.main", "In the gateway nothing points back"),
    "app.api, a cycle": ("app/api/groups/pages.py", "import app.api.streams", "In the gateway's packages no"),
    "app.http": ("app/http/media.py", "import app.api.groups.groups", "In the gateway nothing points back"),
    "app.http, a cycle": ("app/http/media.py", "import app.http.requests", "In the gateway's packages no"),
    "app.live": (
        "app/live/leases.py",
        "import app.doors.websocket.frames",
        "In the gateway nothing points back",
    ),
    "app.openapi": ("app/openapi/problems.py", "import app.api.root", "In the gateway nothing points back"),
    "app.redis": ("app/redis/resp.py", "import app.doors.sse.events", "In the gateway nothing points back"),
    "app.redis, a cycle": ("app/redis/resp.py", "import app.redis.written", "In the gateway's packages no"),
    "app.doors.sse": (
        "app/doors/sse/events.py",
        "import app.doors.websocket.frames",
        "A protocol knows no other",
    ),
    "app.tenants": ("app/tenants/tenant.py", "import app.gateway", "In the gateway nothing points back"),
    "app.doors.http": ("app/doors/http/inline.py", "import app.server", "In the gateway nothing points back"),
    "app.doors.websocket": (
        "app/doors/websocket/frames.py",
        "import app.doors.sse.events",
        "A protocol knows no other",
    ),
    "app, engine": ("app/names.py", "import engine.keyspace", "The gateway uses the engine through"),
    "weir": ("sdk/python/weir/errors.py", "import app.names", "The client knows neither the gateway"),
    "pyspark_weir": ("spark/pyspark_weir/ids.py", "import engine.ids", "The pipeline is a client"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for tree in TREES:
        shutil.copytree(ROOT / tree, folder / tree, ignore=shutil.ignore_patterns("__pycache__", "console"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder / one) for one in ("", "sdk/python", "spark"))
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "300"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_contracts_are_kept(copy: Path) -> None:
    """Or the breaches below would prove nothing."""
    done = lint(copy)
    assert (done.returncode, " 0 broken" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_fails_the_gate(copy: Path, name: str) -> None:
    """With the name of the contract that is broken."""
    file, line, contract = BREACHES[name]
    before = (copy / file).read_text() if (copy / file).exists() else None
    (copy / file).write_text(f"{before or ''}\n{line}\n")
    try:
        done = lint(copy)
    finally:
        if before is None:
            (copy / file).unlink()
        else:
            (copy / file).write_text(before)
    assert done.returncode == 1
    broken = [line for line in done.stdout.splitlines() if " BROKEN" in line]
    assert any(line.startswith(contract) for line in broken), done.stdout
