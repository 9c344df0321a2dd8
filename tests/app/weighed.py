"""A gateway that weighs one request: memory and turns of its loop from one word of its client to the next.

Knows: the pools, the highest resident memory of a process (proc(5)), processor time.
Must never know: what is asked, what it may take.

    python -m tests.app.weighed DATA       is forked with a socket as its standard input (`tests.preloaded`)

    client                     gateway
      │  <───────────── {"port"}  │  it listens
      │  begin ────────────────>  │  what it has is its base
      │  <────────────────── {}   │
      │  end ──────────────────>  │
      │  <───────────── figures   │  and it ends
"""

import asyncio
import ctypes
import gc
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from app.main import App, create_app
from app.server import http_server
from app.settings import Settings
from engine import Call, Done, Engine, SystemClock
from engine.read_handle import Replies
from tests.turns import slowness

# As the gateway's own: how long a thread keeps the interpreter's lock while the loop waits.
_SWITCH_S: Final = 0.0005
_WORD_BYTES_MAX: Final = 100
# A larger pool refuses nothing: what it holds is what readers ask for.
SETTINGS: Final = Settings(log_requests="none", durable_streams=True, buffer_bytes_max=1 << 30)


def _resident_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


class WeighedEngine(Engine):
    """It has `asked` called before a command."""

    asked: Callable[[], None] | None = None

    def send(self, call: Call, done: Done) -> Replies | None:
        """As the engine does."""
        if self.asked is not None:
            self.asked()
        return super().send(call, done)


class Scales:
    """What a request takes beside what there is when it begins: until the engine is first asked, to read it;
    and until the end.
    """

    def __init__(self, app: App) -> None:
        self._pools = app.gateway.limits.budgets.bodies, app.gateway.limits.budgets.output
        self._loop = asyncio.get_running_loop()
        self._base_bytes = 0
        self._read: tuple[int, int] | None = None
        self._longest_s = self._before_s = 0.0
        self._are_turning = False

    def begin(self) -> None:
        """What is there now is the base."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        for pool in self._pools:
            pool.peak_bytes = pool.held_bytes
        Path("/proc/self/clear_refs").write_text("5")
        self._base_bytes = _resident_bytes("VmRSS")
        self._are_turning, self._before_s = True, time.process_time()
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._end_turn()
        if self._are_turning:
            self._loop.call_soon(self._turn)

    def _end_turn(self) -> None:
        """All threads' processor time since the last turn: one that keeps the interpreter keeps the loop."""
        now_s = time.process_time()
        if self._read is None:
            self._longest_s = max(self._longest_s, now_s - self._before_s)
        self._before_s = now_s

    def note_read(self) -> None:
        """What comes is the engine's, whose turns `tests/engine/test_stalls.py` holds."""
        if self._are_turning and self._read is None:
            self._end_turn()
            self._read = self._weigh()

    def _weigh(self) -> tuple[int, int]:
        held = sum(pool.peak_bytes for pool in self._pools)
        return _resident_bytes("VmHWM") - self._base_bytes, held

    def end(self) -> dict[str, float]:
        """The figures since then."""
        self._are_turning = False
        taken, held = self._weigh()
        read, held_to_read = self._read or (taken, held)
        return {
            "read_bytes": read,
            "held_to_read_bytes": held_to_read,
            "taken_bytes": taken,
            "held_bytes": held,
            "turn_s": self._longest_s / slowness(),
        }


async def _serve(client: socket.socket, data: Path) -> None:
    sys.setswitchinterval(_SWITCH_S)
    client.settimeout(0)
    loop = asyncio.get_running_loop()
    app = create_app(SETTINGS, SystemClock())
    engine = WeighedEngine.open(data, clock=SystemClock(), fsync="no")
    await engine.start()
    app.life.open(engine)
    server = await loop.create_server(http_server(SETTINGS, app).connect, "127.0.0.1")

    async def say(said: object) -> None:
        await loop.sock_sendall(client, json.dumps(said).encode() + b"\n")

    await say({"port": server.sockets[0].getsockname()[1]})
    scales = Scales(app)
    assert isinstance(engine, WeighedEngine), "it was opened as one"
    engine.asked = scales.note_read
    if await loop.sock_recv(client, _WORD_BYTES_MAX):
        scales.begin()
        await say({})
        if await loop.sock_recv(client, _WORD_BYTES_MAX):
            await say(scales.end())


if __name__ == "__main__":
    with socket.socket(fileno=os.dup(0)) as ours:
        uvloop.run(_serve(ours, Path(sys.argv[1])))
    # What is left is open connections.
    os._exit(0)
