"""A query is alone on its checkpoint, and ends on request."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.progress import BatchProgress, QueryEvents, StreamLag, parse_progress
from pyspark_weir.running import follow, local_path, locked, query_error

ROOT = Path(__file__).parents[2]
AWAY = "x\npipeline.errors.Unavailable: WEIR_UNAVAILABLE: nobody answers\n\n\tat org.apache.spark"
LOST = "[STREAM_FAILED] Query …\nWEIR_DATA_LOSS: stream a, (1-0, 5-0]: removed\n\tat"


class Life:
    """One life of a query: reports its batches at once, then ends as it should."""

    def __init__(
        self, events: QueryEvents, name: str, batches: int, failure: str | None, *, lasts: bool = False
    ) -> None:
        self.runId = name
        self.isActive = True
        self.stops = 0
        self._events = events
        self._failure = failure
        for number in range(batches):
            events.put(name, BatchProgress(query="q", batch=number, rows=10, duration_ms=5, time=""))
        if not lasts:
            self._end()

    def _end(self) -> None:
        self.isActive = False
        self._events.put(self.runId, None)

    def stop(self) -> None:
        self.stops += 1
        if self.isActive:
            self._end()

    def exception(self) -> str | None:
        return self._failure


def test_a_run_tells_each_batch_and_ends() -> None:
    """The last batch may be reported after the query has ended."""
    events, batches = QueryEvents(), []
    life: Any = Life(events, "run-0", 3, None)
    summary = follow(life, events, lambda one: batches.append(one.batch))
    assert (summary.batches, summary.rows, summary.stopped) == (3, 30, False)
    assert batches == [0, 1, 2]


def test_batches_of_another_query_of_the_session_are_not_its_own() -> None:
    """An archive and a mirror in one session: else the archive's batches would move the mirror's group."""
    events, batches = QueryEvents(), []
    events.put("other", BatchProgress(query="o", batch=7, rows=10, duration_ms=5, time=""))
    life: Any = Life(events, "run-0", 2, None)
    summary = follow(life, events, lambda one: batches.append(one.batch))
    assert (summary.batches, summary.rows) == (2, 20)
    assert batches == [0, 1]


@pytest.mark.parametrize(
    ("failure", "code"), [(AWAY, "WEIR_UNAVAILABLE"), (LOST, "WEIR_DATA_LOSS"), ("a task", "WEIR_FAILED")]
)
def test_a_failed_query_fails_the_run(failure: str, code: str) -> None:
    """After its batches were reported; a supervisor decides by the exit code whether to start it again."""
    events, batches = QueryEvents(), []
    life: Any = Life(events, "run-0", 1, failure)
    with pytest.raises(PipelineError) as error:
        follow(life, events, lambda one: batches.append(one.batch))
    assert error.value.code == code
    assert batches == [0]


def test_a_stop_ends_the_query_and_hides_what_it_died_of() -> None:
    """An error during the stop is a consequence of the stop."""
    events = QueryEvents()
    life: Any = Life(events, "run-0", 1, "interrupted", lasts=True)
    events.stop()
    assert follow(life, events, lambda _one: None).stopped
    assert life.stops >= 1


def test_the_innermost_error_is_the_one_that_is_told() -> None:
    """Spark repeats it with its own words around; without one its first line has to do."""
    assert query_error(AWAY).code == "WEIR_UNAVAILABLE"
    assert query_error("\n [X] first\nsecond").sentence == "[X] first"
    assert query_error("").code == "WEIR_FAILED"


def test_the_cause_of_a_failure_is_its_last_line() -> None:
    """Not "Job aborted due to stage failure", behind which it stands a hundred lines later."""
    spark = "[STREAM_FAILED] Query [id = 5a] terminated with exception: Job aborted due to stage failure\n"
    worker = (
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "files.py", line 1, in write\n    file.write(rows)\n'
        "OSError: [Errno 28] No space left on device\n"
    )
    trace = "\n\tat org.apache.spark.api.python.BasePythonRunner\n"
    found = query_error(f"{spark}{worker}{trace}")
    assert (found.code, found.sentence) == ("WEIR_FAILED", "OSError: [Errno 28] No space left on device")
    java = f"{spark}{trace}Caused by: java.io.IOException: Permission denied\n\t... 5 more\n"
    assert query_error(java).sentence == "java.io.IOException: Permission denied"


def test_a_second_run_on_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """The refusal names the process that has it; once that has ended in any way, the checkpoint is free."""
    checkpoint = tmp_path / "deep" / "checkpoint"
    program = f"""
import sys, time
from pyspark_weir.running import locked
with locked({str(checkpoint)!r}):
    print("mine", flush=True)
    sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mine\n"
        with (
            pytest.raises(PipelineError, match=f"WEIR_LOCKED: process {other.pid} runs"),
            locked(str(checkpoint)),
        ):
            raise AssertionError("there were two")
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    with locked(f"file://{checkpoint}"):
        pass


def test_a_checkpoint_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """Before Spark is started for ten seconds."""
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OptionError, match=r"--checkpoint .*Not a directory"),
        locked(str(tmp_path / "file" / "x")),
    ):
        raise AssertionError("it is no folder")


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("a/b", Path("a/b")),
        ("file:///a/b%20c", Path("/a/b c")),
        ("hdfs://name/a", None),
        ("s3a://bucket/a", None),
    ],
)
def test_only_this_machine_s_folders_can_be_locked(address: str, path: Path | None) -> None:
    """Elsewhere the second of two runs fails when it commits."""
    assert local_path(address) == path


def test_a_progress_says_how_far_each_stream_is_read() -> None:
    """From Spark's own JSON; sources that are not ours are passed over."""
    found = parse_progress(
        {
            "id": "5a",
            "runId": "6b",
            "name": None,
            "timestamp": "2026-11-21T09:00:00.000Z",
            "batchId": 3,
            "batchDuration": 500,
            "numInputRows": 1_000,
            "sources": [
                {
                    "startOffset": {"v": 1, "s": {"g0/a": ["4-0", "abc"], "g0/c": ["2-0", "abc"]}},
                    "endOffset": {
                        "v": 1,
                        "s": {"g0/a": ["5-1", "abc"], "g0/c": ["2-0", "abc"]},
                        "lost": [["g0/a", "abc", "4-0", "5-0", "trimmed"]],
                    },
                },
                {"endOffset": '{"v":1,"s":{"g1/b":["7-0","def"]}}'},
                {"endOffset": 17},
                {"endOffset": None},
                {"endOffset": {"logOffset": 3}},
            ],
        }
    )
    assert {name: place.id for name, place in found.ends.items()} == {
        "g0/a": "5-1",
        "g0/c": "2-0",
        "g1/b": "7-0",
    }
    assert found.streams == 2, "one of them has nothing new"
    assert found.rows_per_second == 2_000
    assert [str(one) for one in found.lost] == [
        "g0/a: entries after 4-0 up to 5-0 were trimmed before they were read"
    ]
    members = replace(found, lag={"g0/a": StreamLag(5, 70), "g1/b": StreamLag(7, 0)}).members()
    assert members["left"] == 12
    assert members["lag"] == {"g0/a": {"entries": 5, "ms": 70}, "g1/b": {"entries": 7, "ms": 0}}
    assert members["ends"]["g0/a"] == "5-1"
