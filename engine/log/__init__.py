"""The append-only log: a manifest, at most one base, and segments, in one directory.

Knows: which files belong to the log and in which order, how they are recovered after a crash, what is written
and what is synced, and when to stop trusting the disk.
Must never know: commands, the keyspace, or what a payload means; nor asyncio.
"""

from engine.log.errors import LogPoisonedError, LogRefusedError, StorageFullError
from engine.log.files import BaseFile, PreparedSegment, RunsFile
from engine.log.log import FrameBatch, Log, OpenFile
from engine.log.recovery import Recovery

__all__ = [
    "BaseFile",
    "FrameBatch",
    "Log",
    "LogPoisonedError",
    "LogRefusedError",
    "OpenFile",
    "PreparedSegment",
    "Recovery",
    "RunsFile",
    "StorageFullError",
]
