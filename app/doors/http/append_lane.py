"""Lanes of operations that say what their requests have in common, see `app.http.appends`.

Knows: that heads may differ in two numbers, and which requests one command may store.
Must never know: what an operation appends to, how it is answered.

    POST … ─► the same but for the length of its body and its count ─► AppendBatch ─► one command for all,
                                                                                      or one each in one write
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Final, cast

from app.auth.rate_limiter import Meter
from app.doors.http.fast_answers import FastAnswers
from app.doors.http.lane import Lane, LaneBatch, LaneConnection, Lanes
from app.doors.http.plain_requests import Head, PlainRequest, PlainRequests
from app.errors import RefusalError
from app.gateway import Gateway, Phase
from app.http.appends import Answer, Appends
from app.http.middleware.request_id import RequestIds
from app.live.together import Answers, Batches, Replies, answer_some, parts
from engine import Call, CommandEngine, EngineError, How
from engine.commands import Command
from engine.replies import Reply

# Larger bodies would gain nothing.
_BODY_BYTES_MAX: Final = 16 << 10
_LENGTH: Final = b"content-length"
# Of a number in a head. A longer one is for the route.
_DIGITS_MAX: Final = 16


class AppendLane(Lane):
    """What one connection appends to one stream, one request at a time."""

    __slots__ = (
        "_body_at",
        "_first_numbers",
        "_names",
        "_numbers",
        "_pieces",
        "appends",
        "command",
        "number",
    )

    def __init__(
        self,
        connection: LaneConnection,
        request: PlainRequest,
        batch: LaneBatch,
        meter: Meter | None,
        stamp: int,
    ) -> None:
        target = request.target
        self.appends = cast("Appends", target.route.appends(target.names, request.head.headers))
        super().__init__(connection, request, batch, meter, stamp)
        # Of the request under way: the numbers in its head, and where its body begins.
        self._numbers: Sequence[bytes] = ()
        self._body_at = 0
        # How many entries it appends; and what does it, if it counts.
        self.number = 0
        self.command: Command | None = None

    def _be_like(self, request: PlainRequest) -> None:
        super()._be_like(request)
        found = _numbers_of(self.appends.counter).split(request.start)
        # The head around its numbers; their names, and what they are.
        self._pieces = [b"".join(found[at : at + 2]) for at in range(0, len(found), 3)]
        self._names = [name.strip(b"\r\n: \t").lower() for name in found[1::3]]
        self._first_numbers = found[2::3]

    def take_bytes(self, data: bytes) -> bool:
        """Take a request like the one before. False, with nothing done, if it goes the usual way."""
        if self.stamp != self.batch.stamp.value or not self._is_like(data):
            return False
        if self.connection.turn.is_crowded and not self.connection.may_go_on(data):
            # It comes the usual way, in its turn.
            return True
        return self._append(data)

    def join(self, data: bytes) -> bool:
        """Have its entries stored with those of others. False, with nothing done, if only its route can."""
        return self._is_like(data) and self._append(data)

    def _is_like(self, data: bytes) -> bool:
        """Whether it is a whole request, whose head differs in numbers alone."""
        if len(data) == self._size and data.startswith(self._head):
            self._body_at, self._numbers = self.request.body_at, self._first_numbers
            return True
        pieces: list[bytes] = self._pieces
        numbers: list[bytes] = []
        if not data.startswith(pieces[0]):
            return False
        at = len(pieces[0])
        for piece in pieces[1:]:
            end = data.find(piece, at, at + _DIGITS_MAX + len(piece))
            if end < 0 or not data[at:end].isdigit():
                return False
            numbers.append(data[at:end])
            at = end + len(piece)
        self._body_at, self._numbers = at, numbers
        return int(numbers[self._names.index(_LENGTH)]) == len(data) - at

    def _append(self, data: bytes) -> bool:
        body, appends = data[self._body_at :], self.appends
        if not 0 < len(body) <= _BODY_BYTES_MAX:
            return False
        if self.meter is not None and not self._take_request(len(body)):
            return False
        try:
            entries = appends.read(body, self.batch.gateway.limits.entries)
            if self.meter is not None:
                self.meter.take_more(appends.cost(entries))
            if appends.counter:
                self.command = appends.command(entries, self._numbers[self._names.index(appends.counter)])
        except RefusalError:
            entries = ()
        if not entries:
            self._give_back()
            return False
        self._begin(data)
        self.number = len(entries)
        if len(entries) == 1:
            self.batch.join(self, entries[0])
        else:
            self.batch.join_all(self, entries)
        return True

    def end(self) -> None:
        """The same."""
        self.command = None
        super().end()

    def note_request(self) -> None:
        """Have its request be what has come: for its route."""
        before, size = self.request, len(self.data)
        headers = {**before.head.headers, **dict(zip(self._names, self._numbers, strict=True))}
        head = Head(headers, size - self._body_at, before.head.kind)
        start = self.data[: self._body_at]
        self.request = before._replace(head=head, body_at=self._body_at, end=size, start=start)


class AppendBatch(LaneBatch):
    """Entries of such lanes. Of those that count, each has a command of its own."""

    lane = AppendLane

    def __init__(self, lanes: Lanes, engine: CommandEngine, stream: str) -> None:
        super().__init__(lanes, engine, stream)
        self._leases = self.gateway.tenant("").leases

    def _entries(self, bodies: Sequence[bytes]) -> Sequence[bytes] | None:
        return bodies if self.gateway.phase is Phase.READY else None

    def _call(self, clients: Sequence[Lane], entries: Sequence[bytes]) -> Call:
        lanes = cast("Sequence[AppendLane]", clients)
        if lanes[0].appends.counter:
            return Call([cast("Command", lane.command) for lane in lanes], How.EACH)
        return Call((lanes[0].appends.command(entries, b""),))

    def _answer(self, clients: Sequence[Lane], bodies: Sequence[bytes], replies: Replies) -> None:
        lanes = cast("Sequence[AppendLane]", clients)
        asked = parts([lane.number for lane in lanes], bodies)
        if lanes[0].appends.counter:
            each = map(self._answers_of, lanes, replies, ([one] for one in asked))
        else:
            each = map(self._answers_of, lanes[:1], replies, [asked])
        answer_some(self._answer_each(lanes, chain.from_iterable(each)))
        self._leases.settled(self.stream)

    def _answers_of(
        self, lane: AppendLane, reply: Reply | EngineError, asked: Sequence[Sequence[bytes]]
    ) -> Iterable[Answer | EngineError | None]:
        if isinstance(reply, EngineError):
            return [reply] * len(asked)
        return lane.appends.answers(reply, asked, self.engine.durability)

    def _answer_each(
        self, lanes: Sequence[AppendLane], answers: Iterable[Answer | EngineError | None]
    ) -> Answers:
        @cache
        def ways(status: int) -> tuple[bytes, Callable[[Lane, tuple[bytes, bytes]], None]]:
            return self._start(lanes[0], status), self._finishing(lanes[0], status)

        def finish(lane: AppendLane, answer: Answer | EngineError | None) -> None:
            if answer is None or isinstance(answer, EngineError):
                for _ in self._refusals([lane], (), answer):
                    pass
                return
            start, end = ways(answer.status)
            end(lane, (start + answer.lines, answer.body))

        return map(finish, lanes, answers)

    def _refusals(
        self, clients: Sequence[Lane], bodies: Sequence[bytes], refusal: EngineError | None
    ) -> Answers:
        for lane in cast("Sequence[AppendLane]", clients):
            lane.note_request()
        return super()._refusals(clients, bodies, refusal)


class AllLanes(Lanes):
    """The lanes of all operations."""

    def __init__(
        self, gateway: Gateway, requests: PlainRequests, request_ids: RequestIds, answers: FastAnswers
    ) -> None:
        super().__init__(gateway, requests, request_ids, answers)
        self._appending = Batches(partial(AppendBatch, self))

    def _batch(self, request: PlainRequest, stream: str) -> LaneBatch:
        target = request.target
        appends = target.route.appends(target.names, request.head.headers)
        if appends is None:
            return super()._batch(request, stream)
        kind = None if appends.counter else cast("Hashable", appends)
        return self._appending.of(self.gateway.engine, stream, kind)


@lru_cache
def _numbers_of(counter: bytes) -> re.Pattern[bytes]:
    """Where the numbers stand in a head."""
    names = b"|".join([_LENGTH, re.escape(counter)] if counter else [_LENGTH])
    return re.compile(rb"(?i)(\r\n(?:%b):[ \t]*)([0-9]+)" % names)
