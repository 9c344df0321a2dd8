"""Dead letters as operators meet them: a warning in the log, and a number.

Knows: which entries became dead letters, of which group, why. Must never know: what stands in them.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from app import logs
from engine import ids

# So many IDs stand in one line; the others are in the dead-letter stream.
_IDS_MAX: Final = 10

MovedEntry = tuple[str, str, int, str]


class DeadLetterLog:
    """Told of each turn's dead letters: stream, group, ID and reason. `total` is how many there were."""

    def __init__(self) -> None:
        self.total = 0

    def note(self, letters: Sequence[MovedEntry]) -> None:
        """Count them; one warning for each group and reason."""
        self.total += len(letters)
        for (stream, group, reason), some in groupby(letters, lambda one: (one[0], one[1], one[3])):
            moved = [ids.text(entry_id) for _, _, entry_id, _ in some]
            logs.get().warning(
                "dead letters",
                stream=logs.escape(stream),
                group=logs.escape(group),
                reason=logs.escape(reason),
                count=len(moved),
                ids=moved[:_IDS_MAX],
            )
