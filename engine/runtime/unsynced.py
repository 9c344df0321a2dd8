"""What a crash may lose: for each stream, the lowest ID whose frame is not on disk.

Knows: positions of frames, and the streams to which they added entries.
Must never know: commands, syncing, waiting.

    epochs   (upto 900, {a: 5-0, b: 7-1})     frames before the sync in progress, together
    fresh    {a: 12-0}                        frames since that sync began, for the next one

Entries added before the same sync form one epoch, which is on disk when its last frame is. So of a frame,
only its stream and the lowest ID are kept. A stream that is removed and created again needs no care: its
entries come in frames after the removal. A stream that gets its name with entries in it (by a rename, as a
copy) counts as a whole.
"""

from collections import deque
from collections.abc import Sequence

from engine import ids
from engine.record import Record
from engine.records.changes import Append, CopyStream, RenameStream, SetCounters
from engine.records.restored import RestoreStream


class UnsyncedPositions:
    """The positions of entries that are not on disk yet, by epoch. It must see every frame and every sync."""

    __slots__ = ("_epochs", "_fresh", "_upto")

    def __init__(self) -> None:
        self._epochs: deque[tuple[int, dict[str, int]]] = deque()
        self._fresh: dict[str, int] = {}
        self._upto = 0

    def note_staged(self, records: Sequence[Record], position: int) -> None:
        """A frame of these records ends at `position`."""
        self._upto = position
        for record in records:
            # `isinstance` would take several times as long, for each stream that a publication creates.
            if type(record) is Append:
                self._note(record.stream, record.ids[0])
            elif type(record) is SetCounters:
                self._note(record.stream, record.last_id)
            elif type(record) is CopyStream or type(record) is RestoreStream:
                self._note(record.stream, ids.ID_MIN + 1)
            elif type(record) is RenameStream:
                self._note(record.target, ids.ID_MIN + 1)

    def _note(self, stream: str, lowest: int) -> None:
        if lowest < self._fresh.get(stream, ids.ID_MAX + 1):
            self._fresh[stream] = lowest

    def begin_sync(self) -> None:
        """Note that a sync begins: it covers neither frames that are staged later nor those not yet
        written.
        """
        if self._fresh:
            self._epochs.append((self._upto, self._fresh))
            self._fresh = {}

    def note_synced(self, durable_upto: int) -> list[str]:
        """Note that all frames up to there are on disk. Returns the streams that have more entries on disk
        now.
        """
        if self._upto <= durable_upto:
            self.begin_sync()
        grown: dict[str, int] = {}
        while self._epochs and self._epochs[0][0] <= durable_upto:
            grown |= self._epochs.popleft()[1]
        return list(grown)

    def lowest(self, stream: str) -> int:
        """The lowest ID of the stream that a crash may lose; greater than all IDs if there is none."""
        beyond = ids.ID_MAX + 1
        waiting = [epoch.get(stream, beyond) for _, epoch in self._epochs]
        return min(self._fresh.get(stream, beyond), *waiting, beyond)
