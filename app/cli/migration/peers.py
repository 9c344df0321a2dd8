"""The two servers of an import, seen alike: commands go in as one turn, RESP2 replies come out.

Knows: how a Redis is spoken to, how the command door is, and which trouble passes.
Must never know: what the commands are about.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

import httpx
import orjson
import typer

from weir.cli.client import Gateway, of_stream
from weir.cli.failure import Failure

_ANSWER_S_MAX: Final = 60.0
_CONNECT_S_MAX: Final = 5.0
_BUSY: Final = frozenset((429, 502, 503, 504))
_TOO_LARGE: Final = 413
_FASTER: Final = 412
# As base64 in JSON, half of what a body may have by default.
TURN_BYTES_MAX: Final = 3 << 20

Word: TypeAlias = bytes | str | int
Command: TypeAlias = Sequence[Word]


class Refused(NamedTuple):
    """An error in place of one command's reply, with Redis's text."""

    text: str


Reply: TypeAlias = "int | bytes | Refused | list[Reply] | None"


class Away(Failure):
    """A server cannot be reached, or is busy, at the moment. What became of the commands is not known."""


class TooLarge(Failure):
    """The commands are too many bytes together; none was run."""


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


class Origin:
    """A connection to a Redis; it begins with the first command."""

    def __init__(self, url: str) -> None:
        try:
            from redis.connection import ConnectionPool
        except ImportError:
            raise Failure("`weir import` needs the client of Redis: pip install 'redis>=8.1'") from None
        try:
            # RESP2, which every version speaks, and replies as they come: this client makes dictionaries of
            # some of them, and so would lose fields that stand twice.
            pool = ConnectionPool.from_url(
                url, protocol=2, socket_timeout=_ANSWER_S_MAX, socket_connect_timeout=_CONNECT_S_MAX
            )
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--redis") from None
        self._connection = cast(_Connection, pool.make_connection())

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

        try:
            self._connection.connect()
            self._connection.send_packed_command(self._connection.pack_commands(commands))
            return read()
        except (exceptions.AuthenticationError, exceptions.AuthorizationError) as error:
            raise Failure(f"Redis: {error}") from None
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            self.close()
            raise Away(f"Redis does not answer: {error}") from None
        except exceptions.RedisError as error:
            self.close()
            raise Failure(f"Redis: {error}") from None

    def _executed(self, count: int) -> list[Reply]:
        queued = [self._reply() for _ in range(count + 1)]
        executed = self._reply()
        refused = [reply for reply in queued if isinstance(reply, Refused)]
        if refused or not isinstance(executed, list):
            raise Failure(f"Redis: {refused[0].text if refused else 'the transaction was given up'}")
        return executed

    def _reply(self) -> Reply:
        from redis import exceptions

        try:
            return _plain(self._connection.read_response())
        except exceptions.ResponseError as error:
            return Refused(str(error))


def _plain(reply: object) -> Reply:
    """A reply of the client: errors within lists are values of their own."""
    if isinstance(reply, list):
        return [_plain(one) for one in reply]
    if isinstance(reply, Exception):
        return Refused(str(reply))
    assert reply is None or isinstance(reply, int | bytes), "RESP2 has nothing else"
    return reply


class Door(Gateway):
    """The command door of a gateway. Nothing is sent twice here: who copies knows what is safe to repeat."""

    def together(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands as one turn, in base64, so that any bytes pass."""
        body = [[_encoded(word) for word in words] for words in commands]
        response = self._posted("/v1/commands/multi-exec", body, {"weir-encoding": "base64"})
        answer = _json(response)
        if response.is_success and isinstance(answer, list):
            return [_outcome(one) for one in answer]
        raise _failure(response, answer)

    def publish_after(self, stream: str, last_id: str, entries: Sequence[dict[str, object]]) -> bool:
        """Publish all of them if the stream's last ID is this one, or else none, and False.

        Raises Away, TooLarge; Failure where an entry is refused.
        """
        headers = {"if-match": f'"{last_id}"', "prefer": "return=minimal"}
        response = self._posted(f"{of_stream(stream)}/entries", {"entries": entries}, headers)
        if response.is_success or response.status_code == _FASTER:
            return response.is_success
        raise _failure(response, _json(response))

    def _posted(self, path: str, body: object, headers: dict[str, str]) -> httpx.Response:
        url = self._url.copy_with(path=self._url.path.rstrip("/") + path)
        timeout = httpx.Timeout(_ANSWER_S_MAX, connect=_CONNECT_S_MAX)
        headers = {"content-type": "application/json", **headers}
        try:
            return self._client.post(url, content=orjson.dumps(body), headers=headers, timeout=timeout)
        except httpx.TransportError as error:
            raise Away(f"{self._url} does not answer: {str(error) or type(error).__name__}") from None


def _json(response: httpx.Response) -> object:
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return None


def _failure(response: httpx.Response, answer: object) -> Failure:
    sentence = f"the gateway answered {response.status_code} {response.reason_phrase}".rstrip()
    if isinstance(answer, dict):
        sentence = str(answer.get("detail") or answer.get("error") or sentence)
    if response.status_code in _BUSY:
        return Away(sentence)
    return TooLarge(sentence) if response.status_code == _TOO_LARGE else Failure(sentence)


def _encoded(word: Word) -> str:
    if not isinstance(word, bytes):
        word = str(word).encode()
    return base64.b64encode(word).decode("ascii")


def _outcome(answer: dict[str, object]) -> Reply:
    return Refused(str(answer["error"])) if "error" in answer else _decoded(answer["result"])


def _decoded(value: object) -> Reply:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if isinstance(value, str):
        # The one string that is never base64.
        return b"OK" if value == "OK" else base64.b64decode(value)
    assert value is None or isinstance(value, int), "the command door answers RESP2"
    return value
