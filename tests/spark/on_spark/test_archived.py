"""An archive is a table in Spark: of one version, and only the files that a filter may need are opened.

Knows: how an archive is written without Spark. Must never know: how Spark pushes filters.
"""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveError
from pyspark_weir.jobs.archived import entries
from pyspark_weir.table import deletions
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.spark.archive_tables import GATEWAY, GENERATION, Maker

DAY_MS = 86_400_000
LAST = f"{ids.HALF_MAX}-{ids.HALF_MAX}"
HARD_NAMES = ("plain", "50% é", "a+b c", "x" * 300, "Ω𝕏", "a=b&c", "__HIVE_DEFAULT_PARTITION__")


@pytest.fixture
def archive(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "an archive")


def found(frame: DataFrame) -> list[tuple[str, str]]:
    return sorted((row["stream"], row["id"]) for row in frame.select("stream", "id").collect())


def test_an_archive_is_a_table_of_one_version(spark: SparkSession, archive: Maker) -> None:
    """Streams of any name, IDs up to the last; a commit that comes later is in the next table."""
    for name in HARD_NAMES:
        archive.batch({name: ["0-1", f"{ids.BIGINT_MAX}-0", f"{ids.BIGINT_MAX + 1}-0", LAST]})
    table = entries(spark, archive.root.url)
    assert table.columns == [
        *("gateway", "stream", "generation", "id", "id_key", "ms", "seq", "ts", "fields", "date")
    ]
    archive.batch({"plain2": ["5-0"]})
    every = ("0-1", LAST, f"{ids.BIGINT_MAX}-0", f"{ids.BIGINT_MAX + 1}-0")
    assert found(table) == sorted((name, one) for name in HARD_NAMES for one in every)
    assert found(entries(spark, archive.root.url).where("stream = 'plain2'")) == [("plain2", "5-0")]
    rows = table.where("stream = 'plain'").orderBy("id_key").collect()
    assert [(row["ms"], row["seq"], row["ts"] is None) for row in rows] == [
        (0, 1, False), (ids.BIGINT_MAX, 0, True), (None, 0, True), (None, None, True)
    ]  # fmt: skip
    assert [(one["name"], bytes(one["value"])) for one in rows[0]["fields"]] == [
        ("n", b"1"), ("n", b"\xff"), ("", b"")
    ]  # fmt: skip
    mapped = entries(spark, archive.root.url, fields="map").where("stream = 'plain'").first()
    assert mapped is not None
    assert mapped["fields"] == {"n": "1", "": ""}


@pytest.mark.parametrize("recorded", [False, True])
def test_deleted_entries_are_left_out_when_asked(spark: SparkSession, archive: Maker, recorded: bool) -> None:  # noqa: FBT001
    """Those that are recorded when the table is made."""
    archive.batch({"a": ["5-0", "5-1"], "b": ["5-0"]})
    if recorded:
        deletions.record(archive.root, {}, {StreamKey(GATEWAY, "a", GENERATION): [ids.parse("5-0")]})
    every = [("a", "5-0"), ("a", "5-1"), ("b", "5-0")]
    assert found(entries(spark, archive.root.url)) == every
    assert found(entries(spark, archive.root.url, drop_deleted=True)) == every[recorded:]


def test_only_files_that_may_match_are_opened(spark: SparkSession, archive: Maker) -> None:
    """All others are gone when the query runs, and it answers what it would have with them."""
    for file in archive.batch({"a": [f"{DAY_MS + 1}-0", f"{DAY_MS + 2}-0"]}):
        file.unlink()
    (second,) = archive.batch({"a": [f"{2 * DAY_MS}-0", f"{2 * DAY_MS}-1"]})
    for file in archive.batch({"b": [f"{2 * DAY_MS}-0"]}):
        file.unlink()
    table = entries(spark, archive.root.url)
    narrow = table.where("stream = 'a' and ts between '1970-01-03' and '1970-01-04' and id_key is not null")
    assert found(narrow) == [("a", f"{2 * DAY_MS}-0"), ("a", f"{2 * DAY_MS}-1")]
    with pytest.raises(PySparkException, match="is missing, and the table counts on it"):
        found(table.where("ts >= '1970-01-03'"))
    assert second.exists()


def test_times_do_not_depend_on_the_session(spark: SparkSession, archive: Maker) -> None:
    """They are instants, shown in its time zone."""
    archive.batch({"a": [f"{DAY_MS}-0"]})
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone, shown in (("UTC", "1970-01-02 00:00:00"), ("America/New_York", "1970-01-01 19:00:00")):
            spark.conf.set("spark.sql.session.timeZone", zone)
            row = entries(spark, archive.root.url).selectExpr("CAST(ts AS STRING)", "unix_millis(ts)").first()
            assert tuple(row or ()) == (shown, DAY_MS)
            within = f"ts >= TIMESTAMP '{shown}' and ts <= TIMESTAMP '{shown}'"
            assert found(entries(spark, archive.root.url).where(within)) == [("a", f"{DAY_MS}-0")]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def test_a_session_that_lets_no_source_filter_reads_all_the_same(spark: SparkSession, archive: Maker) -> None:
    """As a session of the user's own, without a setting of ours."""
    archive.batch({"a": ["1-0", "2-0"]})
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert found(entries(spark, archive.root.url).where("id = '2-0'")) == [("a", "2-0")]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_what_is_no_archive_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """An empty table would pass for an archive of nothing."""
    with pytest.raises(ArchiveError, match="holds no archive"):
        entries(spark, str(tmp_path))
    assert found(entries(spark, ArchiveTable.create(ArchiveRoot.of(tmp_path / "new")).root.url)) == []
