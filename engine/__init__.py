"""Weir's engine: Redis Streams semantics in process, persisted in an append-only log.

Knows: the engine, its errors, clock and storage. Commands are in `engine.commands`, replies in
`engine.replies`.
Must never know: the web.

    engine = Engine.open(Path("weir-data"), clock=SystemClock())
    await engine.start()
    reply = await engine.execute(XAdd(stream="orders", bodies=[entries.body([("item", "apple")])]))
"""

from engine.clock import Clock, SystemClock
from engine.copies import back_up
from engine.errors import EngineError
from engine.keyspace import Caps
from engine.log import LogPoisoned, LogRefused
from engine.memory import Memory
from engine.runtime import Engine, Fsync, Growth, LogFigures, RewriteFailed, Rewriter, Rewritten
from engine.storage import Storage, StorageLocked, StorageRefused

__all__ = [
    "Caps",
    "Clock",
    "Engine",
    "EngineError",
    "Fsync",
    "Growth",
    "LogFigures",
    "LogPoisoned",
    "LogRefused",
    "Memory",
    "RewriteFailed",
    "Rewriter",
    "Rewritten",
    "Storage",
    "StorageLocked",
    "StorageRefused",
    "SystemClock",
    "back_up",
]
