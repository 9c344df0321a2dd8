"""The log that people and programs read on standard error: one JSON object a line, or text on a terminal.

Knows: how lines are made and escaped. Must never know: what stands in a stream; no entry ever gets here.
"""

import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

# What a client sent, a path or a user agent, is cut here.
TEXT_CHARS_MAX: Final = 256

_NEVER: Final = 1_000
_FLUSH_S: Final = 0.2
_LINES_MAX: Final = 256
# A limit reached again and again, as with writes at the rate of trims, gets one line in this time.
_FULL_QUIET_S: Final = 60.0

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Set up the process's log. What uvicorn and asyncio have to say goes the same way."""
    target = stream or sys.stderr
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _cut,
    ]
    is_console = _is_console(form, target)
    renderer: Processor = structlog.dev.ConsoleRenderer(colors=False) if is_console else _render
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_LEVELS[level], logging.WARNING))


def _is_console(form: str, target: TextIO) -> bool:
    return form == "console" or (form == "auto" and target.isatty())


def are_for_people() -> bool:
    """Whether lines are text for a terminal, not JSON."""
    return not any(one is _render for one in structlog.get_config()["processors"])


def get() -> Any:  # noqa: ANN401 - the methods of structlog's loggers depend on the level
    """A logger: `get().info("event", name=value)`."""
    return structlog.get_logger()


def note_fault(error: Exception, request_id: str) -> None:
    """Log an unexpected error, with its trace."""
    remedy = "report this line: a request has met an error of the gateway"
    get().error("unexpected", request_id=request_id, error=repr(error), trace=trace(error), remedy=remedy)


class RequestLine(msgspec.Struct):
    """One request: who, what, how it ended, how long it took. No query, no header, nothing of a body."""

    request_id: str
    method: str
    path: str
    status: int
    ms: float
    bytes: int
    timestamp: str
    event: str = "request"
    level: str = "info"


class RequestLog:
    """Lines of requests. A line costs two microseconds, since lines are written some at a time."""

    def __init__(self, wanted: str, level: str, form: str, target: TextIO | None = None) -> None:
        # Requests that end with this status or a higher one get a line.
        self.least_status = {"all": 0, "failed": 400, "none": _NEVER}[wanted]
        if _LEVELS[level] > _LEVELS["info"]:
            self.least_status = _NEVER
        self._console = _is_console(form, target or sys.stderr)
        self._target = target
        self._lines: list[bytes] = []

    def note(self, line: RequestLine) -> None:
        """Write the line, soon."""
        line.path = escape(line.path)
        if self._console:
            get().info(**msgspec.structs.asdict(line))
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)
        self._lines.append(msgspec.json.encode(line))
        if len(self._lines) >= _LINES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the waiting lines."""
        lines, self._lines = self._lines, []
        if lines:
            target = self._target or sys.stderr
            target.write(b"\n".join([*lines, b""]).decode())
            target.flush()


class FullLog:
    """Logs that something is full, at `critical` with the remedy, and that it has room again."""

    def __init__(self, monotonic: Callable[[], float], full: str, room: str, remedy: str) -> None:
        self._monotonic = monotonic
        self._full = full
        self._room = room
        self._remedy = remedy
        self._next_s = monotonic()
        self._said_full = False

    def change(self, figures: dict[str, object], *, is_full: bool) -> None:
        """It is full now, or not any more."""
        if is_full and self._monotonic() >= self._next_s:
            self._next_s, self._said_full = self._monotonic() + _FULL_QUIET_S, True
            get().critical(self._full, remedy=self._remedy, **figures)
        elif not is_full and self._said_full:
            self._said_full = False
            get().warning(self._room, **figures)


def trace(error: BaseException) -> list[str]:
    """Where an exception came from, outermost first. Without the lines' text: no file is read on the event
    loop.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return [f"{frame.f_code.co_filename}:{line} {frame.f_code.co_qualname}" for frame, line in frames]


def escape(text: str) -> str:
    """A client's text, cut and escaped to visible ASCII."""
    shown = text[:TEXT_CHARS_MAX]
    return shown if shown.isascii() and shown.isprintable() else shown.encode("unicode_escape").decode()


def _cut(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if isinstance(value, str) and name != "exception":
            event[name] = value[: 4 * TEXT_CHARS_MAX]
    return event


def _render(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """ASCII alone: no terminal and no log reader finds a control character or an odd line end in it."""
    return json.dumps(event, default=str, separators=(",", ":")).replace("\x7f", "\\u007f")
