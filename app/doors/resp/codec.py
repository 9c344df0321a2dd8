"""The bytes of one connection: to commands, in the multibulk and the inline form, and of replies.

Knows: the two forms, their limits, the sentences with which Redis refuses what breaks them.
Must never know: commands, connections, what a caller may do.

    *2 $4 XLEN $1 s     multibulk, a line each: what clients send       →  [b"XLEN", b"s"]
    XLEN s              inline: a person, or a health check             →  [b"XLEN", b"s"]

**Two readers.** Usual commands are short words: splitting a read at its line ends and comparing lengths reads
a word in 200 ns, with any content. What does not fit this pattern goes to the walker, which takes header by
header: long words, words with line ends, inline commands, all that comes before AUTH, and a command whose end
comes in a later read. It goes on where it stopped, so a client that sends byte by byte costs no more than
another. Neither reserves anything that was not sent.

hiredis reads a word in 50 ns, but reserves eight bytes for each announced element at once: the 13 bytes
`*1000000000` take 8 GB of address space. Looking for such headers beforehand, and for a command cut off
behind the whole ones, takes what hiredis saves.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec

from app.redis import CommandRequest, Resp, wire
from app.redis.request import Visible
from engine import EngineError
from engine.replies import Reply

Words = list[bytes]

# Headers of usual commands; others are the walker's.
_COUNTS: Final = {b"*%d" % count: count for count in range(1, 1_001)}
length_of: Final = {b"$%d" % length: length for length in range(1_024)}.get
# A line without an end is neither a header nor a command: Redis has the same limit.
INLINE_BYTES_MAX: Final = 64 << 10
# As Redis since CVE-2021-32675.
UNAUTHENTICATED_WORDS_MAX: Final = 10
UNAUTHENTICATED_BYTES_MAX: Final = 16 << 10
_COUNT: Final = re.compile(rb"-?[0-9]{1,10}")
# Blank lines, and counts of no words: nothing is asked, however many come.
_NOTHING: Final = re.compile(rb"(?:[ \t\v\f\r]*+\n|\*(?:0{1,10}|-[0-9]{1,10})\r?\n)*+")
# Headers and words that are read between two looks at the clock: less than a tenth of a millisecond.
_STEPS_A_LOOK: Final = 64
# What separates the words of an inline command, and what a quoted one may hold.
_INLINE_WORD: Final = re.compile(
    rb"""\s*(?:"((?:[^"\\]|\\.)*)"(?=\s|$)|'((?:[^'\\]|\\.)*)'(?=\s|$)|([^\s"']\S*))""", re.DOTALL
)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


class ProtocolError(Exception):
    """The bytes are no request: the connection ends with this sentence."""


class RequestLimits(msgspec.Struct, frozen=True):
    """The maximum words of a command, and the maximum bytes of all of them."""

    words_max: int
    bytes_max: int
    authenticated: bool = True


UNAUTHENTICATED: Final = RequestLimits(UNAUTHENTICATED_WORDS_MAX, UNAUTHENTICATED_BYTES_MAX, False)  # noqa: FBT003 - a struct's field


def _always() -> bool:
    return True


class RespCodec:
    """The codec of one connection: `feed` bytes, take from `commands`; replies in its `protocol`.

    Once `error` is set, nothing more is read.
    """

    frame_bytes: ClassVar = 0
    is_repeated: ClassVar = True

    __slots__ = ("_walker", "commands", "error", "protocol")

    def __init__(self) -> None:
        self.protocol: wire.Protocol = 2
        self.commands: deque[Words] = deque()
        self.error: ProtocolError | None = None
        self._walker: _Walker | None = None

    def feed(self, data: bytes, limits: RequestLimits, has_time: Callable[[], bool] = _always) -> None:
        """Read the commands in `data`, which continues what was fed before. Before AUTH, it stops behind each
        command: the next may be read under other limits, by `feed(b"", …)`. Without time it stops too.
        """
        if self.error is not None:
            return
        try:
            if self._walker is not None and limits.authenticated and self._walker.is_between:
                data, self._walker = self._walker.take_rest() + data, None
            if self._walker is None:
                if limits.authenticated:
                    data = data[_read_fast(data, self.commands, limits, has_time) :]
                if not data:
                    return
                self._walker = _Walker()
            if self._walker.walk(data, self.commands, limits, has_time):
                self._walker = None
        except ProtocolError as error:
            self.error, self._walker = error, None

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait for the rest of their command, or to be read."""
        return 0 if self._walker is None else self._walker.waiting_bytes

    @property
    def may_read_on(self) -> bool:
        """Whether there may be a command in what waits."""
        return self._walker is not None and self._walker.may_read_on

    @property
    def announced_bytes(self) -> int:
        """The bytes of the command that has begun, as far as it has said."""
        return 0 if self._walker is None else self._walker.announced_bytes

    # ---- replies

    def refusal(self, refusal: EngineError) -> bytes:
        """Write a refusal, in Redis's words."""
        return wire.refusal(refusal)

    def immediate(self, answer: Resp) -> bytes:
        """Write an answer that needs no engine."""
        return wire.encode(answer, self.protocol)

    def reply(self, parsed: CommandRequest, reply: Reply | EngineError, visible: Visible) -> bytes:
        """Write the engine's reply. Raises EngineError."""
        return wire.answer(parsed, reply, visible, self.protocol)

    def each_id(self, entry_ids: Sequence[int]) -> bytes:
        """Write the IDs of entries."""
        return wire.each_id(entry_ids)

    def join(self, written: Sequence[bytes]) -> bytes:
        """Put replies one behind the other."""
        return b"".join(written)


def _read_fast(
    data: bytes, commands: deque[Words], limits: RequestLimits, has_time: Callable[[], bool]
) -> int:
    """Read usual commands at the start of `data`, while there is time; return how many bytes they have."""
    if len(data) > limits.bytes_max:
        return 0
    lines = data.split(b"\r\n")
    words_of_first = _COUNTS.get(lines[0], 0)
    # One command alone has nothing to be compared with.
    alike = _read_alike(lines, limits) if len(lines) > 2 * words_of_first + 2 else []
    if alike:
        commands.extend(alike)
        return len(data)
    # Behind the last line end there is nothing, or an unfinished line.
    at, end = 0, len(lines) - 1
    while at < end:
        count = _COUNTS.get(lines[at])
        if count is None or count > limits.words_max:
            break
        stop = at + 1 + 2 * count
        words = lines[at + 2 : stop : 2]
        if stop > end or [*map(len, words)] != [*map(length_of, lines[at + 1 : stop : 2])]:
            break
        commands.append(words)
        at = stop
        if not len(commands) % _STEPS_A_LOOK and not has_time():
            break
    if at == end:
        return len(data) - len(lines[end])
    return len(data) - sum(map(len, lines[at:])) - 2 * (end - at)


def _read_alike(lines: list[bytes], limits: RequestLimits) -> list[Words]:
    """Commands with as many words each, in a third of the time; none if `lines` hold anything else."""
    count = _COUNTS.get(lines[0])
    if count is None or count > limits.words_max or lines[-1]:
        return []
    size = 1 + 2 * count
    commands, rest = divmod(len(lines) - 1, size)
    if rest or commands == 1 or lines[:-1:size].count(lines[0]) != commands:
        return []
    columns = [lines[place:-1:size] for place in range(1, size)]
    if not all(map(_has_lengths, columns[::2], columns[1::2])):
        return []
    return [*map(list, zip(*columns[1::2], strict=True))]


def _has_lengths(headers: list[bytes], words: list[bytes]) -> bool:
    """Whether each header is that of its word; one look at those that are the same in all commands."""
    if words.count(words[0]) == len(words) == headers.count(headers[0]):
        return len(words[0]) == length_of(headers[0])
    return [*map(len, words)] == [*map(length_of, headers)]


class _Walker:
    """Reads header by header, and goes on where the last read ended."""

    __slots__ = ("_at", "_bytes", "_data", "_left", "_length", "_words", "may_read_on")

    def __init__(self) -> None:
        # Whether it has stopped before it had to.
        self.may_read_on = False
        self._data = bytearray()
        self._at = 0
        # The words that are still to come, 0 between two commands; and the length of the next, if known.
        self._left = 0
        self._length: int | None = None
        self._words: Words = []
        self._bytes = 0

    @property
    def is_between(self) -> bool:
        """Whether no command has begun."""
        return not self._left

    @property
    def waiting_bytes(self) -> int:
        """The bytes of what is not a whole command yet."""
        return len(self._data) + self._bytes

    @property
    def announced_bytes(self) -> int:
        """The words that were read, and the length of the next."""
        return self._bytes + (self._length or 0)

    def take_rest(self) -> bytes:
        """What was not read."""
        return bytes(self._data)

    def walk(
        self, data: bytes, commands: deque[Words], limits: RequestLimits, has_time: Callable[[], bool]
    ) -> bool:
        """Read `data`; return whether it ended with a command. Raises ProtocolError."""
        self._data += data
        steps, self.may_read_on = 0, False
        while not self.may_read_on and self._step(commands, limits):
            steps += 1
            is_late = steps % _STEPS_A_LOOK == 0 and not has_time()
            self.may_read_on = is_late or (bool(commands) and not limits.authenticated)
        del self._data[: self._at]
        self._at = 0
        self.may_read_on &= bool(self._data)
        return not self._data and not self._left

    def _step(self, commands: deque[Words], limits: RequestLimits) -> bool:
        """Read one header or one word; whether it was there."""
        if self._length is not None:
            return self._take_word(commands)
        # The data is searched again from the start of the line, which is short.
        end = self._data.find(b"\n", self._at, self._at + INLINE_BYTES_MAX)
        if end < 0:
            if len(self._data) - self._at >= INLINE_BYTES_MAX:
                what = (
                    "too big bulk count string"
                    if self._left
                    else _too_big(bytes(self._data[self._at : self._at + 1]))
                )
                raise ProtocolError(what)
            return False
        line = bytes(self._data[self._at : end]).removesuffix(b"\r")
        self._at = end + 1
        if self._left:
            self._length = _length(line, limits, self._bytes)
        elif line.startswith(b"*"):
            self._left = _count(line, limits)
        elif words := split_inline(line, limits.words_max):
            commands.append(words)
            return True
        if not self._left:
            nothing = _NOTHING.match(self._data, self._at)
            assert nothing is not None, "it may be nothing"
            self._at = nothing.end()
        return True

    def _take_word(self, commands: deque[Words]) -> bool:
        assert self._length is not None, "its header was read"
        end = self._at + self._length
        if len(self._data) < end + 2:
            return False
        self._words.append(bytes(self._data[self._at : end]))
        self._at, self._bytes, self._length = end + 2, self._bytes + self._length, None
        self._left -= 1
        if not self._left:
            commands.append(self._words)
            self._words, self._bytes = [], 0
        return True


def _too_big(first: bytes) -> str:
    return "too big mbulk count string" if first == b"*" else "too big inline request"


def _count(line: bytes, limits: RequestLimits) -> int:
    """The number of words of a command; one without words is skipped. Raises ProtocolError."""
    if not _COUNT.fullmatch(line, 1):
        raise ProtocolError("invalid multibulk length")
    count = int(line[1:])
    if not limits.authenticated and count > limits.words_max:
        raise ProtocolError("unauthenticated multibulk length")
    if count > limits.words_max:
        raise ProtocolError("invalid multibulk length")
    return max(0, count)


def _length(line: bytes, limits: RequestLimits, before: int) -> int:
    """The length of a word, of a command that has `before` bytes already. Raises ProtocolError."""
    if not line.startswith(b"$"):
        raise ProtocolError(f"expected '$', got '{line[:1].decode(errors='replace')}'")
    if not _COUNT.fullmatch(line, 1) or (length := int(line[1:])) < 0:
        raise ProtocolError("invalid bulk length")
    if before + length > limits.bytes_max:
        raise ProtocolError("invalid bulk length" if limits.authenticated else "unauthenticated bulk length")
    return length


def split_inline(line: bytes, words_max: int) -> Words:
    """The words of an inline command, quoted ones with the escapes of Redis. Raises ProtocolError."""
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: Words = []
    at, end = 0, len(line.rstrip())
    for found in _INLINE_WORD.finditer(line, 0, end):
        if found.start() != at:
            break
        if len(words) == words_max:
            raise ProtocolError("too big inline request")
        double, single, bare = found.groups()
        if double is not None:
            words.append(_ESCAPE.sub(_unescape, double))
        else:
            words.append(single.replace(b"\\'", b"'") if single is not None else bare)
        at = found.end()
    if at != end:
        raise ProtocolError("unbalanced quotes in request")
    return words


def _unescape(found: re.Match[bytes]) -> bytes:
    code, character = found.groups()
    return bytes([int(code, 16)]) if code is not None else _ESCAPED.get(character, character)
