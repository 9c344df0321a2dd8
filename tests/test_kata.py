"""The kata: a capability that is made up, and shown in docs/architecture.md, goes into this tree and works.

How many files it goes through has a ceiling, as docs/decisions/ceilings.md says.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import completed

ROOT: Final = Path(__file__).parent.parent
PATCH: Final = ROOT / "tests" / "ceilings" / "kata.patch"
PAGE: Final = ROOT / "docs" / "architecture.md"
# Of the engine without its backends: a file of state and one of commands, and two that list what there is.
ENGINE_FILES_MAX: Final = 4
# Not counted: what checks, describes or is generated.
BESIDE: Final = ("tests/", "docs/", "CHANGELOG.md", "sdk/typescript/src/documents/")
REFRESH: Final = f"""
The kata no longer goes into this tree, or no longer works in it. Refresh it:

    git worktree add --detach /tmp/kata && cd /tmp/kata
    git apply --3way tests/ceilings/kata.patch     # mend what conflicts, and run the tests that it brings
    git add --all
    git -c diff.suppressBlankEmpty=true diff --cached > {PATCH}
    cd {ROOT} && git worktree remove --force /tmp/kata
"""


def _touched() -> list[str]:
    """The files that the patch changes or adds."""
    return re.findall(r"^\+\+\+ b/(\S+)$", PATCH.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.early
def test_a_capability_goes_through_few_files() -> None:
    """Of code: its tests, pages and what is generated do not count. The page names each of them."""
    code = [name for name in _touched() if not name.startswith(BESIDE)]
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert len(code) == tables["ceilings"]["kata"]["files"]
    engine = [name for name in code if name.startswith("engine/") and not name.startswith("engine/cluster/")]
    assert len(engine) <= ENGINE_FILES_MAX
    _, page = PAGE.read_text(encoding="utf-8").split("## Add a capability\n")
    shown, *_ = page.split("\n## ")
    assert sorted(re.findall(r"^ {4}(\S+) {2,}\S", shown, re.MULTILINE)) == sorted(code)


def test_the_kata_adds_a_capability(tmp_path: Path) -> None:
    """Applied to a copy of the tree, its tests pass: in the engine, and at each door of a gateway over a log,
    Redis and Valkey. They start three gateways and two servers: that takes some ten seconds.
    """
    for folder in ("app", "engine", "history", "sdk/python", "tests"):
        # With what is compiled: only what the patch changes is compiled anew.
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    # Lines may have moved: of what is around a change the nearest line has to be the same.
    applied = subprocess.run(
        ["git", "apply", "-C1", str(PATCH)], cwd=tmp_path, stderr=subprocess.PIPE, check=False
    )
    assert applied.returncode == 0, applied.stderr.decode() + REFRESH
    # Programs find the copy, not what is installed; coverage would report files that are gone.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(tmp_path / "sdk" / "python")])
    tests = [name for name in _touched() if name.startswith("tests/")]
    ran = completed([sys.executable, "-m", "pytest", "-q", *tests], cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stdout + REFRESH
