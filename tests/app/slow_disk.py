"""A disk in memory whose syncs wait.

Knows: storage. Must never know: what waits for a sync.
"""

import threading
from typing import Final

from engine.storage.memory import Fault, MemoryStorage

_WAIT_S_MAX: Final = 20


class SlowDisk(MemoryStorage):
    """Its syncs wait until `gate` is set, as it is at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def step(self, operation: str, name: str) -> Fault | None:
        """See `MemoryStorage`."""
        if operation == "sync":
            assert self.gate.wait(_WAIT_S_MAX), "the gate opens before the deadline"
        return super().step(operation, name)
