"""The pattern matcher agrees with Redis's own definition, and no pattern makes it slow."""

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.glob import Glob


def naive(pattern: bytes, word: bytes) -> bool:
    """The definition: every way to split the word is tried."""
    if not pattern:
        return not word
    if pattern[:1] == b"*":
        return any(naive(pattern[1:], word[at:]) for at in range(len(word) + 1))
    if not word:
        return False
    if pattern[:1] == b"?":
        return naive(pattern[1:], word[1:])
    if pattern[:1] == b"[":
        found, rest = naive_class(pattern[1:], word[0])
        return found and naive(rest, word[1:])
    if pattern[:1] == b"\\" and len(pattern) > 1:
        pattern = pattern[1:]
    return pattern[0] == word[0] and naive(pattern[1:], word[1:])


def naive_class(pattern: bytes, byte: int) -> tuple[bool, bytes]:
    negated = pattern[:1] == b"^"
    pattern = pattern[1:] if negated else pattern
    found = False
    while pattern and pattern[:1] != b"]":
        if pattern[:1] == b"\\" and len(pattern) > 1:
            found, pattern = found or pattern[1] == byte, pattern[2:]
        elif len(pattern) > 2 and pattern[1:2] == b"-":
            low, high = sorted((pattern[0], pattern[2]))
            found, pattern = found or low <= byte <= high, pattern[3:]
        else:
            found, pattern = found or pattern[0] == byte, pattern[1:]
    return found != negated, pattern[1:]


def of(alphabet: bytes, most: int) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(list(alphabet)), max_size=most).map(bytes)


@given(of(b"abc*?[]^-\\", 10), of(b"abc-]^\\", 8))
def test_matches_what_the_definition_matches(pattern: bytes, word: bytes) -> None:
    """Stars that do not go back further than the last one lose no match."""
    assert Glob(pattern).matches(word) == naive(pattern, word)


@given(of(b"abc*?[]\\", 8), of(b"abc", 8))
def test_every_match_begins_with_the_prefix(pattern: bytes, word: bytes) -> None:
    """A listing that is narrowed to the prefix leaves out no match."""
    glob = Glob(pattern)
    assert not glob.matches(word) or word.startswith(glob.prefix)


@pytest.mark.parametrize(
    ("pattern", "word", "expected"),
    [
        (b"h?llo", b"hello", True),
        (b"h*llo", b"hllo", True),
        (b"h[ae]llo", b"hillo", False),
        (b"h[^e]llo", b"hello", False),
        (b"h[a-b]llo", b"hbllo", True),
        (b"h\\*llo", b"h*llo", True),
        (b"h\\*llo", b"hxllo", False),
        (b"[ab", b"b", True),
        (b"", b"", True),
        (b"*", b"", True),
    ],
)
def test_examples_of_the_documentation(pattern: bytes, word: bytes, *, expected: bool) -> None:
    """KEYS's documented patterns, and its leniency about a bracket that is not closed."""
    assert Glob(pattern).matches(word) is expected


def test_a_pattern_of_many_stars_is_cheap() -> None:
    """What takes a recursive matcher for ever takes this one the product of the lengths."""
    assert not Glob(b"*a" * 200 + b"b").matches(b"a" * 512)


_SMALL = st.text(st.sampled_from("ab*?[]^-\\"), max_size=5).map(str.encode)
_WORDS = [bytes(word) for length in range(6) for word in product(b"ab-", repeat=length)]


@given(_SMALL, _SMALL)
def test_no_word_refutes_that_a_pattern_covers_another(pattern: bytes, other: bytes) -> None:
    one, two = Glob(pattern), Glob(other)
    assert one.covers(one)
    if one.covers(two):
        assert not [word for word in _WORDS if two.matches(word) and not one.matches(word)]


@pytest.mark.parametrize(
    ("pattern", "other", "covers"),
    [
        (b"orders.*", b"orders.eu.*", True),
        (b"orders.*", b"orders.", True),
        (b"orders.*", b"orders*", False),
        (b"orders.*", b"orders?*", False),
        (b"a*b*c", b"a*c*b*c", True),
        (b"[a-c]", b"[ab]", True),
        (b"[ab]", b"[a-c]", False),
        (b"[^x]*", b"[^xy]?*", True),
        (b"\\*", b"*", False),
        (b"\\*", b"\\*", True),
        (b"*", "\u00e9".encode(), True),
        # One character, two bytes.
        (b"?", "\u00e9".encode(), False),
        (b"????", "\u00e9".encode() * 2, True),
    ],
)
def test_one_pattern_covers_another(pattern: bytes, other: bytes, *, covers: bool) -> None:
    assert Glob(pattern).covers(Glob(other)) is covers


def test_patterns_that_take_too_long_to_compare_are_not_covered() -> None:
    """Exponentially many ways: at the end it is refused, soon."""
    hard = b"*" + b"[ab]" + b"?" * 60
    began = time.process_time()
    assert not Glob(hard).covers(Glob(b"*[ab]*" + b"?" * 61))
    assert time.process_time() - began < 1
