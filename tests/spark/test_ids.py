"""IDs of the pipeline: text and pairs agree, and keys sort as the gateway does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir import ids
from pyspark_weir.errors import PipelineError

halves = st.integers(0, ids.HALF_MAX)
entry_ids = st.builds(ids.EntryId, halves, halves)


@given(entry_ids)
def test_an_id_is_read_as_it_was_written(one: ids.EntryId) -> None:
    assert ids.parse(str(one)) == one


@given(entry_ids, entry_ids)
def test_texts_are_compared_as_ids(one: ids.EntryId, other: ids.EntryId) -> None:
    assert ids.is_after(str(one), str(other)) == (one > other)


@given(entry_ids)
def test_nothing_lies_between_an_id_and_the_next(one: ids.EntryId) -> None:
    if one == ids.LAST:
        with pytest.raises(PipelineError, match="WEIR_LAST_ID"):
            ids.next_id(one)
    else:
        following = ids.next_id(one)
        assert following > one
        assert ids.previous_id(following) == one


@pytest.mark.parametrize(
    ("one", "following"),
    [
        ((5, 0), (5, 1)),
        ((5, ids.HALF_MAX - 1), (5, ids.HALF_MAX)),
        ((5, ids.HALF_MAX), (6, 0)),
        ((0, ids.HALF_MAX), (1, 0)),
        ((ids.HALF_MAX - 1, ids.HALF_MAX), (ids.HALF_MAX, 0)),
        ((ids.HALF_MAX, ids.HALF_MAX - 1), ids.LAST),
    ],
)
def test_the_halves_carry(one: tuple[int, int], following: tuple[int, int]) -> None:
    """Neighbours on either side of the end of a millisecond, and of all IDs."""
    assert ids.next_id(ids.EntryId(*one)) == following
    assert ids.previous_id(ids.EntryId(*following)) == one


def test_nothing_comes_before_the_beginning() -> None:
    assert ids.previous_id(ids.ZERO) == ids.ZERO


def test_an_id_without_sequence_takes_the_one_asked_for() -> None:
    assert ids.parse("7") == (7, 0)
    assert ids.parse("7", missing_seq=9) == (7, 9)
    assert ids.canonical("007-01") == "7-1"


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "1-2-3", "1 -2", "+1-0", "1_0-0", "١-0", f"{1 << 64}-0"]
)
def test_what_is_no_id_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(PipelineError, match="WEIR_MALFORMED_ID") as refused:
        ids.parse(text)
    assert repr(text) in str(refused.value)
