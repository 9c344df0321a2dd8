"""SLOWLOG, LATENCY and MODULE: what programs that watch a server ask.

Knows: their words and replies; that events of latency and modules do not exist here.
Must never know: sockets, how long anything took.
"""

from collections.abc import Callable, Mapping
from typing import Final

from app.auth import Action, Resource
from app.doors.resp.codec import Words
from app.doors.resp.session import RespSession, SessionCommand, Written
from app.redis import wire
from app.redis.parsers import help as help_texts
from app.redis.parsers.words import (
    INTEGER_MAX,
    integer_from,
    subcommand_syntax,
    unknown_subcommand,
    wrong_arity,
)
from app.redis.resp import Pairs, Resp, Verbatim

_SHOWN: Final = 10
_COUNT: Final = "ERR count should be greater than or equal to -1"
_DOCTOR: Final = (
    b"Latency is not monitored by events here. SLOWLOG GET lists the turns that took longer than 10 ms; "
    b"/metrics has how late the event loop and the disk are.\n"
)

Handler = Callable[[RespSession, Words], Resp]


def _slowlog_get(session: RespSession, words: Words) -> Resp:
    """SLOWLOG GET [count]: number, time, microseconds, command, address and name of the client, which are
    empty, since a turn may run the commands of several.
    """
    if len(words) > 3:
        raise subcommand_syntax("slowlog", words[1])
    count = integer_from(words[2], -1, INTEGER_MAX, _COUNT) if len(words) == 3 else _SHOWN
    turns = list(session.slow_turns.turns)
    return [
        [one.number, one.at_s, one.micros, list(one.words), b"", b""]
        for one in (turns if count < 0 else turns[:count])
    ]


def _slowlog_len(session: RespSession, _: Words) -> Resp:
    return len(session.slow_turns.turns)


def _slowlog_reset(session: RespSession, _: Words) -> Resp:
    if not session.may(Action.ADMIN, Resource()):
        raise session.forbidden("slowlog|reset")
    session.slow_turns.turns.clear()
    return "OK"


def _nothing(_: RespSession, __: Words) -> Resp:
    return []


def _help(container: str) -> Handler:
    return lambda _, __: list(help_texts.lines(container))


# By subcommand: its arity, as in the table of commands, and what answers it.
_Subcommands = Mapping[bytes, tuple[int, Handler]]
_SLOWLOG: Final[_Subcommands] = {
    b"GET": (-2, _slowlog_get),
    b"LEN": (2, _slowlog_len),
    b"RESET": (2, _slowlog_reset),
    b"HELP": (2, _help("slowlog")),
}
_LATENCY: Final[_Subcommands] = {
    b"LATEST": (2, _nothing),
    b"HISTORY": (3, _nothing),
    b"HISTOGRAM": (-2, lambda _, __: Pairs()),
    b"RESET": (-2, lambda _, __: 0),
    b"DOCTOR": (2, lambda _, __: Verbatim(_DOCTOR)),
    b"HELP": (2, _help("latency")),
}
_MODULE: Final[_Subcommands] = {b"LIST": (2, _nothing), b"HELP": (2, _help("module"))}


def _container(name: str, subcommands: _Subcommands) -> SessionCommand:
    def run(session: RespSession, words: Words) -> Written:
        found = subcommands.get(words[1].upper())
        if found is None:
            raise unknown_subcommand(name, words[1])
        arity, handle = found
        full_name = f"{name}|{words[1].lower().decode('latin-1')}"
        if len(words) != arity and not len(words) >= -arity > 0:
            raise wrong_arity(full_name)
        if name == "slowlog" and not session.may_see_everything:
            raise session.forbidden(full_name)
        return wire.encode(handle(session, words), session.codec.protocol)

    return SessionCommand(-2, run)


COMMANDS: Final[Mapping[bytes, SessionCommand]] = {
    b"slowlog": _container("slowlog", _SLOWLOG),
    b"latency": _container("latency", _LATENCY),
    b"module": _container("module", _MODULE),
}
