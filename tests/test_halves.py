"""A gate runs half of what repeats itself, chosen by the tree, and says so, on made-up tests."""

import sys
from pathlib import Path
from typing import Final

import pytest

from tests import halves
from tests.waiting import completed

ROOT: Final = Path(__file__).parent.parent
TESTS: Final = """
import pytest
from hypothesis import given, strategies as st

from tests import halves

@pytest.mark.halved
@pytest.mark.parametrize("seed", range(9))
def test_seeds(seed: int) -> None: ...

@pytest.mark.parametrize("words", ["a", "b"])
@pytest.mark.parametrize("kind", ["redis", "redis8", "valkey"])
def test_servers(kind: str, words: str) -> None: ...

@pytest.mark.parametrize("n", range(5))
def test_each_of_them(n: int) -> None: ...

drawn = []

@given(st.integers())
def test_drawn(number: int) -> None:
    drawn.append(number)

def test_that_fails() -> None:
    assert (len(drawn), halves.some(9)) == (100, 9)
"""


def run(at: Path, *options: str) -> tuple[dict[str, int], list[str]]:
    """How many ran by the name of their test, and what was printed."""
    file = at / "test_made_up.py"
    file.write_text(TESTS)
    # The configuration and the hooks of our tests.
    ours = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={at}", "-p", "tests.conftest", "-vv"]
    program = [sys.executable, "-m", "pytest", *ours, *options, str(file)]
    done = completed(program, cwd=ROOT, timeout=300)
    lines = done.stdout.splitlines()
    ran = {line.partition("test_made_up.py::")[2].split()[0] for line in lines if "PASSED" in line}
    names = [name.partition("[")[0] for name in ran]
    return {name: names.count(name) for name in names} | {"servers": _words(ran)}, lines


def _words(ran: set[str]) -> int:
    """How many of the two words were tried over some kind of server."""
    return len({name[-2] for name in ran if name.startswith("test_servers")})


@pytest.mark.parametrize("processes", [0, 2])
def test_half_of_what_repeats_itself_runs(tmp_path: Path, processes: int) -> None:
    """Over servers, at most half for each case; what is no repetition runs whole; all processes agree."""
    ran, lines = run(tmp_path, "--half", f"-n{processes}")
    expected = {"test_seeds": 5, "test_servers": 2, "test_each_of_them": 5, "test_drawn": 1, "servers": 2}
    assert ran == expected, lines
    assert any("(50, 5) == (100, 9)" in line for line in lines), lines
    assert ".venv/bin/pytest test_made_up.py::test_that_fails" in lines, lines
    assert f"the half of tree {halves.tree()} ran; all of it runs with: make test HALF=" in lines, lines


def test_without_the_option_everything_runs(tmp_path: Path) -> None:
    """As the command does that repeats a failure."""
    ran, lines = run(tmp_path)
    expected = {"test_seeds": 9, "test_servers": 6, "test_each_of_them": 5, "test_drawn": 1, "servers": 2}
    assert ran == expected | {"test_that_fails": 1}, lines
    assert not any("the half" in line for line in lines)


def test_each_tree_has_its_half_and_together_they_have_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tree has the same one, at least one name of each family, and not always the first ones."""
    names, chosen = range(6), list[list[int]]()
    for tree in range(20):
        monkeypatch.setattr(halves, "_chosen_by", f"{tree}")
        assert halves.half(names) == halves.half(names)
        assert (len(halves.half(names)), halves.half(["one"]), halves.half([])) == (3, ["one"], [])
        chosen.append(halves.half(names))
    assert {name for half in chosen for name in half} == {*names}
    assert len({tuple(half) for half in chosen}) > 5
