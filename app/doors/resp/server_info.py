"""INFO: facts about the gateway under the names that programs look for.

Knows: the sections, and which facts there are. What there is not is left out, but for a few that clients and
exporters cannot do without.
Must never know: sockets, commands.
"""

import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Final

from app import VERSION
from app.doors.resp.port import Port as AnyPort
from app.doors.resp.session import ROUTE, RespSession
from app.operating import Phase

# The level of Redis whose stream commands are here.
REDIS_VERSION: Final = "8.8.0"
# What has the long sections too.
_EXTRA: Final = frozenset({b"all", b"everything"})
_LONG: Final = ("Commandstats",)
_EVERYTHING: Final = frozenset({b"all", b"everything", b"default"})
# Facts for every client.
_NARROW: Final = ("redis_version", "weir_version", "redis_mode", "role", "cluster_enabled")
_DONE: Final = 200
_MIB: Final = 1 << 20

Facts = dict[str, object]
Port = AnyPort[RespSession]


def text_of(port: Port, sections: Sequence[bytes], *, is_narrow: bool) -> bytes:
    """The text of these sections; without any, all of them. A client with a narrow token gets what clients
    look for when they connect, and no figures of all streams.
    """
    if is_narrow:
        facts = _server(port) | _replication(port) | _cluster(port)
        return _section("Server", {name: facts[name] for name in _NARROW})
    wanted = {section.lower() for section in sections}
    everything = not wanted or bool(wanted & _EVERYTHING)
    without = () if wanted & _EXTRA else _LONG
    found = [
        _section(name, facts(port))
        for name, facts in _SECTIONS.items()
        if (everything and name not in without) or name.lower().encode() in wanted
    ]
    return b"\r\n".join(found)


def _section(name: str, facts: Facts) -> bytes:
    return (f"# {name}\r\n" + "".join(f"{key}:{value}\r\n" for key, value in facts.items())).encode()


def _server(port: Port) -> Facts:
    settings, uptime_s = port.gateway.settings, port.gateway.operator.uptime_ms // 1000
    return {
        "redis_version": REDIS_VERSION,
        "weir_version": VERSION,
        "redis_git_sha1": "00000000",
        "redis_git_dirty": 0,
        "redis_mode": "standalone",
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "arch_bits": 64 if sys.maxsize > 1 << 32 else 32,
        "process_id": os.getpid(),
        "tcp_port": settings.resp.port if settings.resp else 0,
        "server_time_usec": port.gateway.clock.wall_ms() * 1000,
        "uptime_in_seconds": uptime_s,
        "uptime_in_days": uptime_s // 86_400,
        "config_file": "",
    }


def _clients(port: Port) -> Facts:
    sessions = port.sessions.values()
    return {
        "connected_clients": len(port.sessions),
        "maxclients": port.gateway.settings.sockets_max,
        "blocked_clients": sum(one.blocked is not None for one in sessions),
        "pubsub_clients": sum(one.is_subscriber for one in sessions),
        "watching_clients": sum(bool(one.watched) for one in sessions),
    }


def _memory(port: Port) -> Facts:
    if port.gateway.phase is not Phase.READY:
        return {}
    memory = port.gateway.engine.memory
    bytes_max = memory.bytes_max or 0
    return {
        "used_memory": memory.used_bytes,
        "used_memory_human": f"{memory.used_bytes / _MIB:.2f}M",
        "used_memory_rss": memory.resident_bytes,
        "used_memory_dataset": memory.estimated_bytes,
        "maxmemory": bytes_max,
        "maxmemory_human": f"{bytes_max / _MIB:.2f}M",
        "maxmemory_policy": "noeviction",
    }


def _persistence(port: Port) -> Facts:
    ready = port.gateway.phase is Phase.READY
    figures = port.gateway.engine.figures() if ready else None
    facts: Facts = {"loading": int(not ready), "async_loading": 0, "rdb_changes_since_last_save": 0}
    facts |= {"rdb_bgsave_in_progress": 0, "rdb_last_bgsave_status": "ok"}
    facts["aof_enabled"] = int(figures is None or figures.log is not None)
    if figures is not None and (log := figures.log) is not None:
        facts |= {
            "aof_rewrite_in_progress": int(figures.rewrites.running),
            "aof_last_write_status": "ok" if log.failure is None else "err",
            "aof_current_size": log.bytes,
            "aof_base_size": log.base_bytes,
        }
    return facts


def _stats(port: Port) -> Facts:
    return {
        "total_connections_received": port.accepted,
        "total_commands_processed": port.commands_run,
        "rejected_connections": port.rejected,
        "pubsub_channels": port.channels,
        "pubsub_patterns": port.patterns,
    }


def _commandstats(port: Port) -> Facts:
    """How often commands ran, by name; how long they took is not counted."""
    found: Facts = {}
    for route, by_status in sorted(port.gateway.reports.counters.requests.items()):
        kind, _, name = route.partition(" ")
        if kind == ROUTE and name:
            failed = sum(count for status, count in by_status.items() if status != _DONE)
            calls = f"calls={sum(by_status.values())},usec=0,usec_per_call=0.00"
            found[f"cmdstat_{name}"] = f"{calls},rejected_calls=0,failed_calls={failed}"
    return found


def _errorstats(port: Port) -> Facts:
    return {f"errorstat_{word}": f"count={count}" for word, count in sorted(port.log.errors.items())}


def _replication(_: Port) -> Facts:
    return {"role": "master", "connected_slaves": 0, "master_repl_offset": 0}


def _cpu(_: Port) -> Facts:
    times = os.times()
    return {"used_cpu_sys": f"{times.system:.6f}", "used_cpu_user": f"{times.user:.6f}"}


def _cluster(_: Port) -> Facts:
    return {"cluster_enabled": 0}


def _keyspace(port: Port) -> Facts:
    figures = port.gateway.engine.figures() if port.gateway.phase is Phase.READY else None
    if figures is None or not figures.streams:
        return {}
    expiring = figures.expiring_streams
    left_ms = max(0, figures.mean_expiry_ms - port.gateway.clock.wall_ms()) if expiring else 0
    return {"db0": f"keys={figures.streams},expires={expiring},avg_ttl={left_ms}"}


_SECTIONS: Final[dict[str, Callable[[Port], Facts]]] = {
    "Server": _server,
    "Clients": _clients,
    "Memory": _memory,
    "Persistence": _persistence,
    "Stats": _stats,
    "Commandstats": _commandstats,
    "Errorstats": _errorstats,
    "Replication": _replication,
    "CPU": _cpu,
    "Cluster": _cluster,
    "Keyspace": _keyspace,
}
