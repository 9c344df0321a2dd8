"""Cold nodes go to files as runs when memory is short.

Knows: which nodes of a stream are cold, how they are made ready in a thread, the order of the steps.
Must never know: what is in a file, readers.

    nodes are chosen, the oldest of each stream → a thread makes runs of them, writes and syncs them
        → a turn puts each run in the place of its nodes, if these are still what was written

Until that turn the nodes stay, and the log has their entries until the next rewrite: there is no moment at
which they are in one place alone that is not safe.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

import zstandard

from engine import entries, ids
from engine.clock import Clock
from engine.commands.storing import StoreRuns
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.log import LogPoisonedError, RunsFile
from engine.log.manifest import run_name
from engine.nodes import SealedNode, Text, live_places, new_compressor
from engine.protocol import Events
from engine.records.changes import Stored
from engine.remedies import explain
from engine.runs import (
    CACHE_BYTES_MAX,
    RUN_BYTES_MAX,
    RUN_NODES_MAX,
    LoadedRun,
    Place,
    Run,
    Written,
    parse,
    write_run,
)
from engine.runtime.rewriting import Repacked, Rewriter, StoppingError
from engine.runtime.turns import Turns
from engine.sealed import Part
from engine.stream import Stream

# It goes on until this part of the soft limit is in use, so that it does not begin again at once.
_ENOUGH: Final = 0.9
# With this part of the soft limit in use, runs of a few nodes are stored too.
_PRESSING: Final = 4 / 3
# Streams that are looked at in one cycle of the event loop, and the pause where nothing is cold, or the disk
# has refused. Where nothing was, it looks again earlier once the data has grown by this part of the soft
# limit: something may be cold by then, and memory must not fill meanwhile.
_LOOKS_MAX: Final = 200
_GROWN: Final = 1 / 64
# Runs that are stored anew in one step, and nodes and runs of a stream that are looked at for them at once.
_MOVED_MAX: Final = 16
_PARTS_MAX: Final = 1_000
# Attempts to store anew what changes meanwhile.
_PASSES_MAX: Final = 4
# A disk that refuses is asked later and later: each time leaves a file, which goes with the next rewrite.
_PAUSE_S_MAX: Final = 640.0
_BYTES: Final = (1 << 64) - 1


class StoreBounds(NamedTuple):
    """What goes to files, and how much at a time."""

    # The newest sealed nodes of a stream stay in memory.
    after_nodes: int = 64
    # Nodes of a run.
    run_nodes_max: int = RUN_NODES_MAX
    # Of one write and one turn: bytes in memory. And of a file, about: with more the next one begins.
    batch_bytes: int = 4 << 20
    file_bytes_max: int = 256 << 20
    # Before it looks again where nothing is cold though memory is short, or the disk has refused.
    pause_s: float = 10.0
    # What is kept of the runs read last.
    cache_bytes_max: int = CACHE_BYTES_MAX


class ColdNodes(NamedTuple):
    """Consecutive nodes of a stream, and their texts as they were when they were chosen."""

    stream: str
    nodes: Sequence[SealedNode]
    contents: Sequence[bytes]
    packed: Sequence[bool]


def cold_nodes(
    name: str, stream: Stream, bounds: StoreBounds, low: int = 0, *, whole: bool = False
) -> Iterator[ColdNodes]:
    """Those from an ID on that may go, a run's worth at a time; if they have to be `whole` runs, what would
    be part of one waits for more. The stream must not change meanwhile.
    """
    taken: list[SealedNode] = []
    size = 0
    for part in takewhile(_older(stream, bounds.after_nodes), stream.nodes.values_from(low)):
        grown = part.text.held_bytes() if isinstance(part, SealedNode) else 0
        if taken and (not grown or len(taken) >= bounds.run_nodes_max or size + grown > RUN_BYTES_MAX):
            yield _chosen(name, taken)
            taken, size = [], 0
        if isinstance(part, SealedNode):
            taken.append(part)
            size += grown
    if taken and not whole:
        yield _chosen(name, taken)


def _older(stream: Stream, after_nodes: int) -> Callable[[Part], bool]:
    """Whether a part is before the newest ones."""
    newest = list(islice(stream.nodes.items_down(ids.ID_MAX), after_nodes))
    bound = newest[-1][0] if newest else ids.ID_MAX + 1
    return lambda part: part.first < bound


def _chosen(name: str, nodes: Sequence[SealedNode]) -> ColdNodes:
    texts = [node.text for node in nodes]
    packed = [text.is_packed for text in texts]
    # A packed text is given as it is, so nothing is compressed here.
    contents = [text.compress() if text.is_packed else text.plain() for text in texts]
    return ColdNodes(name, nodes, contents, packed)


def make_run(cold: ColdNodes) -> Written:
    """The run of these nodes, without what is deleted in them. For any thread: it has its own contexts."""
    compressor, decompressor = new_compressor(), zstandard.ZstdDecompressor()
    nodes: list[SealedNode] = []
    frames: list[bytes] = []
    edges: list[int] = []
    for node, content, is_packed in zip(cold.nodes, cold.contents, cold.packed, strict=True):
        is_whole = not node.deleted and node.held == node.count
        is_edge = node is cold.nodes[0] or node is cold.nodes[-1]
        frame = content
        if node.deleted or not is_packed or (is_edge and not is_whole):
            texts = entries.texts(decompressor.decompress(content) if is_packed else content)
            live = [texts[place] for place in live_places(node, node.held)]
            edges += (entries.id_of(live[0]), entries.id_of(live[-1]))
            frame = content if is_packed and not node.deleted else compressor.compress(b",".join(live))
        else:
            edges += (node.first, node.last)
        nodes.append(_as_written(node, frame) if node.deleted else node)
        frames.append(frame)
    return write_run(nodes, frames, (edges[0], edges[-1]))


def _as_written(node: SealedNode, frame: bytes) -> SealedNode:
    """A node without its deleted entries."""
    return SealedNode(
        first=node.first, last=node.last, count=node.count, held=node.live, deleted=0, text=Text(None, frame)
    )


def stored(name: str, first: int, last: int, file: int, offset: int, written: Written) -> Stored:
    """The record that lets nodes go, once the run is on the disk."""
    fields = written.fields
    return Stored(
        name, first, last, file, offset, len(written.content), written.checksum, fields["live"],
        fields["nodes"], fields["size"], fields["weight"] & _BYTES, fields["first_live"], fields["last_live"],
    )  # fmt: skip


def _why_left(files: Sequence[int], unread: Mapping[int, str]) -> str:
    reasons = [
        f"{run_name(file)} ({unread[file]})"
        if file in unread
        else f"{run_name(file)} (it changes all the time)"
        for file in files
    ]
    remedy = (
        "give up the parts that cannot be read, as the refusal of a read says, or restore a backup"
        if unread
        else "ask for it once more"
    )
    return f"what was deleted may still be in {', '.join(reasons)}: {remedy}"


class Storer:
    """Stores cold nodes while memory is above the soft limit of the caps. On the event loop."""

    def __init__(
        self,
        keyspace: Keyspace,
        turns: Turns,
        rewriter: Rewriter,
        clock: Clock,
        bounds: StoreBounds,
        events: Events,
    ) -> None:
        self.soft_bytes = keyspace.caps.memory_bytes_soft
        # Why storing has failed the last time.
        self.failure: str | None = None
        self._events = events
        self._keyspace = keyspace
        self._turns = turns
        self._rewriter = rewriter
        self._clock = clock
        self._bounds = bounds
        self._file: RunsFile | None = None
        # Sparse files that could not be emptied.
        self._stuck: set[int] = set()
        self._running: asyncio.Task[None] | None = None
        self._not_before, self._pause_s = 0.0, bounds.pause_s
        # The size of the data at which it looks again before that.
        self._again_bytes: float = 0.0

    def begin_if_due(self) -> None:
        """Begin to store if there is too little memory."""
        if self._clock.monotonic() >= self._not_before or self._has_grown:
            self._begin(is_look=True)

    def begin_if_grown(self) -> None:
        """The same with whole runs alone, if there is much that was not there when it last ended."""
        if self._has_grown:
            self._begin(is_look=False)

    @property
    def _has_grown(self) -> bool:
        return self._keyspace.memory.estimated_bytes >= self._again_bytes

    def _begin(self, *, is_look: bool) -> None:
        if self._running is None and self._is_due():
            self._running = asyncio.ensure_future(self._run(is_look=is_look))

    def _is_due(self, part: float = 1.0) -> bool:
        return self.soft_bytes is not None and self._keyspace.memory.used_bytes > self.soft_bytes * part

    @property
    def _is_pressing(self) -> bool:
        """Whether much more is in use than the soft limit, or memory is half-way to its limit. Each run stays
        as one object in memory, so small ones make little room.
        """
        memory, soft = self._keyspace.memory, self.soft_bytes or 0
        half_way = (soft + (memory.bytes_max or soft)) / 2
        return memory.used_bytes > max(soft, min(half_way, _PRESSING * soft))

    async def close(self) -> None:
        """Wait for the step in progress."""
        self.soft_bytes = None
        if self._running is not None:
            await asyncio.wait((self._running,))
        if self._file is not None:
            self._file.close()

    async def _run(self, *, is_look: bool) -> None:
        count, self._again_bytes = 0, float("inf")
        try:
            whole = not (is_look and self._is_pressing)
            count = await self.store(lambda: self._is_due(_ENOUGH), whole=whole)
            self.failure, self._pause_s = None, self._bounds.pause_s
            self._again_bytes = self._keyspace.memory.estimated_bytes + (self.soft_bytes or 0) * _GROWN
        except (StoppingError, LogPoisonedError, EngineError):
            is_look = True
        except Exception as error:  # noqa: BLE001 - the nodes are as they were in any case
            is_look, self.failure = True, explain(error)
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)
            self._events.storing_failed(self.failure)
        finally:
            if count or is_look:
                self._not_before = self._clock.monotonic() + (0.0 if count else self._pause_s)
            self._running = None

    async def store(self, goes_on: Callable[[], bool], *, whole: bool = False) -> int:
        """Store cold nodes as long as `goes_on`; how many runs. `whole` as in `cold_nodes`. Raises OSError,
        EngineError.
        """
        count, batch = 0, list[ColdNodes]()
        for place, name in enumerate(list(self._keyspace.keys)):
            if not place % _LOOKS_MAX:
                await asyncio.sleep(0)
            low: int | None = 0
            while low is not None and goes_on():
                low = self._choose(name, low, batch, whole=whole)
                if low is not None:
                    count += await self._store(batch)
                    batch = []
        return count + (await self._store(batch) if batch and goes_on() else 0)

    def _choose(self, name: str, low: int, batch: list[ColdNodes], *, whole: bool) -> int | None:
        """Add cold nodes of a stream to the batch. Returns where to go on once it is full, else None."""
        key = self._keyspace.find(name)
        size = sum(sum(map(len, cold.contents)) for cold in batch)
        for cold in () if key is None else cold_nodes(name, key.stream, self._bounds, low, whole=whole):
            batch.append(cold)
            size += sum(map(len, cold.contents))
            if size >= self._bounds.batch_bytes:
                return cold.nodes[-1].last + 1
        return None

    async def _store(self, batch: Sequence[ColdNodes], before: Sequence[Run] = ()) -> int:
        """Let runs take the place of nodes, or of the runs `before` that hold the same."""
        async with self._rewriter.files:
            number, offsets, written = await self._rewriter.on_files(lambda: self._write(batch))
            rows = []
            for place, (cold, at, run) in enumerate(zip(batch, offsets, written, strict=True)):
                parts = before[place : place + 1] or cold.nodes
                record = stored(cold.stream, parts[0].first, parts[-1].last, number, at, run)
                rows.append((record, parts))
            ran = self._turns.run_commands((StoreRuns(rows=rows),))
        reply = ran.replies[0]
        if isinstance(reply, EngineError):
            raise reply
        return int(reply)

    # --- what is left

    @property
    def wasted_bytes(self) -> int:
        """What a rewrite would give back of the disk: files to which nothing refers, and most of the sparse
        ones.
        """
        runs = self._keyspace.runs
        return runs.dead_bytes + sum(
            runs.files[each].end - runs.files[each].kept_bytes for each in self._sparse()
        )

    def _sparse(self) -> set[int]:
        files = self._keyspace.runs.files
        self._stuck.intersection_update(files)
        grows = {number for number, file in files.items() if file.is_sparse}
        return grows - self._stuck - {self.file_number}

    async def repack(self, *, everything: bool = False) -> Repacked:
        """Store anew what is left in files of which most is gone, or with `everything` in each that holds
        anything deleted. Raises OSError, EngineError.

        The files go with the rewrite behind it.
        """
        files, count = self._keyspace.runs.files, 0
        if everything:
            await self._end_file()
        wanted = await self._torn() if everything else self._sparse()
        unread: dict[int, str] = {}
        for _ in range(_PASSES_MAX):
            if wanted.intersection(files):
                unread = {}
                count += await self._store_anew(wanted, unread)
        left = sorted(wanted.intersection(files))
        self._stuck.update(left)
        return Repacked(count, _why_left(left, unread) if left else None)

    async def _end_file(self) -> None:
        """Let the next run begin another file: this one may hold what was deleted."""
        async with self._rewriter.files:
            ended, self._file = self._file, None
            if ended is not None:
                await self._rewriter.on_files(ended.close)

    async def _torn(self) -> set[int]:
        """The files that hold anything deleted."""
        runs = self._keyspace.runs
        if not runs.files:
            return set()
        sizes = await self._rewriter.on_files(lambda: self._rewriter.run_sizes(list(runs.files)))
        torn, whole, seen = set[int](), Counter[int](), set[Place]()
        async for _, page in self._pages():
            torn.update(run.file for run in page if run.live < run.held)
            for run in page:
                if run.place not in seen:
                    seen.add(run.place)
                    whole[run.file] += run.length
        torn.update(file for file, size in sizes.items() if whole[file] < size)
        return torn.intersection(sizes) - {self.file_number}

    async def _store_anew(self, files: set[int], unread: dict[int, str]) -> int:
        """Store anew what is in these files, and note in which of them something cannot be read, and why."""
        count = 0
        async for name, page in self._pages():
            runs = [run for run in page if run.file in files]
            for first in range(0, len(runs), _MOVED_MAX):
                count += await self._move(name, runs[first : first + _MOVED_MAX], unread)
        return count

    async def _pages(self) -> AsyncIterator[tuple[str, list[Run]]]:
        """The runs of all streams, some of a stream at a time. Others have their turns between."""
        for place, name in enumerate(list(self._keyspace.keys)):
            if not place % _LOOKS_MAX:
                await asyncio.sleep(0)
            low: int | None = 0
            while (
                low is not None and (key := self._keyspace.find(name)) is not None and key.stream.nodes.runs
            ):
                page = key.stream.nodes.page(low, _PARTS_MAX)
                yield name, [part for _, part in page if isinstance(part, Run)]
                low = page[-1][1].last + 1 if len(page) == _PARTS_MAX else None
                await asyncio.sleep(0)

    async def _move(self, name: str, runs: Sequence[Run], unread: dict[int, str]) -> int:
        read = self._rewriter.read_run
        loaded = await self._rewriter.on_files(lambda: [parse(run, read) for run in runs])
        batch, sound = list[ColdNodes](), list[Run]()
        for run, one in zip(runs, loaded, strict=True):
            if isinstance(one, LoadedRun):
                batch.append(_chosen(name, one.of(run)))
                sound.append(run)
                # To take what is left of a run takes milliseconds.
                await asyncio.sleep(0)
            else:
                unread[run.file] = f"offset {run.offset}: {one}"
        return await self._store(batch, sound) if batch else 0

    def _write(self, batch: Sequence[ColdNodes]) -> tuple[int, Sequence[int], Sequence[Written]]:
        """In the thread."""
        written = [make_run(cold) for cold in batch]
        if self._file is not None and self._file.length >= self._bounds.file_bytes_max:
            self._file.close()
            self._file = None
        file = self._file = self._file or self._rewriter.create_runs()
        offsets, offset = list[int](), file.length
        for run in written:
            offsets.append(offset)
            offset += len(run.content)
        try:
            file.append(b"".join([run.content for run in written]))
        except OSError:
            # What follows goes to another file: what this one has now is unknown.
            self._file = None
            raise
        return file.number, offsets, written

    @property
    def file_number(self) -> int | None:
        """The file that grows, which has to stay."""
        return None if self._file is None else self._file.number
