"""The engine as readers have it whose reads may begin where the stream has been trimmed: from its archive on.

Knows: which reads begin there, where the archive ends and the stream begins. Must never know: how a page is
fetched, who may read what.

    0-0 ═══ archive ═══ archived_up_to
                  removed_upto ╞═══ stream ═══►

A page is of one of both. One of the archive says that there is `more`. Where the archive has nothing between
the cursor and `removed_upto`, the stream is read from there on, and nothing is missing. Where the archive
does not reach so far, the stream says what is missing, as without an archive.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

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
    Refused,
    Replies,
    ask,
    ids,
    unexpected,
)
from engine import entries as stored
from engine.commands.base import Command
from engine.commands.durable_commands import DescribeDurable
from engine.commands.types import XRange, XRead
from engine.commands.weir_commands import DescribeArchived, DescribeEdges
from engine.replies import Archived, DurableInfo, Edges, Entries, Gap, Reply, StreamEntries, StreamsRead

# Further looks at a stream that changes meanwhile.
_ATTEMPTS_MAX: Final = 3


class _Read(NamedTuple):
    """Entries of a stream that are wanted, from `low` to `high`. `after`: the cursor of a reader that learns
    of gaps; `known`: the generation that this is of, empty where the reader does not say.
    """

    stream: str
    low: int
    high: int
    number_max: int
    bytes_max: int
    reverse: bool = False
    after: int | None = None
    known: str = ""


class _Past(NamedTuple):
    """What the archive has for a read, in this generation of the stream. Without `entries` it has nothing,
    and the stream is read from above `seam` on.
    """

    generation: str
    seam: int
    entries: Entries | None = None
    gap: Gap | None = None


class ReachingEngine(EngineProxy):
    """Runs calls in `engine`; reads of a call with a `reader` begin in the archive."""

    def __init__(self, engine: CommandEngine, client: HistoryClient) -> None:
        super().__init__(engine)
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, call: Call, done: Done) -> Replies | None:
        """Run a call as the engine does, unless a read of it begins before the stream does."""
        reader = call.reader
        reads = {} if reader is None else _reads_of(call)
        if not reads or reader is None:
            return self._engine.send(call, done)
        wanted = _Wanted(call, reader, done)
        looks = [DescribeEdges(stream=read.stream) for read in reads.values()]
        look = Call(looks, How.TOGETHER, origin=call.origin)
        looked = self._engine.send(look, lambda later: self._go_on(wanted, reads, later))
        if looked is not None and not _may_reach(reads, looked):
            # What is answered at once is of the turn in which it was looked.
            return self._engine.send(call, lambda later: self._compare(wanted, reads, later))
        if looked is not None:
            self._begin(wanted)
        return None

    def _go_on(self, wanted: "_Wanted", reads: "_Reads", looked: Replies) -> None:
        if _may_reach(reads, looked):
            self._begin(wanted)
        else:
            self._pass(wanted.call, lambda replies: self._compare(wanted, reads, replies))

    def _pass(self, call: Call, done: Done) -> None:
        if call.waits is not None and call.waits.is_cancelled:
            return
        replies = self._engine.send(call, done)
        if replies is not None:
            done(replies)

    def _compare(self, wanted: "_Wanted", reads: "_Reads", replies: Replies) -> None:
        """Answer, unless a stream was trimmed since it was looked at."""
        self._check(
            wanted.call,
            _Seen.of(reads),
            replies,
            lambda is_overtaken: self._begin(wanted) if is_overtaken else wanted.done(replies),
        )

    def _check(self, call: Call, seen: "_Seen", replies: Replies, end: Callable[[bool], None]) -> None:
        """Call `end` with whether a stream was trimmed between the look at it and these replies."""
        found = seen.compare(call, replies)
        if found is not None:
            end(found)
            return

        async def look_again() -> None:
            is_overtaken = await self._is_overtaken(call, seen)
            if call.waits is None or not call.waits.is_cancelled:
                end(is_overtaken)

        self._start(look_again())

    async def _is_overtaken(self, call: Call, seen: "_Seen") -> bool:
        looks = [DescribeEdges(stream=stream) for stream in seen.floors]
        try:
            looked = await ask(self._engine, Call(looks, How.TOGETHER, origin=call.origin))
        except EngineError:
            # What the engine does not say now it did not say before: the reader learns it by the next read.
            return False
        return seen.is_below(zip(seen.floors, map(_removed, looked), strict=True))

    def _begin(self, wanted: "_Wanted") -> None:
        task = self._start(self._run(wanted))
        if wanted.call.waits is not None:
            # Of the engine, which may have had it before, it is no more.
            wanted.call.waits.begin(wanted.call.commands[0], wanted.done, lambda _: None)
            # A page has a time of its own; an end that was asked for meanwhile holds for what comes after it.
            wanted.call.waits.wait(lambda: None, lambda: _cancel(task))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, wanted: "_Wanted") -> None:
        call, attempts = wanted.call, wanted.attempts
        further = wanted._replace(attempts=attempts - 1)
        reach = _Reach(self._engine, self._client, call, wanted.reader)
        replies: Replies
        try:
            changed = await reach.look()
            if not reach.is_answered:

                def show(found: Replies, *, is_overtaken: bool) -> None:
                    if is_overtaken or (attempts and reach.is_outdated(found)):
                        self._begin(further)
                    else:
                        wanted.done(reach.shown(found))

                def check(found: Replies) -> None:
                    seen = reach.seen if attempts else _Seen({}, frozenset())
                    self._check(changed, seen, found, lambda one: show(found, is_overtaken=one))

                self._pass(changed, check)
                return
            found = await ask(self._engine, changed)
            seen = reach.seen.compare(changed, found)
            is_overtaken = await self._is_overtaken(changed, reach.seen) if seen is None else seen
            if attempts and (is_overtaken or reach.is_outdated(found)):
                self._begin(further)
                return
            replies = await reach.extend(found)
        except EngineError as error:
            replies = Refused(error)
        except Exception as error:  # noqa: BLE001 - the caller gets an answer in any case
            replies = Refused(unexpected(call.origin, error))
        if call.waits is None:
            wanted.done(replies)
        else:
            call.waits.answer(replies)


class _Wanted(NamedTuple):
    """A call whose reads may begin in the archive; `attempts` are left for streams that change meanwhile."""

    call: Call
    reader: Reader
    done: Done
    attempts: int = _ATTEMPTS_MAX


class _Seen(NamedTuple):
    """What was known of streams before a call ran. `floors`: a range of the stream is whole as long as no
    more than up to there is removed. `whole`: streams that had all that comes after the cursors of their
    readers, who learn of a gap by the reply.
    """

    floors: Mapping[str, int]
    whole: frozenset[str]

    @classmethod
    def of(cls, reads: "_Reads") -> Self:
        """Where all of these had not been trimmed."""
        floors: dict[str, int] = {}
        for read in reads.values():
            if read.after is None:
                floors[read.stream] = min(read.low - 1, floors.get(read.stream, ids.ID_MAX))
        return cls(floors, frozenset(read.stream for read in reads.values()))

    def is_below(self, removed: Iterable[tuple[str, int]]) -> bool:
        """Whether more than that is removed."""
        return any(upto > self.floors.get(stream, ids.ID_MAX) for stream, upto in removed)

    def compare(self, call: Call, replies: Replies) -> bool | None:
        """Whether a stream was trimmed before the replies were made; None where they do not say."""
        if any(isinstance(reply, EngineError) for reply in replies):
            return False
        gaps = (one for reply in replies if isinstance(reply, StreamsRead) for one in reply.streams)
        if any(one.gap and one.gap.reason is None and one.stream in self.whole for one in gaps):
            return True
        known = {
            command.stream: _removed(reply)
            for command, reply in zip(call.commands, replies, strict=False)
            if isinstance(command, DescribeEdges | DescribeDurable)
        }
        if self.is_below(known.items()):
            return True
        return False if self.floors.keys() <= known.keys() else None


def _removed(reply: Reply | EngineError) -> int:
    """Up to where a stream was trimmed; nothing of one that is missing."""
    return reply.removed_upto if isinstance(reply, Edges | DurableInfo) else 0


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


# By the places of the command in its call, and of the stream in the command.
_Reads = dict[tuple[int, int], _Read]


def _reads_of(call: Call) -> _Reads:
    """The reads that may begin in the archive."""
    found: _Reads = {}
    if call.how is How.EACH:
        return found
    cursors: dict[str, tuple[int, str]] = {}
    for place, command in enumerate(call.commands):
        if isinstance(command, XRead):
            known = command.known or [""] * len(command.streams)
            for number, ((stream, at), generation) in enumerate(zip(command.streams, known, strict=True)):
                if isinstance(at, int) and at < ids.ID_MAX:
                    cursors[stream] = at, generation
                    found[place, number] = _read(
                        stream, at + 1, ids.ID_MAX, command, after=at or None, known=generation
                    )
    for place, command in enumerate(call.commands):
        if isinstance(command, XRange) and command.count != 0 and command.start <= command.end:
            cursor, generation = cursors.get(command.stream, (0, ""))
            found[place, 0] = _read(
                command.stream,
                command.start,
                command.end,
                command,
                reverse=command.reverse,
                after=cursor if cursor and cursor + 1 == command.start else None,
                known=generation,
            )
    return found


def _read(
    stream: str,
    low: int,
    high: int,
    command: XRead | XRange,
    *,
    after: int | None,
    known: str,
    reverse: bool = False,
) -> _Read:
    count = min(command.count or COUNT_MAX, COUNT_MAX)
    bytes_max = min(command.bytes_max or BYTES_MAX, BYTES_MAX)
    # There is no entry 0-0: what begins there begins with the first one.
    return _Read(stream, max(low, 1), high, count, bytes_max, reverse, after, known)


def _may_reach(reads: _Reads, looked: Replies) -> bool:
    """Whether one of them begins where its stream has nothing any more."""
    return any(
        isinstance(edges, Edges) and read.low <= edges.removed_upto
        for read, edges in zip(reads.values(), looked, strict=False)
    )


class _Reach:
    """One call, with what the archive has for its reads.

    `look` and then `extend` make its replies; where `is_answered` is not set after `look`, the call that this
    returned is all there is to run, and `shown` makes the replies.
    """

    def __init__(self, engine: CommandEngine, client: HistoryClient, call: Call, reader: Reader) -> None:
        self.is_answered = False
        self._engine = engine
        self._client = client
        self._call = call
        self._reader = reader
        self._reads = _reads_of(call)
        self._pasts: dict[tuple[int, int], _Past] = {}
        # What was not trimmed yet.
        self._untrimmed: dict[tuple[int, int], _Read] = {}

    async def look(self) -> Call:
        """Fetch what reads begin with; the call for the rest. Raises EngineError."""
        for place, read in self._reads.items():
            if not self._is_beside_range(place, read) and not read.reverse:
                found = await self._describe(read)
                if found is not None and found.removed_upto < read.low:
                    self._untrimmed[place] = read
                past = await self._find(read, found)
                if past is not None:
                    self._pasts[place] = past
        for place, read in self._reads.items():
            beside = self._range_beside(read) if self._is_beside_range(place, read) else None
            if beside is not None and beside in self._pasts:
                self._pasts[place] = self._pasts[beside]
        self.is_answered = any(past.entries is not None for past in self._pasts.values()) or any(
            read.reverse for read in self._reads.values()
        )
        commands = [self._changed(place, command) for place, command in enumerate(self._call.commands)]
        return replace(self._call, commands=commands, waits=None if self.is_answered else self._call.waits)

    async def extend(self, replies: Replies) -> Replies:
        """The replies, with what comes behind a run that was read backwards. Raises EngineError."""
        shown = list(self.shown(replies))
        for (place, _), read in self._reads.items():
            entries = shown[place]
            if not read.reverse or not isinstance(entries, Entries) or entries.more:
                continue
            found = await self._describe(read)
            if entries.count:
                # The archive may have more, which is another page.
                has_past = found is not None and _reaches(read, found)
                shown[place] = replace(entries, more=has_past, whole=has_past)
            elif (past := await self._find(read, found)) is not None and past.entries is not None:
                shown[place] = past.entries
        return shown

    def is_outdated(self, replies: Replies) -> bool:
        """Whether the stream is another one than the archive was asked about."""
        if isinstance(replies, Refused):
            return False
        generations = {past.generation for past in self._pasts.values()}
        edges = {reply.generation for reply in replies if isinstance(reply, Edges | DurableInfo)}
        if any(reply is None for reply in replies):
            return bool(generations)
        known = {one for reply in replies if isinstance(reply, StreamsRead) for one in reply.generations}
        return bool(generations) and bool(edges or known) and not generations <= edges | known

    @property
    def seen(self) -> _Seen:
        """What was known of the streams of which the changed call reads on."""
        seen = _Seen.of(self._untrimmed)
        floors, whole = dict(seen.floors), set(seen.whole)
        for place, past in self._pasts.items():
            if past.entries is None:
                stream = self._reads[place].stream
                whole.add(stream)
                if isinstance(self._call.commands[place[0]], XRange):
                    floors[stream] = min(past.seam, floors.get(stream, ids.ID_MAX))
        return _Seen(floors, frozenset(whole))

    # ---- the archive's part

    async def _describe(self, read: _Read) -> Archived | None:
        """How far the stream is archived and trimmed; None where it is not the one that is read."""
        command = DescribeArchived(stream=read.stream, low=read.low, high=read.high)
        (found,) = await ask(self._engine, Call((command,), origin=self._call.origin))
        if not isinstance(found, Archived) or read.known not in ("", found.generation):
            return None
        return found

    async def _find(self, read: _Read, found: Archived | None) -> _Past | None:
        """What the archive has of a read; None where the stream itself is read as ever."""
        if found is None or not _reaches(read, found):
            return None
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
                entries = replace(entries, more=has_more, whole=is_whole)
                gap = None
                if not is_whole and read.after is not None:
                    gap = Gap(read.after, entries.first, None)
                return _Past(found.generation, found.removed_upto, entries, gap)
            if not answered.more:
                break
            # All of it was deleted.
            low, high = (asked.low, answered.last - 1) if read.reverse else (answered.last + 1, asked.high)
            asked = asked._replace(low=low, high=high, after=None)
        if (
            answered.covered < end
            or not is_whole
            or end == found.archived_up_to < min(read.high, found.removed_upto)
        ):
            return None
        nothing = Entries(whole=True) if read.reverse or read.high <= found.removed_upto else None
        return _Past(found.generation, found.removed_upto, nothing)

    # ---- commands and replies

    def _range_beside(self, read: _Read) -> tuple[int, int] | None:
        for place, other in self._reads.items():
            is_range = isinstance(self._call.commands[place[0]], XRange)
            if is_range and (other.stream, other.low) == (read.stream, read.low):
                return place
        return None

    def _is_beside_range(self, place: tuple[int, int], read: _Read) -> bool:
        """Whether this is the look for a gap beside a range."""
        return isinstance(self._call.commands[place[0]], XRead) and self._range_beside(read) is not None

    def _changed(self, place: int, command: Command) -> Command:
        """The command for what is left of it."""
        if isinstance(command, XRange):
            past = self._pasts.get((place, 0))
            if past is None:
                return command
            return replace(command, count=1) if past.entries else replace(command, start=past.seam + 1)
        if not isinstance(command, XRead) or not any(at == place for at, _ in self._pasts):
            return command
        streams = [
            (stream, self._pasts[place, number].seam if (place, number) in self._pasts else cursor)
            for number, (stream, cursor) in enumerate(command.streams)
        ]
        return replace(command, streams=streams, **({"block_ms": None} if self.is_answered else {}))

    def shown(self, replies: Replies) -> Replies:
        """The replies of the changed call as those of the call."""
        if isinstance(replies, Refused) or not self._pasts:
            return replies
        return [self._shown(place, reply) for place, reply in enumerate(replies)]

    def _shown(self, place: int, reply: Reply | EngineError) -> Reply | EngineError:
        if isinstance(reply, Entries):
            past = self._pasts.get((place, 0))
            if past is None:
                return reply
            return past.entries or replace(reply, whole=True)
        if isinstance(reply, StreamsRead):
            return self._shown_streams(place, reply)
        return reply

    def _shown_streams(self, place: int, reply: StreamsRead) -> StreamsRead:
        there = {one.stream: one for one in reply.streams}
        cursors = list(reply.cursors)
        for (at, number), past in self._pasts.items():
            read = self._reads[at, number]
            if at != place or past.entries is None:
                continue
            beside = self._is_beside_range((at, number), read)
            there.pop(read.stream, None)
            cursors[number] = read.stream, read.low - 1
            if past.gap is not None or not beside:
                shown = Entries() if beside else past.entries
                there[read.stream] = StreamEntries(read.stream, shown, read.low - 1, past.gap)
        streams = [there[stream] for stream, _ in cursors if stream in there]
        given = {read.stream for (at, _), read in self._reads.items() if at == place and read.stream in there}
        closed = [end for end in reply.closed if end.stream not in given]
        return replace(reply, streams=streams, cursors=cursors, closed=closed)


def _reaches(read: _Read, found: Archived) -> bool:
    """Whether the archive may have what a read begins with."""
    return read.low <= min(found.removed_upto, found.archived_up_to)


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
