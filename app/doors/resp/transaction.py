"""What a connection has queued since MULTI, and what it watches.

Knows: which commands cannot be queued, how much may be. Must never know: sockets, how a transaction runs.
"""

from collections.abc import Callable

from app.doors.resp.requests import Words
from app.redis.parsers.table import look_up
from app.redis.runs import Parsed
from engine import EngineError, errors
from engine.commands import Unchanged


class Transaction:
    """The commands since MULTI. One that cannot be queued discards all of them."""

    __slots__ = ("_bytes_left", "_bytes_max", "_commands_max", "is_discarded", "requests")

    def __init__(self, commands_max: int, bytes_max: int) -> None:
        self.requests: list[Parsed] = []
        self.is_discarded = False
        self._commands_max = commands_max
        self._bytes_left = self._bytes_max = bytes_max

    @property
    def queued_bytes(self) -> int:
        """The words of all commands."""
        return self._bytes_max - self._bytes_left

    def queue(self, words: Words, parse: Callable[[Words], Parsed]) -> None:
        """Queue a command. Raises EngineError where Redis refuses it at once."""
        try:
            self._check(words)
            if self.is_discarded:
                return
            parsed = parse(words)
            if isinstance(parsed, EngineError) and parsed.code == "forbidden":
                raise parsed
        except EngineError:
            self.discard()
            raise
        self.requests.append(parsed)

    def discard(self) -> None:
        """Have EXEC run nothing."""
        self.is_discarded = True
        self.requests.clear()

    def _check(self, words: Words) -> None:
        look_up(words)
        self._bytes_left -= sum(map(len, words))
        if len(self.requests) >= self._commands_max:
            raise errors.invalid(f"ERR too many commands: a transaction has at most {self._commands_max}")
        if self._bytes_left < 0:
            raise errors.invalid("ERR the transaction is too long (body_bytes_max)")


class Watched:
    """The streams that a client watches, with their versions when it began."""

    __slots__ = ("streams",)

    def __init__(self) -> None:
        self.streams: dict[str, int] = {}

    def condition(self) -> Unchanged | None:
        """What has to hold for EXEC."""
        return Unchanged(versions=dict(self.streams)) if self.streams else None
