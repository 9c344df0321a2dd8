"""The log that people and programs read: one JSON object a line on standard error.

Knows: how lines are made and escaped. Must never know: what stands in a stream; no entry ever gets here.
"""

import json
import logging
import sys
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

# What a client sent, a path or a user agent, is cut here.
text_chars_max: Final = 256

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
    renderer: Processor = structlog.dev.ConsoleRenderer(colors=False) if form == "console" else _render
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


def get() -> Any:  # noqa: ANN401 - structlog's loggers have whatever method the level allows
    """A logger: `get().info("event", name=value)`."""
    return structlog.get_logger()


def escaped(text: str) -> str:
    """Text of a client's making, cut and on one line whatever it holds."""
    shown = text[:text_chars_max]
    return shown if shown.isprintable() else json.dumps(shown)[1:-1].replace("\x7f", "\\u007f")


def _cut(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if isinstance(value, str) and name != "exception":
            event[name] = value[: 4 * text_chars_max]
    return event


def _render(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """ASCII alone: no terminal and no log reader finds a control character or an odd line end in it."""
    return json.dumps(event, default=str, separators=(",", ":")).replace("\x7f", "\\u007f")
