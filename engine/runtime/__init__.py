"""The engine at work: the only asyncio below the doors.

Knows: turns (`engine`), and group commit (`writer`).
Must never know: what a command means, where commands come from, what a frame looks like.
"""

from engine.runtime.engine import Engine
from engine.runtime.writer import Fsync

__all__ = ["Engine", "Fsync"]
