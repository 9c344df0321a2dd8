"""Why a run fails is one sentence with its cause, and one object for programs: what a place refuses while a
batch is stored, and entries that are gone.

Knows: the command as it is typed, a full disk, an object store that denies. Must never know: who raises what.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_weir.cli.main import jobs
from pyspark_weir.errors import PipelineError
from pyspark_weir.table.log import storage_failures
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.proof.machine import needs, no_tmpfs, small_disk
from tests.server import Server
from tests.spark.table.making import Maker, key_of
from tests.spark.table.object_store import BUCKET, ObjectStore

Archive = Callable[..., str]


@pytest.fixture
def archive(spark: SparkSession, shared_server: Server, checkpoint: str) -> Archive:
    """Archive a stream, which fails; the cause."""

    def run(root: str, stream: str, *words: str, code: str = "WEIR_FAILED", exit_code: int = 1) -> str:
        place = ("--checkpoint", checkpoint, "--gateway", shared_server.url, "--source", "durableOnly=false")
        found = CliRunner().invoke(jobs, ["archive", root, *place, "--streams", stream, "--json", *words])
        assert found.exit_code == exit_code, found.output
        assert spark.streams.active == []
        failed = json.loads(found.stdout)
        assert (failed["done"], failed["error"], failed["exit_code"]) == (False, code, exit_code)
        assert found.stderr == f"weir: {code}: {failed['detail']}\n", "one line"
        return str(failed["detail"])

    return run


def publish(server: Server, stream: str, value: str) -> None:
    answer = httpx.post(f"{server.url}/v1/streams/{stream}/entries", json={"fields": {"v": value}})
    answer.raise_for_status()


@needs(no_tmpfs)
def test_a_full_disk(archive: Archive, shared_server: Server, tmp_path: Path) -> None:
    """It is the task's last line, through Spark's; nothing is committed."""
    publish(shared_server, "full", os.urandom(1 << 18).hex())
    with small_disk(tmp_path / "disk", "192k"):
        assert archive(str(tmp_path / "disk" / "a"), "full").endswith("No space left on device")


def test_an_object_store_that_denies(archive: Archive, shared_server: Server) -> None:
    """A key that it does not know; one that may only read, to create the table, and in a task: each answer is
    a 403, and is said in its own words.
    """
    publish(shared_server, "denied", "1")
    with ObjectStore() as store:
        Maker(store.root("there")).batch({key_of("other"): ["1-0"]})

        def denied(*key: str) -> str:
            options = store.options(*key).items()
            words = (word for name, value in options for word in ("--storage", f"{name}={value}"))
            return archive(f"s3://{BUCKET}/there", "denied", *words)

        reader = store.restrict()
        assert "INVALID_ACCESS_KEY_ID" in denied("key", "secret")
        with (
            pytest.raises(PipelineError, match=r"403 Forbidden AccessDenied: Access Denied$"),
            storage_failures(),
        ):
            ArchiveTable.create(ArchiveRoot.of(f"s3://{BUCKET}/new", store.options(*reader)))
        assert "ACCESS_DENIED" in denied(*reader)


def test_what_was_trimmed_before_it_was_archived(
    archive: Archive, shared_server: Server, checkpoint: str, tmp_path: Path
) -> None:
    """By the run after one that went well: it ends with 3."""
    root, trim = str(tmp_path / "archive"), {"maxlen": 0, "approx": False}
    publish(shared_server, "trimmed", "1")
    place = ("--checkpoint", checkpoint, "--gateway", shared_server.url, "--source", "durableOnly=false")
    done = CliRunner().invoke(jobs, ["archive", root, *place, "--streams", "trimmed"])
    assert done.exit_code == 0, done.output
    publish(shared_server, "trimmed", "2")
    httpx.post(f"{shared_server.url}/v1/streams/trimmed/trim", json=trim).raise_for_status()
    publish(shared_server, "trimmed", "3")
    assert "trimmed" in archive(root, "trimmed", code="WEIR_DATA_LOSS", exit_code=3)
