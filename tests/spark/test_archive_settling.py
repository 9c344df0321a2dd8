"""What is reported to a gateway of an archive, and when: only of the stream that was archived.

Knows: a real gateway, a checkpoint as Spark writes it, and archives made without Spark.
Must never know: how entries are archived.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_weir import offsets
from pyspark_weir.errors import ArchiveError
from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.jobs import trim
from pyspark_weir.jobs.archive import Archiver
from pyspark_weir.offsets import Lost, Position
from pyspark_weir.table.root import ArchiveRoot
from tests.server import Server
from tests.spark.archive_tables import QUERY, Maker


class Room:
    """A stream of nine entries, `1-0` to `9-0`, all of which one batch has archived; Spark knows its end."""

    def __init__(self, folder: Path, gateway: GatewayClient, url: str, upto: str = "9-0") -> None:
        self.stream = folder.name
        self.gateway = gateway
        self.publish(9)
        generation = self.seen("generation")
        self.maker = Maker(folder / "archive")
        self.checkpoint = checkpoint = folder / "checkpoint"
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
        self.commit(0, range(1, 10), generation, upto)
        self.end(0)
        source = {"gateway.urls": url, "subscribe": self.stream}
        self.archiver = Archiver(self.maker.table.root, str(checkpoint), source)

    def commit(self, batch: int, numbers: range, generation: str, upto: str) -> None:
        """A batch that Spark has planned and the table holds."""
        end = json.dumps(offsets.encode({f"g0/{self.stream}": Position(upto, generation)}))
        (self.checkpoint / f"offsets/{batch}").write_text(f"v1\n{{}}\n{end}")
        entry_ids = [f"{number}-0" for number in numbers]
        self.maker.batch({self.stream: entry_ids}, generation=generation, upto=upto)

    def end(self, batch: int) -> None:
        """Have a batch end for Spark as well."""
        (self.checkpoint / f"commits/{batch}").write_text("v1\n{}")

    def trim(self) -> None:
        """Trim what may go."""
        self.maker.table.refresh()
        gateways = {"g0": self.gateway}
        planned = trim.plan(self.maker.table, gateways, trim.TrimRules(), now_ms=0)
        assert all(one.refused is None for one in trim.run(self.maker.table, gateways, planned))

    def left(self) -> list[int]:
        """Which entries the gateway still has."""
        return list(self.gateway.page(self.stream, after="0-0").ms)

    def publish(self, last: int, first: int = 1) -> None:
        """Entries from `1-0`, or `first`, on, with the fields that an archive's maker gives them."""
        entries: list[dict[str, object]] = [
            {"id": f"{number}-0", "fields": [["n", "MQ=="], ["n", "/w=="], ["", ""]], "encoding": "base64"}
            for number in range(first, last + 1)
        ]
        self.gateway.post("/v1/publish", {"streams": {self.stream: entries}})

    def delete(self) -> None:
        """The stream with all that it has."""
        self.gateway.delete_stream(self.stream)

    def seen(self, member: str) -> str:
        """What the gateway shows of the stream."""
        shown = self.gateway.stream(self.stream)
        assert shown is not None
        return str(shown[member])


@pytest.fixture
def room(tmp_path: Path, server: Server) -> Iterator[Room]:
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        yield Room(tmp_path, gateway, server.url)


def test_the_gateway_is_told_of_the_stream_that_was_archived(room: Room) -> None:
    room.archiver.settle()
    assert room.seen("archived_up_to") == "9-0"


def test_what_a_restart_reads_again_is_not_trimmed(room: Room) -> None:
    """The driver died between the table's commit and Spark's: batch 1 runs again, and reads its entries."""
    room.publish(12, first=10)
    room.commit(1, range(10, 12), room.seen("generation"), "11-0")
    room.archiver.settle()
    room.trim()
    assert room.seen("archived_up_to") == "9-0"
    assert room.left() == [10, 11, 12]
    room.end(1)
    room.archiver.settle()
    room.trim()
    assert room.seen("archived_up_to") == "11-0"
    assert room.left() == [12]


def test_the_last_batch_of_a_run_is_settled_by_the_next_run(room: Room) -> None:
    """A batch is settled when the next one begins, so the last batch of a run is not settled yet."""
    room.publish(12, first=10)
    room.commit(1, range(10, 12), room.seen("generation"), "11-0")
    room.end(1)
    room.archiver.settle()
    assert room.seen("archived_up_to") == "11-0"


@pytest.mark.parametrize("last", [4, 12])
def test_a_stream_made_anew_is_not_reported_as_archived(room: Room, last: int) -> None:
    """Its entries have the IDs of the old ones and were not read yet: retention has to keep them."""
    room.delete()
    room.publish(last)
    room.archiver.settle()
    assert room.seen("archived_up_to") == "0-0"


def test_a_stream_that_was_put_back_is_not_told_what_it_has_no_more(tmp_path: Path, server: Server) -> None:
    """From a copy of the gateway's folder: what it gets now may have IDs that were archived already."""
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        room = Room(tmp_path, gateway, server.url, upto="20-0")
        room.archiver.settle()
        assert room.seen("archived_up_to") == "0-0"


def test_a_stream_that_was_put_back_below_its_archive_stops_the_job(room: Room, tmp_path: Path) -> None:
    """Its entries from there on may be others, under the IDs that are archived."""
    end = json.dumps(offsets.encode({f"g0/{room.stream}": Position("5-0", room.seen("generation"), "2-0")}))
    (tmp_path / "checkpoint/offsets/1").write_text(f"v1\n{{}}\n{end}")
    with pytest.raises(ArchiveError, match="was put back to 5-0, and is archived up to 9-0"):
        room.archiver.moved(1)


def test_what_goes_before_a_planned_batch_is_read_is_noted(room: Room, tmp_path: Path) -> None:
    """Trimmed or deleted after Spark had written the batch's range down, where that does not fail the run;
    nothing twice that the range was written with, and nothing of the next one.
    """
    key, generation = f"g0/{room.stream}", room.seen("generation")
    room.publish(20, first=10)
    asked = {"gateway.urls": room.gateway.access.url, "subscribe": room.stream, "failOnDataLoss": "false"}
    archiver = Archiver(ArchiveRoot.of(tmp_path / "archive"), str(room.checkpoint), asked)

    def lost(*known: Lost) -> list[tuple[str, str | None, str]]:
        end = json.dumps(offsets.encode({key: Position("15-0", generation)}, lost=known))
        (room.checkpoint / "offsets/1").write_text(f"v1\n{{}}\n{end}")
        return [(one.after, one.upto, one.why) for one in archiver.moved(1).lost]

    assert lost() == []
    room.gateway.trim(room.stream, minid="13-0", guard=False)
    assert lost() == [("9-0", "12-0", "trimmed")]
    assert room.archiver.moved(1).lost == (), "Spark's reader fails first"
    known = Lost(key, generation, "9-0", "11-0", "trimmed")
    assert lost(known) == [("9-0", "11-0", "trimmed"), ("11-0", "12-0", "trimmed")]
    room.gateway.trim(room.stream, minid="18-0", guard=False)
    assert lost() == [("9-0", "15-0", "trimmed")]
    room.delete()
    assert lost() == [("9-0", None, "deleted")]


def test_a_checkpoint_goes_with_a_table_that_holds_what_it_archived(room: Room, tmp_path: Path) -> None:
    room.archiver.check()
    end = json.dumps(offsets.encode({f"g0/{room.stream}": Position("10-0", room.seen("generation"))}))
    (tmp_path / "checkpoint/offsets/0").write_text(f"v1\n{{}}\n{end}")
    with pytest.raises(ArchiveError, match=r"up to 10-0, and .* does not hold that"):
        room.archiver.check()


def test_a_stream_is_marked_as_closed_where_the_archive_has_all_of_it(room: Room) -> None:
    """Not before its last entry is there, and not another stream of its name."""
    known = room.maker.table

    def closed() -> list[str]:
        room.archiver.mark_closed()
        version = known.version
        known.refresh()
        assert known.version - version <= 1
        return [one.stream for one in known.closed()]

    assert closed() == []
    room.publish(10, first=10)
    room.gateway.close_stream(room.stream)
    assert closed() == []
    room.commit(1, range(10, 11), room.seen("generation"), "10-0")
    assert closed() == []
    room.end(1)
    assert closed() == [room.stream]
    version = known.version
    assert closed() == [room.stream]
    assert known.version == version


def test_another_stream_of_the_name_is_not_the_one_that_was_archived(room: Room) -> None:
    """Though it is closed, and ends where the archive does."""
    room.delete()
    room.publish(9)
    room.gateway.close_stream(room.stream)
    room.archiver.mark_closed()
    room.maker.table.refresh()
    assert room.maker.table.closed() == frozenset()


def test_a_stream_that_is_gone_stops_nothing(room: Room) -> None:
    room.delete()
    room.archiver.settle()
    assert room.gateway.stream(room.stream) is None
