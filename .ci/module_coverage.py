"""Holds each package, and each module of the engine, to a floor of its own: none can hide behind others.

Knows: coverage's JSON report, given as the only argument; the floor for the whole is in pyproject.toml.
Must never know: why a line is not covered.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

# Lines and branches together. Gateways started as processes, and Spark's Python processes, are not measured.
PACKAGE_PERCENT_MIN: Final = {"app": 80, "engine": 90, "sdk/python/weir": 60, "spark/pyspark_weir": 60}
ENGINE_MODULE_PERCENT_MIN: Final = 80
_PARTS: Final = ("covered_lines", "covered_branches"), ("num_statements", "num_branches")

Summary = Mapping[str, float]


def below(files: Mapping[str, Summary]) -> Iterator[str]:
    """A sentence for everything below its floor; `files` are coverage's summaries by path."""
    for package, least in PACKAGE_PERCENT_MIN.items():
        found = [summary for name, summary in files.items() if name.startswith(f"{package}/")]
        percent = _percent(found)
        if percent < least:
            yield f"{package}: {percent:.1f} % covered, the package needs {least} %"
    for name, summary in files.items():
        percent = _percent([summary])
        if name.startswith("engine/") and percent < ENGINE_MODULE_PERCENT_MIN:
            least = ENGINE_MODULE_PERCENT_MIN
            yield f"{name}: {percent:.1f} % covered, each module of the engine needs {least} %"


def _percent(summaries: list[Summary]) -> float:
    covered, all_there = (sum(one[part] for one in summaries for part in parts) for parts in _PARTS)
    # A package without a single line was not measured; an empty module has nothing to cover.
    return 100 * covered / all_there if all_there else 100.0 * bool(summaries)


def main(report: str) -> int:
    """Names everything below its floor; 1 if there is anything."""
    files: dict[str, dict[str, Any]] = json.loads(Path(report).read_text(encoding="utf-8"))["files"]
    found = list(below({name: file["summary"] for name, file in files.items()}))
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
