"""What makes a chunk, or an entry, the same as one sent before: so that a repeated task stores nothing twice.

Knows: the gateway's two ways to tell a repetition, and how entries are written for each.
Must never know: Spark, connections, when something is tried again.

    position   the n-th chunk of this partition of this batch is always the same: it is, if the rows of a
               partition and their order are. POST /v1/publish with Weir-Producer, Weir-Epoch, Weir-Chunk.
    content    each entry has a key, wherever a shuffle takes it: of a column, or a digest of its fields
               within the batch, which makes equal rows of a batch one entry. XADD … IDMP as one turn. The
               gateway remembers `key_window` of them a stream, for a day.
    none       nothing: what a retry sends again is stored again.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

import orjson

from pyspark_weir.errors import CodedError, OptionError
from pyspark_weir.sink.rows import Pairs, RowError, SinkEntry, TaskChunk, Value

KeyMode = Literal["position", "content", "none"]
Words = tuple[Value, ...]
# What the gateway answered.
Json = Any

PUBLISH: Final = "/v1/publish"
TRANSACTION: Final = "/v1/commands/multi-exec"
# A transaction is one turn of the gateway, which takes no more commands.
TRANSACTION_COMMANDS_MAX: Final = 300

# What the gateway keeps at most, of one producer in one stream, and for how long.
_KEYS_EACH: Final = 10_000
_KEEP_S: Final = 86_400
KEY_WINDOW_DEFAULT: Final = 640_000
KEY_WINDOW_MAX: Final = 100_000_000
_PRODUCER_CHARS_MAX: Final = 255
_PRODUCER: Final = re.compile(r"[\x21-\x7e]+")
_DIGEST_BYTES: Final = 16
# Of a chunk that had been there; each costs two requests.
_STREAMS_LOOKED_AT_MAX: Final = 8


class FencedError(CodedError):
    """Another run of the same query has gone on: this task is of the past, and must not write."""

    CODE = "WEIR_FENCED"


class ChangedError(CodedError):
    """A repeated chunk holds other rows than the first time: the gateway kept those, these would be lost."""

    CODE = "WEIR_CHANGED"


@dataclass(frozen=True)
class TaskId:
    """Where a task stands. `origin` names the query or the job, `epoch` its batch."""

    origin: str
    epoch: int
    partition: int

    @property
    def producer(self) -> str:
        """The gateway's name for this partition. Raises OptionError where the origin is no such name."""
        return check_producer(f"{self.origin}/{self.partition}")


@dataclass(frozen=True)
class SinkRequest:
    """One request; `repeatable` where sending it twice stores once."""

    path: str
    content: bytes
    headers: dict[str, str]
    repeatable: bool


@dataclass(frozen=True)
class Stored:
    """An entry that the gateway had: it is to have these fields, names and values as bytes."""

    stream: str
    id: str
    pairs: tuple[tuple[str, bytes], ...]


class Keys:
    """A way to recognise a repetition. This one recognises none, and writes entries as JSON."""

    def write(self, entry: SinkEntry) -> tuple[Any, int]:
        """An entry's written form, and its bytes. Raises RowError."""
        text = orjson.dumps(_to_published(entry))
        return text, len(text)

    def prepare(self, streams: Sequence[str]) -> SinkRequest | None:
        """What to ask before the first chunk for these streams; the answer has one result for each."""
        return None

    def request(self, chunk: TaskChunk[Any]) -> SinkRequest:
        return SinkRequest(PUBLISH, _content(chunk), {}, repeatable=False)

    def repeated(self, chunk: TaskChunk[Any], answer: Json) -> Sequence[Stored]:
        """Of a chunk that had been there: which entries are to be what, to be looked at. Else nothing.

        Raises ChangedError, RowError.
        """
        return ()

    def changed(self, chunk: TaskChunk[Any]) -> ChangedError:
        """The error for a chunk that is not what was stored."""
        raise AssertionError("only chunks with keys by position are known to be repeated")


def check_producer(name: str) -> str:
    """A name that the gateway takes for a producer. Raises OptionError."""
    if len(name) > _PRODUCER_CHARS_MAX or not _PRODUCER.fullmatch(name):
        raise OptionError(
            f"jobId makes the producer {name[:80]!r}: it is to be 1 to {_PRODUCER_CHARS_MAX} printable ASCII "
            "characters without blanks"
        )
    return name


def keys(mode: KeyMode, place: TaskId, *, key_window: int = KEY_WINDOW_DEFAULT) -> Keys:
    """The keys of a mode for a task."""
    if mode == "position":
        return _Position(place)
    return _Content(place, key_window) if mode == "content" else Keys()


class _Position(Keys):
    def __init__(self, place: TaskId) -> None:
        self._place = place
        self._producer = place.producer

    def request(self, chunk: TaskChunk[bytes]) -> SinkRequest:
        headers = {
            "weir-producer": self._producer,
            "weir-epoch": str(self._place.epoch),
            "weir-chunk": str(chunk.number),
        }
        return SinkRequest(PUBLISH, _content(chunk), headers, repeatable=True)

    def repeated(self, chunk: TaskChunk[bytes], answer: Json) -> Sequence[Stored]:
        if not answer["duplicate"]:
            return ()
        stored = answer["streams"]
        if {name: one["count"] for name, one in stored.items()} != chunk.counts():
            raise self.changed(chunk)
        # Rows that have moved within the batch show at the edges of its chunks.
        return [
            Stored(name, stored[name][edge], pairs_of(orjson.loads(entries[place])))
            for name, entries in islice(chunk.streams.items(), _STREAMS_LOOKED_AT_MAX)
            for place, edge in ((0, "first_id"), (-1, "last_id"))
        ]

    def changed(self, chunk: TaskChunk[bytes]) -> ChangedError:
        return ChangedError(
            f"chunk {chunk.number} of {self._producer}, epoch {self._place.epoch}, held other rows when it "
            "was stored: this partition does not have the same rows in the same order each time; sort within "
            "partitions, use keyMode=content, or give another jobId to what is another job"
        )


class _Content(Keys):
    def __init__(self, place: TaskId, key_window: int) -> None:
        self._place = place
        self._parts = max(1, key_window // _KEYS_EACH)
        self._producers = [check_producer(f"{place.origin}/keys-{part}") for part in range(self._parts)]
        # Equal rows of two batches are two entries; equal keys of a column are one.
        self._scope = b"%d:" % place.epoch

    def write(self, entry: SinkEntry) -> tuple[Words, int]:
        if entry.id is not None:
            raise RowError(
                f"the entry {entry.id} has an ID of its own, and the gateway keeps no content keys for "
                "those: use keyMode=position, or explicitIds=false"
            )
        key = self._scope + _digest(entry.pairs).hex().encode() if entry.key is None else _raw(entry.key)
        if not key:
            raise RowError("an idempotency key is empty: give each row one, or null for a digest of the row")
        part = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % self._parts
        flat = (one for pair in entry.pairs for one in pair)
        words: Words = ("XADD", entry.stream, "IDMP", self._producers[part], _text_or_bytes(key), "*", *flat)
        return words, sum(map(len, words))

    def prepare(self, streams: Sequence[str]) -> SinkRequest | None:
        limits = ("IDMP-DURATION", str(_KEEP_S), "IDMP-MAXSIZE", str(_KEYS_EACH))
        return _transaction([("XCFGSET", name, *limits) for name in streams])

    def request(self, chunk: TaskChunk[Words]) -> SinkRequest:
        return _transaction([words for entries in chunk.streams.values() for words in entries])

    def repeated(self, chunk: TaskChunk[Words], answer: Json) -> Sequence[Stored]:
        for one in answer:
            if "error" in one:
                raise RowError(f"the gateway refused an entry: {one['error']}")
        # An ID of before looks like any other.
        return ()


def _content(chunk: TaskChunk[bytes]) -> bytes:
    members = (
        b"%b:[%b]" % (orjson.dumps(name), b",".join(entries)) for name, entries in chunk.streams.items()
    )
    return b'{"streams":{%b}}' % b",".join(members)


def pairs_of(entry: Mapping[str, Any]) -> tuple[tuple[str, bytes], ...]:
    """The fields of an entry, in order, as it is sent or as the gateway shows it."""
    fields = entry.get("pairs") or entry["fields"]
    pairs = fields.items() if isinstance(fields, dict) else fields
    if entry.get("encoding") == "base64":
        return tuple((name, base64.b64decode(value)) for name, value in pairs)
    return tuple((name, value.encode()) for name, value in pairs)


def _transaction(commands: Sequence[Words]) -> SinkRequest:
    """Redis commands as one turn; all their words in base64 where one is no UTF-8."""
    headers: dict[str, str] = {}
    try:
        texts = [[word if isinstance(word, str) else word.decode() for word in words] for words in commands]
    except UnicodeDecodeError:
        texts = [[base64.b64encode(_raw(word)).decode() for word in words] for words in commands]
        headers["weir-encoding"] = "base64"
    return SinkRequest(TRANSACTION, orjson.dumps(texts), headers, repeatable=True)


def _to_published(entry: SinkEntry) -> dict[str, object]:
    """An entry as POST /v1/publish takes it."""
    written: dict[str, object] = {"fields": _fields(entry.pairs)}
    if any(isinstance(value, bytes) for _, value in entry.pairs):
        try:
            pairs = [
                (name, value if isinstance(value, str) else value.decode()) for name, value in entry.pairs
            ]
        except UnicodeDecodeError:
            pairs = [(name, base64.b64encode(_raw(value)).decode()) for name, value in entry.pairs]
            written["encoding"] = "base64"
        written["fields"] = _fields(pairs)
    if entry.id is not None:
        written["id"] = entry.id
    return written


def _fields(pairs: Pairs) -> dict[str, Value] | list[tuple[str, Value]]:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else list(pairs)


def _digest(pairs: Pairs) -> bytes:
    """What distinguishes sets of fields; their order does not count."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, value in sorted((name.encode(), _raw(value)) for name, value in pairs):
        digest.update(b"%d:%b%d:%b" % (len(name), name, len(value), value))
    return digest.digest()


def _raw(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _text_or_bytes(value: bytes) -> Value:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
