"""How the matrix of bugs and tests is made: probes, and the tests that are asked."""

from pathlib import Path
from typing import Any

import pytest

from tests.proof.bugs import MATRIX
from tests.proof.matrix import ASKED_MAX, QUICK_S, chosen
from tests.proof.planting import ROOT
from tests.proof.probes import Probes

MODULE = '''"""A module."""

LIMIT = 1


def check(value: int) -> str:
    """Say what it is."""
    if value > LIMIT:
        return "large"
    elif value == LIMIT:
        return "equal"
    return "small"
'''


@pytest.mark.early
@pytest.mark.parametrize(
    ("piece", "before"),
    [
        ('return "large"', 'return "large"'),
        ("value == LIMIT", "if value > LIMIT:"),
        ('return "small"', 'return "small"'),
        ("LIMIT = 1", "if value > LIMIT:"),
    ],
)
def test_a_probe_stands_before_what_a_bug_changes(piece: str, before: str) -> None:
    """Where no statement may stand, before what encloses it; outside all functions, first in each of them."""
    probes = Probes(MODULE, 7)
    lines = probes.write().splitlines()
    (number,) = probes.of(piece)
    at = [line.strip() for line in lines].index(f"_all_that_ran[{number}] = 1")
    assert lines[at + 1].strip() == before


@pytest.mark.early
def test_a_module_with_its_probes_says_what_has_run() -> None:
    """Which statements, by their numbers; it does what it did."""
    probes, names = Probes(MODULE, 7), dict[str, Any]()
    exec(probes.write(), names)
    seen = names["_all_that_ran"]
    seen[7 : probes.end] = bytes(probes.end - 7)
    assert names["check"](1) == "equal"
    assert {number for number in range(7, probes.end) if seen[number]} == {
        *probes.of("if value > LIMIT"),
        *probes.of('return "equal"'),
    }


@pytest.mark.early
def test_every_bug_has_its_probe() -> None:
    """Where there are no probes, the bug names tests that are there. It parses some eighty modules: 2 s."""
    texts = {edit.file for bug in MATRIX.values() for edit in bug.edits if edit.file.endswith(".py")}
    of_file = {file: Probes((ROOT / file).read_text(encoding="utf-8"), 0) for file in texts}
    for name, bug in MATRIX.items():
        for edit in bug.edits:
            assert of_file[edit.file].of(edit.old) if edit.file in of_file else bug.asked, name
        for start in bug.asked:
            assert Path(ROOT / start).exists(), f"{name}: {start}"


@pytest.mark.early
def test_the_tests_that_are_asked_are_of_many_files() -> None:
    """The quickest of each file first, up to a number and a time; what takes too long is passed over."""
    quick = [{"test": f"tests/a.py::test_{n}", "s": 0.01 * n} for n in range(20)]
    others = [{"test": "tests/b.py::test", "s": QUICK_S}, {"test": "tests/c.py::test", "s": 20.0}]
    asked = chosen([*quick, *others, {"test": "tests/d.py::test", "s": 46.0}], 45.0)
    assert asked[:2] == ["tests/a.py::test_0", "tests/b.py::test"]
    assert asked[-1] == "tests/c.py::test"
    assert len(asked) == 22
    assert len(chosen(quick * 10, 45.0)) == ASKED_MAX
