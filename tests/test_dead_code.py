"""The gate's search for dead code, tried with code that is dead."""

import sys
from pathlib import Path

import pytest

from tests.waiting import completed

SCRIPT = Path(__file__).parent.parent / ".ci/dead_code.py"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def use() -> None: ...\n\n\nuse()\n", ""),
        ("def left_over() -> None: ...\n", "unused function 'left_over'"),
        ("class Kept:\n    field: int\n\n\nKept()\n", ""),
        ("class Kept:\n    def left_over(self) -> None: ...\n\n\nKept()\n", "unused method 'left_over'"),
    ],
)
def test_what_is_used_nowhere_fails_the_gate(tmp_path: Path, text: str, found: str) -> None:
    """A function or a method; a field alone may be for the readers of JSON."""
    for package in ("app", "engine", "history", "sdk/python", "spark"):
        (tmp_path / package).mkdir(parents=True)
    (tmp_path / "app/module.py").write_text(text)
    ran = completed([sys.executable, SCRIPT], cwd=tmp_path)
    assert ran.returncode == bool(found), ran.stderr
    assert found in ran.stdout
