"""Runs a gateway whose disk is slow: the first read of its log takes as many seconds as the argument says.

Knows: how `weir serve` is started, where its log is read. Must never know: what is tested with it.

    python tests/slow_start.py 5 python -m weir serve …
"""

import runpy
import sys
import time

from engine.storage import file


class SlowReader(file.FileReader):
    """A disk that has to spin up first."""

    left_s = 0.0

    def read(self, offset: int, length: int) -> bytes:
        """Return what there is, the first time late."""
        late_s, SlowReader.left_s = SlowReader.left_s, 0.0
        time.sleep(late_s)
        return super().read(offset, length)


if __name__ == "__main__":
    SlowReader.left_s = float(sys.argv[1])
    file.FileReader = SlowReader  # type: ignore[misc]
    module, *words = sys.argv[4:]
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
