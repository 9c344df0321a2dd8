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
# Groups that dead letters are counted for: more than a scrape shows.
_GROUPS_MAX: Final = 10_000

MovedEntry = tuple[str, str, int, str]


class DeadLetterLog:
    """Logs the dead letters of each turn. `total` and `by_group` count them since the start."""

    def __init__(self) -> None:
        self.total = 0
        # By stream and group, of the groups that were the first to have some.
        self.by_group: dict[tuple[str, str], int] = {}

    def note(self, letters: Sequence[MovedEntry]) -> None:
        """Count dead letters and log one warning for each group and reason."""
        self.total += len(letters)
        for (stream, group, reason), run in groupby(letters, lambda one: (one[0], one[1], one[3])):
            some = list(run)
            known = self.by_group.get((stream, group))
            if known is not None or len(self.by_group) < _GROUPS_MAX:
                self.by_group[stream, group] = (known or 0) + len(some)
            moved = [ids.format(entry_id) for _, _, entry_id, _ in some]
            logs.get().warning(
                "dead letters",
                stream=logs.escape(stream),
                group=logs.escape(group),
                reason=logs.escape(reason),
                count=len(moved),
                ids=moved[:_IDS_MAX],
            )
