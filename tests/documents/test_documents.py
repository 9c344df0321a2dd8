"""The commands in README.md and docs/ do what the documents say, in the order in which they stand."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.servers import BackendServer
from tests.documents.programs import programs
from tests.documents.shell import agrees, run_steps, steps
from tests.server import Server, free_port
from tests.spark.cluster import JVM

ROOT = Path(__file__).parents[2]
# As programs import what a clone has installed.
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "sdk" / "python")])
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "deploy" / "README.md"]
# They start Spark, which wants the cores for itself.
ON_SPARK = ("pipeline.md",)
# Spark's own Java has what it loads in an archive; the one that looks for its words runs for a moment.
_QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1", "SPARK_SUBMIT_OPTS": JVM}
# They have tests of their own, with what their commands need.
_ELSEWHERE = ("archive.md",)
WITH_COMMANDS = [
    pytest.param(document, id=document.name, marks=[pytest.mark.spark] if document.name in ON_SPARK else [])
    for document in DOCUMENTS
    if steps(document.read_text()) and document.name not in _ELSEWHERE
]


@pytest.fixture
def resp_port() -> int:
    """The gateway's port for Redis clients, which documents have at 6380."""
    return free_port()


@pytest.fixture
def server(tmp_path: Path, resp_port: int) -> Iterator[Server]:
    with Server(tmp_path / "weir-data", "--resp-listen", str(resp_port)) as server:
        yield server


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[BackendServer]:
    """The one that documents have at 6379."""
    with BackendServer(tmp_path) as redis:
        yield redis


@pytest.mark.parametrize("document", WITH_COMMANDS)
def test_commands_print_what_the_document_says(
    document: Path, server: Server, resp_port: int, redis: BackendServer, tmp_path: Path
) -> None:
    """Each command of a document, typed in its order, prints what stands below it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    environment |= {"PYTHONPATH": PYTHONPATH, "WEIR_URL": server.url, **_QUICK_JAVA}
    text = _placed(document.read_text(), server.port, redis.port, resp_port)
    for name, program in programs(text).items():
        (tmp_path / name).write_text(program)
    if 'weir-client"' in text:
        compile_client(tmp_path / "node_modules" / "weir-client")
    run_steps(text, tmp_path, environment)


def compile_client(into: Path) -> None:
    """The TypeScript client as `npm install` and `npm run build` leave it."""
    package, compiler = ROOT / "sdk" / "typescript", ROOT / "tests" / "sdk" / "node_modules" / ".bin" / "tsc"
    into.mkdir(parents=True)
    shutil.copy(package / "package.json", into)
    subprocess.run([compiler, "-p", package, "--outDir", into / "dist"], check=True)


def _placed(text: str, port: int, redis_port: int, resp_port: int) -> str:
    """The document with its ports moved to free ones, and `.venv` where it is."""
    places = {
        "localhost:8080": f"127.0.0.1:{port}",
        "8081": str(free_port()),
        "6379": str(redis_port),
        "6380": str(resp_port),
    }
    # In one pass: the digits of one port may stand in another.
    moved = re.sub("|".join(places), lambda found: places[found[0]], text)
    # In this order: where Python is, `.venv/bin/` may stand in the path.
    moved = moved.replace(".venv/bin/python", sys.executable)
    moved = moved.replace(".venv/bin/weir-spark", f"{sys.executable} -m pyspark_weir")
    return moved.replace(".venv/bin/weir", f"{sys.executable} -m weir")


def test_the_tour_is_there() -> None:
    """A test that runs no command would always pass."""
    assert len(steps((ROOT / "README.md").read_text())) >= 5
    assert len(steps((ROOT / "docs" / "tour.md").read_text())) >= 20


def test_comparing_tells_differences() -> None:
    """Long numbers and what stands for anything agree; everything else has to be the same."""
    assert agrees('{"id":"1795228230613-0"}', '{"id":"1795228239999-0"}')
    assert not agrees('{"id":"1795228230613-0"}', '{"id":"1795228239999-1"}')
    assert agrees("x … z", "x y z")
    assert not agrees('{"count":3}', '{"count":4}')
