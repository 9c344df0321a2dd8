"""A query is alone on its checkpoint, ends when it is told to, and is started again when that may help."""

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.progress import Progress, Told, of_spark
from pyspark_weir.running import Pace, Run, Summary, Supervisor, local_path, locked, told_by_spark

ROOT = Path(__file__).parents[2]
AWAY = "x\npipeline.errors.Unavailable: WEIR_UNAVAILABLE: nobody answers\n\n\tat org.apache.spark"
LOST = "[STREAM_FAILED] Query …\nWEIR_DATA_LOSS: stream a, (1-0, 5-0]: removed\n\tat"


class Life:
    """One life of a query: tells its batches at once, then ends as it should."""

    def __init__(
        self, told: Told, name: str, batches: int, failure: str | None, *, lasts: bool = False
    ) -> None:
        self.runId = name
        self.isActive = True
        self.stops = 0
        self._told = told
        self._failure = failure
        for number in range(batches):
            told.put(name, Progress(query="q", batch=number, rows=10, duration_ms=5, time=""))
        if not lasts:
            self._end()

    def _end(self) -> None:
        self.isActive = False
        self._told.put(self.runId, None)

    def stop(self) -> None:
        self.stops += 1
        if self.isActive:
            self._end()

    def exception(self) -> str | None:
        return self._failure


class Runs:
    """Supervises lives that a list describes: batches, and how each ends."""

    def __init__(
        self, *lives: tuple[int, str | None], every_ms: int | None = None, failures_max: int = 3
    ) -> None:
        self.told = Told()
        self.lines: list[str] = []
        self.batches: list[int] = []
        self.started: list[Life] = []
        self._lives = iter(lives)
        self._numbers = itertools.count()
        what = Run(checkpoint="unused", pace=Pace(every_ms), failures_max=failures_max)
        self.supervisor = Supervisor(
            what, self.start, self.told, lambda one: one, self._tell, self.lines.append
        )
        # Pauses are between half of one and one second, and half again as long: none of it.
        self.supervisor.dice = _NoPause()

    def start(self) -> Life:
        batches, failure = next(self._lives)
        self.started.append(Life(self.told, f"run-{next(self._numbers)}", batches, failure))
        return self.started[-1]

    def _tell(self, progress: Progress) -> None:
        self.batches.append(progress.batch)

    def run(self) -> Summary:
        return self.supervisor.run()


class _NoPause(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return 0.0


def test_a_run_tells_each_batch_and_ends() -> None:
    """What the last batch told may come after the query has ended."""
    runs = Runs((3, None))
    summary = runs.run()
    assert (summary.batches, summary.rows, summary.restarts, summary.stopped) == (3, 30, 0, False)
    assert runs.batches == [0, 1, 2]


def test_a_gateway_that_was_away_costs_a_restart() -> None:
    """The line says why, and when it goes on."""
    runs = Runs((1, AWAY), (2, None))
    summary = runs.run()
    assert (summary.batches, summary.restarts) == (3, 1)
    assert runs.lines == ["WEIR_UNAVAILABLE: nobody answers; starting again in 0 s"]


def test_lost_entries_are_not_tried_again() -> None:
    """They do not come back; somebody has to decide."""
    runs = Runs((1, LOST))
    with pytest.raises(PipelineError, match="WEIR_DATA_LOSS: stream a") as error:
        runs.run()
    assert error.value.code == "WEIR_DATA_LOSS"


def test_what_never_works_ends_some_day() -> None:
    """Failures in a row, with no batch between them."""
    runs = Runs(*[(0, "a task failed")] * 4, failures_max=3, every_ms=0)
    with pytest.raises(PipelineError, match="WEIR_FAILED: a task failed"):
        runs.run()
    assert len(runs.started) == 4


def test_a_batch_between_failures_makes_good() -> None:
    """A query that stumbles once a day never ends by that."""
    runs = Runs(*[(1, "a task failed")] * 20, (1, None), failures_max=3)
    assert runs.run().restarts == 20


def test_a_query_that_goes_on_waits_for_its_gateway_for_ever() -> None:
    """One that is to end does not."""
    assert Runs(*[(0, AWAY)] * 30, (1, None), every_ms=1_000).run().restarts == 30
    with pytest.raises(PipelineError, match="WEIR_UNAVAILABLE"):
        Runs(*[(0, AWAY)] * 30).run()


def test_a_stop_ends_the_query_and_hides_what_it_died_of() -> None:
    """Whatever breaks while it is stopped has been asked for."""
    runs = Runs(every_ms=0)
    life = Life(runs.told, "run-0", 1, "interrupted", lasts=True)
    runs.supervisor.start = lambda: life
    runs.told.stop()
    summary = runs.run()
    assert summary.stopped
    assert life.stops >= 1


def test_a_stop_while_it_pauses_ends_the_run() -> None:
    """Nobody waits a minute for Ctrl-C."""
    runs = Runs((0, AWAY), every_ms=0)
    runs.supervisor.warn = lambda _line: runs.told.stop()
    runs.supervisor.dice = random.Random(1)
    assert runs.run().stopped


def test_failures_that_are_an_error_at_the_start_are_told_as_they_are() -> None:
    """An option that is wrong is wrong the next time too."""
    runs = Runs()
    runs.supervisor.start = _refusing(OptionError("fetchSize=x: a number"))
    with pytest.raises(PipelineError, match="WEIR_OPTION: fetchSize=x"):
        runs.run()


def _refusing(error: Exception) -> Callable[[], Any]:
    def start() -> Any:
        raise error

    return start


def test_pauses_double_and_have_an_end() -> None:
    """A minute at most, never the same for all."""
    runs = Runs()
    runs.supervisor.dice = random.Random(5)
    pauses = [runs.supervisor.pause_s(failures) for failures in range(1, 40)]
    assert all(low <= pause <= 2 * low for pause, low in zip(pauses, (0.5, 1, 2, 4, 8, 16), strict=False))
    assert max(pauses) <= 60
    assert min(pauses[10:]) >= 30


def test_the_innermost_error_is_the_one_that_is_told() -> None:
    """Spark repeats it with its own words around; without one its first line has to do."""
    assert told_by_spark(AWAY).code == "WEIR_UNAVAILABLE"
    assert told_by_spark("\n [X] first\nsecond").sentence == "[X] first"
    assert told_by_spark("").code == "WEIR_FAILED"


def test_a_second_run_on_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """And told which process has it; the end of that one, however it ends, sets the checkpoint free."""
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
    """Elsewhere two runs are told apart when they commit."""
    assert local_path(address) == path


def test_a_pace_of_nothing_is_once() -> None:
    """And 0 is as fast as can be, not once."""
    assert Pace().is_once
    assert not Pace(0).is_once


def test_a_progress_says_how_far_each_stream_is_read() -> None:
    """From Spark's own JSON; sources that are not ours are passed over."""
    found = of_spark(
        {
            "id": "5a",
            "runId": "6b",
            "name": None,
            "timestamp": "2026-11-21T09:00:00.000Z",
            "batchId": 3,
            "batchDuration": 500,
            "numInputRows": 1_000,
            "sources": [
                {"endOffset": {"v": 1, "s": {"g0/a": ["5-1", "abc"]}}},
                {"endOffset": '{"v":1,"s":{"g1/b":["7-0","def"]}}'},
                {"endOffset": 17},
                {"endOffset": None},
                {"endOffset": {"logOffset": 3}},
            ],
        }
    )
    assert {name: place.id for name, place in found.ends.items()} == {"g0/a": "5-1", "g1/b": "7-0"}
    assert found.rows_per_second == 2_000
    members = found.with_left(12).members()
    assert members["left"] == 12
    assert members["ends"] == {"g0/a": "5-1", "g1/b": "7-0"}
