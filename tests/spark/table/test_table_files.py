"""The files of an archive's table: their content, their statistics, and which of them a query needs.

Knows: the table's API, and pyarrow. Must never know: Spark.
"""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError, ArchiveError
from pyspark_weir.ids import EntryId
from pyspark_weir.table.files import cut_high, prove, write_files
from pyspark_weir.table.parquet import read_footer
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import complete, id_key, id_of_key
from pyspark_weir.table.table import ArchiveTable, EntryFilter
from tests.spark.table.archiving import DAY_MS, KEY, batch, rows_of
from tests.spark.table.making import read_rows

_BIG = 1 << 63
_MAX = (1 << 64) - 1
# Every edge of both halves with its neighbours, in order.
EDGES = [
    EntryId(ms, seq)
    for ms in (0, 1, _BIG - 2, _BIG - 1, _BIG, _BIG + 1, _MAX - 1, _MAX)
    for seq in (0, 1, 2, _BIG - 2, _BIG - 1, _BIG, _BIG + 1, _MAX - 1, _MAX)
    if (ms, seq) != (0, 0)
]


def test_keys_of_ids_sort_as_ids_do() -> None:
    keys = [id_key(one) for one in EDGES]
    assert keys == sorted(keys)
    assert [id_of_key(key) for key in keys] == EDGES
    assert id_key(EntryId(0, 1)) == "0" * 31 + "1"
    assert id_key(ids.LAST) == "f" * 32


def test_all_ids_become_rows(root: ArchiveRoot) -> None:
    """What does not fit a column is null there, and nothing else."""
    rows = complete(rows_of(KEY, EDGES)).to_pylist()
    for one, row in zip(EDGES, rows, strict=True):
        assert row["id_key"] == id_key(one)
        assert row["ms"] == (one.ms if one.ms < _BIG else None)
        assert row["seq"] == (one.seq if one.seq < _BIG else None)
        assert (row["ts"] is None) == (row["date"] is None) == (one.ms >= _BIG - 2)


def test_timestamps_end_with_the_year_9999() -> None:
    last = 253_402_300_799_999
    rows = complete(rows_of(KEY, [EntryId(last - 1, 0), EntryId(last, 0), EntryId(last + 1, 0)]))
    # Python has no later one either.
    assert rows["ts"].to_pylist() == [
        datetime(9999, 12, 31, 23, 59, 59, 998_000, UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC),
        None,
    ]
    assert rows["date"].to_pylist() == [date(9999, 12, 31), date(9999, 12, 31), None]


@pytest.mark.parametrize(
    "text", ["", "5", "5-", "-5", "05-0", "5-00", "5-0-0", "5-0\n", "x-0", "18446744073709551616-0"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ArchiveError):
        complete(rows_of(KEY, ["5-0", text]))


def test_rows_are_written_sorted_and_one_file_a_day(root: ArchiveRoot) -> None:
    """In whichever order they come; an entry keeps order and repeats of its fields."""
    days = [DAY_MS + 86_400_000 * day + ms for day in (1, 0) for ms in (86_399_999, 0)]
    rows = pa.concat_tables(
        rows_of(StreamKey("g0", name, "gen"), [f"{ms}-0" for ms in days]) for name in "ba"
    )
    files = write_files(root, rows)
    assert [(file.date, file.rows) for file in files] == [(date(2026, 11, 21), 4), (date(2026, 11, 22), 4)]
    for file in files:
        stored = read_rows(root, file)
        assert stored.to_pylist() == sorted(
            stored.to_pylist(), key=lambda row: (row["stream"], row["id_key"])
        )
        assert stored["fields"][0].as_py()[1] == {"name": "n", "value": b"\xff\x00"}
        assert Path(root.path(file.path)).parent.name == f"date={file.date}"


def test_no_rows_are_no_files(root: ArchiveRoot) -> None:
    assert write_files(root, rows_of(KEY, [])) == ()


def test_row_groups_and_page_indexes(root: ArchiveRoot) -> None:
    [file] = write_files(root, rows_of(KEY, [EntryId(5, seq) for seq in range(10_001)]))
    footer = read_footer(root, file.path).metadata
    assert [footer.row_group(number).num_rows for number in range(2)] == [10_000, 1]
    column = footer.row_group(0).column(footer.schema.names.index("id_key"))
    assert column.compression == "ZSTD"
    assert column.has_column_index
    assert column.has_offset_index
    assert column.statistics.max == id_key(EntryId(5, 9_999))
    ts = footer.schema.to_arrow_schema().field("ts").type
    assert ts == pa.timestamp("us", tz="UTC")
    assert footer.row_group(0).column(footer.schema.names.index("ts")).physical_type == "INT64"


def test_a_table_describes_its_files_as_their_writer_did(root: ArchiveRoot) -> None:
    """All that is known of a file goes through Delta's log and back."""
    table = ArchiveTable.create(root)
    entries = [str(one) for one in EDGES]
    written = batch(root, 0, "0-0", entries)
    table.commit(written)
    assert set(ArchiveTable.open(root).files()) == set(written.files)
    dates = {file.date for file in written.files}
    assert dates == {None, date(1970, 1, 1)}
    [late] = [file for file in table.files() if file.date is None]
    assert (late.low.ts, late.high.ts, late.ts_nulls) == (None, None, late.rows)
    assert (late.low.id, late.high.id) == (EntryId(_BIG - 2, 0), ids.LAST)


def test_a_long_name_is_cut_in_statistics_and_found_all_the_same(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    name = "ä" * 300
    table.commit(batch(root, 0, "0-0", ["5-0"], key=StreamKey("g0", name, "gen")))
    [file] = table.files(EntryFilter(stream=name))
    assert len(file.low.stream) == 128
    assert file.low.stream < name < file.high.stream
    assert not table.files(EntryFilter(stream="ä" * 127))


def test_a_cut_bound_is_never_below_the_value() -> None:
    for length in (127, 128, 129):
        for end in ("", "\U0010ffff", "\U0010ffff\U0010ffff"):
            text = "a" * length + end
            assert cut_high(text) >= text
            assert len(cut_high(text)) <= max(129, len(text))


def _archive(root: ArchiveRoot) -> ArchiveTable:
    """Three streams, two days each, an entry an hour; a file for each stream and day."""
    table = ArchiveTable.create(root)
    for number, name in enumerate("abc"):
        entries = [f"{DAY_MS + hour * 3_600_000}-0" for hour in range(48)]
        table.commit(batch(root, number, "0-0", entries, key=StreamKey("g0", name, "gen")))
    return table


def _found(table: ArchiveTable, selection: EntryFilter) -> list[tuple[str, int]]:
    return [(file.low.stream, file.date.day) for file in table.files(selection) if file.date]


def test_files_are_pruned_by_their_statistics(root: ArchiveRoot) -> None:
    """At each edge, and one beside it."""
    table = _archive(root)
    second = datetime(2026, 11, 22, tzinfo=UTC)
    last = second + timedelta(hours=23)
    tick = timedelta(milliseconds=1)
    everything = [(name, day) for day in (21, 22) for name in "abc"]
    assert _found(table, EntryFilter()) == everything
    assert _found(table, EntryFilter(stream="b")) == [("b", 21), ("b", 22)]
    assert _found(table, EntryFilter(stream="d")) == []
    assert _found(table, EntryFilter(gateway="g1")) == []
    assert _found(table, EntryFilter(generation="gen", gateway="g0")) == everything
    assert _found(table, EntryFilter(stream="a", since=second)) == [("a", 22)]
    assert _found(table, EntryFilter(stream="a", until=second)) == [("a", 21)]
    assert _found(table, EntryFilter(stream="a", until=second + tick)) == [("a", 21), ("a", 22)]
    assert _found(table, EntryFilter(stream="a", since=last)) == [("a", 22)]
    assert _found(table, EntryFilter(stream="a", since=last + tick)) == []
    edge = EntryId(DAY_MS + 24 * 3_600_000, 0)
    assert _found(table, EntryFilter(stream="c", upto=edge)) == [("c", 21), ("c", 22)]
    assert _found(table, EntryFilter(stream="c", upto=ids.previous_id(edge))) == [("c", 21)]
    before = EntryId(DAY_MS + 23 * 3_600_000, 0)
    assert _found(table, EntryFilter(stream="c", after=before)) == [("c", 22)]
    assert _found(table, EntryFilter(stream="c", after=ids.previous_id(before))) == [("c", 21), ("c", 22)]


def test_a_file_proves_what_it_was_committed_as(root: ArchiveRoot) -> None:
    [file] = write_files(root, rows_of(KEY, ["5-0", "5-1"]))
    prove(root, file)
    path = Path(root.path(file.path))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ArchiveDamagedError, match="bytes"):
        prove(root, file)
    path.write_bytes(whole[:-8] + b"\xff" * 8)
    with pytest.raises(ArchiveDamagedError, match="no whole Parquet file"):
        prove(root, file)
    path.unlink()
    with pytest.raises(ArchiveDamagedError, match="missing"):
        prove(root, file)
    [other] = write_files(root, rows_of(KEY, ["5-0"]))
    Path(root.path(other.path)).rename(path)
    with pytest.raises(ArchiveDamagedError):
        prove(root, file)


def test_any_parquet_reader_reads_a_file(root: ArchiveRoot) -> None:
    [file] = write_files(root, rows_of(KEY, ["5-0", "5-1"]))
    assert pq.read_table(root.path(file.path), partitioning=None)["id"].to_pylist() == ["5-0", "5-1"]
