"""What the engine's process reports of its engine to the fronts a few times a second.

Knows: the engine's figures, and its memory. Must never know: how they travel.
"""

from collections.abc import Callable

import msgspec

from engine import EngineProtocol, Figures, Memory


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine at one moment."""

    figures: Figures
    memory_used_bytes: int
    memory_estimated_bytes: int
    memory_resident_bytes: int
    memory_bytes_max: int | None
    memory_bytes_soft: int | None

    @classmethod
    def of(cls, engine: EngineProtocol) -> "EngineReport":
        """As it is now."""
        memory = engine.memory
        return cls(
            figures=engine.figures(),
            memory_used_bytes=memory.used_bytes,
            memory_estimated_bytes=memory.estimated_bytes,
            memory_resident_bytes=memory.resident_bytes,
            memory_bytes_max=memory.bytes_max,
            memory_bytes_soft=memory.bytes_soft,
        )


class ReportedMemory(Memory):
    """The memory of the engine's process, as last reported."""

    def __init__(self, report: Callable[[], EngineReport]) -> None:
        super().__init__(report().memory_bytes_max, report().memory_bytes_soft)
        self._report = report
        self.resident_bytes = report().memory_resident_bytes

    @property
    def estimated_bytes(self) -> int:
        return self._report().memory_estimated_bytes

    @property
    def used_bytes(self) -> int:
        return self._report().memory_used_bytes
