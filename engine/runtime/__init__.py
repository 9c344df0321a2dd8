"""The engine at work: the only part of it that uses asyncio.

Knows: turns (`engine`), group commit (`writer`), rewriting the log (`rewriting`).
Must never know: what a command means, where commands come from, what a frame looks like.
"""

from engine.runtime.engine import Engine
from engine.runtime.resident import resident_bytes
from engine.runtime.rewriting import Growth, RewriteFailedError, Rewriter
from engine.runtime.turns import SLOW_TURN_S

__all__ = [
    "SLOW_TURN_S",
    "Engine",
    "Growth",
    "RewriteFailedError",
    "Rewriter",
    "resident_bytes",
]
