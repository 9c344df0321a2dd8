"""The archive's batches: what Spark writes, and that each batch counts once.

Knows: a real Spark session and a real gateway; a checkpoint as Spark writes it.
Must never know: how a query reads.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pytest
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from pyspark_weir import gateway as calls
from pyspark_weir import ids, offsets
from pyspark_weir.delta import follow
from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.folders import folder, folder_column, values_of
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.jobs import compact, verify
from pyspark_weir.jobs.archive import Archiver, Archiving, source_options_of
from pyspark_weir.manifest import Archive, ManifestError, StreamKey, read_manifest
from pyspark_weir.offsets import Position
from pyspark_weir.parquet import dataset
from pyspark_weir.place import Place
from tests.server import Server

pytestmark = pytest.mark.spark

QUERY: Final = "5f0f5e0e-0000-4000-8000-000000000001"
MIDNIGHT: Final = 1_763_683_200_000
HARD_NAMES: Final = ("a", "web:50%é", "x" * 300, "Ω𝕏", "1", "a=b c", "__HIVE_DEFAULT_PARTITION__")
ROW: Final = st.StructType(
    [
        st.StructField("stream", st.StringType()),
        st.StructField("id", st.StringType()),
        st.StructField("ms", st.LongType()),
        st.StructField("seq", st.LongType()),
        st.StructField("ts", st.TimestampType()),
        st.StructField(
            "fields",
            st.ArrayType(
                st.StructType(
                    [st.StructField("name", st.StringType()), st.StructField("value", st.BinaryType())]
                )
            ),
        ),
    ]
)


class Checkpoint:
    """A checkpoint as Spark writes it, batch by batch."""

    def __init__(self, folder: Path, query: str = QUERY) -> None:
        self.folder = folder
        (folder / "offsets").mkdir(parents=True)
        (folder / "commits").mkdir()
        (folder / "metadata").write_text(json.dumps({"id": query}))

    def plan(self, batch: int, ends: Mapping[str, str], generation: str = "aa") -> None:
        """What Spark writes before a batch runs."""
        places = {f"g0/{stream}": Position(end, generation) for stream, end in ends.items()}
        lines = ["v1", '{"batchWatermarkMs":0}', offsets.text(places)]
        (self.folder / "offsets" / str(batch)).write_text("\n".join(lines))

    def commit(self, batch: int) -> None:
        """What Spark writes when it has run."""
        (self.folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def server(shared_server: Server) -> Server:
    return shared_server


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def archiver(tmp_path: Path, server: Server, checkpoint: Checkpoint) -> Archiver:
    return Archiver(asked(tmp_path, server))


def asked(tmp_path: Path, server: Server, **changes: Any) -> Archiving:
    given: dict[str, Any] = {
        "root": str(tmp_path / "root"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "source": {"gateway.urls": server.url, "subscribePattern": ".*"},
    }
    return Archiving(**{**given, **changes})


def frame(spark: SparkSession, entries: Sequence[tuple[str, str]]) -> DataFrame:
    """Rows as the source gives them, in two partitions."""
    rows = []
    for stream, text in entries:
        entry_id = ids.parse(text)
        halves = [half if half <= ids.BIGINT_MAX else None for half in entry_id]
        rows.append((stream, text, *halves, None, [("n", text.encode()), ("n", b"\xff\x00")]))
    found = spark.createDataFrame(rows, ROW).repartition(2)
    # 2 ** 53 milliseconds lie beyond the year 9999.
    return found.selectExpr(
        "stream", "id", "ms", "seq", "if(ms < 9007199254740992, timestamp_millis(ms), null) as ts", "fields"
    )


def publish(server: Server, entries: Sequence[tuple[str, str]]) -> None:
    by_stream: dict[str, list[dict[str, object]]] = {}
    for stream, text in entries:
        by_stream.setdefault(stream, []).append({"id": text, "fields": {"n": text}})
    with Gateway(Access("g0", server.url)) as gateway:
        calls.publish(gateway, by_stream)


def stored(place: Place) -> list[tuple[str, str]]:
    """Streams and IDs that readers see, in order."""
    found = dataset(place, Archive.read(place).files()).to_table(columns=["stream", "id"])
    pairs = zip(found["stream"].to_pylist(), found["id"].to_pylist(), strict=True)
    return sorted(pairs, key=lambda pair: (pair[0], ids.parse(pair[1])))


def test_entries_lie_by_stream_and_day_in_order(
    spark: SparkSession, server: Server, archiver: Archiver, checkpoint: Checkpoint
) -> None:
    """Also those of hard names, at midnight, and beyond what Spark's numbers hold."""
    names = ("hard:%é", "x" * 300, "Ω𝕏", "1", "a=b c", "__HIVE_DEFAULT_PARTITION__")
    texts = [f"{MIDNIGHT - 1}-5", f"{MIDNIGHT}-2", f"{MIDNIGHT}-10", f"{MIDNIGHT}-{ids.HALF_MAX}"]
    last = f"{ids.HALF_MAX}-{ids.HALF_MAX}"
    entries = [(name, text) for name in names for text in [*texts, last]]
    publish(server, entries)
    checkpoint.plan(0, dict.fromkeys(names, last))
    archiver.store(frame(spark, list(reversed(entries))), 0)
    archive = Archive.read(archiver.root)
    assert sorted(stored(archiver.root)) == sorted(entries)
    for name in names:
        files = archive.files([StreamKey("g0", name)])
        own = dataset(archiver.root, files).to_table()
        assert set(own["stream"].to_pylist()) == {name}
        assert {file.date for file in files} == {"2025-11-20", "2025-11-21", None}
    report = verify.verify(archiver.root, archive, {})
    assert {finding.what for finding in report.findings} == {"no gateway was named g0: it was not compared"}
    values = dataset(archiver.root, archive.files()).to_table()["fields"].to_pylist()[0]
    assert values[1] == {"name": "n", "value": b"\xff\x00"}, "names repeat, and bytes are bytes"


class Watched(Place):
    """A place that remembers what was synced and what was put in its place, in order."""

    def __init__(self, files: fs.FileSystem, base: str, address: str) -> None:
        super().__init__(files, base, address)
        self.done: list[str] = []

    def _sync(self, path: str) -> None:
        super()._sync(path)
        self.done.append(path)

    def _rename(self, name: str, to: str) -> None:
        super()._rename(name, to)
        self.done.append(f"named {to}")


def test_files_are_on_disk_before_a_manifest_names_them(
    spark: SparkSession, server: Server, archiver: Archiver, checkpoint: Checkpoint
) -> None:
    """With the folders that lead to them: after a power cut the gateway may have trimmed their entries."""
    watched = Watched.of(archiver.root.base)
    archiver.root = watched
    publish(server, [("synced", f"{number}-0") for number in range(1, 5)])
    checkpoint.plan(0, {"synced": "4-0"})
    archiver.store(frame(spark, [("synced", f"{number}-0") for number in range(1, 5)]), 0)
    manifest = read_manifest(watched, "batch", 0)
    assert manifest is not None
    before = watched.done[: watched.done.index(f"named {manifest.name}")]
    for file in manifest.add:
        path = Path(watched.path(file.path))
        ways = [path, *(parent for parent in path.parents if parent.is_relative_to(watched.base))]
        assert {str(way) for way in ways} <= set(before)


def test_a_batch_that_is_run_again_counts_once(
    spark: SparkSession, server: Server, archiver: Archiver, checkpoint: Checkpoint
) -> None:
    """Its driver died after the manifest, and before Spark knew of it."""
    entries = [("again", f"{number}-0") for number in range(1, 9)]
    publish(server, entries)
    checkpoint.plan(0, {"again": "8-0"})
    archiver.store(frame(spark, entries), 0)
    before = dict(archiver.root.below(""))
    archiver.store(frame(spark, entries[:1]), 0)
    assert dict(archiver.root.below("")) == before, "nothing was written"
    assert stored(archiver.root) == entries


def test_files_of_a_dead_driver_are_replaced(
    spark: SparkSession, server: Server, archiver: Archiver, checkpoint: Checkpoint
) -> None:
    """Under the same number, so that none of them is left over."""
    publish(server, [("half", "1-0"), ("half", "2-0"), ("half", "3-0")])
    checkpoint.plan(0, {"half": "1-0"})
    archiver.store(frame(spark, [("half", "1-0")]), 0)
    checkpoint.plan(1, {"half": "3-0"})
    archiver.write_files(frame(spark, [("half", "2-0")]), 1)
    left = {path for path, _size in archiver.root.below("data/batch=0000000001")}
    archiver.store(frame(spark, [("half", "2-0"), ("half", "3-0")]), 1)
    assert stored(archiver.root) == [("half", "1-0"), ("half", "2-0"), ("half", "3-0")]
    assert not left & {path for path, _size in archiver.root.below("data")}


def test_the_gateway_is_told_how_far_the_archive_goes(
    spark: SparkSession, tmp_path: Path, server: Server, archiver: Archiver, checkpoint: Checkpoint
) -> None:
    """When Spark knows that a batch has ended, not before: a restart would read it again. Up to the end of
    the range, where the last entries were deleted as well.
    """
    publish(server, [("told", f"{number}-0") for number in range(1, 8)])

    def told() -> str:
        with Gateway(Access("g0", server.url)) as gateway:
            seen = calls.stream(gateway, "told")
        assert seen is not None
        return str(seen["archived_up_to"])

    with Gateway(Access("g0", server.url)) as gateway:
        seen = calls.stream(gateway, "told")
    assert seen is not None
    own = seen["generation"]
    checkpoint.plan(0, {"told": "5-0", "gone": "7-0"}, own)
    archiver.store(frame(spark, [("told", "1-0"), ("told", "2-0"), ("gone", "7-0")]), 0)
    archiver.settle()
    assert told() == "0-0"
    checkpoint.commit(0)
    checkpoint.plan(1, {"told": "6-0", "gone": "7-0"}, own)
    archiver.store(frame(spark, [("told", "6-0")]), 1)
    assert told() == "5-0", "the next batch tells of the one before"
    checkpoint.commit(1)
    archiver.settle()
    assert told() == "6-0"
    checkpoint.plan(2, {"told": "7-0", "gone": "7-0"}, own)
    archiver.store(frame(spark, [("told", "7-0")]), 2)
    checkpoint.commit(2)
    again = Archiver(asked(tmp_path, server))
    again.query(spark)
    assert told() == "7-0", "so does the next start"
    manifest = read_manifest(archiver.root, "batch", 0)
    assert manifest is not None
    progress = {moved.stream: moved for moved in manifest.streams}
    assert (progress["told"].rows, progress["told"].max, progress["told"].upto) == (2, "2-0", "5-0")


def test_an_empty_batch_leaves_a_manifest(
    spark: SparkSession, server: Server, archiver: Archiver, checkpoint: Checkpoint
) -> None:
    """All of its range had been deleted: the next one joins on to it."""
    publish(server, [("void", "1-0")])
    checkpoint.plan(0, {"void": "1-0"})
    archiver.store(frame(spark, []), 0)
    archive = Archive.read(archiver.root)
    assert archive.states[StreamKey("g0", "void")].upto == "1-0"
    assert archive.files() == []


def test_a_stream_made_anew_begins_again(
    spark: SparkSession, server: Server, archiver: Archiver, checkpoint: Checkpoint
) -> None:
    """Its IDs may be those of the old one; both stay, each with its generation."""
    publish(server, [("anew", "9-0")])
    checkpoint.plan(0, {"anew": "9-0"}, generation="aa")
    archiver.store(frame(spark, [("anew", "8-0"), ("anew", "9-0")]), 0)
    checkpoint.plan(1, {"anew": "9-0"}, generation="bb")
    archiver.store(frame(spark, [("anew", "9-0")]), 1)
    archive = Archive.read(archiver.root)
    assert [(file.generation, file.rows) for file in archive.files()] == [("aa", 2), ("bb", 1)] or [
        (file.generation, file.rows) for file in archive.files()
    ] == [("bb", 1), ("aa", 2)]
    assert archive.states[StreamKey("g0", "anew")].generation == "bb"
    assert list(verify.manifest_findings(archive)) == []
    assert list(verify.overlap_findings(archiver.root, archive.files())) == []


def test_a_checkpoint_that_was_put_back_is_refused(
    spark: SparkSession, server: Server, archiver: Archiver, checkpoint: Checkpoint
) -> None:
    """It would plan batch 0 anew, with another end: skipping it would lose entries."""
    publish(server, [("back", "1-0"), ("back", "2-0")])
    checkpoint.plan(0, {"back": "1-0"})
    archiver.store(frame(spark, [("back", "1-0")]), 0)
    checkpoint.plan(0, {"back": "2-0"})
    with pytest.raises(ManifestError, match="put back to an older one"):
        archiver.store(frame(spark, [("back", "1-0"), ("back", "2-0")]), 0)


class TestRefusals:
    """Before a query starts, and before anything is written."""

    def test_a_root_of_another_query(
        self, spark: SparkSession, tmp_path: Path, server: Server, archiver: Archiver, checkpoint: Checkpoint
    ) -> None:
        """Its batch 0 is not this query's."""
        publish(server, [("own", "1-0")])
        checkpoint.plan(0, {"own": "1-0"})
        archiver.store(frame(spark, [("own", "1-0")]), 0)
        archiver.check()
        Checkpoint(tmp_path / "other", "another")
        other = Archiver(asked(tmp_path, server, checkpoint=str(tmp_path / "other")))
        with pytest.raises(OptionError, match="give those that belong together"):
            other.check()
        with pytest.raises(OptionError, match="give those that belong together"):
            other.store(frame(spark, [("own", "1-0")]), 0)
        fresh = Archiver(asked(tmp_path, server, checkpoint=str(tmp_path / "fresh")))
        with pytest.raises(OptionError, match="has no query yet"):
            fresh.check()

    def test_a_checkpoint_without_its_root(
        self, tmp_path: Path, server: Server, archiver: Archiver, checkpoint: Checkpoint
    ) -> None:
        """A new root would begin in the middle."""
        archiver.check()
        checkpoint.commit(0)
        with pytest.raises(OptionError, match="holds no archive"):
            archiver.check()

    def test_a_root_that_holds_something_else(self, tmp_path: Path, archiver: Archiver) -> None:
        """What a dead writer left unfinished is nothing."""
        root = tmp_path / "root" / "_manifest"
        root.mkdir(parents=True)
        (root / "archive.json.tmp").write_text("{")
        archiver.check()
        (root.parent / "letters.txt").write_text("dear")
        with pytest.raises(OptionError, match=r"letters\.txt.*begins in an empty folder"):
            archiver.check()

    def test_another_format_or_more_gateways(
        self, spark: SparkSession, tmp_path: Path, server: Server, archiver: Archiver, checkpoint: Checkpoint
    ) -> None:
        """Both change where files lie and who knows of them."""
        publish(server, [("fixed", "1-0")])
        checkpoint.plan(0, {"fixed": "1-0"})
        archiver.store(frame(spark, [("fixed", "1-0")]), 0)
        with pytest.raises(OptionError, match="begun with --format parquet"):
            Archiver(asked(tmp_path, server, format="delta")).check()
        two = {"gateway.urls": f"g0={server.url},g1={server.url}", "subscribe": "fixed"}
        with pytest.raises(OptionError, match="begun for the gateway g0"):
            Archiver(asked(tmp_path, server, source=two)).check()

    @pytest.mark.parametrize(
        ("option", "value", "why"),
        [
            ("startingoffsets", "latest", "startingOffsets is earliest in an archive"),
            ("fieldsFormat", "map", "fieldsFormat is entries in an archive"),
            ("onReset", "latest", "no manifest tells of"),
            ("startingTimestamp", "1000", "starts with the earliest"),
            ("columns", "a,b", "holds all fields"),
        ],
    )
    def test_options_that_would_leave_entries_out(
        self, tmp_path: Path, server: Server, option: str, value: str, why: str
    ) -> None:
        source = {"gateway.urls": server.url, "subscribe": "a", option: value}
        with pytest.raises(PipelineError, match=why):
            source_options_of(asked(tmp_path, server, source=source), ("stream", "date"))


class TestSeveralGateways:
    def test_streams_of_one_name_stay_apart(
        self, spark: SparkSession, tmp_path: Path, server: Server, checkpoint: Checkpoint
    ) -> None:
        """By the gateway's name, which is a folder above theirs."""
        publish(server, [("twin", "1-0")])
        source = {"gateway.urls": f"north={server.url},south={server.url}", "subscribe": "twin"}
        archiver = Archiver(asked(tmp_path, server, source=source))
        places = {f"{shard}/twin": Position("2-0", "aa") for shard in ("north", "south")}
        (checkpoint.folder / "offsets" / "0").write_text(f"v1\n{{}}\n{offsets.text(places)}")
        rows = frame(spark, [("twin", "1-0"), ("twin", "2-0")])
        archiver.store(rows.selectExpr("if(id = '1-0', 'north', 'south') as shard", "*"), 0)
        archive = Archive.read(archiver.root)
        assert [(file.shard, file.min) for file in archive.files()] == [("north", "1-0"), ("south", "2-0")]
        table = dataset(archiver.root, archive.files()).to_table(filter=pc.field("shard") == "south")
        assert table["id"].to_pylist() == ["2-0"]


class TestDelta:
    def test_the_table_follows_the_manifests(
        self, spark: SparkSession, tmp_path: Path, server: Server, checkpoint: Checkpoint
    ) -> None:
        """Batches, repeated ones, those whose commit was missed, and compactions: each entry once."""
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra

        archiver = Archiver(asked(tmp_path, server, format="delta", follow=follow))
        late = Archiver(asked(tmp_path, server, format="delta"))
        publish(server, [("δ:%", f"{number}-0") for number in range(1, 5)])
        for number, one in enumerate((archiver, late, archiver)):
            checkpoint.plan(number, {"δ:%": f"{number + 1}-0"})
            one.store(frame(spark, [("δ:%", f"{number + 1}-0")]), number)
        archiver.store(frame(spark, []), 2)
        root = str(tmp_path / "root")

        def seen() -> list[tuple[str, str]]:
            found = DeltaTable(root).to_pyarrow_table(columns=["stream", "id"])
            return sorted(zip(found["stream"].to_pylist(), found["id"].to_pylist(), strict=True))

        assert seen() == [("δ:%", f"{number}-0") for number in range(1, 4)]
        with pytest.raises(OptionError, match="Delta table too"):
            list(compact.compact(archiver.root, compact.Rules(), now_ms=1))
        list(compact.compact(archiver.root, compact.Rules(follow=follow), now_ms=1))
        assert len(DeltaTable(root).file_uris()) == 1
        assert seen() == [("δ:%", f"{number}-0") for number in range(1, 4)]
        assert follow(archiver.root) == [], "nothing is missing"


def test_python_and_spark_name_folders_alike(spark: SparkSession) -> None:
    """Else files would be found under no stream. What Spark writes into paths is read back as it was."""
    names = [*HARD_NAMES, "é" * 40, "a" * 80, "a" * 81, "tab\tname", " ", "~", "a#b?c[d]^{e}"]
    rows = spark.createDataFrame([(name,) for name in names], "name string")
    found = rows.select("name", folder_column(rows["name"]).alias("folder")).collect()
    assert {row["name"]: row["folder"] for row in found} == {name: folder(name) for name in names}
    assert values_of("data/batch=1/stream=web%3A50%25/date=__HIVE_DEFAULT_PARTITION__/x") == {
        "batch": "1",
        "stream": "web:50%",
        "date": None,
    }
