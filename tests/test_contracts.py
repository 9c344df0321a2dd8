"""The import contracts hold: a breach seeded in each package fails the gate, and is named.

All are seeded in one copy of the tree, since each run of the linter takes seconds.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import completed

ROOT: Final = Path(__file__).parent.parent
TREES: Final = ("app", "engine", "history", "sdk/python/weir", "spark/pyspark_weir")
# What several of them break.
GATEWAY: Final = "In the gateway nothing points back"
ENGINE: Final = "In the engine nothing points back"
CYCLES: Final = "In no package a module leads back"
PROTOCOLS: Final = "A protocol knows no other"
BREACHES: Final = {
    "engine": ("engine/ids.py", "import engine.keyspace", ENGINE),
    "engine, a module without a layer": ("engine/new.py", "", ENGINE),
    "engine, web": ("engine/entries.py", "import pydantic", "The engine knows nothing of the web"),
    "app": ("app/gateway.py", "import app.http.requests", GATEWAY),
    "app, a module without a layer": ("app/new.py", "", GATEWAY),
    "app.api": ("app/api/root.py", "import app.main", GATEWAY),
    "app.api, layers": (
        "app/api/groups/group_calls.py",
        "import app.api.streams",
        "Among resources nothing points back",
    ),
    "app.http": ("app/http/media.py", "import app.api.groups.groups", GATEWAY),
    "app.http, layers": (
        "app/http/media.py",
        "import app.http.requests",
        "In what routes stand on nothing points back",
    ),
    "app.live": ("app/live/leases.py", "import app.doors.websocket.frames", GATEWAY),
    "app.openapi": ("app/openapi/problems.py", "import app.api.root", GATEWAY),
    "app.redis": ("app/redis/resp.py", "import app.doors.sse.events", GATEWAY),
    "app.redis, a cycle": ("app/redis/resp.py", "import app.redis.written", CYCLES),
    "app.doors.sse": ("app/doors/sse/events.py", "import app.doors.websocket.frames", PROTOCOLS),
    "app.tenants": ("app/tenants/tenant.py", "import app.gateway", GATEWAY),
    "app.doors.http": ("app/doors/http/heads.py", "import app.server", GATEWAY),
    "app.doors.websocket": ("app/doors/websocket/frames.py", "import app.doors.sse.events", PROTOCOLS),
    "app, engine": ("app/names.py", "import engine.keyspace", "The gateway uses the engine through"),
    "history, which nothing imports": ("app/main.py", "import history.service", "history > app > engine"),
    "engine.commands": (
        "engine/commands/base.py",
        "import engine.commands.reading",
        "Among commands nothing points back",
    ),
    "engine.cluster": (
        "engine/cluster/keys.py",
        "import engine.cluster.executor",
        "In the cluster nothing points back",
    ),
    "engine.runtime, a cycle": ("engine/runtime/turns.py", "import engine.runtime.engine", CYCLES),
    "engine, the protocol": ("engine/protocol.py", "import engine.runtime", ENGINE),
    "weir, app": ("sdk/python/weir/errors.py", "import app.names", "The client knows neither the gateway"),
    "weir": ("sdk/python/weir/entries.py", "import weir.worker", "In the client nothing points back"),
    "pyspark_weir, layers": (
        "spark/pyspark_weir/raw_options.py",
        "import pyspark_weir.source.batch",
        "In the pipeline nothing points back",
    ),
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
    return completed(command, cwd=folder, env=environment)


def reports(printed: str) -> dict[str, str]:
    """What is printed of each broken contract, by its name, which stands above a line of dashes."""
    parts = re.split(r"^(\S.*)\n-+\n\n", printed.partition("Broken contracts")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def broken(copy: Path) -> dict[str, str]:
    """The reports of a copy in which all breaches are seeded."""
    before = lint(copy)
    assert (before.returncode, " 0 broken" in before.stdout) == (0, True), before.stdout
    for file, line, _ in BREACHES.values():
        with (copy / file).open("a") as text:
            text.write(f"\n{line}\n")
    after = lint(copy)
    assert after.returncode == 1
    return reports(after.stdout)


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_fails_the_gate(broken: dict[str, str], name: str) -> None:
    """The report of its contract names both modules, in full or by their last names."""
    file, line, contract = BREACHES[name]
    (report,) = (report for title, report in broken.items() if title.startswith(contract))
    importer = file.removesuffix(".py").removeprefix("sdk/python/").removeprefix("spark/").replace("/", ".")
    imported = line.removeprefix("import ")
    if not line:
        assert importer in report or f"- {importer.rpartition('.')[2]}" in report
    elif contract.startswith("In no package"):
        ours, theirs = (one.rpartition(".")[2] for one in (importer, imported))
        assert f"- .{ours} -> .{theirs} " in report
    else:
        assert f"{importer} -> {imported} (l." in report
