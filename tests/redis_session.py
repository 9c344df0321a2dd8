"""A conversation in Redis's words with an engine in memory: what several tests speak.

Knows: words → parse → one turn of the engine → RESP2 shape, with a clock that the test sets.
Must never know: HTTP, disk, waiting: a read that would wait answers null, as one whose time ran out at once.
"""

from collections.abc import Sequence

from app.redis import CommandRequest, Resp, parse
from engine import EngineError
from engine.commands.execution import Blocked, Unfinished, execute
from engine.keyspace import Keyspace


def parse_or_refusal(words: Sequence[bytes]) -> CommandRequest | EngineError:
    """The command, or why it is none."""
    try:
        return parse(words)
    except EngineError as refusal:
        return refusal


class RedisSession:
    """`run` and `call` take a command's words, text or bytes; `now_ms` is the clock, to be moved by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.keyspace = Keyspace()
        self.now_ms = now_ms

    def run(self, words: Sequence[str | bytes]) -> Resp:
        """The answer in its RESP2 shape. Raises `EngineError`."""
        request = parse([word.encode() if isinstance(word, str) else word for word in words])
        if request.command is None:
            return request.immediate(self.now_ms * 1000)
        reply = execute(self.keyspace, request.command, self.now_ms).reply
        assert not isinstance(reply, Unfinished), "what is tested here is small"
        return None if isinstance(reply, Blocked) else request.answer(reply)

    def call(self, *words: str | bytes) -> Resp:
        """The same with the words one by one, and what is wrong as the text `-ERR …`."""
        try:
            return self.run(words)
        except EngineError as refusal:
            return f"-{refusal.redis}"
