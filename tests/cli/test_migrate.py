"""`weir import`: what is in Weir afterwards is what was in Redis, however often the copy was cut off."""

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from app.cli.migrate import until_told
from tests.cli.command import ROOT, Ended, begun, environment, on_a_terminal, redis, weir
from tests.cli.other_redis import other_redis
from tests.redis_server import RedisServer
from tests.server import Server, free_port

WAIT_S_MAX: Final = 60.0
_MARK: Final = b"weir:import"
# What a copy cannot have (when a consumer was last seen), and what Redis 7.0 counts by older rules.
_APART: Final = (
    b"seen-time",
    b"active-time",
    b"lag",
    b"radix-tree-keys",
    b"radix-tree-nodes",
    b"nacked-count",
)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis; each test takes streams of its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


def imported(url: str, origin: str, *words: str) -> Ended:
    """Run `weir import`."""
    return weir(url, "import", "--redis", origin, *words)


def asked(url: str, *command: object) -> Any:
    """A command's reply from Weir, bytes as bytes."""
    words = [
        base64.b64encode(one if isinstance(one, bytes) else str(one).encode()).decode() for one in command
    ]
    headers = {"content-type": "application/json", "weir-encoding": "base64"}
    request = urllib.request.Request(f"{url}/v1/commands", json.dumps(words).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return _bytes(json.loads(answer.read())["result"])


def _bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_bytes(one) for one in value]
    return base64.b64decode(value) if isinstance(value, str) and value != "OK" else value


def full(reply: Sequence[Any]) -> dict[bytes, Any]:
    """XINFO STREAM FULL as members by name, groups and consumers too, without what is told apart."""
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


def assert_same(origin: RedisServer, url: str, stream: object, *, apart_ms: int = 0) -> None:
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


def told(origin: RedisServer, seed: int, stream: str, count: int = 300) -> Story:
    """A stream with a past."""
    story = Story(seed, stream)
    origin.each(story.commands(count))
    return story


def filled(origin: RedisServer, stream: str, count: int, size: int = 10, first: int = 1) -> None:
    """A stream with numbered entries."""
    for begin in range(first, first + count, 1_000):
        numbers = range(begin, min(begin + 1_000, first + count))
        origin.each([("XADD", stream, f"{n}-0", "n", n, "text", "x" * size) for n in numbers])


@contextmanager
def following(url: str, origin: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`weir import --follow`, from when it has caught up until it is told to end; then it must end well."""
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


def until(condition: Any) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


def test_random_streams_are_the_same_afterwards(url: str, origin: RedisServer) -> None:
    """Forty streams with a past of 300 commands each: XINFO STREAM FULL and XRANGE agree on both sides."""
    streams = [f"random:ü {seed}" for seed in range(40)]
    for seed, stream in enumerate(streams):
        told(origin, seed, stream)
    done = imported(url, origin.url, "--match", "random:*", "--json")
    assert done.code == 0, done.err
    assert [row["stream"] for row in done.objects] == sorted(streams)
    for stream in streams:
        assert_same(origin, url, stream)
    again = imported(url, origin.url, "--match", "random:*", "--json")
    assert again.code == 0, again.err
    assert all(row["entries"] == row["deleted"] == 0 for row in again.objects)


def test_following_keeps_up_with_all_that_happens(url: str, origin: RedisServer) -> None:
    """Streams that live on while they are followed are the same once it ends: deletions and groups too."""
    stories = [told(origin, seed, f"followed:{seed}", 100) for seed in range(100, 112)]
    for _ in range(2):
        with following(url, origin.url, "--match", "followed:*"):
            for _ in range(10):
                for story in stories:
                    origin.each(story.commands(15))
            told(origin, 99, "followed:new")
        for seed in range(99, 112):
            stream = f"followed:{seed}" if seed > 99 else "followed:new"
            assert asked(url, "XGROUP", "DESTROY", stream, _MARK) == 1
            assert_same(origin, url, stream, apart_ms=50)
            asked(url, "XGROUP", "CREATE", stream, _MARK, "0")


def test_an_import_killed_half_way_goes_on(url: str, origin: RedisServer, stream: str) -> None:
    """Killed with -9, three times; then the same command copies the rest, and only the rest."""
    count = 20_000
    filled(origin, stream, count)
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 5_000, "STREAMS", stream, ">")
    origin.call("XDEL", stream, *(f"{n}-0" for n in range(50, 3_000, 7)))
    least = 0
    for _ in range(3):
        process = begun(url, "import", "--redis", origin.url, stream)
        until(lambda least=least: asked(url, "XLEN", stream) > least)
        process.kill()
        process.communicate()
        least = asked(url, "XLEN", stream)
        assert least < count / 2, "it was killed before its end"
    done = imported(url, origin.url, stream, "--json")
    assert done.code == 0, done.err
    assert done.objects[0]["entries"] == origin.call("XLEN", stream) - least
    assert done.objects[0]["pending"] == 5_000
    assert_same(origin, url, stream)


def test_nobody_sees_what_is_not_redis_s(url: str, origin: RedisServer, stream: str) -> None:
    """Entries that are pending and deleted are pending in Weir without ever having been readable there."""
    filled(origin, stream, 3_000)
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 3_000, "STREAMS", stream, ">")
    origin.call("XDEL", stream, *(f"{n}-0" for n in range(2, 3_000, 2)))
    origin.call("XTRIM", stream, "MINID", "500-0")
    process = begun(url, "import", "--redis", origin.url, stream)
    seen = set[bytes]()
    while process.poll() is None:
        seen |= {flat[0] for _, flat in asked(url, "XRANGE", stream, "-", "+", "COUNT", 2_000)}
    process.communicate()
    assert seen == {b"n"}
    assert_same(origin, url, stream)
    assert asked(url, "XPENDING", stream, "g")[0] == 3_000


def test_an_import_outlives_its_gateway(origin: RedisServer, stream: str, tmp_path: Path) -> None:
    """The gateway is killed with -9 and started again meanwhile: nothing twice, nothing lost."""
    filled(origin, stream, 10_000)
    with Server(tmp_path / "data") as server:
        process = begun(server.url, "import", "--redis", origin.url, stream)
        until(lambda: asked(server.url, "XLEN", stream) > 1_000)
        server.kill()
        server.start()
        _, err = process.communicate(timeout=WAIT_S_MAX)
        assert process.returncode == 0, err
        assert_same(origin, server.url, stream)


def test_a_switch_without_a_pause(url: str, origin: RedisServer, stream: str) -> None:
    """Workers go first, publishers one by one: what an old one says is added, renumbered if need be."""
    ms = int(time.time() * 1000) - 60_000
    origin.call("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    for number in range(10):
        origin.call("XADD", stream, f"{ms + number}-0", "n", number)
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 4, "STREAMS", stream, ">")
    with following(url, origin.url, stream):
        pass
    assert asked(url, "XREADGROUP", "GROUP", "g", "bert", "STREAMS", stream, ">")[0][1][0][0] == b"%d-0" % (
        ms + 4
    )
    with following(url, origin.url, stream, "--in-use"):
        origin.call("XADD", stream, f"{ms + 10}-0", "n", 10)
        until(lambda: asked(url, "XLEN", stream) == 11)
        asked(url, "XADD", stream, "*", "n", "new")
        origin.call("XADD", stream, f"{ms + 11}-0", "n", 11)
        until(lambda: asked(url, "XLEN", stream) == 13)
    origin.call("XADD", stream, f"{ms + 12}-0", "n", 12)
    refused = imported(url, origin.url, stream)
    assert (refused.code, "only --in-use adds to it" in refused.err) == (1, True)
    done = imported(url, origin.url, stream, "--in-use", "--json")
    assert done.code == 0, done.err
    assert (done.objects[0]["entries"], done.objects[0]["renumbered"]) == (1, 1)
    found = asked(url, "XRANGE", stream, "-", "+")
    assert [flat[1].decode() for _, flat in found] == [*map(str, range(11)), "new", "11", "12"]
    assert [entry_id for entry_id, _ in found[:11]] == [b"%d-0" % (ms + number) for number in range(11)]
    assert asked(url, "XPENDING", stream, "g")[0] == 10
    assert [group[1] for group in asked(url, "XINFO", "GROUPS", stream)] == [b"g"]


def test_going_on_beside_others_adds_nothing_twice(url: str, origin: RedisServer, stream: str) -> None:
    """--in-use killed at any moment: each entry of Redis is in Weir once, and so is each of the others."""
    filled(origin, stream, 2_000)
    with following(url, origin.url, stream):
        pass
    asked(url, "XADD", stream, "100000-0", "n", "new")
    filled(origin, stream, 6_000, first=2_001)
    for _ in range(3):
        length = asked(url, "XLEN", stream)
        process = begun(url, "import", "--redis", origin.url, stream, "--in-use")
        until(lambda length=length: asked(url, "XLEN", stream) > length)
        process.kill()
        process.communicate()
    assert imported(url, origin.url, stream, "--in-use").code == 0
    numbers = [flat[1].decode() for _, flat in asked(url, "XRANGE", stream, "-", "+")]
    assert numbers == [*map(str, range(1, 2_001)), "new", *map(str, range(2_001, 8_001))]


def test_a_signal_whose_exception_a_library_drops_still_ends_it() -> None:
    """What a handler raises goes up through whatever code the signal met."""
    with until_told() as told:
        assert not told.is_set()
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert told.is_set()


def test_order_is_kept_beside_busy_publishers(url: str, origin: RedisServer, stream: str) -> None:
    """While others publish to Weir all the time, Redis's entries come in Redis's order, each once."""
    origin.call("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    with following(url, origin.url, stream):
        pass
    with following(url, origin.url, stream, "--in-use"):
        for number in range(400):
            origin.call("XADD", stream, "*", "old", number, b"x", b"\xff", "x", "")
            if number % 3:
                asked(url, "XADD", stream, "*", "new", number)
    found = [flat for _, flat in asked(url, "XRANGE", stream, "-", "+")]
    old = [b"old", b"x", b"x"]
    assert [flat[1] for flat in found if flat[0] == b"old"] == [b"%d" % number for number in range(400)]
    assert all(flat[::2] == old and flat[3::2] == [b"\xff", b""] for flat in found if flat[0] == b"old")
    assert len(found) == 400 + 266


def test_names_that_weir_does_not_take_are_told_and_left_out(
    url: str, origin: RedisServer, stream: str
) -> None:
    """Streams, groups, consumers: the rest is copied, what such a consumer had is released; the code is 1."""
    for name in (f"{stream}/x", f"{stream}\nx", stream.encode() + b"\xff", stream):
        origin.call("XADD", name, "1-0", "a", "b")
    for group in ("g", "h/h", _MARK):
        origin.call("XGROUP", "CREATE", stream, group, "0")
    origin.call("XREADGROUP", "GROUP", "g", "an/na", "STREAMS", stream, ">")
    origin.call("SET", f"{stream} of another type", "x")
    done = imported(url, origin.url, "--match", f"{stream}*", "--json")
    assert done.code == 1
    assert [bool(row["problems"]) for row in done.objects] == [True] * 4
    assert all(line.startswith("weir: ") for line in done.err.splitlines())
    assert sorted(key.decode() for key in asked(url, "KEYS", f"{stream}*")) == [stream]
    assert [group[1] for group in asked(url, "XINFO", "GROUPS", stream)] == [b"g"]
    assert asked(url, "XPENDING", stream, "g", "-", "+", 10) == [[b"1-0", b"", -1, 1]]


def test_entries_that_weir_does_not_take_are_told(url: str, origin: RedisServer, stream: str) -> None:
    """A field's name that is no text, an entry that fits in no request: told by ID, all others are there."""
    origin.call("XADD", stream, "1-0", "a", "b")
    origin.call("XADD", stream, "2-0", b"\xff", "b")
    origin.call("XADD", stream, "3-0", "a", b"\xff" * (9 << 20))
    origin.call("XADD", stream, "4-0", "a", "b")
    done = imported(url, origin.url, stream, "--json")
    assert done.code == 1
    assert [sentence.split(":")[0] for sentence in done.objects[0]["problems"]] == [
        "entry 2-0 was skipped",
        "entry 3-0 was skipped",
    ]
    assert [entry_id for entry_id, _ in asked(url, "XRANGE", stream, "-", "+")] == [b"1-0", b"4-0"]
    again = imported(url, origin.url, stream, "--json")
    assert (again.code, again.objects[0]["entries"]) == (1, 0)
    assert "2 entries are not in Weir" in again.err


@pytest.mark.parametrize(
    ("commands", "sentence"),
    [
        ([("XADD", "1-0", "a", "other")], "1-0 differs"),
        ([("XADD", "0-5", "a", "b")], "Redis has no 0-5"),
        ([("XADD", "1-0", "a", "b"), ("XADD", "9-0", "a", "b")], "others publish to it in Weir already"),
        ([("XADD", "1-0", "a", "b"), ("XADD", "1-5", "a", "b")], "Redis has no 1-5"),
    ],
)
def test_a_stream_that_is_another_one_is_left_as_it_is(
    url: str, origin: RedisServer, stream: str, commands: list[tuple[str, ...]], sentence: str
) -> None:
    """A stream of the same name that is no copy of Redis's is neither added to nor changed."""
    for number in (1, 2, 3):
        origin.call("XADD", stream, f"{number}-0", "a", "b")
    for name, *words in commands:
        asked(url, name, stream, *words)
    before = asked(url, "XINFO", "STREAM", stream, "FULL")
    done = imported(url, origin.url, stream)
    assert (done.code, sentence in done.err) == (1, True), done.err
    assert asked(url, "XINFO", "STREAM", stream, "FULL") == before


def test_a_finished_copy_is_weir_s(url: str, origin: RedisServer, stream: str) -> None:
    """What Redis deletes after the import is over is not deleted in Weir, and the difference is told."""
    filled(origin, stream, 300)
    assert imported(url, origin.url, stream).code == 0
    origin.call("XTRIM", stream, "MAXLEN", "=", 100)
    origin.call("XDEL", stream, "250-0")
    done = imported(url, origin.url, stream)
    assert (done.code, "the stream of this name in Weir is another one" in done.err) == (1, True)
    assert asked(url, "XLEN", stream) == 300


def test_a_group_that_is_ahead_is_left_as_it_is(url: str, origin: RedisServer, stream: str) -> None:
    """Workers that have begun on Weir are not set back; new entries come nevertheless."""
    filled(origin, stream, 10)
    origin.call("XGROUP", "CREATE", stream, "g", "5")
    assert imported(url, origin.url, stream).code == 0
    asked(url, "XREADGROUP", "GROUP", "g", "anna", "STREAMS", stream, ">")
    origin.call("XADD", stream, "11-0", "n", "11")
    done = imported(url, origin.url, stream)
    assert (done.code, "group 'g' is ahead in Weir" in done.err) == (1, True)
    assert asked(url, "XPENDING", stream, "g")[0] == 5
    assert asked(url, "XLEN", stream) == 11


def test_progress_is_for_terminals(url: str, origin: RedisServer, stream: str) -> None:
    """How far each stream is, written over; it is gone at the end, and the outcome is the same."""
    origin.each([("XADD", stream, f"5-{number}", "n", number) for number in range(1, 2_501)])
    out, shown = on_a_terminal(url, "import", "--redis", origin.url, "--json", stream)
    assert json.loads(out)["entries"] == 2_500, (out, shown)
    assert b" entries copied, Redis has 2,500" in shown
    assert shown.startswith(b"\r\x1b[K")
    assert shown.endswith(b"\r\x1b[K")


def test_a_dry_run_only_tells(url: str, origin: RedisServer, stream: str) -> None:
    """What there is and how far it is in Weir; nothing is written."""
    filled(origin, stream, 10)
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 3, "STREAMS", stream, ">")
    done = imported(url, origin.url, stream, "--dry-run", "--json")
    row = {"stream": stream, "length": 10, "last_id": "10-0", "groups": 1, "pending": 3, "in_weir": None}
    assert (done.code, done.objects) == (0, [row])
    assert redis(url, "EXISTS", stream) == 0
    assert imported(url, origin.url, stream).code == 0
    assert imported(url, origin.url, stream, "--dry-run", "--json").objects[0]["in_weir"] == "10-0"


def test_redis_8_8_brings_released_entries_and_idempotency(url: str, stream: str) -> None:
    """Released entries stay released, with their counts; the settings of idempotent producers come along."""
    with other_redis("8.8") as other:
        run = other.session.call
        for number in range(1, 7):
            run("XADD", stream, f"{number}-0", "a", "b")
        run("XCFGSET", stream, "IDMP-DURATION", "50", "IDMP-MAXSIZE", "7")
        run("XGROUP", "CREATE", stream, "g", "0")
        run("XREADGROUP", "GROUP", "g", "anna", "COUNT", "5", "STREAMS", stream, ">")
        run("XNACK", stream, "g", "FAIL", "IDS", "2", "2-0", "3-0")
        run("XNACK", stream, "g", "FATAL", "IDS", "1", "4-0")
        run("XDEL", stream, "3-0")
        done = imported(url, other.url, stream)
        assert (done.code, done.err) == (0, "")
        listed = ("XPENDING", stream, "g", "-", "+", "10")
        mine, theirs = run(*listed), asked(url, *listed)
    assert [(*one[:2], one[3]) for one in theirs] == [
        (b"1-0", b"anna", 1),
        (b"2-0", b"", 1),
        (b"3-0", b"", 1),
        (b"4-0", b"", b"9223372036854775807"),
        (b"5-0", b"anna", 1),
    ]
    assert isinstance(mine, list)
    assert len(mine) == 5
    info = asked(url, "XINFO", "STREAM", stream)
    assert [info[info.index(name) + 1] for name in (b"idmp-duration", b"idmp-maxsize")] == [50, 7]


def test_redis_5_0_has_no_counters(url: str, stream: str) -> None:
    """Before 7.0 nothing was counted: the entries that are there are all that were added."""
    with other_redis("5.0") as other:
        run = other.session.call
        for number in range(1, 7):
            run("XADD", stream, f"{number}-0", "a", "b")
        run("XGROUP", "CREATE", stream, "g", "0")
        run("XREADGROUP", "GROUP", "g", "anna", "COUNT", "2", "STREAMS", stream, ">")
        run("XTRIM", stream, "MAXLEN", "=", "5")
        done = imported(url, other.url, stream)
        assert (done.code, done.err) == (0, "")
    info = full(asked(url, "XINFO", "STREAM", stream, "FULL"))
    assert (info[b"length"], info[b"entries-added"], info[b"last-generated-id"]) == (5, 5, b"6-0")
    group = info[b"groups"][b"g"]
    assert (group[b"last-delivered-id"], group[b"entries-read"], group[b"pel-count"]) == (b"2-0", None, 2)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--redis", "http://127.0.0.1"), 2, "--redis"),
        (("--redis", "redis://127.0.0.1:1", "--retry-for", "0"), 1, "Redis does not answer"),
        (("--match", "a", "b"), 2, "not both"),
        (("no such stream",), 1, "there is no such stream in Redis"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    url: str, origin: RedisServer, words: tuple[str, ...], code: int, sentence: str
) -> None:
    """Usage is 2, a failure 1, and there is never a traceback."""
    done = weir(url, "import", *(() if "--redis" in words else ("--redis", origin.url)), *words)
    assert (done.code, sentence in done.err) == (code, True), done.err
    assert "Traceback" not in done.err


def test_a_gateway_that_is_away_is_told(origin: RedisServer, stream: str) -> None:
    """Patience ends, and says how to go on."""
    filled(origin, stream, 1)
    done = imported(f"http://127.0.0.1:{free_port()}", origin.url, stream, "--retry-for", "0")
    assert done.code == 1
    assert "does not answer" in done.err
    assert "the same again goes on" in done.err


def test_the_client_of_redis_is_asked_for(url: str) -> None:
    """Without the extra the command says what to install."""
    without = "import sys; sys.modules['redis'] = sys.modules['redis.connection'] = None"
    program = f"{without}; import weir.cli.main; weir.cli.main.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "import"],
        cwd=ROOT,
        env=environment(url) | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert (done.returncode, "pip install 'redis>=8.1'" in done.stderr) == (1, True), done.stderr
