"""How the matrix of bugs and tests is made: probes, and the tests that are asked."""

import ast
from pathlib import Path

import pytest

from tests.proof.bugs import MATRIX
from tests.proof.matrix import ASKED_MAX, CHOSEN_S_MAX, chosen
from tests.proof.planting import ROOT
from tests.proof.probes import probed

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


def probes_before(piece: str) -> list[str]:
    """The lines behind a probe for this piece of the module."""
    lines = probed(MODULE, {"7": piece}).splitlines()
    return [lines[at + 1].strip() for at, line in enumerate(lines) if '.note("7")' in line]


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
    """Where no statement may stand, before what encloses it; outside all functions, in each of them."""
    assert probes_before(piece) == [before]


@pytest.mark.early
def test_every_bug_has_its_probe() -> None:
    """The module is one with it; where there are no probes, the bug names tests that are there."""
    for name, bug in MATRIX.items():
        for edit in bug.edits:
            text = (ROOT / edit.file).read_text(encoding="utf-8")
            if edit.file.endswith(".py"):
                with_probe = probed(text, {"0": edit.old})
                assert with_probe != text, name
                ast.parse(with_probe)
            else:
                assert bug.asked, name
        for start in bug.asked:
            assert Path(ROOT / start).exists(), f"{name}: {start}"


@pytest.mark.early
def test_the_tests_that_are_asked_are_of_many_files() -> None:
    """The quickest of each file first, up to a number and a time; what takes too long is passed over."""
    quick = [{"test": f"tests/a.py::test_{n}", "s": 0.01 * n} for n in range(ASKED_MAX + 10)]
    long = [{"test": "tests/b.py::test", "s": CHOSEN_S_MAX + 1}, {"test": "tests/c.py::test", "s": 20.0}]
    asked = chosen([*quick, *long])
    assert asked[:2] == ["tests/a.py::test_0", "tests/c.py::test"]
    assert "tests/b.py::test" not in asked
    assert len(asked) < ASKED_MAX
    assert len(chosen(quick[:3] * 60)) == ASKED_MAX
