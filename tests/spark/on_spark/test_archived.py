"""An archive is read in Spark as it was published, through compaction, whatever its streams are called."""

from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from pyspark_weir.jobs import compact
from pyspark_weir.jobs.archive import Archiver, Archiving
from pyspark_weir.jobs.archived import entries
from pyspark_weir.manifest import ManifestError
from pyspark_weir.place import Place
from pyspark_weir.running import Run, run
from tests.server import Server

HARD_NAMES = ("plain", "50% é", "a+b c", "x" * 300, "Ω𝕏", "a=b&c", "__HIVE_DEFAULT_PARTITION__")
NOW_MS = 4_000_000_000_000


def _publish(server: Server, after: int) -> dict[tuple[str, str], str]:
    """Three entries to each stream; what is to be found of them."""
    entries = [{"id": f"{ms}-7", "fields": {"n": f"{ms}"}} for ms in range(after + 1, after + 4)]
    body = {"streams": dict.fromkeys(HARD_NAMES, entries)}
    httpx.post(f"{server.url}/v1/publish", json=body).raise_for_status()
    return {(name, f"{ms}-7"): f"{ms}" for name in HARD_NAMES for ms in range(after + 1, after + 4)}


def test_an_archive_is_a_table(spark: SparkSession, server: Server, tmp_path: Path, checkpoint: str) -> None:
    """Each entry once: from several batches, some of them joined, beside a file that no manifest names."""
    root = str(tmp_path / "an archive")
    source = {"gateway.urls": server.url, "subscribePattern": ".*", "maxEntriesPerTrigger": "14"}
    archiver = Archiver(Archiving(root=root, checkpoint=checkpoint, source=source))
    published = _publish(server, 0)
    assert run(Run(checkpoint), archiver.query, lambda _progress: None).batches == 2
    assert _found(spark, root) == published
    list(compact.compact(Place.of(root), compact.Rules(grace_ms=0), NOW_MS))
    published |= _publish(server, 100)
    run(Run(checkpoint), archiver.query, lambda _progress: None)
    some = next(Path(root).rglob("*.parquet"))
    some.with_name("orphan.zstd.parquet").write_bytes(some.read_bytes())
    assert _found(spark, root) == published
    table = entries(spark, root, ["a+b c"])
    assert table.columns == ["shard", "stream", "date", "id", "ms", "seq", "ts", "fields"]
    rows = table.orderBy("ms", "seq").collect()
    assert [row["ms"] for row in rows] == [1, 2, 3, 101, 102, 103]
    assert {(row["shard"], row["stream"], row["date"]) for row in rows} == {("g0", "a+b c", "1970-01-01")}


def _found(spark: SparkSession, root: str) -> dict[tuple[str, str], str]:
    rows = entries(spark, root).collect()
    found = {(row["stream"], row["id"]): bytes(row["fields"][0]["value"]).decode() for row in rows}
    assert len(rows) == len(found), "each once"
    return found


def test_what_is_no_archive_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """An empty table would pass for an archive of nothing."""
    with pytest.raises(ManifestError, match="holds no archive"):
        entries(spark, str(tmp_path))
