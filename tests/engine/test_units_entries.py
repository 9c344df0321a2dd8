"""The stored form of an entry: made once, and everything that went in comes out of it again."""

import json
from itertools import accumulate
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from engine import entries, ids, rows
from engine.replies import Delivered, Entries

SEPARATOR: Final = ',{"id":"'
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just(SEPARATOR)
values = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.binary(max_size=8) | st.just(SEPARATOR)
)
fields = st.lists(st.tuples(names, values), min_size=1, max_size=5)
entry_ids = st.integers(0, ids.ID_MAX)


def as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


@given(entry_ids, fields)
@example(0, [("a", "1"), ("a", "2")])
@example(0, [("a", b"\xff"), ("b", "text")])
def test_what_goes_in_comes_out(entry_id: int, pairs: list[tuple[str, str | bytes]]) -> None:
    """In order, repeated names too, values as the bytes they stand for."""
    text = entries.encode(entry_id, entries.body(pairs))
    assert entries.id_of(text) == entry_id
    assert entries.pairs_of(text) == [(name, as_bytes(value)) for name, value in pairs]


# Neighbours, holes and overflowing sequences: what nodes hold.
gaps = st.sampled_from([1, 1, 1, 2, ids.SEQUENCE_MAX, ids.SEQUENCE_MAX + 1, 12 << 64])


@given(st.integers(0, 1 << 70), st.lists(st.tuples(gaps, fields), min_size=1, max_size=6))
def test_joined_entries_come_apart_again(
    first: int, run: list[tuple[int, list[tuple[str, str | bytes]]]]
) -> None:
    """With any content: no text of a field can look like the seam."""
    given_ids = list(accumulate((gap for gap, _ in run[1:]), initial=first))
    texts = [
        entries.encode(each, entries.body(pairs)) for each, (_, pairs) in zip(given_ids, run, strict=True)
    ]
    joined = b",".join(texts)
    assert entries.texts(joined) == texts
    assert list(entries.ids_of(texts)) == given_ids
    assert [entry["id"] for entry in json.loads(b"[%b]" % joined)] == [ids.format(each) for each in given_ids]


def test_the_form_is_the_documented_one() -> None:
    """Compact JSON; base64 for all values where one is not text; pairs only where a name repeats."""
    assert entries.encode(1 << 64, entries.body([("a", "1"), ("b", "ü")])) == (
        '{"id":"1-0","fields":{"a":"1","b":"ü"}}'.encode()
    )
    assert entries.encode(1 << 64, entries.body([("a", b"\xff"), ("b", "1")])) == (
        b'{"id":"1-0","fields":{"a":"/w==","b":"MQ=="},"encoding":"base64"}'
    )
    assert entries.encode(1 << 64, entries.body([("a", "1"), ("a", "2")])) == (
        b'{"id":"1-0","fields":{"a":"2"},"pairs":[["a","1"],["a","2"]]}'
    )
    assert entries.body_of_fields(b'{"a":"1"}') == entries.body([("a", "1")])


@given(entry_ids, st.integers(1, 200), st.integers(0, 199), st.integers(1, 200))
@example(ids.make(7, ids.SEQUENCE_MAX - 1), 4, 1, 2)
@example(ids.make(7, ids.SEQUENCE_MAX - 149), 150, 148, 150)
@example(ids.make(7, ids.SEQUENCE_MAX - 148), 150, 148, 150)
@example(ids.make(7, 1_901), 150, 98, 99)
@example(ids.make(7, 1_851), 150, 0, 150)
@example(ids.make(7, 1_850), 150, 0, 150)
@example(ids.ID_MAX, 150, 148, 150)
def test_a_run_is_consecutive_entries(first_id: int, count: int, start: int, stop: int) -> None:
    """Also where the sequence overflows into the milliseconds; each, some of them, and some as one text."""
    first_id = min(first_id, ids.ID_MAX - count + 1)
    bodies = [entries.body([("n", str(number))]) for number in range(count)]
    run = rows.stored(first_id, bodies)
    each = [entries.encode(first_id + place, body) for place, body in enumerate(bodies)]
    assert list(run) == each
    assert list(run[start:stop]) == each[start:stop]
    assert run[-1] == each[-1]
    start, stop = min(start, count - 1), max(min(start, count - 1) + 1, min(stop, count))
    assert rows.join(run, start, stop) == b",".join(each[start:stop])


@given(fields, st.randoms())
def test_a_fingerprint_is_of_the_set(pairs: list[tuple[str, str | bytes]], random: object) -> None:
    """Order does not matter, text and its bytes are the same, and one pair more is another set."""
    shuffled = sorted(pairs, key=lambda _: getattr(random, "random")())  # noqa: B009 - hypothesis's own type
    as_raw = [(name, as_bytes(value)) for name, value in shuffled]
    assert entries.fingerprint(pairs) == entries.fingerprint(as_raw)
    assert entries.fingerprint([*pairs, pairs[0]]) != entries.fingerprint(pairs)


def test_a_fingerprint_keeps_names_and_values_apart() -> None:
    """Moving a byte over the border makes another set."""
    assert entries.fingerprint([("ab", "c")]) != entries.fingerprint([("a", "bc")])
    assert entries.fingerprint([("a", "b"), ("c", "d")]) != entries.fingerprint([("a", "d"), ("c", "b")])


@given(st.lists(fields, min_size=1, max_size=6))
def test_a_reply_gives_its_entries_back_as_pairs(given_fields: list[list[tuple[str, str | bytes]]]) -> None:
    """IDs and fields of each, over several parts, of which each may hold several entries."""
    texts = rows.stored(ids.make(5, 0), [entries.body(pairs) for pairs in given_fields])
    reply = Entries(parts=[texts[0], *([b",".join(texts[1:])] if texts[1:] else [])], count=len(texts))
    assert list(reply.pairs()) == [
        (ids.make(5, place), [(name, as_bytes(value)) for name, value in pairs])
        for place, pairs in enumerate(given_fields)
    ]


def test_a_delivered_entry_gives_its_pairs_and_a_deleted_one_none() -> None:
    """A pending entry that was deleted from the stream has no text."""
    text = entries.encode(1, entries.body([("a", "1"), ("a", b"\xff")]))
    assert Delivered(1, text, delivery_count=1).pairs() == [("a", b"1"), ("a", b"\xff")]
    assert Delivered(1, None, delivery_count=2).pairs() is None
