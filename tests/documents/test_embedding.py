"""docs/embedding.md: the program as it stands there, run twice on the same directory."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.documents.programs import programs

ROOT = Path(__file__).parents[2]
PROGRAM = programs((ROOT / "docs" / "embedding.md").read_text())["orders.py"]


def _run(directory: Path) -> list[str]:
    (directory / "orders.py").write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, "orders.py"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    return run.stdout.splitlines()


def test_the_program_is_eight_statements() -> None:
    """Beside imports and the frame of an asynchronous program."""
    lines = [line for line in PROGRAM.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 8


def test_the_program_finds_what_its_earlier_runs_added(tmp_path: Path) -> None:
    """Each run adds one entry, and prints all of them: the log has kept the earlier ones."""
    assert len(_run(tmp_path)) == 1
    both = _run(tmp_path)
    assert len(both) == 2
    assert all(re.fullmatch(r"\d+-\d+ \[\('item', b'apple'\)\]", line) for line in both)
