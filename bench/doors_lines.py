"""What stands between a socket and the engine, counted in a commit: lines, and signs of copies.

    python -m bench.doors_lines [COMMIT ...]      e.g. 6280b92 HEAD; without any: HEAD

Knows: where those files are, and where they were. Must never know: what is in them.

The files are those of protocols and of their transport; of consumers of groups, waits and coalescers, which
all doors share; and of a run of commands. A module's importers are those in `app`, `engine` and the clients.
"""

import argparse
import ast
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

PACKAGES: Final = ("app/", "engine/", "sdk/python/weir/", "spark/pyspark_weir/")
# Protocols stood beside each other until they moved to app/doors.
FOLDERS: Final = ("app/doors/", "app/resp/", "app/sse/", "app/transport/", "app/websocket/")
SHARED: Final = ("adds", "consumer", "in_flight", "leases", "shared_leases", "waiting")
FILES: Final = (
    *(f"app/live/{name}.py" for name in SHARED),
    *("app/api/commands.py", "app/redis/executor.py", "app/redis/steps.py", "app/work.py"),
)
# A file at first, a folder later.
SETTINGS: Final = "app/settings"


class Counts(NamedTuple):
    """What is counted of one commit."""

    doors: int
    files: int
    one_importer: int
    take: int
    settings: int


def sources(commit: str) -> dict[str, str]:
    """The modules of all packages, by path."""
    packed = subprocess.run(["git", "archive", commit, *PACKAGES], capture_output=True, check=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)) is not None:
                found[member.name] = file.read().decode()
    return found


def of_doors(texts: dict[str, str]) -> dict[str, int]:
    """The lines of each file between a socket and the engine."""
    return {
        path: text.count("\n") for path, text in texts.items() if path.startswith(FOLDERS) or path in FILES
    }


def module_of(path: str) -> str:
    """`sdk/python/weir/cli/main.py` is `weir.cli.main`."""
    short = path.removeprefix("sdk/python/").removeprefix("spark/").removesuffix(".py")
    return short.removesuffix("/__init__").replace("/", ".")


def imported_by(tree: ast.AST) -> Iterator[str]:
    """All dotted names that a module's imports may mean a module by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def count(commit: str) -> tuple[Counts, Counter[str]]:
    """The figures of a commit, and the lines of its doors by folder."""
    texts = sources(commit)
    trees = {path: ast.parse(text) for path, text in texts.items()}
    modules = {module_of(path) for path in texts if not path.endswith("__init__.py")}
    importers = Counter(name for tree in trees.values() for name in {*imported_by(tree)} & modules)
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    classes_of_settings = (
        node
        for path, tree in trees.items()
        if path.startswith(SETTINGS)
        for node in ast.walk(tree)
        if _is_settings(node)
    )
    doors = of_doors(texts)
    folders: Counter[str] = Counter()
    for path, lines in doors.items():
        folders["/".join(path.split("/")[: 3 if path.startswith("app/doors/") else 2])] += lines
    counts = Counts(
        doors=sum(doors.values()),
        files=len(doors),
        one_importer=sum(importers[name] == 1 for name in modules),
        take=sum("take" in _methods(one) for one in classes),
        settings=next(_settings(node) for node in classes_of_settings),
    )
    return counts, folders


def _methods(one: ast.ClassDef) -> set[str]:
    return {node.name for node in one.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _is_settings(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == "Settings"


def _settings(node: ast.AST) -> int:
    assert isinstance(node, ast.ClassDef)
    return sum(isinstance(one, ast.AnnAssign) for one in node.body)


def main() -> None:
    """Print the figures of each commit, and its doors by folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commits", nargs="*", default=["HEAD"])
    for commit in parser.parse_args().commits:
        counts, folders = count(commit)
        print(commit, ", ".join(f"{name} {value:,}" for name, value in counts._asdict().items()))
        for folder, lines in sorted(folders.items()):
            print(f"  {lines:6,} {folder}")


if __name__ == "__main__":
    main()
