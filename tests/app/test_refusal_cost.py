"""What it costs to refuse the largest bodies that are read at all: they are counted before they are decoded.

Processor time, which hardly depends on what else the machine does, of one thread: meanwhile it holds the
interpreter, and everybody waits.
"""

import time
from collections.abc import Callable

import pytest

from app.api import multi_stream
from app.api.groups.pending import Acknowledgement
from app.doors.durable import bodies as durable_bodies
from app.errors import RefusalError
from app.http.entries import entry_bodies
from app.http.media import MediaType
from app.http.operations import binder
from app.limits import CommandLimits, EntryLimits
from app.redis import bodies
from app.redis.bodies import Encoding
from app.settings import Settings
from engine import EngineError
from tests.turns import assert_within

SET = Settings()
BYTES = SET.body_bytes_max
LIMITS = EntryLimits(
    entries_max=SET.batch_entries_max,
    entry_bytes_max=SET.entry_bytes_max,
    fields_max=SET.entry_fields_max,
    depth_max=SET.json_depth_max,
)
COMMANDS = CommandLimits.of(SET)
# Of the machine of the limits: three to ten times what it is there; it was 1 to 6 seconds.
CPU_S_MAX = 0.5


def full(before: bytes, unit: bytes, behind: bytes, count: int | None = None) -> bytes:
    """A body of the largest size, or with this number of equal parts."""
    most = (BYTES - len(before) - len(behind)) // (len(unit) + 1)
    return before + b",".join([unit] * min(count or most, most)) + behind


def entries(body: bytes, media: str = "application/json") -> Callable[[], object]:
    return lambda: entry_bodies.read(body, MediaType(media, media), LIMITS)


def many_streams(body: bytes) -> Callable[[], object]:
    return lambda: multi_stream.publication(body, LIMITS, SET.request_streams_max, None, None)


def plain(body: bytes) -> Callable[[], object]:
    return lambda: binder.read_body(body, model=Acknowledgement, default=None, settings=SET)


def one(body: bytes) -> Callable[[], object]:
    return lambda: bodies.one(body, Encoding(), COMMANDS)


def several(body: bytes) -> Callable[[], object]:
    return lambda: bodies.many(body, Encoding(), SET.pipeline_commands_max, COMMANDS)


def durable(body: bytes) -> Callable[[], object]:
    return lambda: durable_bodies.read(durable_bodies.JSON, body, LIMITS)


NUMBERS = b",".join(b'"f%d":%d' % (n, n) for n in range(70))
WRONG = b'{"fields":{"a":{}}}'
# Each makes its body, of megabytes, and gives what refuses it.
REFUSED: dict[str, Callable[[], Callable[[], object]]] = {
    "messages of a number": lambda: durable(full(b"[", b"1", b"]")),
    "messages of nothing": lambda: durable(full(b"[", b"{}", b"]")),
    "messages of a text": lambda: durable(full(b"[", b'"a"', b"]")),
    "a message that is too large": lambda: durable(full(b"[[", b"1", b"]]")),
    "a batch, each wrong": lambda: entries(full(b'{"entries":[', WRONG, b"]}", 200_000)),
    "a batch, each wrong, full": lambda: entries(full(b'{"entries":[', WRONG, b"]}")),
    "a batch, the first wrong": lambda: entries(
        full(b'{"entries":[%b,' % WRONG, b'{"fields":{%b}}' % NUMBERS, b"]}", 9_000)
    ),
    "a batch of nothing": lambda: entries(full(b'{"entries":[', b"{}", b"]}")),
    "a batch of numbers": lambda: entries(full(b'{"entries":[', b"1", b"]}", 999_000)),
    "a batch of strings": lambda: entries(full(b'{"entries":[', b'""', b"]}")),
    "a batch beside another": lambda: entries(full(b'{"entries":[', b'{"a":{}}', b'],"entries":[]}')),
    "a batch without an end": lambda: entries(full(b'{"entries":[', b'{"fields":{"a":"1"}}', b"]}}", 9_999)),
    "an entry of pairs": lambda: entries(full(b'{"fields":[', b"1", b"]}", 999_000)),
    "an entry of objects": lambda: entries(full(b'{"fields":{"a":[', b"{}", b"]}}", 330_000)),
    "lines, each wrong": lambda: entries(b'{"a":{}}\n' * 200_000, "application/x-ndjson"),
    "lines with nothing": lambda: entries(b"\n" * BYTES, "application/x-ndjson"),
    "a line of objects": lambda: entries(full(b'{"a":[', b"{}", b"]}\n", 330_000), "application/x-ndjson"),
    "a form, encoded": lambda: entries(
        b"a=" + b"%41" * ((BYTES - 2) // 3), "application/x-www-form-urlencoded"
    ),
    "a form, signs": lambda: entries(b"&" * BYTES, "application/x-www-form-urlencoded"),
    "bytes": lambda: entries(b"\xff" * BYTES, "application/octet-stream"),
    "many streams, each wrong": lambda: many_streams(full(b'{"streams":{"s":[', WRONG, b"]}}", 200_000)),
    "IDs": lambda: plain(full(b'{"ids":[', b'"1-0"', b"]}")),
    "objects for IDs": lambda: plain(full(b'{"ids":[', b"{}", b"]}", 330_000)),
    "members": lambda: plain(b"{%b}" % b",".join(b'"m%d":1' % n for n in range(600_000))),
    "a command": lambda: one(full(b"[", b'"a"', b"]")),
    "a command of objects": lambda: one(full(b"[", b"{}", b"]", 999_000)),
    "a pipeline of nothing": lambda: several(full(b"[", b"[]", b"]")),
    "a pipeline of objects": lambda: several(full(b"[", b"[{}]", b"]", 999_000)),
}


@pytest.mark.paired
@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_is_cheap(what: str) -> None:
    """The parts that fill the largest body."""
    refuse = REFUSED[what]()

    def refused_s() -> float:
        began_s = time.thread_time()
        with pytest.raises((RefusalError, EngineError)):
            refuse()
        return time.thread_time() - began_s

    assert_within(CPU_S_MAX, refused_s)


@pytest.mark.paired
def test_a_form_that_is_accepted_is_cheap() -> None:
    """The largest entry, each byte percent-encoded: it was half a second."""
    body = b"a=" + b"%41" * (SET.entry_bytes_max - 100)

    def read_s() -> float:
        began_s = time.thread_time()
        entries(body, "application/x-www-form-urlencoded")()
        return time.thread_time() - began_s

    assert_within(CPU_S_MAX / 2, read_s)
