"""The two servers of an import, seen alike: commands go in as one turn, RESP2 replies come out.

Knows: how a Redis is spoken to, how the command API is called, and which failures pass.
Must never know: what the commands are about.
"""

import base64
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, Unpack, cast
from uuid import uuid4

import typer

from weir import ApiError, CallOptions, Client, NoAnswerError, NotAGatewayError
from weir.cli.failure import Failure
from weir.errors import AuthenticationError
from weir.paths import stream_path

_ANSWER_S_MAX: Final = 60.0
_CONNECT_S_MAX: Final = 5.0
# As base64 in JSON, half of what a body may have by default.
TURN_BYTES_MAX: Final = 3 << 20
# As the client of Redis says that a connection could not be made.
_NO_CONNECTION: Final = re.compile(r"Error -?\d+ connecting to (?P<place>.+?)\. (?P<why>.+?)\.?")

Word: TypeAlias = bytes | str | int
Command: TypeAlias = Sequence[Word]


class RefusedReply(NamedTuple):
    """An error in place of one command's reply, with Redis's text."""

    text: str


Reply: TypeAlias = "int | bytes | RefusedReply | list[Reply] | None"


class Away(Failure):
    """A server cannot be reached, or is busy, at the moment. Whether the commands have run is not known."""


class TooLarge(Failure):
    """The commands are too many bytes together; none was run."""


class _Overtaken(Failure):
    """Another entry was published first."""


_FAILURES: Final[Mapping[int, type[Failure]]] = {
    412: _Overtaken,
    413: TooLarge,
    **dict.fromkeys((429, 502, 503, 504), Away),
}


class Peer(Protocol):
    """A server that runs stream commands."""

    def together(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands as one turn: nothing between them. A refused one does not stop the others.

        Raises Away, TooLarge, Failure.
        """


class _Connection(Protocol):
    """What is used of the client's connection, which has no types of its own."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def pack_commands(self, commands: Sequence[Command]) -> list[bytes]: ...
    def send_packed_command(self, command: list[bytes]) -> None: ...
    def read_response(self) -> object: ...


class SourceRedis:
    """A connection to a Redis; it begins with the first command. `check` comes before each, and may raise."""

    def __init__(self, url: str, check: Callable[[], None]) -> None:
        try:
            from redis.connection import ConnectionPool
        except ImportError:
            install = f"{sys.executable} -m pip install 'redis>=8.1'"
            raise Failure(f"`weir import` needs the client of Redis: {install}") from None
        try:
            # RESP2, which every version speaks, and replies as they come: this client makes dictionaries of
            # some of them, and so would lose fields that stand twice.
            pool = ConnectionPool.from_url(
                url, protocol=2, socket_timeout=_ANSWER_S_MAX, socket_connect_timeout=_CONNECT_S_MAX
            )
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--redis") from None
        # After an error it is hung up, and begins anew with the next command.
        self._connection = cast(_Connection, pool.make_connection())
        self._check = check

    def close(self) -> None:
        """Hang up."""
        self._connection.disconnect()

    def alone(self, command: Command) -> Reply:
        """Run a command outside of a turn, where it may block."""
        return self._talk([command], lambda: [self._reply()])[0]

    def together(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in MULTI and EXEC."""
        return self._talk([("MULTI",), *commands, ("EXEC",)], lambda: self._executed(len(commands)))

    def _talk(self, commands: Sequence[Command], read: Callable[[], list[Reply]]) -> list[Reply]:
        from redis import exceptions

        self._check()
        try:
            self._connection.connect()
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            return read()
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise Failure(f"Redis: {error}") from None
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            raise Away(f"Redis does not answer: {_why(error)}") from None
        except exceptions.RedisError as error:
            raise Failure(f"Redis: {error}") from None

    def _executed(self, count: int) -> list[Reply]:
        queued = [self._reply() for _ in range(count + 1)]
        executed = self._reply()
        refused = [reply for reply in queued if isinstance(reply, RefusedReply)]
        if refused or not isinstance(executed, list):
            raise Failure(f"Redis: {refused[0].text if refused else 'the transaction was given up'}")
        return executed

    def _reply(self) -> Reply:
        from redis import exceptions

        try:
            return _plain(self._connection.read_response())
        except exceptions.ResponseError as error:
            return RefusedReply(str(error))


def _why(error: Exception) -> str:
    """Why there is no answer, without the system's number of it."""
    match = _NO_CONNECTION.fullmatch(str(error))
    return f"{match['why'].lower()}, at {match['place']}" if match is not None else str(error)


def _plain(reply: object) -> Reply:
    """A reply of the client: errors within lists are values of their own."""
    if isinstance(reply, list):
        return [_plain(part) for part in reply]
    if isinstance(reply, Exception):
        return RefusedReply(str(reply))
    assert reply is None or isinstance(reply, int | bytes), "RESP2 has nothing else"
    return reply


class CommandApi:
    """The command API of a gateway. It repeats nothing: the copy knows what is safe to repeat. `check` comes
    before each request, and may raise. A token that is missing or wrong is AuthenticationError, no Failure.
    """

    def __init__(self, client: Client, check: Callable[[], None]) -> None:
        self._client = client
        self._check = check

    def together(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands as one turn, in base64, so that any bytes pass."""
        body = [[_encoded(word) for word in words] for words in commands]
        headers = {"weir-encoding": "base64"}
        answer = self._post("/v1/commands/multi-exec", body=body, headers=headers)
        try:
            return _outcomes(answer)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise NotAGatewayError(f"{self._client.url} did not answer as the command API does") from None

    def publish_after(self, stream: str, last_id: str, entries: Sequence[dict[str, object]]) -> bool:
        """Publish all entries if the stream's last ID is this one; otherwise none, and return False.

        Raises Away, TooLarge; Failure where an entry is refused.
        """
        headers = {
            "idempotency-key": uuid4().hex,
            "if-match": f'"{last_id}"',
            "prefer": "return=minimal",
        }
        body = {"entries": entries}
        try:
            self._post(f"{stream_path(stream)}/entries", body=body, headers=headers, repeatable=True)
        except _Overtaken:
            return False
        return True

    def _post(self, path: str, **options: Unpack[CallOptions]) -> Any:  # noqa: ANN401 - JSON
        self._check()
        try:
            return self._client.call("POST", path, **options)
        except NoAnswerError as error:
            raise Away(str(error)) from None
        except AuthenticationError:
            # No stream would get further.
            raise
        except ApiError as refused:
            # The command API answers as Redis does, with `error`.
            sentence = str(refused.problem.get("error") or refused.detail)
            raise _FAILURES.get(refused.status, Failure)(sentence) from None


def _outcomes(answer: list[dict[str, Any]]) -> list[Reply]:
    return [RefusedReply(str(row["error"])) if "error" in row else _decoded(row["result"]) for row in answer]


def _encoded(word: Word) -> str:
    if not isinstance(word, bytes):
        word = str(word).encode()
    return base64.b64encode(word).decode("ascii")


def _decoded(value: object) -> Reply:
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    if isinstance(value, str):
        # The one string that is never base64.
        return b"OK" if value == "OK" else base64.b64decode(value)
    assert value is None or isinstance(value, int), "the command API answers RESP2"
    return value
