"""Refusals and their stable codes, each with the exact sentence that Redis answers.

Knows: what can be wrong with a command, once, with its code (the contract of clients) and Redis's text.
Must never know: HTTP statuses, WebSocket close codes, logging. A bug is an assertion, never one of these.
"""

import re
from typing import Final

from engine.remedies import remedies_of, remedy

# First words of refusals at which client libraries of Redis send a command again by themselves, the same one
# or to another server: some do so ten times.
REPEATED_WORDS: Final = frozenset(
    {
        *("ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOREPLICAS"),
        *("READONLY", "REDIRECT", "TRYAGAIN", "WAIT"),
    }
)


# What a sentence of Redis says of its command, which may have come by another door.
_OF_COMMAND: Final = re.compile(r" specified in X[A-Z]+")


class EngineError(Exception):
    """A refusal: the command changed nothing, unless the member `outcome` is `unknown`.

    `code` is stable and part of the public contract, `redis` the whole error text of Redis (its first word
    included), `detail` a sentence for people, `members` further facts by name (IDs as text).
    """

    def __init__(self, code: str, redis: str, detail: str | None = None, **members: str | int) -> None:
        super().__init__(code, redis, detail, members)
        is_unknown = members.get("outcome") == "unknown"
        assert not (is_unknown and is_repeated(redis)), "a client that repeats it would do it twice"
        self.code = code
        self.redis = redis
        self.detail = detail or _OF_COMMAND.sub("", redis.partition(" ")[2])
        self.members = members


def is_repeated(redis: str) -> bool:
    """Whether client libraries repeat by themselves what is refused with this text of Redis."""
    return redis.partition(" ")[0] in REPEATED_WORDS


def unrepeated(refusal: EngineError) -> EngineError:
    """The same refusal in words at which none does."""
    if not is_repeated(refusal.redis):
        return refusal
    _, _, sentence = refusal.redis.partition(" ")
    return EngineError(refusal.code, f"ERR {sentence}", refusal.detail, **refusal.members)


# Refusals by a server behind the engine that are not about the request: later the same may be done.
OF_BACKEND: Final = frozenset(
    {"backend_unavailable", "backend_error", "backend_forbidden", "history_busy", "history_unavailable"}
)


# A part of a stream cannot be read back: no repetition helps.
ENTRIES_DAMAGED: Final = "entries_damaged"


def _printable(name: str) -> str:
    """`name` as Redis prints it into an error: C strings end at NUL, line ends become blanks."""
    return name.partition("\0")[0].replace("\r", " ").replace("\n", " ")


INVALID_ID_TEXT: Final = "ERR Invalid stream ID specified as stream command argument"


def malformed_id(words: str = "") -> EngineError:
    detail = "IDs are '<ms>-<seq>', two unsigned 64-bit decimal numbers; the sequence may be left out"
    return EngineError("malformed_id", INVALID_ID_TEXT, f"{detail}; got {words[:128]!r}" if words else detail)


def invalid_interval(edge: str) -> EngineError:
    """An exclusive bound beyond the last or before the first possible ID; `edge` is `start` or `end`."""
    return EngineError("malformed_id", f"ERR invalid {edge} ID for the interval")


def invalid_name(what: str = "name") -> EngineError:
    rule = (
        f"a {what} has 1 to 512 bytes of UTF-8, no control characters, between slashes nothing that is "
        "empty, '.' or '..', and does not begin with 'weir/'"
    )
    return EngineError("invalid_name", f"ERR invalid name: {rule}", rule)


def no_such_key(stream: str) -> EngineError:
    return EngineError("no_stream", "ERR no such key", f"there is no stream {stream!r}", stream=stream)


def key_required(stream: str) -> EngineError:
    return EngineError(
        "no_stream",
        "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
        "MKSTREAM option to create an empty stream automatically.",
        f"there is no stream {stream!r}",
        stream=stream,
    )


def no_group(stream: str, group: str) -> EngineError:
    """The sentence of XPENDING, XCLAIM, XAUTOCLAIM and XNACK."""
    return _no_group(
        f"NOGROUP No such key '{_printable(stream)}' or consumer group '{_printable(group)}'", stream, group
    )


def no_group_in_read(stream: str, group: str) -> EngineError:
    """The sentence of XREADGROUP."""
    where = f"key '{_printable(stream)}' or consumer group '{_printable(group)}'"
    return _no_group(f"NOGROUP No such {where} in XREADGROUP with GROUP option", stream, group)


def no_group_for_key(stream: str, group: str) -> EngineError:
    """The sentence of XGROUP and XINFO CONSUMERS."""
    return _no_group(
        f"NOGROUP No such consumer group '{_printable(group)}' for key name '{_printable(stream)}'",
        stream,
        group,
    )


def _no_group(redis: str, stream: str, group: str) -> EngineError:
    detail = f"there is no group {group!r} on a stream {stream!r}"
    return EngineError("no_group", redis, detail, stream=stream, group=group)


def group_exists(group: str) -> EngineError:
    return EngineError(
        "group_exists",
        "BUSYGROUP Consumer Group name already exists",
        f"the group {group!r} exists",
        group=group,
    )


def id_is_zero() -> EngineError:
    return EngineError("id_not_increasing", "ERR The ID specified in XADD must be greater than 0-0")


def id_not_increasing(last_id: str) -> EngineError:
    return EngineError(
        "id_not_increasing",
        "ERR The ID specified in XADD is equal or smaller than the target stream top item",
        f"the ID must be greater than the stream's last ID, {last_id}",
        last_id=last_id,
    )


def stream_exhausted() -> EngineError:
    return EngineError(
        "stream_exhausted", "ERR The stream has exhausted the last possible ID, unable to add more items"
    )


def stream_closed(stream: str, generation: str, last_id: str, closed_at: str) -> EngineError:
    # Over a backend a stream of others may have none yet.
    members = {"generation": generation} if generation else {}
    return EngineError(
        "stream_closed",
        "CLOSED stream is closed",
        f"the stream {stream!r} was closed for good: write to another one, or copy or delete this one first",
        **members,
        last_id=last_id,
        closed_at=closed_at,
    )


def last_id_mismatch(last_id: str) -> EngineError:
    return EngineError(
        "last_id_mismatch",
        "ERR The last ID of the stream is not the expected one",
        f"the stream's last ID is {last_id}: read what came since, then try again",
        last_id=last_id,
    )


def stream_changed() -> EngineError:
    return EngineError(
        "precondition_failed",
        "ERR The stream is not as expected",
        "the stream has changed: read it again, then decide",
    )


def last_id_too_small(redis: str) -> EngineError:
    """XSETID would make the counters contradict the entries; `redis` is the exact sentence."""
    return EngineError("last_id_too_small", redis)


def idempotency_mismatch() -> EngineError:
    return EngineError(
        "idempotency_mismatch",
        "ERR The idempotency key was used with another body",
        "the Idempotency-Key was used with another body: choose a new key for a new request",
    )


def stream_exists(stream: str) -> EngineError:
    detail = "the stream exists with another type, lifetime or origin: use it as it is, or another name"
    return EngineError("stream_exists", f"ERR {detail}", stream=stream)


def stream_gone(stream: str) -> EngineError:
    detail = f"the stream {stream!r} was removed, and has forks: its name is free when these are gone"
    return EngineError("stream_gone", f"ERR {detail}", stream=stream)


def fork_beyond_end() -> EngineError:
    detail = "Stream-Fork-Offset and -Sub-Offset name a place in the source: this is beyond its end"
    return EngineError("malformed_header", f"ERR {detail}")


def fork_of_another_stream(source: str) -> EngineError:
    detail = (
        f"Stream-Fork-Offset is of an earlier stream {source!r}: read the one that there is now with "
        "offset=-1, and take an offset that it gives, or leave it out to fork at the end"
    )
    return EngineError("gap", f"ERR {detail}")


def not_durable(stream: str) -> EngineError:
    sentence = f"the stream {stream!r} was not made by Durable Streams: publish to it as to any other"
    return EngineError("not_durable", f"ERR {sentence}", stream=stream)


def not_data(media: str) -> EngineError:
    what = "a JSON text" if media == "application/json" else f"of the type {media}"
    detail = f"an entry of this stream has one field, data, and its value is {what}: Durable Streams reads it"
    return EngineError("invalid", f"ERR {detail}")


def media_type_differs(media: str) -> EngineError:
    return EngineError("media_type_differs", f"ERR the stream is {media}: append the same")


def writer_seq_too_small(last: str) -> EngineError:
    detail = f"Stream-Seq ascends, compared as bytes: the last one was {last!r}"
    return EngineError("sequence_too_small", f"ERR {detail}")


def producer_fenced(producer: str, epoch: int) -> EngineError:
    detail = f"the producer {producer!r} is in epoch {epoch}: begin epoch {epoch + 1} at sequence 0"
    return EngineError("producer_fenced", f"ERR {detail}", epoch=epoch)


def epoch_begins_at_zero(producer: str) -> EngineError:
    detail = f"a new epoch of the producer {producer!r} begins at sequence 0"
    return EngineError("malformed_header", f"ERR {detail}")


def producer_gap(producer: str, expected: int, received: int) -> EngineError:
    detail = f"of the producer {producer!r} the sequence {expected} comes next: send what is missing first"
    return EngineError("producer_gap", f"ERR {detail}", expected=expected, received=received)


def stale_epoch(producer: str, epoch: int) -> EngineError:
    return EngineError(
        "stale_epoch",
        "ERR The epoch of the producer is over",
        f"the producer {producer!r} is in epoch {epoch}: publishers in an older one were replaced",
        epoch=epoch,
    )


def too_many_chunks(chunks: int, answer_bytes: int) -> EngineError:
    sentence = (
        f"an epoch has at most {chunks} chunks and {answer_bytes} bytes of their answers: publish "
        "larger ones, or begin another epoch"
    )
    return invalid(f"ERR {sentence}")


def chunk_mismatch(producer: str, epoch: int, chunk: int) -> EngineError:
    return EngineError(
        "idempotency_mismatch",
        "ERR The chunk was stored with other entries",
        f"chunk {chunk} of the producer {producer!r}, epoch {epoch}, was stored with other streams or "
        "another number of entries; nothing was stored now: a run must cut the same work into the same "
        "chunks each time; begin another epoch for other work",
    )


def trim_guarded(needed_from: str) -> EngineError:
    return EngineError(
        "trim_guarded",
        "ERR The trim would remove entries that a group still needs",
        f"a group has still to read or to acknowledge entries from {needed_from} on; nothing was removed",
        needed_from=needed_from,
    )


def no_consumer(stream: str, group: str, consumer: str) -> EngineError:
    return EngineError(
        "no_consumer",
        "ERR No such consumer",
        f"there is no consumer {consumer!r} in the group {group!r}",
        stream=stream,
        group=group,
        consumer=consumer,
    )


def group_has_pending(group: str, pending: int) -> EngineError:
    return EngineError(
        "group_has_pending",
        "ERR The group has pending entries",
        f"the group {group!r} has {pending} pending entries: {remedy('group_has_pending').rest}",
        pending=pending,
    )


def order_of_pending(pending: int, passed_over: int) -> EngineError:
    sentence = (
        f"the order of a group changes only while nothing of it is in flight: {pending} entries are pending "
        f"and {passed_over} wait for their keys; acknowledge them, or set the group's position"
    )
    return EngineError("group_has_pending", f"ERR {sentence}", pending=pending)


def consumer_has_pending(consumer: str, pending: int) -> EngineError:
    return EngineError(
        "consumer_has_pending",
        "ERR The consumer has pending entries",
        f"the consumer {consumer!r} has {pending} pending entries: {remedy('consumer_has_pending').rest}",
        pending=pending,
    )


def too_many_to_remove(consumer: str, pending: int) -> EngineError:
    sentence = (
        f"the consumer {_printable(consumer)!r} has {pending} pending entries, too many for one turn: "
        "remove it outside of a transaction"
    )
    return EngineError("invalid", f"ERR {sentence}", pending=pending)


def too_many_streams(streams_max: int) -> EngineError:
    return _too_many(f"another stream, there may be {streams_max}", "delete streams", "streams_max")


def too_many_groups(stream: str, groups_max: int) -> EngineError:
    what = f"another group of the stream '{_printable(stream)}', which may have {groups_max}"
    return _too_many(what, "delete unused groups", "groups_max")


def too_many_consumers(group: str, consumers_max: int) -> EngineError:
    what = f"another consumer of the group '{_printable(group)}', which may have {consumers_max}"
    return _too_many(what, "delete those that are gone, or let the group time them out", "consumers_max")


def _too_many(what: str, remedy: str, limit: str) -> EngineError:
    """A cap is reached. Not retryable: time alone makes no room."""
    sentence = f"no room for {what}: {remedy}, or raise the setting {limit}"
    return EngineError("invalid", f"ERR {sentence}", limit=limit)


def too_many_schedules(most: int, limit: str, stream: str | None = None) -> EngineError:
    """A cap is reached, `limit`: of the stream, or of all of them."""
    whose = "in all streams together" if stream is None else f"in the stream '{_printable(stream)}'"
    sentence = f"there may be {most} schedules {whose}: cancel some, or wait until some have run"
    return EngineError("invalid", f"ERR {sentence}", limit=limit)


def invalid_schedule(sentence: str) -> EngineError:
    """A rule, or a name, that cannot be; the sentence begins with the member. To Redis, every_ms is EVERY."""
    return invalid(f"ERR {re.sub('paused_(?=until)|(_in)?_ms', '', sentence)}", sentence)


def no_schedule(stream: str, name: str) -> EngineError:
    sentence = f"the stream '{_printable(stream)}' has no schedule {name!r}: it has run, or was cancelled"
    return EngineError("no_schedule", f"ERR {sentence}", schedule=name)


def schedule_gone(name: str) -> EngineError:
    sentence = f"the schedule {name!r} has run or was cancelled: nothing was published"
    return EngineError("schedule_gone", f"ERR {sentence}", schedule=name)


def schedule_exists(name: str) -> EngineError:
    sentence = f"ERR there is a schedule {name!r}: leave the condition out to replace it"
    return EngineError("schedule_exists", sentence, schedule=name)


def recurring_forbidden() -> EngineError:
    sentence, way = "what recurs takes the right to manage the stream", remedy("recurring_forbidden")
    return EngineError("forbidden", f"NOPERM {sentence}: {way.redis}", f"{sentence}: {way.rest}")


def has_schedules(stream: str, count: int, end: str = "close") -> EngineError:
    """A stream that is not closed while entries are scheduled; `end` is "delete" where it is not deleted."""
    sentence = f"the stream '{_printable(stream)}' has {count} schedule{'s' * (count > 1)} still to run"
    way = remedy("close_has_schedules" if end == "close" else "delete_has_schedules")
    return EngineError(
        "has_schedules", f"ERR {sentence}: {way.redis}", f"{sentence}: {way.rest}", schedules=count
    )


def by_door(refusal: EngineError) -> dict[str, str]:
    """The sentence of a refusal in the words of the other doors; empty where it is the same."""
    for way in remedies_of(refusal.code, refusal.members):
        if way.rest in refusal.detail:
            doors = ("cli", "console", "redis")
            return {door: refusal.detail.replace(way.rest, getattr(way, door)) for door in doors}
    return {}


def too_much_metadata(bytes_max: int) -> EngineError:
    """What is kept beside the streams has no more room."""
    return invalid(f"ERR what is kept beside the streams has at most {bytes_max} bytes: remove some of it")


def invalid(redis: str, detail: str | None = None) -> EngineError:
    """A well-formed argument of a wrong type, range or combination."""
    return EngineError("invalid", redis, detail)


def syntax_error() -> EngineError:
    return invalid("ERR syntax error")


def invalid_expire_time(command: str) -> EngineError:
    """A time that is too far away; `command` as Redis names it."""
    return invalid(f"ERR invalid expire time in '{command}' command")


def lifetime_over() -> EngineError:
    return invalid("ERR the lifetime is over", "expires_at: it is a time that has not come yet")


def too_much_work(took_us: int, took_us_max: int) -> EngineError:
    """A transaction that nothing can cut, and that would hold up everybody."""
    return invalid(
        f"ERR not run: this transaction would take about {took_us // 1000} ms, and one may take "
        f"{took_us_max // 1000}; use a pipeline, or several transactions"
    )


def publishes_too_much(took_us: int, took_us_max: int) -> EngineError:
    """A publication into many streams that nothing can cut, and that would hold up everybody."""
    rule = (
        f"not stored: this would take about {-(-took_us // 1000)} ms in one piece, and one request may take "
        f"{took_us_max // 1000}; publish to fewer streams at once, or fewer entries"
    )
    return invalid(f"ERR {rule}")


def too_large_to_copy() -> EngineError:
    return invalid(
        "ERR the stream is too large to copy: it has more than some 150,000 entries, or 3,000 pending "
        "entries, or 1,500 consumers and idempotency keys; export and publish it, or rename it"
    )


def same_stream() -> EngineError:
    return invalid("ERR source and destination objects are the same")


def not_an_integer() -> EngineError:
    return invalid("ERR value is not an integer or out of range")


def nothing_is_durable() -> EngineError:
    """Under the policy `no` it is unknown when written bytes are on disk."""
    return invalid("ERR nothing is known to be on disk under fsync=no: leave that out, or run with everysec")


def storage_failed(*, is_unknown: bool = False) -> EngineError:
    """Under a poisoned log: the disk refused a write or a sync, so nothing more is acknowledged.

    `is_unknown`: what the request changed may be in the log, or may not.
    """
    return EngineError(
        "storage_failed",
        "MISCONF Errors writing to the log: the gateway is read-only until it is restarted",
        "the log could not be written or synced: the gateway is read-only until it is restarted",
        outcome=_outcome(is_unknown=is_unknown),
    )


def not_read_now(reason: str) -> EngineError:
    """A part of a stream could not be read from the disk, for want of something that is no part of it."""
    detail = f"a part of this stream cannot be read from the disk now: {reason}"
    return EngineError("overloaded", f"ERR {detail}", f"{detail}; try again soon")


def run_damaged(first: str, last: str, behind: str) -> EngineError:
    """The part of a stream between these two, in a file of its own, cannot be read back; `behind` is the next
    ID.
    """
    sentence = (
        f"a part of this stream cannot be read from the disk, {first} to {last}; the rest of it can, and the "
        f"gateway's log names the file. A read after {last} goes on behind it, a range that ends at ({first} "
        "has what is before it. "
    )
    named = {"damaged_upto": last, "next_id": behind}
    way, outcome = remedy(ENTRIES_DAMAGED, **named), _outcome(is_unknown=False)
    redis, rest = f"MISCONF {sentence}{way.redis}", f"{sentence}{way.rest}"
    return EngineError(ENTRIES_DAMAGED, redis, rest, **named, outcome=outcome)


def storage_full(*, stalled: bool = False) -> EngineError:
    detail = (
        "the disk is full: nothing was changed; reads, trims and deletes go on, and writes do once the log "
        "has been rewritten without what was removed, or the disk has space again"
    )
    if stalled:
        detail = (
            "the disk is full, and did not even have space for the changes before this one: nothing was "
            "changed; all goes on within a second once the disk has space again"
        )
    return EngineError(
        "storage_full", "MISCONF No space left for the log: nothing was changed, reads go on", detail
    )


def memory_full(used_bytes: int, bytes_max: int) -> EngineError:
    return EngineError(
        "memory_full",
        "OOM command not allowed when used memory > 'maxmemory'.",
        f"{used_bytes} bytes of memory are in use, and memory_bytes_max is {bytes_max}: nothing was changed; "
        "acknowledge what is pending, trim streams to fewer of their newest entries or delete some to make "
        "room, or raise memory_bytes_max",
        used_bytes=used_bytes,
        memory_bytes_max=bytes_max,
    )


def quota_exceeded(pattern: str, limit: str, used: int, most: int) -> EngineError:
    """`limit` is the member of the grant that is reached."""
    what = "streams" if limit == "streams_max" else "bytes of memory"
    sentence = (
        f"the quota of {pattern!r} is used up: {used} {what}, and {limit} is {most}; nothing was changed; "
        "acknowledge, trim or delete to make room"
    )
    return EngineError(
        "quota_exceeded", f"OOM {_printable(sentence)}", sentence, limit=limit, used=used, quota=pattern
    )


# Refusals of what finds no room.
OF_ROOM: Final = frozenset({"memory_full", "quota_exceeded", "storage_full"})
# What holds a stream that has `keep_unacknowledged` and waits for its first group.
NO_GROUP: Final = "no group"


def with_held(full: EngineError, stream: str) -> EngineError:
    """A refusal for want of room, to a command on a stream that keeps everything until it has a group."""
    remedy = (
        f"the stream {stream!r} keeps everything until it has a group (keep_unacknowledged): make its group, "
        "give it max_bytes, or trim it"
    )
    members = {**full.members, "stream": stream, "held_by": NO_GROUP}
    return EngineError(full.code, full.redis, f"{full.detail}; {remedy}", **members)


def internal() -> EngineError:
    return EngineError(
        "internal",
        "ERR internal error: the gateway's log has more",
        "something went wrong in the engine: the gateway's log has more",
    )


def restarting(*, is_unknown: bool = False) -> EngineError:
    """After a fault within a turn: the engine reads its log again. `is_unknown`: the request may have been
    carried out before. Clients of Redis repeat what is refused with LOADING.
    """
    sentence = "the engine is being restarted after a fault"
    if is_unknown:
        sentence += ": the request may or may not have been carried out"
    return EngineError(
        "restarting",
        f"{'ERR ' if is_unknown else 'LOADING '}{sentence}",
        sentence if is_unknown else f"{sentence}: nothing was changed; try again soon",
        outcome=_outcome(is_unknown=is_unknown),
    )


def in_part(refusal: EngineError) -> EngineError:
    """The refusal of a command whose first turns have run."""
    again = {"restarting": restarting, "storage_failed": storage_failed}.get(refusal.code)
    return refusal if again is None else again(is_unknown=True)


def _outcome(*, is_unknown: bool) -> str:
    return "unknown" if is_unknown else "not done"


def closing() -> EngineError:
    return EngineError(
        "draining", "ERR the gateway is shutting down", "the gateway is shutting down: try again soon"
    )


def too_many_waiters() -> EngineError:
    return EngineError(
        "too_many_waiters", "ERR too many blocked reads", "too many reads wait already: try again later"
    )
