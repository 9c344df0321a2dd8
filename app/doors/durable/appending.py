"""Appending: the command of a request, its answer, and what the requests of one writer have in common.

Knows: which requests just append. Must never know: who else appends, sockets.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Final, NamedTuple

from app.doors.durable import headers
from app.doors.durable.bodies import read
from app.doors.durable.offsets import write
from app.doors.durable.reading import CLOSED, next_offset
from app.http.appends import Answer, Asked
from app.http.responses import Header, Response
from app.limits import EntryLimits
from engine.commands import AppendBatches, AppendDurable, Command, ProducerBatch
from engine.durable_streams import kind_of
from engine.replies import BatchesAppended, DurableAppended, Reply

_CLOSING: Final = b"stream-closed"
_ORDERING: Final = b"stream-seq"
# Headers of the answers to most requests, of a producer and of none: how safe the entries are, and what is
# behind them.
_PRODUCED: Final = (
    b"weir-durability: %%b\r\nstream-next-offset: %%b\r\nproducer-epoch: %%d\r\nproducer-seq: %%d\r\n"
    b"content-type: application/json\r\ncontent-length: 0\r\n%b: %b\r\n" % headers.SAFE
)
_APPENDED: Final = b"weir-durability: %%b\r\nstream-next-offset: %%b\r\n%b: %b\r\n" % headers.SAFE


class DurableAppends(NamedTuple):
    """Requests that append entries of this media type; as this run of a producer, if it is one. They do
    nothing else.
    """

    stream: str
    media: str
    producer: str = ""
    epoch: int = 0

    @property
    def counter(self) -> bytes:
        """A producer counts its batches."""
        return b"producer-seq" if self.producer else b""

    @property
    def kind(self) -> "DurableAppends":
        """Those of no producer, or those of all producers."""
        return self._replace(producer="*", epoch=0) if self.producer else self

    def read(self, body: bytes, count: bytes, limits: EntryLimits) -> Asked | None:
        """The entries of a body, each of which counts, and which batch they are. Raises RefusalError."""
        entries = read(self.media, body, limits)
        if not entries:
            return None
        batch = None
        if self.producer:
            batch = ProducerBatch(self.producer, self.epoch, headers.whole("Producer-Seq", count))
        return Asked(entries, len(entries), batch)

    def command(self, asked: Sequence[Asked]) -> Command:
        """What stores them."""
        bodies = [body for one in asked for body in one.entries]
        if not self.producer or len(asked) == 1:
            # One batch by itself takes less time so.
            return AppendDurable(stream=self.stream, kind=self.media, bodies=bodies, batch=asked[0].batch)
        batches = [one.batch for one in asked if one.batch is not None]
        counts = [len(one.entries) for one in asked]
        return AppendBatches(
            stream=self.stream, kind=self.media, batches=batches, counts=counts, bodies=bodies
        )

    def answers(self, reply: Reply, asked: Sequence[Asked], durability: str) -> Iterable[Answer | None]:
        """The answers to these requests; the IDs of those without a producer follow each other."""
        safe = durability.encode()
        if isinstance(reply, BatchesAppended):
            return map(_answer_batch, reply.replies, repeat(safe))
        assert isinstance(reply, DurableAppended), "that is what it answers"
        if reply.epoch is not None:
            return [_answer_batch(reply, safe)]
        numbers = [len(one.entries) for one in asked]
        before = reply.last_id - sum(numbers)
        last_ids = accumulate(numbers[1:], initial=before + numbers[0])
        return [Answer(204, _APPENDED % (safe, write(last_id, reply.generation))) for last_id in last_ids]


def _answer_batch(reply: DurableAppended | None, safe: bytes) -> Answer | None:
    if reply is None:
        return None
    if not reply.duplicate:
        offset = write(reply.last_id, reply.generation)
        return Answer(200, _PRODUCED % (safe, offset, reply.epoch, reply.seq))
    status, shown = answer(reply, has_entries=True)
    response = Response(status, b"", [(b"weir-durability", safe), *shown])
    every = [b"%b: %b\r\n" % header for header in [*response.raw_headers, headers.SAFE]]
    return Answer(status, b"".join(every))


def answer(reply: Reply, *, has_entries: bool) -> tuple[int, list[Header]]:
    """The status of the answer to an append, and its headers."""
    assert isinstance(reply, DurableAppended), "that is what it answers"
    shown = [next_offset(reply.last_id, reply.generation), *([CLOSED] if reply.closed else [])]
    if reply.epoch is None:
        return 204, shown
    shown += [(b"producer-epoch", b"%d" % reply.epoch), (b"producer-seq", b"%d" % (reply.seq or 0))]
    return 204 if reply.duplicate or not has_entries else 200, shown


def appends(stream: str, given: Mapping[bytes, bytes]) -> DurableAppends | None:
    """What a request with these headers is one of; None where it asks for more. Raises RefusalError."""
    kind = kind_of(headers.media_type(given))
    if not kind or _CLOSING in given or _ORDERING in given:
        return None
    batch = headers.batch(given)
    return DurableAppends(stream, kind, *(() if batch is None else (batch.producer, batch.epoch)))
