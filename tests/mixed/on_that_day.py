"""`weir` on the day on which the old data was made: what ends with the time has not ended since.

Knows: when that was. Must never know: what is in the data.
"""

import runpy
import time
from typing import Final

from engine.clock import SystemClock

# 2026-11-26, 10:08 UTC: a minute behind the last record.
MADE_MS: Final = 1_795_687_680_000
_LATE_MS: Final = time.time_ns() // 1_000_000 - MADE_MS


def _wall_ms(_: SystemClock) -> int:
    return time.time_ns() // 1_000_000 - _LATE_MS


if __name__ == "__main__":
    SystemClock.wall_ms = _wall_ms  # type: ignore[method-assign,assignment]
    runpy.run_module("weir", run_name="__main__", alter_sys=True)
