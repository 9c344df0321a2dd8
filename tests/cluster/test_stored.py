"""Entries of other programs, as Weir reads them from the server."""

from engine import entries
from engine.cluster.stored import text_of


def test_a_name_that_is_not_utf8_shows_a_replacement_character() -> None:
    """As docs/scale.md says; names stay apart, and values stay whole."""
    text = text_of(b"1-0", [b"a\xff", b"\xff\x00", b"a", b"1"])
    assert entries.pairs_of(text) == [("a\N{REPLACEMENT CHARACTER}", b"\xff\x00"), ("a", b"1")]
