"""The two ways of a worker to its gateway: a WebSocket, or HTTP with long-polls.

Knows: frames of `weir.v1`, group reads, when to connect again and when to give up.
Must never know: what the program does with an entry.
"""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable
from typing import Any, Final, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from weir._async_client import AsyncGroup
from weir._calls import NackMode, References
from weir._holdings import IDS_MAX, Holdings, Settlement, batches
from weir._membership import Membership
from weir.entries import Entry, Gap, Page, parse_gap
from weir.errors import (
    ApiError,
    AuthenticationError,
    ConnectionClosedError,
    ConsumerReplacedError,
    ForbiddenError,
    GroupDeletedError,
    NoAnswerError,
    NotAGatewayError,
    StreamDeletedError,
    UnavailableError,
    WeirError,
    of_problem,
)

log: Final = logging.getLogger("weir.worker")

PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 30.0
# Until the gateway has said how often its heartbeat comes.
HEARTBEAT_S_DEFAULT: Final = 15.0
# Close codes from here on mean: do not come again.
FINAL_CLOSE_MIN: Final = 4500
BAD_TOKEN_CLOSE: Final = 4500
FORBIDDEN_CLOSE: Final = 4502
POLL_WAIT_MS: Final = 20_000
# A group read takes entries that were given back only if it claims. No entry that a consumer holds is so old.
CLAIM_RELEASED_ONLY_MS: Final = 2**53 - 1
_CONSUME_REF: Final = "consume"
_UNSUBSCRIBE_REF: Final = "unsubscribe"


class Pauses:
    """Pauses between connections that double, with jitter; `reset` once a connection worked."""

    def __init__(self) -> None:
        self._next_s = PAUSE_S_MIN

    def reset(self) -> None:
        """The next pause is the shortest again."""
        self._next_s = PAUSE_S_MIN

    async def pause(self) -> None:
        """Sleep."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, PAUSE_S_MAX)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter


class WebSocketLink:
    """One socket with one `consume` subscription."""

    def __init__(self, membership: Membership, holdings: Holdings) -> None:
        self._member = membership
        self._holdings = holdings
        self._pauses = Pauses()
        self._heartbeat_s = HEARTBEAT_S_DEFAULT
        # Settlements on their way over this connection, by the `ref` of their frame.
        self._sent: dict[int, list[Settlement]] = {}
        self._ref = 0
        # Until `caught_up` comes what this consumer had already.
        self._in_history = True
        self._unsubscribed = False

    async def run(self) -> None:
        outage = self._member.client.outage
        while not self._holdings.stopping:
            ended = outage.ended
            try:
                await self._session()
            except ConnectionClosed as closed:
                if closed.rcvd is not None and closed.rcvd.code >= FINAL_CLOSE_MIN:
                    raise _final(closed.rcvd.code, closed.rcvd.reason) from None
            except InvalidStatus as refused:
                error = _refusal(refused)
                if not isinstance(error, ApiError) or not error.retryable:
                    raise error from None
                outage.begin(str(error), ended)
            except (OSError, InvalidHandshake, UnavailableError) as error:
                outage.begin(str(error) or "no answer in time", ended)
            if not self._holdings.stopping:
                await self._pauses.pause()
        # Over a subscription, what is given back would come again at once.
        await _settle_by_requests(self._member, self._holdings)

    def _note_pause(self, frame: dict[str, Any]) -> None:
        """Log that entries wait for the gateway's backend or for their group, and that they come again."""
        member = self._member
        if frame.get("reason") == "group" or member.is_paused:
            member.note_paused(member.stream, paused=frame["op"] == "paused")
        elif frame["op"] == "resumed":
            log.info("worker %s of %s goes on", member.consumer, member.stream)
        elif frame["reason"] == "backend":
            url = member.client.url
            log.warning(
                "worker %s of %s waits: the backend of %s is away", member.consumer, member.stream, url
            )

    async def _session(self) -> None:
        """One connection, from its handshake to its end."""
        if self._member.order:
            # A subscription makes a group without a policy.
            await self._member.make_groups()
        connection = self._member.client.connection
        url = connection.endpoint("/v1/ws", {})
        target = url.copy_with(scheme="wss" if url.scheme == "https" else "ws")
        headers = {name: value for name, value in connection.headers().items() if name == "authorization"}
        socket = await connect(
            str(target),
            subprotocols=[Subprotocol("weir.v1")],
            additional_headers=headers,
            compression=None,
            max_size=None,
            ping_interval=None,  # the gateway's heartbeat says that it is there
            ssl=connection.websocket_tls,
            proxy=True if connection.options["trust_env"] else None,
        )
        try:
            await self._converse(socket)
        finally:
            try:
                await socket.close()
            finally:
                # The worker may cancel this before the gateway has answered the close.
                socket.transport.abort()

    async def _converse(self, socket: ClientConnection) -> None:
        """Take entries and send settlements until the subscription has ended."""
        self._sent.clear()
        self._in_history, self._unsubscribed = True, False
        await socket.send(json.dumps(self._consume()))
        sending = asyncio.create_task(self._send_settlements(socket))
        try:
            while not self._unsubscribed:
                async with asyncio.timeout(2 * self._heartbeat_s):
                    message = await socket.recv()
                gap = self._accept(message)
                if gap is not None:
                    self._member.gap(gap, self._member.stream)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                await sending

    def _consume(self) -> dict[str, object]:
        member = self._member
        frame: dict[str, object] = {
            "op": "consume",
            "ref": _CONSUME_REF,
            "sub": "work",
            "stream": member.stream,
            "group": member.group,
            "consumer": member.consumer,
            "create": member.start,
            "credit": self._holdings.credit,
        }
        if member.claim_min_idle_ms is not None:
            frame["claim_min_idle_ms"] = member.claim_min_idle_ms
        return frame

    def _accept(self, message: str | bytes) -> Gap | None:
        """Take a frame; the gap that it reports. Raises what ends the worker."""
        try:
            return self._take(json.loads(message))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotAGatewayError(
                f"{self._member.client.url} sent a frame that is not a gateway's"
            ) from error

    def _take(self, frame: dict[str, Any]) -> Gap | None:
        op = frame.get("op")
        if op == "hello":
            self._heartbeat_s = frame["heartbeat_ms"] / 1000
        elif op == "entries":
            if not self._in_history:
                self._member.note_paused(self._member.stream, paused=False)
            for members in frame["entries"]:
                entry = Entry.parse(members, self._member.stream)
                self._holdings.receive(entry, history=self._in_history)
        elif op == "caught_up":
            self._in_history = False
        elif op == "ok":
            self._accept_ok(frame.get("ref"))
        elif op == "error":
            self._accept_error(frame)
        elif op == "gap":
            return parse_gap(frame)
        elif op in ("paused", "resumed"):
            self._note_pause(frame)
        elif op == "revoked":
            raise self._end_of(frame["reason"])
        elif op == "drained":
            # The stream is closed, and nothing of it is left in the group: the subscription has ended.
            self._unsubscribed = True
            self._holdings.stop()
        return None

    def _end_of(self, reason: str) -> WeirError:
        """Why the gateway ended the subscription."""
        member = self._member
        match reason:
            case "replaced":
                return ConsumerReplacedError()
            case "stream_deleted":
                return StreamDeletedError(member.stream)
            case "group_destroyed":
                return GroupDeletedError(member.stream, member.group)
            case "forbidden":
                detail = f"the token does not allow consuming {member.stream!r} any more"
                return ForbiddenError(403, reason, detail, {})
        return WeirError(f"the gateway ended the subscription: {reason}")

    def _accept_ok(self, ref: object) -> None:
        if ref == _CONSUME_REF:
            self._pauses.reset()
            self._member.client.outage.end()
            # What an earlier connection did not confirm is sent again.
            self._holdings.unsent.set()
        elif ref == _UNSUBSCRIBE_REF:
            self._unsubscribed = True
        elif isinstance(ref, int):
            self._holdings.confirm(self._sent.pop(ref, []))

    def _accept_error(self, frame: dict[str, Any]) -> None:
        problem = frame["problem"]
        error = of_problem(problem, problem.get("status", 500))
        if error.retryable:
            # A new connection sends again all that was not confirmed.
            raise UnavailableError(error.status, error.code, error.detail, error.problem)
        raise error

    async def _send_settlements(self, socket: ClientConnection) -> None:
        sent: dict[str, Settlement] = {}
        while True:
            await self._holdings.unsent.wait()
            self._holdings.unsent.clear()
            if self._holdings.stopping:
                await socket.send(json.dumps({"op": "unsubscribe", "ref": _UNSUBSCRIBE_REF, "sub": "work"}))
                return
            unconfirmed = self._holdings.unconfirmed
            unsent = [one for one in unconfirmed if sent.get(one.id) is not one]
            sent = {one.id: one for one in unconfirmed}
            for batch in batches(unsent):
                self._ref += 1
                self._sent[self._ref] = batch
                await socket.send(json.dumps(self._settlement_frame(batch)))

    def _settlement_frame(self, batch: list[Settlement]) -> dict[str, object]:
        _, _, kind, detail, delay_ms = batch[0]
        frame: dict[str, object] = {
            "op": kind,
            "ref": self._ref,
            "sub": "work",
            "ids": [one.id for one in batch],
        }
        if detail is not None:
            frame["delete" if kind == "ack" else "mode"] = detail
        if delay_ms:
            frame["delay_ms"] = delay_ms
        return frame


class LongPollLink:
    """Group reads that wait, of one stream or of several, and requests that settle."""

    def __init__(self, membership: Membership, holdings: Holdings) -> None:
        self._member = membership
        self._holdings = holdings
        self._pauses = Pauses()
        self._is_reading = True

    async def run(self) -> None:
        self._is_reading = True
        reading = asyncio.ensure_future(self._read())
        settling = asyncio.ensure_future(
            _settle_by_requests(self._member, self._holdings, self._may_give_back)
        )
        stopping = asyncio.ensure_future(self._holdings.until_stopping())
        tasks = {reading, settling, stopping}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
            await _cancelled(reading)
            # What an answer held that was cut off. Reading the history would count as a delivery.
            for group in self._member.groups:
                async for one in group.pending(consumer=self._member.consumer):
                    self._holdings.give_back(group.stream, one["id"])
            self._is_reading = False
            self._holdings.unsent.set()
            await settling
        finally:
            await _cancelled(*tasks)

    def _may_give_back(self) -> bool:
        """A read that is being cut off would be given what goes back, and its answer would reach nothing."""
        return not (self._holdings.stopping and self._is_reading)

    async def _read(self) -> None:
        await self._member.make_groups()
        await self._read_history()
        while True:
            while self._holdings.room <= 0:
                await self._holdings.until_changed()
            try:
                pages = await self._read_new()
            except NoAnswerError:
                # Entries of a lost answer are delivered all the same.
                await self._pauses.pause()
                await self._read_history()
                continue
            self._pauses.reset()
            for stream, page in pages.items():
                if page.gap is not None:
                    self._member.gap(page.gap, stream)
                self._member.note_paused(stream, paused=page.paused)
                for entry in page.entries:
                    self._holdings.receive(entry, history=False)
            if all(page.drained for page in pages.values()):
                self._holdings.stop()
                return

    async def _read_new(self) -> dict[str, Page]:
        """Wait for entries that were given back, or are new: of the first stream first."""
        member, min_idle_ms = self._member, self._member.claim_min_idle_ms
        claim_ms = CLAIM_RELEASED_ONLY_MS if min_idle_ms is None else min_idle_ms
        count = self._holdings.room
        if len(self._member.groups) == 1:
            page = await self._member.groups[0].read(
                member.consumer, count=count, wait_ms=POLL_WAIT_MS, claim_min_idle_ms=claim_ms
            )
            return {member.stream: page}
        return await member.client.read_group(
            member.streams,
            group=member.group,
            consumer=member.consumer,
            count=count,
            wait_ms=POLL_WAIT_MS,
            claim_min_idle_ms=claim_ms,
        )

    async def _read_history(self) -> None:
        for group in self._member.groups:
            after: str | None = "0"
            while after is not None:
                page = await group.history(self._member.consumer, after=after, count=IDS_MAX)
                for entry in page.entries:
                    self._holdings.receive(entry, history=True)
                after = page.next if page.entries else None


async def _settle_by_requests(
    member: Membership, holdings: Holdings, may_give_back: Callable[[], bool] = lambda: True
) -> None:
    """Carry out what the program decides, until cancelled."""
    while True:
        ready = [one for one in holdings.unconfirmed if one.kind == "ack" or may_give_back()]
        for batch in batches(ready):
            ids, (stream, _, kind, detail, delay_ms) = [one.id for one in batch], batch[0]
            group = member.client.group(stream, member.group)
            if kind == "ack":
                await group.ack(*ids, delete=cast("References | None", detail), consumer=member.consumer)
            else:
                await give_back(group, member.consumer, ids, cast("NackMode", detail), delay_ms)
            holdings.confirm(batch)
        await holdings.unsent.wait()
        holdings.unsent.clear()


async def give_back(
    group: AsyncGroup, consumer: str, ids: list[str], mode: NackMode, delay_ms: int = 0
) -> None:
    """Nack, without taking from others what they have got since this consumer stalled, or by an attempt whose
    answer was lost.
    """
    pauses = Pauses()
    while ids:
        try:
            await group.nack(*ids, mode=mode, delay_ms=delay_ms, consumer=consumer)
        except NoAnswerError:
            await pauses.pause()
            held = {one["id"] async for one in group.pending(consumer=consumer)}
            ids = [one for one in ids if one in held]
        else:
            return


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel, and wait for the end. Of several that failed at once, one error is enough."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _final(code: int, reason: str) -> WeirError:
    """What a close code means that says not to come again: what HTTP says, where that has a word for it."""
    detail = f"the gateway closed the connection: {reason}"
    if code == BAD_TOKEN_CLOSE:
        return AuthenticationError(401, "unauthenticated", detail, {})
    if code == FORBIDDEN_CLOSE:
        return ForbiddenError(403, "forbidden", detail, {})
    return ConnectionClosedError(code, reason)


def _refusal(refused: InvalidStatus) -> WeirError:
    """What the handshake was answered with."""
    if refused.response.status_code < 400:
        return NotAGatewayError("what answered speaks no WebSocket, so it is no gateway")
    try:
        problem = json.loads(refused.response.body or b"")
    except ValueError:
        problem = None
    status = refused.response.status_code
    error = of_problem(problem if isinstance(problem, dict) else {}, status)
    if not error.problem and status in (502, 503, 504):
        return UnavailableError(status, "", error.detail, {"retryable": True})
    return error
