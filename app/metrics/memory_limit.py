"""How much memory the gateway may use, and from when on cold entries leave it, where the settings leave that
open; and what is logged about it.

Knows: control groups (both versions), the machine's memory, the sentences of the log.
Must never know: how the engine counts.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from app.logs import FullLog
from app.settings import Settings
from engine import Memory

# The rest is for buffers of connections, for a rewrite, and for what the kernel counts beside the process.
_PART: Final = 0.75
# Of the limit, what may be in use before cold entries leave memory. The rest is for what comes while files
# are written, and for what cannot leave.
_SOFT_FIFTHS: Final = 3
_ROOT: Final = Path("/")
# Version 1 shows "no limit" as the highest multiple of a page below 2**63, version 2 as "max".
_UNLIMITED: Final = 1 << 60


def default_bytes(root: Path = _ROOT) -> int:
    """Three quarters of what the container has, or the machine where that is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min([machine, *_group_limits(root)]) * _PART)


class MemoryLimits(NamedTuple):
    """At `bytes_max` writes are refused; above `bytes_soft` cold entries leave memory, None is never."""

    bytes_max: int
    bytes_soft: int | None


def limits(settings: Settings) -> MemoryLimits:
    """Those that hold. What a backend has does not leave it."""
    most = settings.memory_bytes_max or default_bytes()
    soft = settings.memory_bytes_soft or most * _SOFT_FIFTHS // 5
    return MemoryLimits(most, soft if settings.is_embedded and soft < most else None)


def describe(settings: Settings) -> dict[str, str]:
    """What holds of the settings that leave it open, or that mean something else here, by their names."""
    most, soft = limits(settings)
    held = {} if settings.memory_bytes_max else {"memory_bytes_max": f"{most} bytes"}
    if not settings.is_embedded:
        return held | {"memory_bytes_soft": "never: the backend has the entries"}
    if soft is None:
        return held | {"memory_bytes_soft": f"never: it is not below the memory limit, {most} bytes"}
    return held | ({} if settings.memory_bytes_soft else {"memory_bytes_soft": f"{soft} bytes"})


def _group_limits(root: Path) -> Iterator[int]:
    """The limits of all control groups that the process is in; `root` is where /proc and /sys are."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield from _limits(root / "sys/fs/cgroup", path, ("memory.max", "memory.high"))
        elif "memory" in controllers.split(","):
            yield from _limits(root / "sys/fs/cgroup/memory", path, ("memory.limit_in_bytes",))


def _limits(mount: Path, path: str, names: tuple[str, ...]) -> Iterator[int]:
    """The limits of a group and of those above it. In a container only the mount's top may be there."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts) + 1):
        for name in names:
            text = _read(mount.joinpath(*parts[:depth], name)).strip()
            if text.isdecimal() and int(text) < _UNLIMITED:
                yield int(text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


class MemoryLog:
    """Logs when memory is full, and when there is room again."""

    def __init__(self, memory: Memory, monotonic: Callable[[], float]) -> None:
        self._memory = memory
        self._log = FullLog(
            monotonic,
            full="memory is full: writes get 507 memory_full; reads, acks, trims and deletes go on",
            room="there is room in memory again: writes go on",
            remedy="acknowledge what is pending, trim streams to fewer of their newest entries, or delete "
            "some; or raise memory_bytes_max and restart",
        )
        memory.on_change = self._change
        if memory.is_full:
            self._change(is_full=True)

    def _change(self, is_full: bool) -> None:  # noqa: FBT001 - what the engine calls it with
        self._log.change(self._figures(), is_full=is_full)

    def _figures(self) -> dict[str, object]:
        memory = self._memory
        return {
            "used_bytes": memory.used_bytes,
            "data_bytes": memory.estimated_bytes,
            "resident_bytes": memory.resident_bytes,
            "memory_bytes_max": memory.bytes_max,
        }
