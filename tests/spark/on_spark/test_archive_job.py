"""The archive job on a real gateway, in one session: restarts, new streams, losses, and what follows.

Knows: how the job is run. Must never know: how a batch becomes files.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_weir import gateway as calls
from pyspark_weir import ids
from pyspark_weir.errors import DATA_LOSS, PipelineError
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.gateway.client import of_stream
from pyspark_weir.jobs import trim
from pyspark_weir.jobs.archive import Archiver, Archiving
from pyspark_weir.jobs.compact import Rules, compact
from pyspark_weir.jobs.verify import verify
from pyspark_weir.manifest import Archive
from pyspark_weir.parquet import dataset
from pyspark_weir.place import Place
from pyspark_weir.running import query_error
from tests.server import Server

pytestmark = pytest.mark.spark

_done_s_max: Final = 120


class Room:
    """A gateway, an archive, and a job that reads from one into the other."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path, prefix: str) -> None:
        self.spark = spark
        self.folder = folder
        self.prefix = prefix
        self.place = Place.of(str(folder / "root"))
        self.gateway = Gateway(Access("g0", server.url))
        self.source = {
            "gateway.urls": server.url,
            "subscribePattern": f"{prefix}:.*",
            "maxEntriesPerTrigger": "40",
            "pollTimeoutMs": "0",
        }

    def publish(self, stream: str, entry_ids: Sequence[str]) -> None:
        """Entries with a name twice and a value that is no UTF-8."""
        entries: list[dict[str, object]] = [
            {"id": one, "fields": [["n", "YQ=="], ["n", "/w=="], ["", ""]], "encoding": "base64"}
            for one in entry_ids
        ]
        calls.publish(self.gateway, {f"{self.prefix}:{stream}": entries})

    def archive(self, *, settle: bool = True, **source: Any) -> None:
        """Run the job until nothing is left. Raises what it fails with."""
        asked = Archiving(
            str(self.folder / "root"), str(self.folder / "checkpoint"), {**self.source, **source}
        )
        archiver = Archiver(asked)
        writer = archiver.query(self.spark).trigger(availableNow=True)
        running = writer.option("checkpointLocation", asked.checkpoint).start()
        try:
            assert running.awaitTermination(_done_s_max), "it ends"
        except StreamingQueryException as error:
            raise query_error(str(error)) from None
        finally:
            running.stop()
        if settle:
            archiver.settle()

    def stored(self, stream: str) -> list[str]:
        """The IDs that readers find."""
        table = dataset(self.place, Archive.read(self.place).files()).to_table(columns=["stream", "id"])
        pairs = zip(table["stream"].to_pylist(), table["id"].to_pylist(), strict=True)
        return sorted((one for name, one in pairs if name == f"{self.prefix}:{stream}"), key=ids.parse)

    def findings(self) -> list[str]:
        """What verifying finds, byte by byte."""
        report = verify(self.place, Archive.read(self.place), {"g0": self.gateway}, deep=True)
        return [f"{finding.about}: {finding.what}" for finding in report.findings]

    def trim(self) -> int:
        """Trim as far as it goes; how many entries went."""
        gateways = {"g0": self.gateway}
        planned = trim.plan(self.place, Archive.read(self.place), gateways, trim.Rules(), 0)
        assert [one.refused for one in planned if one.refused] == []
        return sum(done.deleted for done in trim.run(gateways, planned))


@pytest.fixture
def rooms(spark: SparkSession, shared_server: Server, tmp_path: Path) -> Iterator[Callable[[str], Room]]:
    made: list[Room] = []

    def make(prefix: str) -> Room:
        made.append(Room(spark, shared_server, tmp_path / prefix, prefix))
        return made[-1]

    yield make
    for room in made:
        room.gateway.close()


def numbers(first: int, last: int) -> list[str]:
    return [f"{number}-0" for number in range(first, last + 1)]


def test_it_goes_on_where_it_ended(rooms: Callable[[str], Room]) -> None:
    """Restarts, a stream that comes later, entries deleted before they were read, a trim and a compaction
    between: each entry once, and the archive is whole all the time.
    """
    room = rooms("goes-on")
    room.publish("a", numbers(1, 100))
    room.archive()
    assert room.stored("a") == numbers(1, 100)
    assert len(Archive.read(room.place).batches) == 3, "forty entries a batch"
    room.archive()
    assert len(Archive.read(room.place).batches) == 3, "nothing new, no batch"
    room.publish("a", numbers(101, 120))
    room.publish("b", [*numbers(1, 4), f"{ids.HALF_MAX}-{ids.HALF_MAX}"])
    gone = {"ids": [*numbers(105, 106), "120-0"]}
    room.gateway.post(f"{of_stream('goes-on:a')}/entries/delete", gone)
    assert room.trim() == 100
    list(compact(room.place, Rules(), now_ms=1_000))
    room.archive()
    assert room.stored("a") == [*numbers(1, 104), *numbers(107, 119)]
    assert room.stored("b") == [*numbers(1, 4), f"{ids.HALF_MAX}-{ids.HALF_MAX}"]
    assert room.findings() == []
    seen = calls.stream(room.gateway, "goes-on:a")
    assert seen is not None
    assert (seen["archived_up_to"], seen["length"]) == ("119-0", 17)
    # Of the stream that is full, the highest ID of all has none after it to trim below.
    fields = dataset(room.place, Archive.read(room.place).files()).to_table()["fields"].to_pylist()[0]
    assert fields == [
        {"name": "n", "value": b"a"},
        {"name": "n", "value": b"\xff"},
        {"name": "", "value": b""},
    ]


def test_a_batch_whose_end_spark_forgot_is_not_stored_twice(rooms: Callable[[str], Room]) -> None:
    """As after a driver that died between the manifest and Spark's commit; and a trim in between leaves what
    the next one reads again.
    """
    room = rooms("forgot")
    room.publish("a", numbers(1, 60))
    room.archive(settle=False)
    (room.folder / "checkpoint" / "commits" / "1").unlink()
    before = [manifest.at_ms for manifest in Archive.read(room.place).batches]
    assert room.trim() == 40
    room.archive()
    assert room.stored("a") == numbers(1, 60)
    assert room.trim() == 20
    assert [manifest.at_ms for manifest in Archive.read(room.place).batches] == before


def test_a_batch_whose_manifest_is_missing_is_written_anew(rooms: Callable[[str], Room]) -> None:
    """As after a driver that died while it wrote files; its range is that of before, whatever came since."""
    room = rooms("anew")
    room.publish("a", numbers(1, 60))
    room.archive()
    last = Archive.read(room.place).batches[-1]
    Path(room.place.path(last.name)).unlink()
    (room.folder / "checkpoint" / "commits" / "1").unlink()
    room.publish("a", numbers(61, 70))
    room.archive()
    assert room.stored("a") == numbers(1, 70)
    (again,) = [batch for batch in Archive.read(room.place).batches if batch.number == last.number]
    assert (again.streams[0].after, again.streams[0].upto) == ("40-0", "60-0")
    assert room.findings() == []


def test_entries_that_were_trimmed_unread_stop_it(rooms: Callable[[str], Room]) -> None:
    """Before anything is written; told otherwise it goes on with what is left."""
    room = rooms("lost")
    room.publish("a", numbers(1, 20))
    room.archive()
    room.publish("a", numbers(21, 40))
    calls.trim(room.gateway, "lost:a", minid="31-0", guard=False)
    with pytest.raises(PipelineError, match="lost:a") as failed:
        room.archive()
    assert failed.value.code == DATA_LOSS
    assert len(Archive.read(room.place).batches) == 1
    room.archive(failOnDataLoss="false")
    assert room.stored("a") == [*numbers(1, 20), *numbers(31, 40)]
    assert room.findings() == []


def test_a_stream_made_anew_is_archived_beside_the_old_one(rooms: Callable[[str], Room]) -> None:
    """When it is told to go on; the IDs of both may be the same."""
    room = rooms("twice")
    room.publish("a", numbers(1, 5))
    room.archive()
    room.gateway.send("DELETE", of_stream("twice:a"))
    room.publish("a", numbers(4, 6))
    with pytest.raises(PipelineError) as failed:
        room.archive()
    assert failed.value.code == DATA_LOSS
    room.archive(onReset="earliest")
    assert room.stored("a") == ["1-0", "2-0", "3-0", "4-0", "4-0", "5-0", "5-0", "6-0"]
    assert room.findings() == []
    assert room.trim() == 3
