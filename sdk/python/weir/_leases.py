"""A worker's lease on the entries that it holds: extended for as long as the worker lives.

Knows: how often the gateway has to hear that the work goes on, and which entries others were given.
Must never know: how entries come, what the program does with them.
"""

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from weir._calls import GroupInfo
from weir.errors import WeirError

if TYPE_CHECKING:
    from weir.worker import Delivery, Worker

# Where neither the group nor the worker says after which time others take an entry.
INTERVAL_S_DEFAULT: Final = 10.0
INTERVAL_S_MIN: Final = 0.05
# Two extensions may fail.
INTERVALS_OF_TIMEOUT: Final = 3
# The policy of a group may change.
POLICY_S_MAX: Final = 30.0
# The group may not be there yet, or the gateway is away.
RETRY_S: Final = 0.5
# A request names no more IDs.
IDS_MAX: Final = 500


class LostDeliveries:
    """What was given to other consumers while the program held it; forgotten once the program has."""

    def __init__(self) -> None:
        self._lost: WeakSet[Delivery] = WeakSet()
        # Those about which the program has decided since, or of which it knows that they were lost.
        self._dropped: WeakSet[Delivery] = WeakSet()

    def add(self, delivery: "Delivery") -> None:
        """The gateway says that it is not this consumer's any more."""
        self._lost.add(delivery)

    def tell(self, delivery: "Delivery") -> bool:
        """Whether it was lost. Then the program stops working on it."""
        is_lost = delivery in self._lost
        if is_lost:
            self._dropped.add(delivery)
        return is_lost

    def is_dropped(self, delivery: "Delivery") -> bool:
        """Whether the program has decided about it after it was lost, or was told to stop."""
        return delivery in self._dropped

    def settle(self, delivery: "Delivery", *, is_done: bool) -> bool:
        """The program has decided about it. Whether that counts though it was lost: if the work is done."""
        counts = self.tell(delivery) and is_done
        if counts:
            self._lost.discard(delivery)
        return counts

    def take_back(self, key: tuple[str, str]) -> "Delivery | None":
        """The one of this stream and ID on which the program still works, if there is one: it is this
        consumer's again.
        """
        found = next((one for one in self._lost if one.key == key and one not in self._dropped), None)
        if found is not None:
            self._lost.discard(found)
        return found

    def forget(self, stream: str) -> None:
        """The stream is gone."""
        self._lost = WeakSet(one for one in self._lost if one.entry.stream != stream)


async def keep_leases(worker: "Worker") -> None:
    """Extend what the worker holds, until cancelled."""
    groups = [worker.client.group(stream, worker.group) for stream in worker.streams]
    now_s = asyncio.get_running_loop().time
    interval_s, known_until_s = INTERVAL_S_DEFAULT, 0.0
    while True:
        try:
            if now_s() >= known_until_s:
                found = [_interval_s(await group.info(), worker.claim_min_idle_ms) for group in groups]
                interval_s, known_until_s = min(found), now_s() + POLICY_S_MAX
            await asyncio.sleep(interval_s)
            for group in groups:
                held = [one for one in worker.held if one.entry.stream == group.stream]
                for start in range(0, len(held), IDS_MAX):
                    await worker.extend_each(held[start : start + IDS_MAX])
        except WeirError:
            # The link says what is wrong, and ends the worker where that is for good. A worker that may not
            # look at its group extends as if nothing was known.
            known_until_s = now_s() + RETRY_S
            await asyncio.sleep(RETRY_S)


def _interval_s(info: GroupInfo, claim_min_idle_ms: int | None) -> float:
    """A part of the time after which the gateway, or another worker with the same options, takes an entry."""
    timeouts_ms = [ms for ms in (info.get("ack_timeout_ms"), claim_min_idle_ms) if ms is not None]
    if not timeouts_ms:
        return INTERVAL_S_DEFAULT
    return min(INTERVAL_S_DEFAULT, max(INTERVAL_S_MIN, min(timeouts_ms) / 1000 / INTERVALS_OF_TIMEOUT))
