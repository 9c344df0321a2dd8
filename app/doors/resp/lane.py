"""Lanes of Redis clients: an XADD like the one before is not looked at again. What several clients add is
stored together, see `app.live.together`.

Knows: which bytes are an XADD like the one before, whose the IDs are, that what is refused together is added
by each alone. Must never know: how bytes arrive and leave, who a caller is.

    bytes ─► Lane.take: the same stream, as many words, the same stamp ─► AddBatch ─► one write
                 └► no: the usual way, which closes the lane; an XADD by itself opens it again

A lane is a verdict that is remembered, see `app.auth.stamp` and docs/decisions/lanes.md.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

from app.auth import Principal
from app.doors.resp.requests import Words, length_of
from app.gateway import Gateway
from app.live.together import Answers, Batch, Batches, Replies, may_have_run, parts
from app.redis import wire
from app.redis.runs import body_of
from engine import Call, CommandEngine, EngineError, ids
from engine.commands import AddEach
from engine.replies import Added, Reply

# `XADD stream *`.
_FIXED: Final = 3


class LaneLink(Protocol):
    """What a lane needs of its connection."""

    def begin_lane(self, entry_bytes: int, received_bytes: int) -> bool:
        """Have a command under way; False, with nothing done, if it goes the usual way."""

    def end_lane(self, lane: "Lane", written: bytes) -> None:
        """Write the answer of the command."""

    def leave_lane(self, body: bytes, reply: Reply | EngineError) -> None:
        """Answer the command as any other."""


class Share:
    """What gets the one reply to an AddEach of a client's entries, of this number."""

    __slots__ = ("_done", "number")

    def __init__(self, number: int, done: Callable[[Replies], object]) -> None:
        self.number = number
        self._done = done

    def answer(self, reply: Reply | EngineError) -> None:
        """This is the reply."""
        self._done([reply])


class Lane:
    """What one connection adds to one stream, one command at a time."""

    __slots__ = ("_batch", "_body", "_head", "_lines", "_link", "_principal", "_stamp", "_words")
    number: Final = 1

    def __init__(self, link: LaneLink, batch: "AddBatch", words: Words, principal: Principal | None) -> None:
        self._link = link
        self._batch = batch
        self._principal = principal
        self._stamp = batch.stamp.value
        self._words = words[:_FIXED]
        fixed = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in self._words])
        self._head = b"*%d\r\n%b" % (len(words), fixed)
        # A length and a word of each name and value, and what is behind the last line end.
        self._lines = 2 * (len(words) - _FIXED) + 1
        # The entry that waits for its ID.
        self._body = b""

    def fits(self, words: Words, principal: Principal | None) -> bool:
        """Whether the verdict is of this command too."""
        return (
            self._stamp == self._batch.stamp.value
            and self._principal is principal
            and self._lines == 2 * (len(words) - _FIXED) + 1
            and self._words == words[:_FIXED]
        )

    def take_bytes(self, data: bytes) -> bool:
        """Take a command like the one before. False, with nothing done, if it goes the usual way."""
        batch = self._batch
        if not data.startswith(self._head) or self._stamp != batch.stamp.value:
            return False
        lines = data[len(self._head) :].split(b"\r\n")
        words = lines[1::2]
        if len(lines) != self._lines or lines[-1] or [*map(len, words)] != [*map(length_of, lines[:-1:2])]:
            return False
        body = body_of(words, batch.limits)
        if body is None or not self._link.begin_lane(len(body), len(data)):
            return False
        self._body = body
        batch.join(self, body)
        return True

    def join(self, body: bytes) -> None:
        """Have the entry of a command that came the usual way stored with others."""
        self._body = body
        self._batch.join(self, body)

    def finish(self, entry_id: bytes) -> None:
        """It is stored, with this ID."""
        self._take_body()
        self._link.end_lane(self, wire.bulk(entry_id))

    def answer(self, reply: Reply | EngineError) -> None:
        """This is the reply to an AddEach of the entry."""
        self._link.leave_lane(self._take_body(), reply)

    def _take_body(self) -> bytes:
        """The entry, which nothing holds any more: a client that waits costs what it did without."""
        body, self._body = self._body, b""
        return body


class AddBatch(Batch[Lane | Share]):
    """Entries that are ready to be stored: one of each lane, any number of each share."""

    def __init__(self, gateway: Gateway, engine: CommandEngine, stream: str) -> None:
        super().__init__(engine, stream)
        self.stamp = gateway.stamp
        self.limits = gateway.limits.commands

    def _entries(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        return bodies

    def _answers(self, clients: Sequence[Lane | Share], added: Sequence[int]) -> Answers:
        lanes = [client for client in clients if isinstance(client, Lane)]
        if len(lanes) == len(clients) == len(added):
            return map(Lane.finish, lanes, ids.texts(added))
        return map(_answer, clients, map(Added, _parts(clients, added)))

    def _refusals(
        self, clients: Sequence[Lane | Share], bodies: Sequence[bytes], refusal: EngineError | None
    ) -> Answers:
        assert refusal is not None, "what is ready can be sent"
        if len(bodies) > 1 and not may_have_run(refusal):
            return map(self._send_alone, clients, _parts(clients, bodies))
        return map(_answer, clients, repeat(refusal))

    def _send_alone(self, client: Lane | Share, bodies: Sequence[bytes]) -> None:
        def done(replies: Replies) -> None:
            client.answer(replies[0])

        replies = self.engine.send(Call((AddEach(stream=self.stream, bodies=bodies, apart=True),)), done)
        if replies is not None:
            done(replies)


def _answer(client: Lane | Share, reply: Reply | EngineError) -> None:
    client.answer(reply)


def _parts(clients: Sequence[Lane | Share], whole: Sequence[Any]) -> list[Sequence[Any]]:
    return parts([client.number for client in clients], whole)


class SharedAdds:
    """The batches of one port."""

    def __init__(self, gateway: Gateway) -> None:
        self._batches = Batches(lambda engine, stream: AddBatch(gateway, engine, stream))

    def lane(
        self, link: LaneLink, engine: CommandEngine, stream: str, words: Words, principal: Principal | None
    ) -> Lane:
        """The lane of an XADD that may run."""
        return Lane(link, self._batches.of(engine, stream), words, principal)

    def add(
        self, engine: CommandEngine, stream: str, bodies: Sequence[bytes], done: Callable[[Replies], object]
    ) -> None:
        """Store entries at the end of this cycle; `done` gets the one reply to an AddEach of them."""
        self._batches.of(engine, stream).join_all(Share(len(bodies), done), bodies)
