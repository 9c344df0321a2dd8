"""What the commands of archives say and answer, and what `archive` refuses before Spark.

Knows: the commands as they are typed. Must never know: how an archive is read.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pyspark_weir.cli.archives import ArchiveArguments, keep
from pyspark_weir.cli.main import jobs
from pyspark_weir.errors import ArchiveError
from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.table.table import ArchiveTable
from tests.server import Server
from tests.spark.table.making import Maker, key_of
from tests.waiting import completed


@pytest.fixture
def table(tmp_path: Path, server: Server) -> ArchiveTable:
    """Five entries of a stream, archived in two batches of two."""
    stream = tmp_path.name
    entries: list[dict[str, object]] = [
        {"id": f"{number}-0", "fields": [["n", f"{number}-0"], ["n", "1"]]} for number in range(1, 6)
    ]
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        gateway.post("/v1/publish", {"streams": {stream: entries}})
        seen = gateway.update_stream(stream, archived_up_to="4-0")
    maker = Maker(tmp_path / "archive")
    for first in (1, 3):
        maker.batch({key_of(stream, seen["generation"]): [f"{first}-0", f"{first + 1}-0"]})
    return maker.table


def weir(*arguments: str) -> Result:
    return CliRunner().invoke(jobs, arguments)


# Here a session may be left of other tests.
_WITHOUT_SPARK = """
from pyspark.sql import SparkSession
from pyspark_weir.__main__ import main
try:
    main()
finally:
    print(SparkSession.getActiveSession())
"""


def refused_before_spark(*arguments: str) -> str:
    """What the command says, on one line."""
    program = [sys.executable, "-c", _WITHOUT_SPARK, *arguments]
    ran = completed(program)
    assert (ran.returncode, ran.stdout) == (1, "None\n"), ran.stderr
    return " ".join(ran.stderr.split())


class TestTrim:
    def test_it_shows_and_removes_nothing_by_default(self, server: Server, table: ArchiveTable) -> None:
        """A dry run is the default; --yes does what it said."""
        words = ("trim", table.root.url, "--gateway", server.url)
        shown = weir(*words)
        assert shown.exit_code == 0
        assert "would remove 4" in shown.stdout
        assert "nothing was removed; --yes does it" in shown.stderr
        (row,) = map(json.loads, weir(*words, "--json").stdout.splitlines())
        assert (row["entries"], row["removed"], row["upto"], row["refused"]) == (4, 0, "4-0", None)
        assert "removed 4" in weir(*words, "--yes").stdout
        assert "nothing to remove" in weir(*words).stdout

    def test_what_is_young_is_kept(self, server: Server, table: ArchiveTable) -> None:
        """The entries are of 1970; 30,000 days ago was before that."""
        words = ("trim", table.root.url, "--gateway", server.url, "--keep")
        assert "nothing to remove" in weir(*words, "30000d").stdout
        assert "would remove 4" in weir(*words, "20000d").stdout

    def test_a_stream_of_which_nothing_is_archived_any_more_is_no_fault(
        self, server: Server, table: ArchiveTable, tmp_path: Path
    ) -> None:
        """Deleted, and then made anew: there is nothing to remove, and the reason stands beside it."""
        words = ("trim", table.root.url, "--gateway", server.url, "--yes")
        with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
            gateway.delete_stream(tmp_path.name)
            reasons = [weir(*words)]
            gateway.post("/v1/publish", {"streams": {tmp_path.name: [{"fields": {"n": "1"}}]}})
            reasons.append(weir(*words))
            assert gateway.stream(tmp_path.name) is not None
        for found, why in zip(reasons, ("no such stream", "made anew"), strict=True):
            assert (found.exit_code, why in found.stdout) == (0, True)
            assert "nothing to remove" in found.stdout or "removed 0" in found.stdout

    def test_what_is_refused_fails(self, server: Server, table: ArchiveTable) -> None:
        """With the reason beside the stream, and exit code 1."""
        table.root.delete(table.files()[0].path)
        refused = weir("trim", table.root.url, "--gateway", server.url, "--yes")
        assert refused.exit_code == 1
        assert "is missing" in refused.stdout


class TestVerify:
    def test_a_good_archive_is_one_line(self, server: Server, table: ArchiveTable) -> None:
        found = weir("verify", table.root.url, "--gateway", server.url, "--deep")
        assert found.exit_code == 0
        compared = "4 compared with their digests, 4 with the gateway's"
        assert f"4 entries in 2 files at version 2, {compared}: nothing is wrong" in found.stderr

    def test_a_finding_fails(self, server: Server, table: ArchiveTable) -> None:
        """Each on a line, with the file that it is about."""
        victim = table.files()[0].path
        table.root.delete(victim)
        words = ("verify", table.root.url, "--gateway", server.url)
        found = weir(*words)
        assert found.exit_code == 1
        assert victim in found.stdout
        assert "is missing" in found.stdout
        (report,) = map(json.loads, weir(*words, "--json").stdout.splitlines())
        assert report["findings"][0]["about"] == victim

    def test_a_folder_without_an_archive_is_named(self, tmp_path: Path, server: Server) -> None:
        found = weir("verify", str(tmp_path), "--gateway", server.url)
        assert found.exit_code == 1
        assert "holds no archive" in found.stderr


class TestCompact:
    def test_it_shows_and_merges(self, table: ArchiveTable) -> None:
        """A dry run changes nothing."""
        assert " 2 " in weir("compact", table.root.url, "--dry-run").stdout
        assert len(ArchiveTable.open(table.root).files()) == 2
        done = weir("compact", table.root.url)
        assert done.exit_code == 0
        assert "2 files merged into 1" in done.stderr
        assert len(ArchiveTable.open(table.root).files()) == 1

    def test_steps_are_lines_for_programs(self, table: ArchiveTable) -> None:
        lines = weir("compact", table.root.url, "--json").stdout.splitlines()
        assert [json.loads(line) for line in lines] == [{"date": "1970-01-01", "removed": 2, "added": 1}]


class TestVacuum:
    def test_it_shows_and_deletes(self, table: ArchiveTable) -> None:
        """A dry run changes nothing."""
        stray = Path(table.root.path("date=1970-01-01/stray.parquet"))
        stray.write_bytes(b"PAR1")
        os.utime(stray, (1, 1))
        shown = weir("vacuum", table.root.url, "--dry-run")
        assert "stray.parquet" in shown.stdout
        assert "1 files would be deleted" in shown.stderr
        assert stray.exists()
        assert "1 files deleted" in weir("vacuum", table.root.url).stderr
        assert not stray.exists()

    def test_a_disk_that_refuses_is_one_line(self, table: ArchiveTable) -> None:
        """So is one that is full, or a bucket that does not answer."""
        Path(table.root.path("_weir/lock")).mkdir(parents=True)
        found = weir("vacuum", table.root.url)
        assert (found.exit_code, found.exception.__class__) == (1, SystemExit)
        assert found.stderr.startswith("weir: WEIR_FAILED: ")
        assert found.stderr.endswith(f"Is a directory: '{table.root.url}/_weir/lock'\n")
        assert found.stderr.count("\n") == 1

    def test_a_log_that_cannot_be_read_is_one_line(self, table: ArchiveTable) -> None:
        """As of a later version of Delta."""
        later = {"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}
        path = Path(table.root.path(f"_delta_log/{table.version + 1:020d}.json"))
        path.write_text(json.dumps(later) + "\n")
        found = weir("compact", table.root.url)
        assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
        assert found.stderr.startswith("weir: WEIR_ARCHIVE: ")
        assert "version 99 for readers" in found.stderr

    def test_less_than_a_week_is_a_wrong_option(self, table: ArchiveTable) -> None:
        found = weir("vacuum", table.root.url, "--older-than", "6d")
        assert found.exit_code == 2
        assert "seven days" in found.stderr


class TestArchive:
    def test_a_checkpoint_without_its_archive_is_refused_before_spark_starts(
        self, server: Server, tmp_path: Path
    ) -> None:
        """What it has archived would be missing."""
        for name in ("offsets", "commits"):
            (tmp_path / "c" / name).mkdir(parents=True)
        (tmp_path / "c/commits/0").write_text("v1\n{}")
        words = ("--checkpoint", str(tmp_path / "c"), "--gateway", server.url, "--streams", "a")
        assert "has archived before" in refused_before_spark("archive", str(tmp_path / "new"), *words)

    def test_a_folder_with_other_files_is_refused_before_spark_starts(
        self, server: Server, tmp_path: Path
    ) -> None:
        (tmp_path / "old").mkdir()
        (tmp_path / "old/report.csv").touch()
        words = ("--checkpoint", str(tmp_path / "c"), "--gateway", server.url, "--streams", "a")
        why = refused_before_spark("archive", str(tmp_path / "old"), *words)
        assert "give an archive a new folder" in why

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


class TestUpkeep:
    """`archive --then …`: what an archive needs each night, after the night's entries, as one job."""

    def test_all_of_it_is_done_in_the_order_that_was_asked_for(
        self, server: Server, table: ArchiveTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """By the steps' own commands; a trim keeps what it is to keep."""
        options = ArchiveArguments(
            root=table.root.url,
            checkpoint=str(tmp_path / "c"),
            streams="a",
            then="compact, vacuum,trim",
            keep_last=2,
        )
        accesses = [GatewayAccess("g0", server.url)]
        keep(options, options.steps(), accesses)
        said = capsys.readouterr()
        assert "2 files merged into 1" in said.err
        assert "0 files deleted" in said.err
        assert "removed 3" in said.out
        with GatewayClient(accesses[0]) as gateway:
            assert list(gateway.page(tmp_path.name, after="0-0").ms) == [4, 5]

    def test_a_step_that_fails_is_the_last(self, server: Server, table: ArchiveTable, tmp_path: Path) -> None:
        """Nothing is trimmed of an archive that cannot be merged."""
        table.root.delete(table.files()[0].path)
        options = ArchiveArguments(
            root=table.root.url, checkpoint=str(tmp_path / "c"), streams="a", then="compact,trim"
        )
        with pytest.raises(ArchiveError, match="missing"):
            keep(options, options.steps(), [GatewayAccess("g0", server.url)])
        with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
            assert list(gateway.page(tmp_path.name, after="0-0").ms) == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--then", "compact,clean"), "write some of compact, vacuum, trim"),
            (("--then", "trim", "--every", "1m"), "--then is for a job that ends"),
            (("--keep", "7d"), "add --then trim"),
        ],
    )
    def test_what_cannot_be_meant_is_usage(self, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
        """Before anything is archived."""
        given = ("archive", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c"), "--streams", "a")
        found = weir(*given, *words)
        assert (found.exit_code, said in " ".join(found.stderr.split())) == (2, True)
        assert not list(tmp_path.iterdir())
