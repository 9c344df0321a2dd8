"""`python -m tests.proof.storing_early serve …` is `weir serve` that stores each full node at once.

Each is a run by itself, in small files, a few at a time, and little of what is read is kept. So at nearly any
time something is stored, stored anew, rewritten or read.

Knows: what the engine goes by when it stores. Must never know: what is tested so.
"""

import sys
from typing import Final

from engine import Engine
from engine.runtime.storing import StoreBounds
from tests.bounds import move

EARLY: Final = StoreBounds(
    after_nodes=1,
    run_nodes_max=1,
    batch_bytes=2_000,
    file_bytes_max=8_000,
    pause_s=0.0,
    cache_bytes_max=1 << 19,
)
# The options of such a gateway: memory is short all the time, and so the log is rewritten.
STORING: Final = (
    *("--set", "memory_bytes_soft=1"),
    *("--bound", "rewrite_bytes_min=65536", "--set", "rewrite_growth_percent=1"),
)

if __name__ == "__main__":
    from weir.cli.entry import main

    Engine.store_bounds = EARLY
    sys.argv = move(sys.argv)
    main()
