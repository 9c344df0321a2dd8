"""The examples of the calls about the gateway itself; see `examples`.

Knows: the same gateway. Must never know: how anything is served. A test sends each of them.
"""

from collections.abc import Mapping
from typing import Final

from app.openapi.operation import Example

EXAMPLES: Final[Mapping[str, Mapping[str, Example]]] = {
    "getStatus": {
        "ready": Example(
            summary="All is well",
            answer={
                "status": "ready",
                "version": "0.1.0",
                "uptime_ms": 86400000,
                "durability": {"fsync": "everysec", "answers": "os"},
                "log": {
                    "bytes": 1186,
                    "base_bytes": 0,
                    "unsynced_bytes": 0,
                    "answers_waiting": 0,
                    "failure": None,
                },
                "memory": {
                    "used_bytes": 0,
                    "data_bytes": 0,
                    "resident_bytes": 104857600,
                    "bytes_max": 1073741824,
                    "full": False,
                },
                "streams": 3,
                "connections": {"open": 0, "following": 0, "waiting_reads": 0, "failed": 0},
                "rewrite": {
                    "state": "none",
                    "bytes_before": None,
                    "bytes_after": None,
                    "duration_ms": None,
                    "error": None,
                },
                "backup": {
                    "state": "none",
                    "name": None,
                    "started_ms": None,
                    "ended_ms": None,
                    "files": None,
                    "frames": None,
                    "bytes": None,
                    "error": None,
                },
            },
        ),
    },
}
