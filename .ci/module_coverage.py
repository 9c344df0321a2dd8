"""Holds each module of the engine to a floor of its own, so that a bare one cannot hide behind the others.

Knows: coverage's JSON report, given as the only argument; the floor for the whole is in pyproject.toml.
Must never know: why a line is not covered.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

MODULE_PERCENT_MIN: Final = 80


def main(report: str) -> int:
    """Names every module below the floor, lines and branches together; 1 if there is one."""
    files: dict[str, dict[str, Any]] = json.loads(Path(report).read_text(encoding="utf-8"))["files"]
    covered = {name: file["summary"]["percent_covered"] for name, file in files.items()}
    below = {name: percent for name, percent in covered.items() if percent < MODULE_PERCENT_MIN}
    for name, percent in below.items():
        print(f"{name}: {percent:.0f} % covered, each module needs {MODULE_PERCENT_MIN} %", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
