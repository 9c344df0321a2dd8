"""Pages of entries on the wire: what is written for all of them at once is what each is on its own."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.redis import replies, wire
from engine import entries, ids, rows
from engine.replies import Delivered, Entries, GroupRead, Reply, StreamDeliveries

FIRST = 5 << 64
Fields = list[tuple[str, str | bytes]]

NAMES = st.sampled_from(["a", "b", "%d", "fields", "id", "", "ü", '"', "\\", "}},{", "encoding"])
VALUES = st.one_of(
    st.sampled_from(["", "1", ":", ",", ":{", "}},{", "}}", "a\r\nb", '"', "%"]), st.binary(max_size=3)
)
ENTRY = st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=3)


def alone(stored: Sequence[bytes]) -> bytes:
    """Each entry by the shape that any reply has."""
    return b"".join(wire.encode(replies.SHAPED.entry(text), 2) for text in stored)


def sent(reply: Reply) -> bytes:
    """The reply as a client gets it."""
    shape = replies.entry_shape(reply)
    assert shape is not None, "it consists of entries"
    return wire.encode(shape(reply, wire.FORMS[2]), 2)


def stored(written: Sequence[Fields], meta: Mapping[str, str] | None = None) -> list[bytes]:
    bodies = [entries.with_meta(entries.body(fields), meta or {}) for fields in written]
    return list(rows.stored(FIRST, bodies))


META = st.sampled_from([{}, {"traceparent": "00-x"}])


@given(st.lists(ENTRY, min_size=1, max_size=4), META)
@example([[("a", "1")], [("a", "2")], [("a", "3")]], {})
@example([[("a", "1")]], {"traceparent": "00-x"})
@example([[("a", "1")], [("a", "2")]], {"traceparent": "00-x"})
@example([[("a", "1"), ("b", "2")], [("b", "1"), ("a", "2")]], {})
@example([[("a", "1")], [("a", "1"), ("a", "2")], [("a", "1")]], {})
@example([[("a", "1")], [("a", b"\xff")], [("a", "2")]], {})
@example([[("%d%b", "1")], [("%d%b", "%s")]], {})
def test_a_page_is_its_entries_one_by_one(written: list[Fields], meta: Mapping[str, str]) -> None:
    """In ranges, and as deliveries. Metadata is no field."""
    texts = stored(written, meta)
    page = Entries(parts=[b",".join(texts)], count=len(texts))
    assert sent(page) == b"*%d\r\n" % len(texts) + alone(texts)
    delivered = [Delivered(FIRST + place, text, 1) for place, text in enumerate(texts)]
    deliveries = StreamDeliveries("s", delivered, history=False, after=0, last_delivered_id=FIRST)
    group_read = GroupRead([deliveries])
    expected = b"*1\r\n*2\r\n$1\r\ns\r\n*%d\r\n" % len(texts) + alone(texts)
    assert sent(group_read) == expected


@pytest.mark.parametrize("fields", [1, 2, 3])
def test_entries_of_one_shape_are_written_at_once(fields: int) -> None:
    """Names in order, values of any length; one entry more of another shape, and each is written alone."""
    written: list[Fields] = [[(f"n{place}", "x" * number) for place in range(fields)] for number in range(4)]
    texts = stored(written)
    assert wire.encode_alike(b",".join(texts)) == alone(texts)
    others: list[Fields] = [[("n0", "1")] * (fields + 1), [("other", "1")] * fields, [("n0", '"')] * fields]
    for other in others:
        assert wire.encode_alike(b",".join(stored([*written, other]))) is None
        assert wire.encode_alike(b",".join(stored([other, *written]))) is None


def page(texts: Sequence[bytes]) -> bytes:
    """As a range of one slice is written."""
    return sent(Entries(parts=[b",".join(texts)], count=len(texts)))


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_what_is_read_again_is_the_same(over: int) -> None:
    """A slice as long as is kept, one byte less and one more; then another one that differs in one byte."""
    short = stored([[("a", "1")], [("a", "")]])
    value = "x" * ((16 << 10) - len(b",".join(short)) + over)
    for last in (value, value, value[:-1] + "y"):
        texts = stored([[("a", "1")], [("a", last)]])
        assert len(b",".join(texts)) == (16 << 10) + over
        assert page(texts) == b"*2\r\n" + alone(texts)


def test_little_is_kept_of_what_was_read() -> None:
    """Short slices, and a few hundred of them: more than that is written anew."""
    kept = wire.written_before
    kept.cache_clear()
    for number in range(300):
        page(stored([[("a", f"{number}")]]))
    page(stored([[("a", "x" * (16 << 10))]]))
    assert (kept.cache_info().currsize, kept.cache_info().misses) == (256, 300)
    page(stored([[("a", "299")]]))
    assert kept.cache_info().hits == 1


@pytest.mark.parametrize("length", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "first",
    [0, 1, 8, 9, 98, 99, FIRST + 9, FIRST + 995, FIRST + (1 << 64) - 100, FIRST + (1 << 64) - 2],
)
def test_ids_of_a_run_are_written_as_each_is(first: int, length: int) -> None:
    """Where numbers get another digit, and where the next millisecond begins."""
    run = range(first, first + length)
    assert wire.each_id(run) == b"".join(wire.bulk(ids.format(one).encode()) for one in run)
    assert wire.each_id(run[::-1]) == wire.each_id([*run][::-1])
