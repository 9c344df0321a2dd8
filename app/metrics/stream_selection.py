"""Streams that a setting names by patterns.

Knows: patterns, and what was matched before. Must never know: what the streams are selected for.
"""

from collections.abc import Iterable, Sequence

from app.glob import Glob


class StreamSelection:
    """The streams whose names match one of some patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._globs = [Glob(pattern.encode()) for pattern in patterns]
        self._is_selected: dict[str, bool] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether there is any pattern."""
        return bool(self._globs)

    @property
    def selected(self) -> Sequence[str]:
        """Those that `select` has found last, in its order."""
        return [name for name, is_selected in self._is_selected.items() if is_selected]

    def select(self, names: Iterable[str]) -> None:
        """Select among all names. Each is matched once for as long as it is there, which takes microseconds:
        run this in a thread.
        """
        known = self._is_selected
        self._is_selected = {
            name: known[name] if name in known else self._matches(name.encode()) for name in names
        }

    def _matches(self, word: bytes) -> bool:
        return any(glob.matches(word) for glob in self._globs)
