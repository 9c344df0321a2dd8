"""Removing many keys at once is removing each of them."""

from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import SortedMap


@given(st.sets(st.integers(0, 60)), st.data(), st.integers(1, 16), st.booleans())
def test_popping_many_is_popping_each(keys: set[int], data: st.DataObject, size: int, held: bool) -> None:  # noqa: FBT001
    whole, single = SortedMap[str](size), SortedMap[str](size)
    for one in (whole, single):
        one.extend(sorted(keys), [str(key) for key in sorted(keys)])
    snapshot = whole.snapshot() if held else None
    gone = sorted(data.draw(st.sets(st.sampled_from(sorted(keys))))) if keys else []
    asked = sorted({*gone, *data.draw(st.sets(st.integers(0, 60), max_size=3))})
    expected = [(key, single.pop(key)) for key in asked if key in keys]
    assert whole.held_of(asked) == [key for key, _ in expected]
    assert list(whole.items_of(asked).items()) == expected
    assert list(whole.pop_each(asked).items()) == expected
    assert list(whole.items()) == list(single.items())
    whole.check()
    if snapshot is not None:
        assert list(snapshot.values()) == [str(key) for key in sorted(keys)], "a snapshot stays as it was"
