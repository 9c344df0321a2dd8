"""Offsets: one place is one text, and what is no offset of ours is refused."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir import offsets
from pyspark_weir.errors import PipelineError
from pyspark_weir.offsets import Position
from pyspark_weir.planning import Sizes

entry_ids = st.builds(lambda ms, seq: f"{ms}-{seq}", st.integers(0, 1 << 63), st.integers(0, 1 << 63))
positions = st.builds(Position, entry_ids, st.text("abcdef0123456789", max_size=16), st.none() | entry_ids)
places = st.dictionaries(st.text("gab/09ü", min_size=1), positions)


def as_text(found: Mapping[str, Position]) -> str:
    """As a checkpoint of Spark's has it."""
    return json.dumps(offsets.encode(found), separators=(",", ":"))


@given(places, st.randoms())
def test_the_order_in_which_streams_are_found_is_not_seen(found: dict[str, Position], random: object) -> None:
    shuffled = dict(sorted(found.items(), key=lambda _: random.random()))  # type: ignore[attr-defined]
    # As Spark writes it.
    assert json.dumps(offsets.encode(found)) == json.dumps(offsets.encode(shuffled))


@given(places, st.sets(st.text("gab/09ü", min_size=1)))
def test_streams_that_are_gone_are_told_beside(found: dict[str, Position], gone: set[str]) -> None:
    written = json.dumps(offsets.encode(found, gone=gone))
    assert offsets.gone(json.loads(written)) == gone
    assert offsets.decode(json.loads(written)) == found
    assert written == json.dumps(offsets.encode(found, gone=sorted(gone, reverse=True)))


@given(st.builds(Sizes, *[st.integers(1, 1 << 40)] * 3, st.booleans()))
def test_how_a_batch_is_cut_is_told_beside(sizes: Sizes) -> None:
    assert offsets.cut(json.loads(json.dumps(offsets.encode({}, cut=sizes)))) == sizes
    assert offsets.cut(offsets.encode({})) is None


@given(places)
def test_an_offset_is_read_as_it_was_written(found: dict[str, Position]) -> None:
    written = json.dumps(offsets.encode(found))
    assert offsets.decode(json.loads(written)) == found
    assert json.dumps(offsets.encode(offsets.decode(json.loads(written)))) == written


def test_the_form_is_the_one_that_checkpoints_hold() -> None:
    found = {"g1/clicks": Position("0-0", "d4e5f6"), "g0/orders": Position("1700000099999-9", "a1b2c3")}
    expected = '{"v":1,"s":{"g0/orders":["1700000099999-9","a1b2c3"],"g1/clicks":["0-0","d4e5f6"]}}'
    assert as_text(found) == expected
    assert offsets.parts("g0/orders:eu") == ("g0", "orders:eu")


def test_an_id_with_leading_zeros_is_the_same_place() -> None:
    """A person may have written the checkpoint; Spark compares offsets as texts."""
    given = {"v": 1, "s": {"g0/s": ["007-01", "ab"], "g0/t": ["5", "ab"]}}
    assert as_text(offsets.decode(given)) == '{"v":1,"s":{"g0/s":["7-1","ab"],"g0/t":["5-0","ab"]}}'


@pytest.mark.parametrize(
    "foreign", [{}, {"v": 1}, {"v": 1, "s": {"a": []}}, {"v": 1, "s": {"a": 5}}, {"topic": 1}]
)
def test_an_offset_of_another_source_is_refused(foreign: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match=r"WEIR_CHECKPOINT.*its own"):
        offsets.decode(foreign)


def test_an_offset_of_another_version_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"WEIR_CHECKPOINT.*version 2"):
        offsets.decode({"v": 2, "s": {}})
