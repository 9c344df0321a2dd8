"""A push: a worker of the group, whose work is to send each entry to the endpoint.

Knows: what an outcome is to an entry and to its group. Must never know: HTTP, how an entry is written.

    worker ─► up to `batch` entries ─► endpoint ─┬─ done: ack
                                                 ├─ later: given back until then, not counted
                                                 ├─ failed: given back with backoff, or a dead letter
                                                 └─ gone, or nothing good for long: the group is paused
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from weir._async_client import AsyncClient
from weir._holdings import Delivery
from weir._http import Token, Verify
from weir.durations import format_ms
from weir.entries import Gap
from weir.errors import ApiError, describe_gap
from weir.push.config import Push
from weir.push.endpoint import Endpoint, Outcome
from weir.push.messages import Message, NoDataError, message_of
from weir.push.metrics import PushMetrics
from weir.worker import Worker

log: Final = logging.getLogger("weir.push")

# Failures of an endpoint have one line in this time.
QUIET_S: Final = 60.0
# What a pusher held that was killed is taken over after so long; one that lives extends what it holds.
TAKEN_OVER_MS: Final = 60_000
# Fewer than a gateway takes.
REASON_CHARS_MAX: Final = 256
# A policy of the group that was changed is known after so long.
_POLICY_S: Final = 10.0
# A gateway that is away for longer is not waited for with an entry in hand: a stop would wait too.
_ASK_S_MAX: Final = 10.0


class Pusher:
    """One push of this process. `consumer` names it in the group: pushers beside each other have different
    ones. `say` gets lines for people.
    """

    def __init__(  # noqa: PLR0913 - what a worker needs, and an endpoint
        self,
        push: Push,
        url: str | None,
        consumer: str,
        *,
        endpoint: Endpoint,
        metrics: PushMetrics,
        say: Callable[[str], None] = log.warning,
        token: Token = None,
        verify: Verify = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.push = push
        self.endpoint = endpoint
        self._metrics, self._say, self._now_s = metrics, say, now_s
        self._credit = push.in_flight * push.batch_max
        self.worker = Worker(
            url, push.stream, group=push.group, consumer=consumer, start=push.start, credit=self._credit,
            claim_min_idle_ms=max(TAKEN_OVER_MS, round(push.timeout * 2_000)), token=token, verify=verify,
            on_gap=self._note_gap, on_gone="recreate", ordered_by=push.ordered_by,
        )  # fmt: skip
        self._client: AsyncClient = self.worker.client
        self._group = self._client.group(push.stream, push.group)
        self._slots = asyncio.Semaphore(push.in_flight)
        self._waiting: list[tuple[Delivery, asyncio.Future[None]]] = []
        self._generation: str | None = None
        self._deliveries_max: int | None = None
        self._policy_until_s = float("-inf")
        self._quiet_until_s = float("-inf")

    async def run(self) -> None:
        """Push until a signal, or `worker.stop`. Raises ApiError for what the gateway refuses for good."""
        self._metrics.watch(self.push, self.endpoint)
        try:
            await self.worker.run(self._handle, concurrency=self._credit)
        finally:
            await self.endpoint.close()

    async def _handle(self, delivery: Delivery) -> None:
        """Have a delivery settled: here, or by another call that takes it into its batch."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((delivery, settled))
        async with self._slots:
            size = self.push.batch_max
            taken, self._waiting = self._waiting[:size], self._waiting[size:]
            try:
                await self._push([one for one, _ in taken if not one.lost])
            except Exception as error:  # noqa: BLE001 - the worker gives back what its handler failed with
                for _, future in taken:
                    future.set_exception(error)
            else:
                for _, future in taken:
                    future.set_result(None)
        await settled

    async def _push(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        try:
            message = await self.message(deliveries)
        except NoDataError as error:
            await self._fail(deliveries, f"push {error}")
            return
        begun_s = self._now_s()
        outcome = await self.endpoint.send(message, self.worker.holdings.until_stopping)
        if outcome is None:
            for one in deliveries:
                one.nack(mode="silent")
            return
        self._metrics.note(self.push, outcome, self._now_s() - begun_s)
        await self._settle(deliveries, outcome)

    async def message(self, deliveries: Sequence[Delivery]) -> Message:
        """The webhook of these. Raises NoDataError."""
        if self._generation is None:
            async with asyncio.timeout(_ASK_S_MAX):
                found = await self._client.get_stream(self.push.stream)
            self._generation = "" if found is None else found["generation"]
        return message_of(
            [one.entry for one in deliveries],
            self.push.format,
            generation=self._generation,
            group=self.push.group,
            source=self.push.cloudevents_source,
        )

    async def _settle(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        if outcome.kind == "done":
            for one in deliveries:
                one.ack()
            return
        self._note_failure(outcome)
        if outcome.kind == "later":
            for one in deliveries:
                one.retry_in(outcome.after_s, mode="silent")
        elif outcome.kind == "gone":
            await self._pause(deliveries, "the endpoint says that it is gone (410)")
        elif self.endpoint.is_given_up:
            await self._pause(
                deliveries, f"nothing was accepted for {format_ms(self.push.pause_after * 1000)}"
            )
        else:
            await self._fail(deliveries, outcome.reason)

    async def _fail(self, deliveries: Sequence[Delivery], reason: str) -> None:
        """Give back with backoff; at the group's last delivery, move to its dead letters."""
        most = await self._most_deliveries()
        for one in deliveries:
            tries = one.entry.delivery_count or 1
            if most is None or tries < most or not await self._bury(one, reason):
                one.retry_in(self.endpoint.backoff_s(tries))

    async def _bury(self, delivery: Delivery, reason: str) -> bool:
        """Move it to the dead letters; False where the gateway refuses that."""
        entry_id, consumer = delivery.entry.id, self.worker.consumer
        try:
            async with asyncio.timeout(_ASK_S_MAX):
                await self._group.dead_letter(entry_id, reason=reason[:REASON_CHARS_MAX], consumer=consumer)
        except (ApiError, TimeoutError) as error:
            self._say(f"{self.push.name}: {entry_id} cannot be moved to the dead letters: {error}")
            return False
        # It is not pending any more: this lets go of it here.
        delivery.ack()
        return True

    async def _most_deliveries(self) -> int | None:
        if self._now_s() >= self._policy_until_s:
            try:
                async with asyncio.timeout(_ASK_S_MAX):
                    place = (await self._group.info()).get("dead_letter")
            except TimeoutError:
                # As it was.
                return self._deliveries_max
            self._deliveries_max = place["max_deliveries"] if place else None
            self._policy_until_s = self._now_s() + _POLICY_S
        return self._deliveries_max

    async def _pause(self, deliveries: Sequence[Delivery], why: str) -> None:
        """Have the group deliver nothing until somebody resumes it. Nothing is lost, nothing counted."""
        async with asyncio.timeout(_ASK_S_MAX):
            await self._group.pause()
        self.endpoint.forget()
        for one in deliveries:
            one.nack(mode="silent")
        resume = f"weir groups resume {self.push.stream} {self.push.group}"
        self._say(f"{self.push.name}: {why}; the group is paused: {resume} goes on")

    # ---- what people see

    def _note_failure(self, outcome: Outcome) -> None:
        if self._now_s() >= self._quiet_until_s:
            self._quiet_until_s = self._now_s() + QUIET_S
            times = self.endpoint.failures
            self._say(f"{self.push.name}: {outcome.reason}" + (f", {times} in a row" if times > 1 else ""))

    def _note_gap(self, gap: Gap) -> None:
        if gap.reason is not None:
            # Perhaps another stream: its IDs are no longer those that the endpoint knows.
            self._generation = None
        self._say(describe_gap(self.push.stream, gap.requested, gap.lost, gap.reason))
