"""Holds each package, and each module of the engine, to a floor of its own: none can hide behind others.

Knows: coverage's JSON report, given as the only argument.
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
PERCENT_MIN: Final = 75  # of all together
_PARTS: Final = ("covered_lines", "covered_branches"), ("num_statements", "num_branches")

Summary = Mapping[str, float]


def below(files: Mapping[str, Summary]) -> Iterator[str]:
    """A sentence for everything below its floor; `files` are coverage's summaries by path."""
    percent = _percent(list(files.values()))
    if percent < PERCENT_MIN:
        yield f"all: {percent:.1f} % covered, the whole needs {PERCENT_MIN} %"
    for package, least in PACKAGE_PERCENT_MIN.items():
        percent = package_percent(files, package)
        if percent < least:
            yield f"{package}: {percent:.1f} % covered, the package needs {least} %"
    for name, summary in files.items():
        percent = _percent([summary])
        if name.startswith("engine/") and percent < ENGINE_MODULE_PERCENT_MIN:
            least = ENGINE_MODULE_PERCENT_MIN
            yield f"{name}: {percent:.1f} % covered, each module of the engine needs {least} %"


def package_percent(files: Mapping[str, Summary], package: str) -> float:
    """Lines and branches of a package that were run, of a hundred."""
    return _percent([summary for name, summary in files.items() if name.startswith(f"{package}/")])


def _percent(summaries: list[Summary]) -> float:
    covered, all_there = (sum(one[part] for one in summaries for part in parts) for parts in _PARTS)
    # A package without a single line was not measured; an empty module has nothing to cover.
    return 100 * covered / all_there if all_there else 100.0 * bool(summaries)


def main(report: str) -> int:
    """Says what each package has, and names everything below its floor; 1 if there is anything."""
    files: dict[str, dict[str, Any]] = json.loads(Path(report).read_text(encoding="utf-8"))["files"]
    summaries: dict[str, Summary] = {name: file["summary"] for name, file in files.items()}
    packages = (f"{package} {package_percent(summaries, package):.1f} %" for package in PACKAGE_PERCENT_MIN)
    print(f"covered: {', '.join(packages)}; line by line with .venv/bin/coverage report")
    found = list(below(summaries))
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
