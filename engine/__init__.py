"""Weir's engine: Redis Streams semantics in process, persisted in an append-only log.

Knows: the engine, its errors, clock and storage. Commands are in `engine.commands.types`, replies in
`engine.replies`.
Must never know: the web.

    async with Engine.open(Path("weir-data"), clock=SystemClock()) as engine:
        add = XAdd(stream="orders", bodies=[entries.body([("item", "apple")])])
        reply = await ask_one(engine, Call([add]))

`EngineProtocol` is what the gateway uses of an engine.
"""

from engine.backup import back_up
from engine.clock import Clock, SystemClock
from engine.errors import EngineError
from engine.histogram import Histogram
from engine.keyspace import Caps
from engine.log import LogPoisonedError, LogRefusedError
from engine.log_figures import Fsync, LogFigures, Rewrites, Rewritten
from engine.memory import Memory
from engine.protocol import (
    Call,
    CommandEngine,
    EngineProtocol,
    EngineProxy,
    Events,
    Figures,
    How,
    Reader,
    ask,
    ask_one,
    unexpected,
)
from engine.quotas import Quota
from engine.read_handle import Done, ReadHandle, Refused, Replies, taking_back
from engine.runtime import (
    SLOW_TURN_S,
    Engine,
    Growth,
    RewriteFailedError,
    Rewriter,
)
from engine.storage import Storage, StorageLockedError, StorageRefusedError, TargetRefusedError

__all__ = [
    "SLOW_TURN_S",
    "Call",
    "Caps",
    "Clock",
    "CommandEngine",
    "Done",
    "Engine",
    "EngineError",
    "EngineProtocol",
    "EngineProxy",
    "Events",
    "Figures",
    "Fsync",
    "Growth",
    "Histogram",
    "How",
    "LogFigures",
    "LogPoisonedError",
    "LogRefusedError",
    "Memory",
    "Quota",
    "ReadHandle",
    "Reader",
    "Refused",
    "Replies",
    "RewriteFailedError",
    "Rewriter",
    "Rewrites",
    "Rewritten",
    "Storage",
    "StorageLockedError",
    "StorageRefusedError",
    "SystemClock",
    "TargetRefusedError",
    "ask",
    "ask_one",
    "back_up",
    "taking_back",
    "unexpected",
]
