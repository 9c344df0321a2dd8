"""The audit log: one JSON line for each action on tokens, and for each that manages streams or the gateway.

Knows: the form of a line, and that the file may be moved away. Must never know: what stands in a body.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from app import logs

# Beside `timestamp`; facts of an action come between `action` and `outcome`.
Facts = Mapping[str, object]
_REMEDY: Final = "actions go on unrecorded: make room, or set another audit_file; SIGHUP opens it again"


# Facts that are names of streams.
_STREAMS: Final = frozenset({"stream", "streams"})


def _prefixed(value: object, prefix: str) -> object:
    return [f"{prefix}{name}" for name in value] if isinstance(value, list | tuple) else f"{prefix}{value}"


class AuditLog:
    """The audit log of one gateway; without a path there is none. A thread writes the lines, in order."""

    def __init__(self, path: str, wall_ms: Callable[[], int]) -> None:
        self._path = path
        self._wall_ms = wall_ms
        self._file: BinaryIO | None = None
        self._failed = False
        self._writer = ThreadPoolExecutor(1, "weir-audit") if path else None

    @property
    def is_on(self) -> bool:
        """Whether lines are kept."""
        return self._writer is not None

    @property
    def is_failing(self) -> bool:
        """Whether the last line could not be written."""
        return self._failed

    def note(
        self, request_id: str, caller: str, facts: Facts, *, prefix: str, status: int, code: str
    ) -> None:
        """Write a line: the caller, the request, and how it ended. `code` is that of a refusal, else empty.
        Names of streams get the caller's `prefix`, so that they are those of operators.
        """
        if self._writer is None:
            return
        time = datetime.fromtimestamp(self._wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        line = {
            "timestamp": time.replace("+00:00", "Z"),
            "request_id": request_id,
            "caller": caller,
            **{name: _prefixed(fact, prefix) if name in _STREAMS else fact for name, fact in facts.items()},
            "outcome": code or "done",
            "status": status,
        }
        self._writer.submit(self._write, msgspec.json.encode(line) + b"\n")

    def reopen(self) -> None:
        """Open the file of this name, at the start and after the old one was moved away. One that cannot be
        opened is reported now, not with the first line that is lost.
        """
        if self._writer is not None:
            self._writer.submit(self._close)
            self._writer.submit(self._write, b"")

    def flush(self) -> None:
        """Return when every line is written. Blocks; nothing can be kept any more."""
        if self._writer is not None:
            self._writer.submit(self._close)
            self._writer.shutdown()
            self._writer = None

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._failed = False

    def _write(self, line: bytes) -> None:
        try:
            if self._file is None:
                self._file = Path(self._path).open("ab", buffering=0)  # noqa: SIM115 - it stays open
            self._file.write(line)
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._failed = True
                reason = error.strerror or str(error)
                logs.get().critical("the audit log cannot be written", reason=reason, remedy=_REMEDY)
