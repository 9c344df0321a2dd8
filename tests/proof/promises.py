"""What was promised up to a moment, seen from outside: frames on their way to the disk, answers that have
left, IDs that were shown.

Knows: which state each whole frame leads to; by when an answer must survive which kind of crash.
Must never know: how the engine keeps its word.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from engine import Fsync
from engine.codec import FILE_PAYLOAD, HEADER, HEADER_BYTES, Kind
from engine.ids import ID_MAX
from engine.keyspace import Keyspace
from engine.log.manifest import file_number
from engine.record import Record
from engine.records import changes
from engine.records.durable import ForkStored, ForkStream
from engine.records.payload import decode
from tests.engine.images import image

# docs/durability.md: what everysec may lose.
LOST_S_MAX: Final = 2.0
# What a clock that adds up in floating point may be off.
_ROUNDING_S: Final = 0.001


class SentAnswer(NamedTuple):
    """An answer that has left: when, what it was for, and the log position on which it stands."""

    at_s: float
    position: int
    what: str


class Life(NamedTuple):
    """A stream from its creation to its end: in another one of the same name the same IDs may come again."""

    stream: str
    created_at: int


class Promises:
    """Filled while an engine runs; asked for each disk that a crash may leave."""

    def __init__(self, fsync: Fsync, *, stores: bool = False) -> None:
        self.fsync = fsync
        # Whether entries go to files: then there is a second shadow, in which they never do.
        self.stores = stores
        self.frames: list[tuple[int, bytes]] = []  # the position of the end, and the payload
        self._file_positions: dict[str, int] = {}
        self.acknowledged: list[SentAnswer] = []
        self.synced_upto = 0
        self.cuts = 0  # how often the log went on from less than it was
        self.chosen: set[tuple[str, int]] = set()  # IDs that clients chose themselves
        self._shown: dict[Life, int] = {}  # the highest ID of the engine's own making
        # The same of those that are in no log any more, and the position at which they were lost.
        self._lost: dict[str, tuple[int, int]] = {}
        self._begin_at(0)

    def _begin_at(self, end: int) -> None:
        """Go through the frames up to a position again, from the beginning."""
        kept = [frame for frame in self.frames if frame[0] <= end]
        self.frames.clear()
        self._ends = [0]
        self._shadow = Keyspace()
        self._images = [image(self._shadow)]
        self._plain = Keyspace()
        self._contents = [contents(self._plain)]
        self._lives: dict[str, Life] = {}
        self._ended: dict[Life, int] = {}
        self._removed: dict[str, int] = {}
        # Where each entry, and each delivery to a consumer, was logged.
        self._added: dict[tuple[str, int], list[tuple[int, Life]]] = {}
        self._delivered: dict[tuple[str, str, str, int], list[int]] = {}
        for frame in kept:
            self._framed(*frame)

    # --- frames ---------------------------------------------------------------------------------------------

    def appended(self, name: str, offset: int, content: bytes) -> None:
        """Take note of the frames that a segment is about to get. They come again where the disk had no
        room.
        """
        if not name.startswith("segment-") or file_number(name) is None:
            return
        at = 0
        while at + HEADER_BYTES <= len(content):
            fields = HEADER.unpack_from(content, at)
            payload = content[at + HEADER_BYTES : at + HEADER_BYTES + fields[4]]
            at += HEADER_BYTES + len(payload)
            if fields[2] == Kind.FILE:
                self._file_positions[name] = FILE_PAYLOAD.unpack(payload)[1]
            elif fields[2] == Kind.RECORDS:
                end = self._file_positions[name] + offset + at
                if end > self._ends[-1]:
                    self._framed(end, payload)
                else:
                    assert (end, payload) in self.frames, "what is written again is what it was"

    def _framed(self, end: int, payload: bytes) -> None:
        for record in decode(payload):
            self._note(record, end)
            record.apply(self._shadow)
        self.frames.append((end, payload))
        self._ends.append(end)
        self._images.append(image(self._shadow))
        if self.stores:
            for record in decode(payload):
                if not isinstance(record, changes.Stored):
                    _in_memory(record).apply(self._plain)
            self._contents.append(contents(self._plain))

    def _note(self, record: Record, end: int) -> None:
        if isinstance(record, changes.CreateStream | changes.CopyStream | ForkStream):
            self._lives[record.stream] = Life(record.stream, end)
        elif isinstance(record, changes.RenameStream):
            self._end(record.stream, end)
            self._end(record.target, end)
            self._lives[record.target] = Life(record.target, end)
        elif isinstance(record, changes.RemoveStream | changes.SetCounters):
            # After an XSETID the IDs may go back by intent.
            self._end(record.stream, end)
            self._lives[record.stream] = Life(record.stream, end)
        elif isinstance(record, changes.RemoveAll):
            for stream in {*self._lives, *self._lost}:
                self._end(stream, end)
        elif isinstance(record, changes.Append):
            life = self._lives[record.stream]
            for entry_id in record.ids:
                self._added.setdefault((record.stream, entry_id), []).append((end, life))
        elif isinstance(record, changes.Own):
            for entry_id in record.ids:
                key = (record.stream, record.group, record.consumer, entry_id)
                self._delivered.setdefault(key, []).append(end)

    def _end(self, stream: str, end: int) -> None:
        self._removed[stream] = end
        if stream in self._lives:
            self._ended.setdefault(self._lives[stream], end)

    # --- answers --------------------------------------------------------------------------------------------

    def acknowledge(self, at_s: float, position: int, what: str, *, synced: bool = False) -> None:
        """An answer has left that stands on everything up to `position`."""
        self.acknowledged.append(SentAnswer(at_s, position, what))
        if synced:
            self.synced_upto = max(self.synced_upto, position)

    def show(self, stream: str, ids: Iterable[int], turn_upto: int, to: tuple[str, str] | None = None) -> int:
        """Entries have been shown by a command whose turn ended at a position, or later if it has waited;
        delivered to a consumer of a group, if `to` names one. Return the log position on which that stands.
        """
        upto = 0
        for entry_id in ids:
            added = self._added.get((stream, entry_id), [])
            upto = max(upto, _latest([position for position, _ in added], turn_upto))
            if to is not None:
                upto = max(upto, _latest(self._delivered.get((stream, *to, entry_id), []), turn_upto))
            if added and (stream, entry_id) not in self.chosen:
                life = added[-1][1]
                self._shown[life] = max(self._shown.get(life, 0), entry_id)
        return upto

    def added_at(self, stream: str, entry_id: int, upto: int) -> int:
        """The position of the frame that an entry came with last, up to `upto`; 0 if it came with none.

        The stream may have been deleted since, and its successor may have given the ID again.
        """
        frames = (position for position, _ in self._added.get((stream, entry_id), []) if position <= upto)
        return max(frames, default=0)

    # --- what must hold -------------------------------------------------------------------------------------

    def kept_by_kill(self) -> int:
        """The position up to which everything survives kill -9."""
        return max((one.position for one in self.acknowledged), default=0)

    def kept_by_power_cut(self, now_s: float) -> int:
        """The position up to which everything survives a power cut now, on a disk that is not slow."""
        if self.fsync == "always":
            return self.kept_by_kill()
        old = (one.position for one in self.acknowledged if one.at_s < now_s - LOST_S_MAX - _ROUNDING_S)
        return max(self.synced_upto, max(old, default=0) if self.fsync == "everysec" else 0)

    def lost_s(self, end: int) -> float:
        """The time between the first and the last answer that are lost beyond `end`."""
        times = [one.at_s for one in self.acknowledged if one.position > end]
        return max(times) - min(times) if times else 0.0

    def image_at(self, end: int) -> object:
        """The state after the last whole frame that ends at or before a position."""
        return self._images[bisect_right(self._ends, end) - 1]

    def contents_at(self, end: int) -> object:
        """What clients may see of all streams then, wherever their entries are."""
        return self._contents[bisect_right(self._ends, end) - 1]

    def floors(self, end: int) -> dict[str, int]:
        """Of each stream the highest ID that must not come again, nor one below, in a log recovered up to
        `end`.
        """
        floors = {
            stream: entry_id
            for stream, (entry_id, since) in self._lost.items()
            if not since < self._removed.get(stream, 0) <= end
        }
        for life, entry_id in self._shown.items():
            if self._ended.get(life, end + 1) > end:
                floors[life.stream] = max(floors.get(life.stream, 0), entry_id)
        return floors

    # --- after a crash --------------------------------------------------------------------------------------

    def cut(self, end: int) -> None:
        """The log goes on from `end`; what was beyond is lost, and was allowed to be."""
        self.cuts += 1
        self._begin_at(end)
        for life, entry_id in list(self._shown.items()):
            if life not in self._ended and (life.stream, entry_id) not in self._added:
                self._lost[life.stream] = (max(self._lost.get(life.stream, (0, 0))[0], entry_id), end)
                del self._shown[life]
        self.acknowledged = [one for one in self.acknowledged if one.position <= end]
        self.synced_upto = min(self.synced_upto, end)


def contents(keyspace: Keyspace) -> object:
    """All entries, read from where they are, and what is said of them. Raises EngineError where the disk does
    not give them.
    """
    return {
        name: (
            b",".join(key.stream.range(0, ID_MAX).parts),
            (key.stream.first_id, key.stream.last_live_id, key.stream.last_id, key.stream.length),
            (key.stream.max_deleted_id, key.stream.gone_upto, key.stream.entries_added),
        )
        for name, key in keyspace.keys.items()
    }


def _in_memory(record: Record) -> Record:
    """The same change where no entry is in a file."""
    if isinstance(record, changes.CutStored):
        return changes.Cut(record.stream, record.below)
    if isinstance(record, changes.RemoveStored):
        return changes.Remove(record.stream, record.ids, record.tombstone)
    if isinstance(record, ForkStored):
        return ForkStream(record.stream, record.source, record.upto, record.generation)
    return record


def _latest(positions: list[int], turn_upto: int) -> int:
    """The position that a turn showed: the last one up to its end, else the first one after it."""
    before = [position for position in positions if position <= turn_upto]
    return before[-1] if before else min(positions, default=0)
