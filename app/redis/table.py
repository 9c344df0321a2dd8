"""The table of commands: name, arity, who may, and how its words are parsed.

Knows: which commands there are, and that unknown ones and wrong numbers of words are found before anything
else.
Must never know: what a command does with its words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from app.redis import parse_entries, parse_groups, parse_reads, parse_server
from app.redis.request import Action, Request, at_once, discarded
from app.redis.words import Words, unknown_command, unknown_subcommand, wrong_arity
from engine import EngineError


class Row(NamedTuple):
    """`arity` counts the words with the command's own (and its subcommand's); negative: at least so many.

    Every action must be allowed on every stream that the command names.
    """

    arity: int
    actions: tuple[Action, ...]
    parse: Callable[[Words], Request]


_NOBODY: Final[tuple[Action, ...]] = ()
_READ: Final[tuple[Action, ...]] = ("read",)
_WRITE: Final[tuple[Action, ...]] = ("write",)
_CONSUME: Final[tuple[Action, ...]] = ("consume",)
_MANAGE: Final[tuple[Action, ...]] = ("manage",)
_ADMIN: Final[tuple[Action, ...]] = ("admin",)


def _command_count(_: Words) -> Request:
    return at_once(lambda _: len({name.partition("|")[0] for name in COMMANDS}))


COMMANDS: Final[Mapping[str, Row]] = {
    "xadd": Row(-5, _WRITE, parse_entries.xadd),
    "xlen": Row(2, _READ, parse_entries.xlen),
    "xrange": Row(-4, _READ, parse_entries.xrange),
    "xrevrange": Row(-4, _READ, parse_entries.xrevrange),
    "xdel": Row(-3, _MANAGE, parse_entries.xdel),
    "xdelex": Row(-5, _MANAGE, parse_entries.xdelex),
    "xtrim": Row(-4, _MANAGE, parse_entries.xtrim),
    "xsetid": Row(-3, _MANAGE, parse_entries.xsetid),
    "xcfgset": Row(-2, _MANAGE, parse_entries.xcfgset),
    "xidmprecord": Row(5, _MANAGE, parse_entries.xidmprecord),
    "xread": Row(-4, _READ, parse_reads.xread),
    "xreadgroup": Row(-7, _CONSUME, parse_reads.xreadgroup),
    "xack": Row(-4, _CONSUME, parse_groups.xack),
    "xackdel": Row(-6, ("consume", "manage"), parse_groups.xackdel),
    "xnack": Row(-7, _CONSUME, parse_groups.xnack),
    "xpending": Row(-3, _READ, parse_groups.xpending),
    "xclaim": Row(-6, _CONSUME, parse_groups.xclaim),
    "xautoclaim": Row(-6, _CONSUME, parse_groups.xautoclaim),
    "xgroup|create": Row(-5, _MANAGE, parse_groups.xgroup_create),
    "xgroup|setid": Row(-5, _MANAGE, parse_groups.xgroup_setid),
    "xgroup|destroy": Row(4, _MANAGE, parse_groups.xgroup_destroy),
    # XREADGROUP makes its consumer too.
    "xgroup|createconsumer": Row(5, _CONSUME, parse_groups.xgroup_createconsumer),
    "xgroup|delconsumer": Row(5, _MANAGE, parse_groups.xgroup_delconsumer),
    "xgroup|help": Row(2, _NOBODY, parse_server.xgroup_help),
    "xinfo|stream": Row(-3, _READ, parse_server.xinfo_stream),
    "xinfo|groups": Row(3, _READ, parse_server.xinfo_groups),
    "xinfo|consumers": Row(4, _READ, parse_server.xinfo_consumers),
    "xinfo|help": Row(2, _NOBODY, parse_server.xinfo_help),
    "del": Row(-2, _MANAGE, parse_server.delete),
    "unlink": Row(-2, _MANAGE, parse_server.delete),
    "exists": Row(-2, _READ, parse_server.exists),
    "type": Row(2, _READ, parse_server.type_of),
    "keys": Row(2, _READ, parse_server.keys),
    "scan": Row(-2, _READ, parse_server.scan),
    "dbsize": Row(1, _READ, parse_server.dbsize),
    "flushall": Row(-1, _ADMIN, parse_server.flushall),
    "config|get": Row(-3, _ADMIN, parse_server.config_get),
    "config|set": Row(-4, _ADMIN, parse_server.config_set),
    "config|help": Row(2, _NOBODY, parse_server.config_help),
    "ping": Row(-1, _NOBODY, parse_server.ping),
    "echo": Row(2, _NOBODY, parse_server.echo_back),
    "time": Row(1, _NOBODY, parse_server.time),
    "wait": Row(3, _NOBODY, parse_server.wait),
    "waitaof": Row(4, _NOBODY, parse_server.waitaof),
    "command|count": Row(2, _NOBODY, _command_count),
    "command|help": Row(2, _NOBODY, parse_server.command_help),
}

_CONTAINERS: Final = frozenset(name.partition("|")[0] for name in COMMANDS if "|" in name)


def look_up(words: Sequence[bytes]) -> str:
    """The name in the table of the command in `words`, its number of words checked.

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
    # A bar in the word itself is no way to a subcommand.
    elif name not in COMMANDS or "|" in name:
        raise unknown_command(words)
    arity = COMMANDS[name].arity
    if len(words) != arity and not len(words) >= -arity > 0:
        raise wrong_arity(name)
    return name


def _folded(word: bytes) -> str:
    """In lower case, as far as it is ASCII: no other letter may become one of a command's."""
    return word.lower().decode("latin-1")


def parse(words: Sequence[bytes]) -> Request:
    """The request in the words of one command, its name first.

    Raises `EngineError` for everything that Redis finds wrong before it looks at the key, and `ERR invalid
    name`.
    """
    name = look_up(words)
    row = COMMANDS[name]
    return replace(row.parse(Words(words)), name=name, actions=row.actions)


def parse_each(commands: Sequence[Sequence[bytes]]) -> list[Request | EngineError]:
    """The requests of a pipeline: one that is wrong stands as its refusal among the others."""
    return [_parse_or_refusal(words) for words in commands]


def parse_transaction(commands: Sequence[Sequence[bytes]]) -> list[Request | EngineError]:
    """The requests of MULTI … EXEC, where those that are wrong in themselves fail alone.

    Raises `EngineError` EXECABORT where a command is unknown or has a wrong number of words: nothing is to
    run.
    """
    for place, words in enumerate(commands):
        try:
            look_up(words)
        except EngineError as refusal:
            raise discarded(refusal, place) from refusal
    return parse_each(commands)


def _parse_or_refusal(words: Sequence[bytes]) -> Request | EngineError:
    try:
        return parse(words)
    except EngineError as refusal:
        return refusal
