"""The floors of coverage, on made-up reports."""

import json
import sys
from pathlib import Path
from typing import Final

from tests.waiting import completed

SCRIPT: Final = Path(__file__).parent.parent / ".ci/module_coverage.py"
PACKAGES: Final = ("app", "engine", "sdk/python/weir", "spark/pyspark_weir")


def verdict(tmp_path: Path, covered: dict[str, int]) -> list[str]:
    """What is said of files with this number of their fifty lines and fifty branches covered."""
    empty = {"covered_lines": 0, "covered_branches": 0, "num_statements": 0, "num_branches": 0}
    files = {
        name: {"summary": empty | {"covered_lines": n // 2, "covered_branches": n - n // 2} | FIFTY}
        for name, n in covered.items()
    }
    (tmp_path / "report.json").write_text(json.dumps({"files": files}))
    command = [sys.executable, str(SCRIPT), str(tmp_path / "report.json")]
    done = completed(command)
    said = done.stderr.splitlines()
    assert done.returncode == bool(said), said
    return said


FIFTY: Final = {"num_statements": 50, "num_branches": 50}
FINE: Final = {f"{package}/a.py": 90 for package in PACKAGES}


def test_a_package_is_held_to_its_floor(tmp_path: Path) -> None:
    """At it is enough, one below is not, and one that was not measured at all is found."""
    assert verdict(tmp_path, FINE) == []
    assert verdict(tmp_path, FINE | {"app/a.py": 80}) == []
    assert verdict(tmp_path, FINE | {"app/a.py": 79}) == ["app: 79.0 % covered, the package needs 80 %"]
    low = {"app/a.py": 80, "engine/a.py": 90, "sdk/python/weir/a.py": 60, "spark/pyspark_weir/a.py": 60}
    assert verdict(tmp_path, low) == ["all: 72.5 % covered, the whole needs 75 %"]
    unmeasured = {name: n for name, n in FINE.items() if not name.startswith("sdk/")}
    assert verdict(tmp_path, unmeasured) == ["sdk/python/weir: 0.0 % covered, the package needs 60 %"]


def test_a_module_of_the_engine_cannot_hide_behind_others(tmp_path: Path) -> None:
    """The package is fine, one module is not."""
    others = {f"engine/{n}.py": 100 for n in range(9)}
    assert verdict(tmp_path, FINE | others | {"engine/bare.py": 80}) == []
    assert verdict(tmp_path, FINE | others | {"engine/bare.py": 79}) == [
        "engine/bare.py: 79.0 % covered, each module of the engine needs 80 %"
    ]
