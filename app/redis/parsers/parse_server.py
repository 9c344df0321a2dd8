"""Parses XINFO, commands on the whole keyspace, CONFIG, and commands that need no engine.

Knows: the words and error texts of DEL, EXISTS, TYPE, KEYS, SCAN, CONFIG, PING, TIME and their like.
Must never know: the bounds of a setting, what is in a stream.

**The cursor of SCAN.** Redis's cursors are numbers, and clients make numbers of them, also in JavaScript. A
name doesn't fit in one, and a count of names would skip one whenever an earlier one is deleted. So a cursor
is the number of a bookmark, and a bookmark is the last name of the page before. A page is the names after it:
a name that stays is returned exactly once, even if others are created and deleted meanwhile. Bookmarks can be
used again, so a step can be repeated. The oldest are dropped beyond a limit, and all of them by a restart: a
scan that comes back with a dropped one begins again. It returns some names twice, as Redis may too, but none
is lost.
"""

import random
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Final

from app.glob import Glob
from app.redis import replies
from app.redis.parsers.words import (
    INTEGER_MAX,
    Words,
    echo,
    group_name,
    integer,
    integer_from,
    stream_name,
    stream_names,
    subcommand_syntax,
    timeout_ms,
    wrong_arity,
)
from app.redis.request import CommandRequest, Visible, at_once, for_engine, for_names
from app.redis.resp import Pairs, Resp
from engine import EngineError, errors
from engine.commands import types
from engine.replies import Listing, NamedValues, Reply

# 4 MiB of the longest names; each is one page of one scan under way.
_BOOKMARKS_MAX: Final = 8_192
# Half of the integers that JavaScript represents exactly; the other half is enough for counting.
_FIRST_MAX: Final = 1 << 52
_SETTINGS: Final = frozenset(
    {"stream-node-max-bytes", "stream-node-max-entries", "stream-idmp-duration", "stream-idmp-maxsize"}
)
# What CONFIG GET shows beside them: the gateway's own settings, which are given at its start.
FIXED_SETTINGS: Final = frozenset(
    {
        *("appendfsync", "appendonly", "cluster-enabled", "databases", "latency-monitor-threshold"),
        *("maxclients", "maxmemory", "maxmemory-policy", "port", "proto-max-bulk-len", "save"),
        *("slowlog-log-slower-than", "slowlog-max-len", "timeout"),
    }
)
_EVENTS_SETTING: Final = "notify-keyspace-events"
_MEMORY_SETTING: Final = "stream-node-max-bytes"
_MEMORY: Final = re.compile(r"([0-9]{1,20})(b|k|kb|m|mb|g|gb)?", re.IGNORECASE)
_MEMORY_UNITS: Final = {
    "": 1, "b": 1, "k": 1_000, "kb": 1 << 10, "m": 1_000_000, "mb": 1 << 20, "g": 1_000_000_000, "gb": 1 << 30
}  # fmt: skip
_CURSOR: Final = re.compile(rb"[0-9]{1,20}")
_CURSOR_MAX: Final = (1 << 64) - 1
_RANDOM_NAMES_MAX: Final = 100
_SCAN_COUNT_DEFAULT: Final = 10
# The cost of a page is its number of names.
_SCAN_COUNT_MAX: Final = 10_000
# The length of the longest name. Matching costs the length of the pattern times that of each name.
PATTERN_BYTES_MAX: Final = 512


class Bookmarks:
    """Numbers for names. Two gateways have two of these: a scan stays with one."""

    __slots__ = ("_last", "_lock", "_names")

    def __init__(self) -> None:
        # Not from 0: a cursor from before a restart must not match a new bookmark, which would skip names.
        self._last = secrets.randbelow(_FIRST_MAX)
        self._names: OrderedDict[int, str] = OrderedDict()
        # Threads write long replies, and each page needs a number of its own.
        self._lock = threading.Lock()

    def put(self, name: str) -> int:
        """The number, above 0, that stands for `name` from now on."""
        with self._lock:
            self._last += 1
            self._names[self._last] = name
            if len(self._names) > _BOOKMARKS_MAX:
                self._names.popitem(last=False)
            return self._last

    def find(self, number: int) -> str | None:
        """The name of that number; None for 0, where every scan begins, and for an unknown number."""
        return self._names.get(number)


_BOOKMARKS: Final = Bookmarks()


def xinfo_stream(words: Words) -> CommandRequest:
    """XINFO STREAM key [FULL [COUNT n]]; the options are looked at after the key."""
    written, stream = words.take(), stream_name(words.take())
    if not words.left:
        return for_engine(types.XInfoStream(stream=stream))
    try:
        count = _full_count(words, written)
    except EngineError as caught:
        refusal = caught

        def refuse(_: Reply) -> Resp:
            raise refusal

        return for_engine(types.XInfoStream(stream=stream), refuse)
    return for_engine(types.XInfoStreamFull(stream=stream, count=count))


def _full_count(words: Words, written: bytes) -> int | None:
    """The number of entries that FULL shows, None for all."""
    if words.left not in {1, 3} or words.option() != b"FULL":
        raise subcommand_syntax("xinfo", written)
    if not words.left:
        return 10
    if words.option() != b"COUNT":
        raise subcommand_syntax("xinfo", written)
    count = integer(words.take())
    if count < 0:
        return 10
    return count or None


def xinfo_groups(words: Words) -> CommandRequest:
    """XINFO GROUPS key."""
    _, key = words.rest()
    return for_engine(types.XInfoGroups(stream=stream_name(key)))


def xinfo_consumers(words: Words) -> CommandRequest:
    """XINFO CONSUMERS key group."""
    _, key, group = words.rest()
    return for_engine(types.XInfoConsumers(stream=stream_name(key), group=group_name(group)))


def delete(words: Words) -> CommandRequest:
    """DEL key [key …]; UNLINK is the same."""
    return for_engine(types.Delete(streams=stream_names(words.rest())), replies.count)


def exists(words: Words) -> CommandRequest:
    """EXISTS and TOUCH key [key …]; a key that is named twice counts twice."""
    return for_engine(types.Exists(streams=stream_names(words.rest())), replies.count)


def type_of(words: Words) -> CommandRequest:
    """TYPE key."""
    return for_engine(types.Type(stream=stream_name(words.take())))


def dbsize(_: Words) -> CommandRequest:
    """DBSIZE."""
    return for_engine(types.DbSize(), replies.count)


def flushall(words: Words) -> CommandRequest:
    """FLUSHALL [ASYNC|SYNC]."""
    if words.left > 1 or (words.left and words.option() not in {b"ASYNC", b"SYNC"}):
        raise errors.syntax_error()
    return for_engine(types.FlushAll())


def keys(words: Words) -> CommandRequest:
    """KEYS pattern."""
    glob = _glob(words.take())

    def shape(reply: Reply, visible: Visible) -> Resp:
        assert isinstance(reply, Listing), "ListStreams lists"
        return _matching(reply.names, glob, visible)

    return for_names(types.ListStreams(prefix=_prefix(glob)), shape)


def randomkey(_: Words) -> CommandRequest:
    """RANDOMKEY: one of those that the caller may see."""

    def shape(reply: Reply, visible: Visible) -> Resp:
        assert isinstance(reply, Listing), "ListStreams lists"
        return next((name.encode() for name in reply.names if visible(name)), None)

    # More than one: some may have expired.
    return for_names(types.ListStreams(at=random.random()), shape, names_max=_RANDOM_NAMES_MAX)  # noqa: S311 - no secret


def scan(words: Words) -> CommandRequest:
    """SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]."""
    after = _BOOKMARKS.find(_cursor(words.take()))
    glob, count, streams_too = Glob(b"*"), _SCAN_COUNT_DEFAULT, True
    while words.left:
        if words.took(b"COUNT", values=1):
            count = integer(words.take())
            if count < 1:
                raise errors.syntax_error()
        elif words.took(b"MATCH", values=1):
            glob = _glob(words.take())
        elif words.took(b"TYPE", values=1):
            # All keys are streams: no key has another type.
            streams_too = words.take().lower() == b"stream"
        else:
            raise errors.syntax_error()

    count = min(count, _SCAN_COUNT_MAX)

    def shape(reply: Reply, visible: Visible) -> Resp:
        assert isinstance(reply, Listing), "ListStreams lists"
        # Hidden names count for nothing: a page that ended because of them would show that there are some.
        readable = filter(visible, reply.names)
        page = [*islice(readable, count)]
        cursor = 0 if next(readable, None) is None else _BOOKMARKS.put(page[-1])
        found = _matching(page, glob, visible) if streams_too else []
        return [b"%d" % cursor, found]

    # One more says whether there are more.
    return for_names(types.ListStreams(prefix=_prefix(glob), after=after), shape, count + 1)


def _cursor(word: bytes) -> int:
    if not _CURSOR.fullmatch(word) or int(word) > _CURSOR_MAX:
        raise errors.invalid("ERR invalid cursor")
    return int(word)


def _glob(pattern: bytes) -> Glob:
    if len(pattern) > PATTERN_BYTES_MAX:
        raise errors.invalid(f"ERR pattern too long: a pattern has at most {PATTERN_BYTES_MAX} bytes")
    return Glob(pattern)


def _prefix(glob: Glob) -> str:
    """The prefix of every matching name, cut to whole characters."""
    return glob.prefix.decode(errors="ignore")


def _matching(names: Sequence[str], glob: Glob, visible: Visible) -> list[Resp]:
    raw = ((name, name.encode()) for name in names)
    return [word for name, word in raw if glob.matches(word) and visible(name)]


def config_get(words: Words) -> CommandRequest:
    """CONFIG GET pattern [pattern …]: what exists of Redis's settings; other names give nothing."""
    words.take()
    globs = [_glob(pattern.lower()) for pattern in words.rest()]

    def shape(reply: Reply) -> Resp:
        assert isinstance(reply, NamedValues), "ConfigGet gives the settings"
        named = [(name.encode(), str(value).encode()) for name, value in reply.values]
        shown = [pair for pair in named if any(glob.matches(pair[0]) for glob in globs)]
        return Pairs(part for pair in shown for part in pair)

    return for_engine(types.ConfigGet(), shape)


def config_set(words: Words) -> CommandRequest:
    """CONFIG SET name value [name value …]: settings of streams alone; all of them or none."""
    words.take()
    if words.left % 2:
        raise errors.syntax_error()
    values: dict[str, str] = {}
    given = words.rest()
    for raw_name, raw_value in zip(given[::2], given[1::2], strict=True):
        name = raw_name.decode(errors="replace").lower()
        if name == _EVENTS_SETTING and raw_value:
            # Subscribers get those of streams in any case.
            continue
        if name in FIXED_SETTINGS or name == _EVENTS_SETTING:
            raise _config_failed(name, "can't set immutable config")
        if name not in _SETTINGS:
            raise errors.invalid(
                f"ERR Unknown option or number of arguments for CONFIG SET - '{echo(raw_name)}'"
            )
        if name in values:
            raise _config_failed(name, "duplicate parameter")
        value = raw_value.decode(errors="replace")
        values[name] = _memory(value) if name == _MEMORY_SETTING else value
    return for_engine(types.ConfigSet(values=tuple(values.items())))


def _memory(value: str) -> str:
    """Bytes in decimal, of a number with or without a unit."""
    match = _MEMORY.fullmatch(value)
    if match is None:
        raise _config_failed(_MEMORY_SETTING, "argument must be a memory value")
    return str(int(match[1]) * _MEMORY_UNITS[(match[2] or "").lower()])


def _config_failed(name: str, reason: str) -> EngineError:
    return errors.invalid(f"ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")


def ping(words: Words) -> CommandRequest:
    """PING [message]."""
    if words.left > 1:
        raise wrong_arity("ping")
    answer: Resp = words.take() if words.left else "PONG"
    return at_once(lambda _: answer)


def echo_back(words: Words) -> CommandRequest:
    """ECHO message."""
    message = words.take()
    return at_once(lambda _: message)


def time(_: Words) -> CommandRequest:
    """TIME: seconds and microseconds of the wall clock."""
    return at_once(lambda now_us: [b"%d" % part for part in divmod(now_us, 1_000_000)])


def wait(words: Words) -> CommandRequest:
    """WAIT numreplicas timeout: there are no replicas, so nothing is waited for."""
    integer(words.take())
    timeout_ms(words.take())
    return at_once(lambda _: 0)


def waitaof(words: Words) -> CommandRequest:
    """WAITAOF numlocal numreplicas timeout: what was answered before is on this disk, and on no replica."""
    refusal = "ERR value is out of range, must be between 0 and 1"
    local = integer_from(words.take(), 0, 1, refusal)
    integer_from(words.take(), 0, INTEGER_MAX, "ERR value is out of range, must be positive")
    timeout_ms(words.take())
    if not local:
        return at_once(lambda _: [0, 0])
    return CommandRequest("", command=types.DbSize(), shape=lambda _: [1, 0], synced=True)
