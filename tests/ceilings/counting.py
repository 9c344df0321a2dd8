"""How much code a tree has: lines without blank ones, comments and docstrings, and modules with one importer.

Knows: where packages are. Must never know: what is in them.

    python -m tests.ceilings.counting     all figures of this tree, as `pyproject.toml` has their ceilings
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# What each figure counts; folders that others have as well are counted in both.
PYTHON: Final = {
    "app": ("app", "history"),
    "app-doors": ("app/doors",),
    "engine": ("engine",),
    "engine-cluster": ("engine/cluster",),
    "spark": ("spark/pyspark_weir",),
    "sdk": ("sdk/python",),
    "tests": ("tests",),
}
LUA: Final = "engine/cluster/lua"
# Where what is imported is ours, and what it is imported as.
PACKAGES: Final = {
    "app": "",
    "engine": "",
    "history": "",
    "sdk/python/weir": "sdk/python/",
    "spark/pyspark_weir": "spark/",
}
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _files(folder: str, suffix: str = ".py") -> Iterable[Path]:
    """The files of a folder, but for what is installed or generated there."""
    return (file for file in sorted((ROOT / folder).rglob(f"*{suffix}")) if "node_modules" not in file.parts)


def code_lines(text: str) -> int:
    """The lines of a module that are neither blank, nor a comment, nor of a docstring."""
    documented = {number for node in ast.walk(ast.parse(text)) for number in _docstring_lines(node)}
    return sum(
        1
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in documented
    )


def _docstring_lines(node: ast.AST) -> Iterable[int]:
    if not isinstance(node, _DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
        return ()
    first = node.body[0]
    assert first.end_lineno is not None, "it was parsed from text"
    return range(first.lineno, first.end_lineno + 1)


def lua_lines(text: str) -> int:
    """The same of a script."""
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))


def _imported_by(tree: ast.AST) -> Iterator[str]:
    """All dotted names that the imports of a module may mean a module by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_with_one_importer() -> int:
    """How many modules one other imports and no more: a room that a reader enters by one door."""
    trees = {
        str(file.relative_to(ROOT)).removeprefix(prefix).removesuffix(".py").replace("/", "."): ast.parse(
            file.read_text(encoding="utf-8")
        )
        for folder, prefix in PACKAGES.items()
        for file in _files(folder)
    }
    modules = {name for name in trees if not name.endswith("__init__")}
    importers = Counter(name for tree in trees.values() for name in {*_imported_by(tree)} & modules)
    return sum(importers[name] == 1 for name in modules)


def lines() -> dict[str, int]:
    """The code lines of each package."""
    counts = {
        name: sum(
            code_lines(file.read_text(encoding="utf-8")) for folder in folders for file in _files(folder)
        )
        for name, folders in PYTHON.items()
    }
    return counts | {"lua": sum(lua_lines(file.read_text(encoding="utf-8")) for file in _files(LUA, ".lua"))}


if __name__ == "__main__":
    for name, count in (lines() | {"modules-with-one-importer": modules_with_one_importer()}).items():
        sys.stdout.write(f"{name} = {count}\n")
