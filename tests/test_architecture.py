"""docs/architecture.md is right about the tree, and its worked example works."""

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import completed

ROOT: Final = Path(__file__).parent.parent
WAY: Final = re.compile(r"<!-- way: .*? -->\n(.*?)<!-- end of way -->", re.DOTALL)
STEP: Final = re.compile(r"^ {4}( *)(< )?((?:app|engine)/[a-z_/]+)\.py ", re.MULTILINE)
MAP: Final = re.compile(r"<!-- map: .*? -->\n(.*?)<!-- end of map -->", re.DOTALL)
EXAMPLE: Final = re.compile(r"^````diff\n(.*?)^````$", re.DOTALL | re.MULTILINE)
LINE: Final = re.compile(r"^ {4}( *)([a-z]+)/ ", re.MULTILINE)
# Their folders are on the map, one level or two deep; other trees are named as a whole.
MAPPED: Final = ("app", "app/api", "app/doors", "app/http", "app/redis", "engine", "sdk")
DISTRIBUTIONS: Final = {
    "weir-gateway": ("app", "engine", "history"),
    "weir-client": ("sdk/python/weir",),
    "pyspark-weir": ("spark/pyspark_weir",),
}
PACKAGES: Final = {"app", "engine", "history", "pyspark_weir", "weir"}
WHOLE: Final = ("bench", "deploy", "docs", "history", "spark", "tests")


def _on_the_map() -> set[str]:
    found = MAP.search((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert found is not None, "the page has a map"
    paths: set[str] = set()
    parents: list[str] = []
    for indent, name in LINE.findall(found[1]):
        depth = len(indent) // 2
        parents[depth:] = [name]
        paths.add("/".join(parents))
    return paths


def _in_the_tree() -> set[str]:
    inner = {
        str(folder.relative_to(ROOT))
        for parent in MAPPED
        for folder in (ROOT / parent).iterdir()
        if folder.is_dir() and not folder.name.startswith((".", "_"))
    }
    return {*inner, *WHOLE, "app", "engine", "sdk"}


@pytest.mark.early
def test_the_map_is_the_tree() -> None:
    """No folder is missing on it, and none is on it that is gone."""
    assert _on_the_map() == _in_the_tree()


@pytest.mark.early
def test_packages_of_the_gateway_hold_few_modules() -> None:
    """More than sixteen are not taken in at a glance; fewer than four need no folder."""
    folders = {file.parent for file in (ROOT / "app").rglob("__init__.py")}
    counts = {
        str(folder.relative_to(ROOT)): len(list(folder.glob("*.py")))
        for folder in folders
        if folder.name != "doors"
    }
    assert len(counts) > 10
    assert {name: count for name, count in counts.items() if not 4 <= count <= 16} == {}


def _used_by(module: str) -> set[str]:
    """The modules of which it imports something, by where that is defined."""
    used: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            imported = import_module(node.module)
            used |= {
                node.module,
                *(f"{node.module}.{one.name}" for one in node.names),
                *(
                    getattr(imported, one.name).__module__
                    for one in node.names
                    if hasattr(getattr(imported, one.name, None), "__module__")
                ),
            }
    return used


def test_the_way_of_an_entry_is_that_of_the_imports() -> None:
    """Each step uses the one under it, or implements the interface above it."""
    found = WAY.search((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert found is not None, "the page has the way of an entry"
    parents: list[str] = []
    steps = [*STEP.findall(found[1])]
    assert len(steps) == len(found[1].strip().splitlines()) == 11
    for indent, turned, path in steps:
        module, depth = path.replace("/", "."), len(indent) // 2
        assert depth <= len(parents)
        parents[depth:] = [module]
        if depth:
            user, use = (module, parents[-2]) if turned else (parents[-2], module)
            assert use in _used_by(user), f"{user} uses {use}"


@pytest.mark.early
def test_every_file_that_the_page_names_exists() -> None:
    """A newcomer follows them."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:app|engine|tests|sdk|spark)/[a-z_/]+\.py)`", text))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.early
def test_documents_cite_files_that_exist() -> None:
    """Links of README, guides and contributing notes lead somewhere."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert missing == []


def _imports(file: Path) -> set[str]:
    """Dotted names of modules, and of what is taken from them."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _private_imports(folders: tuple[str, ...]) -> list[str]:
    """What the modules of a distribution import of others that has a name with `_` in front."""
    own = tuple(Path(folder).name for folder in folders)
    return [
        f"{file.relative_to(ROOT)}: {name}"
        for folder in folders
        for file in (ROOT / folder).rglob("*.py")
        for name in sorted(_imports(file))
        if (parts := name.split("."))[0] in PACKAGES - {*own} and any(part.startswith("_") for part in parts)
    ]


@pytest.mark.early
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_no_distribution_imports_what_is_private_to_another(distribution: str) -> None:
    """They are installed in versions that differ: names with `_` in front may be gone in the next one."""
    assert _private_imports(DISTRIBUTIONS[distribution]) == []


def test_the_worked_example_adds_an_operation(tmp_path: Path) -> None:
    """Applied to a copy of the tree, its test and its guide hold, and the description has it."""
    found = EXAMPLE.search((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert found is not None, "the page has a worked example"
    touched = re.findall(r"^\+\+\+ b/(\w+)/", found[1], re.MULTILINE)
    assert touched == ["app", "docs", "tests"]
    for folder in ("app", "deploy", "docs", "engine", "history", "sdk/python", "tests"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("node_modules", "__pycache__")
        )
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, tmp_path)
    subprocess.run(["git", "apply", "-"], input=found[1], text=True, cwd=tmp_path, check=True)
    # Programs find the copy, not what is installed; coverage would report files that are gone.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(tmp_path / "sdk" / "python")])
    selected = ["tests/app/test_first_entry.py", "tests/app/test_description.py", "tests/documents"]
    ran = completed(
        [sys.executable, "-m", "pytest", "-q", *selected, "-k", "not documents or curl.md"],
        cwd=tmp_path,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout
