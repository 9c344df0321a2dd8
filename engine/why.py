"""Why a group delivers nothing, or not what somebody waits for; and for each reason what to do, by the door.

Knows: what a group, its stream and what is pending say.
Must never know: where these are kept, which door asks.

    facts ─► reasons, in the order in which one would look
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from engine import ids
from engine.remedies import Remedy, remedy
from engine.replies import GroupFacts, GroupInfo, PendingEntry
from engine.states import DRAINED, NO_CONSUMERS

# Pending entries that are looked at, the oldest ones.
PENDING_LOOKED_AT: Final = 50


class Reason(NamedTuple):
    """One reason: a word for programs, a sentence, and what to do about it at each door."""

    code: str
    detail: str
    remedy: Remedy


class _Asked(NamedTuple):
    stream: str
    group: str
    consumer: str | None

    def because(self, code: str, detail: str, **named: str) -> Reason:
        known = {"stream": self.stream, "group": self.group, "consumer": self.consumer or "CONSUMER"}
        return Reason(code, detail, remedy(code, **(known | named)))


# What only the gateway knows that has a consumer's connection.
_LIVE: Final = {
    "credit_used": "the connection of {consumer!r} has no credit left: as much as it allows is in flight",
    "replaced": "{consumer!r} is read by a connection that took it over from another one of that name",
}


def explain(
    facts: GroupFacts,
    stream: str,
    group: str,
    consumer: str | None,
    live: Sequence[tuple[str, str]] = (),
) -> list[Reason]:
    """All reasons that hold; one that says that nothing is in the way, where there is no other. `live` are
    words of `_LIVE`, each with the consumer that it is about.
    """
    asked = _Asked(stream, group, consumer)
    if not facts.stream_exists:
        return [asked.because("no_stream", f"there is no stream {stream!r}")]
    if facts.group is None:
        return [asked.because("no_group", f"the stream {stream!r} has no group {group!r}")]
    found = [
        *_of_group(asked, facts, facts.group),
        *(asked.because(code, _LIVE[code].format(consumer=name)) for code, name in live),
        *_of_pending(asked, facts, facts.group),
    ]
    if not found:
        words = f"nothing is in the way: the group has entries to read behind {_last(facts.group)}"
        found = [asked.because("ready", words)]
    return found


def _last(group: GroupInfo) -> str:
    return ids.format(group.last_delivered_id)


def _of_group(asked: _Asked, facts: GroupFacts, group: GroupInfo) -> Iterator[Reason]:
    if group.state == DRAINED:
        yield asked.because(
            "drained", "the stream is closed, and the group has read and acknowledged all of it"
        )
        return
    if facts.memory_full:
        yield asked.because("memory_full", "the gateway's memory is full: it takes no new entries")
    if group.paused:
        yield asked.because("paused", "the group is paused: it delivers nothing until it is resumed")
    is_behind = group.last_delivered_id < facts.last_live_id or group.passed_over > 0
    if 0 < group.last_delivered_id < facts.removed_upto:
        upto = ids.format(facts.removed_upto)
        yield asked.because(
            "trimmed", f"entries up to {upto} were removed before the group had read them: they are gone"
        )
    if is_behind and group.max_age_ms is not None:
        oldest_ms = ids.ms_of(max(facts.first_id, group.last_delivered_id))
        if facts.now_ms - oldest_ms > group.max_age_ms:
            yield asked.because(
                "too_old",
                f"entries older than {group.max_age_ms} ms are acknowledged and not delivered (max_age_ms); "
                f"the first unread one is {facts.now_ms - oldest_ms} ms old",
            )
    if not is_behind and not group.pending:
        yield _nothing_left(asked, facts, group)
    if group.state == NO_CONSUMERS:
        yield asked.because("no_consumers", "no consumer waits, and none has asked for a minute")
    if asked.consumer is not None and not facts.consumer_is_known:
        yield asked.because("no_consumer", f"the group has no consumer {asked.consumer!r}: it has never read")


def _nothing_left(asked: _Asked, facts: GroupFacts, group: GroupInfo) -> Reason:
    if facts.length and not facts.has_delivered:
        words = f"the group reads what comes after {_last(group)}: the entries before it are not for it"
        return asked.because("starts_at_end", words)
    return asked.because("caught_up", "the group has read and acknowledged all that there is")


def _of_pending(asked: _Asked, facts: GroupFacts, group: GroupInfo) -> Iterator[Reason]:
    """Of each kind the oldest; and who has the key that most wait for."""
    seen = set[str]()
    if facts.holds_id and group.pending:
        held = ids.format(facts.holds_id)
        words = f"the stream keeps its {facts.length} entries, done or not, until {held} is acknowledged"
        yield asked.because("holds_stream", words, id=held)
    if facts.busy_count:
        held = ids.format(facts.busy_id) if facts.busy_id else "one that is pending"
        whole = group.ordered_by == "*"
        what = "turn of the group" if whole else f"{group.ordered_by} {facts.busy_key!r}"
        waiting = "1 entry waits" if facts.busy_count == 1 else f"{facts.busy_count} entries wait"
        words = f"{waiting} for the {what}, which {held} has"
        if facts.busy_all:
            words += f"; as {group.passed_over} wait in all, the group reads nothing new"
        yield asked.because("key_busy", words, id=ids.format(facts.busy_id))
    for one in facts.pending:
        code = "deferred" if one.until_ms is not None else "held" if one.consumer is not None else "released"
        if code not in seen:
            seen.add(code)
            yield asked.because(code, _pending_words(facts, group, one), id=ids.format(one.id))


def _pending_words(facts: GroupFacts, group: GroupInfo, one: PendingEntry) -> str:
    name, counted = ids.format(one.id), f"delivery {one.delivery_count}"
    if one.until_ms is not None:
        left_ms = max(0, one.until_ms - facts.now_ms)
        return (
            f"{name} was given back for later: it comes back in {left_ms} ms, at {ids.rfc3339(one.until_ms)}"
        )
    if one.consumer is None:
        return f"{name} was given back ({counted}): the next read that claims gets it"
    timeout_ms = group.ack_timeout_ms
    released = "nothing releases it" if timeout_ms is None else f"it is released after {timeout_ms} ms"
    return f"{name} is held by {one.consumer!r} for {one.idle_ms} ms ({counted}); {released}"
