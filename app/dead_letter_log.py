"""Reports dead letters to operators: a warning in the log, and a count.

Knows: which entries were dead-lettered, of which group, and why. Must never know: what entries contain.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from app import logs
from engine import ids

# IDs in one line of the log; all of them are in the dead-letter stream.
_IDS_MAX: Final = 10

MovedEntry = tuple[str, str, int, str]


class DeadLetterLog:
    """Logs the dead letters of each turn. `total` counts them since the start."""

    def __init__(self) -> None:
        self.total = 0

    def note(self, letters: Sequence[MovedEntry]) -> None:
        """Count dead letters and log one warning for each group and reason."""
        self.total += len(letters)
        for (stream, group, reason), some in groupby(letters, lambda one: (one[0], one[1], one[3])):
            moved = [ids.format(entry_id) for _, _, entry_id, _ in some]
            logs.get().warning(
                "dead letters",
                stream=logs.escape(stream),
                group=logs.escape(group),
                reason=logs.escape(reason),
                count=len(moved),
                ids=moved[:_IDS_MAX],
            )
