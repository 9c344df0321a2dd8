"""The gate looks again at a test that failed beside others, on made-up tests."""

import os
import sys
from pathlib import Path
from typing import Final

from tests.waiting import completed

SCRIPT: Final = Path(__file__).parent.parent / ".ci/second_look.py"
# The first run leaves a file behind, so that the second differs.
FAILS_ONCE: Final = """
from pathlib import Path

import pytest

@pytest.mark.parametrize("n", range({count}))
def test_one(n: int) -> None:
    been_here = Path(f"been-here-{{n}}")
    before = been_here.exists()
    been_here.touch()
    assert before
"""
FAILS_ALWAYS: Final = "def test_two() -> None: assert False"


def gate(at: Path, folder: str, tests: str) -> tuple[int, list[str], str]:
    """The exit code, the notes and the output for a tree with one file of tests in this folder."""
    (at / folder).mkdir(parents=True)
    (at / "pytest.ini").write_text("[pytest]\n")
    (at / folder / "test_made_up.py").write_text(tests)
    notes = at / "notes"
    notes.write_text("from the stage before\n")
    pytest = Path(sys.executable).with_name("pytest")
    command = [sys.executable, str(SCRIPT), str(notes), str(pytest), folder]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = completed(command, cwd=at, env=environment, timeout=300)
    return done.returncode, notes.read_text().splitlines()[1:], done.stdout + done.stderr


def test_what_passes_by_itself_is_named_and_does_not_fail_the_gate(tmp_path: Path) -> None:
    """Up to twelve; the notes of an earlier stage stay."""
    code, notes, output = gate(tmp_path, "tests/app", FAILS_ONCE.format(count=12))
    assert code == 0, output
    assert notes == [
        f"unsteady: failed once, then passed by itself: tests/app/test_made_up.py::test_one[{n}]"
        for n in sorted(range(12), key="{}]".format)
    ]
    code, notes, output = gate(tmp_path / "one-more", "tests/app", FAILS_ONCE.format(count=13))
    assert (code, notes) == (1, []), output
    assert "once more" not in output


def test_what_fails_twice_fails_the_gate(tmp_path: Path) -> None:
    """Also beside one that passes the second time."""
    code, notes, output = gate(tmp_path, "tests/app", FAILS_ONCE.format(count=1) + FAILS_ALWAYS)
    assert (code, notes) == (1, []), output
    assert "once more, by themselves: tests/app/test_made_up.py::test_one[0]" in output


def test_a_failed_proof_gets_no_second_look(tmp_path: Path) -> None:
    """An entry that is lost once in a thousand runs is what it is there to find."""
    for folder in ("crash", "engine", "proof", "spark/table"):
        at = tmp_path / folder.replace("/", "-")
        code, notes, output = gate(at, f"tests/{folder}", FAILS_ONCE.format(count=1))
        assert (code, notes) == (1, []), output
        assert "once more" not in output


def test_a_run_that_could_not_begin_gets_no_second_look(tmp_path: Path) -> None:
    """A file that cannot be read is no failed test."""
    code, notes, output = gate(tmp_path, "tests/app", "import nothing_of_this_name")
    assert (code, notes) == (2, []), output


def test_tests_that_pass_run_once(tmp_path: Path) -> None:
    """There is nothing to look at again."""
    code, notes, output = gate(tmp_path, "tests/app", "def test_fine() -> None: ...")
    assert (code, notes) == (0, []), output
    assert "once more" not in output
