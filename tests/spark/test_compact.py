"""Compaction: the same entries in fewer files, whenever it is stopped.

Knows: archives made without Spark. Must never know: gateways.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir import ids
from pyspark_weir.errors import OptionError
from pyspark_weir.jobs.compact import Rules, Step, bins, compact
from pyspark_weir.manifest import Archive, File, ManifestError, encode, read_manifest
from pyspark_weir.parquet import dataset
from pyspark_weir.place import Place
from tests.spark import archives

DAY: Final = 1_763_683_200_000
NEXT_DAY: Final = DAY + 86_400_000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.of(str(tmp_path / "archive"))


def file(number: int, size: int, *, first: int | None = None, last: int | None = None) -> File:
    """A file that is named, and nowhere."""
    return File(
        path=f"data/{number}",
        shard="g0",
        stream="a",
        generation="aa",
        date="2025-11-21",
        rows=1,
        bytes=size,
        min=f"{number if first is None else first}-0",
        max=f"{number if last is None else last}-0",
    )


class Elsewhere(Place):
    """A place without locks, as those are that other machines reach, too."""

    @property
    def is_local(self) -> bool:
        return False


class TestBins:
    def test_neighbours_are_joined_up_to_the_target(self) -> None:
        """As many as fit; a file that stays alone is left as it is."""
        files = [file(number, size) for number, size in enumerate([40, 40, 40, 100, 10, 20, 130], start=1)]
        assert [[one.path for one in found.files] for found in bins(files, 128)] == [
            ["data/1", "data/2", "data/3"],
            ["data/4", "data/5"],
        ]

    def test_streams_days_and_generations_stay_apart(self) -> None:
        """Each is a folder, or another stream of the same name."""
        one = file(1, 10)
        others = [
            msgspec.structs.replace(one, path="b", stream="b"),
            msgspec.structs.replace(one, path="c", date="2025-11-22"),
            msgspec.structs.replace(one, path="d", generation="bb"),
            msgspec.structs.replace(one, path="e", date=None),
            msgspec.structs.replace(one, path="f", shard="g1"),
        ]
        assert bins([one, *others], 128) == []

    def test_files_that_share_ids_are_joined_whatever_they_weigh(self) -> None:
        """Else the new files would overlap as the old ones did."""
        files = [file(1, 100, first=1, last=9), file(2, 100, first=5, last=6), file(3, 100, first=10)]
        assert [len(one.files) for one in bins(files, 128)] == [2]

    @given(st.lists(st.integers(1, 200), max_size=40), st.integers(1, 300))
    def test_no_file_comes_twice_and_no_range_is_torn(self, sizes: Sequence[int], target: int) -> None:
        """Sets of at least two, in order, within the target; two that follow each other would exceed it."""
        files = [file(number, size) for number, size in enumerate(sizes, start=1)]
        found = bins(files, target)
        paths = [one.path for joined in found for one in joined.files]
        assert len(set(paths)) == len(paths)
        for joined in found:
            assert len(joined.files) > 1
            assert joined.bytes <= target
            numbers = [int(ids.parse(one.min).ms) for one in joined.files]
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            following = numbers[-1]
            if following < len(files):
                assert joined.bytes + files[following].bytes > target


def filled(place: Place) -> archives.Maker:
    """Six batches of two streams over two days."""
    maker = archives.Maker(place)
    for number in range(6):
        start = (DAY if number < 4 else NEXT_DAY) + 10 * number
        maker.batch({stream: [f"{start + one}-{one}" for one in range(5)] for stream in ("a", "b%:")})
    return maker


def entries(place: Place) -> list[tuple[str, str]]:
    """All that readers see, in the order in which files are listed."""
    found = dataset(place, Archive.read(place).files()).to_table(columns=["stream", "id"])
    return list(zip(found["stream"].to_pylist(), found["id"].to_pylist(), strict=True))


class TestCompacting:
    def test_readers_see_the_same_entries_in_fewer_files(self, place: Place) -> None:
        """Two files per stream, one per day, each in order; with no grace the old ones are gone at once."""
        filled(place)
        before = entries(place)
        steps = list(compact(place, Rules(), now_ms=100_000))
        assert [step.what for step in steps] == ["wrote"] * 4 + ["counts", "deleted"]
        assert entries(place) == before
        assert [one.rows for one in Archive.read(place).files()] == [20, 10, 20, 10]
        assert [path for path, _size in place.below("data") if "batch=" in path] == []
        assert not Path(place.path("data/batch=0000000000")).exists(), "empty folders go too"

    def test_stopped_after_any_step_nothing_is_lost_or_double(self, tmp_path: Path) -> None:
        """And the next run ends what was begun, with nothing left over."""
        number_of_steps = 6
        for stop in range(1, number_of_steps + 1):
            place = Place.of(str(tmp_path / str(stop)))
            filled(place)
            before = entries(place)
            run = compact(place, Rules(), now_ms=100_000)
            for _ in range(stop):
                next(run)
            run.close()
            assert entries(place) == before
            list(compact(place, Rules(), now_ms=200_000))
            assert entries(place) == before
            assert {path for path, _size in place.below("data")} == set(Archive.read(place).live)

    def test_a_half_written_file_is_cleared_away(self, place: Place) -> None:
        """Its name would have been used by nobody."""
        filled(place)
        left = Path(
            place.path("data/compact=0000000000/stream=a/date=2025-11-21/part-00009.zstd.parquet.tmp")
        )
        left.parent.mkdir(parents=True)
        left.write_bytes(b"PAR1 half")
        list(compact(place, Rules(), now_ms=100_000))
        assert not left.exists()

    def test_old_files_stay_for_the_time_of_grace(self, place: Place) -> None:
        """Whoever listed them before may still read them; the first run after it deletes them."""
        filled(place)
        old = [one.path for one in Archive.read(place).files()]
        rules = Rules(grace_ms=60_000)
        assert "deleted" not in [step.what for step in compact(place, rules, now_ms=100_000)]
        assert all(place.size(path) for path in old)
        assert list(compact(place, rules, now_ms=159_999)) == []
        assert [step.what for step in compact(place, rules, now_ms=160_000)] == ["deleted"]
        assert not any(place.size(path) for path in old)

    def test_a_second_run_finds_nothing_to_do(self, place: Place) -> None:
        filled(place)
        list(compact(place, Rules(), now_ms=100_000))
        assert list(compact(place, Rules(), now_ms=100_000)) == []

    def test_what_a_later_batch_brings_is_joined_again(self, place: Place) -> None:
        """The number goes on, and a compaction may replace what another one made."""
        maker = filled(place)
        list(compact(place, Rules(), now_ms=100_000))
        maker.batch({"a": [f"{NEXT_DAY + 1_000}-0"]})
        before = entries(place)
        steps = list(compact(place, Rules(), now_ms=100_000))
        assert [step.what for step in steps] == ["wrote", "counts", "deleted"]
        assert entries(place) == before
        assert Archive.read(place).compactions[-1].number == 1

    def test_a_damaged_file_stops_it_before_anything_counts(self, place: Place) -> None:
        """What cannot be read is not replaced."""
        filled(place)
        victim = Archive.read(place).files()[0]
        pq.write_table(archives.table(["1-1"]), place.path(victim.path))
        with pytest.raises(ManifestError, match="run verify"):
            list(compact(place, Rules(), now_ms=100_000))
        assert Archive.read(place).compactions == ()

    def test_files_that_share_ids_are_merged_in_order(self, place: Place) -> None:
        """IDs beyond a bigint included, which are null in the number columns."""
        maker = archives.Maker(place)
        maker.batch({"a": ["5-0", "5-2", "5-10"]})
        maker.upto["a"] = "0-0"
        maker.batch({"a": ["5-1", "5-9", "6-18446744073709551615"]})
        list(compact(place, Rules(), now_ms=1))
        assert [one for _stream, one in entries(place)] == [
            "5-0",
            "5-1",
            "5-2",
            "5-9",
            "5-10",
            "6-18446744073709551615",
        ]

    def test_an_entry_that_was_archived_twice_is_kept_once(self, place: Place) -> None:
        """Its stream was put back to before, and read again."""
        maker = archives.Maker(place)
        maker.batch({"a": [f"{one}-0" for one in range(1, 10)]})
        maker.upto["a"] = "0-0"
        maker.batch({"a": ["1-0", "2-0", "2-5"]})
        list(compact(place, Rules(), now_ms=1))
        later = [f"{one}-0" for one in range(3, 10)]
        assert [one for _stream, one in entries(place)] == ["1-0", "2-0", "2-5", *later]

    def test_two_entries_of_one_id_stop_it(self, place: Place) -> None:
        """Which of them is right, nobody knows."""
        maker = archives.Maker(place)
        maker.batch({"a": ["1-0", "2-0"]})
        (other,) = maker.batch({"a": ["3-0"]}).add
        path = place.path(other.path)
        pq.write_table(archives.table(["2-0"], b"other"), path, compression="zstd")
        listed = read_manifest(place, "batch", 1)
        assert listed is not None
        size = place.size(other.path) or 0
        file_ = msgspec.structs.replace(other, min="2-0", max="2-0", bytes=size)
        moved = msgspec.structs.replace(listed.streams[0], after="0-0", min="2-0", max="2-0", bytes=size)
        Path(place.path(listed.name)).write_bytes(
            encode(msgspec.structs.replace(listed, add=(file_,), streams=(moved,)))
        )
        with pytest.raises(ManifestError, match="out of order"):
            list(compact(place, Rules(), now_ms=1))
        assert Archive.read(place).compactions == ()

    def test_two_compactions_at_once_are_refused(self, place: Place) -> None:
        """Both would join the same files, and the entries would be there twice."""
        filled(place)
        first = compact(place, Rules(), now_ms=1)
        assert isinstance(next(first), Step)
        with pytest.raises(OptionError, match="another compaction runs"):
            next(compact(place, Rules(), now_ms=1))
        first.close()
        assert next(compact(place, Rules(), now_ms=1)).what == "wrote"


class TestWithoutALock:
    """Where an archive lies elsewhere, nothing keeps a second compaction away."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Elsewhere.of(str(tmp_path / "archive"))

    def test_one_that_begins_beside_another_leaves_its_files(self, place: Place) -> None:
        """It has the same number, and dies; all that the other one's manifest names is there."""
        filled(place)
        before = entries(place)
        rules = Rules(grace_ms=600_000)
        first = compact(place, rules, now_ms=100_000)
        assert [next(first).what for _ in range(3)] == ["wrote"] * 3
        second = compact(place, rules, now_ms=100_001)
        next(second)
        second.close()
        assert [step.what for step in first] == ["wrote", "counts"]
        assert [step.what for step in compact(place, rules, now_ms=700_000)] == ["deleted"]
        assert entries(place) == before

    def test_the_second_of_two_manifests_is_refused(self, place: Place) -> None:
        """Both would replace the same files."""
        filled(place)
        before = entries(place)
        rules = Rules(grace_ms=600_000)
        first, second = (compact(place, rules, now_ms=now_ms) for now_ms in (100_000, 100_001))
        next(first)
        next(second)
        assert [step.what for step in first][-1] == "counts"
        with pytest.raises(ManifestError, match="two writers share this archive"):
            list(second)
        assert entries(place) == before

    @pytest.mark.parametrize("what", ["gone", "cut"])
    def test_a_new_file_that_is_not_there_any_more_does_not_count(self, place: Place, what: str) -> None:
        """Whoever took it away: the old files would be deleted for it."""
        filled(place)
        before = entries(place)
        run = compact(place, Rules(grace_ms=600_000), now_ms=100_000)
        written = Path(place.path(next(run).paths[0]))
        if what == "gone":
            written.unlink()
        else:
            written.write_bytes(written.read_bytes()[:-1])
        with pytest.raises(ManifestError, match="nothing was changed"):
            list(run)
        assert Archive.read(place).compactions == ()
        assert entries(place) == before

    def test_old_files_have_to_stay_for_a_while(self, place: Place) -> None:
        """Two manifests that come in the same moment settle before anything is deleted."""
        filled(place)
        with pytest.raises(OptionError, match="--grace 10m"):
            next(compact(place, Rules(grace_ms=599_999), now_ms=1))
