"""What is not to be measured is not, also in the processes that share the tests."""

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import completed

ROOT: Final = Path(__file__).parent.parent
TESTS: Final = """
import sys

import pytest
from hypothesis import given, strategies as st

@pytest.mark.no_cover
def test_one() -> None:
    assert sys.gettrace() is None

def test_two() -> None:
    assert sys.gettrace() is not None

@given(st.none())
def test_drawn(drawn: None) -> None:
    assert sys.gettrace() is None
"""


@pytest.mark.parametrize("processes", [0, 1])
def test_nothing_traces_a_test_that_is_not_measured(tmp_path: Path, processes: int) -> None:
    """A tracer makes a test several times as slow, even if its results are thrown away."""
    file = tmp_path / "test_traced.py"
    file.write_text(TESTS)
    ours = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", "-p", "tests.conftest"]
    words = [*ours, f"-n{processes}", "--cov-report=", "--cov=engine", str(file)]
    # Its own measurement, not that of the gate.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment["COVERAGE_FILE"] = str(tmp_path / "coverage")
    done = completed([sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
