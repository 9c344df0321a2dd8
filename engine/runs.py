"""A run: consecutive sealed nodes of a stream that are in a file instead of memory.

Knows: how a run is written, what is left of one after deletions, which runs were read of late.
Must never know: streams, who reads and writes the files, disk, waiting.

In memory a run of any size is one object, and stands in the place of its nodes. Its bytes never
change; what was deleted since is beside it, as IDs, so that no change of a run has to look into it:

    file    "weir run" nodes bytes │ first last count held offset length crc32 │ … │ crc32 │ zstd │ zstd │ …
                                     one row for each node                           one frame for each node
    Run     first … last, where it is, and what is left:   floor 7-0, gone 9-0 9-4, live, first_live …

The rows are covered by the checksum behind them, which the log has too, and each frame by that of its row.
"""

import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

import msgspec
from msgspec.structs import replace

from engine import entries, errors, ids
from engine.ids import ID_BYTES
from engine.nodes import SealedNode, Text, last_live_place, live_place
from engine.remedies import PASSING, explain

T = TypeVar("T")

# Nodes of a run, and its bytes in the file: what one look into it reads.
RUN_NODES_MAX: Final = 64
RUN_BYTES_MAX: Final = 256 << 10
# Limit of what is kept of the runs read last, as they are in the file, and its part of a limit of memory:
# what readers look at must leave writers their room. The latest one always stays.
CACHE_BYTES_MAX: Final = 64 << 20
_CACHE_PART: Final = 16

_MAGIC: Final = b"weir run"
_HEAD: Final = Struct(">8sII")
_ROW: Final = Struct(f">{ID_BYTES}s{ID_BYTES}sIIIII")
_CHECKSUM: Final = Struct(">I")
_LEFT: Final = Struct(f">{ID_BYTES}s{ID_BYTES}sQIQQ{ID_BYTES}s{ID_BYTES}s{ID_BYTES}s")

# In a node of which more is deleted at once, each entry is taken.
_SEARCHED_IN_TEXT_MAX: Final = 4

# Where a run is: the number of its file, and its offset there.
Place: TypeAlias = tuple[int, int]


class Run(msgspec.Struct, kw_only=True, gc=False, eq=False):
    """Nodes in a file. It never changes: deleting makes a new one of the same place.

    `held` entries are in the file; of these `live` in `nodes` nodes are left, none below `floor` and none of
    `gone`, which ascend. `size` and `weight` are the sums of what is left, as nodes have them.
    """

    first: int
    last: int
    file: int
    offset: int
    length: int
    checksum: int
    held: int
    live: int
    nodes: int
    size: int
    weight: int
    first_live: int
    last_live: int
    floor: int = 0
    gone: tuple[int, ...] = ()

    @property
    def place(self) -> Place:
        """Where it is."""
        return self.file, self.offset

    @property
    def kept_bytes(self) -> int:
        """Its bytes in the file, those of deleted entries left out, about."""
        return self.length * self.live // self.held

    def keeps(self, entry_id: int) -> bool:
        """Whether an ID is between its borders, and was not deleted since it was written."""
        place = bisect_left(self.gone, entry_id)
        is_gone = place < len(self.gone) and self.gone[place] == entry_id
        return max(self.floor, self.first_live) <= entry_id <= self.last_live and not is_gone

    def leave(self, left: "RunLeft", gone: Sequence[int]) -> "Run":
        """What is left of it when these go, too."""
        below = max(left.floor, left.first_live)
        holes = sorted({*self.gone, *gone})
        return replace(
            self,
            live=left.live,
            nodes=left.nodes,
            size=left.size,
            weight=left.live << 64 | left.text_bytes,
            first_live=left.first_live,
            last_live=left.last_live,
            floor=below,
            gone=tuple(holes[bisect_left(holes, below) :]),
        )


class RunLeft(NamedTuple):
    """What a change leaves of a run, as the log has it; `highest` is the highest ID that goes, 0 for none."""

    first: int
    floor: int
    live: int
    nodes: int
    size: int
    text_bytes: int
    first_live: int
    last_live: int
    highest: int


def pack_left(rows: Sequence[RunLeft]) -> bytes:
    """The rows as a field of a record."""
    return b"".join(
        _LEFT.pack(
            *(each.to_bytes(ID_BYTES, "big") if place in _IDS else each for place, each in enumerate(row))
        )
        for row in rows
    )


_IDS: Final = (0, 1, 6, 7, 8)


def unpack_left(packed: bytes) -> dict[int, RunLeft]:
    """The rows by the first IDs of their runs."""
    rows = (
        RunLeft(*(int.from_bytes(each, "big") if isinstance(each, bytes) else each for each in row))
        for row in _LEFT.iter_unpack(packed)
    )
    return {row.first: row for row in rows}


# --- in the file --------------------------------------------------------------------------------------------


class DamagedRunError(Exception):
    """The bytes are not those of the run."""


class Written(NamedTuple):
    """A run as it is written, and the fields of it that its nodes alone tell."""

    content: bytes
    checksum: int
    fields: dict[str, int]


def write_run(nodes: Sequence[SealedNode], frames: Sequence[bytes], edges: tuple[int, int]) -> Written:
    """Nodes without deletions, their compressed texts, and the first and last ID among them, as a run. May be
    called from any thread.
    """
    rows, offset = [], _HEAD.size + len(nodes) * _ROW.size + _CHECKSUM.size
    for node, frame in zip(nodes, frames, strict=True):
        first, last = node.first.to_bytes(ID_BYTES, "big"), node.last.to_bytes(ID_BYTES, "big")
        rows.append(_ROW.pack(first, last, node.count, node.held, offset, len(frame), crc32(frame)))
        offset += len(frame)
    header = b"".join([_HEAD.pack(_MAGIC, len(nodes), offset), *rows])
    checksum = crc32(header)
    live = sum(node.held for node in nodes)
    fields = {
        "held": live,
        "live": live,
        "nodes": len(nodes),
        "size": sum(node.size for node in nodes),
        "weight": sum(node.weight for node in nodes),
        "first_live": edges[0],
        "last_live": edges[1],
    }
    return Written(b"".join([header, _CHECKSUM.pack(checksum), *frames]), checksum, fields)


def read_run(content: bytes, checksum: int | None = None) -> list[SealedNode]:
    """The nodes of a run, each byte verified; without `checksum` by its own. Raises DamagedRunError."""
    try:
        magic, count, length = _HEAD.unpack_from(content)
        end = _HEAD.size + count * _ROW.size
        if magic != _MAGIC or length != len(content) or end + _CHECKSUM.size > length:
            raise DamagedRunError("no run begins there")
        found = crc32(memoryview(content)[:end])
        if (found,) != _CHECKSUM.unpack_from(content, end) or checksum not in (None, found):
            raise DamagedRunError("the checksum of its header does not match")
        rows = list(_ROW.iter_unpack(content[_HEAD.size : end]))
    except struct.error as error:
        raise DamagedRunError("its header is cut") from error
    return [_read_node(content, row) for row in rows]


def _read_node(content: bytes, row: tuple[bytes, bytes, int, int, int, int, int]) -> SealedNode:
    first, last, count, held, offset, length, checksum = row
    frame = content[offset : offset + length]
    if crc32(frame) != checksum:
        raise DamagedRunError(f"the checksum of the node at byte {offset} does not match")
    return SealedNode(
        first=int.from_bytes(first, "big"),
        last=int.from_bytes(last, "big"),
        count=count,
        held=held,
        deleted=0,
        text=Text(None, frame),
    )


def length_at(head: bytes) -> int | None:
    """How long the run is that begins with these bytes; None if none does."""
    if len(head) < _HEAD.size:
        return None
    magic, _, length = _HEAD.unpack_from(head)
    return int(length) if magic == _MAGIC else None


HEAD_BYTES: Final = _HEAD.size


# --- what is left -------------------------------------------------------------------------------------------


def nodes_left(nodes: Sequence[SealedNode], floor: int, gone: Sequence[int]) -> list[SealedNode]:
    """The nodes of a run without what is below `floor` or in `gone`, which ascend."""
    left: list[SealedNode] = []
    for node in nodes:
        if node.last < floor:
            continue
        inside = gone[bisect_left(gone, node.first) : bisect_right(gone, node.last)]
        if node.first < floor or inside:
            node = node.without(node.deleted | _mask(node, floor, inside))  # noqa: PLW2901 - as it is now
        if node.live:
            left.append(node)
    return left


def _mask(node: SealedNode, floor: int, gone: Sequence[int]) -> int:
    """Which entries of a node are below `floor` or in `gone`."""
    if floor <= node.first and len(gone) <= _SEARCHED_IN_TEXT_MAX:
        plain = node.text.plain()
        found = (entries.find(plain, entry_id) for entry_id in gone)
        return sum([1 << row[0] for row in found if row is not None])
    held = list(entries.ids_of(node.texts()))
    mask = (1 << bisect_left(held, floor)) - 1
    for entry_id in gone:
        place = bisect_left(held, entry_id)
        mask |= (place < len(held) and held[place] == entry_id) << place
    return mask


def measure(first: int, floor: int, nodes: Sequence[SealedNode], highest: int) -> RunLeft:
    """What the log has of a run of which these nodes are left."""
    weight = sum(node.weight for node in nodes)
    first_live = last_live = 0
    if nodes:
        head, tail = nodes[0], nodes[-1]
        first_live = entries.id_of(head.texts()[live_place(head.deleted, 0)])
        last_live = entries.id_of(tail.texts()[last_live_place(tail.deleted, tail.held)])
    size = sum(node.size for node in nodes)
    return RunLeft(
        first, floor, weight >> 64, len(nodes), size, weight & _BYTES, first_live, last_live, highest
    )


_BYTES: Final = (1 << 64) - 1


# --- what was read of late ----------------------------------------------------------------------------------


class NotInMemoryError(Exception):
    """These runs have to be read first."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(f"{len(runs)} runs are not in memory")
        self.runs = runs


class LoadedRun:
    """The nodes of a run as they are in the file, and what was left of them when it was last asked."""

    __slots__ = ("_changed", "_left", "_nodes", "_run", "length")

    def __init__(self, nodes: Sequence[SealedNode], length: int) -> None:
        self._nodes = nodes
        self.length = length
        self._run: Run | None = None
        self._left: Sequence[SealedNode] = ()
        # What would be left after the change that was last asked for: floor, deleted IDs, nodes.
        self._changed: tuple[int, Sequence[int], Sequence[SealedNode]] = (0, (), ())

    def of(self, run: Run) -> Sequence[SealedNode]:
        """The nodes that are left of the run."""
        if not run.floor and not run.gone:
            return self._nodes
        if self._run is not run:
            is_changed = self._has_become(run)
            self._left = self._changed[2] if is_changed else nodes_left(self._nodes, run.floor, run.gone)
            self._run = run
        return self._left

    def without(self, run: Run, floor: int, gone: Sequence[int]) -> Sequence[SealedNode]:
        """Those that would be left if what is below `floor` and these, which ascend, went too."""
        left = nodes_left(self.of(run), floor, gone)
        self._changed = max(floor, run.floor), sorted({*run.gone, *gone}), left
        return left

    def _has_become(self, run: Run) -> bool:
        """Whether the change has led to this run, which is mostly so: then it is not taken apart anew."""
        floor, gone, left = self._changed
        return (
            run.floor == max(floor, run.first_live)
            and run.gone == tuple(gone[bisect_left(gone, run.floor) :])
            and run.live == sum([node.live for node in left])
        )


# Runs that a turn holds, which no other turn can push out; the refusal of one that could not be read.
HeldRuns: TypeAlias = dict[Place, LoadedRun | errors.EngineError]


# What is held where nothing looks into runs.
NOTHING_HELD: Final[HeldRuns] = {}


class RunFile(msgspec.Struct):
    """What refers to a file: how many runs, and their bytes; and where the last of them ends."""

    runs: int = 0
    kept_bytes: int = 0
    end: int = 0

    @property
    def is_sparse(self) -> bool:
        """Whether most of it is gone."""
        return self.kept_bytes * 2 < self.end


class Runs:
    """The runs of all streams: which files have them, and what was read of late, in its part of
    `memory_bytes_max`; None is no limit.
    """

    def __init__(self, memory_bytes_max: int | None = None) -> None:
        part = CACHE_BYTES_MAX if memory_bytes_max is None else memory_bytes_max // _CACHE_PART
        self.bytes_max = min(CACHE_BYTES_MAX, part)
        # By their numbers, the files that something refers to.
        self.files: dict[int, RunFile] = {}
        # Returns the bytes of a run, from the disk. Blocks; raises OSError.
        self.read: Callable[[Run], bytes] | None = None
        # Runs that the disk did not give back when they were last read, and why; called with the reason of
        # each new one.
        self.damaged: dict[Place, str] = {}
        self.on_damaged: Callable[[str], None] | None = None
        # The bytes of files to which nothing refers any more, and which are there until the next rewrite.
        self.dead_bytes = 0
        # Reads of the disk within a turn, for which all else had to wait; and all reads.
        self.reads_in_turns = self.reads = 0
        self._loaded: OrderedDict[Place, LoadedRun] = OrderedDict()
        self._loaded_bytes = 0
        self._held: HeldRuns = NOTHING_HELD
        self._waits = False

    @property
    def stored_bytes(self) -> int:
        """The bytes in files that something refers to."""
        return sum(file.kept_bytes for file in self.files.values())

    def add(self, run: Run) -> None:
        """A stream has this run from here on."""
        file = self.files.setdefault(run.file, RunFile())
        file.runs += 1
        file.kept_bytes += run.kept_bytes
        file.end = max(file.end, run.offset + run.length)

    def drop(self, run: Run) -> None:
        """A stream does not have it any more."""
        self.damaged.pop(run.place, None)
        file = self.files[run.file]
        file.runs -= 1
        file.kept_bytes -= run.kept_bytes
        if not file.runs:
            self.dead_bytes += self.files.pop(run.file).end
            # Also of what was read for a command after its run was dropped.
            for place in [place for place in self.damaged if place[0] == run.file]:
                del self.damaged[place]

    def clear(self) -> None:
        """There are no streams any more."""
        self.dead_bytes += sum(file.end for file in self.files.values())
        self.files.clear()
        self.damaged.clear()

    def look(self, held: HeldRuns, look: Callable[[], T], *, waits: bool) -> T:
        """What `look` returns; all that it looks into stays in `held`. Where it `waits`, what is missing is
        not read: it raises NotInMemoryError.
        """
        self._held, self._waits = held, waits
        try:
            return look()
        finally:
            self._held, self._waits = NOTHING_HELD, False

    def expect(self, runs: Iterable[Run]) -> None:
        """Raise NotInMemoryError for all that will be looked into and have to be waited for, so that the disk
        is asked once.
        """
        if self._waits:
            missing = [run for run in runs if not self.has(run)]
            if missing:
                raise NotInMemoryError(missing)

    def expect_next(self, run: Run, further: Iterator[object]) -> None:
        """The same for one of many in a row: with it, as many of the `further` ones as there were before it,
        so that a long row is not begun anew for each.
        """
        if self._waits and not self.has(run):
            ahead = islice(further, len(self._held))
            missing = [each for each in ahead if isinstance(each, Run) and not self.has(each)]
            raise NotInMemoryError([run, *missing])

    def has(self, run: Run) -> bool:
        """Whether it can be looked into at once."""
        return run.place in self._held or run.place in self._loaded

    def nodes_of(self, run: Run) -> Sequence[SealedNode]:
        """The nodes that are left of a run. Raises NotInMemoryError in a look that waits, EngineError
        where the disk does not give them.
        """
        return self._look(run).of(run)

    def without(self, run: Run, floor: int, gone: Sequence[int]) -> Sequence[SealedNode]:
        """Those that would be left if this went; the same."""
        return self._look(run).without(run, floor, gone)

    def gives(self, run: Run) -> bool:
        """Whether the disk gives the run. Raises NotInMemoryError in a look that waits."""
        try:
            self._look(run)
        except errors.EngineError as refusal:
            if refusal.code != errors.ENTRIES_DAMAGED:
                raise
            return False
        return True

    def _look(self, run: Run) -> LoadedRun:
        place = run.place
        if place in self._held:
            held = self._held[place]
            if isinstance(held, errors.EngineError):
                raise held
            return held
        loaded = self._loaded.get(place)
        if loaded is not None:
            self._loaded.move_to_end(place)
        elif self._waits:
            raise NotInMemoryError((run,))
        elif place in self.damaged:
            raise refuse(run)
        else:
            self.reads_in_turns += 1
            assert self.read is not None, "who has runs can read them"
            loaded = self.keep(run, parse(run, self.read))
            if loaded is None:
                raise refuse(run)
        if self._held is not NOTHING_HELD:
            self._held[place] = loaded
        return loaded

    def keep(self, run: Run, loaded: LoadedRun | DamagedRunError) -> LoadedRun | None:
        """Keep what was read of a run; None if that is not it."""
        self.reads += 1
        if isinstance(loaded, DamagedRunError):
            self._note_damage(run, str(loaded))
            return None
        self.damaged.pop(run.place, None)
        before = self._loaded.pop(run.place, None)
        self._loaded_bytes += loaded.length - (before.length if before else 0)
        self._loaded[run.place] = loaded
        while self._loaded_bytes > self.bytes_max and len(self._loaded) > 1:
            self._loaded_bytes -= self._loaded.popitem(last=False)[1].length
        return loaded

    def _note_damage(self, run: Run, reason: str) -> None:
        # What nothing refers to any more may be gone by now.
        if run.place not in self.damaged and run.file in self.files:
            self.damaged[run.place] = found = f"run-{run.file}.weir, offset {run.offset}: {reason}"
            if self.on_damaged is not None:
                self.on_damaged(found)


def refuse(run: Run) -> errors.EngineError:
    """The refusal of what looks into a run that the disk does not give."""
    return errors.run_damaged(ids.format(run.first), ids.format(run.last), ids.format(run.last + 1))


def parse(run: Run, read: Callable[[Run], bytes]) -> LoadedRun | DamagedRunError:
    """Read a run, and verify each byte. May be called from any thread. Raises EngineError where it can be
    read, but not now.
    """
    try:
        return verify(run, read(run))
    except OSError as error:
        return unreadable(error)


def unreadable(error: OSError) -> DamagedRunError:
    """What a run is that the disk did not give. Raises EngineError where that is not for the disk."""
    if error.errno in PASSING:
        raise errors.not_read_now(explain(error)) from error
    return DamagedRunError(explain(error))


def verify(run: Run, content: bytes) -> LoadedRun | DamagedRunError:
    """What was read, each byte verified. May be called from any thread."""
    try:
        return LoadedRun(read_run(content, run.checksum), run.length)
    except DamagedRunError as error:
        return error


def in_range(run: Run, ordered: Sequence[int]) -> Sequence[int]:
    """Those of ascending IDs that are between the borders of the run."""
    return ordered[bisect_left(ordered, run.first) : bisect_right(ordered, run.last)]
