"""Places of checkpoints: this machine's folders, and other file systems that pyarrow knows.

Knows: how files are written and read there. Must never know: what they hold.
"""

from pathlib import Path

import pytest
from pyarrow import fs

from pyspark_weir.errors import OptionError
from pyspark_weir.place import Place


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
