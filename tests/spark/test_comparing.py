"""Comparing entries by digests: all that differs is found, and nothing else, however both are parted."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.comparing import Entries, compare, entries_of_page
from pyspark_weir.table import digest
from pyspark_weir.table.ranges import StreamKey, Tally
from pyspark_weir.table.reading import tally
from pyspark_weir.table.schema import ENTRY_FIELDS, GIVEN, KEYS, complete, id_key, keys_of
from tests.spark.test_decode import Entry, a_page

KEY = StreamKey("g0", "orders", "gen-1")
halves = st.integers(0, (1 << 64) - 1)
names = st.text(max_size=4).map(str.encode)
pairs = st.lists(st.tuples(names, st.binary(max_size=5)), max_size=4)
some_entries = st.lists(st.tuples(halves, halves, pairs), max_size=8)


def rows_of(entries: Sequence[Entry], key: StreamKey = KEY) -> pa.Table:
    """Entries as an archive has them."""
    fields = [[{"name": name.decode(), "value": value} for name, value in own] for _, _, own in entries]
    columns = [*([one] * len(entries) for one in key), [f"{ms}-{seq}" for ms, seq, _ in entries]]
    given_rows = [*(pa.array(one, pa.string()) for one in columns), pa.array(fields, ENTRY_FIELDS)]
    return complete(pa.Table.from_arrays(given_rows, schema=GIVEN))


def as_documented(entry: Entry) -> int:
    """An entry's digest, byte by byte."""
    ms, seq, own = entry
    texts = [len(text).to_bytes(4, "little") + text for pair in own for text in pair]
    whole = id_key(EntryId(ms, seq)).encode() + b"".join(texts)
    return int.from_bytes(blake2b(whole, digest_size=16).digest(), "little")


@given(some_entries)
def test_a_digest_is_what_is_documented_from_either_side(entries: list[Entry]) -> None:
    """Of the gateway's page, and of the archive's rows; of all, their sum."""
    rows, page = rows_of(entries), entries_of_page(a_page(*entries))
    assert (digest.of_rows(rows) == page.digests).all()
    assert (keys_of(rows) == page.keys).all()
    alone = [as_documented(one) for one in entries]
    assert [digest.total(page.digests[place : place + 1]) for place in range(len(entries))] == alone
    assert digest.total(page.digests) == digest.plus(*alone)


@given(some_entries, some_entries, st.randoms())
def test_streams_are_told_apart_in_any_order(one: list[Entry], other: list[Entry], shuffled: object) -> None:
    """And those after an ID from the others."""
    another = KEY._replace(stream="others")
    rows = pa.concat_tables([rows_of(one), rows_of(other, another)])
    order = list(range(rows.num_rows))
    shuffled.shuffle(order)  # type: ignore[attr-defined] # Hypothesis has its own kind of Random
    rows = rows.take(pa.array(order, pa.int64()))
    wanted = {key: own for key, own in ((KEY, one), (another, other)) if own}
    assert tally(rows) == {
        key: Tally(len(own), digest.plus(*map(as_documented, own))) for key, own in wanted.items()
    }
    half = EntryId(1 << 63, 0)
    later = [entry for entry in one if entry[:2] > half]
    found = tally(rows, {KEY: half})
    assert found.get(KEY, Tally(0, 0)) == Tally(len(later), digest.plus(*map(as_documented, later)))
    assert found.get(another, Tally(0, 0)) == Tally(0, 0)


def parts(entries: Mapping[int, int], size: int) -> Iterator[Entries]:
    """Entries, ascending, in parts; an empty one first."""
    yield Entries(np.array([], KEYS), np.empty((0, 2), np.uint64))
    numbers = sorted(entries)
    for start in range(0, len(numbers), size):
        own = numbers[start : start + size]
        keys = np.array([f"{number:032x}".encode() for number in own], KEYS)
        yield Entries(keys, np.array([[entries[number], 7] for number in own], np.uint64))


some = st.dictionaries(st.integers(0, 30), st.integers(0, 1), max_size=20)
sizes = st.integers(1, 7)


@given(some, some, sizes, sizes)
def test_whatever_differs_is_found(
    archived: dict[int, int], living: dict[int, int], one: int, other: int
) -> None:
    """Each entry of either side comes out once, as what it is; the first fault is the first of all."""
    found: dict[str, list[int]] = {"same": [], "archived": [], "missing": [], "other": []}
    faults = []
    for part in compare(parts(archived, one), parts(living, other)):
        for name, keys in part._asdict().items():
            found[name] += [int(key, 16) for key in keys]
        faults += [part.fault] if part.fault else []
    both = archived.keys() & living.keys()
    assert found == {
        "same": sorted(number for number in both if archived[number] == living[number]),
        "archived": sorted(archived.keys() - living.keys()),
        "missing": sorted(living.keys() - archived.keys()),
        "other": sorted(number for number in both if archived[number] != living[number]),
    }
    wrong = sorted(found["missing"] + found["other"])
    assert bool(faults) == bool(wrong)
    if wrong:
        why = "and not in the archive" if wrong[0] in found["missing"] else "has other fields"
        assert faults[0].startswith(f"0-{wrong[0]} ")
        assert why in faults[0]
