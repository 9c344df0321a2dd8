"""The engine as readers have it whose reads may begin where the stream has been trimmed: from its archive on.

Knows: which reads begin there, where the archive ends and the stream begins. Must never know: how a page is
fetched, who may read what.

    0-0 ═══ archive ═══ archived_up_to
                  removed_upto ╞═══ stream ═══►

A page is of one of both. One of the archive says that there is `more`. Where the archive has nothing between
the cursor and `removed_upto`, the stream is read from there on, and nothing is missing. Where the archive
does not reach so far, the stream says what is missing, as without an archive.

Each turn that reads also says, behind what it reads, where both end: no trim comes between.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from app.archived.asking import BYTES_MAX, COUNT_MAX, Answered, Asked
from app.archived.client import HistoryClient
from engine import (
    Call,
    CommandEngine,
    Done,
    EngineError,
    EngineProxy,
    How,
    Reader,
    ReadHandle,
    Refused,
    Replies,
    ask,
    ids,
    unexpected,
)
from engine import entries as stored
from engine.commands.base import Command
from engine.commands.types import XRange, XRead
from engine.commands.weir_commands import DescribeArchived
from engine.replies import Archived, Entries, Gap, Reply, StreamEntries, StreamsRead

# Streams of which it is remembered how far they are trimmed.
_TRIMMED_MAX: Final = 1_000

# The place of a command in its call, and of a stream in the command.
_Place = tuple[int, int]


class _Read(NamedTuple):
    """Entries of a stream that are wanted, from `low` to `high`. `after`: the cursor of a reader that learns
    of gaps; `known`: the generation that this is of, empty where the reader does not say; `look`: what looks
    for a gap beside a range.
    """

    place: _Place
    stream: str
    low: int
    high: int
    number_max: int
    bytes_max: int
    after: int | None
    known: str
    reverse: bool = False
    look: _Place | None = None


class _Page(NamedTuple):
    """What is shown of a read, and the gap before it."""

    entries: Entries
    gap: Gap | None = None


class ReachingEngine(EngineProxy):
    """Runs calls in `engine`; reads of a call with a `reader` begin in the archive."""

    def __init__(self, engine: CommandEngine, client: HistoryClient) -> None:
        super().__init__(engine)
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()
        # Up to where. Who reads there is mostly about to read there again.
        self._trimmed: dict[str, int] = {}

    def send(self, call: Call, done: Done) -> Replies | None:
        """Run a call as the engine does, unless a read of it begins before the stream does."""
        reader = None if call.how is How.EACH else call.reader
        reads = () if reader is None else _reads_of(call.commands)
        if reader is None or not reads:
            return self._engine.send(call, done)
        if len(self._trimmed) > _TRIMMED_MAX:
            self._trimmed.clear()
        reach = _Reach(self._engine, self._client, call, reader, self._trimmed)
        if call.waits is not None:
            call.waits.begin(call.commands[0], done, lambda _: None)
            task = self._start(_answer(reach, None, call.origin, call.waits.answer))
            # A page has a time of its own; an end that was asked for meanwhile holds for what comes after it.
            call.waits.wait(reach.waits.end, lambda: reach.cancel(task))
            return None

        def go_on(found: Replies) -> Replies | None:
            if reach.is_answered(found):
                return reach.shown(found)
            self._start(_answer(reach, found, call.origin, done))
            return None

        def answer(found: Replies) -> None:
            replies = go_on(found)
            if replies is not None:
                done(replies)

        found = self._engine.send(reach.turn(), answer)
        return None if found is None else go_on(found)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _answer(reach: "_Reach", found: Replies | None, origin: str, done: Done) -> None:
    try:
        replies = await reach.run(found)
    except EngineError as error:
        replies = Refused(error)
    except Exception as error:  # noqa: BLE001 - the caller gets an answer in any case
        replies = Refused(unexpected(origin, error))
    done(replies)


class _Reach:
    """One call, with what the archive has for its reads."""

    def __init__(
        self,
        engine: CommandEngine,
        client: HistoryClient,
        call: Call,
        reader: Reader,
        trimmed: dict[str, int],
    ) -> None:
        # Of a read that waits, while it does.
        self.waits: Final = ReadHandle()
        self._engine = engine
        self._client = client
        self._call = call
        self._reader = reader
        self._trimmed = trimmed
        self._begin()
        # Whether this is about the archive alone: the stream's own page is for nothing then.
        self._is_glance = all(
            not read.reverse and read.low <= trimmed.get(read.stream, 0) for read in self._reads
        )

    def _begin(self) -> None:
        self._commands: list[Command] = list(self._call.commands)
        self._reads = _reads_of(self._commands)
        self._pages: dict[_Place, _Page] = {}
        # The streams of which these pages are, and those that are read from above their seam on.
        self._generations: dict[str, str] = {}
        self._whole: set[int] = set()

    def turn(self) -> Call:
        """The reads that are left, none of which waits, and where their streams begin."""
        looks = [DescribeArchived(stream=read.stream, low=read.low, high=read.high) for read in self._reads]
        commands = [
            replace(command, count=1) if self._is_glance and isinstance(command, XRange | XRead) else command
            for command in self._commands
        ]
        return replace(self._call, commands=[*commands, *looks], how=How.TOGETHER, waits=None, reader=None)

    def is_answered(self, found: Replies) -> bool:
        """Whether the replies of the first turn are all that there is to find."""
        return isinstance(found, Refused) or not (self._is_glance or any(self._reaching(found)))

    async def run(self, found: Replies | None) -> Replies:
        """The replies of the call, by those of its first turn where they are there. Raises EngineError."""
        while True:
            found = await ask(self._engine, self.turn()) if found is None else found
            if not await self._fill(found):
                shown = self.shown(found)
                blocked = self._blocked(shown[0])
                if blocked is None:
                    return shown
                shown = await ask(self._engine, blocked)
                if _is_whole(shown[0]):
                    return shown
            found = None

    def cancel(self, task: asyncio.Task[None]) -> None:
        """End it with nothing taken."""
        self.waits.cancel()
        task.cancel()

    def _blocked(self, reply: Reply | EngineError) -> Call | None:
        """The read as one that waits, where it has found nothing and may: from the same places on."""
        (read, *_), waits = self._commands, self._call.waits is not None
        if not (waits and isinstance(read, XRead) and isinstance(reply, StreamsRead)):
            return None
        if reply.streams or read.block_ms is None:
            return None
        self._commands = [replace(read, streams=reply.cursors, known=reply.generations or None)]
        self._reads = _reads_of(self._commands)
        return replace(self._call, commands=self._commands, waits=self.waits, reader=None)

    # ---- the archive's part

    def _reaching(self, found: Replies) -> Iterator[tuple[_Read, Archived]]:
        """The reads that the archive may have more of than these replies."""
        for read, looked in self._looked(found):
            reply = found[read.place[0]]
            if not isinstance(looked, Archived) or isinstance(reply, EngineError):
                continue
            is_of_it = read.known in ("", looked.generation)
            has_more = read.reverse and isinstance(reply, Entries) and reply.more
            if is_of_it and not has_more and read.low <= min(looked.removed_upto, looked.archived_up_to):
                yield read, looked

    def _looked(self, found: Replies) -> Iterator[tuple[_Read, Reply | EngineError]]:
        return zip(self._reads, found[len(self._commands) :], strict=True)

    async def _fill(self, found: Replies) -> bool:
        """Find what the archive has for these reads. Returns whether to run another turn for the rest."""
        for read, looked in self._looked(found):
            generation = looked.generation if isinstance(looked, Archived) else ""
            if self._generations.get(read.stream, generation) != generation:
                # What was found is of a stream that is gone.
                self._begin()
                return True
        was_glance, self._is_glance = self._is_glance, False
        passed = list[tuple[_Read, int]]()
        for read, looked in self._reaching(found):
            self._trimmed[read.stream] = looked.removed_upto
            if read.place in self._pages:
                continue
            reply = found[read.place[0]]
            if read.reverse and isinstance(reply, Entries) and reply.count:
                # The archive may have more, which is another page.
                past: _Page | int | None = _Page(replace(reply, more=True, whole=True))
            else:
                past = await self._find(read, looked)
            if past is not None:
                self._generations[read.stream] = looked.generation
            if isinstance(past, _Page):
                self._pages[read.place] = past
            elif past is not None:
                passed.append((read, past))
        for read, seam in passed:
            self._pass_over(read, seam)
        self._reads = _reads_of(self._commands)
        left = [read.stream for read in self._reads if was_glance and read.place not in self._pages]
        for stream in left:
            self._trimmed.pop(stream, None)
        return bool(passed or left)

    async def _find(self, read: _Read, found: Archived) -> _Page | int | None:
        """What the archive has of a read. An ID: nothing, and the stream is read from above it on; None: less
        than was trimmed, and the stream is read as ever.
        """
        end = min(read.high, found.removed_upto, found.archived_up_to)
        asked = Asked(
            self._client.gateway, read.stream, found.generation, read.low, end, read.number_max,
            read.bytes_max, read.reverse, read.after,
        )  # fmt: skip
        is_whole = True
        while True:
            answered = await self._client.fetch(asked, self._reader)
            entries = _left_of(answered, found.deleted)
            is_whole = is_whole and answered.missing_upto is None
            if entries.count:
                has_more = answered.more or (not read.reverse and read.high > end)
                is_gap = not is_whole and read.after is not None
                gap = Gap(read.after or 0, entries.first, None) if is_gap else None
                return _Page(replace(entries, more=has_more, whole=is_whole), gap)
            if not answered.more:
                break
            # All of it was deleted.
            low, high = (asked.low, answered.last - 1) if read.reverse else (answered.last + 1, asked.high)
            asked = asked._replace(low=low, high=high, after=None)
        is_short = end == found.archived_up_to < min(read.high, found.removed_upto)
        if is_short or answered.covered < end or not is_whole:
            return None
        has_all = read.reverse or read.high <= found.removed_upto
        return _Page(Entries(whole=True)) if has_all else found.removed_upto

    # ---- commands and replies

    def _pass_over(self, read: _Read, seam: int) -> None:
        """Read from above the seam on: the archive has nothing below."""
        for place, number in filter(None, (read.place, read.look)):
            command = self._commands[place]
            if isinstance(command, XRead):
                streams = list(command.streams)
                streams[number] = read.stream, seam
                self._commands[place] = replace(command, streams=streams)
            elif isinstance(command, XRange):
                self._commands[place] = replace(command, start=seam + 1)
                self._whole.add(place)

    def shown(self, found: Replies) -> Replies:
        """The replies of the call, by those of its last turn."""
        if isinstance(found, Refused):
            return found
        shown = list(found[: len(self._commands)])
        for place in self._whole:
            if isinstance(reply := shown[place], Entries):
                shown[place] = replace(reply, whole=True)
        pages = [(read, self._pages[read.place]) for read in self._reads if read.place in self._pages]
        for read, page in pages:
            for place, number in filter(None, (read.place, read.look)):
                reply = shown[place]
                if isinstance(reply, Entries):
                    shown[place] = page.entries
                elif isinstance(reply, StreamsRead):
                    shown[place] = _with_page(reply, number, read, page)
        return shown


def _with_page(reply: StreamsRead, number: int, read: _Read, page: _Page) -> StreamsRead:
    """The reply with this page of the archive; beside a range with the gap alone, where there is one."""
    after = read.low - 1
    there = {one.stream: one for one in reply.streams if one.stream != read.stream}
    if read.look is None or page.gap is not None:
        entries = page.entries if read.look is None else Entries()
        there[read.stream] = StreamEntries(read.stream, entries, after, page.gap)
    cursors = [*reply.cursors]
    cursors[number] = read.stream, after
    streams = [there[stream] for stream, _ in cursors if stream in there]
    closed = [end for end in reply.closed if end.stream != read.stream]
    return replace(reply, streams=streams, cursors=cursors, closed=closed)


def _is_whole(reply: Reply | EngineError) -> bool:
    """Whether nothing can be missing from what a read that waited was woken for. From 0 on it learns of no
    gap.
    """
    streams = reply.streams if isinstance(reply, StreamsRead) else ()
    return all(one.after and (one.gap is None or one.gap.reason is not None) for one in streams)


def _reads_of(commands: Sequence[Command]) -> Sequence[_Read]:
    """The reads that may begin in the archive."""
    ranges: list[_Read] = []
    others: dict[tuple[str, int], _Read] = {}
    known: dict[str, str] = {}
    for place, command in enumerate(commands):
        if isinstance(command, XRead):
            rows = zip(command.streams, command.known or [""] * len(command.streams), strict=True)
            for number, ((stream, at), generation) in enumerate(rows):
                if isinstance(at, int) and at < ids.ID_MAX:
                    known[stream] = generation
                    bounds = (at + 1, ids.ID_MAX, *_bounds(command))
                    others[stream, at + 1] = _Read((place, number), stream, *bounds, at or None, generation)
    for place, command in enumerate(commands):
        if isinstance(command, XRange) and command.count != 0 and command.start <= command.end:
            stream, look = command.stream, others.pop((command.stream, command.start), None)
            after, beside = (None, None) if look is None else (look.after, look.place)
            # There is no entry 0-0: what begins there begins with the first one.
            bounds = (max(command.start, 1), command.end, *_bounds(command))
            generation = known.get(stream, "")
            ranges.append(_Read((place, 0), stream, *bounds, after, generation, command.reverse, beside))
    return [*ranges, *others.values()]


def _bounds(command: XRead | XRange) -> tuple[int, int]:
    """The most entries and bytes of a page."""
    return min(command.count or COUNT_MAX, COUNT_MAX), min(command.bytes_max or BYTES_MAX, BYTES_MAX)


def _left_of(answered: Answered, deleted: Sequence[int]) -> Entries:
    """A page's entries, but those that were deleted since it was archived."""
    low, high = sorted((answered.first, answered.last))
    if not any(low <= one <= high for one in deleted):
        parts = (answered.text,) if answered.number else ()
        return Entries(parts, answered.number, answered.first, answered.last, archived=True)
    gone = set(deleted)
    texts = [text for text in stored.texts(answered.text) if stored.id_of(text) not in gone]
    if not texts:
        return Entries()
    return Entries(
        (b",".join(texts),), len(texts), stored.id_of(texts[0]), stored.id_of(texts[-1]), archived=True
    )
