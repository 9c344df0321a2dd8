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
from app.doors.resp.client import RespClient, user_of
from app.doors.resp.command_table import CommandTable
from app.doors.resp.commands import client_commands, diagnostic_commands, server_commands
from app.doors.resp.link import Link, SessionCommand, Written
from app.doors.resp.requests import Words
from app.doors.resp.server_info import REDIS_VERSION
from app.errors import RefusalError
from app.redis import wire
from app.redis.parsers import help as help_texts
from app.redis.parsers.words import echo, integer, unknown_subcommand, wrong_arity
from app.redis.resp import Pairs
from engine import EngineError, errors

_WRONG_PASSWORD: Final = "WRONGPASS invalid username-password pair or user is disabled."  # noqa: S105 - Redis's sentence
_NOT_NEEDED: Final = (
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
    "configuration is correct?"
)
# What these do to the port and its clients is in the audit log.
_AUDITED: Final = frozenset({b"client|kill", b"client|unblock", b"slowlog|reset"})
_WITH_HELP: Final = frozenset({b"acl", b"client", b"command"})
_DISCARDED: Final = "EXECABORT Transaction discarded because of: "
_HELLO_FIRST: Final = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
    "<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the "
    "same time"
)


def find(words: Words) -> SessionCommand | None:
    """The session command of that name."""
    return SESSION_COMMANDS.get(words[0].lower())


def run(link: Link, words: Words) -> Written:
    """Run a session command. Raises EngineError."""
    operation = b"|".join(words[:2]).lower()
    if operation not in _AUDITED:
        return _run(link, words)
    arguments = echo(b" ".join(words[2:]))
    try:
        written = _run(link, words)
    except EngineError as refusal:
        link.account.note_session_command(operation.decode(), arguments, refusal)
        raise
    link.account.note_session_command(operation.decode(), arguments, None)
    return written


def name_of(words: Words) -> str:
    """The name of a session command, empty for any other."""
    name = words[0].lower()
    return name.decode() if name in SESSION_COMMANDS else ""


def _run(link: Link, words: Words) -> Written:
    command = find(words)
    assert command is not None, "it was found"
    if len(words) != command.arity and not len(words) >= -command.arity > 0:
        raise _refused(link.client, wrong_arity(words[0].lower().decode("latin-1")), words)
    if len(words) == 2 and words[1].upper() == b"HELP" and words[0].lower() in _WITH_HELP:
        return wire.encode(list(help_texts.lines(words[0].lower().decode())), link.client.protocol)
    return command.handle(link, words)


def _refused(client: RespClient, refusal: EngineError, words: Words) -> EngineError:
    """The refusal of a command that is not looked at: it discards a transaction, and EXEC ends it."""
    if words[0].lower() == b"exec":
        client.end_transaction()
        return errors.invalid(f"{_DISCARDED}{refusal.redis.removeprefix('ERR ')}")
    if client.transaction is not None:
        client.transaction.discard()
    return refusal


# ---- who it is


def _hello(link: Link, words: Words) -> Written:
    """HELLO [protover [AUTH user password] [SETNAME name]]."""
    client = link.client
    protocol, credentials, name = client.protocol, None, None
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
        client.protocol = protocol
        if name is not None:
            client.name = name
        return _greeting(link)

    if credentials is not None:
        return _authenticated(link, *credentials, greet)
    if client.principal is None:
        raise errors.invalid(_HELLO_FIRST)
    return greet()


def _protocol(word: bytes) -> wire.Protocol:
    number = integer(word, "ERR Protocol version is not an integer or out of range")
    if number == 2:
        return 2
    if number == 3:
        return 3
    raise errors.invalid("NOPROTO unsupported protocol version")


def _needs_tokens(link: Link) -> bool:
    return not isinstance(link.policy, OpenPolicy)


def _greeting(link: Link) -> bytes:
    client = link.client
    facts = Pairs(
        [
            *(b"server", b"redis", b"version", REDIS_VERSION.encode(), b"proto", client.protocol),
            *(b"id", client.id, b"mode", b"standalone", b"role", b"master", b"modules", []),
            *(b"weir_version", VERSION.encode()),
        ]
    )
    return wire.encode(facts, client.protocol)


def _auth(link: Link, words: Words) -> Written:
    """AUTH [user] secret."""
    if len(words) > 3:
        raise errors.syntax_error()
    if len(words) == 2 and not _needs_tokens(link):
        raise errors.invalid(_NOT_NEEDED)
    user = b"default" if len(words) == 2 else words[1]
    return _authenticated(link, user, words[-1], lambda: wire.OK)


async def _authenticated(link: Link, user: bytes, secret: bytes, answer: Callable[[], bytes]) -> bytes:
    """Log in with a token: as its own user, or as `default`, which stands for any."""
    if not _needs_tokens(link):
        if user != b"default":
            raise EngineError("unauthenticated", _WRONG_PASSWORD)
        return answer()
    try:
        with link.counting_failures():
            principal = await _identify(link, user, secret)
    except RefusalError as refusal:
        if refusal.code == "unauthenticated":
            raise EngineError("unauthenticated", _WRONG_PASSWORD) from None
        raise
    link.log_in(principal)
    return answer()


async def _identify(link: Link, user: bytes, secret: bytes) -> Principal:
    """Whose token it is, if that is the user. Raises RefusalError: a wrong user is as wrong as a token."""
    principal = await link.policy.identify(secret.decode("latin-1"))
    if user not in (b"default", user_of(principal).encode()):
        raise unauthenticated("the token is another user's", None)
    return principal


def _acl(link: Link, words: Words) -> Written:
    """ACL WHOAMI."""
    if words[1].upper() != b"WHOAMI":
        raise unknown_subcommand("acl", words[1])
    if len(words) != 2:
        raise wrong_arity("acl|whoami")
    return wire.bulk(link.client.user.encode())


# ---- the connection


def _quit(link: Link, _: Words) -> Written:
    """QUIT."""
    link.end(wire.OK)
    return None


def _reset(link: Link, _: Words) -> Written:
    """RESET: as newly connected."""
    link.log_out()
    return b"+RESET\r\n"


def _end_browser(link: Link, _: Words) -> Written:
    """A web page sends HTTP to any port: what it goes on with must not be run."""
    link.end_browser()
    return None


def _role(link: Link, _: Words) -> Written:
    """ROLE: a primary without replicas."""
    return wire.encode([b"master", 0, []], link.client.protocol)


def _select(_: Link, words: Words) -> Written:
    """SELECT 0."""
    number = integer(words[1])
    if number == 0:
        return wire.OK
    raise errors.invalid("ERR DB index is out of range")


def _client(link: Link, words: Words) -> Written:
    """CLIENT subcommand …."""
    subcommand = client_commands.SUBCOMMANDS.get(words[1].upper())
    if subcommand is None:
        raise unknown_subcommand("client", words[1])
    arity, handle = subcommand
    if len(words) != arity and not len(words) >= -arity > 0:
        raise wrong_arity(f"client|{words[1].lower().decode('latin-1')}")
    return handle(link, words)


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
