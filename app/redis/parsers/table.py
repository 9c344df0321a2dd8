"""The table of commands: name, arity, permissions, parser.

Knows: which commands exist, and what to do without those that only Redis has; unknown commands and wrong
numbers of words are refused before anything else.
Must never know: what a command does with its words.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from app.redis.parsers import help as help_texts
from app.redis.parsers import (
    parse_entries,
    parse_groups,
    parse_keys,
    parse_reads,
    parse_schedules,
    parse_server,
    parse_weir,
)
from app.redis.parsers.words import Words, unknown_command, unknown_subcommand, wrong_arity
from app.redis.request import Action, CommandRequest, at_once, discarded
from engine import EngineError

_STREAMS_ALONE: Final = "Weir has streams alone; COMMAND LIST shows its commands"
_NO_CLUSTER: Final = "Weir is one server to its clients: connect without cluster mode"
_NO_SCRIPTS: Final = "Weir runs no scripts; MULTI, EXEC and WATCH make several commands one"
_NO_MESSAGES: Final = (
    "Weir has no messages but notifications of streams: XADD and XREAD BLOCK take their place"
)
_SAVED: Final = "Weir saves before it replies; WAITAOF 1 0 0 waits for the disk"
_NO_DUMPS: Final = "COPY copies a stream; backup, or export and import, take it elsewhere"
_REWRITTEN: Final = "POST /v1/admin/rewrite rewrites the log, and so does `weir log rewrite`"

_HINTS: Final[Mapping[str, str]] = {
    _STREAMS_ALONE: (
        "append bitcount blpop brpop decr decrby get getdel getex getset hdel hexists hget hgetall hincrby "
        "hkeys hlen hmget hmset hset hsetnx hvals incr incrby incrbyfloat json.get json.set lindex linsert "
        "llen lmove lpop lpush lrange lrem lset ltrim mget mset msetnx pfadd psetex rpop rpoplpush rpush "
        "sadd scard set setbit setex setnx sinter sismember smembers sort spop srem strlen sunion zadd zcard "
        "zcount zincrby zpopmin zrange zrangebyscore zrank zrem zscore"
    ),
    _NO_CLUSTER: "asking cluster failover psync readonly readwrite replicaof slaveof sync",
    _NO_SCRIPTS: "eval eval_ro evalsha evalsha_ro fcall fcall_ro function script",
    _NO_MESSAGES: "publish spublish",
    _SAVED: "bgsave lastsave save",
    _REWRITTEN: "bgrewriteaof",
    _NO_DUMPS: "dump restore",
    "Weir has one database": "move swapdb",
    "CLIENT LIST and SLOWLOG GET show what clients do": "monitor",
    "end the process to stop Weir": "shutdown",
}
_BY_NAME: Final = {name: hint for hint, names in _HINTS.items() for name in names.split()}


def hint(name: str) -> str:
    """What to do instead of this command, in lower case; empty for one that Redis has not either."""
    return _BY_NAME.get(name, "")


class CommandRow(NamedTuple):
    """`arity` counts all words, command and subcommand included; if negative, it is a minimum.

    Every action must be allowed on every stream that the command names. Of a command that brings one stream's
    content to another, `actions` are those on its source, and `target` has those on the other one. A parser
    may ask for more. What reads and what sets are two rows, as subcommands: from `actions` clients learn
    whether a command changes anything (COMMAND INFO).
    """

    arity: int
    actions: tuple[Action, ...]
    parse: Callable[[Words], CommandRequest]
    target: tuple[Action, ...] = ()

    @property
    def all_actions(self) -> tuple[Action, ...]:
        """Those on any stream."""
        return self.actions + self.target


_NOBODY: Final[tuple[Action, ...]] = ()
_READ: Final[tuple[Action, ...]] = ("read",)
_WRITE: Final[tuple[Action, ...]] = ("write",)
_CONSUME: Final[tuple[Action, ...]] = ("consume",)
_CLOSE: Final[tuple[Action, ...]] = ("close",)
_MANAGE: Final[tuple[Action, ...]] = ("manage",)
# Of a stream that takes the place of another, with its entries, groups and retention.
_REPLACED: Final[tuple[Action, ...]] = ("write", "manage")
# What has gone to another name may be read there.
_TAKEN_AWAY: Final[tuple[Action, ...]] = ("read", "manage")
_ADMIN: Final[tuple[Action, ...]] = ("admin",)


def _help(container: str) -> CommandRow:
    return CommandRow(2, _NOBODY, lambda _: at_once(lambda _: list(help_texts.lines(container))))


_ROWS: Final[dict[str, CommandRow]] = {
    "xadd": CommandRow(-5, _WRITE, parse_entries.xadd),
    "xlen": CommandRow(2, _READ, parse_entries.xlen),
    "xrange": CommandRow(-4, _READ, parse_entries.xrange),
    "xrevrange": CommandRow(-4, _READ, parse_entries.xrevrange),
    "xdel": CommandRow(-3, _WRITE, parse_entries.xdel),
    "xdelex": CommandRow(-5, _WRITE, parse_entries.xdelex),
    "xtrim": CommandRow(-4, _MANAGE, parse_entries.xtrim),
    "xsetid": CommandRow(-3, _MANAGE, parse_entries.xsetid),
    "xcfgset": CommandRow(-2, _MANAGE, parse_entries.xcfgset),
    "xidmprecord": CommandRow(5, _MANAGE, parse_entries.xidmprecord),
    "xread": CommandRow(-4, _READ, parse_reads.xread),
    "xreadgroup": CommandRow(-7, _CONSUME, parse_reads.xreadgroup),
    "xack": CommandRow(-4, _CONSUME, parse_groups.xack),
    "xackdel": CommandRow(-6, ("consume", "write"), parse_groups.xackdel),
    "xnack": CommandRow(-7, _CONSUME, parse_groups.xnack),
    "xpending": CommandRow(-3, _READ, parse_groups.xpending),
    "xclaim": CommandRow(-6, _CONSUME, parse_groups.xclaim),
    "xautoclaim": CommandRow(-6, _CONSUME, parse_groups.xautoclaim),
    "weir.close": CommandRow(-2, _CLOSE, parse_weir.close),
    "weir.info": CommandRow(2, _READ, parse_weir.info),
    # Of what recurs it takes `manage` too.
    "weir.schedule|set": CommandRow(-9, _WRITE, parse_schedules.set_schedule),
    "weir.schedule|get": CommandRow(4, _READ, parse_schedules.get_schedule),
    "weir.schedule|list": CommandRow(-3, _READ, parse_schedules.list_schedules),
    "weir.schedule|del": CommandRow(-4, _WRITE, parse_schedules.delete_schedule),
    "weir.schedule|pause": CommandRow(-4, _WRITE, parse_schedules.pause_schedule),
    "weir.schedule|resume": CommandRow(-4, _WRITE, parse_schedules.resume_schedule),
    "xgroup|create": CommandRow(-5, _MANAGE, parse_groups.xgroup_create),
    "xgroup|setid": CommandRow(-5, _MANAGE, parse_groups.xgroup_setid),
    "xgroup|destroy": CommandRow(4, _MANAGE, parse_groups.xgroup_destroy),
    # XREADGROUP creates its consumer too.
    "xgroup|createconsumer": CommandRow(5, _CONSUME, parse_groups.XGROUP_CREATECONSUMER),
    "xgroup|delconsumer": CommandRow(5, _MANAGE, parse_groups.XGROUP_DELCONSUMER),
    "xinfo|stream": CommandRow(-3, _READ, parse_server.xinfo_stream),
    "xinfo|groups": CommandRow(3, _READ, parse_server.xinfo_groups),
    "xinfo|consumers": CommandRow(4, _READ, parse_server.xinfo_consumers),
    "del": CommandRow(-2, _MANAGE, parse_server.delete),
    "unlink": CommandRow(-2, _MANAGE, parse_server.delete),
    "weir.nack": CommandRow(-7, _CONSUME, parse_groups.weir_nack),
    "weir.extend": CommandRow(-5, _CONSUME, parse_groups.extend),
    "weir.pause": CommandRow(3, _MANAGE, parse_groups.PAUSE),
    "weir.resume": CommandRow(3, _MANAGE, parse_groups.RESUME),
    # With DEADLETTER it takes more.
    "weir.group|set": CommandRow(-6, _MANAGE, parse_groups.set_group),
    "weir.why": CommandRow(-3, _READ, parse_groups.why),
    "expire": CommandRow(-3, _MANAGE, parse_keys.EXPIRE),
    "expireat": CommandRow(-3, _MANAGE, parse_keys.EXPIREAT),
    "pexpire": CommandRow(-3, _MANAGE, parse_keys.PEXPIRE),
    "pexpireat": CommandRow(-3, _MANAGE, parse_keys.PEXPIREAT),
    "persist": CommandRow(2, _MANAGE, parse_keys.persist),
    "ttl": CommandRow(2, _READ, parse_keys.TTL),
    "pttl": CommandRow(2, _READ, parse_keys.PTTL),
    "expiretime": CommandRow(2, _READ, parse_keys.EXPIRETIME),
    "pexpiretime": CommandRow(2, _READ, parse_keys.PEXPIRETIME),
    "rename": CommandRow(3, _TAKEN_AWAY, parse_keys.rename, _REPLACED),
    "renamenx": CommandRow(3, _TAKEN_AWAY, parse_keys.renamenx, _REPLACED),
    "copy": CommandRow(-3, _READ, parse_keys.copy, _REPLACED),
    "exists": CommandRow(-2, _READ, parse_server.exists),
    # Each command that names a stream counts as use of it, as OBJECT IDLETIME shows.
    "touch": CommandRow(-2, _READ, parse_server.exists),
    "type": CommandRow(2, _READ, parse_server.type_of),
    "keys": CommandRow(2, _READ, parse_server.keys),
    "randomkey": CommandRow(1, _READ, parse_server.randomkey),
    "scan": CommandRow(-2, _READ, parse_server.scan),
    "dbsize": CommandRow(1, _READ, parse_server.dbsize),
    "flushall": CommandRow(-1, _ADMIN, parse_server.flushall),
    # There is one database.
    "flushdb": CommandRow(-1, _ADMIN, parse_server.flushall),
    "object|encoding": CommandRow(3, _READ, parse_keys.object_encoding),
    "object|freq": CommandRow(3, _READ, parse_keys.object_freq),
    "object|idletime": CommandRow(3, _READ, parse_keys.object_idletime),
    "object|refcount": CommandRow(3, _READ, parse_keys.object_refcount),
    "memory|usage": CommandRow(-3, _READ, parse_keys.memory_usage),
    "config|get": CommandRow(-3, _ADMIN, parse_server.config_get),
    "config|set": CommandRow(-4, _ADMIN, parse_server.config_set),
    "ping": CommandRow(-1, _NOBODY, parse_server.ping),
    "echo": CommandRow(2, _NOBODY, parse_server.echo_back),
    "time": CommandRow(1, _NOBODY, parse_server.time),
    "wait": CommandRow(3, _NOBODY, parse_server.wait),
    "waitaof": CommandRow(4, _NOBODY, parse_server.waitaof),
    "command|count": CommandRow(2, _NOBODY, lambda _: at_once(lambda _: len(_NAMES))),
}

_CONTAINERS: Final = frozenset(name.partition("|")[0] for name in _ROWS if "|" in name)
COMMANDS: Final = _ROWS | {f"{name}|help": _help(name) for name in sorted(_CONTAINERS)}
_NAMES: Final[set[str]] = {name.partition("|")[0] for name in COMMANDS}


def look_up(words: Sequence[bytes]) -> str:
    """Look up the command in `words` and check its number of words; return its name in the table.

    Raises `EngineError` with Redis's sentence for an unknown command or a wrong number of words.
    """
    if not words:
        raise unknown_command([b""])
    name = _folded(words[0])
    if name in _CONTAINERS:
        if len(words) == 1:
            raise wrong_arity(name)
        container, name = name, f"{name}|{_folded(words[1])}"
        if name not in COMMANDS:
            raise unknown_subcommand(container, words[1])
    # A bar in the word itself does not make it a subcommand.
    elif name not in COMMANDS or "|" in name:
        raise unknown_command(words, hint(name))
    arity = COMMANDS[name].arity
    if len(words) != arity and not len(words) >= -arity > 0:
        raise wrong_arity(name)
    return name


def _folded(word: bytes) -> str:
    """ASCII letters in lower case: no other letter may become part of a name."""
    return word.lower().decode("latin-1")


def parse(words: Sequence[bytes]) -> CommandRequest:
    """Parse the words of one command, its name first.

    Raises `EngineError` for everything that Redis finds wrong before it looks at the key, and `ERR invalid
    name`.
    """
    name = look_up(words)
    row = COMMANDS[name]
    parsed = row.parse(Words(words))
    actions = (*row.actions, *parsed.actions)
    target = parsed.target_actions or row.target
    return msgspec.structs.replace(parsed, name=name, actions=actions, target_actions=target)


def changing(words: Sequence[bytes]) -> tuple[Action, str] | None:
    """Action and name of the command that these words begin with, if it changes streams, groups or the
    gateway, for which a caller needs a right beyond their entries.
    """
    with suppress(EngineError):
        name = look_up(words)
        for action in COMMANDS[name].all_actions:
            if action in ("close", "manage", "admin") and name != "config|get":
                return action, name
    return None


def check_transaction(commands: Sequence[Sequence[bytes]]) -> None:
    """Raise `EngineError` EXECABORT if one of these is unknown or has a wrong number of words: of a
    transaction with it nothing is to run.
    """
    for place, words in enumerate(commands):
        try:
            look_up(words)
        except EngineError as refusal:
            raise discarded(refusal, place) from refusal
