"""Which stream a position is of: the gap for a reader whose stream is not the one that it knew.

Knows: generations, how those that are gone have ended, what restoring a backup made of them.
Must never know: entries, commands, callers.

    a reader knows     the name has now            its gap says
    no generation      no stream                   nothing: its producer may come yet
    no generation      a stream that ends below    ahead
    a generation       no stream                   deleted, or expired
    a generation       another stream              recreated, or replaced; restored where a backup made it so
    a generation       that stream                 nothing, or ahead
"""

from collections import deque
from hashlib import blake2b
from typing import Final, NamedTuple

from engine.replies import Gap, PreviousStream

GENERATION_BYTES: Final = 8
# Restores that a reader may have missed and still gets as such; beyond, its stream is another.
SALTS_MAX: Final = 8
# Ends whose cause is kept, about 150 bytes each: readers that wait get it at once, slow ones later.
_ENDS_MAX: Final = 10_000
# Names of archived streams that have ended whose last owner is kept, about 250 bytes each: those of archives
# that run again after a weekend in which streams came and went.
PREVIOUS_MAX: Final = 10_000


class Generations:
    """What is known of streams that are no more. Ends are known since the start; salts, and who had a name
    last, are in the log.
    """

    def __init__(self) -> None:
        self.salts: deque[bytes] = deque(maxlen=SALTS_MAX)
        # By name, the one that ended last at the end.
        self.previous: dict[str, PreviousStream] = {}
        self._ends: dict[str, str] = {}

    def note_end(self, generation: str, cause: str) -> None:
        """Keep what ended a stream, where its absence alone does not say it: `expired` or `replaced`."""
        self._ends[generation] = cause
        if len(self._ends) > _ENDS_MAX:
            del self._ends[next(iter(self._ends))]

    def note_previous(self, previous: PreviousStream) -> None:
        """Keep the last owner of a name, which is gone."""
        self.previous.pop(previous.stream, None)
        self.previous[previous.stream] = previous
        if len(self.previous) > PREVIOUS_MAX:
            del self.previous[next(iter(self.previous))]

    def has_ended_by(self, generation: str, cause: str) -> bool:
        """Whether that is known to have ended the stream."""
        return self._ends.get(generation) == cause

    def goes_on(self, known: str, generation: str) -> bool:
        """Whether a position of one generation, empty for one that is not known, is of the stream that the
        other is of: it is the same, or a restore has changed it.
        """
        return known in ("", generation) or self.is_restored(known, generation)

    def regenerate(self, generation: str, salt: bytes) -> str:
        """The generation of the same stream after a restore."""
        return blake2b(generation.encode(), key=salt, digest_size=GENERATION_BYTES).hexdigest()

    def is_restored(self, known: str, generation: str) -> bool:
        """Whether the one became the other by one of the last restores, or by several."""
        salts = list(self.salts)
        for first in range(len(salts)):
            became = known
            for salt in salts[first:]:
                became = self.regenerate(became, salt)
            if became == generation:
                return True
        return False


class Identity(NamedTuple):
    """A stream as a position is compared with it. `was_filled`: it has had entries, or a last ID."""

    generation: str
    first_id: int
    last_id: int
    was_filled: bool


def is_another(cursor: int, known: str, there: Identity | None) -> bool:
    """Whether the reader gets a gap: `known` is the generation that it knows, empty for none."""
    if there is None:
        return bool(known)
    if known and known != there.generation:
        return True
    return cursor > there.last_id and there.was_filled


def gap_of(cursor: int, known: str, there: Identity | None, generations: Generations) -> Gap | None:
    """The reason of the gap, and where the reader goes on; None where its position is of this stream."""
    if not is_another(cursor, known, there):
        return None
    if there is None:
        has_expired = generations.has_ended_by(known, "expired")
        return Gap(cursor, 0, None, "expired" if has_expired else "deleted", 0)
    if not known or known == there.generation:
        return Gap(cursor, there.first_id, None, "ahead", there.last_id)
    if generations.is_restored(known, there.generation):
        return Gap(cursor, there.first_id, None, "restored", min(cursor, there.last_id))
    was_replaced = generations.has_ended_by(known, "replaced")
    return Gap(cursor, there.first_id, None, "replaced" if was_replaced else "recreated", 0)
