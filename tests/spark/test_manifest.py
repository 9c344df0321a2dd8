"""Manifests: read as they were written, or refused; there whole, or not there.

Knows: the stored bytes and the steps of a write. Must never know: Spark.
"""

from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from pyspark_weir import ids
from pyspark_weir.manifest import (
    ABOUT,
    FOLDER,
    Archive,
    File,
    Manifest,
    ManifestError,
    Progress,
    StreamKey,
    decode,
    encode,
    manifest_name,
    read_manifest,
    totals,
    write_manifest,
)
from pyspark_weir.place import UNFINISHED, Place
from tests.spark import archives

DAY: Final = 1_763_683_200_000  # 2025-11-21T00:00:00Z


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.of(str(tmp_path / "archive"))


def manifest(number: int = 4, rows: int = 2, **changes: Any) -> Manifest:
    """A small batch that agrees with itself."""
    named = {"shard": "g0", "stream": "orders", "generation": "aa"}
    file = File(
        **named,
        path="data/batch=0000000004/stream=orders/date=2025-11-21/part-0.parquet",
        date="2025-11-21",
        rows=rows,
        bytes=100,
        min="5-0",
        max="9-18446744073709551615",
    )
    moved = Progress(**named, after="4-0", upto="10-0", rows=rows, bytes=100, min=file.min, max=file.max)
    made = Manifest(
        v=1,
        kind="batch",
        number=number,
        archive=archives.ARCHIVE,
        at_ms=7,
        streams=(moved,),
        add=(file,),
        remove=(),
    )
    return msgspec.structs.replace(made, **changes)


class TestForm:
    def test_a_manifest_is_read_as_it_was_written(self) -> None:
        """Names with quotes, IDs of 64 bits and all."""
        written = manifest()
        assert decode(written.name, encode(written)) == written

    def test_it_is_json_that_others_can_read(self) -> None:
        """One object with the content and its checksum."""
        document = msgspec.json.decode(encode(manifest()))
        assert document["content"]["streams"][0]["upto"] == "10-0"
        assert document["checksum"].startswith("sha256:")

    @given(st.data())
    def test_a_torn_manifest_is_refused(self, data: st.DataObject) -> None:
        """Cut anywhere, it is an error, never a shorter archive. Only the line's end may be missing."""
        stored = encode(manifest())
        length = data.draw(st.integers(0, len(stored) - 2))
        with pytest.raises(ManifestError):
            decode(manifest().name, stored[:length])

    @given(st.data())
    def test_a_flipped_bit_is_found(self, data: st.DataObject) -> None:
        """Wherever it is, and also where the result is still JSON."""
        stored = bytearray(encode(manifest()))
        place = data.draw(st.integers(0, len(stored) - 2))
        stored[place] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(ManifestError):
            decode(manifest().name, bytes(stored))

    @given(st.data())
    def test_a_tail_of_zeros_is_refused(self, data: st.DataObject) -> None:
        """As some file systems leave after a power cut."""
        stored = encode(manifest())
        length = data.draw(st.integers(0, len(stored) - 2))
        with pytest.raises(ManifestError):
            decode(manifest().name, stored[:length] + bytes(len(stored) - length))

    def test_a_newer_version_is_named(self) -> None:
        """Better than guessing at members that mean something else by then."""
        newer = manifest(v=2)
        with pytest.raises(ManifestError, match="version 2, known here is 1: use a newer weir"):
            decode(newer.name, encode(newer))

    def test_a_manifest_under_another_name_is_refused(self) -> None:
        """Batch 4 in the place of batch 5 would hide one batch and show another twice."""
        with pytest.raises(ManifestError, match="somebody has moved it"):
            decode(manifest_name("batch", 5), encode(manifest()))

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"streams": ()}, "says nothing else"),
            ({"add": ()}, "has 2 rows, its files 0"),
            ({"remove": ("data/x",)}, "a batch removes nothing"),
            ({"streams": manifest().streams * 2}, "comes twice"),
            ({"add": (msgspec.structs.replace(manifest().add[0], path="data/../x"),)}, "outside of data/"),
            ({"add": (msgspec.structs.replace(manifest().add[0], path="/etc/x"),)}, "outside of data/"),
            ({"add": (msgspec.structs.replace(manifest().add[0], min="9-9", max="9-8"),)}, "back to"),
            ({"add": (msgspec.structs.replace(manifest().add[0], max="10-1"),)}, "beyond"),
            ({"add": (msgspec.structs.replace(manifest().add[0], min="4-0"),)}, "beyond"),
            ({"add": (msgspec.structs.replace(manifest().add[0], generation="bb"),)}, "of generation"),
            (
                {"streams": (msgspec.structs.replace(manifest().streams[0], upto="3-0"),), "add": ()},
                "went back",
            ),
            ({"streams": (msgspec.structs.replace(manifest().streams[0], upto="x"),)}, "no entry ID"),
        ],
    )
    def test_a_contradiction_is_refused(self, changes: dict[str, Any], why: str) -> None:
        """Its checksum is right: somebody wrote it so. Neither is such a one written."""
        wrong = manifest(**changes)
        with pytest.raises(ManifestError, match=why):
            decode(wrong.name, encode(wrong))

    def test_a_contradiction_is_not_written(self, place: Place) -> None:
        with pytest.raises(ManifestError, match="contradicts itself"):
            write_manifest(place, manifest(add=()))
        assert place.names(FOLDER) == []


class Dying(Place):
    """A place whose machine stops at the n-th step of writing."""

    steps = 0

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise InterruptedError("the machine stopped")

    def _sync(self, path: str) -> None:
        self._step()
        super()._sync(path)

    def _rename(self, name: str, to: str) -> None:
        self._step()
        super()._rename(name, to)
        self._step()


class PowerCut(Dying):
    """One whose power goes: what was not synced is empty afterwards."""

    def __init__(self, files: fs.FileSystem, base: str, address: str) -> None:
        super().__init__(files, base, address)
        self.written: set[str] = set()

    def _rename(self, name: str, to: str) -> None:
        # It goes by its new name, synced or not.
        if self.path(name) in self.written:
            self.written.add(self.path(to))
        super()._rename(name, to)

    def _output(self, name: str) -> AbstractContextManager[pa.NativeFile]:
        self.written.add(self.path(name))
        return super()._output(name)

    def _sync(self, path: str) -> None:
        super()._sync(path)
        self.written.discard(path)

    def cut(self) -> None:
        """The power goes."""
        for path in map(Path, self.written):
            if path.exists():
                path.write_bytes(b"")


class TestWriting:
    def test_a_manifest_that_is_there_survives_a_power_cut(self, tmp_path: Path) -> None:
        """It has its name only when the disk has its bytes."""
        archives.Maker(Place.of(str(tmp_path)))
        for steps in range(10):
            place = PowerCut.of(str(tmp_path))
            place.steps = steps
            with suppress(InterruptedError):
                write_manifest(place, manifest())
            place.cut()
            assert set(Archive.read(Place.of(str(tmp_path))).live) <= {manifest().add[0].path}
            (tmp_path / manifest().name).unlink(missing_ok=True)

    def test_a_manifest_is_there_whole_or_not_at_all(self, tmp_path: Path) -> None:
        """Stopped at each step in turn; what was there before is there still; the next try succeeds."""
        archives.Maker(Place.of(str(tmp_path))).batch({"orders": ["1-0"]})
        before = Archive.read(Place.of(str(tmp_path))).live
        seen = set()
        for steps in range(10):
            dying = Dying.of(str(tmp_path))
            dying.steps = steps
            try:
                write_manifest(dying, manifest())
            except InterruptedError:
                ended = False
            else:
                ended = True
            after = Archive.read(Place.of(str(tmp_path))).live
            assert after == before or set(after) - set(before) == {manifest().add[0].path}
            seen.add((ended, len(after) - len(before)))
            if not ended:
                (tmp_path / manifest().name).unlink(missing_ok=True)
        assert seen == {(False, 0), (False, 1), (True, 1)}, "both sides of the rename were tried"

    def test_an_unfinished_write_is_passed_over_and_replaced(self, place: Place) -> None:
        """What a dead writer left is neither read nor in the way."""
        archives.Maker(place)
        left = Path(place.path(manifest().name + UNFINISHED))
        left.write_bytes(encode(manifest())[:50])
        assert Archive.read(place).live == {}
        write_manifest(place, manifest())
        assert not left.exists()
        assert set(Archive.read(place).live) == {manifest().add[0].path}

    def test_the_same_manifest_may_be_written_again_and_no_other(self, place: Place) -> None:
        """Two writers on one archive are found before either is lost."""
        write_manifest(place, manifest())
        write_manifest(place, manifest())
        with pytest.raises(ManifestError, match="two writers share this archive"):
            write_manifest(place, manifest(at_ms=8))
        assert read_manifest(place, "batch", 4) == manifest()


class TestArchive:
    def test_only_manifests_say_which_files_count(self, place: Place) -> None:
        """Half a batch of a driver that died is no part of the archive."""
        batch = archives.Maker(place).batch({"orders": ["1-0", "2-0"]})
        pq.write_table(archives.table(["3-0"]), place.path("data/batch=0000000000/orphan.parquet"))
        assert set(Archive.read(place).live) == {batch.add[0].path}

    def test_a_compaction_replaces_files(self, place: Place) -> None:
        """Readers see the entries once, whichever manifest they read first."""
        maker = archives.Maker(place)
        old = [maker.batch({"orders": [f"{number}-0"]}).add[0] for number in range(1, 4)]
        new = msgspec.structs.replace(old[0], path="data/compact=0000000000/x.parquet", rows=3, max="3-0")
        compaction = manifest(
            kind="compaction", number=0, streams=(), add=(new,), remove=tuple(file.path for file in old)
        )
        write_manifest(place, compaction)
        archive = Archive.read(place)
        assert archive.files() == [new]
        assert archive.next_compaction() == 1
        assert archive.states[StreamKey("g0", "orders")].upto == "3-0"

    def test_a_compaction_without_its_batch_is_refused(self, place: Place) -> None:
        """A lost manifest must not look like an empty one."""
        maker = archives.Maker(place)
        batch = maker.batch({"orders": ["1-0"]})
        compaction = manifest(kind="compaction", number=0, streams=(), add=(), remove=(batch.add[0].path,))
        write_manifest(place, compaction)
        Path(place.path(batch.name)).unlink()
        with pytest.raises(ManifestError, match="one is missing"):
            Archive.read(place)

    def test_files_are_found_by_stream_and_range(self, place: Place) -> None:
        """Ranges are half open, as everywhere."""
        maker = archives.Maker(place)
        maker.batch({"a": ["1-0", "2-0"], "b": ["1-0"]})
        maker.batch({"a": ["3-0", f"{DAY}-0", f"{DAY + 86_400_000}-0"]})
        archive = Archive.read(place)
        key = StreamKey("g0", "a")
        assert [file.max for file in archive.files([key], after="2-0")] == [
            "3-0",
            f"{DAY}-0",
            f"{DAY + 86_400_000}-0",
        ]
        assert [file.min for file in archive.files([key], end="3-0")] == ["1-0", "3-0"]
        assert archive.files(generation="zz") == []
        assert totals(archive.live.values())[key][0] == 5

    def test_a_place_without_an_archive_says_so(self, place: Place) -> None:
        with pytest.raises(ManifestError, match=f"there is no {ABOUT}"):
            Archive.read(place)

    def test_manifests_of_another_archive_are_refused(self, place: Place) -> None:
        """Two archives copied into one folder would show each other's entries."""
        archives.Maker(place)
        write_manifest(place, manifest(archive="another"))
        with pytest.raises(ManifestError, match="two archives were mixed"):
            Archive.read(place)

    @given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(len), min_size=1, max_size=6))
    def test_the_state_of_a_stream_is_its_last_batch(self, sizes: list[int]) -> None:
        """Whatever the order in which manifests are listed."""
        manifests, after = [], 0
        for number, size in enumerate(sizes):
            end = after + size
            moved = msgspec.structs.replace(
                manifest().streams[0],
                after=f"{after}-0",
                upto=f"{end}-0",
                rows=0,
                bytes=0,
            )
            manifests.append(manifest(number=number, streams=(moved,), add=()))
            after = end
        archive = Archive(archives.ABOUT, reversed(manifests))
        assert archive.states[StreamKey("g0", "orders")].upto == f"{sum(sizes)}-0"
        assert ids.parse(archive.batches[0].streams[0].after) == ids.ZERO
