"""Archives of the old form become tables: every entry once, as it was, through any kill.

Knows: archives that a release wrote, and real processes. Must never know: how entries are converted.
"""

import base64
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError, ArchiveError, OptionError, RangeConflictError
from pyspark_weir.jobs.adopt import adopt, check, delete_old, lines_of, read_manifests
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey, gaps
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.spark.old_archives import ARCHIVE, GENERATION, SHARD, OldMaker, unpack
from tests.spark.table.making import entries_in, read_rows, rows_of

A = StreamKey(SHARD, "a", GENERATION)
SMALL = 1 << 10


def adopted(old: Path, new: Path, batch_bytes: int = 64 << 20) -> ArchiveTable:
    """Convert."""
    list(adopt(ArchiveRoot.of(old), ArchiveRoot.of(new), batch_bytes))
    return ArchiveTable.open(ArchiveRoot.of(new))


def whole_entries(table: ArchiveTable) -> list[list[Any]]:
    """All that a table says of its entries, in any order."""
    rows = [row for file in table.files() for row in read_rows(table.root, file).to_pylist()]
    return [
        [
            *(row[name] for name in ("gateway", "stream", "generation", "id")),
            [[pair["name"], base64.b64encode(pair["value"]).decode()] for pair in row["fields"]],
        ]
        for row in rows
    ]


@pytest.fixture
def maker(tmp_path: Path) -> OldMaker:
    found = OldMaker(tmp_path / "old")
    for number in range(20):
        found.batch({name: [f"{10 * number + one}-0" for one in range(1, 9)] for name in ("a", "b")})
    return found


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("batch_bytes", [1, 64 << 20])
def test_what_a_release_wrote(tmp_path: Path, name: str, batch_bytes: int) -> None:
    """Compacted, with generations, IDs and names at their limits; entry by entry, field by field."""
    expected = unpack(tmp_path)[name]
    table = adopted(tmp_path / name, tmp_path / "table", batch_bytes)
    assert sorted(whole_entries(table)) == sorted(expected)
    assert gaps(table.ranges()) == []
    last = {(entry[0], entry[1]): entry[2] for entry in expected}
    assert {key: place.generation for key, place in table.positions().items()} == last


def test_ranges_are_those_of_the_manifests(maker: OldMaker, tmp_path: Path) -> None:
    """With what comes after the last entry, and a stream of which all had been deleted."""
    maker.batch({"a": ["500-0"], "c": []}, upto={"a": "600-3", "c": "9-9"})
    table = adopted(maker.root, tmp_path / "new", SMALL)
    found = {(one.key.stream, str(one.after), str(one.upto), one.rows) for one in table.ranges()}
    assert found == {("a", "0-0", "600-3", 161), ("b", "0-0", "198-0", 160), ("c", "0-0", "9-9", 0)}


def test_the_archive_job_goes_on(maker: OldMaker, tmp_path: Path) -> None:
    """With its next batch; and with the last one again, where Spark did not learn that it ended."""
    table = adopted(maker.root, tmp_path / "new")
    last = BatchRanges(ARCHIVE, 19, tuple(_range(one, "190-0", "198-0") for one in ("a", "b")))
    assert table.commit(Batch(last, ())).repeated
    files = write_files(table.root, rows_of(A, ["199-0"]))
    following = BatchRanges(ARCHIVE, 20, (_range("a", "198-0", "199-0", 1),))
    assert not table.commit(Batch(following, files)).repeated


def _range(stream: str, after: str, upto: str, rows: int = 0) -> Range:
    return Range(A._replace(stream=stream), ids.parse(after), ids.parse(upto), rows)


def test_a_second_time_changes_nothing(maker: OldMaker, tmp_path: Path) -> None:
    table = adopted(maker.root, tmp_path / "new", SMALL)
    version, before = table.version, entries_in(table)
    again = adopted(maker.root, tmp_path / "new", SMALL)
    assert again.version == version
    assert entries_in(again) == before


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    """Real processes, six of them killed; each entry is there once in the end."""
    maker = OldMaker(tmp_path / "old")
    for number in range(40):
        maker.batch({name: [f"{1_000 * number + one}-0" for one in range(1, 200)] for name in "abc"})
    command = [
        sys.executable,
        "-m",
        "tests.spark.old_archives",
        str(maker.root),
        str(tmp_path / "new"),
        "20000",
    ]
    dice = random.Random(3)
    for _kill in range(6):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None, "a pipe was asked for"
            for _step in range(dice.randint(0, 4)):
                process.stdout.readline()
            time.sleep(dice.uniform(0, 0.05))
            process.kill()
            process.stdout.read()
    table = adopted(maker.root, tmp_path / "new", 20_000)
    found = entries_in(table)
    assert (len(found), set(found.values())) == (3 * 40 * 199, {1})
    assert sum(one.rows for one in table.ranges()) == 3 * 40 * 199
    assert gaps(table.ranges()) == []


def test_what_was_archived_twice_comes_once(maker: OldMaker, tmp_path: Path) -> None:
    """A stream that was put back to an older state was read again from there."""
    maker.batch({"a": ["195-0", "196-0", "197-0", "198-0", "199-0"]}, after={"a": "194-0"})
    table = adopted(maker.root, tmp_path / "new", SMALL)
    found = entries_in(table)
    assert sum(1 for entry in found if entry[0] == "a") == 161
    assert set(found.values()) == {1}


def test_two_entries_of_one_id_are_refused(maker: OldMaker, tmp_path: Path) -> None:
    maker.batch({"a": ["198-0", "199-0"]}, after={"a": "194-0"}, value=b"other")
    with pytest.raises(ArchiveDamagedError, match="two different entries 198-0"):
        adopted(maker.root, tmp_path / "new", SMALL)


class TestWhatIsRefused:
    def test_a_missing_manifest(self, maker: OldMaker, tmp_path: Path) -> None:
        (maker.root / "_manifest" / "0000000007.json").unlink()
        with pytest.raises(ArchiveDamagedError, match="batch 7"):
            adopted(maker.root, tmp_path / "new")

    def test_a_range_that_no_manifest_has(self, maker: OldMaker, tmp_path: Path) -> None:
        maker.batch({"a": ["300-0"]}, after={"a": "250-0"})
        with pytest.raises(ArchiveDamagedError, match=r"\(198-0, 250-0\]"):
            adopted(maker.root, tmp_path / "new")

    def test_a_changed_manifest(self, maker: OldMaker, tmp_path: Path) -> None:
        path = maker.root / "_manifest" / "0000000007.json"
        path.write_text(path.read_text().replace('"rows": 8', '"rows": 9'))
        with pytest.raises(ArchiveDamagedError, match="damaged"):
            adopted(maker.root, tmp_path / "new")

    @pytest.mark.parametrize("content", [None, b"PAR1"])
    def test_a_file_that_is_not_whole(self, maker: OldMaker, tmp_path: Path, content: bytes | None) -> None:
        (path, *_rest) = sorted(maker.root.glob("data/batch=0000000009/**/*.parquet"))
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ArchiveDamagedError, match="restore it"):
            adopted(maker.root, tmp_path / "new")

    def test_a_folder_inside_the_old_archive(self, maker: OldMaker) -> None:
        """Vacuum, or the deletion of the old one, would take what is not its own."""
        for new in (maker.root, maker.root / "table", maker.root.parent):
            with pytest.raises(OptionError, match="folder of its own"):
                adopted(maker.root, new)
        assert not ArchiveTable.exists(ArchiveRoot.of(maker.root.parent))

    def test_a_folder_without_manifests(self, tmp_path: Path) -> None:
        with pytest.raises(ArchiveError, match="no archive of the old form"):
            adopted(tmp_path / "none", tmp_path / "new")

    def test_a_table_with_other_entries_of_the_stream(self, maker: OldMaker, tmp_path: Path) -> None:
        """The archive job has begun anew there: what it could not read any more is missing."""
        table = ArchiveTable.create(ArchiveRoot.of(tmp_path / "new"))
        files = write_files(table.root, rows_of(A, ["198-0"]))
        moved = Range(A, ids.ZERO, ids.parse("198-0"), 1)
        table.commit(Batch(BatchRanges("another", 0, (moved,)), files))
        with pytest.raises(ArchiveDamagedError, match="8 entries in the range up to 8-0, the table 0"):
            adopted(maker.root, tmp_path / "new")


def test_the_old_one_goes_when_all_is_counted(maker: OldMaker, tmp_path: Path) -> None:
    """Its manifests last: the deletion may be repeated. Nothing else in its folder goes."""
    table = adopted(maker.root, tmp_path / "new")
    (maker.root / "notes.txt").write_text("mine")
    (maker.root / "data").rename(tmp_path / "data")
    delete_old(ArchiveRoot.of(maker.root), table)
    assert [path.name for path in maker.root.iterdir()] == ["notes.txt"]
    with pytest.raises(ArchiveError, match="no archive of the old form"):
        delete_old(ArchiveRoot.of(maker.root), table)


def test_the_old_one_stays_where_the_table_lacks_a_range(maker: OldMaker, tmp_path: Path) -> None:
    table = adopted(maker.root, tmp_path / "new")
    maker.batch({"a": ["300-0"]})
    with pytest.raises(ArchiveDamagedError, match="1 entries in the range up to 300-0, the table 0"):
        delete_old(ArchiveRoot.of(maker.root), table)
    assert list(maker.root.glob("data/**/*.parquet"))
    adopted(maker.root, tmp_path / "new")
    check(ArchiveRoot.of(maker.root), lines_of(read_manifests(ArchiveRoot.of(maker.root))), table)


def test_a_conversion_beside_the_archive_job(maker: OldMaker, tmp_path: Path) -> None:
    """A batch of the job that comes too early is refused: it does not go on where the table ends."""
    table = ArchiveTable.create(ArchiveRoot.of(tmp_path / "new"))
    files: Sequence[Any] = write_files(table.root, rows_of(A, ["199-0"]))
    moved = Range(A, ids.parse("198-0"), ids.parse("199-0"), 1)
    with pytest.raises(RangeConflictError):
        table.commit(Batch(BatchRanges(ARCHIVE, 20, (moved,)), tuple(files)))
