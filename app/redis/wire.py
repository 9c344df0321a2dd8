"""Replies as bytes of RESP2 and RESP3.

Knows: how each shape is written in either protocol; entries from their stored text.
Must never know: commands beyond the types of their replies, limits, connections.

    shape                                      RESP2              RESP3
    Pairs  [name, value, …]                    *2n                %n
    Named  [[name, value], …]                  *n of *2           %n
    Verbatim  text for people                  $                  =
    null, in the place of a list               *-1                _
    null, in the place of a word or number     $-1                _
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

from msgspec import Raw

from app.redis import replies
from app.redis.replies import FIELDS_FROM, ID_AT, PLAIN_END
from app.redis.request import CommandRequest, Visible
from app.redis.resp import Named, Pairs, Resp, Verbatim
from engine import EngineError, entries, ids
from engine.replies import Entries, Reply

Protocol = Literal[2, 3]

OK: Final = b"+OK\r\n"
QUEUED: Final = b"+QUEUED\r\n"
# The first word of a message about an event, in either protocol.
_LIST_NULLS: Final = frozenset({"xread", "xreadgroup", "xrange", "xrevrange"})
# Between the strings of stored entries, before the first name.
_BEFORE_FIELDS: Final = (b":", b",", b":{")
_BETWEEN: Final = b"}},{"
# What many readers read is written once: ranges of at most 16 KiB, which most nodes are. With what is
# written, 256 of them take 4 to 12 MiB.
_KEPT_BYTES_MAX: Final = 16 << 10
_KEPT_MAX: Final = 256


def encode(resp: Resp, protocol: Protocol) -> bytes:
    """Write any shape."""
    out: list[bytes] = []
    _write(out, resp, protocol)
    return b"".join(out)


def null(protocol: Protocol, *, is_list: bool = False) -> bytes:
    """Write null in the place of a list, or of anything else."""
    if protocol == 3:
        return b"_\r\n"
    return b"*-1\r\n" if is_list else b"$-1\r\n"


def error(sentence: str) -> bytes:
    """Write an error; `sentence` begins with its word, as ERR."""
    return b"-%b\r\n" % sentence.replace("\r", " ").replace("\n", " ").encode(errors="replace")


def refusal(refused: EngineError) -> bytes:
    """Write the engine's refusal, in Redis's words."""
    return error(refused.redis)


def bulk(word: bytes) -> bytes:
    """Write a word."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def each_id(entry_ids: Sequence[int]) -> bytes:
    """Write IDs one after the other, each as a reply."""
    if len(entry_ids) == 1:
        return bulk(b"%d-%d" % divmod(entry_ids[0], 1 << ids.SEQUENCE_BITS))
    if isinstance(entry_ids, range) and len(entry_ids) > 1 and entry_ids.step == 1:
        written = _each_of_run(entry_ids)
        if written is not None:
            return written
    words = [b"%d-%d" % (entry_id >> 64, entry_id & ids.SEQUENCE_MAX) for entry_id in entry_ids]
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _each_of_run(run: range) -> bytes | None:
    """The same for consecutive IDs, in a fifth of the time; None if they are of several milliseconds."""
    ms, at = run[0] >> 64, run[0] & ids.SEQUENCE_MAX
    stop = at + len(run)
    if stop > ids.SEQUENCE_MAX + 1:
        return None
    head, out = b"%d-" % ms, b""
    while at < stop:
        # Numbers with as many digits make words of one length.
        digits = len(str(at))
        end = min(stop, 10**digits)
        template = b"$%d\r\n%b%%d\r\n" % (len(head) + digits, head)
        out += template * (end - at) % tuple(range(at, end))
        at = end
    return out


def push(protocol: Protocol, parts: Iterable[Resp]) -> bytes:
    """Write a message that answers no command: of its own kind in RESP3, a list in RESP2."""
    listed = list(parts)
    head = b">%d\r\n" if protocol == 3 else b"*%d\r\n"
    return head % len(listed) + b"".join([encode(part, protocol) for part in listed])


def answer(
    request: CommandRequest, reply: Reply | EngineError, visible: Visible, protocol: Protocol
) -> bytes:
    """Write the reply of a command. Raises EngineError, as `CommandRequest.answer`."""
    shaped = request.answer(reply, visible, FORMS[protocol])
    if shaped is None:
        return null(protocol, is_list=request.name in _LIST_NULLS)
    return encode(shaped, protocol)


def _write(out: list[bytes], resp: Resp, protocol: Protocol) -> None:
    if isinstance(resp, Raw):
        out.append(resp)
    elif isinstance(resp, bytes):
        if protocol == 3 and isinstance(resp, Verbatim):
            out.append(b"=%d\r\ntxt:%b\r\n" % (len(resp) + 4, resp))
        else:
            out.append(bulk(resp))
    elif isinstance(resp, int):
        out.append(b":%d\r\n" % resp)
    elif isinstance(resp, str):
        out.append(b"+%b\r\n" % resp.encode())
    elif resp is None:
        out.append(null(protocol))
    else:
        _write_list(out, resp, protocol)


def _write_list(out: list[bytes], resp: list[Resp], protocol: Protocol) -> None:
    if protocol == 3 and isinstance(resp, Pairs):
        out.append(b"%%%d\r\n" % (len(resp) // 2))
    elif protocol == 3 and isinstance(resp, Named):
        out.append(b"%%%d\r\n" % len(resp))
        resp = [part for pair in resp if isinstance(pair, list) for part in pair]
    else:
        out.append(b"*%d\r\n" % len(resp))
    for part in resp:
        _write(out, part, protocol)


# ---- entries from their stored text


def _entry(text: bytes) -> bytes:
    if not replies.is_plain(text):
        return encode(replies.SHAPED.entry(text), 2)
    words = text.split(b'"')
    entry_id, fields = words[ID_AT], words[FIELDS_FROM::2]
    written = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in fields])
    return b"*2\r\n$%d\r\n%b\r\n*%d\r\n%b" % (len(entry_id), entry_id, len(fields), written)


def encode_alike(joined: bytes) -> bytes | None:
    """Entries with the same names in the same order, joined as they are stored, at once; None for others.

    Without a backslash each quotation mark begins or ends a string, so every second word is punctuation.
    Where that is the same in all entries, so are their shapes.
    """
    if b"\\" in joined or not joined.endswith(PLAIN_END):
        return None
    words = joined.split(b'"')
    width = words.index(_BETWEEN) if _BETWEEN in words else len(words) - 1
    count, left = divmod(len(words) - 1, width)
    fields = (width - FIELDS_FROM + 1) // 4
    marks = [*_BEFORE_FIELDS, *([b":", b","] * fields)[:-1]]
    if left or len(marks) * 2 + 2 != width or words[width:-1:width].count(_BETWEEN) != count - 1:
        return None
    for place, mark in enumerate(marks):
        if words[2 * place + 2 :: width].count(mark) != count:
            return None
    form = b"*2\r\n$%%d\r\n%%b\r\n*%d\r\n" % (2 * fields)
    columns = [words[ID_AT::width]]
    for place in range(FIELDS_FROM, width, 4):
        name = words[place]
        if words[place::width].count(name) != count:
            return None
        form += bulk(name).replace(b"%", b"%%") + b"$%d\r\n%b\r\n"
        columns.append(words[place + 2 :: width])
    each = 2 * len(columns)
    values: list[Any] = [None] * (each * count)
    for place, column in enumerate(columns):
        values[2 * place :: each] = map(len, column)
        values[2 * place + 1 :: each] = column
    return form * count % tuple(values)


def _joined(joined: bytes) -> bytes:
    alike = encode_alike(joined) if _BETWEEN in joined else None
    return alike or b"".join(map(_entry, entries.texts(joined)))


# By content, so that it cannot be out of date. To look for it takes a 25th of the time that writing it takes.
written_before: Final = lru_cache(_KEPT_MAX)(_joined)


def _part(joined: bytes) -> bytes:
    """A slice of a stream, which others may read too."""
    return written_before(joined) if len(joined) <= _KEPT_BYTES_MAX else _joined(joined)


class _Wire(replies.Form):
    """Entries as bytes of a protocol; they are the same in both."""

    def __init__(self, protocol: Protocol) -> None:
        self.no_list = Raw(null(protocol, is_list=True))

    def entry(self, text: bytes) -> Resp:
        return Raw(_entry(text))

    def entries(self, texts: Sequence[bytes]) -> Resp:
        return Raw(b"*%d\r\n%b" % (len(texts), _joined(b",".join(texts)) if texts else b""))

    def run(self, run: Entries) -> Resp:
        return Raw(b"*%d\r\n%b" % (run.count, b"".join(map(_part, run.parts))))


FORMS: Final[Mapping[Protocol, replies.Form]] = {2: _Wire(2), 3: _Wire(3)}
