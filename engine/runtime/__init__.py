"""The engine at work: the only part of it that uses asyncio.

Knows: turns (`engine`), group commit (`writer`), rewriting the log (`rewriting`).
Must never know: what a command means, where commands come from, what a frame looks like.
"""

from engine.runtime.engine import Engine
from engine.runtime.resident import resident_bytes
from engine.runtime.rewriting import Growth, RewriteFailedError, Rewriter, Rewritten
from engine.runtime.turns import SLOW_TURN_S
from engine.runtime.waits import reply_of
from engine.runtime.writer import Fsync, LogFigures

__all__ = [
    "SLOW_TURN_S",
    "Engine",
    "Fsync",
    "Growth",
    "LogFigures",
    "RewriteFailedError",
    "Rewriter",
    "Rewritten",
    "reply_of",
    "resident_bytes",
]
