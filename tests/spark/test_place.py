"""Places of archives: this machine's folders, and other file systems that pyarrow knows.

Knows: how files are written and read there. Must never know: manifests' form.
"""

from pathlib import Path

import pytest
from pyarrow import fs

from pyspark_weir.errors import OptionError
from pyspark_weir.jobs.compact import Rules, compact
from pyspark_weir.manifest import Archive
from pyspark_weir.place import Place
from tests.spark import archives


def elsewhere(folder: Path) -> Place:
    """A file system that is not this machine's, as far as anybody can see."""
    return Place(
        fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "bucket/archive", "s3a://bucket/archive"
    )


def test_an_archive_may_lie_elsewhere(tmp_path: Path) -> None:
    """It is written, read and compacted by the same calls; only nothing is synced from here."""
    place = elsewhere(tmp_path)
    maker = archives.Maker(place)
    for number in range(3):
        maker.batch({"a": [f"{number + 1}-0"]})
    assert not place.is_local
    assert [file.min for file in Archive.read(place).files()] == ["1-0", "2-0", "3-0"]
    rules = Rules(grace_ms=600_000)
    list(compact(place, rules, now_ms=1_000_000))
    assert [(file.min, file.max) for file in Archive.read(place).files()] == [("1-0", "3-0")]
    list(compact(place, rules, now_ms=1_000_001 + rules.grace_ms))
    assert {path for path, _size in place.below("data")} == set(Archive.read(place).live)


def test_an_address_and_a_path_may_name_the_same_folder(tmp_path: Path) -> None:
    """Spark is given a scheme always, so that a cluster does not look on its own default file system."""
    path, address = Place.of(str(tmp_path)), Place.of(f"file://{tmp_path}")
    assert (
        (path.base, path.address) == (address.base, address.address) == (str(tmp_path), f"file://{tmp_path}")
    )
    assert path.is_local
    assert address.is_local


def test_a_relative_path_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Place.of("archive").base == str(tmp_path / "archive")


def test_spark_and_pyarrow_have_their_own_names_for_a_store() -> None:
    """Spark is given the one, pyarrow the other; nothing is asked of the store before it is used."""
    place = Place.of("s3a://bucket/archive?region=eu-central-1")
    assert isinstance(place.files, fs.S3FileSystem)
    assert (place.base, place.address) == ("bucket/archive", "s3a://bucket/archive")
    assert not place.is_local


def test_an_address_that_nobody_understands_is_named() -> None:
    with pytest.raises(OptionError, match=r"gopher://hole.*give a folder"):
        Place.of("gopher://hole")


def test_an_unfinished_file_is_not_there(tmp_path: Path) -> None:
    """Whatever ends its writing: what was in its place before still is."""
    place = Place.of(str(tmp_path))
    place.write("a/b", b"before")

    def die() -> None:
        with place.writing("a/b") as file:
            file.write(b"after, but n")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        die()
    assert place.read("a/b") == b"before"
    assert place.names("a") == ["b", "b.tmp"]


def test_deleting_takes_what_hadoop_keeps_beside(tmp_path: Path) -> None:
    """Then empty folders go too, up to the root; what is missing already is no error."""
    place = Place.of(str(tmp_path / "root"))
    place.write("data/x=1/y=2/part", b"1")
    place.write("data/x=1/y=2/.part.crc", b"2")
    place.write("data/x=2/part", b"3")
    place.delete("data/x=1/y=2/part")
    place.delete("data/x=1/y=2/part")
    place.prune(["data/x=1/y=2", "data/x=9/gone"])
    assert [path for path, _size in place.below("")] == ["data/x=2/part"]
    assert not (tmp_path / "root" / "data" / "x=1").exists()
    assert (place.read("data/x=2/none"), place.size("data/x=2/none"), place.names("nowhere")) == (
        None,
        None,
        [],
    )
