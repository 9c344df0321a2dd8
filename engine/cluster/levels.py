"""What a server is, by its own account, and what clients cannot have over it.

Knows: the facts that a server says of itself. Must never know: connections.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from engine.cluster.wire import Words

# What clients cannot have over any server yet.
ALWAYS_MISSING: Final = (
    *("trimming by references", "idempotent producers"),
    *(
        "WATCH",
        "quotas",
        "keyspace notifications",
        "backup and rewrite",
    ),
)
# The replies to these say what a server is.
QUESTIONS: Final[Sequence[Words]] = (
    ("INFO", "server"),
    ("INFO", "persistence"),
    ("INFO", "replication"),
    ("COMMAND", "INFO", "WAITAOF"),
)

# Refused where writes are, for want of memory, of replicas, of a disk or of rights; it writes nothing.
PROBE_OF_WRITES: Final[Words] = ("EVAL", "#!lua\nreturn 1", 0)


class Level(msgspec.Struct, frozen=True):
    """The name and version of a server, for people. `syncs`: it says when a write is on its disk. `replicas`:
    how many are connected to it, of several servers to each at least; `replicas_most`: to one of them.
    `primary`: whose replica it is, empty if it is none.
    """

    name: str = "unknown"
    syncs: bool = True
    replicas: int = 0
    replicas_most: int = 0
    primary: str = ""


def level_of(info: bytes, persistence: bytes, replication: bytes, waitaof: Sequence[Any]) -> Level:
    """The level by the replies to `QUESTIONS`."""
    lines = (info + replication).decode().splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    valkey = facts.get("valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {facts.get('redis_version', '')}"
    syncs = any(waitaof) and b"aof_enabled:1" in persistence
    primary = ":".join(facts[name] for name in ("master_host", "master_port") if name in facts)
    replicas = int(facts.get("connected_slaves", 0))
    return Level(name, syncs, replicas, replicas, primary)


def run_of(info: bytes) -> str:
    """The run of a server, new each time it is started, by its reply to the first of `QUESTIONS`."""
    return info.partition(b"run_id:")[2].partition(b"\r\n")[0].decode()


def least(levels: Sequence[Level]) -> Level:
    """What all servers of a backend are, under the names that they have."""
    names = dict.fromkeys(sorted(level.name for level in levels))
    return Level(
        ", ".join(names),
        syncs=all(level.syncs for level in levels),
        replicas=min(level.replicas for level in levels),
        replicas_most=max(level.replicas_most for level in levels),
        primary=next((level.primary for level in levels if level.primary), ""),
    )
