"""Verifying: every kind of damage is found, and nothing is found where nothing is wrong.

Knows: a real gateway, and archives made without Spark. Must never know: how an archive is written.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
import pytest

from pyspark_weir import gateway as calls
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.gateway.client import of_stream
from pyspark_weir.jobs.compact import Rules, compact
from pyspark_weir.jobs.verify import Report, verify
from pyspark_weir.manifest import Archive, Manifest, encode
from pyspark_weir.place import Place
from tests.server import Server
from tests.spark import archives

FIELDS: Final[list[list[str]]] = [["n", "1"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("gateway") / "weir-data") as running:
        yield running


class Room:
    """A stream of twelve entries, `1-0` to `12-0`, and an archive of the first nine in three batches."""

    def __init__(self, place: Place, gateway: Gateway, stream: str) -> None:
        self.place = place
        self.gateway = gateway
        self.stream = stream
        self.maker = archives.Maker(place)
        entries: list[dict[str, object]] = [
            {"id": f"{number}-0", "fields": FIELDS} for number in range(1, 13)
        ]
        calls.publish(gateway, {stream: entries})
        seen = calls.stream(gateway, stream)
        assert seen is not None
        self.generation = seen["generation"]
        for first in (1, 4, 7):
            self.batch(range(first, first + 3))

    def batch(self, numbers: Sequence[int]) -> Manifest:
        """Archive entries in one batch."""
        return self.maker.batch({self.stream: [f"{one}-0" for one in numbers]}, generation=self.generation)

    def rewrite(self, manifest: Manifest) -> None:
        """Put another manifest in the place of one."""
        Path(self.place.path(manifest.name)).write_bytes(encode(manifest))

    def report(self, *, deep: bool = True) -> Report:
        """What is found."""
        return verify(self.place, Archive.read(self.place), {"g0": self.gateway}, deep=deep)

    def found(self) -> str:
        """The one thing that is found."""
        (finding,) = self.report().findings
        return f"{finding.about}: {finding.what}"


@pytest.fixture
def room(tmp_path: Path, server: Server) -> Iterator[Room]:
    # Not the test's own name: that of its parameters in it would be found in whatever names the stream.
    with Gateway(Access("g0", server.url)) as gateway:
        yield Room(Place.of(str(tmp_path / "archive")), gateway, tmp_path.name)


class TestGood:
    def test_nothing_is_found_in_a_good_archive(self, room: Room) -> None:
        """Every entry that both have was compared, byte by byte."""
        assert room.report() == Report(batches=3, files=3, rows=9, findings=(), compared=9)

    def test_without_reading_all_only_counts_are_compared(self, room: Room) -> None:
        assert room.report(deep=False) == Report(batches=3, files=3, rows=9, findings=())

    def test_nothing_is_found_after_a_trim_and_a_compaction(self, room: Room) -> None:
        """What only the archive has cannot be compared, and is no fault."""
        calls.trim(room.gateway, room.stream, minid="5-0")
        list(compact(room.place, Rules(), now_ms=1_000_000))
        assert room.report() == Report(batches=3, files=1, rows=9, findings=(), compared=5)

    def test_entries_deleted_since_are_told_of(self, room: Room) -> None:
        room.gateway.post(f"{of_stream(room.stream)}/entries/delete", {"ids": ["4-0", "9-0"]})
        found = room.report()
        assert (found.findings, found.deleted, found.compared) == ((), 2, 7)

    def test_files_that_no_manifest_names_are_told_of(self, room: Room) -> None:
        """Half a batch of a driver that died; the next one replaces it."""
        left = Path(room.place.path("data/batch=0000000003/stream=x/date=1970-01-01/part-0.parquet"))
        left.parent.mkdir(parents=True)
        left.write_bytes(b"PAR1")
        assert (room.report().findings, room.report().unknown) == ((), 1)

    def test_a_stream_that_was_put_back_is_read_again(self, room: Room) -> None:
        """From a copy of the gateway's folder: what is double is told of until a compaction has joined it."""
        room.maker.upto[room.stream] = "0-0"
        room.batch(range(1, 5))
        room.batch(range(5, 6))
        found = [finding.what for finding in room.report().findings]
        assert len(found) == 3
        assert all("of its entries are in" in one for one in found)
        list(compact(room.place, Rules(), now_ms=1_000_000))
        assert room.report() == Report(batches=5, files=1, rows=9, findings=(), compared=5)

    def test_a_stream_that_is_gone_leaves_its_archive(self, room: Room) -> None:
        room.gateway.send("DELETE", of_stream(room.stream))
        assert room.report().findings == ()


def drop_middle(room: Room) -> None:
    Path(room.place.path(Archive.read(room.place).batches[1].name)).unlink()


def drop_first(room: Room) -> None:
    Path(room.place.path(Archive.read(room.place).batches[0].name)).unlink()


def drop_file(room: Room) -> None:
    room.place.delete(Archive.read(room.place).files()[1].path)


def cut_file(room: Room) -> None:
    path = Path(room.place.path(Archive.read(room.place).files()[1].path))
    path.write_bytes(path.read_bytes()[:-9])


def replace(room: Room, entry_ids: Sequence[str], value: bytes = b"1", *, rows: int | None = None) -> None:
    """Another file in the place of the second; its manifest agrees as far as it can."""
    batch = Archive.read(room.place).batches[1]
    file = batch.add[0]
    pq.write_table(archives.table(entry_ids, value), room.place.path(file.path))
    size = room.place.size(file.path) or 0
    count = len(entry_ids) if rows is None else rows
    file = msgspec.structs.replace(file, bytes=size, rows=count)
    moved = msgspec.structs.replace(batch.streams[0], bytes=size, rows=count)
    room.rewrite(msgspec.structs.replace(batch, add=(file,), streams=(moved,)))


class TestDamage:
    @pytest.mark.parametrize(
        ("damage", "what"),
        [
            (drop_file, "the file is missing"),
            (cut_file, "bytes, its manifest says"),
            (
                lambda room: replace(room, ["4-0", "5-0", "6-0"], rows=4),
                "footer counts 3 rows, its manifest 4",
            ),
            (lambda room: replace(room, ["4-0", "6-0"]), "1 are missing"),
            (
                lambda room: replace(room, ["4-0", "4-5", "6-0"]),
                "5-0 is in the gateway, and not in the archive",
            ),
            (lambda room: replace(room, ["4-0", "5-0", "6-0"], b"2"), "4-0 has other fields"),
            (lambda room: replace(room, ["4-0", "6-0", "5-0"]), "5-0 does not come after"),
            (lambda room: replace(room, ["4-0", "5-0", "5-0", "6-0"]), "5-0 does not come after"),
            (lambda room: replace(room, ["4-0", "5-0", "5-9"]), "its manifest says 4-0 to 6-0"),
        ],
    )
    def test_a_file_that_is_not_as_it_was(
        self, room: Room, damage: Callable[[Room], None], what: str
    ) -> None:
        """Missing, cut, with other entries, other bytes, or in another order."""
        damage(room)
        assert any(what in finding.what for finding in room.report().findings)

    @pytest.mark.parametrize(
        ("damage", "what"),
        [(drop_middle, "batches between them are missing"), (drop_first, "not that of batch 0")],
    )
    def test_a_manifest_that_is_missing(self, room: Room, damage: Callable[[Room], None], what: str) -> None:
        """As a gap in the numbers, as a gap in the range, and as entries that only the gateway has."""
        damage(room)
        found = [finding.what for finding in room.report().findings]
        assert any(what in one for one in found)
        assert any("are in no batch" in one for one in found)
        assert any("3 are missing" in one for one in found)

    def test_a_range_in_two_batches(self, room: Room) -> None:
        """And the entries that are in both of them."""
        room.maker.upto[room.stream] = "8-0"
        room.batch([9, 10])
        found = [finding.what for finding in room.report().findings]
        assert any("entries in (8-0, 9-0] are in two batches" in one for one in found)
        assert any("1 of its entries are in" in one for one in found)

    def test_entries_in_two_files_of_which_one_lies_far_before(self, room: Room) -> None:
        """A long file shares one with the first and one with the last, and another lies between."""
        room.maker.upto[room.stream] = "1-0"
        room.batch([2, 9])
        found = [finding.what for finding in room.report().findings]
        assert sum("1 of its entries are in" in one for one in found) == 2

    def test_an_archive_that_is_ahead_of_its_stream(self, room: Room) -> None:
        """The gateway was put back to an older state: its IDs may come again."""
        room.batch([10, 11, 12, 13])
        assert any("the stream only to 12-0" in finding.what for finding in room.report().findings)

    def test_a_stream_that_was_made_anew(self, room: Room) -> None:
        room.gateway.send("DELETE", of_stream(room.stream))
        calls.publish(room.gateway, {room.stream: [{"id": "1-0", "fields": FIELDS}]})
        assert "made anew" in room.found()

    def test_a_gateway_that_was_not_named(self, room: Room) -> None:
        found = verify(room.place, Archive.read(room.place), {})
        assert [finding.what for finding in found.findings] == [
            "no gateway was named g0: it was not compared"
        ]
