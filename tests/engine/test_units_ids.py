"""The entry ID: what spells one, how it is shown, and that one integer keeps the order of two numbers."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import ids

halves = st.integers(0, ids.SEQUENCE_MAX)


@given(halves, halves)
def test_text_and_number_are_the_same(ms: int, sequence: int) -> None:
    """Both ways, through the strict parser and through that of the engine's own texts."""
    entry_id = ids.make(ms, sequence)
    assert (ids.ms_of(entry_id), ids.sequence_of(entry_id)) == (ms, sequence)
    assert ids.format(entry_id) == f"{ms}-{sequence}"
    assert ids.parse(ids.format(entry_id)) == entry_id
    assert ids.parse_canonical(ids.format(entry_id).encode()) == entry_id


WORDS = st.one_of(
    st.builds(lambda ms, sequence: b"%d-%d" % (ms, sequence), halves, halves),
    st.text("019-, +_", max_size=4).map(str.encode),
    st.sampled_from([b"1-0", b"01-02", b"9" * 19 + b"-1", b"9" * 20 + b"-", b"1-" + b"9" * 20, b"1-\xb2"]),
)


@given(st.lists(WORDS, max_size=5))
@example([b"1-0", b"9" * 19 + b"-9", b"9-" + b"9" * 19])
@example([b"1-0", b"9" * 19 + b"-19"])
@example([b"1-0", b"2"])
@example([b"1-2-,-3-4", b"5-6"])
@example([b"1", b",-2-3"])
def test_many_at_once_are_what_each_is(words: list[bytes]) -> None:
    """Whole and short ones; of others nothing is said."""
    each = [ids.parse(word.decode("latin-1")) for word in words]
    plain = all(b"-" in word and len(word) <= 21 for word in words)
    assert ids.parse_each(words) == (each if words and plain and None not in each else None)


@given(halves, halves, halves, halves)
def test_order_is_that_of_the_two_numbers(ms: int, sequence: int, other_ms: int, other: int) -> None:
    """Milliseconds first."""
    ordered = (ms, sequence) < (other_ms, other)
    assert (ids.make(ms, sequence) < ids.make(other_ms, other)) is ordered


def test_the_next_id_carries() -> None:
    """Adding one is what comes next, over the end of the sequence too."""
    assert ids.format(ids.make(5, ids.SEQUENCE_MAX) + 1) == "6-0"
    assert ids.format(ids.make(6, 0) - 1) == f"5-{ids.SEQUENCE_MAX}"
    assert ids.make(ids.MS_MAX, ids.SEQUENCE_MAX) == ids.ID_MAX


@pytest.mark.parametrize(
    "words",
    [
        *("", "-", "abc", "7-", "-5", "8--1", "1-2-3", " 5", "5 ", "+6", "8-+1", "8- 2", "1_0", "1-1_0"),
        *("5\n", "٣", "5-٣", f"{2**64}", f"1-{2**64}", "0" * 128, f"{'0' * 126}1-"),
        *("*", "$", "5-*", "1.0", "0x10", "1e3"),
    ],
)
def test_what_is_no_id(words: str) -> None:
    """No blanks, signs, underscores, other digits; not beyond 64 bits; not longer than 127 bytes."""
    assert ids.parse(words) is None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("01-02", "1-2"),
        ("5", "5-0"),
        ("0", "0-0"),
        ("0" * 126 + "7", "7-0"),
        (f"{2**64 - 1}", f"{2**64 - 1}-0"),
    ],
)
def test_replies_are_canonical(words: str, text: str) -> None:
    """Leading zeros are taken and not given back; a missing sequence is 0."""
    entry_id = ids.parse(words)
    assert entry_id is not None
    assert ids.format(entry_id) == text


def test_a_missing_sequence_is_what_the_place_means() -> None:
    """The last one, at the end of a range."""
    assert ids.parse("5", missing_sequence=ids.SEQUENCE_MAX) == ids.make(5, ids.SEQUENCE_MAX)
    assert ids.parse("5-3", missing_sequence=ids.SEQUENCE_MAX) == ids.make(5, 3)
