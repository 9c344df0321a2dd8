"""An archive in a bucket of an S3-compatible server that runs.

Knows: the table's API. Must never know: how the server works.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_weir.errors import ArchiveError, RangeConflictError
from pyspark_weir.ids import EntryId
from pyspark_weir.table.cleaning import clean_log, vacuum
from pyspark_weir.table.files import prove
from pyspark_weir.table.ranges import Range
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.spark.table.archiving import KEY, batch, stored_ids
from tests.spark.table.object_store import ObjectStore


@pytest.fixture
def bucket(store: ObjectStore, request: pytest.FixtureRequest) -> ArchiveRoot:
    """A root of the test's own."""
    return store.root(f"archives/{request.node.name}")


def test_the_server_refuses_a_second_put_that_wants_no_object_there(store: ObjectStore) -> None:
    """Else the tests below would prove nothing."""
    assert store.put("one", b"1", If_None_Match="*") == 200
    assert store.put("one", b"2", If_None_Match="*") == 412
    assert store.root("x").files.open_input_file("archive-bucket/one").read() == b"1"
    assert store.put("one", b"2") == 200


def test_an_archive_in_a_bucket_is_as_any_other(bucket: ArchiveRoot) -> None:
    with pytest.raises(ArchiveError, match="no archive"):
        ArchiveTable.open(bucket)
    table = ArchiveTable.create(bucket)
    for number in range(11):
        after = f"5-{number - 1}" if number else "0-0"
        assert not table.commit(batch(bucket, number, after, [f"5-{number}"])).repeated
    assert ArchiveTable.open(bucket).commit(batch(bucket, 10, "5-9", ["5-10"])).repeated
    assert bucket.names("_weir") == [f"ranges-{10:020d}.parquet"]
    again = ArchiveTable.open(bucket)
    assert again.ranges() == (Range(KEY, EntryId(0, 0), EntryId(5, 10), 11),)
    assert sorted(stored_ids(again)) == sorted(f"5-{number}" for number in range(11))
    for file in again.files():
        prove(bucket, file)
    assert clean_log(again, 1 << 42, age_ms=0) > 0
    assert ArchiveTable.open(bucket).ranges() == again.ranges()


def _write(bucket: ArchiveRoot, number: int, after: str, query: str, ready: threading.Barrier) -> bool:
    """Whether the batch was committed. All writers hold the same version when they begin."""
    mine, own = ArchiveTable.open(bucket), batch(bucket, number, after, [f"{number + 5}-0"], query=query)
    ready.wait()
    try:
        return not mine.commit(own).repeated
    except RangeConflictError:
        return False


def test_a_folder_of_a_bucket_with_other_objects_becomes_no_archive(bucket: ArchiveRoot) -> None:
    bucket.replace("data/part-0.parquet", b"mine")
    with pytest.raises(ArchiveError, match="give an archive a new folder"):
        ArchiveTable.create(bucket)


def test_of_two_writers_at_once_one_is_refused_and_nothing_is_lost(bucket: ArchiveRoot) -> None:
    """Two queries plan the same range, five times."""
    table = ArchiveTable.create(bucket)
    for number in range(5):
        after = str(table.positions()["g0", "orders"].upto) if number else "0-0"
        ready = threading.Barrier(2)
        with ThreadPoolExecutor() as pool:
            writers = [pool.submit(_write, bucket, number, after, query, ready) for query in ("a", "b")]
        assert sorted(writer.result() for writer in writers) == [False, True]
        table.refresh()
    assert table.version == 5
    assert stored_ids(table) == [f"{number + 5}-0" for number in range(5)]


def test_two_that_clean_at_once_delete_the_same(bucket: ArchiveRoot) -> None:
    """A bucket has no lock: all of them end, what nothing needs is gone, and the next batch goes on."""
    table = ArchiveTable.create(bucket)
    for number in range(25):
        table.commit(batch(bucket, number, f"5-{number - 1}" if number else "0-0", [f"5-{number}"]))
    ready = threading.Barrier(4)

    def clean(own: ArchiveTable) -> int:
        ready.wait()
        return clean_log(own, 1 << 42, age_ms=0)

    def delete(own: ArchiveTable) -> list[str]:
        ready.wait()
        return vacuum(own)

    with ThreadPoolExecutor() as pool:
        cleaners = [pool.submit(clean, ArchiveTable.open(bucket)) for _ in range(2)]
        vacuums = [pool.submit(delete, ArchiveTable.open(bucket)) for _ in range(2)]
        assert max(cleaner.result() for cleaner in cleaners) > 15
        assert [one.result() for one in vacuums] == [[], []]
    assert min(bucket.names("_delta_log")) == f"{21:020d}.json"
    assert not table.commit(batch(bucket, 25, "5-24", ["5-25"])).repeated
    again = ArchiveTable.open(bucket)
    assert again.ranges() == (Range(KEY, EntryId(0, 0), EntryId(5, 25), 26),)
    assert sorted(stored_ids(again)) == sorted(f"5-{number}" for number in range(26))
