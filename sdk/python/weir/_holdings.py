"""What a worker holds, what it has settled, and what of that the gateway has confirmed.

Knows: that neither a lost connection nor an entry that comes again changes it, what others were given, and
how often the gateway has to hear that the work goes on.
Must never know: frames or requests, but for the one that extends a lease.

    link → receive → queue → the program → ack or nack → settle → unconfirmed → link → confirm
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from types import TracebackType
from typing import Final, Literal, NamedTuple
from weakref import WeakSet

from weir._calls import GroupInfo, NackMode, References
from weir._membership import Membership
from weir.entries import Entry
from weir.errors import InvalidValueError, WeirError

log: Final = logging.getLogger("weir.worker")

# The gateway's limit, and a week.
DELAY_S_MAX: Final = 7 * 24 * 3600
# Where neither the group nor the worker says after which time others take an entry.
INTERVAL_S_DEFAULT: Final = 10.0
INTERVAL_S_MIN: Final = 0.05
# Two extensions may fail.
INTERVALS_OF_TIMEOUT: Final = 3
# The policy of a group may change.
POLICY_S_MAX: Final = 30.0
# The group may not be there yet, or the gateway is away.
RETRY_S: Final = 0.5
# At most this many IDs a request: no gateway takes more where they are extended, given back, or deleted.
IDS_MAX: Final = 500


class Settlement(NamedTuple):
    """`ack` with what to delete (None: nothing), or `nack` with a mode and after how many milliseconds."""

    stream: str
    id: str
    kind: Literal["ack", "nack"]
    detail: str | None
    delay_ms: int = 0


def batches(settlements: Iterable[Settlement]) -> Iterator[list[Settlement]]:
    """Runs of equal decisions, in order, each of at most `IDS_MAX` entries."""
    for _, run in groupby(settlements, key=lambda one: (one.stream, *one[2:])):
        alike = list(run)
        for start in range(0, len(alike), IDS_MAX):
            yield alike[start : start + IDS_MAX]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Delivery:
    """An entry that this worker holds until it acknowledges it or gives it back.

    `async with delivery:` does that by itself: it acknowledges at the end, and gives back if an exception
    leaves the block.
    """

    entry: Entry
    _holdings: "Holdings"

    @property
    def key(self) -> tuple[str, str]:
        """Stream and ID: two streams may have entries of one ID."""
        return self.entry.stream, self.entry.id

    def ack(self, *, delete: References | None = None) -> None:
        """The work is done. With `delete` the entry is removed from the stream as well.

        Returns at once; the worker repeats it over lost connections until the gateway has confirmed it.
        """
        self._holdings.settle(self, Settlement(*self.key, "ack", delete))

    def nack(self, *, mode: NackMode = "fail") -> None:
        """Give the entry back to the group: after a failure (`fail`), as if it was never delivered
        (`silent`), or for good (`fatal`). Returns at once, as `ack`.
        """
        self._holdings.settle(self, Settlement(*self.key, "nack", mode))

    def retry_in(self, seconds: float, *, mode: NackMode = "fail") -> None:
        """Give the entry back to the group after this time, seven days at most: no consumer gets it before.
        The gateway keeps the time, even if this worker ends. Returns at once, as `ack`.
        """
        if not 0 <= seconds <= DELAY_S_MAX:
            raise InvalidValueError(f"an entry can be given back in 0 to {DELAY_S_MAX} seconds")
        self._holdings.settle(self, Settlement(*self.key, "nack", mode, round(seconds * 1000)))

    async def extend(self) -> bool:
        """Say that the work goes on, so that no other consumer takes the entry over; whether it is still
        held, as `lost` says. A worker does that by itself, unless its `lease` is `off`.
        """
        await self._holdings.extend([self])
        return not self.lost and self._holdings.has(self)

    @property
    def lost(self) -> bool:
        """Whether the gateway has given the entry to another consumer meanwhile: stop working on it. After
        that only `ack()` counts, which says that the work is done all the same.
        """
        return self._holdings.tell_lost(self)

    async def __aenter__(self) -> Entry:
        return self.entry

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._holdings.finish(self)
        else:
            self.nack(mode="fail" if isinstance(error, Exception) else "silent")


class Holdings:
    """All deliveries of a worker, `credit` at a time at most."""

    def __init__(self, membership: Membership, credit: int) -> None:
        self.credit = credit
        self._membership = membership
        # By the place of their streams, and of each in order; None is the end.
        self._queue: asyncio.PriorityQueue[tuple[float, int, Delivery | None]] = asyncio.PriorityQueue()
        self._serials = count()
        # What the program holds or is about to get; what it has settled and the gateway has not confirmed.
        self._held: dict[tuple[str, str], Delivery] = {}
        self._unconfirmed: dict[tuple[str, str], Settlement] = {}
        # What is being extended: were it given back meanwhile, the gateway might do that first.
        self._extending: Counter[tuple[str, str]] = Counter()
        # What others were given while the program held it; forgotten once the program has.
        self._lost: WeakSet[Delivery] = WeakSet()
        # Of those the ones about which it has decided since, or of which it knows that they were lost.
        self._dropped: WeakSet[Delivery] = WeakSet()
        # The entry that was delivered last, of each stream.
        self.last_ids = dict.fromkeys(membership.streams, "0-0")
        # Something can be sent: the link clears it.
        self.unsent = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()

    # --- for links ----------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether it takes no more entries."""
        return self._stopping.is_set()

    async def until_stopping(self) -> None:
        """Wait for that."""
        await self._stopping.wait()

    @property
    def room(self) -> int:
        """How many more entries may be taken; none once it stops, nor while the gateway is about to confirm
        more than that: one read takes those as well.
        """
        room = self.credit - len(self._held) - len(self._unconfirmed)
        return 0 if self.stopping or room < len(self.unconfirmed) else room

    @property
    def unconfirmed(self) -> list[Settlement]:
        """What the gateway has not confirmed yet and may be sent, oldest first."""
        unconfirmed = self._unconfirmed.items()
        return [one for key, one in unconfirmed if one.kind == "ack" or not self._extending[key]]

    def receive(self, entry: Entry, *, history: bool) -> None:
        """An entry was delivered; `history` if this consumer had it before the connection was made."""
        delivery = Delivery(entry, self)
        key = delivery.key
        settled = self._unconfirmed.get(key)
        if key in self._held or (settled is not None and (history or settled.kind == "ack")):
            return
        self.last_ids[entry.stream] = entry.id
        lost = next((one for one in self._lost if one.key == key and one not in self._dropped), None)
        if lost is not None:
            # It is being worked on: it is not begun a second time.
            self._lost.discard(lost)
            self._held[key] = lost
            return
        # Otherwise a settled entry has been given back, and comes again before the answer to that.
        self._unconfirmed.pop(key, None)
        if entry.deleted:
            self._send(Settlement(*key, "ack", None))
        elif self.stopping:
            self._send(Settlement(*key, "nack", "silent"))
        else:
            self._held[key] = delivery
            self._enqueue(delivery)

    def give_back(self, stream: str, entry_id: str) -> None:
        """An entry was delivered to this consumer and never reached this program."""
        key = stream, entry_id
        if key not in self._held and key not in self._unconfirmed:
            self._send(Settlement(*key, "nack", "silent"))

    def confirm(self, settlements: list[Settlement]) -> None:
        """The gateway has carried these out."""
        for one in settlements:
            if self._unconfirmed.get(one[:2]) is one:
                del self._unconfirmed[one[:2]]
        self._changed.set()

    async def until_changed(self) -> None:
        """Wait until something was settled or confirmed."""
        self._changed.clear()
        await self._changed.wait()

    # --- for the program ----------------------------------------------------------------------------------

    async def take(self) -> Delivery | None:
        """The next one; None, to all that ask, once nothing more comes."""
        while (delivery := (await self._queue.get())[-1]) is not None:
            if not self.tell_lost(delivery):
                return delivery
        self.end()
        return None

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """The program has decided about an entry that it holds; a second decision does not count, and none
        about an entry of a stream that was deleted: another one may have its ID by now. Of one that was lost
        it counts that the work is done.
        """
        if self.tell_lost(delivery) and settlement.kind == "ack":
            self._lost.discard(delivery)
        elif not self.has(delivery):
            return
        self._held.pop(delivery.key, None)
        self._send(settlement)
        self._changed.set()

    def finish(self, delivery: Delivery) -> None:
        """The program has left an entry without a decision: the work is done, unless it had to stop."""
        if delivery not in self._dropped:
            delivery.ack()

    def tell_lost(self, delivery: Delivery) -> bool:
        """Whether the entry was given to another consumer while the program held it, which knows that now."""
        is_lost = delivery in self._lost
        if is_lost:
            self._dropped.add(delivery)
        return is_lost

    def has(self, delivery: Delivery) -> bool:
        """Whether the program holds this entry, and has not decided about it."""
        return self._held.get(delivery.key) is delivery

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Start the idle time of entries of one stream anew, as far as the program holds them. What this
        consumer has no more is lost.
        """
        held = [one for one in deliveries if self.has(one)]
        if not held:
            return
        keys, member = [one.key for one in held], self._membership
        group = member.client.group(held[0].entry.stream, member.group)
        self._extending.update(keys)
        try:
            extended = set(await group.extend(member.consumer, *(one.entry.id for one in held)))
        finally:
            self._extending.subtract(keys)
            self._extending = +self._extending
            self.unsent.set()
        # What the program has not settled meanwhile is another's.
        for delivery in held:
            if delivery.entry.id not in extended and self.has(delivery):
                del self._held[delivery.key]
                self._lost.add(delivery)
                log.warning(
                    "entry %s of %s is this consumer's no more", delivery.entry.id, delivery.entry.stream
                )
        self._changed.set()

    # --- for its worker -----------------------------------------------------------------------------------

    @property
    def held(self) -> list[Delivery]:
        """What the program holds or is about to get."""
        return list(self._held.values())

    async def until_settled(self) -> None:
        """Wait until nothing is held and all that was settled is confirmed."""
        while self._held or self._unconfirmed:
            await self.until_changed()

    def stop(self) -> None:
        """Take no more entries. What the program has not begun with goes back to the group as if it was never
        delivered.
        """
        self._stopping.set()
        while not self._queue.empty():
            *_, delivery = self._queue.get_nowait()
            if delivery is not None:
                delivery.nack(mode="silent")
        self.end()
        self.unsent.set()

    def end(self) -> None:
        """Nothing comes any more."""
        self._enqueue(None)

    def forget(self, stream: str) -> None:
        """What it holds of the stream and has not settled belongs to a group that is gone."""
        waiting = []
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        for row in waiting:
            if row[-1] is None or row[-1].entry.stream != stream:
                self._queue.put_nowait(row)
        self._lost = WeakSet(one for one in self._lost if one.entry.stream != stream)
        self._held = {key: one for key, one in self._held.items() if key[0] != stream}
        self._unconfirmed = {key: one for key, one in self._unconfirmed.items() if key[0] != stream}
        self._changed.set()

    # --- inside -------------------------------------------------------------------------------------------

    def _send(self, settlement: Settlement) -> None:
        self._unconfirmed[settlement[:2]] = settlement
        self.unsent.set()

    def _enqueue(self, delivery: Delivery | None) -> None:
        """Put a delivery behind those of its stream and of those before it, or the end behind all."""
        place = math.inf if delivery is None else self._membership.streams.index(delivery.entry.stream)
        self._queue.put_nowait((place, next(self._serials), delivery))


async def keep_leases(membership: Membership, holdings: Holdings) -> None:
    """Extend what the worker holds, until cancelled."""
    groups, claim_min_idle_ms = membership.groups, membership.claim_min_idle_ms
    now_s = asyncio.get_running_loop().time
    interval_s, known_until_s = INTERVAL_S_DEFAULT, 0.0
    while True:
        try:
            if now_s() >= known_until_s:
                found = [_interval_s(await group.info(), claim_min_idle_ms) for group in groups]
                interval_s, known_until_s = min(found), now_s() + POLICY_S_MAX
            await asyncio.sleep(interval_s)
            for group in groups:
                held = [one for one in holdings.held if one.entry.stream == group.stream]
                for start in range(0, len(held), IDS_MAX):
                    await holdings.extend(held[start : start + IDS_MAX])
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
