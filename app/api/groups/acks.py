"""Acknowledgements that are like others: requests that name IDs of one group, and ask for nothing else.

Knows: which bodies are plain, and what the route answers to them.
Must never know: who else acknowledges, sockets.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from app.http.appends import Answer, Asked
from app.limits import EntryLimits
from engine import ids
from engine.commands import Acknowledge
from engine.replies import AcknowledgedIds, Reply

# As clients write it.
_BODY: Final = re.compile(rb'\{"ids": ?\[("[0-9]+-[0-9]+"(?:, ?"[0-9]+-[0-9]+")*)\]\}')
_LINES: Final = b"weir-durability: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"


class GroupAcks(NamedTuple):
    """Requests to acknowledge entries of this group."""

    stream: str
    group: str

    @property
    def counter(self) -> bytes:
        """None is counted."""
        return b""

    @property
    def kind(self) -> "GroupAcks":
        """Those of a group."""
        return self

    def read(self, body: bytes, _: bytes, __: EntryLimits) -> Asked | None:
        """The IDs of a body; None if they are not written as they are answered, or one is named twice."""
        match = _BODY.fullmatch(body)
        words = match[1].split(b'"')[1::2] if match else ()
        found = ids.parse_each(words) if words else None
        is_plain = found is not None and len({*found}) == len(found) and words == [*ids.texts(found)]
        return Asked(words) if is_plain else None

    def command(self, asked: Sequence[Asked]) -> Acknowledge:
        """What acknowledges these IDs."""
        wanted = [ids.parse_canonical(word) for one in asked for word in one.entries]
        return Acknowledge(stream=self.stream, group=self.group, ids=wanted)

    def answers(self, reply: Reply, asked: Sequence[Asked], durability: str) -> Iterable[Answer | None]:
        """The answers to requests of these IDs. Where none was pending, the group may be missing."""
        assert isinstance(reply, AcknowledgedIds), "an acknowledgement answers which IDs were pending"
        left = {*ids.texts(reply.ids)}
        for words, *_ in asked:
            settled = left.intersection(words)
            # An ID that two have named was acknowledged by the first.
            left -= settled
            yield _answer(words, settled, durability.encode()) if settled else None


def _answer(words: Sequence[bytes], settled: set[bytes], durability: bytes) -> Answer:
    results = [b'"%b":"%b"' % (word, b"acknowledged" if word in settled else b"absent") for word in words]
    body = b'{"acknowledged":%d,"results":{%b}}' % (len(settled), b",".join(results))
    return Answer(200, _LINES % (durability, len(body)), body)


def acks(names: Mapping[str, str]) -> GroupAcks:
    """What requests to this path have in common."""
    return GroupAcks(names["stream"], names["group"])
