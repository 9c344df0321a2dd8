"""What a chart shows, as values; charts.py draws it.

Knows: which kinds of charts and of files there are.
Must never know: the library that draws, which an installation may do without.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark_weir.errors import OptionError

SUFFIXES: Final = (".png", ".svg", ".html")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `at_ms` are times in order (milliseconds since 1970 UTC); a None in `values` is a break."""

    name: str
    at_ms: Sequence[int]
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its parts by name, stacked in the order of the first bar that has them. `note` stands at its
    end.
    """

    name: str
    parts: Mapping[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """How durations are spread: buckets as first value, last value (milliseconds), count. `marks` are upright
    lines, by name.
    """

    name: str
    buckets: Sequence[tuple[int, int, int]]
    marks: Mapping[str, float] = field(default_factory=dict)


def checked(path: Path) -> Path:
    """The path, if a chart can be written under such a name. Raises OptionError."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"--plot {path}: a chart's name ends in {', '.join(SUFFIXES)}")
    return path
