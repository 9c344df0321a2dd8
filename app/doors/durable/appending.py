"""Appending: the command of a request, its answer, and what the requests of one writer have in common.

Knows: which requests just append. Must never know: who else appends, sockets.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from app.doors.durable import headers
from app.doors.durable.bodies import read
from app.doors.durable.offsets import write
from app.doors.durable.reading import CLOSED, next_offset
from app.http.appends import Answer
from app.http.responses import Header, Response
from app.limits import EntryLimits
from engine.commands import AppendDurable, ProducerBatch
from engine.durable_streams import kind_of
from engine.replies import DurableAppended, Reply

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
    """Requests that append entries of this kind; as this run of a producer, if it is one. They do nothing
    else.
    """

    stream: str
    kind: str
    producer: str = ""
    epoch: int = 0

    @property
    def counter(self) -> bytes:
        """A producer counts its batches."""
        return b"producer-seq" if self.producer else b""

    def read(self, body: bytes, limits: EntryLimits) -> Sequence[bytes]:
        """The entries of a body. Raises RefusalError."""
        return read(self.kind, body, limits)

    def cost(self, entries: Sequence[bytes]) -> int:
        """Each counts."""
        return len(entries)

    def command(self, entries: Sequence[bytes], count: bytes) -> AppendDurable:
        """What stores them. Raises RefusalError."""
        batch = None
        if self.producer:
            batch = ProducerBatch(self.producer, self.epoch, headers.whole("Producer-Seq", count))
        return AppendDurable(stream=self.stream, bodies=entries, kind=self.kind, batch=batch)

    def answers(self, reply: Reply, asked: Sequence[Sequence[bytes]], durability: str) -> Iterable[Answer]:
        """The answers to requests of these entries, whose IDs follow each other."""
        assert isinstance(reply, DurableAppended), "that is what it answers"
        if reply.epoch is not None:
            return [self._answer_batch(reply, durability)]
        numbers = [len(entries) for entries in asked]
        before = reply.last_id - sum(numbers)
        last_ids = accumulate(numbers[1:], initial=before + numbers[0])
        safe = durability.encode()
        return [Answer(204, _APPENDED % (safe, write(last_id))) for last_id in last_ids]

    @staticmethod
    def _answer_batch(reply: DurableAppended, durability: str) -> Answer:
        if not (reply.duplicate or reply.closed):
            lines = _PRODUCED % (durability.encode(), write(reply.last_id), reply.epoch, reply.seq)
            return Answer(200, lines)
        status, shown = answer(reply, has_entries=True)
        response = Response(status, b"", [(b"weir-durability", durability.encode()), *shown])
        every = [b"%b: %b\r\n" % header for header in [*response.raw_headers, headers.SAFE]]
        return Answer(status, b"".join(every))


def answer(reply: Reply, *, has_entries: bool) -> tuple[int, list[Header]]:
    """The status of the answer to an append, and its headers."""
    assert isinstance(reply, DurableAppended), "that is what it answers"
    shown = [next_offset(reply.last_id), *([CLOSED] if reply.closed else [])]
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
