"""A gateway of several processes, for tests.

Knows: its processes by their names. Must never know: what is tested.
"""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Final

from tests.server import Server, call

FRONTS: Final = 2
# The kernel gives each connection to a front by a hash: with this many, all on one is one of 2,000 cases.
CONNECTIONS: Final = 12
ROOT: Final = "a-root-token-of-enough-characters"
ADMIN: Final = {"authorization": f"Bearer {ROOT}"}


class Fronted(Server):
    """`weir serve --fronts 2`."""

    def __init__(self, data: Path, *options: str) -> None:
        super().__init__(data, "--fronts", str(FRONTS), *options)

    def processes(self) -> dict[str, int]:
        """The pids of the processes that have not ended, by name: `weir engine`, `weir front 1` and so on."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        found: dict[str, int] = {}
        for pid in children:
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if is_alive(int(pid)):
                    found[name] = int(pid)
        return found

    @property
    def engine_pid(self) -> int:
        return self.processes()["weir engine"]

    @property
    def front_pids(self) -> list[int]:
        return [pid for name, pid in self.processes().items() if name.startswith("weir front")]

    def kill_all(self) -> None:
        """Kill -9, all of them."""
        for pid in self.processes().values():
            os.kill(pid, signal.SIGKILL)
        self.kill()


def is_alive(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def add(server: Server, **fields: str) -> tuple[int, Any]:
    return call(server, "POST", "/v1/streams/s/entries", {"fields": fields or {"a": "1"}})


def make_token(server: Server) -> tuple[str, dict[str, str]]:
    """A token's ID, and the header to use it with."""
    body = {"grants": [{"actions": ["read", "write", "manage"], "streams": "*"}]}
    status, made = call(server, "POST", "/v1/admin/tokens", body, ADMIN)
    assert status == 201, made
    return made["id"], {"authorization": f"Bearer {made['token']}"}
