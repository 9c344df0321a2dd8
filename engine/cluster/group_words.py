"""Commands of the engine on one stream's groups as words for its server: reads, claims, releases.

Knows: the arguments of Redis's commands, and short scripts for what Redis has no command for.
Must never know: servers, connections.

A released entry belongs to the consumer `weir:released` and was last delivered in 1970: any consumer
may claim it. One that comes back later belongs to `weir:deferred` until then.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from engine import errors, ids
from engine.cluster import group_scripts, replies
from engine.cluster.dead_letters import Due, Dying, owner_of
from engine.cluster.kept import failed_field, policy_fields, policy_from
from engine.cluster.keys import auxiliary_key
from engine.cluster.replies import BackendPending
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import WriteOrigin, delete_each
from engine.cluster.wire import Word, Words
from engine.cluster.words import by_script, group_signs, is_ok, many, one, only_request, sends
from engine.commands import types, weir_commands
from engine.commands.base import StreamCommand
from engine.commands.dead_letters import EXPIRED, TOO_MANY
from engine.commands.group_reading import DELIVERY_COUNT_MAX
from engine.replies import AutoClaimed, Claimed, Delivered, GroupInfo, PendingList, Presence

R = TypeVar("R")


def script(
    command: StreamCommand, text: str, arguments: Sequence[Word], decode: Callable[[Any], Any]
) -> BackendRequest:
    """A request of a short script with the stream as its key. The server keeps it by its digest."""
    return one(command, ("EVAL", text, 1, command.stream, *arguments), decode)


# --- groups


def _entries_read(entries_read: int | None) -> tuple[Word, ...]:
    return () if entries_read is None else ("ENTRIESREAD", entries_read)


@sends(types.XGroupSetId)
def _set_id(command: types.XGroupSetId, _: WriteOrigin) -> BackendRequest:
    words = ("XGROUP", "SETID", command.stream, command.group, group_scripts.start_word(command.start))
    return one(command, (*words, *_entries_read(command.entries_read)), is_ok)


@sends(types.XGroupDestroy)
def _destroy(command: types.XGroupDestroy, _: WriteOrigin) -> BackendRequest:
    words = ("XGROUP", "DESTROY", command.stream, command.group)
    return many(command, [words, _forget_policy(command.stream, command.group)], lambda results: results[0])


def _forget_policy(stream: str, group: str) -> Words:
    return ("HDEL", auxiliary_key(stream, "m"), *policy_fields(group), failed_field(group))


@sends(weir_commands.DescribeGroup)
def _describe(command: weir_commands.DescribeGroup, _: WriteOrigin) -> BackendRequest:
    look = only_request(types.XInfoGroups(stream=command.stream))

    def decode(results: Sequence[Any]) -> GroupInfo:
        rows: Sequence[GroupInfo] = look.decode(results)
        for info in rows:
            if info.name == command.group:
                return info
        raise missing

    missing = errors.no_group(command.stream, command.group)
    return msgspec.structs.replace(look, decode=decode, instead={"ERR no such key": missing})


@sends(weir_commands.DeleteGroup)
def _delete_group(command: weir_commands.DeleteGroup, _: WriteOrigin) -> BackendRequest:
    def decode(held: int) -> bool:
        if held == _NO_STREAM:
            raise errors.key_required(command.stream)
        if held >= 0:
            raise errors.group_has_pending(command.group, held)
        return True

    keys = (command.stream, auxiliary_key(command.stream, "m"))
    arguments: list[Word] = [command.group, int(command.drop), *policy_fields(command.group)]
    arguments.append(failed_field(command.group))
    request = one(command, ("EVAL", _DELETE_GROUP, len(keys), *keys, *arguments), decode)
    missing = errors.no_group_for_key(command.stream, command.group)
    return msgspec.structs.replace(request, instead={"NOGROUP": missing})


_NO_STREAM: Final = -2
_DELETE_GROUP: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return -2 end
local held = redis.call('XPENDING', KEYS[1], ARGV[1])[1]
if held > 0 and ARGV[2] == '0' then return held end
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], unpack(ARGV, 3))
return -1
"""


def list_groups(stream: str) -> BackendRequest:
    """XINFO GROUPS, where nothing is wanted of the numbers of consumers: these count Weir's own."""
    commands: list[Words] = [("XINFO", "GROUPS", stream), ("HGETALL", auxiliary_key(stream, "m"))]
    return many(types.XInfoGroups(stream=stream), commands, lambda results: replies.group_infos(*results))


@sends(types.XInfoGroups)
def _groups(command: types.XInfoGroups, _: WriteOrigin) -> BackendRequest:
    look = list_groups(command.stream)
    commands = [*look.commands, group_signs(command.stream)]
    return msgspec.structs.replace(
        look, commands=commands, decode=lambda results: replies.group_infos(*results)
    )


def has_group(stream: str, group: str) -> BackendRequest:
    """Whether there is the group, by a range of pending entries that is always empty."""
    return BackendRequest(
        stream=stream,
        commands=[("XPENDING", stream, group, "0-0", "0-0", 1)],
        decode=lambda _: True,
        lane=Lane.READ,
        instead={"NOGROUP": False},
    )


def presence(rows: Sequence[GroupInfo], group: str) -> Presence:
    """Whether the group is among those of a stream."""
    return Presence.FOUND if any(info.name == group for info in rows) else Presence.NO_GROUP


# --- consumers


@sends(types.XGroupCreateConsumer)
def _create_consumer(command: types.XGroupCreateConsumer, _: WriteOrigin) -> BackendRequest:
    return one(command, ("XGROUP", "CREATECONSUMER", command.stream, command.group, command.consumer))


@sends(types.XGroupDelConsumer)
def _del_consumer(command: types.XGroupDelConsumer, _: WriteOrigin) -> BackendRequest:
    return one(command, ("XGROUP", "DELCONSUMER", command.stream, command.group, command.consumer))


@sends(types.XInfoConsumers)
def _consumers(command: types.XInfoConsumers, _: WriteOrigin) -> BackendRequest:
    return one(command, ("XINFO", "CONSUMERS", command.stream, command.group), replies.consumer_infos)


@sends(weir_commands.DeleteConsumer)
def _delete_consumer(command: weir_commands.DeleteConsumer, _: WriteOrigin) -> BackendRequest:
    def decode(reply: Sequence[Any]) -> int:
        what, held = reply
        if what == b"none":
            raise errors.no_consumer(command.stream, command.group, command.consumer)
        if what == b"held":
            raise errors.consumer_has_pending(command.consumer, held)
        return int(held)

    arguments = (command.group, command.consumer, int(command.drop), command.transfer_to or "")
    request = script(command, _DELETE_CONSUMER, arguments, decode)
    missing = errors.key_required(command.stream)
    return msgspec.structs.replace(request, instead={"ERR no such key": missing})


_DELETE_CONSUMER: Final = """
local group, consumer, drop, heir = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local held
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group)) do
  if row[2] == consumer then held = row[4] end
end
if not held then return { 'none', 0 } end
if heir == consumer then return { 'done', held } end
if held > 0 and drop == '0' and heir == '' then return { 'held', held } end
if heir ~= '' then
  for _, row in ipairs(redis.call('XPENDING', KEYS[1], group, '-', '+', held, consumer)) do
    redis.call('XCLAIM', KEYS[1], group, heir, 0, row[1], 'IDLE', row[3], 'JUSTID')
  end
end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], group, consumer)
return { 'done', held }
"""


# --- acknowledging and releasing


@sends(types.XAck)
def _ack(command: types.XAck, _: WriteOrigin) -> BackendRequest:
    return one(command, ("XACK", command.stream, command.group, *map(ids.format, command.ids)))


@sends(weir_commands.Acknowledge)
def _acknowledge(command: weir_commands.Acknowledge, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, group_scripts.acknowledge(command))


@sends(types.XAckDel)
def _ackdel(command: types.XAckDel, _: WriteOrigin) -> BackendRequest:
    held_by = command.group, command.consumer or ""
    return by_script(command.stream, delete_each(command.stream, command.refs, command.ids, *held_by))


@sends(types.XNack)
def _nack(command: types.XNack, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, group_scripts.give_back_later(command))


@sends(weir_commands.GiveBack)
def _give_back(command: weir_commands.GiveBack, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, group_scripts.give_back(command))


@sends(weir_commands.Undo)
def _undo(command: weir_commands.Undo, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, group_scripts.undo(command), Lane.GROUP)


@sends(weir_commands.Extend)
def _extend(command: weir_commands.Extend, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, group_scripts.extend(command))


@sends(weir_commands.DeadLetterEntries)
def _dead_letter(command: weir_commands.DeadLetterEntries, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, group_scripts.look_at_pending(command))


# --- pending entries


@sends(types.XPending)
def _pending(command: types.XPending, _: WriteOrigin) -> BackendRequest:
    return one(command, ("XPENDING", command.stream, command.group), replies.pending_summary)


@sends(types.XPendingRange)
def _pending_range(command: types.XPendingRange, _: WriteOrigin) -> BackendRequest:
    count = max(0, command.count)
    idle: tuple[Word, ...] = ("IDLE", command.min_idle_ms) if command.min_idle_ms else ()
    consumer = () if command.consumer is None else (command.consumer,)
    between = (ids.format(command.start), ids.format(command.end))
    # One more says whether there are more.
    words = ("XPENDING", command.stream, command.group, *idle, *between, count + 1, *consumer)
    find = by_script(command.stream, group_scripts.find_deferred(command), Lane.READ)

    def decode(results: Sequence[Any]) -> PendingList:
        deferred = find.decode(results[1:])
        found = replies.pending_list(results[0], deferred, count) if count else PendingList([])
        if not command.min_idle_ms:
            return found
        # What comes back later is idle for no time.
        idle = [row for row in found.entries if row.until_ms is None]
        return msgspec.structs.replace(found, entries=idle)

    return msgspec.structs.replace(find, commands=[words, *find.commands], decode=decode)


def _pending_rows(stream: str, group: str, wanted: Sequence[int]) -> list[Words]:
    """The commands that ask whose each of the entries is, and how often it was delivered."""
    return [("XPENDING", stream, group, word, word, 1) for word in map(ids.format, wanted)]


def _by_id(rows: Sequence[Any]) -> dict[int, BackendPending]:
    """The rows of XPENDING by ID."""
    rows = [(*row[:3], replies.deliveries_of(row[3])) for row in rows]
    return {replies.parse(word): BackendPending(owner_of(name), *rest) for word, name, *rest in rows}


@sends(types.XClaim)
def _claim(command: types.XClaim, _: WriteOrigin) -> BackendRequest:
    claim, wanted = command.claim, command.claim.ids
    words = ("XCLAIM", command.stream, command.group, command.consumer, claim.min_idle_ms)
    claiming = (*words, *map(ids.format, wanted), *_claim_options(claim))

    looks = _pending_rows(command.stream, command.group, wanted)
    at = len(looks)

    def decode(results: Sequence[Any]) -> Claimed | Dying:
        given = replies.claimed_of(results[at], just_ids=claim.just_ids)
        before = _by_id([row for rows in results[:at] for row in rows])
        after = _by_id([row for rows in results[at + 1 : -2] for row in rows])
        kept, dying = _part(command, replies.with_counts(given, before, after), before, *results[-2:])
        return _dying_or(Claimed(kept), dying)

    return many(command, [*looks, claiming, *looks, *_policy_words(command)], decode)


def _policy_words(command: types.XClaim | types.XAutoClaim) -> list[Words]:
    """What `_part` is given last."""
    kept: Words = ("HMGET", auxiliary_key(command.stream, "m"), "g", *policy_fields(command.group))
    return [kept, ("TIME",)]


def _part(
    command: types.XClaim | types.XAutoClaim,
    given: Sequence[Delivered],
    before: Mapping[int, BackendPending],
    kept: Sequence[bytes | None],
    now: Sequence[bytes],
) -> tuple[Sequence[Delivered], Dying | None]:
    """What is delivered, and what is too old for that, or was delivered too often."""
    generation, *values = kept
    policy = policy_from(values)
    letters, most, max_age_ms = policy["dead_letter_stream"], policy["max_deliveries"], policy["max_age_ms"]
    oldest = _oldest(max_age_ms, now)
    if letters is None or most is None:
        most = DELIVERY_COUNT_MAX
    due: dict[int, Due] = {}
    for entry in given:
        was = before.get(entry.id)
        if was is None or entry.text is None or entry.delivery_count <= was.deliveries < DELIVERY_COUNT_MAX:
            continue
        if entry.id < oldest or entry.delivery_count > most:
            reason = EXPIRED if entry.id < oldest else TOO_MANY
            due[entry.id] = Due(entry.id, entry.text, was.consumer, was.deliveries, reason)
    if not due:
        return given, None
    name = "" if generation is None else generation.decode()
    dying = Dying(command.stream, command.group, letters or "", name, list(due.values()), None)
    return [entry for entry in given if entry.id not in due], dying


def _oldest(max_age_ms: int | None, now: Sequence[bytes]) -> int:
    """The lowest ID that is not too old, by the reply to TIME."""
    now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
    return 0 if max_age_ms is None else ids.make(max(0, now_ms - max_age_ms), 0)


def _dying_or(reply: R, dying: Dying | None) -> R | Dying:
    return reply if dying is None else msgspec.structs.replace(dying, reply=reply)


def _claim_options(claim: types.Claim) -> list[Word]:
    options: list[Word] = []
    for word, value in (("IDLE", claim.idle_ms), ("TIME", claim.time_ms), ("RETRYCOUNT", claim.retry_count)):
        options += [] if value is None else [word, value]
    options += ["FORCE"] if claim.force else []
    options += ["JUSTID"] if claim.just_ids else []
    return options + ([] if claim.last_id is None else ["LASTID", ids.format(claim.last_id)])


@sends(types.XAutoClaim)
def _auto_claim(command: types.XAutoClaim, _: WriteOrigin) -> BackendRequest:
    start = ids.format(command.start)
    arguments = (command.group, command.consumer, command.min_idle_ms, start, command.count)
    just_ids = command.just_ids

    def decode(results: Sequence[Any]) -> AutoClaimed | Dying:
        following, rows, deleted, *looked = results[0]
        before, after = map(_by_id, looked)
        given = replies.with_counts(replies.claimed_of(rows, just_ids=just_ids), before, after)
        kept, dying = _part(command, given, before, *results[1:])
        claimed = AutoClaimed(replies.parse(following), kept, list(map(replies.parse, deleted)))
        return _dying_or(claimed, dying)

    keys = (command.stream, auxiliary_key(command.stream, "m"))
    claiming = ("EVAL", _AUTO_CLAIM, len(keys), *keys, *arguments, int(just_ids))
    return many(command, [claiming, *_policy_words(command)], decode)


# XAUTOCLAIM, and what was pending of it before and after, which Redis does not say. What comes back later is
# not idle: it stays as it was. A paused group gives nothing.
_AUTO_CLAIM: Final = """
local group, count = ARGV[1], ARGV[5]
if redis.call('HGET', KEYS[2], 'paused/' .. group) then
  redis.call('XGROUP', 'CREATECONSUMER', KEYS[1], group, ARGV[2])
  return { '0-0', {}, {}, {}, {} }
end
local before = redis.call('XPENDING', KEYS[1], group, 'IDLE', ARGV[3], ARGV[4], '+', count)
local words = { 'XAUTOCLAIM', KEYS[1], group, ARGV[2], ARGV[3], ARGV[4], 'COUNT', count }
if ARGV[6] == '1' then words[#words + 1] = 'JUSTID' end
local reply = redis.call(unpack(words))
local deferred = {}
for _, row in ipairs(before) do
  if row[2] == 'weir:deferred' then deferred[row[1]] = row end
end
local rows, after = {}, {}
for _, row in ipairs(reply[2]) do
  local id = type(row) == 'table' and row[1] or row
  local was = deferred[id]
  if was then
    local times = was[4] > 2 ^ 53 and '9223372036854775807' or was[4]
    local as_before = { 'IDLE', was[3], 'RETRYCOUNT', times, 'JUSTID' }
    redis.call('XCLAIM', KEYS[1], group, 'weir:deferred', 0, id, unpack(as_before))
  else
    rows[#rows + 1] = row
    after[#rows] = redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
  end
end
return { reply[1], rows, reply[3], before, after }
"""
