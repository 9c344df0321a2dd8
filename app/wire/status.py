"""How the gateway is, as operators see it.

Knows: the members of the answer. Must never know: routes, who asks.
"""

from typing import NamedTuple

import msgspec

from app.version import VERSION
from app.wire import upkeep
from engine import EngineProtocol, Memory


class Here(NamedTuple):
    """What the gateway says of itself: its state, how long it is there, connections, those that wait or
    follow, those that an unexpected exception has ended, and the last backup.
    """

    state: str
    uptime_ms: int
    connections: int
    following: int
    failed: int
    backup: msgspec.Struct


def written(engine: EngineProtocol, here: Here) -> bytes:
    """The whole answer."""
    return msgspec.json.encode(
        {
            "status": here.state,
            "version": VERSION,
            "uptime_ms": here.uptime_ms,
            "durability": {"fsync": engine.fsync, "answers": engine.durability},
            "log": engine.log_figures()._asdict(),
            "memory": _memory(engine.memory),
            "streams": engine.streams,
            "connections": {
                "open": here.connections,
                "following": here.following,
                "waiting_reads": engine.waiting,
                "failed": here.failed,
            },
            "rewrite": upkeep.rewrite_state(engine),
            "backup": here.backup,
        }
    )


def _memory(memory: Memory) -> dict[str, int | bool | None]:
    return {
        "used_bytes": memory.used_bytes,
        "data_bytes": memory.estimated_bytes,
        "resident_bytes": memory.resident_bytes,
        "bytes_max": memory.bytes_max,
        "full": memory.is_full,
    }
