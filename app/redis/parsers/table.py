"""The table of commands: name, arity, permissions, parser.

Knows: which commands exist; unknown commands and wrong numbers of words are refused before anything else.
Must never know: what a command does with its words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from app.redis.parsers import parse_entries, parse_groups, parse_reads, parse_server
from app.redis.parsers.words import Words, unknown_command, unknown_subcommand, wrong_arity
from app.redis.request import Action, CommandRequest, at_once, discarded
from engine import EngineError


class CommandRow(NamedTuple):
    """`arity` counts all words, command and subcommand included; if negative, it is a minimum.

    Every action must be allowed on every stream that the command names.
    """

    arity: int
    actions: tuple[Action, ...]
    parse: Callable[[Words], CommandRequest]


_NOBODY: Final[tuple[Action, ...]] = ()
_READ: Final[tuple[Action, ...]] = ("read",)
_WRITE: Final[tuple[Action, ...]] = ("write",)
_CONSUME: Final[tuple[Action, ...]] = ("consume",)
_MANAGE: Final[tuple[Action, ...]] = ("manage",)
_ADMIN: Final[tuple[Action, ...]] = ("admin",)


def _command_count(_: Words) -> CommandRequest:
    return at_once(lambda _: len({name.partition("|")[0] for name in COMMANDS}))


COMMANDS: Final[Mapping[str, CommandRow]] = {
    "xadd": CommandRow(-5, _WRITE, parse_entries.xadd),
    "xlen": CommandRow(2, _READ, parse_entries.xlen),
    "xrange": CommandRow(-4, _READ, parse_entries.xrange),
    "xrevrange": CommandRow(-4, _READ, parse_entries.xrevrange),
    "xdel": CommandRow(-3, _MANAGE, parse_entries.xdel),
    "xdelex": CommandRow(-5, _MANAGE, parse_entries.xdelex),
    "xtrim": CommandRow(-4, _MANAGE, parse_entries.xtrim),
    "xsetid": CommandRow(-3, _MANAGE, parse_entries.xsetid),
    "xcfgset": CommandRow(-2, _MANAGE, parse_entries.xcfgset),
    "xidmprecord": CommandRow(5, _MANAGE, parse_entries.xidmprecord),
    "xread": CommandRow(-4, _READ, parse_reads.xread),
    "xreadgroup": CommandRow(-7, _CONSUME, parse_reads.xreadgroup),
    "xack": CommandRow(-4, _CONSUME, parse_groups.xack),
    "xackdel": CommandRow(-6, ("consume", "manage"), parse_groups.xackdel),
    "xnack": CommandRow(-7, _CONSUME, parse_groups.xnack),
    "xpending": CommandRow(-3, _READ, parse_groups.xpending),
    "xclaim": CommandRow(-6, _CONSUME, parse_groups.xclaim),
    "xautoclaim": CommandRow(-6, _CONSUME, parse_groups.xautoclaim),
    "xgroup|create": CommandRow(-5, _MANAGE, parse_groups.xgroup_create),
    "xgroup|setid": CommandRow(-5, _MANAGE, parse_groups.xgroup_setid),
    "xgroup|destroy": CommandRow(4, _MANAGE, parse_groups.xgroup_destroy),
    # XREADGROUP creates its consumer too.
    "xgroup|createconsumer": CommandRow(5, _CONSUME, parse_groups.xgroup_createconsumer),
    "xgroup|delconsumer": CommandRow(5, _MANAGE, parse_groups.xgroup_delconsumer),
    "xgroup|help": CommandRow(2, _NOBODY, parse_server.xgroup_help),
    "xinfo|stream": CommandRow(-3, _READ, parse_server.xinfo_stream),
    "xinfo|groups": CommandRow(3, _READ, parse_server.xinfo_groups),
    "xinfo|consumers": CommandRow(4, _READ, parse_server.xinfo_consumers),
    "xinfo|help": CommandRow(2, _NOBODY, parse_server.xinfo_help),
    "del": CommandRow(-2, _MANAGE, parse_server.delete),
    "unlink": CommandRow(-2, _MANAGE, parse_server.delete),
    "exists": CommandRow(-2, _READ, parse_server.exists),
    "type": CommandRow(2, _READ, parse_server.type_of),
    "keys": CommandRow(2, _READ, parse_server.keys),
    "scan": CommandRow(-2, _READ, parse_server.scan),
    "dbsize": CommandRow(1, _READ, parse_server.dbsize),
    "flushall": CommandRow(-1, _ADMIN, parse_server.flushall),
    "config|get": CommandRow(-3, _ADMIN, parse_server.config_get),
    "config|set": CommandRow(-4, _ADMIN, parse_server.config_set),
    "config|help": CommandRow(2, _NOBODY, parse_server.config_help),
    "ping": CommandRow(-1, _NOBODY, parse_server.ping),
    "echo": CommandRow(2, _NOBODY, parse_server.echo_back),
    "time": CommandRow(1, _NOBODY, parse_server.time),
    "wait": CommandRow(3, _NOBODY, parse_server.wait),
    "waitaof": CommandRow(4, _NOBODY, parse_server.waitaof),
    "command|count": CommandRow(2, _NOBODY, _command_count),
    "command|help": CommandRow(2, _NOBODY, parse_server.command_help),
}

_CONTAINERS: Final = frozenset(name.partition("|")[0] for name in COMMANDS if "|" in name)


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
        raise unknown_command(words)
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
    return replace(row.parse(Words(words)), name=name, actions=row.actions)


def parse_each(commands: Sequence[Sequence[bytes]]) -> list[CommandRequest | EngineError]:
    """Parse the commands of a pipeline; an invalid command is returned as its refusal."""
    return [_parse_or_refusal(words) for words in commands]


def parse_transaction(commands: Sequence[Sequence[bytes]]) -> list[CommandRequest | EngineError]:
    """Parse the commands of MULTI … EXEC; an invalid command fails alone.

    Raises `EngineError` EXECABORT where a command is unknown or has a wrong number of words: nothing is to
    run.
    """
    for place, words in enumerate(commands):
        try:
            look_up(words)
        except EngineError as refusal:
            raise discarded(refusal, place) from refusal
    return parse_each(commands)


def _parse_or_refusal(words: Sequence[bytes]) -> CommandRequest | EngineError:
    try:
        return parse(words)
    except EngineError as refusal:
        return refusal
