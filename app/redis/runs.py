"""Runs: commands that go through the engine together, each with its own reply.

Knows: which commands may share a run, and that consecutive plain XADDs to one stream are one command of the
engine.
Must never know: where the words came from, how replies are written, HTTP.

    words, words, words …  ─►  CommandRun: commands ─►  engine.send  ─►  replies ─►  outcome, outcome …

A plain XADD is `XADD stream * name value …` without options: what nearly every publisher sends. A run of them
costs a few microseconds for each, because the engine appends their entries at once. Readers see them at once
too.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeAlias

import msgspec

from app import names
from app.limits import CommandLimits
from app.redis.bounds import takes_two_steps
from app.redis.request import CommandRequest
from engine import EngineError, errors
from engine.commands import AddEach, Command
from engine.replies import Added, Reply

# A parsed command, or the reason why it is invalid.
Parsed: TypeAlias = CommandRequest | EngineError
# What a command of a run comes to: the request and the engine's reply, where there is one; or the ID of an
# entry that a plain XADD has added.
RunResult: TypeAlias = tuple[CommandRequest, Reply | EngineError | None] | EngineError | int

# Commands, and IDs that they name: about 10 ms of the event loop.
RUN_COMMANDS_MAX: Final = 1_000
RUN_ENTRY_BYTES_MAX: Final = 1 << 20

_XADD: Final = frozenset({b"XADD", b"xadd"})
_to_json: Final = msgspec.json.Encoder().encode


class Adds(msgspec.Struct):
    """Consecutive plain XADDs to one stream."""

    key: bytes
    stream: str
    bodies: list[bytes]

    def command(self) -> AddEach:
        """What the engine has to run."""
        return AddEach(stream=self.stream, bodies=self.bodies, apart=True)


def stream_of(key: bytes) -> str | None:
    """The stream of this name; None if it is none."""
    try:
        return names.check(key, "stream name")
    except EngineError:
        return None


class CommandRun:
    """Commands in order. `find` returns the stream of a plain XADD, None where it may not be added to."""

    __slots__ = (
        *("_adding", "_find", "_ids", "_limits", "count", "entry_bytes", "items", "long"),
        "words_bytes",
    )

    def __init__(self, limits: CommandLimits, find: Callable[[bytes], str | None] = stream_of) -> None:
        self._limits = limits
        self._find = find
        self.items: list[Adds | Parsed] = []
        self._adding: Adds | None = None
        self.count = 0
        self.entry_bytes = 0
        # Of what a caller has sent; of plain XADDs the entries.
        self.words_bytes = 0
        self._ids = 0
        # Whether the reply may be long, as the caller says: then it has one command.
        self.long = False

    def is_full(self) -> bool:
        """Whether the run is as long as the event loop allows."""
        return self.count + self._ids >= RUN_COMMANDS_MAX or self.entry_bytes >= RUN_ENTRY_BYTES_MAX

    def add_plain(self, words: Sequence[bytes]) -> bool:
        """Add a plain XADD; False if these words are something else, or invalid."""
        number = len(words)
        if number < 5 or words[2] != b"*" or words[0] not in _XADD or not number % 2:
            return False
        body = body_of(words[3:], self._limits)
        adding = None if body is None else self._adds_to(words[1])
        if body is None or adding is None:
            return False
        adding.bodies.append(body)
        self.count += 1
        self.entry_bytes += len(body)
        self.words_bytes += len(body)
        return True

    def add_alike(self, commands: Sequence[Sequence[bytes]]) -> bool:
        """Add plain XADDs to one stream with the same names in the same order, a column at a time: a third of
        the time of `add_plain` for each. False, with nothing added, if one of them is something else, or if
        they may be too much for the run.
        """
        first, number = commands[0], len(commands[0])
        if number < 5 or first[2] != b"*" or first[0] not in _XADD or not number % 2:
            return False
        if {*map(len, commands)} != {number} or self.count + len(commands) > RUN_COMMANDS_MAX:
            return False
        columns = [*zip(*commands, strict=True)]
        fixed = (0, 1, 2, *range(3, number, 2))
        if any(columns[place].count(first[place]) != len(commands) for place in fixed):
            return False
        bodies, limits = _bodies_of(first[3::2], columns[4::2]), self._limits
        if not bodies or number // 2 - 1 > limits.entry_fields_max:
            return False
        sizes = [*map(len, bodies)]
        if max(sizes) > limits.entry_bytes_max or self.entry_bytes + sum(sizes) > RUN_ENTRY_BYTES_MAX:
            return False
        adding = self._adds_to(first[1])
        if adding is None:
            return False
        adding.bodies += bodies
        self.count += len(bodies)
        self.entry_bytes += sum(sizes)
        self.words_bytes += sum(sizes)
        return True

    def _adds_to(self, key: bytes) -> Adds | None:
        """The entries that are being added to this stream; None where the caller may not add to it."""
        if self._adding is not None and self._adding.key == key:
            return self._adding
        stream = self._find(key)
        if stream is None:
            return None
        self._adding = Adds(key, stream, [])
        self.items.append(self._adding)
        return self._adding

    def add(self, parsed: Parsed, words_bytes: int = 0) -> None:
        """Add any other command, of words of this size."""
        self.append(parsed)
        self.words_bytes += words_bytes
        if isinstance(parsed, CommandRequest) and parsed.command is not None:
            self.entry_bytes += parsed.command.entry_bytes()
            self._ids += len(parsed.command.named_ids())

    def append(self, parsed: Parsed) -> None:
        """Add any other command, without a look at how much it adds to the run."""
        self._adding = None
        self.items.append(parsed)
        self.count += 1

    def add_adds(self, adds: Adds) -> None:
        """Add plain XADDs of another run."""
        self._adding = None
        self.items.append(adds)
        self.count += len(adds.bodies)
        self.entry_bytes += sum(map(len, adds.bodies))

    @property
    def only_adds(self) -> Adds | None:
        """What it adds, if it is plain XADDs to one stream and nothing else."""
        adds = self.items[0] if len(self.items) == 1 else None
        return adds if isinstance(adds, Adds) else None

    def commands(self) -> list[Command]:
        """What the engine has to run."""
        found: list[Command] = []
        for item in self.items:
            if isinstance(item, CommandRequest):
                if item.command is not None:
                    found.append(item.command)
            elif isinstance(item, Adds):
                found.append(item.command())
        return found

    def outcomes(self, replies: Sequence[Reply | EngineError]) -> Iterator[RunResult]:
        """What each command comes to; `replies` has one for each of `commands`."""
        given = iter(replies)
        for item in self.items:
            if isinstance(item, CommandRequest):
                yield item, None if item.command is None else next(given)
            elif isinstance(item, Adds):
                yield from each_added(next(given), len(item.bodies))
            else:
                yield item


def body_of(words: Sequence[bytes], limits: CommandLimits) -> bytes | None:
    """The body of an entry with these names and values; None where they are not plain, or too much."""
    try:
        texts = [*map(bytes.decode, words)]
    except UnicodeDecodeError:
        return None
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    body = b',"fields":%b}' % _to_json(fields)
    is_plain = 2 * len(fields) == len(texts) and len(fields) <= limits.entry_fields_max
    return body if is_plain and len(body) <= limits.entry_bytes_max else None


def _bodies_of(names: Sequence[bytes], columns: Sequence[Sequence[bytes]]) -> list[bytes]:
    """The bodies of entries with these names, from a column of values of each; none where JSON has to escape
    something, or a name occurs twice.
    """
    # A blank is part of no other character. What JSON escapes gets longer.
    joined = b" ".join([*names, *chain.from_iterable(columns)])
    try:
        text = joined.decode()
    except UnicodeDecodeError:
        return []
    if len(_to_json(text)) != len(joined) + 2 or len({*names}) != len(names):
        return []
    fields = b",".join([b'"%b":"%%b"' % name.replace(b"%", b"%%") for name in names])
    return [*map((b',"fields":{%b}}' % fields).__mod__, zip(*columns, strict=True))]


def sent_together(
    commands: Sequence[Command], replies: Sequence[Reply | EngineError], *, is_part: bool
) -> Sequence[Reply | EngineError]:
    """The replies of commands that a client has sent together, `is_part`: with others. A client that repeats
    what is refused repeats all of it: so it is told to only where nothing was changed.
    """
    refused = [reply for reply in replies if isinstance(reply, EngineError)]
    if not any(errors.is_repeated(refusal.redis) for refusal in refused):
        return replies
    maybe = [
        command
        for command, reply in zip(commands, replies, strict=True)
        if command.changes
        and (not isinstance(reply, EngineError) or reply.members.get("outcome") == "unknown")
    ]
    if not (maybe or is_part):
        return replies
    return [errors.unrepeated(reply) if isinstance(reply, EngineError) else reply for reply in replies]


def each_added(reply: Reply | EngineError | None, number: int) -> Iterator[EngineError | int]:
    """The ID of each entry, and the refusal of those that were refused, or for which there were no IDs."""
    if isinstance(reply, EngineError):
        yield from [reply] * number
        return
    assert isinstance(reply, Added), "AddEach adds"
    given, refused = iter(reply.ids), {*reply.refused}
    for place in range(number):
        if place in refused:
            yield errors.invalid(f"ERR {reply.refusal}", reply.refusal)
        else:
            yield next(given, None) or errors.stream_exhausted()


def runs_alone(parsed: CommandRequest) -> bool:
    """Whether the command cannot be part of a run: it waits for entries or the disk, or takes two steps."""
    blocks = getattr(parsed.command, "block_ms", None) is not None
    return blocks or parsed.synced or takes_two_steps(parsed)
