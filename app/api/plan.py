"""Plans for bulk readers: what many streams hold, and which part of it to read next."""

import asyncio
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Annotated, Final

import msgspec
from pydantic import Field

from app.auth import Access, Action
from app.errors import invalid, step
from app.glob import Glob
from app.http.entries.entry_pages import preferred_wait_ms
from app.http.models import (
    ABSENT,
    Count,
    IdsByStream,
    IdText,
    RequestModel,
    ResponseModel,
    Whole,
    capped,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Response
from engine import Call, ReadHandle, ask_one, ids
from engine.apportion import apportion
from engine.commands.types import ListStreams
from engine.commands.weir_commands import Plan
from engine.replies import Listing, Planned
from engine.replies import StreamPlan as PlannedStream

router: Final = Router("many")

# Streams planned in one turn: a look into each takes some hundredths of a millisecond.
STREAMS_PER_TURN: Final = 50
# More pieces than any reader has workers; each costs a look.
PARTS_MAX: Final = 256
# As long as the longest name: a match costs the product of both lengths.
PATTERN_BYTES_MAX: Final = 512
# Names looked at in one turn.
_NAMES_PER_TURN: Final = 1_000
# Cutting a range into this many pieces costs as much as counting it.
_CUTS_PER_COUNT: Final = 8
# Above this many rows, streams and cuts, writing the answer takes longer than a thread costs.
_INLINE_ROWS_MAX: Final = 200
# A waiting plan looks this often for new streams that match its pattern; less often where looking takes long:
# it may take one part in `_LOOKING_SHARE` of the time.
_LOOK_AGAIN_MS: Final = 1_000
_LOOKING_SHARE: Final = 20


class PlanWanted(RequestModel):
    """Which streams, each with the ID behind which it is read, and how much of them.

    `pattern` stands for streams that `streams` does not name: these are read from the beginning. At least one
    of the two is needed. `end` bounds single streams; all streams share the budget in proportion to what they
    have, but get one entry each.
    """

    streams: IdsByStream | None = None
    pattern: Annotated[
        str | None,
        Field(min_length=1, max_length=PATTERN_BYTES_MAX, description="`*`, `?`, `[a-c]`, as in Redis"),
    ] = None
    end: Annotated[
        IdsByStream | None, Field(description="the last ID that may be planned, of some of the streams")
    ] = None
    max_entries: Annotated[int, Whole(1)] | None = None
    max_bytes: Annotated[int, Whole(1)] | None = None
    parts: Annotated[int, Whole(1, PARTS_MAX, description="maximum number of pieces of each range")] = 1
    durable_only: bool = False
    wait: Annotated[
        Annotated[int, Whole(0, "wait_ms_max")] | None,
        Field(description="milliseconds to wait where there is nothing"),
    ] = None

    def check(self) -> None:
        """Refuse members that do not go together."""
        if not self.streams and self.pattern is None:
            raise invalid("/streams", "a plan needs streams, with their cursors, or a pattern")
        if self.pattern is None:
            for name in self.end or ():
                if name not in (self.streams or {}):
                    raise invalid(f"/end/{step(name)}", "the stream is not one of the plan's")

    def glob(self) -> Glob | None:
        """The pattern, compiled."""
        if self.pattern is None:
            return None
        pattern = self.pattern.encode()
        if len(pattern) > PATTERN_BYTES_MAX:
            raise invalid("/pattern", f"a pattern has at most {PATTERN_BYTES_MAX} bytes, as a name")
        return Glob(pattern)

    def command(self, names: Sequence[str]) -> Plan:
        """The command, with the streams that match the pattern: these are read from the beginning."""
        return Plan(
            streams=[*(self.streams or {}).items(), *((name, ids.ID_MIN) for name in names)],
            ends=self.end or {},
            max_entries=self.max_entries,
            max_bytes=self.max_bytes,
            parts=self.parts,
            durable_only=self.durable_only,
        )

    def waiting(self, names: Sequence[str], wait_ms: int) -> Plan:
        """The command that waits until there is something, and plans as little as possible."""
        return msgspec.structs.replace(
            self.command(names), max_entries=None, max_bytes=None, parts=1, block_ms=wait_ms
        )


class StreamPlan(ResponseModel):
    """`(after, end]` is to be read: `count` entries, whose stored texts take about `bytes`; `end` is `after`
    where there are none. `lag` entries follow `after` in all.

    `first` is the first entry's ID, `last` the last ID given. A cursor other than 0-0 below `removed_upto`
    has missed entries, and so has one with another `generation`. `durable` is the highest ID that a crash
    cannot take back, null where that is not known (fsync=no). `cuts` are the IDs that end all pieces but the
    last.
    """

    after: IdText
    end: IdText
    count: Count
    bytes: Count
    first: IdText | None
    last: IdText
    removed_upto: IdText
    max_deleted_id: IdText
    generation: str
    durable: IdText | None
    lag: Count
    cuts: list[IdText]
    closed: Annotated[bool, Field(description="nothing comes behind `last_id`")] = ABSENT


class PreviousStream(ResponseModel):
    """The stream that had a name before the one that has it now, or had it last. `last` is the last ID that
    it gave: who had read it up to there has lost nothing of it.
    """

    generation: str
    last: IdText


class Plans(ResponseModel):
    """What there is in each stream, and which of the streams do not exist. `previous`: who had these names
    before, where it is known: of the last 10,000 names whose stream ended after a part of it was archived.
    """

    streams: dict[str, StreamPlan]
    missing: list[str]
    previous: dict[str, PreviousStream] = ABSENT


@router.post(
    "/v1/plan",
    Access.PER_STREAM,
    model=Plans,
    refusals=("malformed_id", "too_many_waiters"),
    prefer="`wait=<seconds>`, where the body has no `wait`",
)
async def plan(request: RequestParameter, wanted: PlanWanted) -> Response:
    """Plan a read of many streams: what follows a cursor in each, with a budget shared between them.

    It counts what there is without reading it, and says how far to read next. With `durable_only` a range
    ends where a crash may take back what follows. `wait` waits while there is nothing at all. Read the ranges
    as pages, `readEntries` with `after` and `end`.
    """
    wait_ms = preferred_wait_ms(request.preferences.wait_s, request.gateway.limits.reads)
    if wanted.wait is not None:
        wait_ms = wanted.wait
    wanted.check()
    pattern = wanted.glob()
    for name in wanted.streams or ():
        request.require(Action.READ, name)
    names = await _find(request, wanted, pattern)
    planned = await _plan(request, wanted.command(names))
    if wait_ms and not _has_any(planned):
        planned = await request.wait_for(_wait(request, wanted, pattern, names, wait_ms))
    rows = sum(1 + len(stream.cuts) for stream in planned.streams)
    return Response(
        200, await asyncio.to_thread(write, planned) if rows > _INLINE_ROWS_MAX else write(planned)
    )


async def _wait(
    request: Request, wanted: PlanWanted, pattern: Glob | None, names: Sequence[str], wait_ms: int
) -> Planned:
    """The plan, made when there is something or the time is over."""
    clock = request.gateway.clock
    until = clock.monotonic() + wait_ms / 1000
    looked_s = 0.0
    while True:
        rest_ms = max(1, round((until - clock.monotonic()) * 1000))
        if pattern is not None:
            rest_ms = min(rest_ms, max(_LOOK_AGAIN_MS, round(looked_s * _LOOKING_SHARE * 1000)))
        # Its answer is made in one turn, and of streams that were found before: it only says when.
        request.exchange.has_waited = True
        waiting = Call((wanted.waiting(names, rest_ms),), waits=ReadHandle(), origin=request.request_id)
        await ask_one(request.engine, waiting)
        began = clock.monotonic()
        names = await _find(request, wanted, pattern)
        looked_s = clock.monotonic() - began
        planned = await _plan(request, wanted.command(names))
        if _has_any(planned) or clock.monotonic() >= until:
            return planned


# ---- streams that match the pattern


async def _find(request: Request, wanted: PlanWanted, pattern: Glob | None) -> list[str]:
    """The other streams that match the pattern, of those that the caller may read."""
    if pattern is None:
        return []
    most = request.gateway.settings.request_streams_max
    named = wanted.streams or {}
    names: list[str] = []
    prefix = pattern.prefix.decode(errors="ignore")
    after = None
    while True:
        page = await request.execute(ListStreams(prefix=prefix, after=after, limit=_NAMES_PER_TURN))
        assert isinstance(page, Listing), "listing answers names"
        # How long a match takes depends on pattern and name: others are served meanwhile.
        names += await asyncio.to_thread(_matching, request, pattern, named, page.names)
        if len(names) + len(named) > most:
            raise invalid("/pattern", f"one plan covers at most {most} streams: split it into several")
        after = page.next
        if after is None:
            return names


def _matching(request: Request, pattern: Glob, named: Collection[str], names: Sequence[str]) -> list[str]:
    return [
        name
        for name in names
        if name not in named and pattern.matches(name.encode()) and request.may_read(name)
    ]


# ---- a few streams in each turn


async def _plan(request: Request, command: Plan) -> Planned:
    """The plan, for which memory is held from before it is made."""
    request.reserve_for(command)
    planned = await _in_turns(request, command)
    request.note_run((planned,))
    request.note_arrived(planned)
    return planned


async def _in_turns(request: Request, command: Plan) -> Planned:
    """One of many streams is made a few at a time, with others' turns between: counted first, so that all of
    them share the budget.
    """
    size = max(1, STREAMS_PER_TURN * _CUTS_PER_COUNT // (_CUTS_PER_COUNT - 1 + command.parts))
    pieces = [command.streams[at : at + size] for at in range(0, len(command.streams), size)]
    if len(pieces) <= 1:
        return await _turn(request, command)
    counting = msgspec.structs.replace(command, max_entries=None, max_bytes=None, parts=1)
    counted = [await _turn(request, msgspec.structs.replace(counting, streams=piece)) for piece in pieces]
    if command == counting:
        return _join(counted)
    entries = _apportion(command.max_entries, [[stream.count for stream in each.streams] for each in counted])
    sizes = _apportion(command.max_bytes, [[stream.bytes for stream in each.streams] for each in counted])
    sharing = [
        msgspec.structs.replace(command, streams=piece, max_entries=most, max_bytes=most_bytes)
        for piece, most, most_bytes in zip(pieces, entries, sizes, strict=True)
    ]
    return _join([await _turn(request, part) for part in sharing])


async def _turn(request: Request, command: Plan) -> Planned:
    await asyncio.sleep(0)
    reply = await ask_one(request.engine, Call((command,), origin=request.request_id, caller=request.caller))
    assert isinstance(reply, Planned), "a plan answers what is planned"
    return reply


def _join(planned: Sequence[Planned]) -> Planned:
    return Planned(
        [stream for each in planned for stream in each.streams],
        [name for each in planned for name in each.missing],
        [one for each in planned for one in each.previous],
    )


def _apportion(budget: int | None, wanted: Sequence[Sequence[int]]) -> Sequence[int | None]:
    """The part of the budget that each piece gets, None for all of it where there is no budget."""
    if budget is None:
        return [None] * len(wanted)
    given = iter(apportion([amount for each in wanted for amount in each], budget))
    return [max(1, sum(islice(given, len(each)))) for each in wanted]


# ---- the answer


def _has_any(planned: Planned) -> bool:
    return any(stream.count for stream in planned.streams)


def write(planned: Planned) -> bytes:
    """The answer."""
    streams = {stream.stream: _row(stream) for stream in planned.streams}
    before = {one.stream: PreviousStream(one.generation, ids.format(one.last_id)) for one in planned.previous}
    return Plans(streams, list(planned.missing), before or ABSENT).json()


def _row(stream: PlannedStream) -> StreamPlan:
    return StreamPlan(
        after=ids.format(stream.after),
        end=ids.format(stream.end),
        count=stream.count,
        bytes=capped(stream.bytes),
        first=ids.format(stream.first_id) if stream.first_id else None,
        last=ids.format(stream.last_id),
        removed_upto=ids.format(stream.removed_upto),
        max_deleted_id=ids.format(stream.max_deleted_id),
        generation=stream.generation,
        durable=ids.format(stream.durable) if stream.durable is not None else None,
        lag=stream.lag,
        cuts=[ids.format(cut) for cut in stream.cuts],
        closed=stream.closed or ABSENT,
    )
