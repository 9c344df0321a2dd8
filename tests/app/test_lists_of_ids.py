"""Lists of IDs in requests and frames: read together, they are what each of them is by itself."""

from collections.abc import Sequence

import pytest

from app.http import query
from engine import ids

GOOD = ("5-0", "5-1", "1700000000000-12", "0-1", "05-00")
OTHER = (
    "5",
    "",
    "-",
    "5-",
    "-1",
    "5-0-0",
    "5-0,6-0",
    " 5-0",
    "5-x",
    "٥-0",
    "18446744073709551616-0",
    "5-\ud800",
)


@pytest.mark.parametrize("texts", [GOOD[:2], GOOD], ids=len)
def test_usual_ones_are_read_together(texts: Sequence[str]) -> None:
    """In their order, repeated ones too, if they are several."""
    assert query.entry_ids(texts[:2]) is None
    assert query.entry_ids([*texts, texts[0]]) == [*map(ids.parse, texts), ids.parse(texts[0])]


@pytest.mark.parametrize("other", [*OTHER, 5, None, ["5-0"], b"5-0"], ids=ascii)
def test_all_others_are_left_alone(other: object) -> None:
    """Wherever they stand: those who read them one by one say which one is wrong."""
    for texts in ([other] * 3, [other, *GOOD], [*GOOD, other], ["5-0", other, "6-0"]):
        assert query.entry_ids(texts) is None
