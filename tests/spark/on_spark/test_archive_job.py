"""The archive job on a real gateway, in one session: restarts, new streams, losses, lost checkpoints.

Knows: how the job is run. Must never know: how a batch becomes files.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_weir import ids
from pyspark_weir.errors import DATA_LOSS, OptionError, PipelineError
from pyspark_weir.gateway import GatewayAccess, GatewayClient, of_stream
from pyspark_weir.jobs.archive import Archiver
from pyspark_weir.running import query_error
from pyspark_weir.table import digest
from pyspark_weir.table.ranges import gaps
from pyspark_weir.table.reading import read_whole, tally
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.history.served import Served
from tests.server import Server
from tests.spark.table.making import read_rows

_done_s_max: Final = 120
LAST: Final = f"{ids.HALF_MAX}-{ids.HALF_MAX}"


class Room:
    """A gateway, an archive, and a job that reads from one into the other."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path, prefix: str) -> None:
        self.spark = spark
        self.root = folder / "root"
        self.checkpoint = folder / "checkpoint"
        self.prefix = prefix
        self.gateway = GatewayClient(GatewayAccess("g0", server.url))
        self.source = {
            "gateway.urls": server.url,
            "subscribePattern": f"{prefix}/.*",
            "maxEntriesPerTrigger": "40",
            "pollTimeoutMs": "0",
        }

    def publish(self, stream: str, entry_ids: Sequence[str]) -> None:
        """Entries with a name twice and a value that is no UTF-8."""
        entries: list[dict[str, object]] = [
            {"id": one, "fields": [["n", "YQ=="], ["n", "/w=="], ["", ""]], "encoding": "base64"}
            for one in entry_ids
        ]
        self.gateway.post("/v1/publish", {"streams": {f"{self.prefix}/{stream}": entries}})

    def archive(self, *, settle: bool = True, checkpoint: Path | None = None, **source: Any) -> None:
        """Run the job until nothing is left. Raises what it fails with."""
        place = str(checkpoint or self.checkpoint)
        archiver = Archiver(ArchiveRoot.of(self.root), place, {**self.source, **source})
        writer = archiver.query(self.spark).trigger(availableNow=True)
        running = writer.option("checkpointLocation", place).start()
        try:
            assert running.awaitTermination(_done_s_max), "it ends"
        except StreamingQueryException as error:
            raise query_error(str(error)) from None
        finally:
            running.stop()
        if settle:
            archiver.settle()

    def forget(self, batch: int) -> None:
        """As a driver that died before Spark had noted the batch's end."""
        (self.checkpoint / "commits" / str(batch)).unlink()

    def table(self) -> ArchiveTable:
        return ArchiveTable.open(ArchiveRoot.of(self.root))

    def stored(self, stream: str) -> list[str]:
        """The IDs that readers find; the commits of the table say as many of these very entries."""
        table = self.table()
        name = f"{self.prefix}/{stream}"
        found = [
            row["id"]
            for file in table.files()
            for row in read_rows(table.root, file, ["stream", "id"]).to_pylist()
            if row["stream"] == name
        ]
        ranges = [one for one in table.ranges() if one.key.stream == name]
        assert sum(one.rows for one in ranges) == len(found)
        assert gaps(ranges) == []
        digests = [
            one
            for file in table.files()
            for rows in read_whole(table.root, file)
            for key, one in tally(rows).items()
            if key.stream == name
        ]
        committed = [one.value for key, one in table.digests().items() if key.stream == name]
        assert digest.plus(*committed) == digest.plus(*(one.digest for one in digests))
        return sorted(found, key=ids.parse)

    def archived_up_to(self, stream: str) -> str | None:
        seen = self.gateway.stream(f"{self.prefix}/{stream}")
        assert seen is not None
        found: str | None = seen["archived_up_to"]
        return found


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


def test_what_it_archived_is_read_on_where_the_gateway_trimmed_it(
    rooms: Callable[[str], Room],
) -> None:
    """By the service of history, from the very files that its tasks wrote."""
    room = rooms("read-on")
    room.publish("a", numbers(1, 100))
    room.archive()
    seen = room.gateway.stream("read-on/a")
    assert seen is not None
    served = Served(str(room.root)).start()
    try:
        found: list[str] = []
        after = "0-0"
        while len(found) < 100:
            page = served.page("read-on/a", seen["generation"], after=after, count=7)
            found += page.ids
            after = page.json["next"]
        live = room.gateway.get(f"{of_stream('read-on/a')}/entries", {"count": 100})["entries"]
        assert found == numbers(1, 100)
        assert served.page("read-on/a", seen["generation"], count=100).json["entries"] == live
    finally:
        served.kill()


def test_it_goes_on_where_it_ended(rooms: Callable[[str], Room]) -> None:
    """Restarts, a stream that comes later, entries deleted before they were read: each entry once, and the
    gateway learns how far the archive goes.
    """
    room = rooms("goes-on")
    room.publish("a", numbers(1, 100))
    room.archive()
    assert room.stored("a") == numbers(1, 100)
    assert room.archived_up_to("a") == "100-0"
    version = room.table().version
    assert version == 3, "forty entries a batch, after the commit that made the table"
    room.archive()
    assert room.table().version == version, "nothing new, no commit"
    room.publish("a", numbers(101, 120))
    room.publish("b", [*numbers(1, 4), LAST])
    room.gateway.post(f"{of_stream('goes-on/a')}/entries/delete", {"ids": [*numbers(105, 106), "120-0"]})
    room.archive()
    assert room.stored("a") == [*numbers(1, 104), *numbers(107, 119)]
    assert room.stored("b") == [*numbers(1, 4), LAST]
    assert (room.archived_up_to("a"), room.archived_up_to("b")) == ("119-0", LAST)
    row = read_rows(room.table().root, room.table().files()[0]).slice(0, 1).to_pylist()[0]
    assert row["fields"] == [
        {"name": "n", "value": b"a"},
        {"name": "n", "value": b"\xff"},
        {"name": "", "value": b""},
    ]


def test_a_batch_whose_end_spark_forgot_is_not_stored_twice(rooms: Callable[[str], Room]) -> None:
    """As after a driver that died between Delta's commit and Spark's: neither files nor a commit."""
    room = rooms("forgot")
    room.publish("a", numbers(1, 60))
    room.archive(settle=False)
    room.forget(1)
    version, files = room.table().version, sorted(room.root.rglob("*.parquet"))
    room.archive(settle=False)
    assert room.stored("a") == numbers(1, 60)
    assert (room.table().version, sorted(room.root.rglob("*.parquet"))) == (version, files)


def test_a_batch_that_was_not_committed_is_written_again(rooms: Callable[[str], Room]) -> None:
    """As after a driver that died before the commit; its range is that of before, without what came since,
    and the files of before do not count.
    """
    room = rooms("again")
    room.publish("a", numbers(1, 60))
    room.archive(settle=False)
    room.forget(1)
    before = {room.root / file.path for file in room.table().files()}
    (room.root / "_delta_log" / f"{room.table().version:020d}.json").unlink()
    left = before - {room.root / file.path for file in room.table().files()}
    assert left
    room.publish("a", numbers(61, 70))
    room.archive(settle=False)
    assert room.archived_up_to("a") == "60-0", "the batch before the last is settled, and not yet that one"
    assert room.stored("a") == numbers(1, 70)
    assert left.isdisjoint({room.root / file.path for file in room.table().files()})


@pytest.mark.halved
@pytest.mark.parametrize("lost", ["all of it", "its first batch's end"])
def test_a_checkpoint_that_is_lost_goes_on_where_the_table_ends(
    lost: str, rooms: Callable[[str], Room]
) -> None:
    """Although what is archived has been trimmed, and a stream was made anew in the meantime."""
    room = rooms(f"lost{len(lost)}")
    room.publish("a", numbers(1, 30))
    room.publish("b", numbers(1, 5))
    room.archive()
    room.gateway.trim(f"{room.prefix}/a", minid="31-0", guard=False)
    room.gateway.delete_stream(f"{room.prefix}/b")
    room.publish("a", numbers(31, 50))
    room.publish("b", numbers(2, 9))
    shutil.rmtree(room.checkpoint)
    room.archive(settle=False)
    assert room.stored("a") == numbers(1, 50)
    assert room.stored("b") == sorted([*numbers(1, 5), *numbers(2, 9)], key=ids.parse)
    if lost != "all of it":
        version = room.table().version
        room.forget(0)
        room.archive()
        assert room.table().version == version
        assert room.stored("a") == numbers(1, 50)


def test_two_checkpoints_share_a_table_but_no_stream(rooms: Callable[[str], Room]) -> None:
    """What would store entries a second time is refused; a new checkpoint takes a stream over, and the query
    that had it stops.
    """
    room = rooms("two")
    other = room.checkpoint.with_name("other")
    room.publish("a", numbers(1, 10))
    room.publish("b", numbers(1, 10))
    room.archive(subscribePattern="two/a")
    room.archive(subscribePattern="two/b", checkpoint=other)
    room.publish("a", numbers(11, 20))
    with pytest.raises(PipelineError, match="another checkpoint has written here"):
        room.archive(subscribePattern="two/[ab]", checkpoint=other)
    room.archive(checkpoint=room.checkpoint.with_name("third"))
    with pytest.raises(PipelineError, match="another checkpoint has written here") as failed:
        room.archive(subscribePattern="two/a")
    assert failed.value.code == "WEIR_ARCHIVE"
    assert (room.stored("a"), room.stored("b")) == (numbers(1, 20), numbers(1, 10))


def test_a_checkpoint_of_another_archive_is_refused(rooms: Callable[[str], Room], tmp_path: Path) -> None:
    """Before Spark is asked for anything: its entries would be missing in this one."""
    room = rooms("other")
    room.publish("a", numbers(1, 10))
    room.archive()
    room.root = tmp_path / "elsewhere"
    with pytest.raises(PipelineError, match="holds no archive"):
        room.archive()
    ArchiveTable.create(ArchiveRoot.of(room.root))
    with pytest.raises(PipelineError, match="does not hold that"):
        room.archive()


def test_entries_that_were_trimmed_unread_stop_it(rooms: Callable[[str], Room]) -> None:
    """Before anything is written; with the option it goes on with what is left."""
    room = rooms("unread")
    room.publish("a", numbers(1, 20))
    room.archive()
    room.publish("a", numbers(21, 40))
    room.gateway.trim("unread/a", minid="31-0", guard=False)
    version = room.table().version
    with pytest.raises(PipelineError, match="unread/a") as failed:
        room.archive()
    assert failed.value.code == DATA_LOSS
    assert room.table().version == version
    room.archive(failOnDataLoss="false")
    assert room.stored("a") == [*numbers(1, 20), *numbers(31, 40)]
    assert [(one.key, one.after, one.upto) for one in room.table().lost()] == [
        ("g0/unread/a", "20-0", "30-0")
    ]


def test_where_a_stream_begins_is_noted_when_it_is_met(rooms: Callable[[str], Room]) -> None:
    """Up to where it had been trimmed: at the start, by a batch that runs again, of a later one, of one that
    is made anew.
    """
    room = rooms("begins")
    room.publish("a", numbers(1, 20))
    room.gateway.trim("begins/a", minid="6-0", guard=False)
    room.publish("b", numbers(1, 3))
    room.archive()
    room.forget(0)
    room.publish("c", numbers(1, 10))
    room.gateway.trim("begins/c", minid="4-0", guard=False)
    room.archive()
    room.gateway.delete_stream("begins/b")
    room.publish("b", numbers(1, 9))
    room.gateway.trim("begins/b", minid="8-0", guard=False)
    room.archive(onReset="earliest")
    found = [(key.stream, str(upto)) for key, upto in room.table().begins().items()]
    assert sorted(found) == [
        ("begins/a", "5-0"),
        ("begins/b", "0-0"),
        ("begins/b", "7-0"),
        ("begins/c", "3-0"),
    ]
    seen = room.gateway.stream("begins/a")
    assert seen is not None
    served = Served(str(room.root)).start()
    try:
        page = served.page("begins/a", seen["generation"], after="2-0")
        assert page.json["gap"] == {"requested": "2-0", "first_available": "6-0", "lost": None}
        assert "gap" not in served.page("begins/a", seen["generation"], after="5-0").json
        assert "gap" not in served.page("begins/a", seen["generation"], after="0-0").json
    finally:
        served.kill()


def test_a_stream_made_anew_is_archived_beside_the_old_one(rooms: Callable[[str], Room]) -> None:
    """When all of that was archived, or the options allow it; the IDs of both may be the same."""
    room = rooms("twice")
    room.publish("a", numbers(1, 5))
    room.publish("gone", numbers(1, 2))
    room.archive()
    for stream in ("a", "gone"):
        room.gateway.delete_stream(f"twice/{stream}")
    room.publish("a", numbers(4, 6))
    room.archive()
    both = ["1-0", "2-0", "3-0", "4-0", "4-0", "5-0", "5-0", "6-0"]
    assert (room.stored("a"), room.stored("gone")) == (both, numbers(1, 2))
    room.publish("a", numbers(7, 8))
    room.gateway.delete_stream("twice/a")
    room.publish("a", numbers(9, 9))
    with pytest.raises(PipelineError, match="stream twice/a") as failed:
        room.archive()
    assert failed.value.code == DATA_LOSS
    room.archive(onReset="earliest")
    assert room.stored("a") == [*both, "9-0"]


@pytest.mark.parametrize(
    "option",
    [{"onReset": "latest"}, {"startingTimestamp": "5"}, {"STARTINGOFFSETS": "latest"}, {"columns": "id"}],
)
def test_options_that_would_leave_entries_out_are_refused(option: dict[str, str], tmp_path: Path) -> None:
    """Or fields."""
    source = {"gateway.urls": "http://127.0.0.1:1", "subscribe": "a", **option}
    with pytest.raises(OptionError, match="(?i)" + next(iter(option))):
        Archiver(ArchiveRoot.of(tmp_path / "root"), str(tmp_path / "checkpoint"), source)
