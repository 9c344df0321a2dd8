"""Commands about the connection itself: HELLO, AUTH, CLIENT and their like.

Knows: their words, replies and error texts.
Must never know: sockets, commands on streams.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from app import VERSION
from app.auth import OpenPolicy, Principal
from app.auth.policy import unauthenticated
from app.doors.resp.codec import Words
from app.doors.resp.command_table import CommandTable
from app.doors.resp.commands import client_commands, diagnostic_commands, server_commands
from app.doors.resp.server_info import REDIS_VERSION
from app.doors.resp.session import RespSession, SessionCommand, Written, user_of
from app.errors import RefusalError
from app.redis import wire
from app.redis.parsers.words import echo, integer, unknown_subcommand, wrong_arity
from app.redis.resp import Pairs
from engine import EngineError, errors

_WRONG_PASSWORD: Final = "WRONGPASS invalid username-password pair or user is disabled."  # noqa: S105 - Redis's sentence
_NOT_NEEDED: Final = (
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
    "configuration is correct?"
)
_HELLO_FIRST: Final = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
    "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the "
    "same time"
)


# ---- who it is


def _hello(session: RespSession, words: Words) -> Written:
    """HELLO [protover [AUTH user password] [SETNAME name]]."""
    protocol, credentials, name = session.codec.protocol, None, None
    if len(words) > 1:
        protocol = _protocol(words[1])
    rest = words[2:]
    while rest:
        option = rest[0].upper()
        if option == b"AUTH" and len(rest) >= 3:
            credentials, rest = (rest[1], rest[2]), rest[3:]
        elif option == b"SETNAME" and len(rest) >= 2:
            name, rest = client_commands.check_name(rest[1]), rest[2:]
        else:
            raise errors.invalid(f"ERR Syntax error in HELLO option '{echo(rest[0])}'")

    def greet() -> bytes:
        session.codec.protocol = protocol
        if name is not None:
            session.name = name
        return _greeting(session)

    if credentials is not None:
        return _authenticated(session, *credentials, greet)
    if session.known is None:
        raise errors.invalid(_HELLO_FIRST)
    return greet()


def _protocol(word: bytes) -> wire.Protocol:
    number = integer(word, "ERR Protocol version is not an integer or out of range")
    if number == 2:
        return 2
    if number == 3:
        return 3
    raise errors.invalid("NOPROTO unsupported protocol version")


def _needs_tokens(session: RespSession) -> bool:
    return not isinstance(session.policy, OpenPolicy)


def _greeting(session: RespSession) -> bytes:
    facts = Pairs(
        [
            *(b"server", b"redis", b"version", REDIS_VERSION.encode(), b"proto", session.codec.protocol),
            *(b"id", session.id, b"mode", b"standalone", b"role", b"master", b"modules", []),
            *(b"weir_version", VERSION.encode()),
        ]
    )
    return wire.encode(facts, session.codec.protocol)


def _auth(session: RespSession, words: Words) -> Written:
    """AUTH [user] secret."""
    if len(words) > 3:
        raise errors.syntax_error()
    if len(words) == 2 and not _needs_tokens(session):
        raise errors.invalid(_NOT_NEEDED)
    user = b"default" if len(words) == 2 else words[1]
    return _authenticated(session, user, words[-1], lambda: wire.OK)


async def _authenticated(
    session: RespSession, user: bytes, secret: bytes, answer: Callable[[], bytes]
) -> bytes:
    """Log in with a token: as its own user, or as `default`, which stands for any."""
    if not _needs_tokens(session):
        if user != b"default":
            raise EngineError("unauthenticated", _WRONG_PASSWORD)
        return answer()
    try:
        with session.counting_failures():
            principal = await _identify(session, user, secret)
    except RefusalError as refusal:
        if refusal.code == "unauthenticated":
            raise EngineError("unauthenticated", _WRONG_PASSWORD) from None
        raise
    session.log_in(principal)
    return answer()


async def _identify(session: RespSession, user: bytes, secret: bytes) -> Principal:
    """Whose token it is, if that is the user. Raises RefusalError: a wrong user is as wrong as a token."""
    principal = await session.policy.identify(secret.decode("latin-1"))
    if user not in (b"default", user_of(principal).encode()):
        raise unauthenticated("the token is another user's", None)
    return principal


def _acl(session: RespSession, words: Words) -> Written:
    """ACL WHOAMI."""
    if words[1].upper() != b"WHOAMI":
        raise unknown_subcommand("acl", words[1])
    if len(words) != 2:
        raise wrong_arity("acl|whoami")
    return wire.bulk(session.user.encode())


# ---- the connection


def _quit(session: RespSession, _: Words) -> Written:
    """QUIT."""
    session.connection.end(wire.OK)
    return None


def _reset(session: RespSession, _: Words) -> Written:
    """RESET: as newly connected."""
    session.log_out()
    return b"+RESET\r\n"


def _end_browser(session: RespSession, _: Words) -> Written:
    """A web page sends HTTP to any port: what it goes on with must not be run."""
    session.connection.end_browser()
    return None


def _role(session: RespSession, _: Words) -> Written:
    """ROLE: a primary without replicas."""
    return wire.encode([b"master", 0, []], session.codec.protocol)


def _select(_: RespSession, words: Words) -> Written:
    """SELECT 0."""
    number = integer(words[1])
    if number == 0:
        return wire.OK
    raise errors.invalid("ERR DB index is out of range")


def _client(session: RespSession, words: Words) -> Written:
    """CLIENT subcommand …."""
    subcommand = client_commands.SUBCOMMANDS.get(words[1].upper())
    if subcommand is None:
        raise unknown_subcommand("client", words[1])
    arity, handle = subcommand
    if len(words) != arity and not len(words) >= -arity > 0:
        raise wrong_arity(f"client|{words[1].lower().decode('latin-1')}")
    return handle(session, words)


@cache
def _table() -> CommandTable:
    return CommandTable(
        {name.decode(): one.arity for name, one in SESSION_COMMANDS.items() if name not in _OF_BROWSERS}
    )


_OF_BROWSERS: Final = (b"post", b"host:")

SESSION_COMMANDS: Final[Mapping[bytes, SessionCommand]] = {
    **server_commands.commands(_table),
    **diagnostic_commands.COMMANDS,
    b"hello": SessionCommand(-1, _hello, open=True),
    b"auth": SessionCommand(-2, _auth, open=True),
    b"quit": SessionCommand(-1, _quit, open=True, in_multi=True, in_subscription=True),
    b"reset": SessionCommand(1, _reset, open=True, in_multi=True, in_subscription=True),
    **{
        word: SessionCommand(-1, _end_browser, open=True, in_multi=True, in_subscription=True)
        for word in _OF_BROWSERS
    },
    b"role": SessionCommand(1, _role),
    b"select": SessionCommand(2, _select),
    b"client": SessionCommand(-2, _client),
    b"acl": SessionCommand(-2, _acl),
}
