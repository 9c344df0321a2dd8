"""CLIENT: what a client says about itself, the list of clients, ending and unblocking others.

Knows: the subcommands, their words, replies and error texts.
Must never know: sockets, streams.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from app.auth import Action, Resource
from app.doors.resp.codec import Words
from app.doors.resp.session import RespSession
from app.redis import wire
from app.redis.parsers.words import echo, integer
from app.redis.resp import Verbatim
from engine import EngineError, errors

_NAME: Final = re.compile(rb"[!-~]*")
_FLAGS: Final = (b"ON", b"OFF")


def check_name(name: bytes) -> bytes:
    """The name of a connection. Raises EngineError."""
    if not _NAME.fullmatch(name):
        raise errors.invalid("ERR Client names cannot contain spaces, newlines or special characters.")
    return name


def _id(session: RespSession, _: Words) -> bytes:
    return b":%d\r\n" % session.id


def _set_name(session: RespSession, words: Words) -> bytes:
    session.name = check_name(words[2])
    return wire.OK


def _get_name(session: RespSession, _: Words) -> bytes:
    return wire.bulk(session.name) if session.name else wire.null(session.codec.protocol)


def _set_info(session: RespSession, words: Words) -> bytes:
    attribute, value = words[2].lower(), words[3]
    if attribute not in (b"lib-name", b"lib-ver"):
        raise errors.invalid(f"ERR Unrecognized option '{echo(words[2])}'")
    if not _NAME.fullmatch(value):
        what = attribute.decode()
        raise errors.invalid(f"ERR {what} cannot contain spaces, newlines or special characters.")
    if attribute == b"lib-name":
        session.library = value
    else:
        session.library_version = value
    return wire.OK


def _keep(_: RespSession, words: Words) -> bytes:
    """NO-EVICT and NO-TOUCH: nothing is evicted, so there is nothing to switch."""
    _check_flag(words[2])
    return wire.OK


def _check_flag(word: bytes) -> None:
    if word.upper() not in _FLAGS:
        raise errors.syntax_error()


def _flags(session: RespSession) -> str:
    if session.is_subscriber:
        return "P"
    return "b" if session.blocked is not None else "x" if session.transaction is not None else "N"


def line_of(session: RespSession) -> bytes:
    """A client as a line of CLIENT LIST."""
    connection, transaction, now_s = session.connection, session.transaction, session.now_s()
    facts: dict[str, object] = {
        "id": session.id,
        "addr": session.address,
        "laddr": session.local_address,
        "fd": connection.descriptor,
        "name": session.name.decode(),
        "age": int(now_s - session.created_s),
        "idle": int(now_s - session.last_used_s),
        "flags": _flags(session),
        "db": 0,
        "sub": len(session.subscriber.channels),
        "psub": len(session.subscriber.patterns),
        "ssub": 0,
        "multi": -1 if transaction is None else len(transaction.requests),
        "watch": len(session.watched),
        "qbuf": connection.input_bytes,
        **dict.fromkeys(("qbuf-free", "argv-mem", "multi-mem", "rbs", "rbp"), 0),
        "obl": connection.unsent_bytes,
        **dict.fromkeys(("oll", "omem"), 0),
        "tot-mem": connection.input_bytes + connection.unsent_bytes,
        "events": "r",
        "cmd": session.last_command.decode(errors="replace"),
        # A subject may have spaces, and would write fields of its own.
        "user": "_".join(session.user.split()),
        "redir": -1,
        "resp": session.codec.protocol,
        "lib-name": session.library.decode(),
        "lib-ver": session.library_version.decode(),
    }
    return " ".join(f"{name}={value}" for name, value in facts.items()).encode()


def _info(session: RespSession, _: Words) -> bytes:
    return wire.encode(Verbatim(line_of(session) + b"\n"), session.codec.protocol)


def _list(session: RespSession, words: Words) -> bytes:
    """CLIENT LIST [TYPE type] [ID id …]; callers without the right to see others see themselves."""
    chosen = list(_visible(session))
    if len(words) > 2:
        option = words[2].upper()
        if option == b"TYPE" and len(words) == 4:
            chosen = list(filter(_by_type(words[3]), chosen))
        elif option == b"ID" and len(words) > 3:
            wanted = {integer(word, "ERR Invalid client ID") for word in words[3:]}
            chosen = [other for other in chosen if other.id in wanted]
        else:
            raise errors.syntax_error()
    text = b"".join(line_of(other) + b"\n" for other in chosen)
    return wire.encode(Verbatim(text), session.codec.protocol)


def _visible(session: RespSession) -> list[RespSession]:
    if _is_admin(session):
        return list(session.others.values())
    return [session]


def _is_admin(session: RespSession) -> bool:
    return session.may(Action.ADMIN, Resource())


def _require_admin(session: RespSession, subcommand: str) -> None:
    if not _is_admin(session):
        raise session.forbidden(f"client|{subcommand}")


def _number(value: bytes) -> int:
    return integer(value, "ERR client-id should be greater than 0")


def _by_type(value: bytes) -> Callable[[RespSession], bool]:
    kind = value.lower()
    if kind not in (b"normal", b"master", b"replica", b"slave", b"pubsub"):
        raise errors.invalid(f"ERR Unknown client type '{echo(value)}'")
    return lambda other: kind == (b"pubsub" if other.is_subscriber else b"normal")


_FILTERS: Final[Mapping[bytes, Callable[[bytes], Callable[[RespSession], bool]]]] = {
    b"ADDR": lambda value: lambda other: other.address.encode() == value,
    b"LADDR": lambda value: lambda other: other.local_address.encode() == value,
    b"USER": lambda value: lambda other: other.user.encode() == value,
    b"TYPE": _by_type,
}


def _kill(session: RespSession, words: Words) -> bytes | None:
    """CLIENT KILL addr | [ID id …] [ADDR addr] [LADDR addr] [USER user] [SKIPME yes|no] …."""
    _require_admin(session, "kill")
    everyone = list(session.others.values())
    if len(words) == 3:
        address = words[2].decode(errors="replace")
        named = [other for other in everyone if other.address == address]
        if not named:
            raise errors.invalid("ERR No such client")
        return _end(session, named, wire.OK)
    skip_me, rest = True, words[2:]
    while rest:
        if len(rest) < 2:
            raise errors.syntax_error()
        name, value, rest = rest[0].upper(), rest[1], rest[2:]
        if name == b"ID":
            numbers = {_number(value)}
            while rest and rest[0].isdigit():
                numbers.add(_number(rest[0]))
                rest = rest[1:]
            everyone = [other for other in everyone if other.id in numbers]
        elif name == b"SKIPME" and value.lower() in (b"yes", b"no"):
            skip_me = value.lower() == b"yes"
        elif name in _FILTERS:
            matches = _FILTERS[name](value)
            everyone = [other for other in everyone if matches(other)]
        else:
            raise errors.syntax_error()
    if skip_me:
        everyone = [other for other in everyone if other is not session]
    return _end(session, everyone, b":%d\r\n" % len(everyone))


def _end(session: RespSession, chosen: list[RespSession], written: bytes) -> bytes | None:
    """End these clients. Returns the reply, None where the one that asked was ended with it."""
    for other in chosen:
        if other is not session:
            other.abort(f"CLIENT KILL by client {session.id}")
    if session not in chosen:
        return written
    session.connection.end(written)
    return None


def _unblock(session: RespSession, words: Words) -> bytes:
    """CLIENT UNBLOCK id [TIMEOUT|ERROR]."""
    _require_admin(session, "unblock")
    number = integer(words[2])
    how = words[3].upper() if len(words) == 4 else b"TIMEOUT"
    if len(words) > 4 or how not in (b"TIMEOUT", b"ERROR"):
        raise errors.syntax_error()
    other = session.others.get(number)
    if other is None or other.blocked is None:
        return b":0\r\n"
    with_error = how == b"ERROR"
    other.blocked.end(
        EngineError("invalid", "UNBLOCKED client unblocked via CLIENT UNBLOCK") if with_error else None
    )
    return b":1\r\n"


SUBCOMMANDS: Final[Mapping[bytes, tuple[int, Callable[[RespSession, Words], bytes | None]]]] = {
    b"ID": (2, _id),
    b"SETNAME": (3, _set_name),
    b"GETNAME": (2, _get_name),
    b"SETINFO": (4, _set_info),
    b"INFO": (2, _info),
    b"LIST": (-2, _list),
    b"KILL": (-3, _kill),
    b"UNBLOCK": (-3, _unblock),
    b"NO-EVICT": (3, _keep),
    b"NO-TOUCH": (3, _keep),
}
