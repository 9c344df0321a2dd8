"""Places of checkpoints: this machine's folders, and other file systems that pyarrow knows.

Knows: how files are written and read there. Must never know: what they hold.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import fs

from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import OptionError
from tests.proof.machine import needs, no_strace
from tests.proof.tracing import calls, recording


def test_an_address_and_a_path_may_name_the_same_folder(tmp_path: Path) -> None:
    """Spark is given a scheme always, so that a cluster does not look on its own default file system."""
    path, address = StateFolder.of(str(tmp_path)), StateFolder.of(f"file://{tmp_path}")
    assert (
        (path.base, path.address) == (address.base, address.address) == (str(tmp_path), f"file://{tmp_path}")
    )
    assert path.is_local
    assert address.is_local


def test_a_relative_path_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert StateFolder.of("archive").base == str(tmp_path / "archive")


def test_spark_and_pyarrow_have_their_own_names_for_a_store() -> None:
    """Spark is given the one, pyarrow the other; nothing is asked of the store before it is used."""
    place = StateFolder.of("s3a://bucket/archive")
    assert isinstance(place.files, fs.S3FileSystem)
    assert (place.base, place.address) == ("bucket/archive", "s3a://bucket/archive")
    assert not place.is_local


def test_an_address_that_nobody_understands_is_named() -> None:
    with pytest.raises(OptionError, match=r"gopher://hole.*give a folder"):
        StateFolder.of("gopher://hole")


def test_an_unfinished_file_is_not_there(tmp_path: Path) -> None:
    """What was there before still is, and the next writer replaces it."""
    place = StateFolder.of(str(tmp_path))
    place.replace("a/b", b"before")
    (tmp_path / "a" / "b.tmp").write_bytes(b"after, but n")
    assert place.read("a/b") == b"before"
    place.replace("a/b", b"after")
    assert (place.read("a/b"), place.names("a")) == (b"after", ["b"])


@needs(no_strace)
def test_a_file_is_replaced_so_that_a_power_cut_leaves_it_whole(tmp_path: Path) -> None:
    """The disk has its content before it takes the name, and its folder afterwards."""
    trace, folder = tmp_path / "trace", tmp_path / "state"
    program = "import sys; from pyspark_weir.checkpoint import StateFolder as Folder; "
    program += "Folder.of(sys.argv[1]).replace('a/b', b'after')"
    command = [*recording(trace), sys.executable, "-c", program, str(folder)]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    seen = [call for call in calls(trace) if call.on(str(folder)) and call.result == 0]
    (renamed,) = [call for call in seen if call.name.startswith("rename")]
    synced = [call for call in seen if call.name == "fsync"]
    assert any(call.on("/a/b.tmp>") and call.ended < renamed.begun for call in synced)
    assert any(call.on("/a>") and call.begun > renamed.ended for call in synced)
