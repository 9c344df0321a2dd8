"""Large bodies are read in pieces: no call keeps the interpreter for longer than a turn.

Knows: bodies at their limits, of values, of levels, of lines; how long a thread calls functions of C, between
which alone others go on.
Must never know: which functions these are.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

import msgspec
import orjson
import pytest

from app.errors import RefusalError
from app.gateway import Gateway
from app.http import media, strict_json
from app.http.entries import entry_bodies, json_bodies, line_bodies, stream_bodies
from app.redis import bodies
from app.redis.bodies import Encoding
from app.settings import Settings
from engine import SystemClock
from tests.turns import TURN_S_MAX, assert_within

GATEWAY: Final = Gateway(Settings(log_requests="none"), SystemClock(), None)
LIMITS: Final = GATEWAY.limits.entries
BYTES_MAX: Final = GATEWAY.settings.body_bytes_max
FIELDS: Final = {f"f{number}": "1" for number in range(1_000)}
NUMBERS: Final = {f"f{number}": number for number in range(1_000)}
OBJECTS: Final = b'{"a":' * BYTES_MAX
JSON, LINES = "application/json", "application/x-ndjson"


@contextmanager
def longest_call() -> Iterator[list[float]]:
    """The longest call of a function of C meanwhile, in seconds of this thread's processor time."""
    longest, began = [0.0], 0.0

    def note(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal began
        if event == "c_call":
            began = time.thread_time()
        elif event in ("c_return", "c_exception"):
            longest[0] = max(longest[0], time.thread_time() - began)

    gc.disable()
    sys.setprofile(note)
    try:
        yield longest
    finally:
        sys.setprofile(None)
        gc.enable()


def read(body: bytes, name: str = JSON) -> object:
    return entry_bodies.read(body, media.content_type(name.encode()), LIMITS)


def read_lines(body: bytes) -> object:
    return read(body, LINES)


def read_nested(body: bytes) -> object:
    limits = msgspec.structs.replace(LIMITS, nested=True)
    return entry_bodies.read(body, media.content_type(LINES.encode()), limits)


def read_many(body: bytes) -> object:
    return stream_bodies.read_many(body, LIMITS, GATEWAY.settings.request_streams_max)


def read_commands(body: bytes) -> object:
    limits = GATEWAY.limits.commands
    rows = bodies.many(body, Encoding(), GATEWAY.settings.pipeline_commands_max, limits)
    return bodies.parse_each(rows, limits)


def entries_of(row: bytes, count: int) -> bytes:
    return b'{"entries":[%b]}' % b",".join([row] * count)


CROWDED: Final = orjson.dumps({"fields": FIELDS})
Reader = Callable[[bytes], object]
# Each made when it is wanted.
LARGEST: Final[dict[str, tuple[Reader, Callable[[], bytes]]]] = {
    "levels": (read, lambda: OBJECTS),
    "levels of fields": (read, lambda: b'{"fields":' + OBJECTS),
    "levels of a batch": (read, lambda: b'{"entries":[' + OBJECTS),
    "levels of lines": (read_lines, lambda: OBJECTS),
    "levels of streams": (read_many, lambda: b'{"streams":' + OBJECTS),
    "levels of lists": (read, lambda: b"[" * BYTES_MAX),
    "entries": (read, lambda: entries_of(b'{"fields":{"a":1}}', 420_000)),
    "lines": (read_lines, lambda: b"\n".join([b'{"a":1}'] * 1_000_000)),
    "empty lines": (read_lines, lambda: b"\n" * BYTES_MAX),
    "fields": (read, lambda: entries_of(CROWDED, 500)),
    "fields of many": (
        read,
        lambda: entries_of(orjson.dumps({"fields": dict([*FIELDS.items()][:40])}), 10_000),
    ),
    "numbers": (read, lambda: entries_of(orjson.dumps({"fields": NUMBERS}), 250)),
    "items": (read, lambda: b"[%b]" % b",".join([b'{"a":1}'] * 1_000_000)),
    "values of items": (read, lambda: b"[%b]" % b",".join([b"1"] * 3_000_000)),
    "nested values": (read_nested, lambda: b'{"a":[%b]}' % b",".join([b"1"] * 4_000_000)),
    "nested values of lines": (
        read_nested,
        lambda: b"\n".join([b'{"a":[%b]}' % b",".join([b"1"] * 250_000)] * 16),
    ),
    "nested values not as written": (
        read_nested,
        lambda: b"\n".join([b'{"a":[%b]}' % b",".join([b"1.0e1"] * 20_000)] * 60),
    ),
    "nested objects": (
        read_nested,
        lambda: b"\n".join([b'{"a":%b}' % (b'{"b":{"c":[' * 9 + b"1" + b"]}}" * 9)] * 9_000),
    ),
    "fields of lines": (read_lines, lambda: b"\n".join([orjson.dumps(FIELDS)] * 500)),
    "fields of one": (read, lambda: b'{"fields":{%b}}' % b",".join(b'"%d":""' % n for n in range(700_000))),
    "fields of a stream": (read_many, lambda: b'{"streams":{"s":[%b]}}' % b",".join([CROWDED] * 500)),
    "streams": (read_many, lambda: b'{"streams":{%b}}' % b",".join(b'"%d":[]' % n for n in range(600_000))),
    "pairs of streams": (
        read_many,
        lambda: b'{"streams":{%b}}' % b",".join(b'"%d":[[1]]' % n for n in range(400_000)),
    ),
    "words": (read_commands, lambda: orjson.dumps([["XADD", "s", "*", *["a"] * 20_000]] * 40)),
    "a command": (read_commands, lambda: orjson.dumps([["a"] * 900_000])),
    "commands": (read_commands, lambda: orjson.dumps([["XLEN", "s"]] * 600_000)),
}


@pytest.mark.paired
@pytest.mark.parametrize("name", LARGEST)
def test_no_call_is_longer_than_a_turn(name: str) -> None:
    """Threads read large bodies; a function of C keeps the interpreter until it returns."""
    reader, made = LARGEST[name]
    body = made()[:BYTES_MAX]

    def measured() -> float:
        with longest_call() as longest, suppress(RefusalError):
            reader(body)
        return longest[0]

    assert_within(TURN_S_MAX, measured)


ALIKE: Final = {
    "a batch": (
        JSON,
        b'{"entries":[{"fields":{"a":"1"}}, {"fields":{"b":"2","c":""}},{"fields":{"d":"\\u00e9"}}]}',
    ),
    "a batch with IDs": (
        JSON,
        b'{"entries":[{"id":"5-1","fields":{"a":"1"}},{"fields":{"b":"2"}},{"fields":{"b":"3"}}]}',
    ),
    "numbers": (JSON, b'{"entries":[{"fields":{"a":"1"}},{"fields":{"b":2}},{"fields":{"c":true,"d":1.5}}]}'),
    "numbers not as written": (JSON, b'{"entries":[{"fields":{"a":"1"}},{"fields":{"b":2.50}}]}'),
    "a name twice": (JSON, b'{"entries":[{"fields":{"a":"1"}},{"fields":{"b":"2","b":"3"}}]}'),
    "a member twice": (JSON, b'{"entries":[{"fields":{"a":"1"}}],"entries":[{"fields":{"b":"2"}}]}'),
    "another member": (JSON, b'{"entries":[{"fields":{"a":"1"}}],"more":1}'),
    "pairs": (JSON, b'{"entries":[{"fields":{"a":"1"}},{"fields":[["a","1"],["a","2"]]}]}'),
    "an entry without fields": (JSON, b'{"entries":[{"fields":{"a":"1"}},{"fields":{}}]}'),
    "no entry": (JSON, b'{"entries":[]}'),
    "not JSON": (JSON, b'{"entries":[{"fields":{"a":"1"}},{"fields":{"b":"2"}]}'),
    "lines": (LINES, b'{"a":"1"}\n{"b":"2","c":"3"}\r\n\n \n{"d":"4"}'),
    "lines with IDs": (LINES, b'{"id":"5-1","fields":{"a":"1"}}\n{"b":"2"}\n{"fields":{"c":"3"}}\n'),
    "lines with numbers": (LINES, b'{"a":"1"}\n{"b":2}\n{"c":1e3}\n'),
    "a line that is none": (LINES, b'{"a":"1"}\n{"b":"2"}\n{"c"\n'),
    "a name twice in a line": (LINES, b'{"a":"1"}\n{"b":"2","b":"3"}\n'),
    "two objects in a line": (LINES, b'{"a":"1"}\n{"b":"2"}{"c":"3"}\n'),
    "empty lines": (LINES, b"\n\n  \n\n"),
    "a long line": (LINES, b'{"a":"%b"}\n{"b":"2"}\n' % (b"x" * 100)),
    "a list": (JSON, b'[{"a":"1"}, {"b":"2","c":3},{"fields":{"d":"\\u00e9"}}]'),
    "a list with IDs": (JSON, b'[{"id":"5-1","fields":{"a":"1"}},{"b":"2"}]'),
    "a list of other things": (JSON, b'[{"a":"1"},[]]'),
    "braces in strings": (JSON, b'{"entries":[{"fields":{"a":"{{{\\"{{"}},{"fields":{"b":"}]\\\\"}}]}'),
}


def outcome(name: str, body: bytes) -> object:
    try:
        found = entry_bodies.read(body, media.content_type(name.encode()), LIMITS)
    except RefusalError as refusal:
        return refusal.code, refusal.detail, refusal.members
    return list(found.bodies), list(found.ids), found.batch


def take_small_pieces(monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    """Have each reader take pieces of this size, and longer bodies for large ones."""
    for reader in (json_bodies, line_bodies, stream_bodies):
        monkeypatch.setattr(reader, "PIECE_BYTES", piece_bytes)


@pytest.mark.parametrize("piece_bytes", [1, 20, 45])
@pytest.mark.parametrize("case", ALIKE)
def test_pieces_are_read_as_the_whole(case: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, body = ALIKE[case]
    whole = outcome(name, body)
    take_small_pieces(monkeypatch, piece_bytes)
    monkeypatch.setattr(strict_json, "_PIECE_BYTES", piece_bytes)
    assert outcome(name, body) == whole


def test_streams_are_read_in_pieces_as_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        b'{"streams":{"s":[{"fields":{"a":"1"}},{"fields":{"b":"2"},"id":"7-7"}],"t":[{"fields":{"c":"3"}}]}}'
    )
    whole = stream_bodies.read_many(body, LIMITS, 10)
    take_small_pieces(monkeypatch, 30)
    pieces = stream_bodies.read_many(body, LIMITS, 10)
    assert pieces.keys() == whole.keys()
    for name, one in whole.items():
        assert list(pieces[name].bodies) == list(one.bodies)
        assert list(pieces[name].ids or [None]) == list(one.ids)


def test_commands_are_read_one_by_one_as_together(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'[["XADD","s","*","a",1.50],["XLEN","s"],5,["x",null]]'

    def words() -> list[object]:
        rows = bodies.many(body, Encoding(), 10, GATEWAY.limits.commands)
        return [row if isinstance(row, list) else str(row) for row in rows[:2]] + [len(rows)]

    with pytest.raises(RefusalError, match="list of words"):
        words()
    body = body.replace(b"5,", b"")
    together = words()
    monkeypatch.setattr(bodies, "_VALUES_AT_ONCE_MAX", 0)
    assert words() == together


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1_000])
def test_marks_are_counted_outside_of_strings(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "_PIECE_BYTES", piece_bytes)
    body = b'{"a":"{{{{","b\\"{":{"c":"\\\\"},"d":[{},"{"]}'
    assert strict_json.has_more_objects(body, 2)
    assert not strict_json.has_more_objects(body, 3)
    assert set(strict_json.members_of(body, 3)) == {"a", 'b"{', "d"}
    with pytest.raises(RefusalError, match="at most 2 members"):
        strict_json.members_of(body, 2)
