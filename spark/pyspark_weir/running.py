"""How a streaming query is run: alone on its checkpoint, once or on and on, started again when that may help.

Knows: the lock of a checkpoint, triggers, signals, what a finished batch tells.
Must never know: what a query does, how anything is shown.
"""

import fcntl
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir import clock
from pyspark_weir.errors import UNAVAILABLE, OptionError, PipelineError
from pyspark_weir.gateway import Access
from pyspark_weir.left import Left
from pyspark_weir.progress import Progress, Told, listening
from pyspark_weir.session import CHECKPOINT_FILES, CHECKPOINT_FILES_LOCAL, SessionOptions, open_session

LOCKED: Final = "WEIR_LOCKED"
FAILED: Final = "WEIR_FAILED"
# Failures in a row, with no batch between them, that are not the gateway's being away.
failures_max_default: Final = 5
# The same for a gateway that is away, where a query is to end some day.
_away_max_once: Final = 5
_pause_s_min: Final = 1.0
_pause_s_max: Final = 60.0
# How long a query that has ended is waited for to tell of its last batch.
_last_word_s_max: Final = 10.0
_WEIR: Final = re.compile(r"(WEIR_[A-Z_]+): ([^\n]*)")


@dataclass(frozen=True)
class Pace:
    """How often there is a batch: `every_ms` None is once, all that is there now, in as many batches as it
    takes; 0 as soon as there is something; else at most so often.
    """

    every_ms: int | None = None

    @property
    def is_once(self) -> bool:
        return self.every_ms is None

    def trigger(self, writer: DataStreamWriter) -> DataStreamWriter:
        """The writer, with this pace."""
        if self.every_ms is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{self.every_ms} milliseconds")


@dataclass(frozen=True)
class Run:
    """One run of a job. `checkpoint` is a folder of this machine or an address. `gateways` are asked how much
    is left; on them `mirror_group` is moved along with what is done.
    """

    checkpoint: str
    pace: Pace = Pace()
    session: SessionOptions = field(default_factory=SessionOptions)
    gateways: tuple[Access, ...] = ()
    mirror_group: str | None = None
    failures_max: int = failures_max_default


@dataclass
class Summary:
    """What became of a run. `stopped`: a signal ended it."""

    batches: int = 0
    rows: int = 0
    restarts: int = 0
    duration_ms: int = 0
    stopped: bool = False

    def members(self) -> dict[str, Any]:
        """For programs."""
        return {
            "done": True,
            "batches": self.batches,
            "rows": self.rows,
            "restarts": self.restarts,
            "duration_ms": self.duration_ms,
            "stopped": self.stopped,
        }


# Makes the query, with all but trigger and checkpoint; called again after a failure.
Build = Callable[[SparkSession], DataStreamWriter]
Tell = Callable[[Progress], None]


def run(what: Run, build: Build, tell: Tell, warn: Callable[[str], None] = lambda _line: None) -> Summary:
    """Run a job's query until it ends, a signal comes, or trying again does not help.

    `tell` is called after each batch, `warn` with a line before it is started again. Raises PipelineError:
    WEIR_LOCKED where another run has the checkpoint; the data source's own codes; WEIR_FAILED for all else
    that Spark says.
    """
    with locked(what.checkpoint):
        spark = open_session(what.session)
        _choose_checkpoint_files(spark, what.checkpoint)
        with Left(what.gateways, what.mirror_group) as left, listening(spark) as told, _signals(told):

            def start() -> StreamingQuery:
                writer = what.pace.trigger(build(spark))
                return writer.option("checkpointLocation", _address(what.checkpoint)).start()

            return Supervisor(what, start, told, left.of, tell, warn).run()


class Query(Protocol):
    """What of a streaming query is needed here."""

    @property
    def runId(self) -> Any: ...  # noqa: ANN401, N802 - Spark's name, and a UUID or its text

    @property
    def isActive(self) -> bool: ...  # noqa: N802 - Spark's name

    def stop(self) -> None: ...

    def exception(self) -> Any: ...  # noqa: ANN401 - Spark's exception


@dataclass
class Supervisor:
    """Starts a query, follows it, and decides after each of its ends. `left` adds what is left."""

    what: Run
    start: Callable[[], Query]
    told: Told
    left: Callable[[Progress], Progress]
    tell: Tell
    warn: Callable[[str], None]
    now_s: Callable[[], float] = clock.monotonic_s
    dice: random.Random = field(default_factory=random.SystemRandom)

    def run(self) -> Summary:
        """Until it has ended for good. Raises PipelineError, why."""
        summary = Summary()
        begun_s = self.now_s()
        failures = 0
        while True:
            before = summary.batches
            failure = self._attempt(summary)
            summary.duration_ms = round((self.now_s() - begun_s) * 1_000)
            if failure is None or summary.stopped:
                return summary
            failures = 1 if summary.batches > before else failures + 1
            if not self._may_help(failure, failures):
                raise failure
            pause_s = self.pause_s(failures)
            self.warn(f"{failure}; starting again in {pause_s:.0f} s")
            if self.told.stopped_within(pause_s):
                summary.stopped = True
                return summary
            summary.restarts += 1

    def _attempt(self, summary: Summary) -> PipelineError | None:
        """One life of the query; why it failed, None where it ended."""
        try:
            query = self.start()
        except StreamingQueryException as error:
            return told_by_spark(str(error))
        except PipelineError as error:
            return error
        try:
            self._follow(query, summary)
        finally:
            query.stop()
        failed = query.exception()
        return None if failed is None else told_by_spark(str(failed))

    def _follow(self, query: Query, summary: Summary) -> None:
        """Tell of its batches until it has ended, or is to end."""
        over_s: float | None = None
        for event in self.told.of(str(query.runId)):
            if isinstance(event, Progress):
                summary.batches += event.rows > 0
                summary.rows += event.rows
                self.tell(self.left(event))
            elif self.told.stopped and not summary.stopped:
                summary.stopped = True
                query.stop()
            if not query.isActive:
                # What it still has to tell is on its way; the end comes after that.
                over_s = over_s or self.now_s() + _last_word_s_max
                if self.now_s() > over_s:
                    return

    def _may_help(self, failure: PipelineError, failures: int) -> bool:
        if failure.code == UNAVAILABLE:
            return not self.what.pace.is_once or failures <= _away_max_once
        return failure.code == FAILED and failures <= self.what.failures_max

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row; never the same for all that failed together."""
        whole_s: float = min(_pause_s_max, _pause_s_min * 2 ** min(failures - 1, 10))
        return self.dice.uniform(whole_s / 2, whole_s)


def told_by_spark(text: str) -> PipelineError:
    """What a query's failure means: the pipeline's own error, which Spark wraps, or Spark's first line."""
    # The innermost is the last; Spark repeats it further out.
    found = _WEIR.findall(text)
    if found:
        code, sentence = found[-1]
        return PipelineError(code, sentence.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return PipelineError(FAILED, lines[0] if lines else "the query failed and Spark does not say why")


def _address(checkpoint: str) -> str:
    """Where Spark keeps a checkpoint. With its scheme: a cluster would look on its default file system."""
    folder = local_path(checkpoint)
    return checkpoint if folder is None else f"file://{folder.absolute()}"


def local_path(address: str) -> Path | None:
    """The path of a folder on this machine; None for an address elsewhere."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in address else Path(address)


@contextmanager
def locked(checkpoint: str) -> Iterator[None]:
    """Be the only run on a checkpoint: on this machine; elsewhere the file system settles which of two runs
    commits a batch. Raises PipelineError WEIR_LOCKED; OptionError where nothing can be written.
    """
    folder = local_path(checkpoint)
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OptionError(f"--checkpoint {checkpoint}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise PipelineError(
                LOCKED, f"process {owner} runs on checkpoint {checkpoint}: stop it, or give this run its own"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _choose_checkpoint_files(spark: SparkSession, checkpoint: str) -> None:
    """The faster way of writing a checkpoint does not notice a second run: only where the lock does."""
    if local_path(checkpoint) is None and spark.conf.get(CHECKPOINT_FILES, None) == CHECKPOINT_FILES_LOCAL:
        spark.conf.unset(CHECKPOINT_FILES)


@contextmanager
def _signals(told: Told) -> Iterator[None]:
    """SIGINT and SIGTERM end the run in order; the second SIGINT at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        if told.stopped and number == signal.SIGINT:
            raise KeyboardInterrupt
        told.stop()

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
