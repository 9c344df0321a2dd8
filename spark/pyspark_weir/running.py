"""How a streaming query is run: alone on its checkpoint, once or until a signal.

Knows: the lock of a checkpoint, triggers, signals, the progress of a finished batch.
Must never know: what a query does, how anything is shown, when a failed run is started again: supervisors
(systemd, Kubernetes) know that.
"""

import fcntl
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir import clock
from pyspark_weir.errors import FAILED, LOCKED, OptionError, PipelineError
from pyspark_weir.gateway import GatewayAccess
from pyspark_weir.offsets import Lost
from pyspark_weir.progress import BatchProgress, LagReporter, QueryEvents, StreamLag, lag_members, listen
from pyspark_weir.session import CHECKPOINT_FILES, CHECKPOINT_FILES_LOCAL, SessionOptions, open_session

# How long a query that has ended is waited for to tell of its last batch.
_LAST_WORD_S_MAX: Final = 10.0
# How often a query that goes on is asked whether more can come.
_ASK_S: Final = 2.0
_PYTHON: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)$", re.MULTILINE)
_JAVA: Final = re.compile(r"^[ \t]*Caused by: (.*)$", re.MULTILINE)
_WEIR: Final = re.compile(r"(WEIR_[A-Z_]+): ([^\n]*)")


@dataclass(frozen=True)
class QueryRun:
    """One run of a job's query. `checkpoint` is a folder of this machine or an address. `every_ms` is the
    time between batches: 0 starts one as soon as there is something; None takes all that exists now, in as
    many batches as needed, and ends. `gateways` are asked how much is left; `mirror_group` is moved there.
    It ends too once `is_over` says so, which is asked now and then.
    """

    checkpoint: str
    every_ms: int | None = None
    session: SessionOptions = field(default_factory=SessionOptions)
    gateways: tuple[GatewayAccess, ...] = ()
    mirror_group: str | None = None
    is_over: Callable[[], bool] = lambda: False

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        if self.every_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.every_ms} milliseconds")
        return writer.option("checkpointLocation", _address(self.checkpoint)).start()


@dataclass
class Summary:
    """What a run did. `stopped`: a signal ended it. `lag`: what each stream had left after the last batch,
    None where that is not known. `lost`: what was gone before it was read.
    """

    batches: int = 0
    rows: int = 0
    duration_ms: int = 0
    stopped: bool = False
    lag: Mapping[str, StreamLag] | None = None
    lost: list[Lost] = field(default_factory=list)

    def members(self) -> dict[str, Any]:
        shown = {"lag": lag_members(self.lag), "lost": [one._asdict() for one in self.lost]}
        return {"done": True, **vars(self), **shown}


# Makes the query, with all but trigger and checkpoint.
Build = Callable[[SparkSession], DataStreamWriter]
Tell = Callable[[BatchProgress], None]


def run(what: QueryRun, build: Build, tell: Tell) -> Summary:
    """Run a job's query until it ends, fails, or a signal comes. `tell` is called after each batch.

    Raises PipelineError: WEIR_LOCKED where another run has the checkpoint; the data source's own codes;
    WEIR_FAILED for any other failure. The caller's supervisor may run it again: nothing is lost or repeated.
    """
    with locked(what.checkpoint):
        spark = open_session(what.session)
        _choose_checkpoint_files(spark, what.checkpoint)
        with LagReporter(what.gateways, what.mirror_group) as lag, listen(spark) as events, _signals(events):
            begun_s = clock.monotonic_s()
            try:
                query = what.start(build(spark))
            except StreamingQueryException as error:
                raise query_error(str(error)) from None
            summary = follow(query, events, lambda progress: tell(lag.report(progress)), is_over=what.is_over)
            summary.lag = lag.known
            summary.duration_ms = round((clock.monotonic_s() - begun_s) * 1_000)
            return summary


def follow(
    query: StreamingQuery,
    events: QueryEvents,
    tell: Tell,
    now_s: Callable[[], float] = clock.monotonic_s,
    is_over: Callable[[], bool] = lambda: False,
) -> Summary:
    """Report a query's batches until it ends, `is_over`, or a signal stops it. Raises PipelineError where it
    failed.
    """
    summary = Summary()
    over_s: float | None = None
    asked_s, is_ending = now_s(), False
    try:
        for event in events.of(str(query.runId)):
            if isinstance(event, BatchProgress):
                summary.batches += event.rows > 0
                summary.rows += event.rows
                summary.lost += event.lost
                tell(event)
            elif events.stopped and not summary.stopped:
                summary.stopped = True
                query.stop()
            elif not is_ending and now_s() - asked_s >= _ASK_S:
                asked_s = now_s()
                if is_over():
                    is_ending = True
                    query.stop()
            if not query.isActive:
                # The progress of its last batch may still come; its end comes after that.
                over_s = over_s or now_s() + _LAST_WORD_S_MAX
                if now_s() > over_s:
                    break
    finally:
        query.stop()
    failed = query.exception()
    if failed is not None and not summary.stopped and not is_ending:
        raise query_error(str(failed))
    return summary


def query_error(text: str) -> PipelineError:
    """The error behind a query's failure: the pipeline's own, which Spark wraps, or the line that names its
    cause.
    """
    # The innermost is the last; Spark repeats it further out.
    found = _WEIR.findall(text)
    if found:
        code, sentence = found[-1]
        return PipelineError(code, sentence.strip())
    # What a worker's Python raised, else the innermost of Java, else what Spark says first.
    causes = _PYTHON.findall(text) or _JAVA.findall(text)
    lines = causes[-1:] or [line for line in text.splitlines() if line.strip()]
    return PipelineError(FAILED, lines[0].strip() if lines else "the query failed and Spark does not say why")


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
def _signals(events: QueryEvents) -> Iterator[None]:
    """SIGINT and SIGTERM end the run in order; the second SIGINT at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        if events.stopped and number == signal.SIGINT:
            raise KeyboardInterrupt
        events.stop()

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
