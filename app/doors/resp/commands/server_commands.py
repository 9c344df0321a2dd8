"""INFO and COMMAND; MULTI and its like; SUBSCRIBE and its like: how a connection answers them.

Knows: their words and replies. Must never know: sockets, how transactions run, who else follows a channel.
"""

from collections.abc import Callable, Mapping

from app.doors.resp import server_info
from app.doors.resp.codec import Words
from app.doors.resp.command_table import CommandTable, keys_of
from app.doors.resp.session import RespSession, SessionCommand, Written
from app.doors.resp.subscriptions import CHANNEL_BYTES_MAX, PATTERNS_MAX, SUBSCRIPTIONS_MAX
from app.glob import Glob
from app.redis import wire
from app.redis.parsers.words import stream_names, unknown_subcommand, wrong_arity
from app.redis.resp import Resp, Verbatim
from engine import errors


def _info(session: RespSession, words: Words) -> Written:
    """INFO [section …]."""
    return wire.encode(
        Verbatim(server_info.text_of(session.port, words[1:], is_narrow=not session.may_see_everything)),
        session.codec.protocol,
    )


def _command(table: Callable[[], CommandTable]) -> Callable[[RespSession, Words], Written]:
    def command(session: RespSession, words: Words) -> Written:
        """COMMAND [COUNT | LIST | INFO … | DOCS … | GETKEYS …]."""
        found, protocol = table(), session.codec.protocol
        if len(words) == 1:
            return wire.encode(found.infos(found.names()), protocol)
        names = [word.lower().decode("latin-1") for word in words[2:]]
        subcommand = words[1].upper()
        if subcommand == b"COUNT" and not names:
            return wire.encode(len(found), protocol)
        if subcommand == b"LIST":
            return wire.encode([name.encode() for name in _listed(found, words)], protocol)
        if subcommand == b"INFO":
            return wire.encode(found.infos(names or found.names()), protocol)
        if subcommand == b"DOCS":
            return wire.encode(found.docs(names or found.names()), protocol)
        if subcommand == b"GETKEYS":
            if not names:
                raise wrong_arity("command|getkeys")
            return wire.encode(list(keys_of(words[2:])), protocol)
        raise unknown_subcommand("command", words[1])

    return command


def _listed(table: CommandTable, words: Words) -> list[str]:
    """COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]."""
    if len(words) == 2:
        return table.names()
    if len(words) != 5 or words[2].upper() != b"FILTERBY":
        raise errors.syntax_error()
    filter_by, value = words[3].upper(), words[4]
    if filter_by == b"PATTERN":
        glob = Glob(value.lower())
        return [name for name in table.names() if glob.matches(name.encode())]
    if filter_by == b"ACLCAT":
        return table.of_category(value.lower().decode("latin-1"))
    if filter_by == b"MODULE":
        return []
    raise errors.syntax_error()


# ---- transactions


def _multi(session: RespSession, _: Words) -> Written:
    if session.transaction is not None:
        raise errors.invalid("ERR MULTI calls can not be nested")
    session.multi()
    return wire.OK


def _exec(session: RespSession, _: Words) -> Written:
    if session.transaction is None:
        raise errors.invalid("ERR EXEC without MULTI")
    return session.execute()


def _discard(session: RespSession, _: Words) -> Written:
    if session.transaction is None:
        raise errors.invalid("ERR DISCARD without MULTI")
    session.end_transaction()
    return wire.OK


def _watch(session: RespSession, words: Words) -> Written:
    if session.transaction is not None:
        raise errors.invalid("ERR WATCH inside MULTI is not allowed")
    return session.watch(stream_names(words[1:]))


def _unwatch(session: RespSession, _: Words) -> Written:
    session.watched.clear()
    return wire.OK


# ---- subscriptions


def _message(session: RespSession, kind: bytes, name: bytes | None) -> bytes:
    return wire.push(session.codec.protocol, (kind, name, len(session.subscriber)))


def _subscribe(kind: bytes) -> Callable[[RespSession, Words], Written]:
    def subscribe(session: RespSession, words: Words) -> Written:
        if len(session.subscriber) + len(words) > SUBSCRIPTIONS_MAX:
            raise errors.invalid(f"ERR too many subscriptions: a client has at most {SUBSCRIPTIONS_MAX}")
        if kind == b"psubscribe" and len({*session.subscriber.patterns, *words[1:]}) > PATTERNS_MAX:
            raise errors.invalid(
                f"ERR too many patterns: a client has at most {PATTERNS_MAX}; SUBSCRIBE takes more channels"
            )
        if max(map(len, words[1:])) > CHANNEL_BYTES_MAX:
            most = CHANNEL_BYTES_MAX
            raise errors.invalid(f"ERR channel too long: a channel or pattern has at most {most} bytes")
        subscribe_one = (
            session.subscriptions.subscribe_pattern
            if kind == b"psubscribe"
            else session.subscriptions.subscribe
        )
        out = []
        for name in words[1:]:
            subscribe_one(session.subscriber, name)
            out.append(_message(session, kind, name))
        return b"".join(out)

    return subscribe


def _unsubscribe(kind: bytes) -> Callable[[RespSession, Words], Written]:
    def unsubscribe(session: RespSession, words: Words) -> Written:
        patterns = kind == b"punsubscribe"
        followed = session.subscriber.patterns if patterns else session.subscriber.channels
        remove = session.subscriptions.unsubscribe_pattern if patterns else session.subscriptions.unsubscribe
        out = []
        for name in words[1:] or list(followed):
            remove(session.subscriber, name)
            out.append(_message(session, kind, name))
        return b"".join(out) or _message(session, kind, None)

    return unsubscribe


def _pubsub(session: RespSession, words: Words) -> Written:
    """PUBSUB CHANNELS [pattern] | NUMSUB [channel …] | NUMPAT; a narrow token sees its own subscriptions."""
    followed, own = session.subscriptions, session.subscriber
    sees_all = session.may_see_everything
    channels = followed.channels if sees_all else own.channels
    subcommand, protocol = words[1].upper(), session.codec.protocol
    if subcommand == b"CHANNELS" and len(words) <= 3:
        glob = Glob(words[2] if len(words) == 3 else b"*")
        return wire.encode([name for name in channels if glob.matches(name)], protocol)
    if subcommand == b"NUMSUB":
        counts: list[Resp] = []
        for name in words[2:]:
            counts += [name, (len(followed.channels.get(name, ())) if sees_all else int(name in channels))]
        return wire.encode(counts, protocol)
    if subcommand == b"NUMPAT" and len(words) == 2:
        return wire.encode(len(followed.patterns if sees_all else own.patterns), protocol)
    raise unknown_subcommand("pubsub", words[1])


def commands(table: Callable[[], CommandTable]) -> Mapping[bytes, SessionCommand]:
    """The commands of this module; `table` is asked for when COMMAND is run."""
    return {
        b"info": SessionCommand(-1, _info),
        b"command": SessionCommand(-1, _command(table)),
        b"multi": SessionCommand(1, _multi, in_multi=True),
        b"exec": SessionCommand(1, _exec, in_multi=True),
        b"discard": SessionCommand(1, _discard, in_multi=True),
        b"watch": SessionCommand(-2, _watch, in_multi=True),
        b"unwatch": SessionCommand(1, _unwatch),
        b"pubsub": SessionCommand(-2, _pubsub),
        b"subscribe": SessionCommand(-2, _subscribe(b"subscribe"), in_subscription=True),
        b"psubscribe": SessionCommand(-2, _subscribe(b"psubscribe"), in_subscription=True),
        b"ssubscribe": SessionCommand(-2, _subscribe(b"ssubscribe"), in_subscription=True),
        b"unsubscribe": SessionCommand(-1, _unsubscribe(b"unsubscribe"), in_subscription=True),
        b"punsubscribe": SessionCommand(-1, _unsubscribe(b"punsubscribe"), in_subscription=True),
        b"sunsubscribe": SessionCommand(-1, _unsubscribe(b"sunsubscribe"), in_subscription=True),
    }
