"""What a consumer was sent: looking whether it still has it, giving it back, telling that its reader left.

Knows: whose entries are read, the commands about them, what is told of their answers.
Must never know: asyncio, credit, over what entries are sent.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from engine import ids
from engine.commands import EndWait, GiveBack, XPendingRange, XReadGroup
from engine.replies import GroupRead, PendingList, Reply

# No age makes an entry that somebody owns claimable: only released ones are taken.
RELEASED_ONLY_MS: Final = (1 << 53) - 1
# A consumer's own entries grow old too: a shorter time would have it claim them from itself again and again.
CLAIM_MIN_IDLE_MS_MIN: Final = 1_000
# How often is looked whether others have taken or settled what a consumer without room was sent.
CHECK_S: Final = 1.0
# So many entries are looked at then.
_CHECKED_MAX: Final = 10_000


class ConsumerKey(NamedTuple):
    """Whose entries are read."""

    stream: str
    group: str
    name: str

    def give_back(self, entry_ids: Sequence[int]) -> GiveBack:
        """These never left: they go back as they were."""
        return GiveBack(stream=self.stream, group=self.group, consumer=self.name, ids=tuple(entry_ids))

    def leave(self) -> EndWait:
        """It was read as until now, though its reader may have waited for room all the time."""
        return EndWait(streams=[self.stream], group=self.group, consumer=self.name)


def give_back(command: XReadGroup, reply: Reply) -> list[GiveBack]:
    """What returns new entries that a read was given and its client never got: they go back as they were."""
    if not isinstance(reply, GroupRead) or command.noack:
        return []
    return [
        ConsumerKey(found.stream, command.group, command.consumer).give_back(
            [one.id for one in found.entries]
        )
        for found in reply.streams
        if found.entries and not found.history
    ]


class PendingCheck:
    """One look at what a consumer was sent, which is something; `command` answers a list.

    Where that is more than one look takes in, it is what comes behind `after`, and from the beginning again.
    """

    def __init__(self, consumer: ConsumerKey, sent: Sequence[int], after: int = ids.ID_MIN) -> None:
        in_order = sorted(sent)
        at = bisect_right(in_order, after) if len(in_order) > _CHECKED_MAX else 0
        self._sent = in_order[at : at + _CHECKED_MAX] or in_order[:_CHECKED_MAX]
        self.command = XPendingRange(
            stream=consumer.stream,
            group=consumer.group,
            start=self._sent[0],
            end=self._sent[-1],
            count=_CHECKED_MAX,
            consumer=consumer.name,
        )

    def upto(self, reply: PendingList) -> int:
        """The last of what was looked at: where the next look goes on."""
        return reply.entries[-1].id if reply.more else self._sent[-1]

    def gone(self, reply: PendingList) -> list[int]:
        """What the consumer has no more."""
        upto = self.upto(reply)
        own = {one.id for one in reply.entries}
        return [one for one in self._sent if one <= upto and one not in own]
