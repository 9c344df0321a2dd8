"""What `weir-spark trim`, `verify` and `compact` say and answer, and what `archive` refuses before Spark.

Knows: the commands as they are typed. Must never know: how an archive is read.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from pyspark_weir import gateway as calls
from pyspark_weir.cli.main import jobs
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.manifest import Archive
from pyspark_weir.place import Place
from tests.server import Server
from tests.spark import archives


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("gateway") / "weir-data") as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, server: Server) -> Place:
    """Five entries of a stream, archived in two batches of two."""
    stream = tmp_path.name
    place = Place.of(str(tmp_path / "archive"))
    entries: list[dict[str, object]] = [
        {"id": f"{number}-0", "fields": [["n", "1"]]} for number in range(1, 6)
    ]
    with Gateway(Access("g0", server.url)) as gateway:
        calls.publish(gateway, {stream: entries})
        seen = calls.archived_up_to(gateway, stream, "4-0")
    maker = archives.Maker(place)
    for first in (1, 3):
        maker.batch({stream: [f"{first}-0", f"{first + 1}-0"]}, generation=seen["generation"])
    return place


def weir(*arguments: str) -> Result:
    return CliRunner().invoke(jobs, arguments)


class TestTrim:
    def test_it_shows_and_removes_nothing_unless_told(self, server: Server, place: Place) -> None:
        """A dry run is the default; --yes does what it said."""
        shown = weir("trim", place.base, "--gateway", server.url)
        assert shown.exit_code == 0
        assert "would remove 4" in shown.stdout
        assert "nothing was removed; --yes does it" in shown.stderr
        (row,) = map(
            json.loads, weir("trim", place.base, "--gateway", server.url, "--json").stdout.splitlines()
        )
        assert (row["entries"], row["removed"], row["upto"], row["refused"]) == (4, 0, "4-0", None)
        done = weir("trim", place.base, "--gateway", server.url, "--yes")
        assert "removed 4" in done.stdout
        assert "nothing to remove" in weir("trim", place.base, "--gateway", server.url).stdout

    def test_what_is_refused_fails(self, server: Server, place: Place) -> None:
        """With the reason beside the stream, and exit code 1."""
        place.delete(Archive.read(place).files()[0].path)
        refused = weir("trim", place.base, "--gateway", server.url, "--yes")
        assert refused.exit_code == 1
        assert "is missing" in refused.stdout


class TestVerify:
    def test_a_good_archive_is_told_in_one_line(self, server: Server, place: Place) -> None:
        found = weir("verify", place.base, "--gateway", server.url, "--deep")
        assert found.exit_code == 0
        assert (
            "4 entries in 2 files of 2 batches, 4 compared with the gateway's: nothing is wrong"
            in found.stderr
        )

    def test_a_finding_fails(self, server: Server, place: Place) -> None:
        """Each on a line, with the file that it is about."""
        victim = Archive.read(place).files()[0].path
        place.delete(victim)
        found = weir("verify", place.base, "--gateway", server.url)
        assert found.exit_code == 1
        assert victim in found.stdout
        assert "the file is missing" in found.stdout
        (report,) = map(
            json.loads, weir("verify", place.base, "--gateway", server.url, "--json").stdout.splitlines()
        )
        assert report["findings"][0]["about"] == victim

    def test_a_folder_without_an_archive_is_named(self, tmp_path: Path, server: Server) -> None:
        found = weir("verify", str(tmp_path), "--gateway", server.url)
        assert found.exit_code == 1
        assert "holds no archive" in found.stderr


class TestCompact:
    def test_it_shows_joins_and_deletes(self, place: Place) -> None:
        """A dry run changes nothing."""
        assert " 2 " in weir("compact", place.base, "--dry-run").stdout
        assert len(Archive.read(place).files()) == 2
        done = weir("compact", place.base, "--grace", "0")
        assert done.exit_code == 0
        assert "2 files joined, 2 replaced ones deleted" in done.stderr
        assert len(Archive.read(place).files()) == 1

    def test_steps_are_told_to_programs(self, place: Place) -> None:
        lines = weir("compact", place.base, "--json").stdout.splitlines()
        assert [json.loads(line)["what"] for line in lines] == ["wrote", "counts"]


class TestArchive:
    def test_a_checkpoint_without_its_archive_is_refused_before_spark_starts(
        self, server: Server, tmp_path: Path
    ) -> None:
        """What it has archived would be missing."""
        for name in ("offsets", "commits"):
            (tmp_path / "c" / name).mkdir(parents=True)
        (tmp_path / "c/commits/0").write_text("v1\n{}")
        words = ("--checkpoint", str(tmp_path / "c"), "--gateway", server.url, "--streams", "a")
        found = weir("archive", str(tmp_path / "new"), *words)
        assert found.exit_code == 1
        assert "has archived before" in found.stderr
        assert SparkSession.getActiveSession() is None

    @pytest.mark.parametrize("root", ["hdfs://name/archive", "gs://bucket/a", "s3:/bucket"])
    def test_a_place_that_an_archive_cannot_have_is_refused(self, tmp_path: Path, root: str) -> None:
        """Nothing is written here instead."""
        found = weir("archive", root, "--checkpoint", str(tmp_path / "c"), "--streams", "a")
        assert found.exit_code == 2, found.stderr
        assert root in found.stderr
        assert not list(tmp_path.iterdir())

    def test_streams_must_be_named(self, tmp_path: Path) -> None:
        """Before anything is opened, with the way to name them."""
        found = weir("archive", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c"))
        assert found.exit_code == 2
        assert "--streams a,b" in found.stderr
