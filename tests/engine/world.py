"""A small world to talk to in Redis's words: turns of the engine, and whether nothing of them would be lost.

Knows: words → one turn → the reply as plain text, numbers and lists; what the log would hold of it.
Must never know: asyncio, disk, waiting: a read that would wait answers null, as if its time had run out.
"""

from collections.abc import Sequence

from app.redis import Resp, parse
from engine import EngineError
from engine.commands.base import Command
from engine.commands.execution import Blocked, Execution, Turn, Unfinished, execute, execute_all
from engine.keyspace import Keyspace
from engine.record import Record
from engine.records.changes import RemoveStream
from engine.records.payload import decode, encode, replay
from engine.records.snapshot import snapshot
from engine.replies import Reply
from tests.engine.images import image

NOW_MS = 1_700_000_000_000
INVALID_ID = "-ERR Invalid stream ID specified as stream command argument"
ID_MAX = "18446744073709551615-18446744073709551615"

Word = str | bytes | int


def words_of(words: Sequence[Word]) -> list[bytes]:
    """Words as the parser takes them."""
    return [word if isinstance(word, bytes) else str(word).encode() for word in words]


def plain(resp: Resp) -> object:
    """A reply as text, numbers, None and lists; bytes that are not UTF-8 stay bytes."""
    if isinstance(resp, list):
        return [plain(element) for element in resp]
    if isinstance(resp, bytes):
        try:
            return resp.decode()
        except UnicodeDecodeError:
            return resp
    return resp


class World:
    """`call` and `transaction` take words; `now_ms` is the clock, to be moved by hand."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.keyspace = Keyspace()
        self.now_ms = now_ms
        self.payloads: list[bytes] = []
        self.signalled: list[str] = []
        # Of all commands that were run.
        self.kinds: set[type[Command]] = set()

    def call(self, *words: Word) -> object:
        """The reply; what is refused as the text `-ERR …`."""
        try:
            request = parse(words_of(words))
        except EngineError as refusal:
            return f"-{refusal.redis}"
        if request.command is None:
            return plain(request.immediate(self.now_ms * 1000))
        reply = self.execute(request.command)
        if reply is None:
            return None
        try:
            return plain(request.answer(reply[0]))
        except EngineError as refusal:
            return f"-{refusal.redis}"

    def execute(self, command: Command) -> tuple[Reply | EngineError] | None:
        """Run a command of the engine; its reply in a tuple, None where it would wait."""
        self.kinds.add(type(command))
        outcome = self.run_turn(command)
        self.signalled = list(outcome.turn.signalled)
        self._log(outcome.turn.records, changed=not isinstance(outcome.reply, EngineError))
        assert not isinstance(outcome.reply, Unfinished), "a small world"
        return None if isinstance(outcome.reply, Blocked) else (outcome.reply,)

    def run_turn(self, command: Command) -> Execution:
        """One turn of a command."""
        return execute(self.keyspace, command, self.now_ms)

    def run_transaction(self, commands: Sequence[Command]) -> tuple[Sequence[Reply | EngineError], Turn]:
        """The turn of several."""
        return execute_all(self.keyspace, commands, self.now_ms)

    def empty_keyspace(self) -> Keyspace:
        """Another world, to be filled from what this one has."""
        return Keyspace()

    def transaction(self, *commands: Sequence[Word]) -> list[object]:
        """The replies of commands that are one turn."""
        requests = [parse(words_of(words)) for words in commands]
        inner = [request.command for request in requests if request.command is not None]
        assert len(inner) == len(requests), "only commands of the engine"
        replies, turn = self.run_transaction(inner)
        self.signalled = list(turn.signalled)
        self._log(turn.records, changed=True)
        return [
            f"-{reply.redis}" if isinstance(reply, EngineError) else plain(request.answer(reply))
            for request, reply in zip(requests, replies, strict=True)
        ]

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms

    def info(self, stream: str, *name: str) -> object:
        """A value of XINFO STREAM, several as a list."""
        values = self.map("XINFO", "STREAM", stream)
        return values[name[0]] if len(name) == 1 else [values[each] for each in name]

    def map(self, *words: Word) -> dict[object, object]:
        """A flat map as a dict."""
        return pairs_of(self.call(*words))

    def group(self, stream: str, group: str) -> dict[object, object]:
        """A group's element of XINFO GROUPS."""
        return self._named(self.call("XINFO", "GROUPS", stream), group)

    def consumer(self, stream: str, group: str, consumer: str) -> dict[object, object]:
        """A consumer's element of XINFO CONSUMERS."""
        return self._named(self.call("XINFO", "CONSUMERS", stream, group), consumer)

    def consumers(self, stream: str, group: str) -> list[object]:
        """The names of a group's consumers."""
        return [
            pairs_of(element)["name"] for element in as_list(self.call("XINFO", "CONSUMERS", stream, group))
        ]

    def ids(self, stream: str) -> list[object]:
        """The IDs of all live entries."""
        return [as_list(entry)[0] for entry in as_list(self.call("XRANGE", stream, "-", "+"))]

    def pending(self, stream: str, group: str) -> list[object]:
        """All pending entries: ID, consumer, idle time, delivery count."""
        return as_list(self.call("XPENDING", stream, group, "-", "+", 1000))

    def add(self, stream: str, *entry_ids: str) -> None:
        """Add entries with these IDs."""
        for entry_id in entry_ids:
            assert not str(self.call("XADD", stream, entry_id, "a", "1")).startswith("-")

    def read(self, group: str, consumer: str, stream: str, cursor: str = ">", *options: Word) -> object:
        """XREADGROUP of one stream."""
        return self.call("XREADGROUP", "GROUP", group, consumer, *options, "STREAMS", stream, cursor)

    def check(self) -> None:
        """Assert integrity, and that log and snapshot each give the same state."""
        self.keyspace.check()
        now = image(self.keyspace)
        replayed = self.empty_keyspace()
        for payload in self.payloads:
            replay(replayed, payload)
        replayed.check()
        assert image(replayed) == now, "replaying the log gives the same state"
        written = list(snapshot(self.keyspace))
        restored = self.empty_keyspace()
        for record in decode(encode(written)):
            record.apply(restored)
        restored.check()
        assert image(restored) == now, "a snapshot gives the same state"
        assert list(snapshot(restored)) == written, "a snapshot of a snapshot is the same"

    def _log(self, records: list[Record], *, changed: bool) -> None:
        expired = all(isinstance(record, RemoveStream) for record in records)
        assert changed or expired, "a refusal has changed nothing, but a stream may have expired"
        if records:
            self.payloads.append(encode(records))

    @staticmethod
    def _named(elements: object, name: str) -> dict[object, object]:
        found = [pairs_of(element) for element in as_list(elements)]
        return next(each for each in found if each["name"] == name)


def pairs_of(flat: object) -> dict[object, object]:
    """A map, in RESP2 names and values in turn, as a dict."""
    if isinstance(flat, dict):
        return flat
    values = as_list(flat)
    return dict(zip(values[::2], values[1::2], strict=True))


def as_list(reply: object) -> list[object]:
    """The reply, known to be a list."""
    assert isinstance(reply, list), reply
    return reply
