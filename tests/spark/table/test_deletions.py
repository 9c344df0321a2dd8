"""Deletions after archiving: a set, with the ID up to which it is complete.

Knows: real tables. Must never know: who records them.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_weir import ids
from pyspark_weir.table.deletions import FOLDER, known_upto, read, record, recorded_in, version, without
from pyspark_weir.table.reading import scan
from pyspark_weir.table.root import ArchiveRoot
from tests.spark.table.making import Maker, key_of, numbered

A, B = key_of("a"), key_of("b")
ANEW = key_of("a", "00000000000000bb")


@pytest.fixture
def root(tmp_path: Path) -> ArchiveRoot:
    return ArchiveRoot.of(tmp_path / "archive")


def ids_in(root: ArchiveRoot) -> list[tuple[str, str, str]]:
    """The deleted entries."""
    return sorted((row["stream"], row["generation"], row["id"]) for row in read(root).to_pylist())


def test_an_archive_without_deletions(root: ArchiveRoot) -> None:
    assert ids_in(root) == []
    assert known_upto(root) == {}
    assert version(root) is None
    record(root, {}, {})
    assert not Path(root.url).exists()


def test_what_is_recorded_twice_is_there_once(root: ArchiveRoot) -> None:
    for _time in range(2):
        record(root, {A: ids.parse("9-0")}, {A: [ids.parse("5-0"), ids.parse("5-1")]})
    assert [one for _, _, one in ids_in(root)] == ["5-0", "5-1"]


def test_two_that_record_at_once_both_do(root: ArchiveRoot) -> None:
    def write(stream: int) -> None:
        for number in range(5):
            record(root, {}, {A: [ids.EntryId(stream, number)]})

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, (1, 2, 3)))
    assert len(ids_in(root)) == 15


def test_an_id_of_another_generation_is_another_entry(root: ArchiveRoot) -> None:
    record(root, {}, {A: [ids.parse("5-0")], ANEW: [ids.parse("5-0")], B: [ids.LAST]})
    assert len(ids_in(root)) == 3
    assert known_upto(root) == {}


def test_the_highest_id_up_to_which_they_are_known(root: ArchiveRoot) -> None:
    """By the order of IDs, not of texts; of each stream and generation."""
    for upto in ("9-0", "10-0", "9-1"):
        record(root, {A: ids.parse(upto)}, {})
    record(root, {B: ids.LAST}, {})
    assert known_upto(root) == {A: ids.parse("10-0"), B: ids.LAST}


def test_of_the_deletions_those_within_a_file_are_looked_at(root: ArchiveRoot) -> None:
    """By its statistics: the first and the last entry, and none beside them."""
    maker = Maker(Path(root.url))
    maker.batch({A: numbered(1, 10)})
    maker.batch({A: numbered(11, 10)})
    first, second = maker.table.files()
    gone = [ids.parse(one) for one in (*numbered(1, 1), *numbered(10, 2), *numbered(20, 2))]
    record(root, {A: ids.parse("21-0")}, {A: gone, B: [ids.parse("5-0")]})
    for file, inside, left in (
        (first, ["1-0", "10-0"], numbered(2, 8)),
        (second, ["11-0", "20-0"], numbered(12, 8)),
    ):
        deleted = recorded_in(root, file, version(root) or 0)
        assert sorted(deleted["id"].to_pylist(), key=ids.parse) == inside
        (rows,) = scan(root, file)
        assert without(rows, deleted)["id"].to_pylist() == left
        assert without(rows, deleted.slice(0, 0)) is rows


def test_many_recordings_stay_few_files(root: ArchiveRoot) -> None:
    """The 101st is joined with those before it."""
    files = {}
    for number in range(1, 105):
        record(root, {A: ids.parse(f"{number}-0")}, {A: [ids.parse(f"{number}-0")]})
        if number >= 100:
            files[number] = DeltaTable(root.inside(FOLDER).url).get_add_actions().num_rows
    assert files == {100: 100, 101: 1, 102: 2, 103: 3, 104: 4}
    assert len(ids_in(root)) == 104
    assert known_upto(root) == {A: ids.parse("104-0")}
