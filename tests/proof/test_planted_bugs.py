"""The proof finds bugs that were planted: some of them here, all of them with `make prove`."""

import pytest

from tests.proof.bugs import MATRIX, SUBSET
from tests.proof.planting import FOUND, ROOT, Edit, NotPlanted, edited
from tests.proof.prove import trial, word


@pytest.mark.halved
@pytest.mark.parametrize("name", SUBSET)
def test_a_planted_bug_is_found(name: str) -> None:
    """By the test that says it would, which passes without the bug: it is in this run as well."""
    found = trial(name)
    assert found.code == FOUND, f"{name}: {found}"


@pytest.mark.early
def test_every_bug_can_still_be_planted() -> None:
    """Where the code has moved on, the list has to; or a bug would be called found that was never there."""
    for name, bug in MATRIX.items():
        for edit in bug.edits:
            text = (ROOT / edit.file).read_text(encoding="utf-8")
            assert edited(bug.edits, edit.file, text) != text, name
    assert len(MATRIX) >= 149


def test_a_test_that_takes_too_long_is_told_as_such() -> None:
    """Nothing is known then: it was planted, and neither found nor missed."""
    one = trial(SUBSET[0], s_max=0.01)
    assert word(one.code) == "TIMED OUT"
    assert one.words == "it took longer than 0.01 s"


def test_a_bug_whose_place_is_gone_is_told() -> None:
    """Not planted is not found."""
    with pytest.raises(NotPlanted, match="0 times"):
        edited([Edit("a.py", "gone", "")], "a.py", "there")
