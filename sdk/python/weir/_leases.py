"""A worker's lease on the entries that it holds: extended for as long as the worker lives.

Knows: how often the gateway has to hear that the work goes on, and which entries are not held any more.
Must never know: how entries come, what the program does with them.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from weir._calls import GroupInfo
from weir.errors import WeirError

if TYPE_CHECKING:
    from weir.worker import Worker

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
                    some = held[start : start + IDS_MAX]
                    still_held = set(await group.extend(worker.consumer, *(one.entry.id for one in some)))
                    worker.lose([one for one in some if one.entry.id not in still_held])
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
