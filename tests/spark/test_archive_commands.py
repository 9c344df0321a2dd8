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
from pyspark_weir.delta import check_root
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
    def test_a_root_of_another_query_is_refused_before_spark_starts(
        self, server: Server, place: Place, tmp_path: Path
    ) -> None:
        """The archive is one of a query whose checkpoint this is not."""
        new = str(tmp_path / "new")
        found = weir("archive", place.base, "--checkpoint", new, "--gateway", server.url, "--streams", "a")
        assert found.exit_code == 2
        assert "give its checkpoint, or another root" in found.stderr

    @pytest.mark.parametrize("root", ["s3a://bucket/archive", "hdfs://name/archive", "gs://bucket/a"])
    def test_a_delta_table_is_kept_on_this_machine_alone(self, tmp_path: Path, root: str) -> None:
        """Refused before Spark starts, and before anything is looked for at that address."""
        words = ("--checkpoint", str(tmp_path / "c"), "--streams", "a", "--format", "delta")
        found = weir("archive", root, *words)
        assert found.exit_code == 2, found.stderr
        assert f"{root}: a Delta table is kept in folders of this machine only" in found.stderr
        assert "--format parquet" in found.stderr
        assert not list(tmp_path.iterdir())
        assert SparkSession.getActiveSession() is None

    @pytest.mark.parametrize("root", ["archive", "file:///tmp/archive"])
    def test_folders_of_this_machine_may_hold_one(self, root: str) -> None:
        """Whichever way they are written."""
        check_root(root)

    def test_streams_must_be_named(self, tmp_path: Path) -> None:
        """Before anything is opened, with the way to name them."""
        found = weir("archive", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c"))
        assert found.exit_code == 2
        assert "--streams a,b" in found.stderr
