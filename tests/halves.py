"""The half that a gate runs of what is tried at random or over and over. Another tree runs another half.

Nothing is left out for good: every run by hand, `make soak` and the nightly workflow are without `--half`.

Knows: the tree, which chooses. Must never know: what is tried.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

ROOT: Final = Path(__file__).parent.parent
SOURCES: Final = "app", "engine", "history", "sdk/python", "spark", "tests"
Name = TypeVar("Name")
_chosen_by: str | None = None


def tree() -> str:
    """A hash of all Python sources, whether or not git knows them."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in path.parts:
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def choose(by: str | None) -> None:
    """Halve by this tree from now on; by None, nothing is left out."""
    global _chosen_by  # noqa: PLW0603  # Modules ask when they are imported, which pytest does.
    _chosen_by = by


def are_whole() -> bool:
    """Whether nothing is left out."""
    return _chosen_by is None


def some(count: int) -> int:
    """How many random examples of this number are tried."""
    return count if _chosen_by is None else (count + 1) // 2


def half(names: Iterable[Name], *, at_most: bool = False) -> list[Name]:
    """Those of these that are tried, in their order: at least one, if there is any, and of an odd number
    `at_most` half. Their text chooses.
    """
    ordered = list(names)
    if _chosen_by is None:
        return ordered
    number = max(1, len(ordered) // 2) if at_most else some(len(ordered))
    ranked = sorted(range(len(ordered)), key=lambda place: _rank(f"{_chosen_by} {ordered[place]}"))
    return [ordered[place] for place in sorted(ranked[:number])]


def _rank(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
