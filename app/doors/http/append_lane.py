"""Lanes of operations that say what their requests have in common, see `app.http.appends`.

Knows: that heads may differ in two numbers, and which requests share a command.
Must never know: what an operation appends to, how it is answered.

    POST … ─► the same but for the length of its body and its count ─► AppendBatch ─► one command for all
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Final, cast

from app.auth.rate_limiter import Meter
from app.doors.http.fast_answers import FastAnswers
from app.doors.http.lane import Lane, LaneBatch, LaneConnection, Lanes
from app.doors.http.plain_requests import Head, PlainRequest, PlainRequests
from app.errors import RefusalError
from app.gateway import Gateway, Phase
from app.http.appends import Answer, Appends, Asked
from app.http.middleware.request_id import RequestIds
from app.live.together import Answers, Batches, Replies, answer_some
from engine import Call, CommandEngine, EngineError

# Larger bodies would gain nothing.
_BODY_BYTES_MAX: Final = 16 << 10
_LENGTH: Final = b"content-length"
# Of a number in a head. A longer one is for the route.
_DIGITS_MAX: Final = 16
_NOTHING: Final = Asked(())


class AppendLane(Lane):
    """What one connection appends to one stream, one request at a time."""

    __slots__ = (
        "_body_at",
        "_first_numbers",
        "_names",
        "_numbers",
        "_pieces",
        "appends",
        "asked",
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
        self.asked = _NOTHING

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
        return int(self._number(_LENGTH)) == len(data) - at

    def _append(self, data: bytes) -> bool:
        body, appends = data[self._body_at :], self.appends
        if not 0 < len(body) <= _BODY_BYTES_MAX:
            return False
        if self.meter is not None and not self._take_request(len(body)):
            return False
        try:
            asked = appends.read(body, self._number(appends.counter), self.batch.gateway.limits.entries)
            if asked is not None and self.meter is not None:
                self.meter.take_more(asked.cost)
        except RefusalError:
            asked = None
        if asked is None:
            self._give_back()
            return False
        self._begin(data)
        self.asked = asked
        if len(asked.entries) == 1:
            self.batch.join(self, asked.entries[0])
        else:
            self.batch.join_all(self, asked.entries)
        return True

    def end(self) -> None:
        """The same."""
        self.asked = _NOTHING
        super().end()

    def _number(self, name: bytes) -> bytes:
        """What the header says that has this name; nothing without a name."""
        return self._numbers[self._names.index(name)] if name else b""

    def note_request(self) -> None:
        """Have its request be what has come: for its route."""
        before, size = self.request, len(self.data)
        headers = {**before.head.headers, **dict(zip(self._names, self._numbers, strict=True))}
        head = Head(headers, size - self._body_at, before.head.kind)
        start = self.data[: self._body_at]
        self.request = before._replace(head=head, body_at=self._body_at, end=size, start=start)


class AppendBatch(LaneBatch):
    """Entries of such lanes, whose requests are of one kind."""

    lane = AppendLane

    def __init__(self, lanes: Lanes, engine: CommandEngine, stream: str) -> None:
        super().__init__(lanes, engine, stream)
        self._leases = self.gateway.tenant("").leases

    def _entries(self, bodies: Sequence[bytes]) -> Sequence[bytes] | None:
        return bodies if self.gateway.phase is Phase.READY else None

    def _call(self, clients: Sequence[Lane], entries: Sequence[bytes]) -> Call:
        lanes = cast("Sequence[AppendLane]", clients)
        return Call((lanes[0].appends.command([lane.asked for lane in lanes]),))

    def _answer(self, clients: Sequence[Lane], bodies: Sequence[bytes], replies: Replies) -> None:
        lanes = cast("Sequence[AppendLane]", clients)
        (reply,) = replies
        if isinstance(reply, EngineError):
            answers = self._refusals(lanes, bodies, reply)
        else:
            asked = [lane.asked for lane in lanes]
            each = lanes[0].appends.answers(reply, asked, self.engine.durability)
            answers = self._answer_each(lanes, each)
        answer_some(answers)
        self._leases.settled(self.stream)

    def _answer_each(self, lanes: Sequence[AppendLane], answers: Iterable[Answer | None]) -> Answers:
        # By status. To make a `cache` takes as long as to answer.
        ways: dict[int, tuple[bytes, Callable[[Lane, tuple[bytes, bytes]], None]]] = {}

        def finish(lane: AppendLane, answer: Answer | None) -> None:
            if answer is None:
                lane.note_request()
                lane.serve()
                return
            status = answer.status
            if status not in ways:
                ways[status] = self._start(lanes[0], status), self._finishing(lanes[0], status)
            start, end = ways[status]
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
        return self._appending.of(self.gateway.engine, stream, appends.kind)


@lru_cache
def _numbers_of(counter: bytes) -> re.Pattern[bytes]:
    """Where the numbers stand in a head."""
    names = b"|".join([_LENGTH, re.escape(counter)] if counter else [_LENGTH])
    return re.compile(rb"(?i)(\r\n(?:%b):[ \t]*)([0-9]+)" % names)
