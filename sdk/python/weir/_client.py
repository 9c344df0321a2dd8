"""The synchronous client, generated from `_async_client.py`: `make client`.

Knows: which operations there are. Must never know: how a call is sent, what it or its answer looks like.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack

import httpx

from weir import _calls
from weir._calls import (
    AddOptions,
    ConsumerInfo,
    DeadLettered,
    DeadLetterFilter,
    GroupInfo,
    NackMode,
    PendingEntry,
    PublishedTimed,
    Reason,
    Redriven,
    References,
    Schedule,
    ScheduledEntry,
    ScheduleRule,
    StreamEnd,
    StreamInfo,
    StreamSchedule,
    TimedEntry,
)
from weir._cursors import STILL_THE_STREAM
from weir._features import ACK_CONSUMER, DEAD_LETTER_CONSUMER, NACK_CONSUMER
from weir._sending import Sender
from weir._sse import EventParser, Tail
from weir.entries import Entry, Fields, Gap, Page, Published, encode_entry, gap_error
from weir.errors import NotFoundError


class Client(Sender):
    """A connection pool to one gateway. Use it as `with Client(url) as client`.

    `url` defaults to WEIR_URL, else http://127.0.0.1:8080. `token` is a bearer token or a function that
    returns one. A call waits `timeout_s` for its answer, and longer by what it asks the gateway to wait. It
    is repeated for up to `retry_s` (0: never, None: for ever) while that is safe: reads, changes that are
    the same when done twice, and publishes, which carry idempotency keys. A change that may have happened
    raises NoAnswerError with `outcome_unknown`.

    `verify` is a file of the authorities (PEM) that may sign the gateway's certificate, or an `SSLContext`,
    for example with a certificate of the client's own.
    """

    # --- publish ------------------------------------------------------------------------------------------

    def publish(
        self,
        stream: str,
        fields: Fields,
        *,
        id: str | None = None,  # noqa: A002 - the API's word
        key: str | None = None,
        **options: Unpack[AddOptions],
    ) -> Published:
        """Add one entry, once, however often it has to be sent. `key` is its idempotency key, random if not
        given: choose one yourself if the same entry may be published by another process as well.
        """
        body = encode_entry(fields, id)
        return self._call(_calls.publish(stream, body, key, options))

    def publish_batch(
        self,
        stream: str,
        entries: Iterable[Fields],
        *,
        key: str | None = None,
        **options: Unpack[AddOptions],
    ) -> Published:
        """Add entries, all or none, with consecutive IDs."""
        body = {"entries": [encode_entry(one) for one in entries]}
        return self._call(_calls.publish(stream, body, key, options))

    def publish_many(
        self, streams: Mapping[str, Iterable[Fields]], *, key: str | None = None
    ) -> dict[str, Published]:
        """Add entries to several streams, all or none."""
        return self._call(_calls.publish_many(streams, key))

    # --- read ---------------------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        *,
        start: str | None = None,
        end: str | None = None,
        since: str | None = None,
        until: str | None = None,
        reverse: bool = False,
        count: int | None = None,
    ) -> Page:
        """A page of entries between two IDs, or two times (RFC 3339). A missing stream is empty."""
        bounds = {"start": start, "end": end, "since": since, "until": until}
        query = {**bounds, "reverse": reverse or None, "count": count}
        return self._call(_calls.read(stream, query))

    def read_after(self, stream: str, after: str, *, count: int | None = None, wait_ms: int = 0) -> Page:
        """A page of entries after an ID (`0`: from the oldest, `$`: new ones only), waiting for the first one
        if asked to. Continue with `after=page.next`; never send `$` twice. `next` knows its stream, so that
        `gap` says if another one has the name by now.
        """
        return self._call(_calls.read(stream, {"after": after, "count": count}, wait_ms))

    def read_group(
        self,
        streams: Sequence[str],
        *,
        group: str,
        consumer: str,
        count: int = 100,
        wait_ms: int = 0,
        claim_min_idle_ms: int | None = None,
    ) -> dict[str, Page]:
        """Deliver new entries of several streams to a consumer of their groups of this name: `count` of all
        together, those of the first stream first. If the answer is lost (NoAnswerError) they are delivered
        all the same: `history` of each group has them.
        """
        body = {"count_total": count, "count": count, "claim_min_idle_ms": claim_min_idle_ms}
        given = {name: value for name, value in body.items() if value is not None}
        return self._call(_calls.group_read_many(streams, group, consumer, given, wait_ms))

    def entries(
        self, stream: str, *, after: str = "0", end: str | None = None, page_count: int = 1_000
    ) -> Iterator[Entry]:
        """All entries after an ID that exist now (up to `end`), page by page. Raises GapError if the stream
        is another one by the time of a later page.
        """
        while True:
            query = {"after": after, "end": end, "count": page_count}
            page = self._call(_calls.read(stream, query))
            if page.gap is not None and page.gap.reason not in STILL_THE_STREAM:
                raise gap_error(stream, page.gap)
            yield from page.entries
            if page.next is None or not page.more:
                return
            after = page.next

    def tail(
        self,
        *streams: str,
        after: str = "$",
        last: int | None = None,
        on_gap: Callable[[Gap], None] | None = None,
    ) -> Iterator[Entry]:
        """Entries as they are published, across lost connections and restarts of the gateway, until all
        streams are closed, and read to their ends.

        Begins after an ID, or `last` entries back. Raises GapError where entries were removed before they
        were read, or where another stream follows: `reason` says what happened; with `on_gap` that is called
        instead, and the tail goes on. Raises NoAnswerError after an
        outage of more than `retry_s`.
        """
        tail = Tail(streams, after, last, on_gap)
        while not tail.is_over:
            with self._events(tail) as pieces:
                parser = EventParser()
                try:
                    for piece in pieces:
                        for event in parser.feed(piece):
                            entry = tail.accept(event)
                            if entry is not None:
                                yield entry
                except httpx.TransportError:
                    pass  # read on from the cursor
            if not tail.is_over:
                time.sleep(tail.retry_ms / 1000 * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    def get_entry(self, stream: str, entry_id: str) -> Entry | None:
        """One entry; None if it is not there."""
        return self._find(_calls.get_entry(stream, entry_id))

    # --- change -------------------------------------------------------------------------------------------

    def delete_entries(self, stream: str, ids: Sequence[str], *, refs: References = "keep") -> dict[str, str]:
        """Delete entries; for each ID `deleted`, `absent` or `kept`."""
        return self._call(_calls.delete_entries(stream, ids, refs))

    def trim(
        self,
        stream: str,
        *,
        maxlen: int | None = None,
        minid: str | None = None,
        older_than_ms: int | None = None,
        approx: bool = False,
        guard: bool = False,
        dry_run: bool = False,
    ) -> int:
        """Remove old entries; how many. `guard` refuses to remove what a group has not finished."""
        bounds = {"maxlen": maxlen, "minid": minid, "older_than_ms": older_than_ms}
        flags = {"approx": approx, "guard": guard or None, "dry_run": dry_run or None}
        return (self._call(_calls.trim(stream, {**bounds, **flags})))["deleted"]

    # --- streams ------------------------------------------------------------------------------------------

    def list_streams(self, *, prefix: str | None = None) -> Iterator[StreamInfo]:
        """All streams by name."""
        return self._each(lambda after: _calls.list_streams(prefix, after))

    def get_stream(self, stream: str) -> StreamInfo | None:
        """One stream; None if it does not exist."""
        return self._find(_calls.get_stream(stream))

    def ensure_stream(self, stream: str, *, retention: Mapping[str, int] | None = None) -> StreamInfo:
        """Create a stream if it is missing; `retention` has `max_len`, `max_age_ms`, `max_bytes`."""
        return self._call(_calls.ensure_stream(stream, retention))

    def update_stream(self, stream: str, **changes: object) -> StreamInfo:
        """Change what is named, `retention` for instance."""
        return self._call(_calls.update_stream(stream, changes))

    def close_stream(
        self,
        stream: str,
        entry: Fields | None = None,
        *,
        reason: str = "",
        idempotency_key: str | None = None,
        drop_schedules: bool = False,
    ) -> StreamEnd:
        """End a stream for good, behind a last entry if there is one: both are stored, or neither. A stream
        with schedules is refused, unless they are to be dropped.
        """
        call = _calls.close_stream(stream, entry, reason, idempotency_key, drop_schedules=drop_schedules)
        return self._call(call)

    # --- schedules ----------------------------------------------------------------------------------------

    def publish_later(
        self,
        stream: str,
        fields: Fields,
        *,
        delay_ms: int | None = None,
        deliver_at: str | None = None,
        name: str | None = None,
    ) -> ScheduledEntry:
        """Add one entry after `delay_ms`, or at a time (RFC 3339). With a `name` it replaces the one of that
        name, and is sent again where the answer is lost.
        """
        return self._call(_calls.publish_later(stream, fields, delay_ms, deliver_at, name))

    def publish_timed(self, stream: str, entries: Iterable[TimedEntry]) -> PublishedTimed:
        """Add entries, all or none: `{"fields": …, "delay_ms": 60_000}` later, those without a time at once.
        They are sent again where the answer is lost if each has a `schedule`, its name.
        """
        return self._call(_calls.publish_timed(stream, entries))

    def schedule(
        self, stream: str, name: str, fields: Fields, *, only_new: bool = False, **rule: Unpack[ScheduleRule]
    ) -> Schedule:
        """Add an entry at a time, or again and again: `every_ms=60_000`, or `cron="30 2 * * *"` with `tz`.

        Call it whenever the program starts: the same definition keeps its next time, another one replaces it.
        """
        return self._call(_calls.put_schedule(stream, name, fields, rule, only_new=only_new))

    def get_schedule(self, stream: str, name: str) -> Schedule | None:
        """One schedule; None if it has run or was cancelled."""
        return self._find(_calls.get_schedule(stream, name))

    def list_schedules(self, stream: str, *, by: Literal["time", "name"] = "time") -> Iterator[Schedule]:
        """What is scheduled for a stream, the next one first."""
        return self._each(lambda after: _calls.list_schedules(stream, by, after))

    def list_all_schedules(self) -> Iterator[StreamSchedule]:
        """What is scheduled for all streams that one may read: what is late first, then what comes next."""
        return self._each(_calls.list_all_schedules)

    def cancel_schedule(self, stream: str, name: str) -> bool:
        """Cancel a schedule; False if it has run already, or never was."""
        try:
            self._call(_calls.cancel_schedule(stream, name))
        except NotFoundError:
            return False
        return True

    def pause_schedule(self, stream: str, name: str, *, until: str | None = None) -> Schedule:
        """Let a schedule wait until a time (RFC 3339), or until it is resumed. What recurs makes up for no
        run; a single entry comes when the pause ends.
        """
        changes = {"paused": True} if until is None else {"paused_until": until}
        return self._call(_calls.pause_schedule(stream, name, changes))

    def resume_schedule(self, stream: str, name: str) -> Schedule:
        """Go on with a schedule that is paused."""
        return self._call(_calls.pause_schedule(stream, name, {"paused": False}))

    def fire_schedule(self, stream: str, name: str) -> Published:
        """Add the entry of a schedule now. What recurs keeps its next time."""
        return self._call(_calls.fire_schedule(stream, name))

    def delete_stream(self, stream: str, *, drop_schedules: bool = False) -> None:
        """Delete a stream with its entries and groups. One with schedules is refused, unless they are to be
        dropped.
        """
        self._call(_calls.delete_stream(stream, drop_schedules=drop_schedules))

    def group(self, stream: str, group: str) -> "Group":
        """A group of a stream. Nothing is sent."""
        return Group(self, stream, group)

    def list_groups(self, stream: str) -> Iterator[GroupInfo]:
        """The groups of a stream by name."""
        return self._each(lambda after: _calls.list_groups(stream, after))

    # --- anything -----------------------------------------------------------------------------------------

    def command(self, *words: str | float) -> Any:  # noqa: ANN401 - as Redis shapes it
        """Run a Redis stream command: `client.command("XLEN", "orders")`."""
        return self._call(_calls.command(words))

    def wait_until_ready(self) -> None:
        """Return once the gateway serves requests; gives up after `retry_s`."""
        self._call(_calls.ready())


class Group:
    """One group of a stream: `client.group("orders", "billing")`."""

    def __init__(self, client: Client, stream: str, group: str) -> None:
        self._call = client._call  # noqa: SLF001 - a group is a part of its client
        self._call_naming = client._call_naming  # noqa: SLF001
        self._each = client._each  # noqa: SLF001
        self.stream = stream
        self.name = group

    def ensure(self, *, start: str = "$", **policy: object) -> GroupInfo:
        """Create the group, and its stream, where they are missing. `start` is where a new group begins:
        `$` with the next entry, `0` with the oldest. An existing group keeps its position and its
        policy. `policy` of a new one: `dead_letter`, `ack_timeout_ms`, `consumer_timeout_ms`, `max_age_ms`.
        """
        return self._call(_calls.ensure_group(self.stream, self.name, start, policy))

    def why(self, consumer: str | None = None) -> list[Reason]:
        """Why the group delivers nothing, or nothing to this consumer, and what to do. Also of a group that
        does not exist.
        """
        return self._call(_calls.explain_group(self.stream, self.name, consumer))

    def pause(self) -> GroupInfo:
        """Deliver nothing from now on, neither new entries nor those given back, until `resume`. What
        consumers hold stays theirs. Raises NotFoundError if the group does not exist.
        """
        return self._call(_calls.update_group(self.stream, self.name, {"paused": True}))

    def resume(self) -> GroupInfo:
        """Deliver again, from where the group was paused."""
        return self._call(_calls.update_group(self.stream, self.name, {"paused": False}))

    def info(self) -> GroupInfo:
        """The group as it is now. Raises NotFoundError if it does not exist."""
        return self._call(_calls.get_group(self.stream, self.name))

    def consumers(self) -> Iterator[ConsumerInfo]:
        """The group's consumers by name."""
        return self._each(lambda after: _calls.list_consumers(self.stream, self.name, after))

    def read(
        self, consumer: str, *, count: int = 100, wait_ms: int = 0, claim_min_idle_ms: int | None = None
    ) -> Page:
        """Deliver new entries to a consumer. If the answer is lost (NoAnswerError) they are delivered all the
        same: `history` has them.
        """
        call = _calls.group_read(
            self.stream,
            self.name,
            consumer,
            count=count,
            wait_ms=wait_ms,
            claim_min_idle_ms=claim_min_idle_ms,
        )
        return self._call(call)

    def history(self, consumer: str, *, after: str = "0", count: int = 100) -> Page:
        """What was delivered to a consumer and is not acknowledged."""
        call = _calls.group_read(self.stream, self.name, consumer, count=count, after=after)
        return self._call(call)

    def ack(self, *ids: str, delete: References | None = None, consumer: str | None = None) -> int:
        """Acknowledge entries, and with `delete` remove them from the stream; how many were pending.

        Say which `consumer` has done them: what another one holds by now stays there. Gateways that do not
        know that (up to 0.1) acknowledge whatever is pending.
        """
        return self._call_naming(
            ACK_CONSUMER,
            consumer,
            lambda named: _calls.ack(self.stream, self.name, ids, delete, named),
        )

    def nack(
        self, *ids: str, mode: NackMode = "fail", delay_ms: int = 0, consumer: str | None = None
    ) -> list[str]:
        """Give entries back: after a failure (`fail`), as if never delivered (`silent`), or for good
        (`fatal`). With `delay_ms` no reader gets them before that time is over.

        Say which `consumer` gives them back: what it does not hold any more stays with the one who has it.
        Returns those IDs. Gateways that do not know that (up to 0.1) give back whatever is pending.
        """
        return self._call_naming(
            NACK_CONSUMER,
            consumer,
            lambda named: _calls.nack(self.stream, self.name, ids, mode, delay_ms, named),
        )

    def dead_letter(self, *ids: str, reason: str | None = None, consumer: str | None = None) -> DeadLettered:
        """Move pending entries to the group's dead-letter stream, as many as the gateway moves at once: call
        again for those that are still pending. As with `ack`, an entry that was moved in an attempt whose
        answer was lost is not among the `ids` of the answer. `consumer` as of `nack`: what it does not hold
        is `not_held`.
        """
        return self._call_naming(
            DEAD_LETTER_CONSUMER,
            consumer,
            lambda named: _calls.dead_letter(self.stream, self.name, ids, reason, named),
        )

    def redrive(
        self,
        ids: Sequence[str] | None = None,
        *,
        count: int | None = None,
        dry_run: bool = False,
        key: str | None = None,
        **selected: Unpack[DeadLetterFilter],
    ) -> Redriven:
        """Send dead letters of the group back to its stream, as new entries that every group reads, once,
        however often the call has to be sent: these `ids` of the dead-letter stream, or the first `count`
        (100) that `start`, `end`, `consumer` and `reason` select. `dry_run` only shows which. One call takes
        at most 100: while `next` is set, continue with `start=f"({next}"`.
        """
        call = _calls.redrive(
            self.stream, self.name, ids=ids, selected=selected, count=count, dry_run=dry_run, key=key
        )
        return self._call(call)

    def claim(self, consumer: str, *ids: str, min_idle_ms: int = 0) -> tuple[Entry, ...]:
        """Take entries over that were idle for so long; those that were taken."""
        body = {"consumer": consumer, "min_idle_ms": min_idle_ms, "ids": list(ids)}
        return self._call(_calls.claim(self.stream, self.name, body))

    def extend(self, consumer: str, *ids: str) -> list[str]:
        """Start the idle time of a consumer's own entries anew: the work on them goes on. What has timed out
        and was given to no one since is its own again. The IDs that it holds; what was given to another
        consumer stays there.
        """
        return self._call(_calls.extend(self.stream, self.name, consumer, ids))

    def pending(
        self, *, consumer: str | None = None, min_idle_ms: int | None = None, page_count: int = 1_000
    ) -> Iterator[PendingEntry]:
        """What was delivered and not acknowledged, by ID."""
        query = {"count": page_count, "consumer": consumer, "min_idle_ms": min_idle_ms}
        return self._each(lambda start: _calls.list_pending(self.stream, self.name, query, start))

    def delete(self, *, drop_pending: bool = False) -> None:
        """Delete the group; a ConflictError while entries are pending, unless they are dropped."""
        self._call(_calls.delete_group(self.stream, self.name, drop_pending=drop_pending))
