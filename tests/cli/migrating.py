"""What the tests of `weir import` share.

Knows: how to run it, streams with a past, how to tell whether two servers have the same.
Must never know: what is tested with it.
"""

import base64
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.cli.command import Ended, begun, weir
from tests.cluster.servers import BackendServer
from tests.server import call

WAIT_S_MAX: Final = 60.0
MARK: Final = b"weir:import"
# What a copy cannot have (when a consumer was last seen), and what Redis 7.0 counts by older rules.
_APART: Final = (
    b"seen-time",
    b"active-time",
    b"lag",
    b"radix-tree-keys",
    b"radix-tree-nodes",
    b"nacked-count",
)


def imported(url: str, origin: str, *words: str) -> Ended:
    """Run `weir import`."""
    return weir(url, "import", "--redis", origin, *words)


def asked(url: str, *command: object) -> Any:
    """A command's reply from Weir, bytes as bytes."""
    words = [
        base64.b64encode(one if isinstance(one, bytes) else str(one).encode()).decode() for one in command
    ]
    _, answer = call(url, "POST", "/v1/commands", words, {"weir-encoding": "base64"})
    return _bytes(answer["result"])


def _bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_bytes(one) for one in value]
    return base64.b64decode(value) if isinstance(value, str) and value != "OK" else value


def full(reply: Sequence[Any]) -> dict[bytes, Any]:
    """XINFO STREAM FULL as members by name, groups and consumers too, without what is compared apart."""
    members = dict(zip(reply[::2], reply[1::2], strict=True))
    for name in (b"groups", b"consumers"):
        if name in members:
            members[name] = {one[b"name"]: one for one in map(full, members[name])}
    return {
        name: value for name, value in members.items() if name not in _APART and not name.startswith(b"i")
    }


def same(one: Any, other: Any, apart_ms: int) -> bool:
    """Equal, but for times."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name], apart_ms) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other, [apart_ms] * len(one)))
    is_time = isinstance(one, int) and one > 10**12
    return abs(one - other) <= apart_ms if is_time else bool(one == other)


def assert_same(origin: BackendServer, url: str, stream: object, *, apart_ms: int = 0) -> None:
    """Entries, counters, groups, consumers and pending entries are the same on both sides; times of delivery
    may be so far apart.
    """
    # Weir shows no more than 1,000 rows together: the first ones with their times, and all of them below.
    shown = ("XINFO", "STREAM", stream, "FULL", "COUNT", 50)
    mine, theirs = full(origin.call(*shown)), full(asked(url, *shown))
    for name in mine.keys() | theirs.keys() - {b"pids-tracked"}:
        assert same(theirs[name], mine[name], apart_ms), (stream, name, theirs[name], mine[name])
    for edges in (("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")):
        assert asked(url, *edges) == origin.call(*edges)
    for group in mine[b"groups"]:
        pending = ("XPENDING", stream, group, "-", "+", 10_000)
        rows, copies = origin.call(*pending), asked(url, *pending)
        assert [(one[0], one[1], one[3]) for one in rows] == [(one[0], one[1], one[3]) for one in copies]


class Story:
    """Random things that happen to a stream, the same ones for the same seed."""

    def __init__(self, seed: int, stream: str) -> None:
        self._random = random.Random(seed)
        self._stream = stream
        self._ms = 0

    def commands(self, count: int) -> list[tuple[object, ...]]:
        """What happens next; some of it is refused, as in life."""
        return [self._command() for _ in range(count)]

    def _command(self) -> tuple[object, ...]:
        choice, stream = self._random, self._stream
        group, consumer = choice.choice(("g", "ü:h")), choice.choice(("anna", "bert", "chloé 2"))
        some = [self._id() for _ in range(choice.randint(1, 4))]
        reading = ("XREADGROUP", "GROUP", group, consumer, "COUNT", choice.randint(1, 5))
        return choice.choice(
            [
                *[self._added()] * 6,
                ("XGROUP", "CREATE", stream, group, choice.choice(("0", "$", self._id())), "MKSTREAM"),
                *[(*reading, "STREAMS", stream, ">")] * 4,
                (*reading, "NOACK", "STREAMS", stream, ">"),
                (*reading, "STREAMS", stream, "0"),
                ("XACK", stream, group, *some),
                ("XDEL", stream, *some),
                ("XTRIM", stream, "MAXLEN", "=", choice.randint(3, 60)),
                ("XTRIM", stream, "MINID", "=", self._id()),
                ("XCLAIM", stream, group, consumer, 0, *some, "FORCE", "RETRYCOUNT", choice.randint(0, 9)),
                ("XCLAIM", stream, group, consumer, 0, *some, "IDLE", choice.randint(0, 10**6)),
                ("XAUTOCLAIM", stream, group, consumer, 0, "-", "COUNT", 2),
                ("XGROUP", "SETID", stream, group, self._id()),
                ("XGROUP", "CREATECONSUMER", stream, group, "idle one"),
                ("XGROUP", "DELCONSUMER", stream, group, consumer),
                ("XSETID", stream, f"{self._ms + 1}-0"),
            ]
        )

    def _added(self) -> tuple[object, ...]:
        choice = self._random
        self._ms += choice.choice((0, 1, 1, 3))
        names = choice.choices(("a", "b", "ä", "", "a"), k=choice.randint(1, 4))
        values = [
            choice.choice((b"", b"1", b"\xff\x00", "grüße".encode(), choice.randbytes(40))) for _ in names
        ]
        pairs = [one for pair in zip(names, values, strict=True) for one in pair]
        return ("XADD", self._stream, f"{self._ms}-*", *pairs)

    def _id(self) -> str:
        return f"{self._random.randint(max(0, self._ms - 40), self._ms + 1)}-{self._random.randint(0, 2)}"


def publish_story(origin: BackendServer, seed: int, stream: str, count: int = 300) -> Story:
    """A stream with a past."""
    story = Story(seed, stream)
    origin.each(story.commands(count))
    return story


def filled(origin: BackendServer, stream: str, count: int, size: int = 10, first: int = 1) -> None:
    """A stream with numbered entries."""
    for begin in range(first, first + count, 1_000):
        numbers = range(begin, min(begin + 1_000, first + count))
        origin.each([("XADD", stream, f"{n}-0", "n", n, "text", "x" * size) for n in numbers])


@contextmanager
def following(url: str, origin: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`weir import --follow`, from when it has caught up until a signal ends it; then it must end well."""
    process = begun(url, "import", "--redis", origin, "--follow", *words)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert "caught up" in line, line
        yield process
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S_MAX)
        assert process.returncode == 0, err
    finally:
        process.kill()
        process.communicate()
