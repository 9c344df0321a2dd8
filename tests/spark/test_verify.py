"""Verifying: every kind of damage is found, and nothing is found where nothing is wrong.

Knows: a real gateway, and archives made without Spark. Must never know: how an archive is written.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pyspark_weir.gateway import GatewayAccess, GatewayClient, PlanQuery, of_stream
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.verify import VerifyReport, verify
from pyspark_weir.offsets import Lost
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.files import write_file, write_files
from pyspark_weir.table.ranges import BatchRanges, Range
from pyspark_weir.table.schema import complete
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.server import Server
from tests.spark.table.making import Maker, commit_files_unchecked, commit_unchecked, key_of, rows_of


class CountingLink(httpx.HTTPTransport):
    """A connection that counts its requests."""

    requests = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        return super().handle_request(request)


class Room:
    """A stream of twelve entries, `1-0` to `12-0`, and an archive of the first nine in three batches."""

    def __init__(self, root: Path, gateway: GatewayClient, stream: str) -> None:
        self.gateway = gateway
        self.stream = stream
        self.maker = Maker(root)
        self.table = self.maker.table
        entries: list[dict[str, object]] = [
            {"id": f"{number}-0", "fields": [["n", f"{number}-0"], ["n", "1"]]} for number in range(1, 13)
        ]
        gateway.post("/v1/publish", {"streams": {stream: entries}})
        seen = gateway.stream(stream)
        assert seen is not None
        self.key = key_of(stream, seen["generation"])
        for first in (1, 4, 7):
            self.batch(range(first, first + 3))

    def batch(self, numbers: Sequence[int]) -> None:
        """Archive entries in one batch."""
        self.maker.batch({self.key: [f"{one}-0" for one in numbers]})

    def again(self, *numbers: int) -> None:
        """Entries that no range counts."""
        commit_unchecked(self.table, rows_of(self.key, [f"{one}-0" for one in numbers]), [])

    def report(self, *, deep: bool = True) -> VerifyReport:
        """What is found."""
        self.table.refresh()
        return verify(self.table, {"g0": self.gateway}, deep=deep)

    def found(self) -> list[str]:
        """All that is found."""
        return [finding.what for finding in self.report().findings]


@pytest.fixture
def room(tmp_path: Path, server: Server) -> Iterator[Room]:
    # Not the test's own name: that of its parameters in it would be found in all that names the stream.
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        yield Room(tmp_path / "archive", gateway, tmp_path.name)


class TestGood:
    def test_nothing_is_found_in_a_good_archive(self, room: Room) -> None:
        """Every entry was compared, with its digest and with that of the gateway's."""
        assert room.report() == VerifyReport(version=3, files=3, rows=9, findings=(), compared=9, proven=9)

    def test_without_reading_all_only_counts_are_compared(self, room: Room) -> None:
        assert room.report(deep=False) == VerifyReport(version=3, files=3, rows=9, findings=())

    def test_nothing_is_found_after_a_trim_and_a_compaction(self, room: Room) -> None:
        """What only the archive has is compared with its digests alone."""
        room.gateway.trim(room.stream, minid="5-0")
        list(compact(room.table, CompactionRules()))
        assert room.report() == VerifyReport(version=4, files=1, rows=9, findings=(), compared=5, proven=9)

    def test_a_foreign_optimize_is_no_fault(self, room: Room) -> None:
        """It puts the rows of files one behind the other; all are counted and compared, once."""
        room.maker.batch({key_of("zz"): ["5-0"]})
        DeltaTable(room.table.root.url).optimize.compact()
        found = room.report()
        assert (found.findings, found.files, found.rows, found.compared) == ((), 1, 10, 9)
        assert found.foreign == 1
        room.again(3)
        assert "1 of its entries are in" in room.found()[0]

    def test_what_was_lost_before_it_was_archived_is_shown(self, room: Room) -> None:
        """It was accepted, and is no fault of the archive; a cache of ranges has it too."""
        lost = Lost(f"g0/{room.stream}", room.key.generation, "0-0", "0-5", "trimmed")
        moved = BatchRanges("other", 0, (), (lost,))
        room.table.commit(Batch(moved, ()))
        room.table.checkpoint()
        for table in (room.table, ArchiveTable.open(room.table.root)):
            found = verify(table, {"g0": room.gateway})
            assert found.findings == ()
            assert [one.what for one in found.lost] == [
                "entries after 0-0 up to 0-5 were trimmed before they were read"
            ]

    def test_entries_deleted_since_are_counted(self, room: Room) -> None:
        room.gateway.post(f"{of_stream(room.stream)}/entries/delete", {"ids": ["4-0", "9-0"]})
        found = room.report()
        assert (found.findings, found.deleted, found.compared) == ((), 2, 7)

    def test_streams_that_share_files_and_ids(self, room: Room) -> None:
        """And generations: none is taken for another's."""
        older = room.key._replace(generation="0000000000000000")
        entries = [f"{one}-0" for one in range(1, 10)]
        room.maker.batch({older: entries, key_of("nowhere"): entries})
        room.batch([10])
        room.maker.batch({key_of("nowhere"): ["10-0"]})
        list(compact(room.table, CompactionRules()))
        assert room.report() == VerifyReport(version=7, files=1, rows=29, findings=(), compared=10, proven=29)

    def test_files_within_each_other(self, room: Room) -> None:
        """One task had the first and the last part of a batch."""
        for numbers in ([10, 12], [11]):
            room.again(*numbers)
        commit_unchecked(room.table, None, [Range(room.key, EntryId(9, 0), EntryId(12, 0), 3)])
        found = room.report()
        assert (found.findings, found.compared) == ((), 12)

    def test_what_no_commit_has_a_digest_of_is_named_where_only_the_archive_has_it(self, room: Room) -> None:
        """An archive of an older version that is gone on with: digests begin with the newer one's batches."""
        files = write_files(room.table.root, rows_of(room.key, ["10-0"]))
        moved = BatchRanges("old", 0, (Range(room.key, EntryId(9, 0), EntryId(10, 0), 1),))
        room.table.commit(Batch(moved, files))
        found = room.report()
        assert (found.findings, found.proven, found.compared, found.unproven) == ((), 0, 10, 0)
        room.batch([11])
        room.gateway.trim(room.stream, minid="4-0")
        list(compact(room.table, CompactionRules()))
        room.table.checkpoint()
        for table in (room.table, ArchiveTable.open(room.table.root)):
            found = verify(table, {"g0": room.gateway}, deep=True)
            assert (found.findings, found.proven, found.compared, found.unproven) == ((), 1, 8, 3)

    def test_many_streams_are_asked_for_and_counted_at_once(self, tmp_path: Path, server: Server) -> None:
        """Not one after the other, each with a look through files that hold all of them."""
        link = CountingLink()
        names = [f"{tmp_path.name}-{number}" for number in range(200)]
        with GatewayClient(GatewayAccess("g0", server.url), transport=link) as gateway:
            entries = [{"id": "1-0", "fields": [["n", "1-0"], ["n", "1"]]}]
            gateway.post("/v1/publish", {"streams": dict.fromkeys(names, entries)})
            maker = Maker(tmp_path / "archive")
            seen = gateway.plan(PlanQuery(dict.fromkeys(names, "0-0"))).streams
            maker.batch({key_of(name, seen[name].generation): ["1-0"] for name in names})
            link.requests = 0
            found = verify(maker.table, {"g0": gateway})
        assert (found.findings, found.rows, link.requests) == ((), 200, 1)

    def test_a_stream_that_is_gone_leaves_its_archive(self, room: Room) -> None:
        room.gateway.delete_stream(room.stream)
        assert room.report().findings == ()


def test_entries_that_another_has_changed_are_found_where_only_the_archive_has_them(room: Room) -> None:
    """They are as many as before: their digest is another."""
    room.gateway.trim(room.stream, minid="7-0")
    old = room.table.files()[0]
    room.table.replace([old], write_files(room.table.root, rows_of(room.key, ["1-0", "2-0", "3-0"], b"2")))
    assert room.report(deep=False).findings == ()
    assert room.found() == ["its entries after 0-0 are not those that were committed"]


def drop_file(room: Room) -> None:
    room.table.root.delete(room.table.files()[1].path)


def cut_file(room: Room) -> None:
    path = Path(room.table.root.path(room.table.files()[1].path))
    path.write_bytes(path.read_bytes()[:-9])


def replace(room: Room, entry_ids: Sequence[str], value: bytes = b"1") -> None:
    """Another file in the place of the second."""
    path = room.table.root.path(room.table.files()[1].path)
    pq.write_table(complete(rows_of(room.key, entry_ids, value)).drop_columns(["date"]), path)


class TestDamage:
    @pytest.mark.parametrize(
        ("damage", "what"),
        [
            (drop_file, "is missing, and the table counts on it"),
            (cut_file, "bytes, not"),
            (lambda room: replace(room, ["4-0", "5-0", "6-0", "6-1"]), "bytes, not"),
            (lambda room: replace(room, ["4-0", "6-0"]), "bytes, not"),
            (
                lambda room: replace(room, ["4-0", "4-5", "6-0"]),
                "5-0 is in the gateway, and not in the archive",
            ),
            (lambda room: replace(room, ["4-0", "5-0", "6-0"], b"2"), "4-0 has other fields"),
        ],
    )
    def test_a_file_that_is_not_as_it_was(
        self, room: Room, damage: Callable[[Room], None], what: str
    ) -> None:
        """Missing, cut, with other entries or other bytes."""
        damage(room)
        assert any(what in one for one in room.found())

    def test_a_file_out_of_order(self, room: Room) -> None:
        """As another program might write it, and commit it."""
        rows = complete(rows_of(room.key, ["11-0", "10-0"])).drop_columns(["date"])
        file = write_file(room.table.root, room.table.files()[0].date, rows, 0)
        commit_files_unchecked(room.table, [file], [Range(room.key, EntryId(9, 0), EntryId(11, 0), 2)])
        assert any("out of order" in one for one in room.found())

    def test_a_batch_that_is_missing(self, room: Room) -> None:
        """As a gap in the ranges, and as entries that only the gateway has."""
        rows = rows_of(room.key, ["12-0"])
        commit_unchecked(room.table, rows, [Range(room.key, EntryId(11, 0), EntryId(12, 0), 1)])
        found = room.found()
        assert any("entries before 11-0 are in no batch" in one for one in found)
        assert any("2 are missing" in one for one in found)

    def test_fewer_entries_than_were_committed(self, room: Room) -> None:
        commit_unchecked(room.table, None, [Range(room.key, EntryId(9, 0), EntryId(9, 5), 1)])
        assert room.found()[0].startswith("10 entries were committed, the files hold 9; if another program")

    def test_entries_in_two_files(self, room: Room) -> None:
        """A long file shares one with the first and one with the last, and another is between."""
        room.again(2, 9)
        found = room.found()
        assert sum("1 of its entries are in" in one for one in found) == 2
        assert "9 entries were committed, the files hold 11" in found

    def test_entries_that_are_twice_in_one_file(self, room: Room) -> None:
        room.batch([10, 10])
        assert "1 of its entries are stored twice" in room.found()

    def test_entries_of_no_batch(self, room: Room) -> None:
        room.again(11)
        assert any("it holds 11-0 of" in one and "of no batch" in one for one in room.found())

    def test_an_archive_that_is_ahead_of_its_stream(self, room: Room) -> None:
        """The gateway was put back to an older state: its IDs may come again."""
        room.batch([10, 11, 12, 13])
        assert any("the stream only to 12-0" in one for one in room.found())

    @pytest.mark.parametrize("rest", [(), (10, 11), (10, 11, 12)])
    def test_a_stream_that_was_made_anew(self, room: Room, rest: Sequence[int]) -> None:
        """Before all of the old one was archived; else nothing is missing."""
        if rest:
            room.batch(rest)
        room.gateway.update_stream(room.stream, archived_up_to="9-0")
        room.gateway.delete_stream(room.stream)
        room.gateway.post("/v1/publish", {"streams": {room.stream: [{"id": "1-0", "fields": {"n": "1"}}]}})
        assert ["made anew" in one for one in room.found()] == [True] * (len(rest) < 3)

    def test_a_gateway_that_was_not_named(self, room: Room) -> None:
        found = verify(room.table, {})
        assert [finding.what for finding in found.findings] == [
            "no gateway was named g0: it was not compared"
        ]
