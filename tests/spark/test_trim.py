"""Trims: as far as all allow, and nothing that the archive does not surely hold.

Knows: a real gateway, and archives made without Spark. Must never know: how an archive is written.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.gateway import GatewayClient, of_group, of_stream
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.trim import (
    Bound,
    TrimProposal,
    TrimResult,
    TrimRules,
    age_bound,
    count_bound,
    group_bound,
    lowest,
    plan,
    run,
)
from pyspark_weir.table.deletions import known_upto, read, version
from pyspark_weir.table.ranges import Range
from pyspark_weir.table.table import ArchiveTable
from tests.spark.table.making import Maker, commit_unchecked, key_of, rows_of

entry_ids = st.builds(EntryId, st.integers(0, ids.HALF_MAX), st.integers(0, ids.HALF_MAX))


class TestBounds:
    def test_a_group_keeps_what_it_has_not_acknowledged(self) -> None:
        """The oldest pending entry stays, the one before it may go, also after later deliveries."""
        assert group_bound("g", "9-0", "5-0").upto == EntryId(4, ids.HALF_MAX)

    def test_a_group_without_pending_entries_keeps_what_it_has_not_read(self) -> None:
        assert group_bound("g", "9-3", None).upto == EntryId(9, 3)

    def test_a_group_that_was_set_back_keeps_what_it_will_read_again(self) -> None:
        """Though entries after that are pending still."""
        assert group_bound("g", "2-0", "5-0").upto == EntryId(2, 0)

    def test_a_group_that_has_read_nothing_keeps_all(self) -> None:
        assert group_bound("g", "0-0", None).upto == ids.ZERO

    def test_age_keeps_the_whole_millisecond(self) -> None:
        """What is exactly as old as asked for stays."""
        assert age_bound(10_000, 4_000).upto == EntryId(5_999, ids.HALF_MAX)
        assert age_bound(10_000, 20_000).upto == ids.ZERO

    def test_the_first_of_the_last_stays(self) -> None:
        assert count_bound("7-0").upto == EntryId(6, ids.HALF_MAX)

    @given(st.lists(entry_ids, min_size=1))
    def test_the_lowest_bound_holds(self, allowed: Sequence[EntryId]) -> None:
        """And the ID from which a trim keeps is the next one after it: no more goes, and no less."""
        bound = lowest(Bound(one, str(one)) for one in allowed)
        assert bound.upto == min(allowed)
        if bound.upto < ids.LAST:
            minid = TrimProposal(key_of("a"), str(bound.upto), bound.why).minid
            assert ids.parse(minid) > bound.upto
            assert ids.previous_id(ids.parse(minid)) == bound.upto


def _fields(entry_id: str) -> list[list[str]]:
    """As the archive's maker has them."""
    return [["n", entry_id], ["n", "1"]]


class Room:
    """A stream of ten entries, `1-0` to `10-0`, of which an archive holds some."""

    def __init__(self, root: Path, gateway: GatewayClient, stream: str) -> None:
        self.gateway = gateway
        self.stream = stream
        self.maker = Maker(root)
        self.table = self.maker.table
        entries: list[dict[str, object]] = [
            {"id": f"{number}-0", "fields": _fields(f"{number}-0")} for number in range(1, 11)
        ]
        gateway.post("/v1/publish", {"streams": {stream: entries}})
        self.key = key_of(stream, self.generation)

    @property
    def generation(self) -> str:
        seen = self.gateway.stream(self.stream)
        assert seen is not None
        return str(seen["generation"])

    def archived(self, *batches: Sequence[int]) -> "Room":
        """Put entries into the archive, batch by batch."""
        for numbers in batches:
            self.maker.batch({self.key: [f"{number}-0" for number in numbers]})
        self.settled(str(self.table.positions()["g0", self.stream].upto))
        return self

    def settled(self, upto: str) -> None:
        """What the archive job reports to the gateway in the end."""
        self.gateway.update_stream(self.stream, archived_up_to=upto)

    def group(self, name: str, *, read: int, acknowledged: Sequence[int] = ()) -> None:
        """A group that has read this number of entries, and acknowledged some."""
        path = f"{of_stream(self.stream)}/groups"
        self.gateway.post(path, {"name": name, "start": "0"})
        if read:
            consumer = f"{of_group(self.stream, name)}/consumers/c/read"
            self.gateway.post(consumer, {"count": read})
        if acknowledged:
            acked = [f"{number}-0" for number in acknowledged]
            self.gateway.post(f"{of_group(self.stream, name)}/ack", {"ids": acked})

    def planned(self, rules: TrimRules = TrimRules(), now_ms: int = 1_000) -> TrimProposal:  # noqa: B008 - it is frozen
        """What a trim would do."""
        self.table.refresh()
        found = plan(self.table, {"g0": self.gateway}, rules, now_ms)
        return next(one for one in found if one.key.stream == self.stream)

    def trimmed(self, planned: TrimProposal) -> list[TrimResult]:
        """Do it."""
        return list(run(self.table, {"g0": self.gateway}, [planned]))

    def left(self) -> list[int]:
        """Which entries the gateway still has."""
        return list(self.gateway.page(self.stream, after="0-0").ms)


@pytest.fixture
def room(tmp_path: Path, gateway: GatewayClient) -> Room:
    return Room(tmp_path / "archive", gateway, tmp_path.name)


class TestPlanning:
    def test_without_groups_all_that_is_archived_may_go(self, room: Room) -> None:
        """Up to the last batch, and what came since stays."""
        found = room.archived([1, 2, 3], [4, 5, 6]).planned()
        assert (found.upto, found.minid, found.entries, found.archived) == ("6-0", "6-1", 6, 6)
        assert room.trimmed(found) == [TrimResult(found, deleted=6)]
        assert room.left() == [7, 8, 9, 10]

    def test_what_the_job_has_not_settled_stays(self, room: Room) -> None:
        """A driver that died after the commit reads that batch again when it is started."""
        room.archived([1, 2, 3], [4, 5, 6]).settled("3-0")
        found = room.planned()
        assert (found.upto, found.entries) == ("3-0", 3)
        assert "let it run once more" in found.why

    def test_files_may_lie_within_each_other(self, room: Room) -> None:
        """One task may have had the first and the last part of a batch, another what is between."""
        for numbers in ([1, 2, 5], [3, 4, 6]):
            commit_unchecked(room.table, rows_of(room.key, [f"{one}-0" for one in numbers]), [])
        commit_unchecked(room.table, None, [Range(room.key, ids.ZERO, EntryId(6, 0), 6)])
        room.settled("6-0")
        found = room.planned()
        assert (found.entries, found.archived, found.refused) == (6, 6, None)

    def test_what_another_program_has_optimized_may_go(self, room: Room) -> None:
        """Its files hold other streams' rows among ours, unsorted; no more goes than what they hold."""
        room.archived([1, 2, 3], [4, 5, 6])
        room.maker.batch({key_of("zz"): ["1-0", "9-0"]})
        DeltaTable(room.table.root.url).optimize.compact()
        found = room.planned()
        assert [file.is_ours for file in room.table.files()] == [False]
        assert (found.upto, found.entries, found.archived, found.refused) == ("6-0", 6, 6, None)
        assert room.trimmed(found) == [TrimResult(found, deleted=6)]
        assert room.left() == [7, 8, 9, 10]

    def test_what_is_committed_later_stays(self, room: Room) -> None:
        """A plan is that of one version."""
        table = ArchiveTable.open(room.archived([1, 2, 3]).table.root)
        room.archived([4, 5])
        (found,) = plan(table, {"g0": room.gateway}, TrimRules(), 1_000)
        assert found.upto == "3-0"

    def test_other_streams_in_a_file_are_not_counted(self, room: Room) -> None:
        """Entries of the same IDs, of another stream and of another generation."""
        other = room.key._replace(stream=f"{room.stream}-other")
        older = room.key._replace(generation="0000000000000000")
        room.maker.batch({older: ["1-0", "2-0"], other: ["1-0", "2-0", "3-0"]})
        found = room.archived([1, 2, 3, 4]).planned()
        assert (found.entries, found.archived) == (4, 4)

    def test_planning_changes_nothing(self, room: Room) -> None:
        room.archived([1, 2, 3]).planned()
        assert len(room.left()) == 10

    def test_the_slowest_group_decides(self, room: Room) -> None:
        """What it reads next and what it has still to acknowledge stay."""
        room.archived(range(1, 11))
        room.group("fast", read=10, acknowledged=range(1, 11))
        room.group("slow", read=6, acknowledged=[1, 2, 4])
        found = room.planned()
        assert found.upto == str(ids.previous_id(EntryId(3, 0)))
        assert "slow has still to acknowledge 3-0" in found.why
        room.trimmed(found)
        assert room.left() == [3, 4, 5, 6, 7, 8, 9, 10]

    def test_a_group_that_has_read_nothing_keeps_all(self, room: Room) -> None:
        room.archived(range(1, 11)).group("new", read=0)
        found = room.planned()
        assert (found.entries, room.trimmed(found)) == (0, [])

    def test_a_group_that_comes_after_the_plan_is_guarded_by_the_gateway(self, room: Room) -> None:
        """The trim is refused, and removes nothing."""
        found = room.archived(range(1, 11)).planned()
        room.group("late", read=2)
        assert found.entries == 10
        (outcome,) = room.trimmed(found)
        assert outcome.refused is not None
        assert "trim_guarded" in outcome.refused
        assert len(room.left()) == 10

    def test_young_entries_stay(self, room: Room) -> None:
        found = room.archived(range(1, 11)).planned(TrimRules(keep_ms=6), now_ms=12)
        assert (found.entries, found.why) == (5, "what comes after is younger than --keep")

    @pytest.mark.parametrize(("keep", "gone"), [(1, 9), (3, 7), (10, 0), (11, 0)])
    def test_the_last_entries_stay(self, room: Room, keep: int, gone: int) -> None:
        """Counted as they are when the trim is planned, deleted ones not at all."""
        found = room.archived(range(1, 11)).planned(TrimRules(keep_last=keep))
        assert found.entries == gone
        room.trimmed(found)
        assert len(room.left()) == 10 - gone

    def test_a_second_trim_finds_nothing(self, room: Room) -> None:
        room.archived([1, 2, 3])
        room.trimmed(room.planned())
        assert room.planned().entries == 0

    def test_it_goes_on_where_the_last_one_ended(self, room: Room) -> None:
        """The archive holds what the gateway no longer has; only the rest is compared."""
        room.archived([1, 2, 3])
        room.trimmed(room.planned())
        found = room.archived([4, 5]).planned()
        assert (found.entries, found.archived) == (2, 2)

    def test_a_boundary_within_a_file_counts_its_rows(self, room: Room) -> None:
        """The file is read where its edges do not say it."""
        room.archived(range(1, 11)).group("half", read=4, acknowledged=range(1, 5))
        found = room.planned()
        assert (found.upto, found.entries, found.archived) == ("4-0", 4, 4)

    def test_entries_deleted_since_are_no_obstacle(self, room: Room) -> None:
        """The archive holds more than the gateway; the trim records which, since later nothing shows it."""
        room.archived(range(1, 11))
        room.gateway.post(f"{of_stream(room.stream)}/entries/delete", {"ids": ["4-0", "5-0", "10-0"]})
        found = room.planned()
        assert (found.entries, found.archived, found.refused) == (7, 10, None)
        room.trimmed(found)
        assert sorted(row["id"] for row in read(room.table.root).to_pylist()) == ["10-0", "4-0", "5-0"]
        assert known_upto(room.table.root) == {room.key: EntryId(10, 0)}

    def test_what_was_trimmed_elsewhere_is_not_recorded_as_deleted(self, room: Room) -> None:
        room.archived(range(1, 11))
        room.gateway.trim(room.stream, minid="4-0")
        room.trimmed(room.planned())
        assert read(room.table.root).num_rows == 0
        assert known_upto(room.table.root) == {room.key: EntryId(10, 0)}

    def test_the_highest_id_of_all_stays(self, room: Room) -> None:
        """A trim names the lowest ID that stays, and there is none after it."""
        last = EntryId(ids.HALF_MAX, ids.HALF_MAX)
        room.gateway.post(
            "/v1/publish", {"streams": {room.stream: [{"id": str(last), "fields": {"n": "1"}}]}}
        )
        room.archived(range(1, 11))
        room.maker.batch({room.key: [str(last)]})
        room.settled(str(last))
        found = room.planned()
        assert (found.entries, found.why) == (10, "no ID comes after the last entry's")
        room.trimmed(found)
        assert room.left() == [ids.HALF_MAX]


def test_what_was_deleted_from_many_streams_is_recorded_at_once(
    tmp_path: Path, gateway: GatewayClient
) -> None:
    """A commit a stream would make each trim slower than the one before: the log of deletions only grows."""
    rooms = [Room(tmp_path / "archive", gateway, f"{tmp_path.name}-{number}") for number in range(20)]
    maker = rooms[0].maker
    maker.batch({room.key: ["1-0", "2-0", "3-0"] for room in rooms})
    for room in rooms:
        room.settled("3-0")
        gateway.post(f"{of_stream(room.stream)}/entries/delete", {"ids": ["2-0"]})
    planned = plan(maker.table, {"g0": gateway}, TrimRules(), 1_000)
    assert [done.deleted for done in run(maker.table, {"g0": gateway}, planned)] == [2] * len(rooms)
    # The table's creation, and this.
    assert version(maker.table.root) == 1
    assert known_upto(maker.table.root) == dict.fromkeys((room.key for room in rooms), EntryId(3, 0))
    assert read(maker.table.root).num_rows == len(rooms)


def test_thousands_of_streams_are_planned_in_several_calls(tmp_path: Path, gateway: GatewayClient) -> None:
    """The gateway takes a limited number at once."""
    maker = Maker(tmp_path / "archive")
    keys = [key_of(f"nowhere-{number}") for number in range(1_001)]
    maker.batch({key: [] for key in keys}, upto=dict.fromkeys(keys, "5-0"))
    found = plan(maker.table, {"g0": gateway}, TrimRules(), 0)
    assert len(found) == 1_001
    assert {one.why for one in found} == {"the gateway has no such stream"}


class TestRefusals:
    def test_an_entry_that_is_not_in_the_archive(self, room: Room) -> None:
        """The table says that all up to 6 was read; 5 is in no file."""
        found = room.archived([1, 2, 3], [4, 6]).planned()
        assert found.refused is not None
        assert "holds 6 entries up to 6-0, the archive 5" in found.refused
        assert room.trimmed(found) == []
        assert len(room.left()) == 10

    def test_an_entry_that_is_another_in_the_archive(self, room: Room) -> None:
        """Counts are no proof: the one that is trimmed would have been the only right one."""
        room.maker.batch({room.key: ["1-0", "2-0"]})
        room.maker.batch({room.key: ["3-0"]}, value=b"2")
        room.settled("3-0")
        found = room.planned()
        assert (found.entries, found.archived, found.refused) == (3, 3, None)
        (outcome,) = room.trimmed(found)
        assert outcome.refused == "3-0 has other fields in the archive than in the gateway: run verify --deep"
        assert len(room.left()) == 10
        assert version(room.table.root) is None

    def test_a_bit_that_has_changed_since_it_was_planned(self, room: Room) -> None:
        """What is about to be the only copy is read, whatever was seen before."""
        found = room.archived([1, 2, 3]).planned()
        path = Path(room.table.root.path(room.table.files()[0].path))
        whole = bytearray(path.read_bytes())
        # Within the dictionary of the first column.
        whole[40] ^= 1
        path.write_bytes(whole)
        (outcome,) = room.trimmed(found)
        assert "is damaged" in (outcome.refused or "")
        assert len(room.left()) == 10

    def test_a_file_that_is_missing(self, room: Room) -> None:
        room.archived([1, 2, 3])
        room.table.root.delete(room.table.files()[0].path)
        assert "is missing" in (room.planned().refused or "")

    def test_a_file_with_fewer_rows(self, room: Room) -> None:
        """Its footer is compared with the table before anything goes; so is its size."""
        room.archived([1, 2, 3])
        path = room.table.root.path(room.table.files()[0].path)
        rows = pq.read_table(path)
        pq.write_table(rows.slice(1), path)
        assert "bytes, not" in (room.planned().refused or "")

    def test_a_file_that_is_damaged_stops_its_streams_alone(self, room: Room) -> None:
        other = room.key._replace(stream=f"{room.stream}-sound")
        room.gateway.post("/v1/publish", {"streams": {other.stream: [{"id": "1-0", "fields": {"n": "1"}}]}})
        seen = room.gateway.stream(other.stream)
        assert seen is not None
        other = other._replace(generation=seen["generation"])
        room.maker.batch({other: ["1-0"]})
        room.gateway.update_stream(other.stream, archived_up_to="1-0")
        room.archived([1, 2, 3])
        (path,) = [file.path for file in room.table.files() if file.high.stream == room.stream]
        room.table.root.delete(path)
        found = plan(room.table, {"g0": room.gateway}, TrimRules(), 1_000)
        assert {one.key: one.refused is None for one in found} == {room.key: False, other: True}

    def test_ranges_with_a_gap(self, room: Room) -> None:
        """Then nothing is trimmed of any stream."""
        room.archived([1, 2, 3])
        later = Range(room.key, EntryId(5, 0), EntryId(6, 0), 1)
        commit_unchecked(room.table, rows_of(room.key, ["6-0"]), [later])
        with pytest.raises(ArchiveDamagedError, match="up to 5-0 are in no batch"):
            room.planned()

    def test_a_stream_that_was_made_anew(self, room: Room) -> None:
        """The archive's entries are those of another stream of that name."""
        room.archived([1, 2, 3])
        room.gateway.delete_stream(room.stream)
        assert room.planned().why == "the gateway has no such stream"
        room.gateway.post("/v1/publish", {"streams": {room.stream: [{"id": "1-0", "fields": {"n": "2"}}]}})
        found = room.planned()
        assert ("made anew" in found.why, found.entries, found.refused) == (True, 0, None)
        assert room.trimmed(found) == []
        assert room.left() == [1]

    def test_a_gateway_that_was_not_named(self, room: Room) -> None:
        room.archived([1])
        (found,) = plan(room.table, {}, TrimRules(), 0)
        assert "a gateway g0, and none was named so" in (found.refused or "")
