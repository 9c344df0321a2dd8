"""Reports dead letters to operators: a warning in the log, and a count; a count of what expires.

Knows: which entries were dead-lettered or could not be, of which group, and why.
Must never know: what entries contain.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from app import logs
from engine import ids

# IDs in one line of the log; all of them are in the dead-letter stream.
_IDS_MAX: Final = 10
# Groups that dead letters are counted for: more than a scrape shows.
_GROUPS_MAX: Final = 10_000

# A group whose entries cannot be moved has one line in this time: they are tried again at each delivery.
_QUIET_S: Final = 60.0
_REMEDY: Final = "make room for the dead-letter stream, or name another one in the group's dead_letter"

# Stream, group, ID and reason.
MovedEntry = tuple[str, str, int, str]
# Stream, group, dead-letter stream and why it takes none.
RefusedEntry = tuple[str, str, str, str]


class DeadLetterLog:
    """Logs the dead letters of each turn. `total` and `by_group` count them since the start, `refused_total`
    the attempts that failed.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.total = 0
        # Entries that were too old to be delivered, with a dead letter or without.
        self.expired_total = 0
        self.refused_total = 0
        self._monotonic = monotonic
        # Until when nothing is logged of entries of a stream and group that cannot be moved.
        self._quiet_until_s: dict[tuple[str, str], float] = {}
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

    def note_expired(self, expired: Sequence[tuple[str, str, int]]) -> None:
        """Count entries that were too old to be delivered, by stream and group."""
        self.expired_total += sum(count for _, _, count in expired)

    def note_refused(self, refused: Sequence[RefusedEntry]) -> None:
        """Count entries that could not be moved, and log them once a minute for each group."""
        self.refused_total += len(refused)
        now_s = self._monotonic()
        for (stream, group, letters, why), count in Counter(refused).items():
            if now_s < self._quiet_until_s.get((stream, group), now_s):
                continue
            if len(self._quiet_until_s) >= _GROUPS_MAX:
                self._quiet_until_s.clear()
            self._quiet_until_s[stream, group] = now_s + _QUIET_S
            logs.get().error(
                "dead letters cannot be moved",
                stream=logs.escape(stream),
                group=logs.escape(group),
                dead_letter_stream=logs.escape(letters),
                reason=logs.escape(why),
                count=count,
                remedy=_REMEDY,
            )
