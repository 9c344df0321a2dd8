"""Parses the commands on groups: XGROUP, XACK, XPENDING, XCLAIM and others.

Knows: their words, order of checks and error texts (docs/semantics.md, "Groups", "Claiming"). Where Redis
reads words only after it has found key and group, wrong ones are refused behind a look for these.
Must never know: what is in a group.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from app.redis import replies
from app.redis.parsers.parse_entries import ids_block
from app.redis.parsers.words import (
    INTEGER_MAX,
    Options,
    Words,
    consumer_name,
    echo,
    entry_id,
    entry_ids,
    group_name,
    id_or_edge,
    integer,
    integer_from,
    range_end,
    range_start,
    stream_name,
    subcommand_syntax,
    take_option,
    text,
)
from app.redis.request import CommandRequest, for_engine, refused_behind_group, refused_behind_key
from app.redis.resp import Resp
from engine import EngineError, errors, ids
from engine.commands import types
from engine.commands.weir_commands import ExamineGroup, Extend, UpdateGroup
from engine.replies import GroupFacts, Presence, Reply
from engine.why import explain

# Redis's bound on XAUTOCLAIM's COUNT: what its array of deleted IDs, 16 bytes each, may take.
_AUTOCLAIM_COUNT_MAX: Final = INTEGER_MAX // 16
_NACK_MODES: Final = {
    b"SILENT": types.NackMode.SILENT,
    b"FAIL": types.NackMode.FAIL,
    b"FATAL": types.NackMode.FATAL,
}


def xack(words: Words) -> CommandRequest:
    """XACK key group id [id …]."""
    stream, group = stream_name(words.take()), group_name(words.take())
    try:
        return for_engine(types.XAck(stream=stream, group=group, ids=entry_ids(words.rest())), replies.count)
    except EngineError as refusal:
        return refused_behind_group([stream], group, refusal, missing=lambda *_: 0)


def xackdel(words: Words) -> CommandRequest:
    """XACKDEL key group [KEEPREF|DELREF|ACKED] IDS numids id …."""
    key, group = words.take_many(2)
    words_of_ids, refs = ids_block(words)
    stream, name = stream_name(key), group_name(group)
    try:
        return for_engine(types.XAckDel(stream=stream, group=name, ids=entry_ids(words_of_ids), refs=refs))
    except EngineError as refusal:
        return refused_behind_group([stream], name, refusal, missing=lambda *_: [-1] * len(words_of_ids))


def xnack(words: Words) -> CommandRequest:
    """XNACK key group <SILENT|FAIL|FATAL> IDS numids id … [RETRYCOUNT n] [FORCE]."""
    stream, group = stream_name(words.take()), group_name(words.take())
    try:
        return for_engine(types.XNack(stream=stream, group=group, nack=_nack(words)[0]), replies.done_count)
    except EngineError as refusal:
        return refused_behind_group([stream], group, refusal, _no_group(group))


def weir_nack(words: Words) -> CommandRequest:
    """WEIR.NACK key group <SILENT|FAIL|FATAL> [DELAY milliseconds] [CONSUMER consumer] IDS numids id …
    [RETRYCOUNT n] [FORCE]: how many were given back, with a consumer of those that it holds.
    """
    stream, group = stream_name(words.take()), group_name(words.take())
    nack, consumer = _nack(words, of_weir=True)
    command = types.XNack(stream=stream, group=group, nack=nack, consumer=consumer)
    return for_engine(command, replies.done_count)


def extend(words: Words) -> CommandRequest:
    """WEIR.EXTEND key group consumer id [id …]: the IDs that the consumer holds from now on."""
    stream, group = stream_name(words.take()), group_name(words.take())
    consumer = consumer_name(words.take())
    command = Extend(stream=stream, group=group, consumer=consumer, ids=entry_ids(words.rest()))
    return for_engine(command, replies.done_ids)


def _set_paused(words: Words, *, paused: bool) -> CommandRequest:
    """WEIR.PAUSE key group: the group delivers nothing until WEIR.RESUME key group."""
    stream, group = stream_name(words.take()), group_name(words.take())
    return for_engine(UpdateGroup(stream=stream, group=group, policy={"paused": paused}))


PAUSE: Final = partial(_set_paused, paused=True)
RESUME: Final = partial(_set_paused, paused=False)


def _number(word: bytes) -> int | None:
    return integer_from(word, 0, INTEGER_MAX, "ERR a number of a policy is 0 or more, 0 for none") or None


# An empty word, or 0, takes away what the option sets.
_POLICY: Final[Options] = {
    b"ACKTIMEOUT": ("ack_timeout_ms", _number),
    b"CONSUMERTIMEOUT": ("consumer_timeout_ms", _number),
    b"MAXAGE": ("max_age_ms", _number),
    b"DEADLETTER": ("dead_letter_stream", lambda word: stream_name(word) if word else None),
    b"MAXDELIVERIES": ("max_deliveries", _number),
    b"ORDEREDBY": ("ordered_by", lambda word: text(word, "the name of a field") or None),
    b"INFLIGHTPERKEY": ("in_flight_per_key", integer),
}


def set_group(words: Words) -> CommandRequest:
    """WEIR.GROUP SET key group [ACKTIMEOUT ms] [CONSUMERTIMEOUT ms] [MAXAGE ms] [DEADLETTER key
    [MAXDELIVERIES n]] [ORDEREDBY field] [INFLIGHTPERKEY n]: what is named of the group's policy.
    """
    _, key, named = words.take_many(3)
    stream, group = stream_name(key), group_name(named)
    policy: dict[str, Any] = {}
    while words.left:
        take_option(words, _POLICY, policy)
    letters = policy.get("dead_letter_stream")
    if letters is None and policy.get("max_deliveries"):
        raise errors.invalid("ERR MAXDELIVERIES goes with DEADLETTER key")
    if letters == stream:
        raise errors.invalid("ERR a dead letter in the same stream would be read again")
    if "dead_letter_stream" in policy:
        policy.setdefault("max_deliveries", None)
    request = for_engine(UpdateGroup(stream=stream, group=group, policy=policy))
    if letters is None:
        return request
    return replace(request, streams=(stream, letters), target_actions=("write",))


def _no_group(group: str) -> Callable[[str, Presence], EngineError]:
    return lambda stream, _: errors.no_group(stream, group)


def _nack(words: Words, *, of_weir: bool = False) -> tuple[types.Nack, str | None]:
    mode = _NACK_MODES.get(words.option())
    if mode is None:
        raise errors.invalid("ERR mode must be SILENT, FAIL, or FATAL")
    retry_count: int | None = None
    force = False
    delay_ms = 0
    consumer: str | None = None
    named: list[bytes] | None = None
    while words.left:
        if words.took(b"IDS", values=1):
            numids = integer_from(words.take(), 1, INTEGER_MAX, "ERR numids must be a positive integer")
            if numids > words.left:
                raise errors.invalid("ERR number of IDs doesn't match numids")
            named = list(words.take_many(numids))
        elif words.took(b"RETRYCOUNT", values=1):
            refusal = "ERR Invalid RETRYCOUNT value, must be >= 0"
            retry_count = integer_from(words.take(), 0, INTEGER_MAX, refusal)
        elif words.took(b"FORCE"):
            force = True
        elif of_weir and words.took(b"DELAY", values=1):
            refusal = (
                f"ERR DELAY is a number of milliseconds up to {types.DELAY_MS_MAX}, which are seven days"
            )
            delay_ms = integer_from(words.take(), 0, types.DELAY_MS_MAX, refusal)
        elif of_weir and words.took(b"CONSUMER", values=1):
            consumer = consumer_name(words.take())
        else:
            raise errors.invalid(f"ERR Unrecognized XNACK option '{echo(words.take())}'")
    if named is None:
        raise errors.invalid("ERR syntax error, expected IDS keyword")
    if force and consumer is not None:
        raise errors.invalid(
            "ERR FORCE does not go with CONSUMER, since none holds what it takes: leave one out"
        )
    given = types.Nack(
        ids=entry_ids(named), mode=mode, retry_count=retry_count, force=force, delay_ms=delay_ms
    )
    return given, consumer


def xpending(words: Words) -> CommandRequest:
    """XPENDING key group [[IDLE min] start end count [consumer]]."""
    arguments = words.left
    if arguments != 2 and not 5 <= arguments <= 8:
        raise errors.syntax_error()
    key, group = words.take_many(2)
    if not words.left:
        return for_engine(types.XPending(stream=stream_name(key), group=group_name(group)))
    min_idle_ms = 0
    if words.took(b"IDLE"):
        min_idle_ms = max(0, integer(words.take()))
        if arguments < 7:
            raise errors.syntax_error()
    start, end, count_word = words.take_many(3)
    count = max(0, integer(count_word))
    lowest, highest = range_start(start), range_end(end)
    # Words behind the consumer are not looked at: Redis's way.
    consumer = consumer_name(words.take()) if words.left else None
    return for_engine(
        types.XPendingRange(
            stream=stream_name(key),
            group=group_name(group),
            start=lowest,
            end=highest,
            count=count,
            consumer=consumer,
            min_idle_ms=min_idle_ms,
        )
    )


def xclaim(words: Words) -> CommandRequest:
    """XCLAIM key group consumer min-idle id [id …] [options]; all but the names waits for the group."""
    stream, group, consumer = stream_name(words.take()), group_name(words.take()), consumer_name(words.take())
    try:
        claim = _claim(words)
    except EngineError as refusal:
        return refused_behind_group([stream], group, refusal, _no_group(group))
    shape = replies.just_ids if claim.just_ids else replies.resp
    return for_engine(types.XClaim(stream=stream, group=group, consumer=consumer, claim=claim), shape)


def _claim(words: Words) -> types.Claim:
    min_idle_ms = max(0, integer(words.take(), "ERR Invalid min-idle-time argument for XCLAIM"))
    claimed = _leading_ids(words)
    idle_ms: int | None = None
    time_ms: int | None = None
    retry_count: int | None = None
    last_id: int | None = None
    flags: set[bytes] = set()
    while words.left:
        if words.peek().upper() in {b"FORCE", b"JUSTID"}:
            flags.add(words.option())
        elif words.took(b"IDLE", values=1):
            idle_ms, time_ms = integer(words.take(), "ERR Invalid IDLE option argument for XCLAIM"), None
        elif words.took(b"TIME", values=1):
            idle_ms, time_ms = None, integer(words.take(), "ERR Invalid TIME option argument for XCLAIM")
        elif words.took(b"RETRYCOUNT", values=1):
            given = integer(words.take(), "ERR Invalid RETRYCOUNT option argument for XCLAIM")
            retry_count = given if given >= 0 else None
        elif words.took(b"LASTID", values=1):
            last_id = entry_id(words.take())
        else:
            raise errors.invalid(f"ERR Unrecognized XCLAIM option '{echo(words.take())}'")
    return types.Claim(
        ids=claimed,
        min_idle_ms=min_idle_ms,
        idle_ms=idle_ms,
        time_ms=time_ms,
        retry_count=retry_count,
        force=b"FORCE" in flags,
        just_ids=b"JUSTID" in flags,
        last_id=last_id,
    )


def _leading_ids(words: Words) -> list[int]:
    """As many of the next words as are IDs; the first that is none begins the options."""
    entry_ids: list[int] = []
    while words.left:
        next_id = ids.parse(words.peek().decode("latin-1"))
        if next_id is None:
            break
        entry_ids.append(next_id)
        words.take()
    return entry_ids


def xautoclaim(words: Words) -> CommandRequest:
    """XAUTOCLAIM key group consumer min-idle start [COUNT n] [JUSTID]; all of it comes before the key."""
    key, group, consumer = words.take_many(3)
    min_idle_ms = max(0, integer(words.take(), "ERR Invalid min-idle-time argument for XAUTOCLAIM"))
    start = range_start(words.take())
    count, just_ids = 100, False
    while words.left:
        if words.took(b"COUNT", values=1):
            count = integer_from(words.take(), 1, _AUTOCLAIM_COUNT_MAX, "ERR COUNT must be > 0")
        elif words.took(b"JUSTID"):
            just_ids = True
        else:
            raise errors.syntax_error()
    command = types.XAutoClaim(
        stream=stream_name(key),
        group=group_name(group),
        consumer=consumer_name(consumer),
        min_idle_ms=min_idle_ms,
        start=start,
        count=count,
        just_ids=just_ids,
    )
    return for_engine(command, replies.just_ids if just_ids else replies.resp)


def xgroup_create(words: Words) -> CommandRequest:
    """XGROUP CREATE key group <id|$> [MKSTREAM] [ENTRIESREAD n]."""
    written = words.take()
    key, group, start = words.take_many(3)
    many = words.left > 3
    mkstream = False
    entries_read: int | None = None
    while words.left:
        if words.took(b"MKSTREAM"):
            mkstream = True
        elif words.took(b"ENTRIESREAD", values=1):
            entries_read = _entries_read(words.take())
        else:
            raise subcommand_syntax("xgroup", written)
    stream, name = stream_name(key), group_name(group)
    try:
        # Redis dispatches on the number of words, after it has found the key.
        if many:
            raise subcommand_syntax("xgroup", written)
        first = _group_start(start, edges=False)
    except EngineError as refusal:
        if mkstream:
            raise
        return refused_behind_key(stream, refusal, missing=errors.key_required(stream))
    return for_engine(
        types.XGroupCreate(
            stream=stream, group=name, start=first, mkstream=mkstream, entries_read=entries_read
        )
    )


def xgroup_setid(words: Words) -> CommandRequest:
    """XGROUP SETID key group <id|$|-|+> [ENTRIESREAD n]."""
    written = words.take()
    key, group, start = words.take_many(3)
    many = words.left > 2
    entries_read: int | None = None
    while words.left:
        if not words.took(b"ENTRIESREAD", values=1):
            raise subcommand_syntax("xgroup", written)
        entries_read = _entries_read(words.take())
    stream, name = stream_name(key), group_name(group)
    try:
        if many:
            raise subcommand_syntax("xgroup", written)
        first = _group_start(start, edges=True)
    except EngineError as refusal:
        return refused_behind_group([stream], name, refusal, _missing_in_xgroup(name))
    return for_engine(types.XGroupSetId(stream=stream, group=name, start=first, entries_read=entries_read))


def _missing_in_xgroup(group: str) -> Callable[[str, Presence], EngineError]:
    return lambda stream, presence: (
        errors.key_required(stream)
        if presence is Presence.NO_STREAM
        else errors.no_group_for_key(stream, group)
    )


def _entries_read(word: bytes) -> int | None:
    number = integer(word)
    if number < -1:
        raise errors.invalid("ERR value for ENTRIESREAD must be positive or -1")
    return None if number == -1 else number


def _group_start(word: bytes, *, edges: bool) -> int | types.Cursor:
    if word == b"$":
        return types.Cursor.LATEST
    return id_or_edge(word) if edges else entry_id(word)


def xgroup_destroy(words: Words) -> CommandRequest:
    """XGROUP DESTROY key group."""
    _, key, group = words.rest()
    return for_engine(types.XGroupDestroy(stream=stream_name(key), group=group_name(group)), replies.count)


def _xgroup_consumer(
    words: Words, kind: type[types.XGroupCreateConsumer | types.XGroupDelConsumer]
) -> CommandRequest:
    """XGROUP CREATECONSUMER key group consumer, and DELCONSUMER."""
    _, key, group, consumer = words.rest()
    stream, name = stream_name(key), group_name(group)
    return for_engine(kind(stream=stream, group=name, consumer=consumer_name(consumer)), replies.count)


XGROUP_CREATECONSUMER: Final = partial(_xgroup_consumer, kind=types.XGroupCreateConsumer)
XGROUP_DELCONSUMER: Final = partial(_xgroup_consumer, kind=types.XGroupDelConsumer)


def why(words: Words) -> CommandRequest:
    """WEIR.WHY key group [consumer]: why the group delivers nothing. The reply has for each reason its word,
    a sentence, and what to do.
    """
    key, group = words.take_many(2)
    stream, name = stream_name(key), group_name(group)
    consumer = consumer_name(words.take()) if words.left else None
    if words.left:
        raise errors.syntax_error()

    def shown(reply: Reply) -> Resp:
        assert isinstance(reply, GroupFacts), "examining answers facts"
        return [
            [one.code.encode(), one.detail.encode(), one.remedy.redis.encode()]
            for one in explain(reply, stream, name, consumer)
        ]

    return for_engine(ExamineGroup(stream=stream, group=name, consumer=consumer), shown)
