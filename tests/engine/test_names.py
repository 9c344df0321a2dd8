"""Names in order, beside a sorted list.

Knows: names as they come and go. Must never know: how they are kept.
"""

import time
from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import names
from engine.names import SortedNames
from tests.turns import assert_within

NAMES = st.text(alphabet="abc", max_size=4)


@given(
    steps=st.lists(NAMES, max_size=60),
    prefix=NAMES,
    after=st.none() | NAMES,
    limit=st.none() | st.integers(0, 8),
)
def test_pages_are_those_of_a_sorted_list(
    steps: list[str], prefix: str, after: str | None, limit: int | None
) -> None:
    """A step enters a name, or takes out one that is there; blocks of four."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_BLOCK_NAMES_MAX", 4)
        kept, model = SortedNames(), list[str]()
        for name in steps:
            if name in model:
                kept.remove(name)
                model.remove(name)
            else:
                kept.add(name)
                insort(model, name)
            assert kept.page() == model
        wanted = [name for name in model if name.startswith(prefix) and (after is None or name > after)]
        assert kept.page(prefix, after, limit) == wanted[:limit]
        kept.replace(model)
        assert kept.page(prefix, after, limit) == wanted[:limit]


def test_a_listing_after_many_removals_costs_what_it_shows() -> None:
    """With 200,000 names, 10,000 of them taken out: no walk over all of them, whoever comes next."""
    kept = SortedNames()
    kept.replace([f"{number:06}" for number in range(200_000)])
    for number in range(100_000, 110_000):
        kept.remove(f"{number:06}")

    def measured() -> float:
        began_s = time.process_time()
        assert kept.page(after="099998", limit=2) == ["099999", "110000"]
        kept.remove("110000")
        kept.add("110000")
        return time.process_time() - began_s

    # A walk takes some 5 ms.
    assert_within(0.001, measured)


@given(
    entered=st.sets(NAMES, max_size=60),
    prefix=NAMES,
    at=st.floats(0, 1, exclude_max=True),
    limit=st.none() | st.integers(0, 8),
)
def test_names_from_any_place_on_are_all_of_them(
    entered: set[str], prefix: str, at: float, limit: int | None
) -> None:
    """In order, with one step back at most, from the last to the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_BLOCK_NAMES_MAX", 4)
        kept = SortedNames()
        for name in sorted(entered):
            kept.add(name)
        wanted = sorted(name for name in entered if name.startswith(prefix))
        turned = kept.around(at, prefix)
        assert sorted(turned) == wanted
        start = turned.index(wanted[0]) if wanted else 0
        assert turned[start:] + turned[:start] == wanted
        assert kept.around(at, prefix, limit) == turned[:limit]


def test_each_name_may_come_first_and_costs_no_walk() -> None:
    """Of a few, and of 200,000."""
    few, many = SortedNames(), SortedNames()
    few.replace(["a", "b", "c"])
    assert {few.around(place / 10, limit=1)[0] for place in range(10)} == {"a", "b", "c"}
    many.replace([f"{number:06}" for number in range(200_000)])

    def measured() -> float:
        began_s = time.process_time()
        first = {many.around(place / 10, limit=1)[0][0] for place in range(10)}
        assert first == {"0", "1"}
        return time.process_time() - began_s

    # A walk takes some 5 ms.
    assert_within(0.001, measured)
