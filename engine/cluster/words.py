"""Commands of the engine on one stream as words for its server: entries, streams, lifetimes.

Knows: the arguments of Redis's commands, and which of them are one turn together.
Must never know: servers, connections, what is emulated by several requests (`gathering`).
"""

from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any, Final, TypeVar

import msgspec

from engine import errors, ids
from engine.cluster import replies, scripts
from engine.cluster.ends import CLOSED
from engine.cluster.kept import (
    DURABLE,
    HAD_GROUP,
    RETENTION,
    description_of,
    retention_from,
)
from engine.cluster.keys import auxiliary_key
from engine.cluster.origins import unnumbered
from engine.cluster.refusals import not_supported
from engine.cluster.routing import BackendRequest, Decode, Lane
from engine.cluster.scripts import ScriptCall, WriteOrigin
from engine.cluster.wire import Word, Words
from engine.commands import types
from engine.commands.base import Command, StreamCommand
from engine.commands.expiring import TIME_MS_MAX
from engine.commands.weir_commands import AddEach, DescribeArchived, DescribeEdges, Publish, PutMetadata
from engine.replies import Archived, Dropped, Entries, StreamDetail, StreamInfo, StreamUse

C = TypeVar("C", bound=Command)
Make = Callable[[Any, WriteOrigin], BackendRequest]

# What Weir keeps beside the streams: a name that no client can give a stream.
METADATA_KEY: Final = "weir/metadata"
_LONG_S: Final = 1 << 30
_ALL: Final = 10_000

_MAKERS: Final[dict[type[Command], Make]] = {}


def request(command: Command, origin: WriteOrigin) -> BackendRequest | None:
    """What is sent for the command, None where it takes more than one request. Raises EngineError."""
    make = _MAKERS.get(type(command))
    return None if make is None else make(command, origin)


def only_request(command: Command) -> BackendRequest:
    """The one request of a command that has one. Raises EngineError."""
    single = request(command, unnumbered())
    assert single is not None, "it is one request"
    return single


def sends(
    kind: type[C],
) -> Callable[[Callable[[C, WriteOrigin], BackendRequest]], Callable[[C, WriteOrigin], BackendRequest]]:
    """Register what makes the request of a kind of command, given the origin of a write."""

    def register(
        make: Callable[[C, WriteOrigin], BackendRequest],
    ) -> Callable[[C, WriteOrigin], BackendRequest]:
        _MAKERS[kind] = make
        return make

    return register


def one(
    command: StreamCommand, words: Words, decode: Callable[[Any], Any] = lambda reply: reply
) -> BackendRequest:
    """A request of one command."""
    return many(command, [words], lambda results: decode(results[0]))


def many(command: StreamCommand, commands: Sequence[Words], decode: Decode) -> BackendRequest:
    """A request of several commands in one turn."""
    lane = Lane.WRITE if command.changes else Lane.READ
    return BackendRequest(stream=command.stream, commands=commands, decode=decode, lane=lane)


def is_ok(_: object) -> bool:
    """OK, as the engine says it."""
    return True


# --- adding


@sends(types.XAdd)
def _xadd(command: types.XAdd, origin: WriteOrigin) -> BackendRequest:
    check_add(command)
    return _adding(command.stream, lambda of: scripts.add(command, of), origin)


def _adding(stream: str, make: Callable[[WriteOrigin], ScriptCall], origin: WriteOrigin) -> BackendRequest:
    """A request of a script that needs few keys while their slot moves."""

    def lighter() -> BackendRequest:
        plain = msgspec.structs.replace(origin, front="", number=0)
        return msgspec.structs.replace(by_script(stream, make(plain)), may_name_one=True)

    request = numbered(by_script(stream, make(origin)), origin)
    return msgspec.structs.replace(request, lighter=lighter, may_name_one=True)


def check_add(command: types.XAdd) -> None:
    """Raise what no script does."""
    if command.producer_key is not None:
        raise not_supported("an idempotent producer (IDMP)", "no XADD IDMP")
    if command.trim is not None:
        _check_refs(command.trim)


@sends(AddEach)
def _add_each(command: AddEach, origin: WriteOrigin) -> BackendRequest:
    return _adding(command.stream, lambda of: scripts.add_each(command, of), origin)


def publish(command: Publish, origin: WriteOrigin, *, has_slots: bool) -> BackendRequest:
    """Publish over several streams, which need one slot where a backend `has_slots`. Raises EngineError."""
    first = command.parts[0].stream
    return _adding(first, lambda of: scripts.publish(command, of, has_slots=has_slots), origin)


def numbered(request: BackendRequest, origin: WriteOrigin) -> BackendRequest:
    """The same, which the server does once."""
    return msgspec.structs.replace(request, number=origin.number)


def by_script(stream: str, call: ScriptCall, lane: Lane = Lane.WRITE) -> BackendRequest:
    """A request of one script."""
    decode = call.decode
    return BackendRequest(
        stream=stream,
        commands=[call.words],
        decode=lambda results: decode(results[0]),
        lane=lane,
        scripts=(call.script,),
    )


def join(requests: Sequence[BackendRequest]) -> BackendRequest:
    """Several requests as one turn, whose replies are a list."""
    commands = [words for request in requests for words in request.commands]

    def decode(results: Sequence[Any]) -> list[Any]:
        decoded, at = [], 0
        for request in requests:
            decoded.append(request.decode(results[at : at + len(request.commands)]))
            at += len(request.commands)
        return decoded

    lanes = {request.lane for request in requests}
    lane = Lane.READ if lanes == {Lane.READ} else Lane.WRITE
    texts = {script.digest: script for request in requests for script in request.scripts}
    # A reply in the place of a refusal is of one of them: a turn has it in none.
    return BackendRequest(
        stream=requests[0].stream,
        commands=commands,
        decode=decode,
        lane=lane,
        scripts=tuple(texts.values()),
    )


# --- beside the streams


@sends(PutMetadata)
def _put_metadata(command: PutMetadata, _: WriteOrigin) -> BackendRequest:
    change: Words = (
        ("HSET", METADATA_KEY, command.name, command.value)
        if command.value
        else ("HDEL", METADATA_KEY, command.name)
    )
    # Only events of streams and of keys as such are asked for, and a change of a hash is none of them.
    notify: list[Words] = [("EXPIRE", METADATA_KEY, _LONG_S), ("PERSIST", METADATA_KEY)]
    return BackendRequest(
        stream=METADATA_KEY,
        commands=[("HEXISTS", METADATA_KEY, command.name), change, *notify],
        decode=lambda results: bool(results[0]),
        lane=Lane.WRITE,
    )


def try_to_read(stream: str) -> Words:
    """Refused where the server's user may not use the keys of a stream; it reads nothing."""
    return ("EVAL", "return 1", 2, stream, auxiliary_key(stream, "m"))


def may_read(stream: str) -> BackendRequest:
    """Whether the server lets the gateway read this stream."""
    return BackendRequest(
        stream=stream,
        commands=[try_to_read(stream)],
        decode=lambda _: True,
        lane=Lane.READ,
        instead={"NOPERM": False},
    )


# --- removing


def _check_refs(trim: types.Trim) -> None:
    if trim.refs is not types.Refs.KEEP:
        remedy = "give the stream the retention keep_unacknowledged, or delete by references"
        raise not_supported("trimming by references", f"the server would look at each entry: {remedy}")


@sends(types.XTrim)
def _xtrim(command: types.XTrim, _: WriteOrigin) -> BackendRequest:
    _check_refs(command.trim)
    return by_script(command.stream, scripts.trim(command))


@sends(types.XDel)
def _xdel(command: types.XDel, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, scripts.delete_entries(command))


@sends(types.XDelEx)
def _xdelex(command: types.XDelEx, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, scripts.delete_each(command.stream, command.refs, command.ids))


# --- reading


@sends(types.XLen)
def _xlen(command: types.XLen, _: WriteOrigin) -> BackendRequest:
    return one(command, ("XLEN", command.stream))


@sends(types.XRange)
def _xrange(command: types.XRange, _: WriteOrigin) -> BackendRequest:
    start, end = ids.format(command.start), ids.format(command.end)
    between = (
        ("XREVRANGE", command.stream, end, start)
        if command.reverse
        else ("XRANGE", command.stream, start, end)
    )
    count = command.count
    if count is None and command.bytes_max is not None:
        count = _ALL
    # One more says whether there are more.
    bound: list[Word] = [] if count is None else ["COUNT", count + 1 if count else 0]

    def decode(rows: Any) -> Entries | None:  # noqa: ANN401 - as the server sent it
        return None if rows is None else replies.entries_of(rows, count, command.bytes_max)

    if command.reverse:
        return one(command, [*between, *bound], decode)
    look = by_script(command.stream, scripts.look(command.stream), Lane.READ)

    def decode_both(results: Sequence[Any]) -> Entries | None:
        last_live_id, found = look.decode(results[:1]), decode(results[1])
        if last_live_id is None or found is None:
            return found
        read_upto = found.last or max(command.start - 1, ids.ID_MIN)
        return msgspec.structs.replace(found, closed=last_live_id <= read_upto)

    return msgspec.structs.replace(look, commands=[*look.commands, [*between, *bound]], decode=decode_both)


@sends(DescribeEdges)
def edges(command: DescribeEdges, _: WriteOrigin) -> BackendRequest:
    """Where the stream begins and ends."""
    return by_script(command.stream, scripts.describe_edges(command, token_hex(8)), Lane.READ)


def _beside(name: str) -> list[Words]:
    """What XINFO does not say: when it expires, its memory by the server's estimate, its retention, its
    end, what it is of Durable Streams, how many entries for later it has, and what its groups need.
    """
    return [
        ("PEXPIRETIME", name),
        ("MEMORY", "USAGE", name),
        ("HMGET", auxiliary_key(name, "m"), *RETENTION, CLOSED, *DURABLE, HAD_GROUP),
        ("HLEN", auxiliary_key(name, "s")),
        ("EVAL", _OF_GROUPS, 2, name, auxiliary_key(name, "m")),
    ]


# Whether a group of a closed stream has still to read or to acknowledge; which one holds the first entry in
# spite of the limits, and the ID that it needs. How large the entries are is not asked.
_OF_GROUPS: Final = """
local set = redis.call('HMGET', KEYS[2], 'c', 'keep_unacknowledged', 'max_len', 'max_age_ms')
local closed, keeps, len, age = unpack(set)
local first = keeps and redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local oldest = age and redis.call('TIME')[1] * 1000 - age or 0
local is_long = len and redis.call('XLEN', KEYS[1]) > tonumber(len)
keeps = first and (is_long or tonumber(string.match(first[1], '%d+')) < oldest)
local found = { 0, '', '' }
for _, row in ipairs((closed or keeps) and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}) do
  local unread = redis.call('XRANGE', KEYS[1], '(' .. row[8], '+', 'COUNT', 1)[1]
  local needed = row[6] > 0 and redis.call('XPENDING', KEYS[1], row[2])[2] or unread and unread[1]
  if closed and needed then found[1] = 1 end
  local holds = keeps and needed and #redis.call('XRANGE', KEYS[1], '-', '(' .. needed, 'COUNT', 1) == 0
  if holds then found[2], found[3] = row[2], needed end
end
return found
"""


@sends(types.XInfoStream)
def _xinfo_stream(command: types.XInfoStream, _: WriteOrigin) -> BackendRequest:
    return describe_stream(command.stream, is_use=True)


def describe_stream(name: str, *, is_use: bool) -> BackendRequest:
    """XINFO STREAM; a list of streams `is_use` of none."""
    call = scripts.describe_edges(DescribeEdges(stream=name), token_hex(8), is_use=is_use)
    look = by_script(name, call, Lane.READ)
    commands: list[Words] = [("XINFO", "STREAM", name), *_beside(name), *look.commands]

    def decode(results: Sequence[Any]) -> StreamInfo:
        info, *beside, edges = results
        return replies.stream_info(info, look.decode([edges]), *beside)

    return msgspec.structs.replace(look, commands=commands, decode=decode)


@sends(DescribeArchived)
def _describe_archived(command: DescribeArchived, _: WriteOrigin) -> BackendRequest:
    """A server keeps no list of deleted entries."""
    name = command.stream
    look = edges(DescribeEdges(stream=name), unnumbered())
    kept: Words = ("HMGET", auxiliary_key(name, "m"), *RETENTION)

    def decode(results: Sequence[Any]) -> Archived | None:
        found, retention = look.decode(results[:1]), results[1]
        if found is None:
            return None
        archived_up_to = retention_from(retention)["archived_up_to"]
        return Archived(found.generation, found.removed_upto, archived_up_to)

    return msgspec.structs.replace(look, commands=[*look.commands, kept], decode=decode)


@sends(types.DescribeUse)
def _describe_use(command: types.DescribeUse, _: WriteOrigin) -> BackendRequest:
    """By the server's estimate, which counts what is beside the stream with its own keys."""
    name = command.stream
    commands: list[Words] = [("TYPE", name), ("MEMORY", "USAGE", name), ("OBJECT", "IDLETIME", name)]

    def decode(results: Sequence[Any]) -> StreamUse | None:
        kind, memory_bytes, idle_s = results
        return StreamUse(memory_bytes, 1_000 * idle_s) if kind == b"stream" else None

    return many(command, commands, decode)


def group_signs(stream: str) -> Words:
    """What `replies.GroupSigns` says, of each group in the order of XINFO GROUPS. Only a list of all
    consumers says which are there.
    """
    return ("EVAL", _SIGNS, 2, stream, auxiliary_key(stream, "m"))


_SIGNS: Final = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local is_closed = redis.call('HEXISTS', KEYS[2], 'c')
local function least(one, other)
  if not other or other < 0 then return one end
  return one < 0 and other or math.min(one, other)
end
local found = {}
for i, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local hidden, seen, active = 0, -1, -1
  for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group[2])) do
    if row[2] == 'weir:released' or row[2] == 'weir:deferred' then
      hidden = hidden + 1
    else
      seen, active = least(seen, row[6]), least(active, row[8])
    end
  end
  local failed_at = tonumber(redis.call('HGET', KEYS[2], 'failed/' .. group[2]))
  local unread = #redis.call('XRANGE', KEYS[1], '(' .. group[8], '+', 'COUNT', 1)
  found[i] = { hidden, seen, active, failed_at and math.max(0, now_ms - failed_at) or -1, unread, is_closed }
end
return found
"""


@sends(types.XInfoStreamFull)
def _xinfo_full(command: types.XInfoStreamFull, _: WriteOrigin) -> BackendRequest:
    name, count = command.stream, 0 if command.count is None else command.count
    look = edges(DescribeEdges(stream=name), unnumbered())
    commands: list[Words] = [
        ("XINFO", "STREAM", name, "FULL", "COUNT", count),
        *_beside(name),
        ("XRANGE", name, "-", "+", "COUNT", 1),
        ("XREVRANGE", name, "+", "-", "COUNT", 1),
        ("HGETALL", auxiliary_key(name, "m")),
        group_signs(name),
        *look.commands,
    ]

    def decode(results: Sequence[Any]) -> StreamDetail:
        info, *beside, first, last, kept, signs, edges = results
        described = replies.stream_info(
            {**info, b"first-entry": next(iter(first), None), b"last-entry": next(iter(last), None)},
            look.decode([edges]),
            *beside,
        )
        return replies.stream_detail(info, described, kept, signs)

    return msgspec.structs.replace(look, commands=commands, decode=decode)


# --- streams


@sends(types.Delete)
def _delete(command: types.Delete, _: WriteOrigin) -> BackendRequest:
    expected = description_of(command.expected)
    drops = command.drops_schedules
    calls = {name: scripts.delete_stream(name, expected, drops_schedules=drops) for name in command.streams}
    each = join([by_script(name, call) for name, call in calls.items()])
    return msgspec.structs.replace(each, decode=lambda results: sum_deleted(each.decode(results)))


def sum_deleted(replies: Sequence[int | Dropped]) -> int | Dropped:
    """How many of the streams there were, each with its reply, and how many schedules have gone with them."""
    count = sum(1 if isinstance(one, Dropped) else one for one in replies)
    return scripts.with_dropped(count, sum(one.schedules for one in replies if isinstance(one, Dropped)))


@sends(types.Exists)
def _exists(command: types.Exists, _: WriteOrigin) -> BackendRequest:
    return BackendRequest(
        stream=command.streams[0],
        commands=[("TYPE", name) for name in command.streams],
        decode=lambda names: sum(name == b"stream" for name in names),
        lane=Lane.READ,
    )


@sends(types.Type)
def _type(command: types.Type, _: WriteOrigin) -> BackendRequest:
    return one(command, ("TYPE", command.stream), lambda reply: "stream" if reply == b"stream" else "none")


@sends(types.Expire)
def _expire(command: types.Expire, origin: WriteOrigin) -> BackendRequest:
    # The server says so too, but not of a key that is not there.
    if command.ms + (origin.now_ms if command.relative else 0) > TIME_MS_MAX:
        raise errors.invalid_expire_time(command.named)
    conditions = [flag.name or "" for flag in types.ExpireCondition if flag in command.condition]
    named = "PEXPIRE" if command.relative else "PEXPIREAT"
    call = scripts.change_lifetime(command.stream, [named, command.ms, *conditions])
    return by_script(command.stream, call)


@sends(types.Persist)
def _persist(command: types.Persist, _: WriteOrigin) -> BackendRequest:
    return by_script(command.stream, scripts.change_lifetime(command.stream, ["PERSIST"]))


@sends(types.TimeToLive)
def _time_to_live(command: types.TimeToLive, _: WriteOrigin) -> BackendRequest:
    time_to_live = ("PEXPIRETIME" if command.absolute else "PTTL", command.stream)
    commands: list[Words] = [("TYPE", command.stream), time_to_live]
    return many(command, commands, lambda results: results[1] if results[0] == b"stream" else -2)


@sends(types.Rename)
def _rename(command: types.Rename, origin: WriteOrigin) -> BackendRequest:
    return _under(command, origin, "RENAME" if command.replace else "RENAMENX")


@sends(types.Copy)
def _copy(command: types.Copy, origin: WriteOrigin) -> BackendRequest:
    if command.stream == command.target:
        raise errors.same_stream()
    return _under(command, origin, "COPY", *(("REPLACE",) if command.replace else ()))


def _under(command: types.Rename | types.Copy, origin: WriteOrigin, *words: str) -> BackendRequest:
    call = scripts.rename(command.stream, command.target, [origin.generation, *words])
    return by_script(command.stream, call)
