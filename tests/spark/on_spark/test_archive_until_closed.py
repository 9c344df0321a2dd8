"""`weir-spark archive --until-closed` stops by itself, behind the last entry of the last stream."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_weir.cli.main import jobs
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.server import Server

LATER_S = 6.0


def post(server: Server, path: str, body: object) -> None:
    httpx.post(f"{server.url}/v1/streams/{path}", json=body).raise_for_status()


@pytest.mark.parametrize("has_last", [True, False])
def test_an_archive_ends_with_its_streams(
    spark: SparkSession, shared_server: Server, checkpoint: str, tmp_path: Path, *, has_last: bool
) -> None:
    """Whether the end comes with an entry or alone; a commit says which streams end with it."""
    first, second = f"ending-{has_last}-1", f"ending-{has_last}-2"
    for stream in (first, second):
        post(shared_server, f"{stream}/entries", {"id": "5-0", "fields": {"n": "1"}})
    post(shared_server, f"{first}/close", {})
    last: dict[str, Any] = {"entry": {"id": "5-1", "fields": {"n": "2"}}} if has_last else {}
    later = threading.Timer(LATER_S, post, (shared_server, f"{second}/close", last))
    later.start()
    root = str(tmp_path / "archive")
    place = ("--checkpoint", checkpoint, "--gateway", shared_server.url, "--source", "durableOnly=false")
    words = ["archive", root, *place, "--streams", f"{first},{second}", "--until-closed", "--json"]
    found = CliRunner().invoke(jobs, words)
    later.join()
    assert found.exit_code == 0, found.output
    assert spark.streams.active == []
    table = ArchiveTable.open(ArchiveRoot.of(root))
    assert {one.key.stream: str(one.upto) for one in table.ranges()} == {
        first: "5-0",
        second: "5-1" if has_last else "5-0",
    }
    assert sorted(_closed(root)) == [first, second]


def test_a_run_without_entries_marks_what_was_closed_since(
    spark: SparkSession, shared_server: Server, checkpoint: str, tmp_path: Path
) -> None:
    """Once, and in no run after it."""
    stream, root = "ending-late", str(tmp_path / "archive")
    post(shared_server, f"{stream}/entries", {"id": "5-0", "fields": {"n": "1"}})
    place = ("--checkpoint", checkpoint, "--gateway", shared_server.url, "--source", "durableOnly=false")

    def closed_after_a_run() -> list[str]:
        found = CliRunner().invoke(jobs, ["archive", root, *place, "--streams", stream, "--once"])
        assert found.exit_code == 0, found.output
        return _closed(root)

    assert closed_after_a_run() == []
    post(shared_server, f"{stream}/close", {})
    assert closed_after_a_run() == [stream]
    assert closed_after_a_run() == [stream]
    assert spark.streams.active == []


def _closed(root: str) -> list[str]:
    """The streams that commits say are closed."""
    stored = [commit.get("weir") or {} for commit in DeltaTable(root).history()]
    return [name for one in stored for _, name, _ in one.get("closed", [])]


def test_once_and_until_closed_exclude_each_other(shared_server: Server, checkpoint: str) -> None:
    """The one ends before the other."""
    words = ["archive", "x", "--checkpoint", checkpoint, "--gateway", shared_server.url, "--streams", "s"]
    found = CliRunner().invoke(jobs, [*words, "--once", "--until-closed"])
    assert found.exit_code != 0
    assert "exclude each other" in found.output + found.stderr
