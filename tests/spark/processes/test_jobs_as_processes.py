"""A job as people run it: a process that reports in JSON, excludes others, and outlives its gateway.

Two starts of Spark for all of it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.server import Server
from tests.spark.cluster import JVM

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
# A first query on a machine that does other things as well.
_heard_s_max = 240.0
_QUICK = f"spark.driver.extraJavaOptions={JVM}"


class Job:
    """`python -m pyspark_weir archive`, in a process group of its own as a terminal would make one."""

    def __init__(self, folder: Path, url: str, *words: str) -> None:
        self._log = folder / "job.log"
        command = ["archive", str(folder / "archive"), "--checkpoint", str(folder / "checkpoint")]
        options = [
            "--gateway",
            url,
            "--streams",
            "a",
            "--json",
            "--conf",
            _QUICK,
            "--source",
            "retryTimeoutMs=500",
        ]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pyspark_weir", *command, *options, *words],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def lines(self) -> Iterator[dict[str, Any]]:
        """What it reports, as it comes."""
        assert self.process.stdout is not None, "a pipe was asked for"
        for line in self.process.stdout:
            yield orjson.loads(line)

    def said(self) -> str:
        """What it says beside that."""
        return self._log.read_text()

    def signal(self, number: int) -> None:
        """As Ctrl-C does: to all of its processes."""
        os.killpg(self.process.pid, number)

    def ended(self) -> int:
        return self.process.wait(_heard_s_max)


@contextmanager
def _job(folder: Path, url: str, *words: str) -> Iterator[Job]:
    job = Job(folder, url, *words)
    try:
        yield job
    finally:
        if job.process.poll() is None:
            job.signal(signal.SIGKILL)
        # Its pipe is closed as well.
        job.process.communicate()


def _publish(server: Server, count: int) -> str:
    lines = b"\n".join(b'{"n":"%d"}' % number for number in range(count))
    headers = {"content-type": "application/x-ndjson"}
    answer = httpx.post(f"{server.url}/v1/streams/a/entries", content=lines, headers=headers, timeout=60)
    return str(answer.raise_for_status().json()["last_id"])


def _rows(job: Job, wanted: int) -> dict[str, Any]:
    """Follow it until it has reported this number of rows; its last report."""
    rows = 0
    for report in job.lines():
        rows += report["rows"]
        if rows >= wanted:
            assert rows == wanted, "each once"
            return report
    raise AssertionError(f"it ended after {rows} rows: {job.said()}")


def test_a_job_goes_on_until_it_is_told_to_end(own_server: Server, tmp_path: Path) -> None:
    """Beside a second run that is refused. A gateway that is killed ends it with 1; started again, it goes on
    where it was.
    """
    _publish(own_server, 50)
    with _job(tmp_path, own_server.url, "--every", "1s") as job:
        report = _rows(job, 50)
        assert (report["left"], report["lag"]) == (0, {"g0/a": {"entries": 0, "ms": 0}})
        with _job(tmp_path, own_server.url) as second:
            assert second.ended() == 4
            assert f"WEIR_LOCKED: process {job.process.pid} runs on checkpoint" in second.said()
        own_server.kill()
        assert job.ended() == 1
        assert job.said().rstrip().splitlines()[-1].startswith("weir: WEIR_UNAVAILABLE: ")
    own_server.start()
    with _job(tmp_path, own_server.url, "--every", "1s") as job:
        last = _publish(own_server, 30)
        assert _rows(job, 30)["ends"] == {"g0/a": last}
        job.signal(signal.SIGINT)
        (done,) = [report for report in job.lines() if report.get("done")]
        assert job.ended() == 0, job.said()
    assert (done["rows"], done["stopped"]) == (30, True)
    assert done["lag"] == {"g0/a": {"entries": 0, "ms": 0}}
