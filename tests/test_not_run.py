"""What could not run is said at the end of a run, and collected for the end of the gate."""

import sys
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import completed

ROOT: Final = Path(__file__).parent.parent
TESTS: Final = """
import pytest

pytestmark = pytest.mark.skipif(True, reason="needs a disk of its own")

def test_one() -> None: ...

def test_two() -> None: ...
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_a_test_that_could_not_run_is_named_with_its_reason(tmp_path: Path, processes: int) -> None:
    """Once, on the terminal and in the file, behind what other runs have left there."""
    file, notes = tmp_path / "test_skipped.py", tmp_path / "notes"
    file.write_text(TESTS)
    notes.write_text("from the run before\n")
    # Its configuration, and the hooks of our tests.
    ours = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", "-p", "tests.conftest"]
    program = [sys.executable, "-m", "pytest", *ours, f"--not-run={notes}", f"-n{processes}", str(file)]
    done = completed(program, cwd=ROOT, timeout=300)
    line = "could not run here: needs a disk of its own (2 in test_skipped.py)"
    assert line in done.stdout.splitlines(), done.stdout + done.stderr
    assert notes.read_text() == f"from the run before\n{line}\n"
